//! Comparison in pairs on one device: the ratio candidate / baseline, freed of slow drift and of the effect of the order.
//!
//! The unit of evidence is the log-ratio of a pair, so what both halves of a pair share cancels. What running second
//! costs or gains (caches, heat) does not cancel in a pair, but it has the opposite sign in pairs of the opposite order:
//!
//! ```text
//! baseline first:   d = effect + slot + noise
//! candidate first:  d = effect - slot + noise        averages across the two orders contain the effect alone
//! ```

use super::random::SplitMix64;
use super::{Interval, TooFew, clamped, null, one_sided, order};
use farmgate_engine::protocol::Finite;

/// Most pairs for which the exact tests are inverted; beyond, the interval is a seeded bootstrap.
pub const EXACT_PAIRS_MAX: usize = 20;
/// Fewest pairs of either order for which averages across the orders are used: 3 + 3 can reach 5 % one-sided (1 of 20).
const ORDER_PAIRS_MIN: usize = 3;
/// Bootstrap samples, and the work (averages in all) to which they are cut down for very many pairs.
const RESAMPLES_MAX: usize = 2000;
const RESAMPLES_MIN: usize = 400;
const AVERAGES_MAX: usize = 20_000_000;

/// One pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Natural logarithm of candidate / baseline.
    pub log_ratio: Finite,
    /// Whether the candidate ran after the baseline.
    pub candidate_second: bool,
}

impl Pair {
    /// `None` unless both values are above zero: nothing else has a log-ratio.
    pub fn new(baseline: Finite, candidate: Finite, candidate_second: bool) -> Option<Self> {
        let (b, c) = (baseline.get(), candidate.get());
        // a difference of logarithms, since the quotient of a huge and a tiny number overflows
        (b > 0.0 && c > 0.0).then(|| Self { log_ratio: clamped(c.ln() - b.ln()), candidate_second })
    }
}

/// What pairs say about candidate / baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The ratio candidate / baseline.
    pub ratio: Interval,
    /// What running second multiplies a value with, as a natural logarithm; `None` when the orders cannot be told apart.
    pub slot_effect: Option<Finite>,
    /// Standard deviation of one pair's log-ratio, the effect of the order taken out; robust, so rough for few pairs.
    pub spread: Finite,
}

/// How many pairs ran the candidate first, and how many second.
pub fn orders(pairs: &[Pair]) -> (usize, usize) {
    let second = pairs.iter().filter(|p| p.candidate_second).count();
    (pairs.len() - second, second)
}

/// Estimates candidate / baseline with an interval of at least `confidence` (two-sided).
///
/// With at least three pairs of either order: the median of all averages of two log-ratios *of opposite order*, and the
/// interval by inverting the exact rank-sum test that compares the period differences of the two orders. Source: Koch,
/// "The Use of Non-Parametric Methods in the Statistical Analysis of the Two-Period Change-Over Design", Biometrics 28
/// (1972); Hodges and Lehmann, "Estimates of Location Based on Rank Tests", Ann. Math. Stat. 34 (1963).
///
/// ```text
/// d of AB pairs: +3 +5 +4     averages across, sorted:   [0  .5  1  1  (1.5)  1.5  2  2  2.5]
/// d of BA pairs: -3 -1  0     estimate 1.5, slot effect 2.5
/// ```
///
/// Otherwise: the median of all averages of two log-ratios, each with itself included (Walsh averages), and the interval
/// by inverting the exact signed-rank test. Source: Hodges and Lehmann 1963; Hollander, Wolfe and Chicken,
/// "Nonparametric Statistical Methods", 3rd ed. 2014, sections 3.2 and 3.3.
///
/// Which of the two it is depends on the orders alone, never on the values. Both are exact if the noise of a pair is
/// symmetric. Beyond [`EXACT_PAIRS_MAX`] pairs the interval holds the middle share of the same estimate over resampled
/// pairs, each order resampled by itself. Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993,
/// chapter 13.
///
/// # Errors
/// [`TooFew`] when the test cannot reach the level with so few pairs, whatever the values are.
pub fn compare(pairs: &[Pair], confidence: f64, seed: u64) -> Result<Comparison, TooFew> {
    let [first, second] = by_order(pairs);
    let n = pairs.len();
    let across = is_across(first.len(), second.len());
    let averages = if across { cross_averages(&second, &first) } else { walsh_averages(&all(pairs)) };
    let too_few = TooFew { n, needed: pairs_needed(confidence).max(n + 1) };
    let (log, achieved, method) = if n <= EXACT_PAIRS_MAX {
        let null = if across { null::rank_sum(first.len(), second.len()) } else { null::signed_rank(n) };
        let (cut, tail) = null::cut(&null, one_sided(confidence)).ok_or(too_few)?;
        let cut = cut.min(averages.len().div_ceil(2));
        let bounds = (averages[cut - 1], averages[averages.len() - cut]);
        (bounds, 1.0 - 2.0 * tail, if across { METHOD_ACROSS } else { METHOD_WALSH })
    } else {
        let bounds = bootstrap(&first, &second, across, confidence, seed);
        (bounds, confidence, if across { METHOD_ACROSS_BOOTSTRAP } else { METHOD_WALSH_BOOTSTRAP })
    };
    let point = order::median_of_sorted(&averages).ok_or(too_few)?;
    let ratio = |log: f64| clamped(log.exp().max(f64::MIN_POSITIVE));
    let slot = slot_effect(&first, &second);
    Ok(Comparison {
        ratio: Interval {
            point: ratio(point),
            low: ratio(log.0.min(point)),
            high: ratio(log.1.max(point)),
            confidence: achieved,
            n,
            method,
        },
        slot_effect: slot.map(clamped),
        spread: clamped(spread(&first, &second)),
    })
}

