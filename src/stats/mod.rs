//! Estimators and intervals. Pure: no I/O, no clock, no randomness.
//!
//! Intervals are exact and distribution-free: they come from the binomial and the signed-rank distribution themselves,
//! computed by counting, for any number of pairs that a run can have. So nothing needs to be resampled and nothing
//! depends on a seed.

pub mod order;
pub mod paired;
pub mod tail;

/// An estimate with bounds, on whatever scale the caller gave the numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The estimate.
    pub point: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Two-sided confidence that the exact distribution really gives, at least the one that was asked for.
    pub confidence: f64,
}
