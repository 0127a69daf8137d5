//! The gate's truth table: degenerate input never gives GO, and each kind ends in its own class with a sentence that
//! says why. Rows G of the field reports are among them.

mod gate_fixtures;

use farmgate::error::ExitCode;
use farmgate::gate::{Judgement, Outcome, Rule, Severity, Verdict, judge};
use farmgate::label::LabelExpression;
use farmgate::run::{RunData, RunState};
use farmgate_engine::protocol::{Arm, ExitCause, ReasonCode, Validity};
use gate_fixtures::*;

/// A calm comparison of n pairs, the candidate `factor` times as fast.
fn calm_pairs(n: u32, factor: f64) -> RunData {
    pairs(n, SPEED, |i| vec![calm(i, 1)], |i| vec![calm(i, 2) * factor])
}

/// Holds that the one outcome is of this class and that its sentence has all of these words.
fn expect(run: &RunData, rule: Rule, outcome: Outcome, words: &[&str]) -> Judgement {
    let judgement = judged(run, rule);
    assert_eq!(judgement.outcomes.len(), 1, "{:?}", judgement.outcomes);
    let found = &judgement.outcomes[0];
    assert_eq!(found.outcome, outcome, "{}", found.sentence);
    for word in words {
        assert!(found.sentence.contains(word), "`{word}` is not in: {}", found.sentence);
    }
    assert_eq!(judgement.verdict == Verdict::Go, outcome == Outcome::Pass && run.state == RunState::Complete);
    assert_eq!(judgement.verdict == Verdict::Go, judgement.exit == ExitCode::Go);
    judgement
}

#[test]
fn a_calm_comparison_within_its_margin_is_go_and_one_beyond_it_is_no_go() {
    let go = expect(
        &calm_pairs(8, 1.0),
        regression(SPEED, 5.0),
        Outcome::Pass,
        &["8 pairs", "interval", "0.950", "at most 5 %"],
    );
    assert_eq!((go.verdict, go.exit), (Verdict::Go, ExitCode::Go));
    let estimate = go.outcomes[0].estimate.as_ref().unwrap();
    assert!(estimate.low <= estimate.point && estimate.point <= estimate.high && estimate.n == 8);
    assert_eq!(go.outcomes[0].limit, Some(0.95));

    let no_go = expect(&calm_pairs(8, 0.9), regression(SPEED, 5.0), Outcome::Fail, &["broken"]);
    assert_eq!((no_go.verdict, no_go.exit), (Verdict::NoGo, ExitCode::NoGo));
}

#[test]
fn the_direction_of_worse_is_that_of_the_metric() {
    let slower = |metric| pairs(8, metric, |i| vec![calm(i, 1)], |i| vec![calm(i, 2) * 1.2]);
    expect(&slower("ttft-ms@128"), regression("ttft-ms", 5.0), Outcome::Fail, &["higher"]);
    expect(&slower("prefill-tps@128"), regression("prefill-tps", 5.0), Outcome::Pass, &["lower"]);
}

#[test]
fn a_limit_inside_the_interval_is_undecided_and_says_how_many_pairs_it_would_take() {
    let noisy = |i: u32, salt| 10.0 * (calm(i, salt) / 10.0).powi(10);
    let run = pairs(6, SPEED, |i| vec![noisy(i, 1)], |i| vec![noisy(i, 2) * 0.96]);
    let j = expect(&run, regression(SPEED, 5.0), Outcome::Inconclusive, &["pairs would decide", "scatters by"]);
    assert_eq!(j.exit, ExitCode::Inconclusive);
}

