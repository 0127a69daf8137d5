//! Statistics of one sorted sample.

use super::Interval;

/// A sorted copy.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut out = values.to_vec();
    out.sort_by(f64::total_cmp);
    out
}

/// The middle value, or the mean of the two middle ones; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The `q`-quantile by linear interpolation between order statistics (type 7 of Hyndman and Fan 1996, the default of R
/// and NumPy); `None` for no values or `q` outside 0..=1.
///
/// ```text
/// values  1   2   3   4        h = (n - 1) q, value between floor(h) and ceil(h)
/// q       0  1/3 2/3  1
/// ```
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if values.is_empty() || !(0.0..=1.0).contains(&q) {
        return None;
    }
    let sorted = sorted(values);
    let h = (sorted.len() - 1) as f64 * q;
    let (below, above) = (sorted[h.floor() as usize], sorted[h.ceil() as usize]);
    Some(below + (above - below) * (h - h.floor()))
}

/// Median absolute deviation from the median, unscaled; `None` for no values.
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    median(&values.iter().map(|v| (v - centre).abs()).collect::<Vec<f64>>())
}

/// Fewest observations for which [`median_interval`] exists at a one-sided level: the smallest n with 2^-n <= alpha.
pub fn observations_min(alpha: f64) -> usize {
    (1..64).find(|n| 0.5f64.powi(*n) <= alpha).unwrap_or(64) as usize
}

/// Interval of the median from order statistics (Conover 1999, section 3.2): each bound alone holds with confidence
/// 1 - `alpha`, whatever the distribution. `None` when there are too few observations for that.
///
/// ```text
/// sorted   x1  x2  x3 … x(n-1)  xn      low = x(k), high = x(n+1-k)
/// k = the largest with P(Binomial(n, 1/2) <= k - 1) <= alpha
/// ```
pub fn median_interval(values: &[f64], alpha: f64) -> Option<Interval> {
    let n = values.len();
    let sorted = sorted(values);
    let mut tail = 0.0;
    let mut probability = 0.5f64.powi(i32::try_from(n).ok()?);
    let mut k = 0;
    let mut reached = 0.0;
    for successes in 0..n / 2 {
        tail += probability;
        if tail > alpha {
            break;
        }
        (k, reached) = (successes + 1, tail);
        probability *= (n - successes) as f64 / (successes + 1) as f64;
    }
    (k > 0).then(|| Interval {
        point: median(&sorted).expect("k above zero means that there are values"),
        low: sorted[k - 1],
        high: sorted[n - k],
        confidence: 1.0 - 2.0 * reached,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_follow_type_7() {
        // numpy.quantile([1, 2, 3, 4, 10], [0, .1, .25, .5, .9, 1])
        let values = [10.0, 1.0, 3.0, 2.0, 4.0];
        for (q, expected) in [(0.0, 1.0), (0.1, 1.4), (0.25, 2.0), (0.5, 3.0), (0.9, 7.6), (1.0, 10.0)] {
            assert!((quantile(&values, q).unwrap() - expected).abs() < 1e-12, "q = {q}");
        }
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), Some(1.0));
    }

    #[test]
    fn the_median_interval_has_the_ranks_of_the_published_table() {
        // ranks for one-sided 5 % (Conover 1999, table A3 by binomial sums): n = 5 -> 1, 8 -> 2, 11 -> 3, 20 -> 6
        for (n, k) in [(5, 1), (7, 1), (8, 2), (11, 3), (20, 6)] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let interval = median_interval(&values, 0.05).unwrap();
            assert_eq!((interval.low, interval.high), (f64::from(k), f64::from(n + 1 - k)), "n = {n}");
            assert!(interval.confidence >= 0.90);
        }
        assert_eq!(median_interval(&[1.0, 2.0, 3.0, 4.0], 0.05), None, "four cannot reach 5 %");
        assert_eq!(observations_min(0.05), 5);
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_point_and_widens_with_confidence(values in proptest::collection::vec(-1e9f64..1e9, 8..60)) {
            let (wide, narrow) = (median_interval(&values, 0.01).unwrap(), median_interval(&values, 0.2).unwrap());
            prop_assert!(wide.low <= narrow.low && narrow.low <= narrow.point);
            prop_assert!(narrow.point <= narrow.high && narrow.high <= wide.high);
        }
    }
}
