//! The serialisable view of a run: what templates see. All text in it is clean and bounded, all numbers are strings
//! with their unit; raw numbers belong to the JSON and CSV files. Field names are the template author's reference.

use super::plot::Plot;
use serde::Serialize;

/// Everything a template may show.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of this view and of the JSON file.
    pub schema_version: u32,
    /// The run.
    pub run: RunView,
    /// The verdict, or that there is none.
    pub verdict: VerdictView,
    /// Candidate, then baseline.
    pub models: Vec<ModelView>,
    /// Candidate and baseline have the same sha256.
    pub same_model: bool,
    /// Devices, in plan order.
    pub devices: Vec<DeviceView>,
    /// Rules, critical ones first, worst first.
    pub rules: Vec<RuleView>,
    /// Series by scenario and metric, those with rules first.
    pub metrics: Vec<MetricView>,
    /// What was INVALID.
    pub invalid: InvalidView,
    /// Cells whose process died.
    pub died: Vec<DiedView>,
    /// The farm's own figures.
    pub quality: Vec<FactView>,
    /// What was left out to keep the page small, one sentence each.
    pub cuts: Vec<String>,
}

/// A named fact.
#[derive(Debug, Clone, Serialize)]
pub struct FactView {
    /// What it is.
    pub name: String,
    /// Its value with unit.
    pub value: String,
    /// What it means; may be empty.
    pub note: String,
}

/// The run.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    /// Its name.
    pub name: String,
    /// Wall clock at its start, RFC 3339.
    pub created: String,
    /// `complete`, `interrupted` or `unfinished`.
    pub state: &'static str,
    /// What the state means for the reader; empty when complete.
    pub state_note: String,
    /// That and when it was gone on with after farmgate had ended early; empty when it was not.
    pub resumed_note: String,
    /// farmgate's version.
    pub farmgate_version: String,
    /// Scenarios with their planned pairs or repetitions.
    pub scenarios: Vec<String>,
    /// The lab host.
    pub host: String,
    /// Whether there is a baseline.
    pub comparison: bool,
    /// Cells that ended in good order and are valid.
    pub cells_valid: usize,
    /// Cells in the plan.
    pub cells_planned: usize,
}

/// The verdict.
#[derive(Debug, Clone, Serialize)]
pub struct VerdictView {
    /// `GO`, `NO-GO`, `INCONCLUSIVE` or `NO VERDICT`.
    pub word: &'static str,
    /// CSS class: `pass`, `fail`, `inconclusive` or `none`.
    pub class: &'static str,
    /// Why.
    pub sentence: String,
    /// The policy's name; empty without a judgement.
    pub policy: String,
    /// Exit code of `gate`, when there is a judgement.
    pub exit_code: Option<u8>,
    /// How many rules came out how, for critical rules; only those that occur.
    pub counts: Vec<CountView>,
    /// How many rules only inform.
    pub informing: usize,
}

/// A number of rules with one outcome.
#[derive(Debug, Clone, Serialize)]
pub struct CountView {
    /// `PASS`, `FAIL`, …
    pub word: &'static str,
    /// CSS class.
    pub class: &'static str,
    /// How many.
    pub count: usize,
}

/// A model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelView {
    /// `candidate` or `baseline`.
    pub arm: &'static str,
    /// File name.
    pub name: String,
    /// First twelve digits of each file's sha256.
    pub sha256: String,
    /// Architecture.
    pub architecture: String,
    /// Parameters.
    pub parameters: String,
    /// Most common weight type.
    pub weight_type: String,
    /// Size of the weights.
    pub weights: String,
    /// Size of the files.
    pub file: String,
}

/// A device.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceView {
    /// Anchor within the page.
    pub id: String,
    /// Name.
    pub name: String,
    /// Labels, tier and transport in one line.
    pub kind: String,
    /// SoC or CPU; says so when the device was never reached.
    pub soc: String,
    /// Operating system and kernel.
    pub system: String,
    /// Facts of the fingerprint and of the engine's proof.
    pub facts: Vec<FactView>,
    /// Instruction set, threads and affinity that the engine proved, with the number of cells.
    pub proofs: Vec<String>,
    /// Why the device failed; empty when it did not.
    pub failure: String,
    /// Cells by state, in words.
    pub cells: String,
    /// Whether there is trouble to look at: failure, dead or INVALID cells.
    pub troubled: bool,
    /// Worst outcome of its critical rules, as a word; empty without rules.
    pub outcome: &'static str,
    /// CSS class of the outcome.
    pub class: &'static str,
    /// Remarks, for instance that there is no temperature sensor.
    pub remarks: Vec<String>,
    /// Token latency and telemetry.
    pub figures: Vec<FigureView>,
}