#[test]
fn missing_data_never_pass() {
    let mut no_cell = calm_pairs(8, 1.0);
    no_cell.devices[0].cells.clear();
    expect(&no_cell, regression(SPEED, 5.0), Outcome::Inconclusive, &["none of 0 cells"]);

    let other_metric = pairs(8, "ttft-ms@128", |i| vec![calm(i, 1)], |i| vec![calm(i, 2)]);
    expect(&other_metric, regression(SPEED, 5.0), Outcome::Inconclusive, &["no decode-tps@0"]);

    let no_baseline = alone(SPEED, &[10.0, 10.1, 9.9, 10.2, 10.05, 9.95]);
    expect(&no_baseline, regression(SPEED, 5.0), Outcome::Inconclusive, &["no baseline"]);

    let other_scenario = Rule { scenario: Some("soak".into()), ..regression(SPEED, 5.0) };
    expect(&calm_pairs(8, 1.0), other_scenario, Outcome::Inconclusive, &["soak is not part of this run"]);

    let only_required = Rule { required: true, ..rule(SPEED) };
    expect(&other_metric, only_required.clone(), Outcome::Inconclusive, &["no decode-tps@0"]);
    expect(&calm_pairs(8, 1.0), only_required, Outcome::Pass, &["8 of 8 observations"]);
}

#[test]
fn no_rule_and_no_critical_rule_decide_nothing() {
    let run = calm_pairs(8, 1.0);
    let inform = Rule { severity: Severity::Inform, ..regression(SPEED, 5.0) };
    for rules in [vec![], vec![inform.clone()]] {
        let judgement = judge("test", &rules, &run);
        assert_eq!((judgement.verdict, judgement.exit), (Verdict::Inconclusive, ExitCode::Inconclusive));
    }
    let missing = Rule { metric: "ttft-ms".into(), ..inform.clone() };
    assert!(
        judge("test", std::slice::from_ref(&missing), &run).outcomes.is_empty(),
        "informing rules without data are left out"
    );
    assert_eq!(judge("test", &[Rule { required: true, ..missing }], &run).outcomes.len(), 1);
    // an informing FAIL never blocks
    let failing = Rule { name: "inform".into(), at_least: Some(1e6), regression_percent_max: None, ..inform };
    assert_eq!(judge("test", &[regression(SPEED, 5.0), failing], &run).verdict, Verdict::Go);
}

#[test]
fn few_pairs_and_few_observations_say_how_many_are_needed() {
    for n in 1..5 {
        expect(&calm_pairs(n, 0.2), regression(SPEED, 5.0), Outcome::Inconclusive, &["at least 5 are needed"]);
        let values: Vec<f64> = (0..n).map(|i| calm(i, 1)).collect();
        expect(&alone(SPEED, &values), at_least(SPEED, 1.0), Outcome::Inconclusive, &["at least 5 are needed"]);
    }
}

#[test]
fn zero_and_negative_values_have_no_ratio() {
    for bad in [0.0, -3.0] {
        let one = |i: u32, salt| vec![if i == 2 { bad } else { calm(i, salt) }];
        let baseline = pairs(8, SPEED, |i| one(i, 1), |i| vec![calm(i, 2)]);
        expect(&baseline, regression(SPEED, 5.0), Outcome::Invalid, &["1 pair of 8", "zero or below"]);
        let candidate = pairs(8, SPEED, |i| vec![calm(i, 1)], |i| one(i, 2));
        expect(&candidate, regression(SPEED, 5.0), Outcome::Invalid, &["zero or below"]);
        let slopes = pairs(8, "memory-growth-mb-per-h", |_| vec![bad], |i| vec![calm(i, 2)]);
        expect(&slopes, regression("memory-growth-mb-per-h", 5.0), Outcome::Inconclusive, &["zero or below"]);
    }
}

#[test]
fn a_clock_that_stands_still_does_not_pass() {
    let constant = pairs(8, SPEED, |_| vec![10.0], |_| vec![10.0]);
    expect(&constant, regression(SPEED, 5.0), Outcome::Inconclusive, &["exactly the same"]);
    expect(&alone(SPEED, &[10.0; 8]), at_least(SPEED, 5.0), Outcome::Inconclusive, &["exactly the same"]);
    // memory may well be the same every time
    let memory = pairs(8, "peak-rss-mb@end", |_| vec![300.0], |_| vec![300.0]);
    expect(&memory, regression("peak-rss-mb", 5.0), Outcome::Pass, &[]);
}

