//! Comparison of candidate and baseline in pairs: the typical ratio, and then the tail and the spread, which a typical
//! ratio does not see.

use super::evidence::{Evidence, Finding, doubt, losses, stands_still};
use super::{Outcome, say};
use crate::metric::Direction;
use crate::run::Observation;
use crate::stats::paired::{self, Comparison, Pair};
use crate::stats::random::seed_of;
use crate::stats::{self, GATE_CONFIDENCE, Side, tail};
use farmgate_engine::protocol::{Finite, ReasonCode};
use std::collections::BTreeMap;

/// A sample is far beyond what was seen when it is worse by this factor, on top of the margin.
pub(super) const TAIL_FACTOR: f64 = 2.0;
/// One sample that is worse by this factor is enough not to pass.
pub(super) const FAR_FACTOR: f64 = 10.0;
/// A candidate that scatters this many times as widely is looked at with a test.
const SPREAD_FACTOR: f64 = 3.0;
/// One-sided level at which a wider spread keeps a comparison from passing.
const SPREAD_DOUBT_LEVEL: f64 = 0.05;
/// One-sided level at which tail and spread alone make a FAIL; well below the rule's own level, since these tests come on
/// top of it.
const TAIL_FAIL_LEVEL: f64 = 0.002;
/// (z 0.95 + z 0.90)^2 x pi / 3: pairs for a power of 90 % at one-sided 5 %, when the spread equals the distance to the
/// limit; pi / 3 is what rank tests need beyond the t test under normal noise (Hollander, Wolfe and Chicken 2014, 3.11).
const PAIRS_FACTOR: f64 = 8.564 * std::f64::consts::FRAC_PI_3;
/// Beyond this, more of the same is no advice.
const NEEDED_MAX: f64 = 5000.0;

/// The pairs of a series, and what kept others from being used.
struct Pairs<'a> {
    pairs: Vec<Pair>,
    baseline: Vec<&'a Observation>,
    candidate: Vec<&'a Observation>,
    planned: usize,
    not_above_zero: usize,
    lost: BTreeMap<ReasonCode, usize>,
}

/// Judges `regression-percent-max`: the candidate may be worse than the baseline by at most `percent`.
pub(super) fn judge(evidence: &Evidence<'_>, percent: f64, demand_text: &str, seed_words: &[&str]) -> Finding {
    let asked = evidence.asked(demand_text);
    let undecided = |why: String| Finding::new(Outcome::Inconclusive, format!("{asked}: not decided; {why}"));
    let higher = match evidence.kind.direction {
        Direction::HigherIsBetter => true,
        Direction::LowerIsBetter => false,
        Direction::Neutral => return undecided("this metric has no better and no worse".into()),
    };
    let limit = if higher { 1.0 - percent / 100.0 } else { 1.0 + percent / 100.0 };
    if !limit.is_finite() || limit <= 0.0 || percent < 0.0 {
        return undecided(format!("{percent} % is no margin that a ratio could keep"));
    }
    if evidence.series.baseline.is_empty() {
        return undecided("the run has no baseline; measure with --baseline-model".into());
    }
    let found = pair_up(evidence);
    if found.not_above_zero > 0 {
        return no_ratio(evidence, &found);
    }
    if found.pairs.is_empty() {
        return no_pairs(evidence, &found);
    }
    let comparison = match paired::compare(&found.pairs, GATE_CONFIDENCE, seed_of(seed_words)) {
        Ok(comparison) => comparison,
        Err(few) => {
            return undecided(format!(
                "{} cannot reach one-sided 5 % whatever they show; at least {} are needed{}",
                say::count(few.n, "usable pair"),
                few.needed,
                missing(&found)
            ));
        }
    };
    let (first, second) = paired::orders(&found.pairs);
    if first.min(second) * 4 < found.pairs.len() {
        let why = format!(
            "of {}, {second} ran the candidate second, so the effect of the order cannot be told from the candidate's{}",
            say::count(found.pairs.len(), "usable pair"),
            missing(&found)
        );
        return undecided(why).with(&comparison.ratio, limit);
    }
    let side =
        if higher { stats::at_least(&comparison.ratio, limit) } else { stats::at_most(&comparison.ratio, limit) };
    let finding = typical(&asked, side, &comparison, limit, &context(evidence, &found, &comparison));
    let margin = limit.ln().abs();
    tails(doubt(finding, &doubts(evidence, &found)), &found, higher, margin)
}

