//! From made-up runs to outcomes: what passes, what fails, and above all what must not pass.

use super::*;
use crate::run::*;
use farmgate_engine::protocol::{Arm, EngineConfig, ExitCause, Finite, ReasonCode, Validity};

fn model(letter: char) -> ModelFacts {
    ModelFacts {
        name: format!("{letter}.gguf"),
        sha256: vec![letter.to_string().repeat(64)],
        file_bytes: 1,
        weight_bytes: 1,
        architecture: "llama".into(),
        parameters: 1,
        weight_type: "Q4_0".into(),
    }
}

fn cell(index: u32, arm: Arm, pair: u32, slot: u32, metric: &str, value: f64) -> CellData {
    CellData {
        cell: index,
        scenario: "latency".into(),
        arm,
        pair,
        slot,
        model_sha256: vec![if arm == Arm::Baseline { "b" } else { "c" }.repeat(64)],
        config: EngineConfig::default(),
        attempts: 1,
        exit: Some(ExitCause::Done),
        duration_ms: Some(1),
        invalid: vec![],
        proof: None,
        samples: vec![Sample {
            attempt: 0,
            step: 1,
            repetition: 0,
            metric: metric.into(),
            value: Finite::new(value),
            validity: if value.is_finite() { Validity::Valid } else { Validity::Invalid(ReasonCode::NotFinite) },
        }],
        token_times: vec![],
        telemetry: vec![],
        stderr_tail: String::new(),
    }
}

/// A run of pairs (baseline, candidate) in ABBA order.
fn compared(metric: &str, pairs: &[(f64, f64)]) -> RunData {
    let mut cells = Vec::new();
    for (i, (b, c)) in pairs.iter().enumerate() {
        let (pair, at) = (i as u32, 2 * i as u32);
        let baseline_slot = pair % 2;
        cells.push(cell(at, Arm::Baseline, pair, baseline_slot, metric, *b));
        cells.push(cell(at + 1, Arm::Candidate, pair, 1 - baseline_slot, metric, *c));
    }
    let facts = DeviceFacts { device: "phone".into(), labels: vec!["phone".into()], ..DeviceFacts::default() };
    RunData {
        manifest: Manifest {
            run: RunId::parse("r").unwrap(),
            created: String::new(),
            farmgate_version: String::new(),
            host: HostFacts::default(),
            scenarios: vec!["latency".into()],
            candidate: model('c'),
            baseline: Some(model('b')),
            pairs: Default::default(),
            devices: vec![facts.clone()],
        },
        state: RunState::Complete,
        devices: vec![DeviceData { facts, fingerprint: None, failure: None, engine_sha256: None, cells }],
    }
}

fn rule(metric: &str) -> Rule {
    Rule {
        name: "r".into(),
        metric: metric.into(),
        scenario: None,
        devices: None,
        severity: Severity::Critical,
        at_least: None,
        at_most: None,
        regression_percent_max: None,
        required: false,
    }
}

fn regression(metric: &str, percent: f64) -> Vec<Rule> {
    vec![Rule { regression_percent_max: Some(percent), ..rule(metric) }]
}

/// `n` pairs around the given ratio, with 1 % of alternating noise.
fn around(ratio: f64, n: usize) -> Vec<(f64, f64)> {
    (0..n)
        .map(|i| {
            (100.0 + (i % 3) as f64, (100.0 + (i % 3) as f64) * ratio * (1.0 + 0.01 * ((i % 5) as f64 - 2.0) / 2.0))
        })
        .collect()
}

#[test]
fn a_bound_inside_the_margin_is_go_and_outside_is_no_go() {
    let judged = |ratio| judge("p", &regression("decode-tps", 5.0), &compared("decode-tps@0", &around(ratio, 8)));
    assert_eq!((judged(1.0).verdict, judged(1.0).exit), (Verdict::Go, ExitCode::Go));
    assert_eq!((judged(0.9).verdict, judged(0.9).exit), (Verdict::NoGo, ExitCode::NoGo));
    let near = judged(0.951);
    assert_eq!((near.verdict, near.exit), (Verdict::Inconclusive, ExitCode::Inconclusive), "{}", near.sentence);
    // for milliseconds, up is worse
    let slower = judge("p", &regression("ttft-ms", 5.0), &compared("ttft-ms@128", &around(1.1, 8)));
    assert_eq!(slower.verdict, Verdict::NoGo);
    let faster = judge("p", &regression("ttft-ms", 5.0), &compared("ttft-ms@128", &around(0.8, 8)));
    assert_eq!(faster.verdict, Verdict::Go);
}