/// The exact methods and their bootstrap twins, as estimates say them.
pub const METHOD_ACROSS: &str = "Hodges-Lehmann across orders, exact rank-sum";
/// See [`compare`].
pub const METHOD_WALSH: &str = "Hodges-Lehmann, exact signed-rank";
/// See [`compare`].
pub const METHOD_ACROSS_BOOTSTRAP: &str = "Hodges-Lehmann across orders, seeded bootstrap";
/// See [`compare`].
pub const METHOD_WALSH_BOOTSTRAP: &str = "Hodges-Lehmann, seeded bootstrap";

/// The least number of counterbalanced pairs with which [`compare`] can reach a confidence.
pub fn pairs_needed(confidence: f64) -> usize {
    let reaches = |n: &usize| {
        let (first, second) = (n / 2, n - n / 2);
        let null = if is_across(first, second) { null::rank_sum(first, second) } else { null::signed_rank(*n) };
        *n > EXACT_PAIRS_MAX || null::cut(&null, one_sided(confidence)).is_some()
    };
    (1..=EXACT_PAIRS_MAX).find(reaches).unwrap_or(EXACT_PAIRS_MAX + 1)
}

fn is_across(first: usize, second: usize) -> bool {
    first.min(second) >= ORDER_PAIRS_MIN
}

fn all(pairs: &[Pair]) -> Vec<f64> {
    pairs.iter().map(|p| p.log_ratio.get()).collect()
}

/// Log-ratios of the pairs that ran the candidate first, and of those that ran it second.
fn by_order(pairs: &[Pair]) -> [Vec<f64>; 2] {
    [false, true]
        .map(|second| pairs.iter().filter(|p| p.candidate_second == second).map(|p| p.log_ratio.get()).collect())
}

fn cross_averages(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out: Vec<f64> = a.iter().flat_map(|x| b.iter().map(|y| order::midway(*x, *y))).collect();
    out.sort_by(f64::total_cmp);
    out
}

fn walsh_averages(d: &[f64]) -> Vec<f64> {
    let mut out: Vec<f64> = (0..d.len()).flat_map(|i| d[i..].iter().map(move |y| order::midway(d[i], *y))).collect();
    out.sort_by(f64::total_cmp);
    out
}

/// Half the Hodges-Lehmann shift between the two orders; see the drawing at the top.
fn slot_effect(first: &[f64], second: &[f64]) -> Option<f64> {
    let negated: Vec<f64> = first.iter().map(|d| -d).collect();
    order::median_of_sorted(&cross_averages(second, &negated))
}

/// Robust standard deviation of a pair about the centre of its own order; the plain one when half of the pairs agree.
fn spread(first: &[f64], second: &[f64]) -> f64 {
    let mut residuals = Vec::with_capacity(first.len() + second.len());
    for group in [first, second] {
        let mut sorted = group.to_vec();
        sorted.sort_by(f64::total_cmp);
        let centre = order::median_of_sorted(&sorted).unwrap_or(0.0);
        residuals.extend(group.iter().map(|d| (d - centre).abs()));
    }
    residuals.sort_by(f64::total_cmp);
    let robust = order::median_of_sorted(&residuals).unwrap_or(0.0) * order::MAD_TO_SIGMA;
    if robust > 0.0 {
        return robust;
    }
    (residuals.iter().map(|r| r * r).sum::<f64>() / residuals.len().max(1) as f64).sqrt()
}

/// Bounds of the middle `confidence` of the estimate over resampled pairs.
fn bootstrap(first: &[f64], second: &[f64], across: bool, confidence: f64, seed: u64) -> (f64, f64) {
    let mut random = SplitMix64::new(seed);
    let n = first.len() + second.len();
    let averages = if across { first.len() * second.len() } else { n * (n + 1) / 2 };
    let resamples = (AVERAGES_MAX / averages.max(1)).clamp(RESAMPLES_MIN, RESAMPLES_MAX);
    let mut draw = |from: &[f64]| -> Vec<f64> { from.iter().map(|_| from[random.below(from.len())]).collect() };
    let pooled: Vec<f64> = first.iter().chain(second).copied().collect();
    let mut estimates: Vec<f64> = (0..resamples)
        .map(|_| {
            let mut averages: Vec<f64> = if across {
                let (a, b) = (draw(second), draw(first));
                a.iter().flat_map(|x| b.iter().map(|y| order::midway(*x, *y))).collect()
            } else {
                let d = draw(&pooled);
                (0..n).flat_map(|i| d[i..].iter().map(|y| order::midway(d[i], *y)).collect::<Vec<_>>()).collect()
            };
            middle(&mut averages)
        })
        .collect();
    estimates.sort_by(f64::total_cmp);
    let tail = one_sided(confidence);
    let at = |share| order::quantile_of_sorted(&estimates, share).unwrap_or(0.0);
    (at(tail), at(1.0 - tail))
}

/// The upper middle value, without sorting everything.
fn middle(values: &mut [f64]) -> f64 {
    let at = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

#[cfg(test)]
mod tests;
