//! What holds for the gate whatever was measured.

// shared with the truth table, which uses more of it
#[allow(dead_code)]
mod gate_fixtures;

use farmgate::gate::{Outcome, Verdict};
use farmgate::stats::random::SplitMix64;
use farmgate_engine::protocol::ReasonCode;
use gate_fixtures::*;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.1..100.0f64, 1 => Just(0.0), 1 => Just(-1.0), 1 => Just(f64::MAX), 1 => Just(5e-324)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_values_give_a_judgement_whose_numbers_are_finite(
        values in proptest::collection::vec((value(), value(), any::<bool>()), 0..14), percent in 0.0..99.0f64
    ) {
        let n = values.len() as u32;
        let mut run = pairs(n, SPEED, |i| vec![values[i as usize].0], |i| vec![values[i as usize].1]);
        for c in candidates(&mut run) {
            if values[c.pair as usize].2 { c.invalid.push(ReasonCode::NotCool); }
        }
        let j = judged(&run, regression(SPEED, percent));
        for o in &j.outcomes {
            prop_assert!(!o.sentence.contains("NaN") && !o.sentence.contains("inf "), "{}", o.sentence);
            if let Some(e) = &o.estimate {
                prop_assert!(e.point.is_finite() && e.low <= e.point && e.point <= e.high && e.high.is_finite());
            }
        }
        prop_assert_eq!(j.clone(), judged(&run, regression(SPEED, percent)));
        let usable = values.iter().filter(|v| !v.2).count();
        prop_assert!(usable >= 5 || j.verdict == Verdict::Inconclusive, "{} usable pairs: {}", usable, j.sentence);
    }

    #[test]
    fn a_wider_margin_never_makes_a_verdict_worse(
        factors in proptest::collection::vec(0.7..1.3f64, 5..12), a in 0.0..60.0f64, b in 0.0..60.0f64
    ) {
        let run = pairs(factors.len() as u32, SPEED, |i| vec![calm(i, 1)], |i| vec![calm(i, 2) * factors[i as usize]]);
        let rank = |percent: f64| match judged(&run, regression(SPEED, percent)).outcomes[0].outcome {
            Outcome::Fail => 0,
            Outcome::Pass => 2,
            _ => 1,
        };
        prop_assert!(rank(a.min(b)) <= rank(a.max(b)));
    }
}

/// Outcomes of 2,000 comparisons of eight pairs at a margin of 5 %: PASS, FAIL, and what is left. Noise as phones have it:
/// normal with this standard deviation, one cell in twenty slowed by a fifth, a slow drift, and a cost of running second.
fn outcomes(sigma: f64, factor: f64) -> [usize; 3] {
    let mut random = SplitMix64::new(20_260_101);
    let mut uniform = move || (random.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
    let mut counts = [0; 3];
    for _ in 0..2000 {
        let mut value = |position: u32, second: bool| {
            let normal = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            let slowed = if uniform() < 0.05 { 0.8 } else { 1.0 };
            let order = if second { 0.97 } else { 1.0 };
            10.0 * (sigma * normal).exp() * slowed * order * (1.0 - 0.005 * f64::from(position))
        };
        let noise: Vec<[f64; 2]> = (0..8)
            .map(|pair| {
                let baseline_first = matches!(pair % 4, 0 | 3);
                [value(2 * pair, !baseline_first), value(2 * pair + 1, baseline_first)]
            })
            .collect();
        let run = pairs(8, SPEED, |i| vec![noise[i as usize][0]], |i| vec![noise[i as usize][1] * factor]);
        counts[match judged(&run, regression(SPEED, 5.0)).outcomes[0].outcome {
            Outcome::Pass => 0,
            Outcome::Fail => 1,
            _ => 2,
        }] += 1;
    }
    counts
}

#[test]
fn identical_code_raises_next_to_no_alarm_and_a_slowdown_beyond_the_margin_next_to_no_pass() {
    // field report G4: alerts on identical code. A FAIL needs the whole interval beyond the margin of 5 %. At 13 % a pair
    // scatters by 18 % and the estimate by 6.5 %, so theory expects 0.8 % of them (16), plus 3 standard errors of counting
    for sigma in [0.01, 0.076, 0.13] {
        let [pass, fail, open] = outcomes(sigma, 1.0);
        eprintln!("identical, {sigma}: {pass} pass, {fail} fail, {open} open");
        assert!(fail <= 28, "{sigma}: {fail} of 2000 identical comparisons failed");
    }
    // at the margin itself a PASS is the error: 5 % are promised (100 of 2000), and 3 standard errors of counting granted
    for sigma in [0.01, 0.076, 0.13] {
        let [pass, fail, open] = outcomes(sigma, 0.95);
        eprintln!("5 % slower, {sigma}: {pass} pass, {fail} fail, {open} open");
        assert!(pass <= 130, "{sigma}: {pass} of 2000 passed");
    }
    // as far beyond the margin as identical code is within it, so it is found about as often as that passes (two in three;
    // the rest had slowed cells, which eight pairs cannot tell from the candidate)
    let [pass, fail, _] = outcomes(0.01, 0.90);
    assert!(pass == 0 && fail >= 1200, "a calm device sees 10 %: {pass} pass, {fail} fail");
}
