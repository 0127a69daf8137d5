//! Absolute limits: `at-least` and `at-most`, judged on the bound of the median's interval.

use super::observed::{Observed, needed, number};
use super::{ALPHA, Estimate, Outcome, Rule};
use crate::metric::MetricKind;
use crate::stats::order;

/// One absolute limit.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Limit {
    pub fn of(rule: &Rule) -> Vec<Self> {
        rule.at_least.map(Self::AtLeast).into_iter().chain(rule.at_most.map(Self::AtMost)).collect()
    }

    pub fn value(self) -> f64 {
        match self {
            Self::AtLeast(v) | Self::AtMost(v) => v,
        }
    }

    /// `at least 12 token/s`.
    pub fn demand(self, kind: &MetricKind) -> String {
        let word = match self {
            Self::AtLeast(_) => "at least",
            Self::AtMost(_) => "at most",
        };
        format!("{word} {} {}", number(self.value()), kind.unit)
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }
}

/// Outcome, sentence and estimate of one absolute limit on one arm's observations, which are not all missing.
pub(super) fn judge(limit: Limit, kind: &MetricKind, observed: &Observed) -> (Outcome, String, Option<Estimate>) {
    if kind.worst_counts {
        return judge_worst(limit, kind, observed);
    }
    let n = observed.values.len();
    let missing = observed.missing_words();
    let Some(interval) = order::median_interval(&observed.values, ALPHA) else {
        let min = order::observations_min(ALPHA);
        let found = observed.values.iter().map(|v| number(*v)).collect::<Vec<_>>().join(", ");
        let sentence = format!(
            "{} required, found {found} {} in {n} observations{missing}; at least {min} are needed for an interval at 95 %",
            limit.demand(kind),
            kind.unit
        );
        return (Outcome::Inconclusive, sentence, None);
    };
    let (low_holds, high_holds) = (limit.holds(interval.low), limit.holds(interval.high));
    let outcome = match (low_holds, high_holds) {
        (true, true) => Outcome::Pass,
        (false, false) => Outcome::Fail,
        _ => Outcome::Inconclusive,
    };
    let estimate = Estimate {
        point: interval.point,
        low: interval.low,
        high: interval.high,
        confidence: interval.confidence,
        n,
        method: "median, exact order statistics".to_owned(),
    };
    let mut sentence = format!(
        "{} required, median {} {} found, {:.0} % interval {} to {}, n = {n}{missing}",
        limit.demand(kind),
        number(interval.point),
        kind.unit,
        100.0 * interval.confidence,
        number(interval.low),
        number(interval.high)
    );
    if outcome == Outcome::Inconclusive {
        let distance = (interval.point - limit.value()).abs();
        match needed(n, (interval.high - interval.low) / 2.0, distance) {
            Some(more) => sentence.push_str(&format!("; about {more} observations would decide it")),
            None => sentence.push_str("; the median lies too near to the limit to decide it by repetition"),
        }
    }
    (outcome, sentence, Some(estimate))
}

/// A share that must hold every time: the worst value decides, and a missing one keeps it from passing.
fn judge_worst(limit: Limit, kind: &MetricKind, observed: &Observed) -> (Outcome, String, Option<Estimate>) {
    let broken = observed.values.iter().filter(|v| !limit.holds(**v)).count();
    let n = observed.values.len();
    let low = observed.values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = observed.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let worst = if matches!(limit, Limit::AtLeast(_)) { low } else { high };
    let outcome = match (broken, observed.missing()) {
        (1.., _) => Outcome::Fail,
        (0, 0) => Outcome::Pass,
        (0, _) => Outcome::Inconclusive,
    };
    let sentence = format!(
        "{} required in every cell, worst {} found, n = {n}, broken in {broken}{}",
        limit.demand(kind),
        number(worst),
        observed.missing_words()
    );
    let method = "worst value".to_owned();
    (outcome, sentence, Some(Estimate { point: worst, low, high, confidence: 1.0, n, method }))
}