#[test]
fn equal_medians_with_a_tenfold_spread_fail() {
    let off = |i: u32, step: f64| 10.0 * (step * (f64::from(i) - 4.5) / 4.5).exp();
    for (n, expected) in [(10, Outcome::Fail), (8, Outcome::Fail)] {
        let shift = |i: u32| (i * 7 + 3) % n;
        let run = pairs(n, SPEED, |i| vec![off(i, 0.03)], |i| vec![off(shift(i), 0.3)]);
        expect(&run, regression(SPEED, 5.0), expected, &["spread"]);
        // even a margin that the typical ratio meets
        let judgement = judged(&run, regression(SPEED, 20.0));
        assert_ne!(judgement.verdict, Verdict::Go, "{}", judgement.sentence);
    }
}

#[test]
fn seven_of_ten_samples_a_hundred_times_worse_fail() {
    let bad = |i: u32, of: u32| if i % 10 < of { 0.01 } else { 1.0 };
    let by_pair = pairs(10, SPEED, |i| vec![calm(i, 1)], |i| vec![calm(i, 2) * bad(i, 7)]);
    expect(&by_pair, regression(SPEED, 5.0), Outcome::Fail, &["tail"]);
    // within each cell, where the median of ten repetitions does not see four of them
    let repetitions = |pair: u32, of: u32| (0..10).map(|r| calm(pair * 10 + r, 2) * bad(r, of)).collect::<Vec<_>>();
    for of in [4, 7] {
        let within = pairs(10, SPEED, |i| repetitions(i, 0), |i| repetitions(i, of));
        expect(&within, regression(SPEED, 5.0), Outcome::Fail, &["tail"]);
    }
    // one or two of ten: no proof, and no pass either
    for of in [1, 2] {
        let few = pairs(10, SPEED, |i| vec![calm(i, 1)], |i| vec![calm(i, 2) * bad(i, of)]);
        expect(&few, regression(SPEED, 5.0), Outcome::Inconclusive, &["tail"]);
    }
    // latency, where worse is more
    let latency = pairs(10, "ttft-ms@128", |i| vec![calm(i, 1)], |i| vec![calm(i, 2) / bad(i, 7)]);
    expect(&latency, regression("ttft-ms", 5.0), Outcome::Fail, &["tail"]);
}

#[test]
fn an_absolute_limit_is_judged_on_the_bound_and_a_hidden_tail_keeps_it_from_passing() {
    let values: Vec<f64> = (0..8).map(|i| calm(i, 1)).collect();
    expect(&alone(SPEED, &values), at_least(SPEED, 9.5), Outcome::Pass, &["at least 9.5 token/s", "8 observations"]);
    expect(&alone(SPEED, &values), at_least(SPEED, 10.0), Outcome::Inconclusive, &["observations"]);
    expect(&alone(SPEED, &values), at_least(SPEED, 12.0), Outcome::Fail, &["broken"]);
    let mut tailed = alone(SPEED, &values);
    for c in candidates(&mut tailed) {
        *c = cell(Arm::Candidate, c.pair, 0, SPEED, &[10.0 + f64::from(c.pair) / 100.0, 10.2, 10.3, 0.1, 0.1]);
    }
    expect(&tailed, at_least(SPEED, 9.5), Outcome::Inconclusive, &["hides a tail"]);
}

#[test]
fn the_same_model_on_both_sides_is_told() {
    let mut same = calm_pairs(8, 1.0);
    same.manifest.baseline = Some(facts("new"));
    for c in baselines(&mut same) {
        c.model_sha256 = vec!["new".into()];
        c.proof.as_mut().unwrap().model_sha256 = vec!["new".into()];
    }
    expect(&same, regression(SPEED, 5.0), Outcome::Pass, &["A/A"]);
    let sentence = judged(&calm_pairs(8, 1.0), regression(SPEED, 5.0)).outcomes[0].sentence.clone();
    assert!(!sentence.contains("A/A"), "{sentence}");
}

