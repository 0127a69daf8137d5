//! Absolute limits: the candidate's own values against `at-least` and `at-most`.

use super::compare::{FAR_FACTOR, TAIL_FACTOR};
use super::evidence::{Demand, Evidence, Finding, doubt, losses, stands_still};
use super::{Outcome, say};
use crate::stats::absolute::median_interval;
use crate::stats::order::{MAD_TO_SIGMA, mad};
use crate::stats::{self, GATE_CONFIDENCE, Interval, Side};
use farmgate_engine::protocol::Finite;

/// (z 0.95 + z 0.90)^2 x pi / 2: observations for a power of 90 % at one-sided 5 %, when the spread equals the distance
/// to the limit; pi / 2 is what the sign test needs beyond the t test under normal noise (Conover 1999, section 3.4).
const OBSERVATIONS_FACTOR: f64 = 8.564 * std::f64::consts::FRAC_PI_2;

/// Judges `at-least` or `at-most` on the interval of the median of the candidate's cells.
pub(super) fn judge(evidence: &Evidence<'_>, demand: Demand, demand_text: &str) -> Finding {
    let (limit, lower) = match demand {
        Demand::AtLeast(limit) => (limit, true),
        Demand::AtMost(limit) => (limit, false),
        Demand::Regression(_) | Demand::Present => return present(evidence),
    };
    let candidate = &evidence.series.candidate;
    let values: Vec<Finite> = candidate.iter().filter_map(|o| o.value.as_ref().ok().copied()).collect();
    if values.is_empty() {
        return evidence.nothing_usable(false);
    }
    let asked = evidence.asked(demand_text);
    let unit = evidence.kind.unit;
    let lost = losses(candidate);
    let missing = if lost.is_empty() { String::new() } else { format!("; without a value: {}", say::reasons(&lost)) };
    let interval = match median_interval(&values, GATE_CONFIDENCE) {
        Ok(interval) => interval,
        Err(few) => {
            let found = say::with_unit(&say::number(stats::order::median(&values).map_or(0.0, Finite::get)), unit);
            return Finding::new(
                Outcome::Inconclusive,
                format!(
                    "{asked}: not decided; median {found} of {}, which have no interval at one-sided 5 %; \
                     at least {} are needed{missing}",
                    say::count(few.n, "observation"),
                    few.needed
                ),
            );
        }
    };
    let side = if lower { stats::at_least(&interval, limit) } else { stats::at_most(&interval, limit) };
    let told = describe(&interval, unit);
    let sentence = match side {
        Side::Inside => {
            format!("{asked}: met; {told}; the bound that counts is inside the limit{missing}")
        }
        Side::Outside => {
            let worse = if lower { interval.low } else { interval.high };
            let to_go = say::with_unit(&say::number((limit - worse.get()).abs()), unit);
            let way = if lower { "higher" } else { "lower" };
            format!(
                "{asked}: broken; {told}; even the better bound misses it; with this scatter it would be met if the values \
                 were {to_go} {way}{missing}"
            )
        }
        Side::Undecided => {
            format!("{asked}: not decided; {told}; {}{missing}", needed(&values, &interval, limit))
        }
    };
    let outcome = match side {
        Side::Inside => Outcome::Pass,
        Side::Outside => Outcome::Fail,
        Side::Undecided => Outcome::Inconclusive,
    };
    doubt(Finding::new(outcome, sentence).with(&interval, limit), &doubts(evidence, limit, lower))
}

/// `required` without a limit: there must be something that can be believed.
fn present(evidence: &Evidence<'_>) -> Finding {
    let candidate = &evidence.series.candidate;
    let usable = candidate.iter().filter(|o| o.value.is_ok()).count();
    if usable == 0 {
        return evidence.nothing_usable(false);
    }
    let told = format!("{}: {usable} of {} can be used", evidence.name(), say::count(candidate.len(), "observation"));
    let lost = evidence.product_losses();
    let doubts = if lost.is_empty() {
        vec![]
    } else {
        vec![format!("the candidate lost cells itself ({})", say::reasons(&lost))]
    };
    doubt(Finding::new(Outcome::Pass, told), &doubts)
}

fn describe(interval: &Interval, unit: &str) -> String {
    format!(
        "median {}, {:.0} % interval {} to {} ({}, {}, each bound wrong at most {:.1} % of the time)",
        say::with_unit(&say::number(interval.point.get()), unit),
        interval.confidence * 100.0,
        say::number(interval.low.get()),
        say::number(interval.high.get()),
        say::count(interval.n, "observation"),
        interval.method,
        (1.0 - interval.confidence) * 50.0
    )
}

fn needed(values: &[Finite], interval: &Interval, limit: f64) -> String {
    let spread = mad(values).map_or(0.0, Finite::get) * MAD_TO_SIGMA;
    let ratio = spread / (limit - interval.point.get());
    super::compare::needed_text(OBSERVATIONS_FACTOR * ratio * ratio, interval.n, "observation")
}

/// What keeps a value that meets its limit from passing.
fn doubts(evidence: &Evidence<'_>, limit: f64, lower: bool) -> Vec<String> {
    let mut out = Vec::new();
    let lost = evidence.product_losses();
    if !lost.is_empty() {
        out.push(format!(
            "the candidate lost cells itself ({}), and what they would have shown is missing",
            say::reasons(&lost)
        ));
    }
    if stands_still(evidence.kind, &evidence.series.candidate) {
        out.push("every value is exactly the same, as no clock would show it".to_owned());
    }
    let misses_by = |factor: f64| -> usize {
        let values = evidence.series.candidate.iter().filter(|o| o.value.is_ok()).flat_map(|o| &o.repetitions);
        values.filter(|v| if lower { v.get() < limit / factor } else { v.get() > limit * factor }).count()
    };
    let (far, very_far) = (misses_by(TAIL_FACTOR), misses_by(FAR_FACTOR));
    if limit > 0.0 && (far >= 2 || very_far >= 1) {
        out.push(format!(
            "the median hides a tail: {} miss the limit by more than a factor of {}",
            say::count(far, "sample"),
            say::typed(TAIL_FACTOR)
        ));
    }
    out
}
