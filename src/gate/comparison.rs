//! `regression-percent-max`: pairs on one device, judged on the bound of the shift of their log-ratios.

use super::observed::{needed, number};
use super::{ALPHA, Estimate, Outcome};
use crate::metric::{Direction, MetricKind};
use crate::run::{Observation, Series};
use crate::stats::paired::{self, Pair};
use crate::stats::tail::{self, TailFault};
use std::collections::BTreeMap;

/// Order effects beyond this are worth a word.
const SLOT_EFFECT_SHOWN: f64 = 0.01;

/// Valid pairs of a series, and how many pairs could not be used.
pub(super) struct Pairs {
    pairs: Vec<Pair>,
    planned: usize,
    without_ratio: usize,
}

impl Pairs {
    pub fn of(series: &Series) -> Self {
        let candidates: BTreeMap<u32, &Observation> = series.candidate.iter().map(|o| (o.pair, o)).collect();
        let mut out = Self { pairs: Vec::new(), planned: series.baseline.len(), without_ratio: 0 };
        for baseline in &series.baseline {
            let Some(candidate) = candidates.get(&baseline.pair) else { continue };
            if let (Ok(b), Ok(c)) = (&baseline.value, &candidate.value) {
                match Pair::new(b.get(), c.get(), baseline.slot < candidate.slot) {
                    Some(pair) => out.pairs.push(pair),
                    None => out.without_ratio += 1,
                }
            }
        }
        out
    }

    fn missing_words(&self) -> String {
        let lost = self.planned - self.pairs.len();
        match (lost, self.without_ratio) {
            (0, _) => String::new(),
            (_, 0) => format!(" ({lost} of {} pairs without two valid values)", self.planned),
            (_, n) => format!(" ({lost} of {} pairs unusable, {n} with a value that has no ratio)", self.planned),
        }
    }
}

/// Largest ratio (or smallest, for what is better when higher) that is tolerated.
pub(super) fn ratio_limit(kind: &MetricKind, percent: f64) -> f64 {
    match kind.direction {
        Direction::HigherIsBetter => 1.0 - percent / 100.0,
        Direction::LowerIsBetter | Direction::Neutral => 1.0 + percent / 100.0,
    }
}

/// `at most 5 % worse than the baseline`.
pub(super) fn demand(percent: f64) -> String {
    format!("at most {percent} % worse than the baseline")
}

/// Outcome, sentence and estimate of a comparison.
pub(super) fn judge(percent: f64, kind: &MetricKind, series: &Series) -> (Outcome, String, Option<Estimate>) {
    let usable = Pairs::of(series);
    let n = usable.pairs.len();
    let ratios: Vec<f64> = usable.pairs.iter().map(Pair::log_ratio).collect();
    let missing = usable.missing_words();
    if n * 2 <= usable.planned && usable.planned > 0 {
        let class = if usable.without_ratio == usable.planned { Outcome::Inconclusive } else { Outcome::Invalid };
        return (class, format!("{} required, but only {n} pairs are usable{missing}", demand(percent)), None);
    }
    let Some(interval) = paired::shift_interval(&ratios, ALPHA) else {
        let sentence = format!(
            "{} required, {n} pairs found{missing}; at least {} are needed for an interval at 95 %",
            demand(percent),
            paired::pairs_min(ALPHA)
        );
        return (Outcome::Inconclusive, sentence, None);
    };
    let limit = ratio_limit(kind, percent);
    let estimate = Estimate {
        point: interval.point.exp(),
        low: interval.low.exp(),
        high: interval.high.exp(),
        confidence: interval.confidence,
        n,
        method: "hodges-lehmann of log-ratios, exact signed-rank interval".to_owned(),
    };
    let worse_up = kind.direction != Direction::HigherIsBetter;
    let holds = |ratio: f64| if worse_up { ratio <= limit } else { ratio >= limit };
    let mut outcome = match (holds(estimate.low), holds(estimate.high)) {
        (true, true) => Outcome::Pass,
        (false, false) => Outcome::Fail,
        _ => Outcome::Inconclusive,
    };
    let mut sentence = format!(
        "{} required, candidate / baseline {:.4} found ({}), {:.0} % interval {:.4} to {:.4}, n = {n} pairs{missing}",
        demand(percent),
        estimate.point,
        change_words(estimate.point, worse_up),
        100.0 * estimate.confidence,
        estimate.low,
        estimate.high
    );
    if outcome == Outcome::Inconclusive {
        let distance = (interval.point - limit.ln()).abs();
        match needed(n, (interval.high - interval.low) / 2.0, distance) {
            Some(more) => sentence.push_str(&format!("; about {more} pairs would decide it")),
            None => sentence.push_str("; the estimate lies too near to the limit to decide it by more pairs"),
        }
    }
    if let Some(fault) = tail_fault(&usable.pairs, series, worse_up, percent) {
        outcome = Outcome::Fail;
        sentence.push_str(&fault);
    }
    if let Some(effect) = paired::slot_effect(&usable.pairs).filter(|e| e.abs() > SLOT_EFFECT_SHOWN) {
        sentence.push_str(&format!("; running second changed it by {:+.1} %, which cancels", 100.0 * effect.exp_m1()));
    }
    (outcome, sentence, Some(estimate))
}

/// `2.1 % worse`.
fn change_words(ratio: f64, worse_up: bool) -> String {
    let percent = 100.0 * (ratio - 1.0);
    if percent.abs() < 0.05 {
        return "no change".to_owned();
    }
    let word = if (percent > 0.0) == worse_up { "worse" } else { "better" };
    format!("{:.1} % {word}", percent.abs())
}

fn tail_fault(pairs: &[Pair], series: &Series, worse_up: bool, percent: f64) -> Option<String> {
    let sign = if worse_up { 1.0 } else { -1.0 };
    let worsenings: Vec<f64> = pairs.iter().map(|p| sign * p.log_ratio()).collect();
    let values = |side: &[Observation]| -> Vec<f64> {
        side.iter().filter_map(|o| o.value.as_ref().ok()).map(|v| v.get()).collect()
    };
    let relevant = (1.0 + percent / 100.0).ln();
    let fault = tail::far_worse(&worsenings)
        .or_else(|| tail::spread(&values(&series.baseline), &values(&series.candidate), relevant))?;
    Some(match fault {
        TailFault::FarWorse { count, of, factor } => {
            format!(
                "; the candidate is more than {factor} times worse in {count} of {of} pairs, whatever the middle says"
            )
        }
        TailFault::Spread { candidate, baseline } => format!(
            "; the candidate's values spread over {} %, the baseline's over {} %, whatever the middle says",
            number(100.0 * candidate.exp_m1()),
            number(100.0 * baseline.exp_m1())
        ),
    })
}
