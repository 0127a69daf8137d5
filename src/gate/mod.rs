//! From rules and a run's data to outcomes, a verdict and an exit code. Pure: no I/O, no clock.
//!
//! ```text
//! rule x device x series -> evidence -> estimate with interval -> side of the limit -> doubts -> outcome
//! outcomes of critical rules                                                                  -> verdict, exit code
//! ```
//!
//! PASS is the narrow door: the bound of the interval must lie inside the limit, and no doubt may be left (cells lost to
//! the product itself, tails, a counter that stands still). Every other way ends at FAIL, INVALID, INCONCLUSIVE or INFRA.

mod absolute;
mod compare;
mod evidence;
mod judge;
mod say;
mod verdict;
mod worst;

pub use judge::judge;

use crate::error::ExitCode;
use serde::{Deserialize, Serialize};

/// How much a rule matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Decides the verdict.
    Critical,
    /// Informs and never blocks.
    Inform,
}

/// What one rule demands. At least one of the three limits, or `required`, is set.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rule {
    /// Name, unique within the policy.
    pub name: String,
    /// Metric with or without qualifier; without one it matches every qualifier of that metric.
    pub metric: String,
    /// Scenario; `None` matches every scenario that yields the metric.
    pub scenario: Option<String>,
    /// Label expression that chooses the devices; `None` matches all.
    pub devices: Option<crate::label::LabelExpression>,
    /// Weight.
    pub severity: Severity,
    /// Lower limit, in the metric's unit, judged on the interval's bound.
    pub at_least: Option<f64>,
    /// Upper limit, in the metric's unit, judged on the interval's bound.
    pub at_most: Option<f64>,
    /// Largest tolerated worsening against the baseline, per cent, paired.
    pub regression_percent_max: Option<f64>,
    /// Whether missing data keeps the rule from passing even when it has no limit.
    pub required: bool,
}

/// The outcome class of one rule on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Outcome {
    /// The demand is met, and the interval shows it.
    Pass,
    /// The demand is broken, and the interval shows it.
    Fail,
    /// The environment spoiled it.
    Invalid,
    /// Not enough evidence.
    Inconclusive,
    /// Device or link failed.
    Infra,
}

/// A campaign's verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The release may go out.
    #[serde(rename = "GO")]
    Go,
    /// The release must not go out.
    #[serde(rename = "NO-GO")]
    NoGo,
    /// Not enough evidence.
    #[serde(rename = "INCONCLUSIVE")]
    Inconclusive,
}

/// An estimate with its interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Estimate {
    /// Candidate / baseline for comparisons; the metric's own unit for absolute rules.
    pub point: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Two-sided confidence of the interval, for instance 0.90.
    pub confidence: f64,
    /// Pairs, or observations, that it rests on.
    pub n: usize,
    /// How it was made, for instance `Hodges-Lehmann, exact signed-rank`.
    pub method: String,
}

/// One rule applied to one series.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuleOutcome {
    /// The rule's name.
    pub rule: String,
    /// Device.
    pub device: String,
    /// Scenario; empty when no scenario yielded the metric.
    pub scenario: String,
    /// Metric with qualifier as far as known.
    pub metric: String,
    /// Weight.
    pub severity: Severity,
    /// The limit that was applied, for instance `at-least 12 token/s` or `at most 5 % slower`.
    pub demand: String,
    /// Class.
    pub outcome: Outcome,
    /// What was required, what was found, interval, n, what would change it: one sentence.
    pub sentence: String,
    /// The estimate, when there is one.
    pub estimate: Option<Estimate>,
    /// The limit on the scale of the estimate (a ratio for comparisons), for drawing.
    pub limit: Option<f64>,
    /// Whether estimate and limit are ratios candidate / baseline.
    pub is_comparison: bool,
}

/// Outcome of a whole policy on a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Judgement {
    /// The policy's name.
    pub policy: String,
    /// GO, NO-GO or INCONCLUSIVE.
    pub verdict: Verdict,
    /// Why, with numbers: one sentence.
    pub sentence: String,
    /// Every rule on every device, critical ones first, worst first.
    pub outcomes: Vec<RuleOutcome>,
    /// What the process exits with.
    #[serde(skip)]
    pub exit: ExitCode,
}
