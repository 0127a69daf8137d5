//! What a run is made of: its manifest, its cells and samples. Pure data; the store fills it, judgements and reports
//! read it.

use crate::error::{Error, Result};
use farmgate_engine::protocol::{
    Arm, EngineConfig, ExitCause, Fingerprint, Finite, ReasonCode, SelfProof, Telemetry, TokenTimes, Validity,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// Name of a run: 1 to 64 characters of `[a-z0-9-]`, so that it is safe as a file name everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// Checks the characters.
    pub fn parse(text: &str) -> Result<Self> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::usage(format!("`{}` is not the name of a run", text.escape_debug()))
            .hint("names are 1 to 64 characters of a-z, 0-9 and -; `farmgate report --list` shows them"))
    }
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RunId {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A model, as the lab host found it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelFacts {
    /// File name of the (first) file.
    pub name: String,
    /// sha256 of each file of the set, in order.
    pub sha256: Vec<String>,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Most common weight type, for instance `Q4_0`.
    pub weight_type: String,
}

/// Facts of the lab host, for the record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostFacts {
    /// Operating system and version.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Number of logical CPUs.
    pub cpus: u32,
    /// Physical memory, bytes.
    pub memory_bytes: u64,
}

/// What is known of a run before its first cell. Written once, never changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Manifest {
    /// The run's name.
    pub run: RunId,
    /// Wall clock at its start, RFC 3339; names the run, orders nothing.
    pub created: String,
    /// farmgate's version.
    pub farmgate_version: String,
    /// The lab host.
    pub host: HostFacts,
    /// Scenarios, in order.
    pub scenarios: Vec<String>,
    /// The candidate model.
    pub candidate: ModelFacts,
    /// The baseline model, when the run is a comparison.
    pub baseline: Option<ModelFacts>,
    /// Planned pairs (or repetitions without a baseline) by scenario.
    pub pairs: BTreeMap<String, u32>,
    /// Devices, in plan order, with their labels.
    pub devices: Vec<DeviceFacts>,
    /// The policy that was asked for by name or path; `None` stands for the default one's rules for these scenarios.
    #[serde(default)]
    pub policy: Option<String>,
    /// What was typed besides; runs of older versions have none, and cannot be gone on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typed: Option<Typed>,
}

/// What was typed to begin a run, as far as going on with it needs it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Typed {
    /// The candidate's file on the lab host.
    pub model: PathBuf,
    /// The baseline's.
    pub baseline_model: Option<PathBuf>,
    /// Pairs for each scenario.
    pub pairs: Option<u32>,
    /// Repetitions for each scenario.
    pub repetitions: Option<u32>,
    /// Worker threads.
    pub threads: Option<u32>,
    /// Room in the KV cache, tokens.
    pub context_tokens: Option<u32>,
}

/// What the inventory says of a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceFacts {
    /// Name in the inventory.
    pub device: String,
    /// Labels.
    pub labels: Vec<String>,
    /// Tier, when the inventory gives one.
    pub tier: Option<String>,
    /// `local`, `ssh`, …
    pub transport: String,
    /// What the product promises on it.
    #[serde(default, skip_serializing_if = "Constraints::is_empty")]
    pub constraints: Constraints,
}

/// Limits that the product promises on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Constraints {
    /// Highest resident memory, MB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb_max: Option<f64>,
    /// Slowest decode at whatever depth is measured, token/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_tps_min: Option<f64>,
    /// Longest time to the first token at whatever prompt is measured, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_ms_max: Option<f64>,
    /// Highest mean power, W.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w_max: Option<f64>,
    /// Highest temperature of a trusted sensor, degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c_max: Option<f64>,
}

impl Constraints {
    /// Whether nothing is promised.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// Every device came to the end of its plan or failed.
    Complete,
    /// Stopped by the user; what was measured is kept.
    Interrupted,
    /// No end was recorded: it is still running, or farmgate died.
    Unfinished,
}

impl RunState {
    /// As reports show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Unfinished => "unfinished",
        }
    }
}

/// Everything that is known of a run, as the store gives it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunData {
    /// What was known before.
    pub manifest: Manifest,
    /// How far it came.
    pub state: RunState,
    /// When it was gone on with after farmgate had ended early, RFC 3339.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<String>,
    /// Devices, in plan order.
    pub devices: Vec<DeviceData>,
}

/// One device's part of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceData {
    /// What the inventory says.
    pub facts: DeviceFacts,
    /// What the probe found; `None` when the device was never reached.
    pub fingerprint: Option<Fingerprint>,
    /// Why the device failed (INFRA), when it did.
    pub failure: Option<String>,
    /// sha256 of the engine binary that was pushed.
    pub engine_sha256: Option<String>,
    /// Cells, in plan order; those never started are here as well, without attempts.
    pub cells: Vec<CellData>,
}

/// One cell of a run: planned facts and everything that was recorded for its last attempt.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CellData {
    /// Position in the device's plan.
    pub cell: u32,
    /// Scenario.
    pub scenario: String,
    /// Arm.
    pub arm: Arm,
    /// Pair, or repetition without a baseline.
    pub pair: u32,
    /// Position within the pair.
    pub slot: u32,
    /// sha256 of the model files that were to be opened.
    pub model_sha256: Vec<String>,
    /// Engine configuration that was asked for.
    pub config: EngineConfig,
    /// How many attempts were started.
    pub attempts: u32,
    /// How the last attempt ended; `None` when it has not.
    pub exit: Option<ExitCause>,
    /// Length of the last attempt, milliseconds.
    pub duration_ms: Option<u64>,
    /// Reasons that make the whole last attempt INVALID.
    pub invalid: Vec<ReasonCode>,
    /// What the engine proved about itself.
    pub proof: Option<SelfProof>,
    /// Samples of all attempts.
    pub samples: Vec<Sample>,
    /// Raw token times of all attempts.
    pub token_times: Vec<TokenTimes>,
    /// Telemetry with the device's monotonic time in microseconds.
    pub telemetry: Vec<(u64, Telemetry)>,
    /// Last lines of the child's stderr.
    pub stderr_tail: String,
}

