//! The device plan: what `farmhand run` is asked to do.

use super::{CpuClusters, CpuList, KvPolicy, ReadyCriteria, Repack};
use crate::error::{EngineError, Result};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Which side of a comparison a cell belongs to. A run without a baseline has only candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// What is trusted already.
    Baseline,
    /// What asks to be released.
    Candidate,
}

impl Arm {
    /// `baseline` or `candidate`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Candidate => "candidate",
        }
    }
}

/// Everything one device has to do in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DevicePlan {
    /// [`super::PROTOCOL_VERSION`] of the writer.
    pub protocol_version: u32,
    /// The run's name, `[a-z0-9-]+`.
    pub run: String,
    /// The device's name in the inventory.
    pub device: String,
    /// Period of the telemetry records, in milliseconds; 0 turns them off.
    pub telemetry_period_ms: u64,
    /// How often a cell that came out INVALID is tried again.
    pub retries_max: u32,
    /// Fencing token of the lease under which this plan may run; `None` runs without a lease check.
    pub lease_token: Option<u64>,
    /// When the device is fit to be measured.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ready: ReadyCriteria,
    /// The cells, in the order in which they are to run.
    pub cells: Vec<CellPlan>,
}

/// One cell: device x engine x model x configuration x scenario, one repetition of it, in a fresh process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CellPlan {
    /// Position in the plan, from 0; unique within the device's plan.
    pub cell: u32,
    /// The scenario's name.
    pub scenario: String,
    /// The arm this cell belongs to.
    pub arm: Arm,
    /// The pair (or, without a baseline, the repetition) this cell belongs to, from 0.
    pub pair: u32,
    /// Position within the pair: 0 ran first, 1 second.
    pub slot: u32,
    /// The model to open.
    pub model: ModelRef,
    /// How the engine is to be set up.
    pub config: EngineConfig,
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// Seed of prompts and sampling.
    pub seed: u64,
    /// Budget for opening the model, in milliseconds.
    pub load_timeout_ms: u64,
    /// Budget for the whole cell after the load, in milliseconds.
    pub cell_timeout_ms: u64,
    /// Whether heat is what it measures: then a device that slows itself down spoils nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub about_heat: bool,
}

/// A model on the device, named by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelRef {
    /// Path on the device of the file, or of the first file of a split set.
    pub path: String,
    /// Lower-case hex sha256 of each file of the set, in order.
    pub sha256: Vec<String>,
}

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[allow(non_camel_case_types)] // the field writes these names with an underscore
pub enum KvType {
    /// IEEE half precision, two bytes an element.
    #[default]
    F16,
    /// Blocks of 32 8-bit codes with a half-precision scale, 34 bytes.
    Q8_0,
    /// Blocks of 32 4-bit codes with a half-precision scale, 18 bytes.
    Q4_0,
}

impl KvType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::F16, Self::Q8_0, Self::Q4_0];

    /// As users write it: `f16`, `q8_0` or `q4_0`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Bytes of a key or value of `dim` elements; `None` when they are no whole blocks.
    pub fn row_bytes(self, dim: usize) -> Option<usize> {
        match self {
            Self::F16 => dim.checked_mul(2),
            Self::Q8_0 => dim.is_multiple_of(32).then(|| dim / 32 * 34),
            Self::Q4_0 => dim.is_multiple_of(32).then(|| dim / 32 * 18),
        }
    }
}

impl FromStr for KvType {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|t| t.as_str() == text).ok_or_else(|| {
            EngineError::usage(format!("cache type `{text}` is not supported"))
                .hint(format!("known: {}", Self::ALL.map(Self::as_str).join(", ")))
        })
    }
}

/// How the engine is set up for a cell; part of the series key. A key that was added later is written only where it says
/// something else than its default, so that older plans and series stay what they were.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EngineConfig {
    /// Worker threads for single tokens; 0 lets the engine choose: as many as there are cores named below, else the
    /// performance cores.
    pub threads: u32,
    /// Worker threads for prompts; 0 takes as many as for single tokens.
    #[serde(default, skip_serializing_if = "is_default")]
    pub threads_batch: u32,
    /// Cores for the workers: worker i is pinned to the i-th.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cpus: CpuList,
    /// Cores for the workers, by speed; not together with `cpus`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cpu_clusters: Option<CpuClusters>,
    /// Room in the KV cache, in tokens.
    pub context_tokens: u32,
    /// Element type of cached keys, and of values where `kv_type_v` says nothing else.
    pub kv_type: KvType,
    /// Element type of cached values, where it is another than that of keys.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kv_type_v: Option<KvType>,
    /// What of the past is kept and seen.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kv_policy: KvPolicy,
    /// Map the model (`true`) or read it into anonymous memory (`false`).
    pub mmap: bool,
    /// Keep the model from being evicted or swapped. Where the system does not allow it, the run goes on, and the proof
    /// says how much is locked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mlock: bool,
    /// Rearrange the weights at load.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repack: Repack,
}

