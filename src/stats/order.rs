//! Order statistics: median, quantiles, median absolute deviation.

use super::clamped;
use farmgate_engine::protocol::Finite;

/// What the median absolute deviation of normal noise is multiplied with to give its standard deviation: 1 / 0.6745, the
/// inverse of the normal's third quartile (Hampel, JASA 69, 1974).
pub const MAD_TO_SIGMA: f64 = 1.482_602_218_505_602;

/// The values in ascending order.
pub fn sorted(values: &[Finite]) -> Vec<f64> {
    let mut out: Vec<f64> = values.iter().map(|v| v.get()).collect();
    out.sort_by(f64::total_cmp);
    out
}

/// The middle value, or the mean of the two in the middle; `None` of nothing.
///
/// ```text
/// 1 2 (3) 8 9 -> 3        1 2 (3 5) 8 9 -> 4
/// ```
pub fn median(values: &[Finite]) -> Option<Finite> {
    median_of_sorted(&sorted(values)).map(clamped)
}

pub(super) fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some(midway(sorted[n / 2 - 1], sorted[n / 2])),
    }
}

/// The mean of two numbers; half of each, so that the sum of two huge numbers cannot overflow.
pub(super) fn midway(a: f64, b: f64) -> f64 {
    let (low, high) = (a.min(b), a.max(b));
    (a / 2.0 + b / 2.0).clamp(low, high)
}

/// The `share` quantile (0 to 1) by linear interpolation between order statistics, type 7 of Hyndman and Fan, "Sample
/// Quantiles in Statistical Packages", The American Statistician 50 (1996); the default of R and NumPy.
///
/// ```text
/// position h = (n - 1) x share, counted from 0
/// 1 2 3 4 at share 0.5:  h = 1.5  ->  halfway between 2 and 3
/// ```
///
/// `None` of nothing; a share outside 0 to 1 is taken as the nearer end, one that is no number as 0.
pub fn quantile(values: &[Finite], share: f64) -> Option<Finite> {
    quantile_of_sorted(&sorted(values), share).map(clamped)
}

pub(super) fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
    let position = share * last as f64;
    let below = (position.floor() as usize).min(last);
    let above = (below + 1).min(last);
    let weight = position - below as f64;
    Some((sorted[below] * (1.0 - weight) + sorted[above] * weight).clamp(sorted[below], sorted[above]))
}

/// Median absolute deviation from the median, not scaled (see [`MAD_TO_SIGMA`]); `None` of nothing.
///
/// ```text
/// 1 1 2 2 4 6 9:  median 2, deviations 1 1 0 0 2 4 7, their median 1
/// ```
pub fn mad(values: &[Finite]) -> Option<Finite> {
    let centre = median(values)?.get();
    let mut deviations: Vec<f64> = values.iter().map(|v| (v.get() - centre).abs().min(f64::MAX)).collect();
    deviations.sort_by(f64::total_cmp);
    median_of_sorted(&deviations).map(clamped)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{any_values, finite};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_those_of_r() {
        // R 4: quantile(1:10, c(0, .25, .9, 1)) = 1, 3.25, 9.1, 10
        let v = finite(&[10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0]);
        for (share, expected) in [(0.0, 1.0), (0.25, 3.25), (0.9, 9.1), (1.0, 10.0), (-1.0, 1.0), (f64::NAN, 1.0)] {
            assert!((quantile(&v, share).unwrap().get() - expected).abs() < 1e-12, "{share}");
        }
        assert_eq!(median(&v).unwrap().get(), 5.5);
    }

    #[test]
    fn the_median_absolute_deviation_is_that_of_the_text_book_example() {
        assert_eq!(mad(&finite(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0])).unwrap().get(), 1.0);
    }

    #[test]
    fn nothing_has_no_median_and_huge_numbers_do_not_overflow() {
        assert_eq!((median(&[]), quantile(&[], 0.5), mad(&[])), (None, None, None));
        let huge = finite(&[f64::MAX, f64::MAX, f64::MIN, f64::MIN]);
        assert_eq!(median(&huge).unwrap().get(), 0.0);
        assert_eq!(median(&huge[..2]).unwrap().get(), f64::MAX);
        assert_eq!(mad(&huge).unwrap().get(), f64::MAX);
    }

    proptest! {
        #[test]
        fn quantiles_lie_within_the_values_and_never_fall(values in any_values(1..30), a in 0.0..1.0f64, b in 0.0..1.0f64) {
            let (low, high) = (quantile(&values, a.min(b)).unwrap(), quantile(&values, a.max(b)).unwrap());
            prop_assert!(low <= high);
            let sorted = sorted(&values);
            prop_assert!(low.get() >= sorted[0] && high.get() <= sorted[sorted.len() - 1]);
            prop_assert!(mad(&values).unwrap().get() >= 0.0);
        }
    }
}
