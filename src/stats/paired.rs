//! Paired comparison: the shift of log-ratios within pairs that were measured side by side on one device.

use super::{Interval, order};

/// Pairs up to which the signed-rank distribution is counted exactly; beyond it the normal approximation serves, whose
/// error at that size is far below a thousandth.
const EXACT_MAX: usize = 200;

/// One pair of measurements, both above zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    baseline: f64,
    candidate: f64,
    baseline_first: bool,
}

impl Pair {
    /// `None` unless both values are finite and above zero: other values have no ratio.
    pub fn new(baseline: f64, candidate: f64, baseline_first: bool) -> Option<Self> {
        let fits = |v: f64| v.is_finite() && v > 0.0;
        (fits(baseline) && fits(candidate)).then_some(Self { baseline, candidate, baseline_first })
    }

    /// ln(candidate / baseline), as a difference of logarithms so that extreme values cannot overflow.
    pub fn log_ratio(&self) -> f64 {
        self.candidate.ln() - self.baseline.ln()
    }
}

/// Walsh averages: the means of all pairs of values, each with itself included, sorted. n (n + 1) / 2 of them.
fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut out = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (i, a) in values.iter().enumerate() {
        out.extend(values[i..].iter().map(|b| a / 2.0 + b / 2.0));
    }
    out.sort_by(f64::total_cmp);
    out
}

/// The Hodges-Lehmann estimate of a shift: the median of the Walsh averages (Hodges and Lehmann 1963); `None` for no
/// values.
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    order::median(&walsh_averages(values))
}

/// Hodges-Lehmann estimate of the log-ratio with the interval that inverts the exact sign-flip test on ranks (Wilcoxon's
/// signed-rank test; Hollander, Wolfe and Chicken 2014, section 3.3). Each bound alone holds with confidence 1 - `alpha`
/// for log-ratios that are symmetric around their shift. `None` when there are too few pairs for that.
///
/// ```text
/// Walsh averages  w1 <= w2 <= … <= wM,  M = n (n + 1) / 2
/// low = w(k), high = w(M + 1 - k),  k = the largest with P(T+ <= k - 1) <= alpha under 2^n equally likely sign flips
/// ```
pub fn shift_interval(log_ratios: &[f64], alpha: f64) -> Option<Interval> {
    let averages = walsh_averages(log_ratios);
    let (k, tail) = lower_rank(log_ratios.len(), alpha)?;
    Some(Interval {
        point: order::median(&averages)?,
        low: averages[k - 1],
        high: averages[averages.len() - k],
        confidence: 1.0 - 2.0 * tail,
    })
}

/// The largest k with P(T+ <= k - 1) <= alpha, and that probability; `None` when even k = 1 is above alpha.
fn lower_rank(n: usize, alpha: f64) -> Option<(usize, f64)> {
    if n == 0 {
        return None;
    }
    if n > EXACT_MAX {
        // P(T+ <= t) ~ Phi((t + 1/2 - mean) / sd)
        let mean = (n * (n + 1)) as f64 / 4.0;
        let sd = (n as f64 * (n as f64 + 1.0) * (2.0 * n as f64 + 1.0) / 24.0).sqrt();
        let t = (mean - 0.5 + normal_quantile(alpha) * sd).floor();
        return (t >= 0.0).then_some((t as usize + 1, alpha));
    }
    let probabilities = signed_rank_probabilities(n);
    let mut tail = 0.0;
    let mut found = None;
    for (t, p) in probabilities.iter().enumerate() {
        tail += p;
        if tail > alpha {
            break;
        }
        found = Some((t + 1, tail));
    }
    found
}

/// P(T+ = t) for t = 0..=n(n+1)/2, where T+ is the sum of a random subset of 1..=n: one factor (1 + x^i) / 2 after the
/// other.
fn signed_rank_probabilities(n: usize) -> Vec<f64> {
    let mut p = vec![0.0; n * (n + 1) / 2 + 1];
    p[0] = 1.0;
    let mut reach = 0;
    for rank in 1..=n {
        reach += rank;
        for t in (0..=reach).rev() {
            let with = if t >= rank { p[t - rank] } else { 0.0 };
            p[t] = (p[t] + with) / 2.0;
        }
    }
    p
}

/// Quantile of the standard normal distribution for small tails (Abramowitz and Stegun 26.2.23, error below 4.5e-4).
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * p.ln()).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    numerator / denominator - t
}

/// Fewest pairs with which an interval at this one-sided level exists.
pub fn pairs_min(alpha: f64) -> usize {
    order::observations_min(alpha)
}

