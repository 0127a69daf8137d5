//! Metrics of which one bad observation condemns, such as the share of recorded answers that came out again: decoding is
//! greedy, so a single wrong answer is a fault of the product and no scatter that a median may hide.

use super::evidence::{Demand, Evidence, Finding, doubt};
use super::{Outcome, say};
use crate::stats::{self, Interval, Side};
use farmgate_engine::protocol::{Arm, Finite, ReasonCode, Validity};

/// How the estimate is made, as it says itself.
const METHOD: &str = "the worst of all observations; deterministic, so one is enough";

/// Judges a demand on the worst value; a repeated attempt does not wash an earlier one away.
pub(super) fn judge(evidence: &Evidence<'_>, demand: Demand, demand_text: &str) -> Finding {
    let candidate = values(evidence, Arm::Candidate);
    let Some(range) = range(&candidate) else { return evidence.nothing_usable(false) };
    let (side, limit) = match demand {
        Demand::AtLeast(limit) => (stats::at_least(&collapsed(range, range.low), limit), limit),
        Demand::AtMost(limit) => (stats::at_most(&collapsed(range, range.high), limit), limit),
        Demand::Regression(percent) => {
            let Some(baseline) = self::range(&values(evidence, Arm::Baseline)) else {
                let what = format!("{}: not decided; the baseline has no value", evidence.asked(demand_text));
                return Finding::new(Outcome::Inconclusive, what);
            };
            let limit = baseline.low.get() * (1.0 - percent / 100.0);
            (stats::at_least(&collapsed(range, range.low), limit), limit)
        }
        Demand::Present => (Side::Inside, f64::MIN),
    };
    let (outcome, verb) = match side {
        Side::Inside => (Outcome::Pass, "met"),
        Side::Outside => (Outcome::Fail, "broken"),
        Side::Undecided => (Outcome::Inconclusive, "not decided"),
    };
    let [low, high] = [range.low, range.high].map(|v| say::number(v.get()));
    let values = if low == high { format!("value {low}") } else { format!("values {low} to {high}") };
    let sentence = format!(
        "{}: {verb}; {values} in {}; the worst one decides, since greedy answers do not scatter",
        evidence.asked(demand_text),
        say::count(range.n, "observation"),
    );
    let lost = evidence.product_losses();
    let doubts = match lost.is_empty() {
        true => vec![],
        false => vec![format!("the candidate lost cells itself ({})", say::reasons(&lost))],
    };
    let finding = Finding::new(outcome, sentence);
    // for a regression the limit is on the metric's own scale, while a comparison's estimate would be a ratio
    let finding =
        if matches!(demand, Demand::AtLeast(_) | Demand::AtMost(_)) { finding.with(&range, limit) } else { finding };
    doubt(finding, &doubts)
}

/// Every value of every attempt that speaks of the model that was planned; a golden sample that calls itself spoiled
/// because its tokens differ is the very thing that is looked for.
fn values(evidence: &Evidence<'_>, arm: Arm) -> Vec<Finite> {
    let metric = &evidence.series.key.metric;
    let other_product = [ReasonCode::ModelHashDiffers, ReasonCode::EngineHashDiffers];
    evidence
        .arm_cells(arm)
        .into_iter()
        .filter(|c| !c.invalid.iter().any(|r| other_product.contains(r)))
        .flat_map(|c| &c.samples)
        .filter(|s| s.metric == *metric)
        .filter(|s| matches!(s.validity, Validity::Valid | Validity::Invalid(ReasonCode::GoldenTokensDiffer)))
        .filter_map(|s| s.value)
        .collect()
}

fn range(values: &[Finite]) -> Option<Interval> {
    let low = *values.iter().min_by(|a, b| a.get().total_cmp(&b.get()))?;
    let high = *values.iter().max_by(|a, b| a.get().total_cmp(&b.get()))?;
    Some(Interval { point: low, low, high, confidence: 1.0, n: values.len(), method: METHOD })
}

fn collapsed(range: Interval, to: Finite) -> Interval {
    Interval { point: to, low: to, high: to, ..range }
}