fn pair_up<'a>(evidence: &Evidence<'a>) -> Pairs<'a> {
    let series = evidence.series;
    let baseline: BTreeMap<u32, &Observation> = series.baseline.iter().map(|o| (o.pair, o)).collect();
    let mut lost = losses(&series.baseline);
    for (reason, n) in losses(&series.candidate) {
        *lost.entry(reason).or_default() += n;
    }
    let planned = series.candidate.len().max(series.baseline.len());
    let mut out = Pairs { pairs: vec![], baseline: vec![], candidate: vec![], planned, not_above_zero: 0, lost };
    for candidate in &series.candidate {
        let Some(&baseline) = baseline.get(&candidate.pair) else { continue };
        let (Ok(b), Ok(c)) = (&baseline.value, &candidate.value) else { continue };
        let all_above_zero = baseline.repetitions.iter().chain(&candidate.repetitions).all(|v| v.get() > 0.0);
        match Pair::new(*b, *c, candidate.slot > baseline.slot) {
            Some(pair) if all_above_zero => {
                out.pairs.push(pair);
                out.baseline.push(baseline);
                out.candidate.push(candidate);
            }
            _ => out.not_above_zero += 1,
        }
    }
    out
}

fn no_ratio(evidence: &Evidence<'_>, found: &Pairs<'_>) -> Finding {
    let impossible = matches!(evidence.kind.unit, "ms" | "s" | "token/s" | "MB");
    let outcome = if impossible { Outcome::Invalid } else { Outcome::Inconclusive };
    let what = if impossible { "which nothing that ran can have" } else { "so there is no ratio to judge" };
    let pairs = say::count(found.not_above_zero, "pair");
    Finding::new(
        outcome,
        format!("{}: {pairs} of {} hold a value of zero or below, {what}", evidence.name(), found.planned),
    )
}

fn no_pairs(evidence: &Evidence<'_>, found: &Pairs<'_>) -> Finding {
    let usable = |arm: &[Observation]| arm.iter().any(|o| o.value.is_ok());
    let series = evidence.series;
    if !usable(&series.candidate) {
        return evidence.nothing_usable(true);
    }
    let told = format!(
        "{}: none of {} can be used, because one half of each is missing ({})",
        evidence.name(),
        say::count(found.planned, "pair"),
        say::reasons(&found.lost)
    );
    let only_interrupted = found.lost.keys().all(|r| *r == ReasonCode::Interrupted);
    Finding::new(if only_interrupted { Outcome::Inconclusive } else { Outcome::Invalid }, told)
}

fn missing(found: &Pairs<'_>) -> String {
    let unused = found.planned - found.pairs.len();
    match (unused, found.lost.is_empty()) {
        (0, _) => String::new(),
        (_, true) => format!("; {} of {} have no counterpart", unused, say::count(found.planned, "pair")),
        _ => {
            format!("; {} of {} not usable ({})", unused, say::count(found.planned, "pair"), say::reasons(&found.lost))
        }
    }
}

/// What the reader should know beside the numbers.
fn context(evidence: &Evidence<'_>, found: &Pairs<'_>, comparison: &Comparison) -> String {
    let mut out = missing(found);
    if let Some(slot) = comparison.slot_effect.map(Finite::get).filter(|s| s.abs() >= 0.001) {
        out.push_str(&format!("; running second changes the value by {}", say::factor(slot)));
        out.push_str(if comparison.ratio.method.contains("across") { ", which is taken out" } else { "" });
    }
    if evidence.is_same_against_same() {
        out.push_str("; A/A: model, engine and configuration are the same on both sides, so any difference is noise");
    }
    out
}

fn typical(asked: &str, side: Side, comparison: &Comparison, limit: f64, context: &str) -> Finding {
    let ratio = &comparison.ratio;
    let told = format!(
        "candidate / baseline = {}, {:.0} % interval {} to {} against the limit {} ({}, {}, each bound wrong at most {:.1} % \
         of the time)",
        say::number(ratio.point.get()),
        ratio.confidence * 100.0,
        say::number(ratio.low.get()),
        say::number(ratio.high.get()),
        say::number(limit),
        say::count(ratio.n, "pair"),
        ratio.method,
        (1.0 - ratio.confidence) * 50.0
    );
    let (outcome, sentence) = match side {
        Side::Inside => (Outcome::Pass, format!("{asked}: met; {told}{context}")),
        Side::Outside => {
            let worse = if ratio.high.get() < limit { ratio.low } else { ratio.high };
            let change = to_go(limit / worse.get());
            (Outcome::Fail, format!("{asked}: broken; {told}; {change}{context}"))
        }
        Side::Undecided => {
            let distance = limit.ln() - ratio.point.get().ln();
            let spread = comparison.spread.get();
            let needed = needed_text(PAIRS_FACTOR * (spread / distance).powi(2), ratio.n, "pair");
            let scatter = format!("one pair scatters by {:.1} %", spread * 100.0);
            (Outcome::Inconclusive, format!("{asked}: not decided; {told}; {scatter}; {needed}{context}"))
        }
    };
    Finding::new(outcome, sentence).with(ratio, limit)
}