#[test]
fn a_baseline_that_proves_it_ran_the_candidate_is_invalid() {
    let mut swapped = calm_pairs(8, 1.0);
    baselines(&mut swapped).next().unwrap().proof.as_mut().unwrap().model_sha256 = vec!["new".into()];
    let j =
        expect(&swapped, regression(SPEED, 5.0), Outcome::Invalid, &["1 cell of the baseline opened another model"]);
    assert_eq!(j.exit, ExitCode::Invalid);
    let mut engine = calm_pairs(8, 1.0);
    candidates(&mut engine).next().unwrap().proof.as_mut().unwrap().engine_sha256 = "other".into();
    expect(&engine, regression(SPEED, 5.0), Outcome::Invalid, &["another engine"]);
}

#[test]
fn an_interrupted_or_unfinished_run_is_never_go() {
    for state in [RunState::Interrupted, RunState::Unfinished] {
        let mut run = calm_pairs(8, 1.0);
        run.state = state;
        let j = expect(&run, regression(SPEED, 5.0), Outcome::Pass, &[]);
        assert_eq!(j.exit, ExitCode::Inconclusive);
        assert!(j.sentence.contains(state.as_str()), "{}", j.sentence);
    }
    let mut stopped = calm_pairs(8, 1.0);
    candidates(&mut stopped).for_each(|c| lose(c, ExitCause::Interrupted, None));
    expect(&stopped, regression(SPEED, 5.0), Outcome::Inconclusive, &["interrupted x 8"]);
}

#[test]
fn cells_spoiled_by_their_surroundings_are_invalid_with_reasons_and_counts() {
    let mut hot = calm_pairs(8, 1.0);
    for (i, c) in candidates(&mut hot).enumerate() {
        c.invalid.push(if i < 6 { ReasonCode::NotCool } else { ReasonCode::ForeignLoad });
    }
    let j = expect(&hot, regression(SPEED, 5.0), Outcome::Invalid, &["not-cool x 6", "foreign-load x 2"]);
    assert_eq!((j.verdict, j.exit), (Verdict::Inconclusive, ExitCode::Invalid));
    // a few are only left out, and told
    let mut some = calm_pairs(8, 1.0);
    candidates(&mut some).take(2).for_each(|c| c.invalid.push(ReasonCode::NotCool));
    expect(&some, regression(SPEED, 5.0), Outcome::Pass, &["2 of 8 pairs not usable (not-cool x 2)", "6 pairs"]);
}

#[test]
fn pairs_that_all_ran_in_one_order_cannot_tell_the_order_from_the_candidate() {
    let mut one_order = calm_pairs(16, 1.0);
    for c in &mut one_order.devices[0].cells {
        if !matches!(c.pair % 4, 0 | 3) {
            c.invalid.push(ReasonCode::ThermalBand);
        }
    }
    expect(&one_order, regression(SPEED, 5.0), Outcome::Inconclusive, &["effect of the order"]);
}

#[test]
fn a_candidate_that_dies_where_it_is_bad_does_not_pass() {
    let mut partly = calm_pairs(12, 1.0);
    candidates(&mut partly).take(2).for_each(|c| {
        lose(c, ExitCause::Timeout { phase: "cell".into(), budget_ms: 1000 }, Some(ReasonCode::Timeout));
    });
    expect(&partly, regression(SPEED, 5.0), Outcome::Inconclusive, &["timeout x 2", "does not pass"]);
    let crash = || ExitCause::Crash { signal: "SIGILL".into() };
    let mut all = calm_pairs(8, 1.0);
    candidates(&mut all).for_each(|c| lose(c, crash(), None));
    expect(&all, regression(SPEED, 5.0), Outcome::Fail, &["SIGILL"]);
    let mut both = calm_pairs(8, 1.0);
    both.devices[0].cells.iter_mut().for_each(|c| lose(c, crash(), None));
    expect(&both, regression(SPEED, 5.0), Outcome::Invalid, &["cell-died x 16"]);
    // without a baseline nobody else is to blame
    expect(&both, at_least(SPEED, 1.0), Outcome::Fail, &["SIGILL"]);
}

