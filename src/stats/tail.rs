//! Tails and spread: what a comparison of medians does not see.
//!
//! All functions take values on a scale on which *larger is worse*, as natural logarithms, so that a difference is a
//! factor; the gate turns its values round where more is better.

use super::{clamped, null, order};
use farmgate_engine::protocol::Finite;

/// Most values an arm for which the rank-sum distribution is counted out; beyond, its normal approximation.
const EXACT_MAX: usize = 25;

/// How many values of the candidate are far beyond everything that the baseline showed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beyond {
    /// Candidate values beyond the baseline's worst by more than the factor asked for.
    pub count: usize,
    /// Candidate values in all.
    pub n: usize,
    /// Worst candidate value / worst baseline value, as a natural logarithm.
    pub log_factor: Finite,
    /// Chance that so many of the worst values are all the candidate's, if the arms do not differ.
    pub p: f64,
}

/// Counts the candidate's values that are worse than the baseline's worst by more than `log_factor`.
///
/// ```text
/// baseline   ..:::..|              worst
/// candidate  ..::.  |   factor   |      . . .    count = 3 of 8
/// ```
///
/// If both arms came from one distribution, each set of `count` values would be as likely to be the worst as any other:
/// p = C(n candidate, count) / C(n both, count). Source: Rosenbaum, "Tables for a Nonparametric Test of Location", Annals
/// of Mathematical Statistics 25 (1954). `None` when an arm has no values.
pub fn beyond(baseline: &[Finite], candidate: &[Finite], log_factor: f64) -> Option<Beyond> {
    let worst = |values: &[Finite]| values.iter().map(|v| v.get()).max_by(f64::total_cmp);
    let (worst_baseline, worst_candidate) = (worst(baseline)?, worst(candidate)?);
    let count = candidate.iter().filter(|v| v.get() - worst_baseline > log_factor).count();
    let (n, both) = (candidate.len(), candidate.len() + baseline.len());
    let p = (0..count).map(|i| (n - i) as f64 / (both - i) as f64).product();
    Some(Beyond { count, n, log_factor: clamped(worst_candidate - worst_baseline), p })
}

/// How much wider the candidate scatters than the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wider {
    /// Typical deviation of the baseline from its median, on the scale of the input.
    pub baseline: Finite,
    /// Typical deviation of the candidate from its median.
    pub candidate: Finite,
    /// One-sided p-value of the test that deviations do not differ.
    pub p: f64,
}

/// Compares how far the values of each arm lie from their own median.
///
/// ```text
/// baseline       ..|..          deviations  1 1 2 2
/// candidate  .   . | .    .     deviations  5 9 20 30     every one larger: rank-sum p = 1/70
/// ```
///
/// Rank-sum test of the absolute deviations (Levene's idea with ranks: Levene 1960; Brown and Forsythe, JASA 69, 1974;
/// ranks as in Conover and others, Technometrics 23, 1981). An odd sample has one deviation of zero by construction, which
/// is left out (Hines and Hines, Biometrics 56, 2000). `None` when an arm has fewer than three values.
pub fn wider(baseline: &[Finite], candidate: &[Finite]) -> Option<Wider> {
    let (of_baseline, of_candidate) = (deviations(baseline)?, deviations(candidate)?);
    let (m, n) = (of_candidate.len(), of_baseline.len());
    let mut u = 0.0;
    for c in &of_candidate {
        for b in &of_baseline {
            u += if c > b { 1.0 } else { f64::from(u8::from(c == b)) / 2.0 };
        }
    }
    // by symmetry the chance of U or more is that of m n - U or less; ties are rounded to the careful side
    let mirrored = (m * n) as f64 - u;
    let p = if m.max(n) <= EXACT_MAX {
        null::rank_sum(m, n)[mirrored.ceil() as usize]
    } else {
        let (mean, variance) = ((m * n) as f64 / 2.0, (m * n * (m + n + 1)) as f64 / 12.0);
        normal_below((mirrored + 0.5 - mean) / variance.sqrt())
    };
    let typical = |d: &[f64]| order::median_of_sorted(d).map(clamped);
    Some(Wider { baseline: typical(&of_baseline)?, candidate: typical(&of_candidate)?, p })
}

