use super::super::testing::{any_positive, finite};
use super::*;
use proptest::prelude::*;

fn pair(log_ratio: f64, candidate_second: bool) -> Pair {
    Pair { log_ratio: finite(&[log_ratio])[0], candidate_second }
}

fn close(a: Finite, b: f64) -> bool {
    (a.get() - b).abs() < 1e-9
}

fn logs(c: &Comparison) -> [f64; 3] {
    [c.ratio.low, c.ratio.point, c.ratio.high].map(|v| v.get().ln())
}

#[test]
fn the_drawing_in_the_doc_comment_is_true() {
    let pairs: Vec<Pair> = [(3.0, true), (5.0, true), (4.0, true), (-3.0, false), (-1.0, false), (0.0, false)]
        .map(|(d, s)| pair(d, s))
        .to_vec();
    let c = compare(&pairs, 0.9, 0).unwrap();
    let [low, point, high] = logs(&c);
    assert!((low - 0.0).abs() < 1e-9 && (point - 1.5).abs() < 1e-9 && (high - 2.5).abs() < 1e-9);
    assert!((c.ratio.confidence - 0.9).abs() < 1e-9);
    // averages of (d of AB) and -(d of BA): 3 2 1.5 | 4 3 2.5 | 3.5 2.5 2
    assert!(close(c.slot_effect.unwrap(), 2.5));
    assert_eq!(c.ratio.method, METHOD_ACROSS);
}

#[test]
fn walsh_averages_give_the_published_hodges_lehmann_estimate_and_interval() {
    // Hamilton depression scale data, Hollander, Wolfe and Chicken, example 3.1 (differences of nine patients): the
    // estimate is -0.46, the 96 % interval -0.786 to -0.010
    let d = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];
    let pairs: Vec<Pair> = d.iter().map(|d| pair(*d, true)).collect();
    let c = compare(&pairs, 0.95, 0).unwrap();
    let [low, point, high] = logs(&c);
    assert!((point + 0.46).abs() < 1e-9, "{point}");
    assert!((low + 0.786).abs() < 1e-9 && (high + 0.010).abs() < 1e-9, "{low} {high}");
    assert!((c.ratio.confidence - 0.961).abs() < 5e-4);
    assert_eq!(c.ratio.method, METHOD_WALSH);
}

#[test]
fn a_bare_order_effect_is_told_apart_and_leaves_no_spread() {
    let pairs: Vec<Pair> =
        (0..8).map(|i| if i % 4 == 0 || i % 4 == 3 { pair(0.12, true) } else { pair(-0.08, false) }).collect();
    let c = compare(&pairs, 0.9, 0).unwrap();
    assert!(close(c.ratio.low, 0.02f64.exp()) && close(c.ratio.high, 0.02f64.exp()));
    assert!(close(c.slot_effect.unwrap(), 0.10));
    assert!(close(c.spread, 0.0));
    assert_eq!(orders(&pairs), (4, 4));
}

#[test]
fn slow_drift_that_inflates_first_pairs_does_not_pass_for_an_effect() {
    // field report G5: the first pairs read +12 and +22 %, the third -11 and -6 %; blocks ABBA on a falling clock
    let pairs = [(0.113, true), (-0.06, false), (-0.117, false), (0.20, true), (0.05, true), (-0.11, false)]
        .map(|(d, s)| pair(d, s));
    let c = compare(&pairs, 0.9, 0).unwrap();
    assert!(c.ratio.low.get() < 1.0 && c.ratio.high.get() > 1.0, "{c:?}");
}

#[test]
fn fewer_than_five_pairs_never_reach_the_level() {
    for n in 0..5 {
        let pairs: Vec<Pair> = (0..n).map(|i| pair(9.0, i % 2 == 0)).collect();
        assert_eq!(compare(&pairs, 0.9, 0).unwrap_err(), TooFew { n, needed: 5 });
    }
    assert_eq!(pairs_needed(0.9), 5);
    let five: Vec<Pair> = (0..5).map(|i| pair(0.1, i % 2 == 0)).collect();
    assert!((compare(&five, 0.9, 0).unwrap().ratio.confidence - 0.9375).abs() < 1e-9);
}

#[test]
fn only_values_above_zero_have_a_ratio() {
    let [zero, one, minus] = [0.0, 1.0, -1.0].map(|v| finite(&[v])[0]);
    assert_eq!(
        (Pair::new(zero, one, true), Pair::new(one, zero, true), Pair::new(minus, minus, true)),
        (None, None, None)
    );
    assert!(close(Pair::new(one, one, false).unwrap().log_ratio, 0.0));
}