/// One sample as stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sample {
    /// Attempt it comes from; only the cell's last attempt counts.
    pub attempt: u32,
    /// Step within the cell.
    pub step: u32,
    /// Repetition within the step.
    pub repetition: u32,
    /// Metric with qualifier.
    pub metric: String,
    /// The value, when there is one.
    pub value: Option<Finite>,
    /// Whether it may be believed.
    pub validity: Validity,
}

/// Names a series: the same thing measured again and again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SeriesKey {
    /// Device.
    pub device: String,
    /// Scenario.
    pub scenario: String,
    /// Metric with qualifier.
    pub metric: String,
    /// How the engine was set up: what differs in context, threads, cores, cache or layout of weights is another series.
    pub config: EngineConfig,
}

impl SeriesKey {
    /// Device, scenario and metric: what is shown, and by what series are sorted.
    fn name(&self) -> (&str, &str, &str) {
        (&self.device, &self.scenario, &self.metric)
    }
}

/// One cell's contribution to a series: the median of its valid repetitions, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Observation {
    /// Cell.
    pub cell: u32,
    /// Pair.
    pub pair: u32,
    /// Position within the pair.
    pub slot: u32,
    /// The value, or the reasons why it is missing (never empty then).
    pub value: std::result::Result<Finite, Vec<ReasonCode>>,
    /// Raw values of the valid repetitions.
    pub repetitions: Vec<Finite>,
}

/// All observations of one series, by arm, in the order in which they were measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Series {
    /// Its name.
    pub key: SeriesKey,
    /// Baseline observations; empty without a baseline.
    pub baseline: Vec<Observation>,
    /// Candidate observations.
    pub candidate: Vec<Observation>,
}

impl RunData {
    /// All series of the run, sorted by key. A cell that was planned and gave no value of a metric that its siblings
    /// gave appears with the reason, so that missing data cannot hide.
    pub fn series(&self) -> Vec<Series> {
        let mut out = Vec::new();
        for device in &self.devices {
            let mut metrics: BTreeSet<(&str, &str)> = BTreeSet::new();
            let mut configs: Vec<&EngineConfig> = Vec::new();
            for cell in &device.cells {
                metrics.extend(cell.samples.iter().map(|sample| (cell.scenario.as_str(), sample.metric.as_str())));
                if !configs.contains(&&cell.config) {
                    configs.push(&cell.config);
                }
            }
            let all = metrics.iter().flat_map(|metric| configs.iter().map(move |config| (metric, *config)));
            for ((scenario, metric), config) in all {
                let is_mine = |c: &&CellData| c.scenario == *scenario && c.config == *config;
                let cells: Vec<&CellData> = device.cells.iter().filter(is_mine).collect();
                if cells.is_empty() {
                    continue;
                }
                let key = SeriesKey {
                    device: device.facts.device.clone(),
                    scenario: (*scenario).to_owned(),
                    metric: (*metric).to_owned(),
                    config: config.clone(),
                };
                let of = |arm: Arm| -> Vec<Observation> {
                    cells.iter().filter(|c| c.arm == arm).map(|c| c.observation(metric)).collect()
                };
                out.push(Series { key, baseline: of(Arm::Baseline), candidate: of(Arm::Candidate) });
            }
        }
        // stable: set-ups of the same metric stay in the order in which they were measured
        out.sort_by(|a, b| a.key.name().cmp(&b.key.name()));
        out
    }
}

impl CellData {
    /// What this cell says about a metric; only its last attempt counts.
    pub fn observation(&self, metric: &str) -> Observation {
        let last = self.attempts.saturating_sub(1);
        let mine = || self.samples.iter().filter(|s| s.attempt == last && s.metric == metric);
        let mut reasons = self.invalid.clone();
        reasons.extend(mine().filter_map(|s| match s.validity {
            Validity::Valid => None,
            Validity::Invalid(reason) => Some(reason),
        }));
        match &self.exit {
            Some(ExitCause::Done) => {}
            // what it waited for in vain is among the reasons already
            Some(ExitCause::NotReady { .. }) if !reasons.is_empty() => {}
            Some(ExitCause::Timeout { .. }) => reasons.push(ReasonCode::Timeout),
            Some(ExitCause::Interrupted) | None => reasons.push(ReasonCode::Interrupted),
            Some(_) => reasons.push(ReasonCode::CellDied),
        }
        reasons.sort_unstable();
        reasons.dedup();
        let repetitions: Vec<Finite> =
            mine().filter(|s| s.validity == Validity::Valid).filter_map(|s| s.value).collect();
        let value = match median(&repetitions) {
            Some(value) if reasons.is_empty() => Ok(value),
            _ if reasons.is_empty() => Err(vec![ReasonCode::NotMeasured]),
            _ => Err(reasons),
        };
        Observation { cell: self.cell, pair: self.pair, slot: self.slot, value, repetitions }
    }
}

fn median(values: &[Finite]) -> Option<Finite> {
    let mut sorted: Vec<f64> = values.iter().map(|v| v.get()).collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Finite::new(sorted[n / 2]),
        // half of each, so that the sum of two huge numbers cannot overflow
        _ => Finite::new(sorted[n / 2 - 1] / 2.0 + sorted[n / 2] / 2.0),
    }
}
