//! Journal records: everything a device says about a run.

use super::{Arm, EngineConfig, Finite, KvType, Telemetry};
use serde::{Deserialize, Serialize};

/// One line of a device journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Record {
    /// The first record of every journal.
    JournalStart {
        /// [`super::PROTOCOL_VERSION`] of the writer.
        protocol_version: u32,
        /// The run's name.
        run: String,
        /// The device's name.
        device: String,
        /// `farmhand`'s version and build id.
        agent_build: String,
        /// sha256 of the `farmhand` binary that is running.
        agent_sha256: String,
        /// Wall clock at the start, RFC 3339, only to name things.
        wall_clock: String,
    },
    /// What readiness is judged by on this device; written before the first cell where the plan has criteria.
    ReadyBasis {
        /// The idle temperature so far, C; `None` without a trusted sensor.
        idle_temperature_c: Option<Finite>,
        /// Criteria of which the device gives no sign, each with the reason in words. They are not judged.
        not_judged: Vec<String>,
    },
    /// An attempt waits until the device is fit. Written when the wait begins, when what it waits for changes, and from
    /// time to time. The attempt's `CellStart` ends the wait.
    Waiting {
        /// Position in the plan.
        cell: u32,
        /// The attempt that is to begin.
        attempt: u32,
        /// `cooling`, or `busy` when heat is not what it waits for.
        phase: String,
        /// What speaks against beginning now.
        objections: Vec<Objection>,
        /// How long it has waited, in milliseconds, monotonic.
        waited_ms: u64,
    },
    /// A cell's child process was started.
    CellStart {
        /// Position in the plan.
        cell: u32,
        /// From 0; above 0 the cell is being tried again.
        attempt: u32,
        /// Scenario, arm, pair and slot, repeated so that a journal can be read alone.
        scenario: String,
        /// The arm.
        arm: Arm,
        /// The pair.
        pair: u32,
        /// Position within the pair.
        slot: u32,
    },
    /// What the child proved about itself before it measured.
    Proof {
        /// Position in the plan.
        cell: u32,
        /// The proof.
        proof: Box<SelfProof>,
    },
    /// One measured value, or the reason why there is none.
    Sample(SampleRecord),
    /// Emission times of one decode.
    TokenTimes(TokenTimes),
    /// State of the device while a cell ran.
    Telemetry(Box<Telemetry>),
    /// A cell's child process has ended.
    CellEnd {
        /// Position in the plan.
        cell: u32,
        /// The attempt this ends.
        attempt: u32,
        /// How the child ended.
        exit: ExitCause,
        /// From spawn to exit, in milliseconds, monotonic.
        duration_ms: u64,
        /// Reasons that make every sample of this attempt INVALID.
        invalid: Vec<ReasonCode>,
        /// Last lines of the child's stderr, at most 2000 bytes, control characters escaped.
        stderr_tail: String,
    },
    /// The last record of a journal that ended in good order.
    JournalEnd {
        /// `true` when `farmhand` was asked to stop before the plan was done.
        interrupted: bool,
    },
}

/// One thing that speaks against beginning a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Objection {
    /// What the attempt is INVALID for when the wait ends in vain.
    pub reason: ReasonCode,
    /// In words, with figures and units.
    pub what: String,
}

/// Whether a sample may be believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validity {
    /// Nothing spoke against it.
    Valid,
    /// The environment or the engine spoiled it, for this reason.
    Invalid(ReasonCode),
}

/// Why a sample or a cell is INVALID. Each has one meaning; the names are what reports show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonCode {
    /// Cool-down did not reach its criterion within its limit.
    NotCool,
    /// The device slowed its processors or memory against heat, by its own word.
    ThermalBand,
    /// Mean clock over highest clock stayed below the limit.
    ClockLow,
    /// A short fixed kernel did not come back to its own speed within the limit.
    SentinelSlow,
    /// The battery had less charge than a cell may begin with.
    BatteryLow,
    /// Charging state changed during the sample.
    ChargingChanged,
    /// Another process took more than its share of CPU.
    ForeignLoad,
    /// Effective threads or affinity differ from the request.
    AffinityDiffers,
    /// The instruction set used differs from the request.
    IsaDiffers,
    /// The model as opened has another sha256 than the plan says.
    ModelHashDiffers,
    /// The engine binary has another sha256 than the plan says.
    EngineHashDiffers,
    /// Another number of tokens than requested was generated.
    TokenCountDiffers,
    /// NaN or infinity among the logits.
    LogitsNotFinite,
    /// Greedy output differs from the recorded tokens.
    GoldenTokensDiffer,
    /// Memory bandwidth utilisation above 1.
    MbuAboveOne,
    /// The monotonic clock went backwards.
    ClockBackwards,
    /// A sequence number is missing from the journal.
    JournalGap,
    /// The cell's process did not end in good order.
    CellDied,
    /// The cell or its load ran past its budget.
    Timeout,
    /// The run was interrupted while the cell ran.
    Interrupted,
    /// The value is not a finite number.
    NotFinite,
    /// A cold load was asked for, but the model could not be evicted from the page cache.
    CacheNotEvicted,
    /// The cell ended well and gave no value of this metric.
    NotMeasured,
}