#[test]
fn the_bootstrap_repeats_itself_and_its_width_is_that_of_theory() {
    // 60 pairs, normal noise of 8 %: the 90 % interval of the mean would be 1.645 x 0.08 / sqrt(60) = 0.017 to each side
    let mut random = SplitMix64::new(5);
    let mut uniform = || random.below(1 << 30) as f64 / f64::from(1 << 30);
    let pairs: Vec<Pair> =
        (0..60).map(|i| pair(0.08 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0), i % 2 == 0)).collect();
    let c = compare(&pairs, 0.9, 1).unwrap();
    assert_eq!(c.ratio.method, METHOD_ACROSS_BOOTSTRAP);
    assert_eq!(c, compare(&pairs, 0.9, 1).unwrap());
    let [low, point, high] = logs(&c);
    assert!(
        (0.010..0.026).contains(&(high - point)) && (0.010..0.026).contains(&(point - low)),
        "{low} {point} {high}"
    );
}

/// Share of 2000 simulated comparisons whose lower bound is above the truth, with a slot effect of 10 %.
fn misses(pairs: usize, noise: impl Fn(f64) -> f64) -> f64 {
    let mut random = SplitMix64::new(99);
    let wrong = (0..2000)
        .filter(|_| {
            let sample: Vec<Pair> = (0..pairs)
                .map(|i| {
                    let second = i % 4 == 0 || i % 4 == 3;
                    let u = (random.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
                    pair(noise(u - 0.5) + if second { 0.1 } else { -0.1 }, second)
                })
                .collect();
            compare(&sample, 0.9, 0).unwrap().ratio.low.get() > 1.0
        })
        .count();
    wrong as f64 / 2000.0
}

#[test]
fn the_error_rate_holds_under_an_order_effect_and_heavy_tails() {
    // allowed: 5 % plus three standard errors of the simulation (0.5 %)
    for pairs in [6, 8, 12] {
        let uniform = misses(pairs, |u| 0.1 * u);
        let cauchy = misses(pairs, |u| 0.05 * (std::f64::consts::PI * u).tan());
        assert!(uniform < 0.065 && cauchy < 0.065, "{pairs} pairs: {uniform} {cauchy}");
    }
}

proptest! {
    // beyond 20 pairs each case resamples, so fewer cases
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn swapping_the_arms_gives_the_reciprocal(d in proptest::collection::vec((-2.0..2.0f64, any::<bool>()), 5..20)) {
        let there: Vec<Pair> = d.iter().map(|(d, s)| pair(*d, *s)).collect();
        let back: Vec<Pair> = d.iter().map(|(d, s)| pair(-*d, !*s)).collect();
        if let (Ok(a), Ok(b)) = (compare(&there, 0.9, 0), compare(&back, 0.9, 0)) {
            let ([al, ap, ah], [bl, bp, bh]) = (logs(&a), logs(&b));
            prop_assert!((al + bh).abs() < 1e-9 && (ap + bp).abs() < 1e-9 && (ah + bl).abs() < 1e-9);
        }
    }

    #[test]
    fn scaling_the_candidate_scales_the_ratio(
        d in proptest::collection::vec((-2.0..2.0f64, any::<bool>()), 5..23), by in -1.0..1.0f64
    ) {
        let plain: Vec<Pair> = d.iter().map(|(d, s)| pair(*d, *s)).collect();
        let scaled: Vec<Pair> = d.iter().map(|(d, s)| pair(*d + by, *s)).collect();
        if let (Ok(a), Ok(b)) = (compare(&plain, 0.9, 3), compare(&scaled, 0.9, 3)) {
            for (x, y) in logs(&a).iter().zip(logs(&b)) {
                prop_assert!((x + by - y).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn any_values_give_an_interval_round_the_point_that_grows_with_confidence(
        values in proptest::collection::vec((any_positive(), any_positive(), any::<bool>()), 0..23)
    ) {
        let pairs: Vec<Pair> = values.iter().map(|(b, c, s)| Pair::new(*b, *c, *s).unwrap()).collect();
        let narrow = compare(&pairs, 0.8, 1);
        let wide = compare(&pairs, 0.95, 1);
        for c in [&narrow, &wide].into_iter().flatten() {
            prop_assert!(c.ratio.low <= c.ratio.point && c.ratio.point <= c.ratio.high);
        }
        if let (Ok(narrow), Ok(wide)) = (narrow, wide) {
            prop_assert!(wide.ratio.low <= narrow.ratio.low && narrow.ratio.high <= wide.ratio.high);
        }
    }
}