impl EngineConfig {
    /// The same with these types of cached keys and values.
    pub fn with_kv_types(self, keys: KvType, values: KvType) -> Self {
        Self { kv_type: keys, kv_type_v: Some(values).filter(|v| *v != keys), ..self }
    }

    /// Element type of cached values.
    pub fn value_type(&self) -> KvType {
        self.kv_type_v.unwrap_or(self.kv_type)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            threads: 0,
            threads_batch: 0,
            cpus: CpuList::default(),
            cpu_clusters: None,
            context_tokens: 4096,
            kv_type: KvType::F16,
            kv_type_v: None,
            kv_policy: KvPolicy::Full,
            mmap: true,
            mlock: false,
            repack: Repack::Auto,
        }
    }
}

/// One step of a scenario, as the device executes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Step {
    /// Open the model in this process. Must come first. Yields `load-cold-ms` or `load-warm-ms`: process start to ready
    /// for the first token. `cold` evicts the file from the page cache before (and the record says by which means).
    Load {
        /// Evict the model file from the page cache first.
        #[serde(default)]
        cold: bool,
    },
    /// One unmeasured prefill and decode, so that pages are resident and clocks are up.
    WarmUp {
        /// Tokens of prompt.
        prompt_tokens: u32,
        /// Tokens to generate.
        decode_tokens: u32,
    },
    /// Process a prompt of exactly `prompt-tokens` tokens into an empty cache and sample one token.
    /// Yields `prefill-tps@N` and `ttft-ms@N`, N = prompt tokens.
    Prefill {
        /// Tokens of prompt.
        prompt_tokens: u32,
        /// How many times, each into an emptied cache; one sample each.
        #[serde(default = "one")]
        repetitions: u32,
    },
    /// Generate exactly `decode-tokens` tokens at depth `at-depth` (tokens really in the cache, prefilled unmeasured; at
    /// depth 0 the cache is empty and a single token of prompt starts the generation).
    /// Yields `decode-tps@D`, `itl-p50-ms@D`, `itl-p95-ms@D`, `itl-p99-ms@D`, `itl-max-ms@D`, D = depth, `mbu@D` where the
    /// agent knows how fast memory is, and the raw token times. Percentiles by nearest rank. End-of-generation tokens are recorded, not obeyed.
    Decode {
        /// Tokens to generate.
        decode_tokens: u32,
        /// Tokens in the cache before the first generated one.
        #[serde(default)]
        at_depth: u32,
        /// How many times; one sample each.
        #[serde(default = "one")]
        repetitions: u32,
    },
    /// The first answer of a fresh process, whatever state the caches are in: a prompt of `prompt-tokens`, then
    /// `decode-tokens`. Yields `ttft-ms@LABEL`, `decode-tps@LABEL`, with the label given here.
    Answer {
        /// Qualifier of the metrics, for instance `cold` or `warm`.
        label: String,
        /// Tokens of prompt.
        prompt_tokens: u32,
        /// Tokens to generate.
        decode_tokens: u32,
    },
    /// Greedy generation must reproduce recorded tokens. Yields `golden-match-ratio` (share of cases whose tokens are
    /// all equal); below 1 each of the cell's other samples is INVALID with `golden-tokens-differ`. To be able to say so,
    /// a cell with golden cases reports its samples only after its last golden step.
    Golden {
        /// The cases recorded for this model; empty when none are known for it, which yields no sample.
        #[serde(default)]
        cases: Vec<GoldenCase>,
    },
}

fn one() -> u32 {
    1
}

impl Step {
    /// The step's name as users write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Load { .. } => "load",
            Self::WarmUp { .. } => "warm-up",
            Self::Prefill { .. } => "prefill",
            Self::Decode { .. } => "decode",
            Self::Answer { .. } => "answer",
            Self::Golden { .. } => "golden",
        }
    }
}

/// One recorded answer: these prompt tokens must yield these generated tokens, greedily.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GoldenCase {
    /// Name for messages.
    pub name: String,
    /// The prompt, tokenised by the engine with special tokens parsed; its ids must equal `prompt-ids`.
    pub prompt: String,
    /// Expected ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Expected ids of the answer.
    pub generated_ids: Vec<u32>,
}