#[test]
fn sentences_carry_what_was_required_found_interval_and_n() {
    let judged = judge("p", &regression("decode-tps", 5.0), &compared("decode-tps@0", &around(0.9, 8)));
    let sentence = &judged.outcomes[0].sentence;
    for part in ["at most 5 % worse", "candidate / baseline 0.9", "% interval", "n = 8 pairs"] {
        assert!(sentence.contains(part), "{part:?} is missing in {sentence}");
    }
}

/// Inputs that say nothing, or something bad behind a good middle: none of them may give GO.
#[test]
fn no_degenerate_input_passes() {
    let metric = "decode-tps@0";
    let rules = regression("decode-tps", 5.0);
    let mut spread: Vec<(f64, f64)> = Vec::new();
    for i in 0..11 {
        let x = f64::from(i) - 5.0;
        spread.push((100.0 + 0.5 * x, 100.0 + 8.0 * x));
    }
    let mut unfinished = compared(metric, &around(1.0, 8));
    unfinished.state = RunState::Unfinished;
    let mut interrupted = compared(metric, &around(1.0, 8));
    interrupted.state = RunState::Interrupted;
    let mut no_baseline = compared(metric, &around(1.0, 8));
    no_baseline.manifest.baseline = None;
    let mut no_device = compared(metric, &around(1.0, 8));
    no_device.devices.clear();
    let mut dead = compared(metric, &around(1.0, 8));
    dead.devices[0].cells.iter_mut().for_each(|c| c.exit = Some(ExitCause::Killed { by: "unknown".into() }));
    let mut never_ran = compared(metric, &around(1.0, 8));
    never_ran.devices[0].cells.iter_mut().for_each(|c| (c.attempts, c.exit) = (0, None));
    let table = [
        ("no samples", compared(metric, &[])),
        ("one pair", compared(metric, &around(1.0, 1))),
        ("four pairs", compared(metric, &around(1.0, 4))),
        ("zero baseline", compared(metric, &[(0.0, 100.0); 8])),
        ("negative baseline", compared(metric, &[(-1.0, 100.0); 8])),
        ("nan", compared(metric, &[(f64::NAN, 100.0); 8])),
        ("infinite candidate", compared(metric, &[(100.0, f64::INFINITY); 8])),
        ("tenfold spread at equal median", compared(metric, &spread)),
        (
            "7 of 10 a hundred times worse",
            compared(metric, &[[(100.0, 100.0); 3].as_slice(), &[(100.0, 1.0); 7]].concat()),
        ),
        ("unfinished", unfinished),
        ("interrupted", interrupted),
        ("no baseline", no_baseline),
        ("no device", no_device),
        ("all cells killed", dead),
        ("no cell ever ran", never_ran),
    ];
    for (name, run) in table {
        let judged = judge("p", &rules, &run);
        assert_ne!(judged.verdict, Verdict::Go, "{name}: {}", judged.sentence);
        assert_ne!(judged.exit, ExitCode::Go, "{name}");
    }
    let judged = judge("p", &[], &compared(metric, &around(1.0, 8)));
    assert_ne!(judged.verdict, Verdict::Go, "no rules");
}

#[test]
fn a_tenfold_spread_and_a_bad_tail_fail_whatever_the_median() {
    let seven = compared("decode-tps@0", &[[(100.0, 100.0); 3].as_slice(), &[(100.0, 1.0); 7]].concat());
    let judged = judge("p", &regression("decode-tps", 5.0), &seven);
    assert_eq!(judged.outcomes[0].outcome, Outcome::Fail);
    assert!(judged.outcomes[0].sentence.contains("7 of 10 pairs"), "{}", judged.outcomes[0].sentence);
}