impl ReasonCode {
    /// The code as reports show it, for instance `golden-tokens-differ`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotCool => "not-cool",
            Self::ThermalBand => "thermal-band",
            Self::ClockLow => "clock-low",
            Self::SentinelSlow => "sentinel-slow",
            Self::BatteryLow => "battery-low",
            Self::ChargingChanged => "charging-changed",
            Self::ForeignLoad => "foreign-load",
            Self::AffinityDiffers => "affinity-differs",
            Self::IsaDiffers => "isa-differs",
            Self::ModelHashDiffers => "model-hash-differs",
            Self::EngineHashDiffers => "engine-hash-differs",
            Self::TokenCountDiffers => "token-count-differs",
            Self::LogitsNotFinite => "logits-not-finite",
            Self::GoldenTokensDiffer => "golden-tokens-differ",
            Self::MbuAboveOne => "mbu-above-one",
            Self::ClockBackwards => "clock-backwards",
            Self::JournalGap => "journal-gap",
            Self::CellDied => "cell-died",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::NotFinite => "not-finite",
            Self::CacheNotEvicted => "cache-not-evicted",
            Self::NotMeasured => "not-measured",
        }
    }
}

/// One measured value: finite and with a unit in its metric's name, or the reason why it is missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SampleRecord {
    /// Position in the plan.
    pub cell: u32,
    /// The attempt that measured it.
    pub attempt: u32,
    /// Index of the step within the cell.
    pub step: u32,
    /// Repetition within the step, from 0.
    pub repetition: u32,
    /// Metric with its qualifier, for instance `decode-tps@2048`.
    pub metric: String,
    /// The value; `None` when `validity` says why there is none. A value that is not to be believed may still be given,
    /// so that raw data are kept.
    pub value: Option<Finite>,
    /// Whether it may be believed.
    pub validity: Validity,
}

/// Raw inter-token times of one decode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TokenTimes {
    /// Position in the plan.
    pub cell: u32,
    /// The attempt.
    pub attempt: u32,
    /// Index of the step within the cell.
    pub step: u32,
    /// Repetition within the step.
    pub repetition: u32,
    /// Metric qualifier, for instance `0` (depth) or `cold`.
    pub qualifier: String,
    /// Differences of monotonic emission times in microseconds, first token left out; at most 65,536 of them.
    pub itl_us: Vec<u32>,
    /// Index of the first end-of-generation token, when one was generated.
    pub first_eog_index: Option<u32>,
}

/// Memory that an engine holds, part by part, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct HeldMemory {
    /// Model files that are mapped: shared, evictable, resident as far as they have been touched.
    pub mapped_bytes: u64,
    /// Model files that were read into anonymous memory.
    pub anonymous_bytes: u64,
    /// Of these two, what is locked in memory.
    pub locked_bytes: u64,
    /// Copies of weights in another layout.
    pub repack_bytes: u64,
    /// The KV cache, as allocated.
    pub kv_bytes: u64,
    /// Buffers of a batch, and logits.
    pub scratch_bytes: u64,
    /// Metadata and tokenizer on the heap, about.
    pub heap_bytes: u64,
}

impl HeldMemory {
    /// Anonymous memory at most: all but what is mapped. Memory counts from when it is first written, so less may be
    /// resident.
    pub fn anonymous_total_bytes(&self) -> u64 {
        self.anonymous_bytes + self.repack_bytes + self.kv_bytes + self.scratch_bytes + self.heap_bytes
    }
}

