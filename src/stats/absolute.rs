//! One sample against an absolute limit: the median with a distribution-free interval.

use super::{Interval, TooFew, clamped, count_needed, null, one_sided, order};
use farmgate_engine::protocol::Finite;

/// How the interval of a median is made, as estimates say it.
pub const METHOD_MEDIAN: &str = "median, exact sign test";

/// The median and the interval between two order statistics that covers the true median with at least `confidence`,
/// whatever the distribution is.
///
/// ```text
/// n = 8, sorted:   x1 [x2  x3  x4 | x5  x6  x7] x8      P(true median outside) = 2 x 9/256 = 7.0 %
/// ```
///
/// The k-th value from either end is the bound, with the largest k for which a fair coin thrown n times falls on one side
/// fewer than k times with a chance of at most (1 - confidence) / 2. Source: Thompson, "On Confidence Ranges for the
/// Median", Annals of Mathematical Statistics 7 (1936); Conover, "Practical Nonparametric Statistics", 1999, section 3.2.
///
/// # Errors
/// [`TooFew`] when not even the extremes cover the median with that confidence: below 5 values for 90 %.
pub fn median_interval(values: &[Finite], confidence: f64) -> Result<Interval, TooFew> {
    let sorted = order::sorted(values);
    let n = sorted.len();
    let too_few = TooFew { n, needed: count_needed(confidence) };
    let (k, tail) = null::cut(&null::sign(n), one_sided(confidence)).ok_or(too_few)?;
    // at most half of the values can lie on one side, so the bounds cannot cross
    let k = k.min(n.div_ceil(2));
    let point = order::median_of_sorted(&sorted).ok_or(too_few)?;
    Ok(Interval {
        point: clamped(point),
        low: clamped(sorted[k - 1]),
        high: clamped(sorted[n - k]),
        confidence: 1.0 - 2.0 * tail,
        n,
        method: METHOD_MEDIAN,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{any_values, finite};
    use super::*;
    use proptest::prelude::*;

    /// Bounds and achieved confidence of the values 1..=n.
    fn of_one_to(n: usize, confidence: f64) -> (f64, f64, f64) {
        let values: Vec<f64> = (1..=n).map(|i| i as f64).collect();
        let i = median_interval(&finite(&values), confidence).unwrap();
        (i.low.get(), i.high.get(), i.confidence)
    }

    #[test]
    fn bounds_are_the_order_statistics_of_the_tables() {
        // Conover 1999, table A3 (binomial 1/2): 95 % for n = 6, 10, 15, 20 are x1-x6, x2-x9, x4-x12, x6-x15,
        // with 96.9, 97.9, 96.5 and 95.9 %; 90 % for n = 5, 8 are x1-x5 and x2-x7 with 93.75 and 92.97 %
        for (n, confidence, low, high, achieved) in [
            (6, 0.95, 1.0, 6.0, 0.96875),
            (10, 0.95, 2.0, 9.0, 0.978_515_625),
            (15, 0.95, 4.0, 12.0, 0.964_843_75),
            (20, 0.95, 6.0, 15.0, 0.958_610_534),
            (5, 0.90, 1.0, 5.0, 0.9375),
            (8, 0.90, 2.0, 7.0, 0.929_687_5),
        ] {
            let (l, h, c) = of_one_to(n, confidence);
            assert_eq!((l, h), (low, high), "n {n}");
            assert!((c - achieved).abs() < 1e-8, "n {n}: {c}");
        }
    }

    #[test]
    fn four_values_are_too_few_whatever_they_are() {
        let few = median_interval(&finite(&[1.0; 4]), 0.9).unwrap_err();
        assert_eq!(few, TooFew { n: 4, needed: 5 });
        assert_eq!(median_interval(&[], 0.9).unwrap_err().n, 0);
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_median_and_grows_with_confidence(values in any_values(8..60)) {
            let narrow = median_interval(&values, 0.8).unwrap();
            let wide = median_interval(&values, 0.99).unwrap();
            for i in [&narrow, &wide] {
                prop_assert!(i.low <= i.point && i.point <= i.high);
            }
            prop_assert!(wide.low <= narrow.low && narrow.high <= wide.high);
            prop_assert!(narrow.confidence >= 0.8 - 1e-9 && wide.confidence >= 0.99 - 1e-9);
        }

        #[test]
        fn a_rising_map_of_the_values_maps_the_bounds(values in proptest::collection::vec(0.1..100.0f64, 5..40)) {
            let plain = median_interval(&finite(&values), 0.9).unwrap();
            let mapped = median_interval(&finite(&values.iter().map(|v| v.powi(3)).collect::<Vec<_>>()), 0.9).unwrap();
            prop_assert_eq!(mapped.low.get(), plain.low.get().powi(3));
            prop_assert_eq!(mapped.high.get(), plain.high.get().powi(3));
        }
    }
}