/// A rule on a device.
#[derive(Debug, Clone, Serialize)]
pub struct RuleView {
    /// Name.
    pub rule: String,
    /// Device.
    pub device: String,
    /// Anchor of the device; empty when it is not part of the run.
    pub device_id: String,
    /// Scenario; empty when none yielded the metric.
    pub scenario: String,
    /// Metric.
    pub metric: String,
    /// Whether it decides the verdict.
    pub critical: bool,
    /// `PASS`, `FAIL`, …
    pub outcome: &'static str,
    /// CSS class.
    pub class: &'static str,
    /// What was required.
    pub demand: String,
    /// What was found, with unit; empty without an estimate.
    pub found: String,
    /// Interval with confidence; empty without an estimate.
    pub interval: String,
    /// Pairs or observations; 0 without an estimate.
    pub n: usize,
    /// How the estimate was made.
    pub method: String,
    /// Required, found, interval, n and what would change it.
    pub sentence: String,
    /// The same without metric, scenario and demand at its beginning, for where they stand beside it.
    pub why: String,
}

/// One metric of one scenario on all devices.
#[derive(Debug, Clone, Serialize)]
pub struct MetricView {
    /// Anchor within the page.
    pub id: String,
    /// Scenario.
    pub scenario: String,
    /// Metric with qualifier.
    pub metric: String,
    /// Unit; `ratio` where there is none.
    pub unit: String,
    /// `higher is better`, `lower is better` or empty.
    pub better: &'static str,
    /// What the metric means; empty when it is not known.
    pub summary: String,
    /// Whether a rule looks at it.
    pub ruled: bool,
    /// One line a device.
    pub rows: Vec<SeriesView>,
    /// Samples strip and pair ratios.
    pub figures: Vec<FigureView>,
}

/// One series.
#[derive(Debug, Clone, Serialize)]
pub struct SeriesView {
    /// Device.
    pub device: String,
    /// Anchor of the device.
    pub device_id: String,
    /// Median of the baseline with unit; empty without values.
    pub baseline: String,
    /// Median of the candidate with unit; empty without values.
    pub candidate: String,
    /// Candidate against baseline, per cent: the estimate of the rule, else the median of the pair ratios.
    pub change: String,
    /// Interval of the change; empty when no rule made one.
    pub interval: String,
    /// Middle half of the candidate's values relative to their median.
    pub spread: String,
    /// Valid observations of the candidate and how many there should be.
    pub n: String,
    /// Reason codes of missing observations.
    pub missing: String,
    /// Worst outcome of the rules on this series; empty without a rule.
    pub outcome: &'static str,
    /// CSS class of the outcome.
    pub class: &'static str,
}

/// A figure: its words here, its drawing only in the HTML page.
#[derive(Debug, Clone, Serialize)]
pub struct FigureView {
    /// Anchor within the page.
    pub id: String,
    /// Title, for the eye and for screen readers.
    pub title: String,
    /// What it shows, in words, for those who cannot see it.
    pub description: String,
    /// Caption below it.
    pub caption: String,
    /// What is drawn.
    #[serde(skip)]
    pub plot: Plot,
}

/// What was INVALID.
#[derive(Debug, Clone, Default, Serialize)]
pub struct InvalidView {
    /// By reason, most frequent first.
    pub reasons: Vec<ReasonView>,
    /// Cells, in plan order, bounded.
    pub cells: Vec<InvalidCellView>,
    /// How many cells are not listed.
    pub cells_cut: usize,
}

/// A reason code with its counts.
#[derive(Debug, Clone, Serialize)]
pub struct ReasonView {
    /// The code.
    pub code: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Cells with it.
    pub cells: usize,
    /// Samples it spoiled.
    pub samples: usize,
    /// Devices with it.
    pub devices: usize,
}

/// An INVALID cell.
#[derive(Debug, Clone, Serialize)]
pub struct InvalidCellView {
    /// Device.
    pub device: String,
    /// Position in the device's plan.
    pub cell: u32,
    /// Scenario.
    pub scenario: String,
    /// Arm.
    pub arm: &'static str,
    /// Pair or repetition.
    pub pair: u32,
    /// Attempts.
    pub attempts: u32,
    /// Reason codes.
    pub reasons: String,
}

/// A cell whose process did not end in good order.
#[derive(Debug, Clone, Serialize)]
pub struct DiedView {
    /// Device.
    pub device: String,
    /// Position in the device's plan.
    pub cell: u32,
    /// Scenario.
    pub scenario: String,
    /// Arm.
    pub arm: &'static str,
    /// Pair or repetition.
    pub pair: u32,
    /// Attempts.
    pub attempts: u32,
    /// How it ended.
    pub cause: String,
    /// Last memory figures before the end; empty when there are none.
    pub memory: String,
    /// Last lines of stderr.
    pub stderr_tail: String,
}