#[test]
fn a_device_that_failed_is_infra_and_the_others_keep_the_verdict_open() {
    let mut run = calm_pairs(8, 1.0);
    run.devices[0].failure = Some("ssh: connection reset\n  --> device phone".into());
    let j = expect(&run, regression(SPEED, 5.0), Outcome::Infra, &["connection reset"]);
    assert_eq!((j.verdict, j.exit), (Verdict::Inconclusive, ExitCode::Infra));
    let mut other = calm_pairs(8, 1.0).devices.remove(0);
    other.facts.device = "tablet".into();
    run.devices.push(other);
    let j = judged(&run, regression(SPEED, 5.0));
    assert_eq!((j.verdict, j.exit), (Verdict::Inconclusive, ExitCode::Inconclusive));
    assert_eq!(j.outcomes[0].device, "phone", "worst first");
}

#[test]
fn one_wrong_answer_among_many_fails_the_golden_rule_and_a_retry_does_not_wash_it_away() {
    const GOLDEN: &str = "golden-match-ratio";
    expect(&alone(GOLDEN, &[1.0]), at_least(GOLDEN, 1.0), Outcome::Pass, &["1 observation"]);
    let one_bad = alone(GOLDEN, &[1.0, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0]);
    expect(&one_bad, at_least(GOLDEN, 1.0), Outcome::Fail, &["0.750"]);
    let mut spoiled = alone(GOLDEN, &[1.0, 0.5, 1.0]);
    for sample in candidates(&mut spoiled).flat_map(|c| &mut c.samples).filter(|s| s.value == Some(finite(0.5))) {
        sample.validity = Validity::Invalid(ReasonCode::GoldenTokensDiffer);
    }
    expect(&spoiled, at_least(GOLDEN, 1.0), Outcome::Fail, &["0.500"]);
    let mut retried = alone(GOLDEN, &[1.0]);
    let c = candidates(&mut retried).next().unwrap();
    let mut again = c.samples[0].clone();
    (again.attempt, c.samples[0].value, c.attempts) = (1, Some(finite(0.75)), 2);
    c.samples.push(again);
    expect(&retried, at_least(GOLDEN, 1.0), Outcome::Fail, &["0.750"]);
    expect(&alone(SPEED, &[10.0]), at_least(GOLDEN, 1.0), Outcome::Inconclusive, &["no answers are recorded"]);
}

#[test]
fn a_limit_that_is_no_number_never_passes() {
    let values: Vec<f64> = (0..8).map(|i| calm(i, 1)).collect();
    expect(&alone(SPEED, &values), at_least(SPEED, f64::NAN), Outcome::Inconclusive, &[]);
    for percent in [f64::NAN, f64::INFINITY, 100.0, -1.0] {
        expect(&calm_pairs(8, 1.0), regression(SPEED, percent), Outcome::Inconclusive, &[]);
    }
}

#[test]
fn labels_choose_devices_and_a_critical_rule_without_a_device_does_not_pass() {
    let only = |text: &str| Some(LabelExpression::parse(text).unwrap());
    let other = Rule { devices: only("!phone"), ..regression(SPEED, 5.0) };
    // a mistyped label must not take a critical rule away unnoticed
    expect(&calm_pairs(8, 1.0), other.clone(), Outcome::Inconclusive, &["no device"]);
    expect(&calm_pairs(8, 1.0), Rule { required: true, ..other.clone() }, Outcome::Inconclusive, &["no device"]);
    let informs = Rule { severity: Severity::Inform, ..other };
    assert!(judged(&calm_pairs(8, 1.0), informs).outcomes.is_empty());
    let mine = Rule { devices: only("phone"), ..regression(SPEED, 5.0) };
    expect(&calm_pairs(8, 1.0), mine, Outcome::Pass, &[]);
}