/// What a candidate that broke its demand lacks.
fn to_go(factor: f64) -> String {
    let how = match factor {
        f if f >= 3.0 => format!("{} as high", say::factor(f.ln())),
        f if f >= 1.0 => format!("{:.1} % higher", (f - 1.0) * 100.0),
        f => format!("{:.1} % lower", (1.0 - f) * 100.0),
    };
    format!("with this scatter it would be met if the candidate's values were {how}")
}

/// How many pairs or observations would decide, roughly.
pub(super) fn needed_text(needed: f64, n: usize, thing: &str) -> String {
    if needed.is_nan() || needed > NEEDED_MAX {
        return format!("it is so near the limit that no sensible number of {thing}s would decide");
    }
    // what lies within reach by the formula but was not decided needs at least a few more
    let needed = (needed.ceil() as usize).max(n + 2);
    format!("about {needed} {thing}s would decide if it stays so")
}

fn doubts(evidence: &Evidence<'_>, found: &Pairs<'_>) -> Vec<String> {
    let mut out = Vec::new();
    let lost = evidence.product_losses();
    if !lost.is_empty() {
        let reasons = say::reasons(&lost);
        out.push(format!("the candidate lost cells itself ({reasons}), and what they would have shown is missing"));
    }
    let copies = |arm: &[&Observation]| -> Vec<Observation> { arm.iter().map(|o| (*o).clone()).collect() };
    if stands_still(evidence.kind, &copies(&found.baseline)) && stands_still(evidence.kind, &copies(&found.candidate)) {
        out.push("every value is exactly the same, as no clock would show it".to_owned());
    }
    out
}

/// The tail rule: typical ratios may agree while the candidate is erratic or sometimes far worse.
fn tails(mut finding: Finding, found: &Pairs<'_>, higher: bool, margin: f64) -> Finding {
    // as logarithms on which larger is worse
    let badness = |v: f64| Finite::new(if higher { -v.ln() } else { v.ln() });
    let medians = |arm: &[&Observation]| -> Vec<Finite> {
        arm.iter().filter_map(|o| badness(o.value.as_ref().ok()?.get())).collect()
    };
    let worst = |arm: &[&Observation]| -> Vec<Finite> {
        let of = |o: &&Observation| {
            o.repetitions.iter().filter_map(|v| badness(v.get())).max_by(|a, b| a.get().total_cmp(&b.get()))
        };
        arm.iter().filter_map(of).collect()
    };
    let mut doubts = Vec::new();
    let mut fails = false;
    for (what, of) in [("median", &medians as &dyn Fn(&[&Observation]) -> Vec<Finite>), ("worst sample", &worst)] {
        let Some(b) = tail::beyond(&of(&found.baseline), &of(&found.candidate), TAIL_FACTOR.ln() + margin) else {
            continue;
        };
        if doubts.is_empty() && (b.count >= 2 || b.log_factor.get() > FAR_FACTOR.ln() + margin) {
            fails |= b.count >= 2 && b.p <= TAIL_FAIL_LEVEL;
            doubts.push(format!(
                "tail: in {} of {} the {what} is more than {} times worse than the baseline's worst, up to {} (chance {:.1e} \
                 if nothing differs)",
                b.count,
                say::count(b.n, "cell"),
                say::typed(TAIL_FACTOR),
                say::factor(b.log_factor.get()),
                b.p
            ));
        }
    }
    if let Some(w) = tail::wider(&medians(&found.baseline), &medians(&found.candidate)) {
        let (base, cand) = (w.baseline.get(), w.candidate.get());
        // half of the cells lie beyond the typical deviation, so twice of it is common
        let relevant = 2.0 * cand > margin && cand >= SPREAD_FACTOR * base;
        if relevant && (w.p <= SPREAD_DOUBT_LEVEL || cand >= FAR_FACTOR * base) {
            fails |= w.p <= TAIL_FAIL_LEVEL;
            doubts.push(format!(
                "spread: a typical cell is {:.1} % off the candidate's median, but {:.1} % off the baseline's (chance {:.1e} if \
                 nothing differs)",
                cand * 100.0,
                base * 100.0,
                w.p
            ));
        }
    }
    if fails && finding.outcome != Outcome::Fail {
        finding.outcome = Outcome::Fail;
        finding.sentence.push_str("; yet it fails the tail rule");
    }
    doubt(finding, &doubts)
}