#[test]
fn constant_values_decide_at_once() {
    let judged = judge("p", &regression("decode-tps", 5.0), &compared("decode-tps@0", &[(50.0, 50.0); 6]));
    assert_eq!(judged.verdict, Verdict::Go);
}

#[test]
fn a_run_against_itself_says_that_it_only_shows_the_noise() {
    let mut run = compared("decode-tps@0", &around(1.0, 8));
    run.manifest.baseline = Some(run.manifest.candidate.clone());
    let judged = judge("p", &regression("decode-tps", 5.0), &run);
    assert!(judged.outcomes[0].sentence.contains("same model"), "{}", judged.outcomes[0].sentence);
}

#[test]
fn a_baseline_that_ran_the_candidates_model_is_invalid() {
    let mut run = compared("decode-tps@0", &around(1.0, 8));
    for cell in &mut run.devices[0].cells {
        cell.proof = Some(farmgate_engine::protocol::SelfProof {
            build: String::new(),
            engine_sha256: "e".into(),
            model_sha256: vec!["c".repeat(64)],
            isa: "scalar".into(),
            config: EngineConfig::default(),
            threads_effective: 1,
            affinity_effective: vec![],
            weight_bytes: 1,
            kv_bytes: 1,
            scratch_bytes: 1,
            eviction: "none".into(),
        });
    }
    let judged = judge("p", &regression("decode-tps", 5.0), &run);
    assert_eq!((judged.verdict, judged.exit), (Verdict::Inconclusive, ExitCode::Invalid), "{}", judged.sentence);
}

#[test]
fn absolute_limits_are_judged_on_the_bound_not_the_median() {
    let run = compared("decode-tps@0", &around(1.0, 8));
    let judged = |least| judge("p", &[Rule { at_least: Some(least), ..rule("decode-tps") }], &run).outcomes[0].outcome;
    assert_eq!(judged(90.0), Outcome::Pass);
    assert_eq!(judged(120.0), Outcome::Fail);
    assert_eq!(judged(101.0), Outcome::Inconclusive);
    let most = judge("p", &[Rule { at_most: Some(50.0), ..rule("decode-tps") }], &run);
    assert_eq!(most.verdict, Verdict::NoGo);
}

#[test]
fn one_golden_mismatch_among_many_fails() {
    let mut pairs = vec![(1.0, 1.0); 7];
    pairs.push((1.0, 0.75));
    let rules = [Rule { at_least: Some(1.0), ..rule("golden-match-ratio") }];
    let judged = judge("p", &rules, &compared("golden-match-ratio", &pairs));
    assert_eq!((judged.verdict, judged.exit), (Verdict::NoGo, ExitCode::NoGo), "{}", judged.sentence);
    assert_eq!(
        judge("p", &rules, &compared("golden-match-ratio", &[(1.0, 1.0)])).verdict,
        Verdict::Go,
        "exact: one is enough"
    );
}

#[test]
fn a_failed_device_is_infra_and_a_crash_is_the_products_fault() {
    let mut infra = compared("decode-tps@0", &[]);
    infra.devices[0].failure = Some("link lost".into());
    let judged = judge("p", &regression("decode-tps", 5.0), &infra);
    assert_eq!((judged.outcomes[0].outcome, judged.exit), (Outcome::Infra, ExitCode::Infra));
    let mut crashed = compared("decode-tps@0", &around(1.0, 8));
    crashed.devices[0].cells[1].exit = Some(ExitCause::Crash { signal: "SIGILL".into() });
    let judged = judge("p", &regression("decode-tps", 5.0), &crashed);
    assert_eq!(judged.verdict, Verdict::NoGo);
    assert!(judged.sentence.contains("SIGILL in 1 of 8 cells"), "{}", judged.sentence);
}

#[test]
fn a_rule_of_inform_severity_never_decides() {
    let rules = [
        Rule { severity: Severity::Inform, regression_percent_max: Some(1.0), ..rule("decode-tps") },
        Rule { name: "c".into(), at_least: Some(10.0), ..rule("decode-tps") },
    ];
    let judged = judge("p", &rules, &compared("decode-tps@0", &around(0.5, 8)));
    assert_eq!(judged.verdict, Verdict::Go);
    assert_eq!(judged.outcomes[0].severity, Severity::Critical, "critical ones come first");
}
