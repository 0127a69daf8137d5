//! Estimators, intervals and tests: pure functions of finite numbers, without I/O, clock or hidden randomness.
//!
//! Input is [`Finite`], so NaN and infinity cannot come in; output is [`Finite`] as well, so they cannot come out.
//! Everything that could be random takes a seed. Every interval says the confidence that it *achieves*, which for exact
//! tests of small samples is a little above what was asked for, never below.

pub mod absolute;
pub mod null;
pub mod order;
pub mod paired;
pub mod random;
pub mod tail;
#[cfg(test)]
pub(crate) mod testing;

use farmgate_engine::protocol::Finite;

/// The two-sided confidence that belongs to a one-sided error rate of 5 %: each bound alone is a 95 % bound.
///
/// ```text
/// two-sided 90 %:   5 % |------ interval ------| 5 %
/// one-sided 95 %:   5 % |------ everything above is compatible with the data ------>
/// ```
///
/// A non-inferiority test at one-sided level alpha is the comparison of the margin with the bound of the two-sided
/// 1 - 2 alpha interval (ICH E9, 1998, section 3.3.2; Wellek, "Testing Statistical Hypotheses of Equivalence and
/// Noninferiority", 2nd ed. 2010, chapter 1).
pub const GATE_CONFIDENCE: f64 = 0.90;

/// Slack for rounding when an exact probability is compared with a level: 1/20 is meant to reach 5 %.
const LEVEL_SLACK: f64 = 1e-9;

/// A point estimate with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Point estimate; never outside the bounds.
    pub point: Finite,
    /// Lower bound.
    pub low: Finite,
    /// Upper bound.
    pub high: Finite,
    /// Two-sided confidence that is achieved, 0 to 1.
    pub confidence: f64,
    /// Pairs, or observations, it rests on.
    pub n: usize,
    /// How it was made.
    pub method: &'static str,
}

/// Why there is no interval: the sample is too small for the test to reach its level, whatever the values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFew {
    /// Pairs, or observations, that there are.
    pub n: usize,
    /// The least number with which the level can be reached.
    pub needed: usize,
}

/// Which side of a limit an interval lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The bound that matters is inside the limit: the demand is met at the interval's one-sided level.
    Inside,
    /// The other bound is beyond the limit: the demand is broken at the interval's one-sided level.
    Outside,
    /// The limit lies within the interval.
    Undecided,
}

/// One-sided non-inferiority: the value must not be below `limit`.
///
/// ```text
///            limit
///   Outside    |    Inside
///   [------]   |   [------]
///           [--|--]  Undecided
/// ```
///
/// A limit that is not a number decides nothing. Source: see [`GATE_CONFIDENCE`].
pub fn at_least(interval: &Interval, limit: f64) -> Side {
    if interval.low.get() >= limit {
        Side::Inside
    } else if interval.high.get() < limit {
        Side::Outside
    } else {
        Side::Undecided
    }
}

/// As [`at_least`], for a value that must not be above `limit`.
pub fn at_most(interval: &Interval, limit: f64) -> Side {
    if interval.high.get() <= limit {
        Side::Inside
    } else if interval.low.get() > limit {
        Side::Outside
    } else {
        Side::Undecided
    }
}

/// The least count of which a sign test of all-equal signs reaches the level: the smallest n with 2^-n <= alpha.
///
/// ```text
/// alpha 5 %:   n = 4 gives 1/16 = 6.25 %, too much;   n = 5 gives 1/32 = 3.1 %
/// ```
///
/// Both the sign test and the signed-rank test need as many. Source: Conover, "Practical Nonparametric Statistics",
/// 3rd ed. 1999, sections 3.4 and 5.7.
pub fn count_needed(confidence: f64) -> usize {
    let alpha = one_sided(confidence);
    (1..64).find(|n| 0.5_f64.powi(*n) <= alpha + LEVEL_SLACK).unwrap_or(64) as usize
}

/// The one-sided error rate of a two-sided interval.
fn one_sided(confidence: f64) -> f64 {
    ((1.0 - confidence) / 2.0).clamp(0.0, 0.5)
}

/// Finite by clamping: only for quantities that can overflow although their input was finite, such as `exp`.
fn clamped(value: f64) -> Finite {
    let bounded = if value.is_nan() { 0.0 } else { value.clamp(f64::MIN, f64::MAX) };
    Finite::new(bounded).expect("a number between MIN and MAX is finite")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64) -> Interval {
        let f = |v| Finite::new(v).unwrap();
        Interval { point: f(low), low: f(low), high: f(high), confidence: 0.9, n: 5, method: "" }
    }

    #[test]
    fn the_side_is_decided_by_the_bound_and_a_limit_that_is_no_number_decides_nothing() {
        let i = interval(0.97, 1.02);
        assert_eq!(at_least(&i, 0.95), Side::Inside);
        assert_eq!(at_least(&i, 0.97), Side::Inside);
        assert_eq!(at_least(&i, 0.99), Side::Undecided);
        assert_eq!(at_least(&i, 1.03), Side::Outside);
        assert_eq!(at_most(&i, 1.05), Side::Inside);
        assert_eq!(at_most(&i, 1.0), Side::Undecided);
        assert_eq!(at_most(&i, 0.96), Side::Outside);
        for side in [at_least(&i, f64::NAN), at_most(&i, f64::NAN)] {
            assert_eq!(side, Side::Undecided);
        }
    }

    #[test]
    fn a_one_sided_level_of_five_per_cent_needs_five() {
        assert_eq!(count_needed(GATE_CONFIDENCE), 5);
        assert_eq!(count_needed(0.95), 6);
        assert_eq!(count_needed(0.99), 8);
    }
}