/// Absolute deviations from the median, ascending, without the structural zero of an odd sample.
fn deviations(values: &[Finite]) -> Option<Vec<f64>> {
    if values.len() < 3 {
        return None;
    }
    let centre = order::median(values)?.get();
    let mut out: Vec<f64> = values.iter().map(|v| (v.get() - centre).abs().min(f64::MAX)).collect();
    out.sort_by(f64::total_cmp);
    if values.len() % 2 == 1 {
        out.remove(0);
    }
    Some(out)
}

/// The standard normal distribution function, to 7.5e-8: Abramowitz and Stegun, "Handbook of Mathematical Functions",
/// formula 26.2.17.
fn normal_below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let polynomial =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let above = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * polynomial;
    if z > 0.0 { 1.0 - above } else { above }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{any_values, finite};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seven_of_ten_far_beyond_is_no_accident_and_one_may_be() {
        let baseline = finite(&[0.0; 10]);
        let bad = |k: usize| finite(&(0..10).map(|i| if i < k { 4.6 } else { 0.0 }).collect::<Vec<_>>());
        let seven = beyond(&baseline, &bad(7), 0.7).unwrap();
        // C(10,7) / C(20,7) = 120 / 77520
        assert!(seven.count == 7 && (seven.p - 120.0 / 77520.0).abs() < 1e-12);
        let one = beyond(&baseline, &bad(1), 0.7).unwrap();
        assert!(one.count == 1 && (one.p - 0.5).abs() < 1e-12);
        let none = beyond(&baseline, &bad(0), 0.7).unwrap();
        assert!(none.count == 0 && none.p == 1.0);
        assert_eq!(beyond(&[], &bad(1), 0.7), None);
    }

    #[test]
    fn the_drawing_of_deviations_is_true() {
        let w = wider(&finite(&[-2.0, -1.0, 1.0, 2.0]), &finite(&[-20.0, -5.0, 5.0, 30.0])).unwrap();
        assert!((w.p - 1.0 / 70.0).abs() < 1e-12, "{w:?}");
        assert_eq!((w.baseline.get(), w.candidate.get()), (1.5, 12.5));
        assert_eq!(wider(&finite(&[1.0, 2.0]), &finite(&[1.0, 2.0, 3.0])), None);
    }

    #[test]
    fn the_normal_approximation_meets_the_table() {
        for (z, p) in [(0.0, 0.5), (-1.6449, 0.05), (1.96, 0.975), (-3.0, 0.00135)] {
            assert!((normal_below(z) - p).abs() < 1e-5, "{z}");
        }
    }

    #[test]
    fn a_large_sample_gives_about_what_the_exact_count_gives() {
        let arm = |n: usize, scale: f64| {
            finite(&(0..n).map(|i| scale * (i as f64 - n as f64 / 2.0 + 0.3)).collect::<Vec<_>>())
        };
        let exact = wider(&arm(24, 1.0), &arm(24, 1.5)).unwrap().p;
        let approximated = wider(&arm(26, 1.0), &arm(26, 1.5)).unwrap().p;
        assert!((exact - approximated).abs() < 0.02, "{exact} {approximated}");
    }

    proptest! {
        #[test]
        fn any_values_give_chances_between_0_and_1(a in any_values(0..40), b in any_values(0..40)) {
            if let Some(w) = wider(&a, &b) {
                prop_assert!((0.0..=1.0).contains(&w.p), "{w:?}");
            }
            if let Some(x) = beyond(&a, &b, 0.7) {
                prop_assert!((0.0..=1.0).contains(&x.p) && x.count <= x.n);
            }
        }
    }
}
