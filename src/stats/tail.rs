//! Tails and spread: a change that leaves the middle where it was and ruins the rest.

use super::order;

/// A pair counts as far worse when the candidate is worse by more than this factor.
const FAR_WORSE_FACTOR: f64 = 2.0;
/// Share of pairs that may be far worse.
const FAR_WORSE_SHARE_MAX: f64 = 0.2;
/// Fewest far worse pairs that count: one may be an accident.
const FAR_WORSE_COUNT_MIN: usize = 2;
/// How many times the baseline's spread the candidate's may be.
const SPREAD_FACTOR_MAX: f64 = 5.0;
/// Spread (interquartile range of logarithms) below which a baseline counts as calm: half a per cent.
const SPREAD_FLOOR: f64 = 0.005;

/// What is wrong with a candidate's tail or spread.
#[derive(Debug, Clone, PartialEq)]
pub enum TailFault {
    /// Too many pairs in which the candidate is far worse.
    FarWorse {
        /// That many pairs.
        count: usize,
        /// Of that many.
        of: usize,
        /// More than this many times worse.
        factor: f64,
    },
    /// The candidate's values spread far wider than the baseline's.
    Spread {
        /// Interquartile range of the candidate's logarithms.
        candidate: f64,
        /// The baseline's.
        baseline: f64,
    },
}

/// Looks at worsenings (log of how many times worse the candidate is, one a pair). Far worse pairs are a fault unless the
/// baseline is as often far worse, which is noise on both sides.
pub fn far_worse(worsenings: &[f64]) -> Option<TailFault> {
    let limit = FAR_WORSE_FACTOR.ln();
    let count = worsenings.iter().filter(|w| **w > limit).count();
    let other_way = worsenings.iter().filter(|w| **w < -limit).count();
    let many = count as f64 > FAR_WORSE_SHARE_MAX * worsenings.len() as f64;
    (many && count >= FAR_WORSE_COUNT_MIN && count > 2 * other_way).then_some(TailFault::FarWorse {
        count,
        of: worsenings.len(),
        factor: FAR_WORSE_FACTOR,
    })
}

/// Compares spreads of positive values on the log scale. `relevant` is the smallest spread that matters: a candidate within
/// it is fine however calm the baseline is.
pub fn spread(baseline: &[f64], candidate: &[f64], relevant: f64) -> Option<TailFault> {
    let range = |values: &[f64]| {
        let logs: Vec<f64> = values.iter().filter(|v| **v > 0.0).map(|v| v.ln()).collect();
        Some(order::quantile(&logs, 0.75)? - order::quantile(&logs, 0.25)?)
    };
    let (b, c) = (range(baseline)?, range(candidate)?);
    (c > SPREAD_FACTOR_MAX * b.max(SPREAD_FLOOR) && c > relevant)
        .then_some(TailFault::Spread { candidate: c, baseline: b })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_of_ten_a_hundred_times_worse_is_a_fault() {
        let mut worsenings = vec![0.0; 3];
        worsenings.extend([100f64.ln(); 7]);
        assert!(matches!(far_worse(&worsenings), Some(TailFault::FarWorse { count: 7, of: 10, .. })));
    }

    #[test]
    fn one_far_worse_pair_or_noise_on_both_sides_is_none() {
        assert_eq!(far_worse(&[0.0, 0.0, 0.0, 0.0, 5.0]), None);
        assert_eq!(far_worse(&[5.0, 5.0, -5.0, -5.0, 0.0]), None);
    }

    #[test]
    fn a_tenfold_spread_at_the_same_median_is_a_fault() {
        let baseline: Vec<f64> = (-5..=5).map(|i| 100.0 + f64::from(i)).collect();
        let candidate: Vec<f64> = (-5..=5).map(|i| 100.0 + 10.0 * f64::from(i)).collect();
        assert!(matches!(spread(&baseline, &candidate, 0.05), Some(TailFault::Spread { .. })));
        assert_eq!(spread(&baseline, &baseline, 0.05), None);
        assert_eq!(spread(&[100.0; 8], &[100.0, 101.0, 100.0, 101.0, 100.0, 101.0], 0.05), None, "too small to matter");
    }
}