/// What running second does to the log of a value: half the difference between the mean log-ratios of the two orders
/// (Senn 2002, cross-over trials). `None` unless both orders occur. With both equally often it cancels in the comparison.
pub fn slot_effect(pairs: &[Pair]) -> Option<f64> {
    let mean = |first: bool| {
        let of: Vec<f64> = pairs.iter().filter(|p| p.baseline_first == first).map(Pair::log_ratio).collect();
        (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64)
    };
    // candidate second in the one order, baseline second in the other
    Some((mean(true)? - mean(false)?) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn signed_rank_tails_are_those_of_the_published_table() {
        // P(T+ <= t): n = 5: t = 0 -> 1/32; n = 8: t = 5 -> 10/256; n = 10: t = 10 -> 43/1024 (0.042)
        for (n, t, count) in [(5usize, 0usize, 1.0), (8, 5, 10.0), (10, 10, 43.0)] {
            let tail: f64 = signed_rank_probabilities(n)[..=t].iter().sum();
            assert!((tail - count / 2f64.powi(n as i32)).abs() < 1e-12, "n = {n}");
        }
        assert_eq!(lower_rank(5, 0.05).unwrap().0, 1);
        assert_eq!(lower_rank(8, 0.05).unwrap().0, 6);
        assert_eq!(lower_rank(10, 0.05).unwrap().0, 11);
        assert_eq!(lower_rank(4, 0.05), None);
    }

    #[test]
    fn the_normal_approximation_continues_the_exact_ranks() {
        let exact = lower_rank(EXACT_MAX, 0.05).unwrap().0 as f64;
        let approximate = lower_rank(EXACT_MAX + 1, 0.05).unwrap().0 as f64;
        // one more pair moves the rank by about n / 2
        assert!((approximate - exact - EXACT_MAX as f64 / 2.0).abs() < 20.0, "{exact} then {approximate}");
    }

    #[test]
    fn hodges_lehmann_gives_the_worked_example() {
        // Hollander, Wolfe and Chicken, example 3.1 (Hamilton depression scale): differences y - x, estimate -0.46
        let differences = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];
        assert!((hodges_lehmann(&differences).unwrap() + 0.46).abs() < 1e-9);
    }

    #[test]
    fn running_second_is_told_apart_from_the_change() {
        // candidate 10 % faster, whoever runs second 4 % slower
        let slower = 0.96;
        let pairs: Vec<Pair> = (0..8)
            .map(|i| match i % 2 {
                0 => Pair::new(100.0, 110.0 * slower, true).unwrap(),
                _ => Pair::new(100.0 * slower, 110.0, false).unwrap(),
            })
            .collect();
        assert!((slot_effect(&pairs).unwrap() - f64::ln(slower)).abs() < 1e-12);
        let ratios: Vec<f64> = pairs.iter().map(Pair::log_ratio).collect();
        assert!((hodges_lehmann(&ratios).unwrap().exp() - 1.1).abs() < 1e-9);
        assert_eq!(slot_effect(&pairs[..1]), None);
    }

    #[test]
    fn values_without_a_ratio_make_no_pair() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Pair::new(bad, 1.0, true), None);
            assert_eq!(Pair::new(1.0, bad, true), None);
        }
        assert!(Pair::new(f64::MIN_POSITIVE, f64::MAX, true).unwrap().log_ratio().is_finite());
    }

    /// Coverage by simulation with a fixed generator: at 5 % one-sided a bound misses in at most 5 % of samples.
    #[test]
    fn bounds_miss_as_rarely_as_promised() {
        let mut state = 42u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut missed, trials) = (0, 4000);
        for _ in 0..trials {
            // heavy-tailed and symmetric around zero
            let values: Vec<f64> = (0..8).map(|_| (std::f64::consts::PI * (uniform() - 0.5)).tan()).collect();
            missed += usize::from(shift_interval(&values, 0.05).unwrap().low > 0.0);
        }
        assert!(missed * 20 <= trials + trials / 5, "{missed} of {trials} missed, 5 % allowed");
    }

    proptest! {
        #[test]
        fn the_interval_moves_with_the_values_and_holds_its_point(
            values in proptest::collection::vec(-5.0f64..5.0, 5..40), by in -3.0f64..3.0,
        ) {
            let here = shift_interval(&values, 0.05).unwrap();
            let there = shift_interval(&values.iter().map(|v| v + by).collect::<Vec<_>>(), 0.05).unwrap();
            prop_assert!(here.low <= here.point && here.point <= here.high);
            prop_assert!((here.point + by - there.point).abs() < 1e-9 && (here.low + by - there.low).abs() < 1e-9);
            prop_assert!(here.confidence >= 0.9);
        }
    }
}