/// What an engine proves about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SelfProof {
    /// Version and build id of the engine.
    pub build: String,
    /// sha256 of the running binary.
    pub engine_sha256: String,
    /// sha256 of each model file, as opened.
    pub model_sha256: Vec<String>,
    /// What hashing the model cost, milliseconds; 0 when it was known already, and then `model-sha256` may be empty where
    /// nobody asked for it.
    #[serde(default)]
    pub model_hash_ms: u64,
    /// Instruction set chosen at run time, for instance `avx2` or `scalar`.
    pub isa: String,
    /// How weights are rearranged for the kernels: `none`, or the name of the layout.
    #[serde(default)]
    pub repack: String,
    /// Configuration in force.
    pub config: EngineConfig,
    /// Element type of cached values, where it is another than that of keys, which the configuration names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_value_type: Option<KvType>,
    /// Worker threads that serve single tokens.
    pub threads_effective: u32,
    /// Worker threads that serve prompts.
    #[serde(default)]
    pub threads_batch_effective: u32,
    /// `Cpus_allowed_list` of each worker, read back from the kernel.
    pub affinity_effective: Vec<String>,
    /// The core that each worker was to be pinned to; empty texts where none was.
    #[serde(default)]
    pub affinity_wanted: Vec<String>,
    /// Where the kernel does not do what was asked for, in words. Any of them makes what was measured INVALID.
    #[serde(default)]
    pub affinity_faults: Vec<String>,
    /// Bytes of weights, as stored.
    pub weight_bytes: u64,
    /// Bytes of KV cache once the context is full; it is taken as the depth grows.
    pub kv_bytes: u64,
    /// Bytes of scratch buffers.
    pub scratch_bytes: u64,
    /// What is held in memory, part by part.
    #[serde(default)]
    pub held: HeldMemory,
    /// How the page cache was emptied for a cold load: `none`, `posix_fadvise` or `drop_caches`.
    pub eviction: String,
    /// What the workers of a decode read from memory at best, 10^9 bytes a second, as the agent measured it; absent where
    /// it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bandwidth_gb_per_s: Option<Finite>,
}

/// How a child process ended. Never guessed: what is not known is `Unknown`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum ExitCause {
    /// Exit status 0.
    Done,
    /// The engine refused, with its exit status and message.
    Failed {
        /// Exit status.
        status: i32,
        /// First line of the reason.
        what: String,
    },
    /// A signal of its own making, for instance SIGSEGV or SIGILL.
    Crash {
        /// For instance `SIGILL`.
        signal: String,
    },
    /// SIGKILL that farmhand did not send; `by` is `oom-kernel`, `oom-lmkd`, `phantom-process` or `unknown`.
    Killed {
        /// Who did it, as far as it can be shown.
        by: String,
    },
    /// Ran past its budget and was killed by farmhand.
    Timeout {
        /// `load` or `cell`.
        phase: String,
        /// The budget, in milliseconds.
        budget_ms: u64,
    },
    /// farmhand was asked to stop.
    Interrupted,
    /// No process was started: the device did not get fit to be measured in time.
    NotReady {
        /// How long farmhand waited, in milliseconds.
        waited_ms: u64,
    },
}

/// What a probe found: what this device is. Nothing in it changes while the device is idle, temperatures aside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Fingerprint {
    /// Rust target the probing binary was built for.
    pub target: String,
    /// SoC or CPU model name.
    pub soc: String,
    /// Board or product name, when the device says one.
    pub product: Option<String>,
    /// Operating system and its build.
    pub os_build: String,
    /// Kernel release.
    pub kernel: String,
    /// Page size, bytes.
    pub page_size_bytes: u64,
    /// Physical memory, bytes.
    pub memory_bytes: u64,
    /// Instruction-set extensions that matter, sorted, for instance `avx2`, `dotprod`.
    pub isa: Vec<String>,
    /// Clusters of equal cores, fastest first.
    pub clusters: Vec<CoreCluster>,
    /// Cache sizes, largest last, as `L3 33554432`.
    pub caches: Vec<String>,
    /// Temperature sensors found, and whether each is trusted.
    pub sensors: Vec<Sensor>,
    /// Modes that change everything: memory clock, power mode, throttle flags, by name.
    pub power_modes: Vec<(String, String)>,
    /// Battery percentage, when there is a battery.
    pub battery_percent: Option<u32>,
    /// Virtualisation, when it shows, for instance `kvm`.
    pub virtualisation: Option<String>,
}

/// Cores that are alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CoreCluster {
    /// Core numbers.
    pub cores: Vec<u32>,
    /// `cpu_capacity`, when the kernel gives it.
    pub capacity: Option<u32>,
    /// Highest clock, kHz, when cpufreq gives it.
    pub clock_max_khz: Option<u64>,
    /// Governor, when cpufreq gives it.
    pub governor: Option<String>,
    /// Core numbers that are offline.
    pub offline: Vec<u32>,
}

/// One temperature sensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sensor {
    /// Type as the kernel names it.
    pub sensor: String,
    /// Path under the sensor root, for the record only.
    pub path: String,
    /// Degrees Celsius now, when it can be read and is plausible.
    pub celsius: Option<Finite>,
    /// Why it is not trusted; `None` when it is.
    pub distrust: Option<String>,
}
