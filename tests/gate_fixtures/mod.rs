//! Runs made by hand for the gate's tests: one device, one scenario, and values by cell.

use farmgate::gate::{Judgement, Rule, Severity, judge};
use farmgate::run::{
    CellData, DeviceData, DeviceFacts, HostFacts, Manifest, ModelFacts, RunData, RunId, RunState, Sample,
};
use farmgate_engine::protocol::{Arm, EngineConfig, ExitCause, Finite, ReasonCode, SelfProof, Validity};
use std::collections::BTreeMap;

pub const SCENARIO: &str = "latency";
pub const SPEED: &str = "decode-tps@0";

/// Values like those of a calm device: 10 token/s with about 1 % of scatter, the same for the same index and salt.
pub fn calm(index: u32, salt: u32) -> f64 {
    let mixed = (u64::from(index) * 31 + u64::from(salt) * 17 + 7).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    10.0 * (1.0 + 0.02 * (mixed as f64 / f64::from(1 << 24) - 0.5))
}

pub fn finite(value: f64) -> Finite {
    Finite::new(value).expect("tests use finite numbers")
}

pub fn facts(sha256: &str) -> ModelFacts {
    ModelFacts {
        name: format!("{sha256}.gguf"),
        sha256: vec![sha256.to_owned()],
        file_bytes: 1,
        weight_bytes: 1,
        architecture: "llama".into(),
        parameters: 1,
        weight_type: "Q4_0".into(),
    }
}

fn model_of(arm: Arm) -> &'static str {
    match arm {
        Arm::Baseline => "old",
        Arm::Candidate => "new",
    }
}

fn proof(model: &str, config: &EngineConfig) -> SelfProof {
    SelfProof {
        build: "farmhand 0.1.0".into(),
        engine_sha256: "engine".into(),
        model_sha256: vec![model.to_owned()],
        isa: "scalar".into(),
        config: config.clone(),
        threads_effective: 1,
        affinity_effective: vec![],
        weight_bytes: 1,
        kv_bytes: 1,
        scratch_bytes: 1,
        eviction: "none".into(),
        ..SelfProof::default()
    }
}

/// A cell that ended well with these values of a metric, one a repetition.
pub fn cell(arm: Arm, pair: u32, slot: u32, metric: &str, values: &[f64]) -> CellData {
    let config = EngineConfig::default();
    let sample = |(repetition, value): (usize, &f64)| Sample {
        attempt: 0,
        step: 1,
        repetition: repetition as u32,
        metric: metric.to_owned(),
        value: Some(finite(*value)),
        validity: Validity::Valid,
    };
    CellData {
        cell: pair * 2 + slot,
        scenario: SCENARIO.into(),
        arm,
        pair,
        slot,
        model_sha256: vec![model_of(arm).to_owned()],
        proof: Some(proof(model_of(arm), &config)),
        config,
        attempts: 1,
        exit: Some(ExitCause::Done),
        duration_ms: Some(1000),
        invalid: vec![],
        samples: values.iter().enumerate().map(sample).collect(),
        token_times: vec![],
        telemetry: vec![],
        stderr_tail: String::new(),
    }
}

/// A run of these cells on one device `phone` with the label `phone`.
pub fn run(cells: Vec<CellData>) -> RunData {
    let facts_of_device = DeviceFacts {
        device: "phone".into(),
        labels: vec!["phone".into()],
        tier: None,
        transport: "local".into(),
        ..DeviceFacts::default()
    };
    let compared = cells.iter().any(|c| c.arm == Arm::Baseline);
    RunData {
        manifest: Manifest {
            run: RunId::parse("gate-test").expect("a valid name"),
            created: "2026-01-01T00:00:00Z".into(),
            farmgate_version: "0.1.0".into(),
            host: HostFacts::default(),
            scenarios: vec![SCENARIO.into()],
            candidate: facts("new"),
            baseline: compared.then(|| facts("old")),
            pairs: BTreeMap::from([(SCENARIO.to_owned(), cells.len() as u32)]),
            devices: vec![facts_of_device.clone()],
            policy: None,
            typed: None,
        },
        state: RunState::Complete,
        resumed: vec![],
        devices: vec![DeviceData {
            facts: facts_of_device,
            fingerprint: None,
            failure: None,
            engine_sha256: Some("engine".into()),
            cells,
        }],
    }
}

/// A comparison in blocks ABBA BAAB; the closures give the repetitions of each pair's baseline and candidate.
pub fn pairs(n: u32, metric: &str, baseline: impl Fn(u32) -> Vec<f64>, candidate: impl Fn(u32) -> Vec<f64>) -> RunData {
    let mut cells = Vec::new();
    for pair in 0..n {
        let baseline_slot = u32::from(!matches!(pair % 4, 0 | 3));
        cells.push(cell(Arm::Baseline, pair, baseline_slot, metric, &baseline(pair)));
        cells.push(cell(Arm::Candidate, pair, 1 - baseline_slot, metric, &candidate(pair)));
    }
    run(cells)
}

/// A run without a baseline; one value a cell.
pub fn alone(metric: &str, values: &[f64]) -> RunData {
    run(values.iter().enumerate().map(|(i, v)| cell(Arm::Candidate, i as u32, 0, metric, &[*v])).collect())
}

/// Spoils a cell: no values are left, and it says why.
pub fn lose(cell: &mut CellData, exit: ExitCause, reason: Option<ReasonCode>) {
    cell.samples.clear();
    cell.exit = Some(exit);
    cell.invalid.extend(reason);
}

/// Candidate cells of the only device.
pub fn candidates(run: &mut RunData) -> impl Iterator<Item = &mut CellData> {
    run.devices[0].cells.iter_mut().filter(|c| c.arm == Arm::Candidate)
}

/// Baseline cells of the only device.
pub fn baselines(run: &mut RunData) -> impl Iterator<Item = &mut CellData> {
    run.devices[0].cells.iter_mut().filter(|c| c.arm == Arm::Baseline)
}

/// A critical rule without limits.
pub fn rule(metric: &str) -> Rule {
    Rule {
        name: "rule".into(),
        metric: metric.into(),
        scenario: Some(SCENARIO.into()),
        devices: None,
        severity: Severity::Critical,
        at_least: None,
        at_most: None,
        regression_percent_max: None,
        required: false,
    }
}

/// At most so many per cent worse.
pub fn regression(metric: &str, percent: f64) -> Rule {
    Rule { regression_percent_max: Some(percent), ..rule(metric) }
}

/// At least so much.
pub fn at_least(metric: &str, limit: f64) -> Rule {
    Rule { at_least: Some(limit), ..rule(metric) }
}

/// Judges by one rule.
pub fn judged(run: &RunData, rule: Rule) -> Judgement {
    judge("test", &[rule], run)
}
