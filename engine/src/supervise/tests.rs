use super::*;
use crate::protocol::frame::Framed;
use crate::protocol::{Arm, EngineConfig, Finite, ModelRef, SampleRecord, Validity};

fn cell() -> CellPlan {
    CellPlan {
        cell: 4,
        scenario: "s".into(),
        arm: Arm::Baseline,
        pair: 1,
        slot: 0,
        model: ModelRef { path: "m".into(), sha256: vec!["aa".into()] },
        config: EngineConfig { threads: 2, ..EngineConfig::default() },
        steps: vec![],
        seed: 0,
        load_timeout_ms: 1,
        cell_timeout_ms: 1,
        about_heat: false,
    }
}

fn proof() -> SelfProof {
    SelfProof {
        build: String::new(),
        engine_sha256: "ee".into(),
        model_sha256: vec!["aa".into()],
        isa: "scalar".into(),
        config: EngineConfig::default(),
        threads_effective: 2,
        affinity_effective: vec![],
        weight_bytes: 0,
        kv_bytes: 0,
        scratch_bytes: 0,
        eviction: "none".into(),
        ..SelfProof::default()
    }
}

fn ended(exit: ExitCause, proof: Option<SelfProof>) -> Ended {
    Ended { proof: proof.map(Box::new), duration_ms: 1, ..Ended::without_child(exit) }
}

#[test]
fn a_proof_that_differs_from_the_request_makes_the_attempt_invalid() {
    let reasons = |change: fn(&mut SelfProof)| {
        let mut proof = proof();
        change(&mut proof);
        invalid_reasons(&cell(), &ended(ExitCause::Done, Some(proof)), "ee")
    };
    assert_eq!(reasons(|_| {}), []);
    assert_eq!(reasons(|p| p.threads_effective = 1), [ReasonCode::AffinityDiffers]);
    // the kernel let a worker go elsewhere, or took its core away
    assert_eq!(reasons(|p| p.affinity_faults = vec!["worker 1 is elsewhere".into()]), [ReasonCode::AffinityDiffers]);
    let listed = CellPlan { config: EngineConfig { cpus: "4-5".parse().unwrap(), ..cell().config }, ..cell() };
    let proved = |affinity: [&str; 2]| {
        let proof = SelfProof { affinity_effective: affinity.map(str::to_owned).to_vec(), ..proof() };
        invalid_reasons(&listed, &ended(ExitCause::Done, Some(proof)), "ee")
    };
    assert_eq!(proved(["4", "5"]), []);
    assert_eq!(proved(["4", "0-7"]), [ReasonCode::AffinityDiffers]);
    assert_eq!(reasons(|p| p.model_sha256 = vec!["bb".into()]), [ReasonCode::ModelHashDiffers]);
    assert_eq!(reasons(|p| p.engine_sha256 = "ff".into()), [ReasonCode::EngineHashDiffers]);
    assert_eq!(invalid_reasons(&cell(), &ended(ExitCause::Done, None), "ee"), [ReasonCode::CellDied]);
}

#[test]
fn only_what_may_be_different_next_time_is_tried_again() {
    let crash = ended(ExitCause::Crash { signal: "SIGSEGV".into() }, None);
    assert_eq!(after(&crash, &[ReasonCode::CellDied]), After::Again);
    let refusal = ended(ExitCause::Failed { status: 2, what: "no".into() }, None);
    assert_eq!(after(&refusal, &[ReasonCode::CellDied]), After::Next);
    let done = ended(ExitCause::Done, Some(proof()));
    assert_eq!(after(&done, &[]), After::Next);
    assert_eq!(after(&done, &[ReasonCode::ModelHashDiffers]), After::Next);
    assert_eq!(after(&Ended { has_spoiled_samples: true, ..done }, &[]), After::Again);
    assert_eq!(after(&ended(ExitCause::Interrupted, None), &[ReasonCode::Interrupted]), After::Stop);
}

fn plan() -> DevicePlan {
    DevicePlan {
        protocol_version: PROTOCOL_VERSION,
        run: "r".into(),
        device: "d".into(),
        telemetry_period_ms: 0,
        retries_max: 1,
        lease_token: None,
        ready: crate::protocol::ReadyCriteria::default(),
        cells: vec![],
    }
}

fn journal(records: Vec<Record>) -> Vec<Framed> {
    let start = Record::JournalStart {
        protocol_version: PROTOCOL_VERSION,
        run: "r".into(),
        device: "d".into(),
        agent_build: String::new(),
        agent_sha256: String::new(),
        wall_clock: String::new(),
    };
    let all = std::iter::once(start).chain(records);
    all.enumerate().map(|(seq, record)| Framed { seq: seq as u64, time_us: 0, record }).collect()
}

fn end(exit: ExitCause, invalid: Vec<ReasonCode>) -> Record {
    Record::CellEnd { cell: 4, attempt: 0, exit, duration_ms: 0, invalid, stderr_tail: String::new() }
}

#[test]
fn a_continued_run_does_what_is_left() {
    let left = |records| Progress::of(&journal(records), &plan()).unwrap().of_cell(4, 1);
    let start = |attempt| cell_start(&cell(), attempt);
    assert_eq!(left(vec![]), (0, 2));
    assert_eq!(left(vec![start(0)]), (1, 2), "farmhand died with it: the attempt does not count");
    assert_eq!(left(vec![start(0), end(ExitCause::Interrupted, vec![ReasonCode::Interrupted])]), (1, 2));
    assert_eq!(left(vec![start(0), end(ExitCause::Done, vec![])]), (1, 0));
    let timeout = || end(ExitCause::Timeout { phase: "cell".into(), budget_ms: 1 }, vec![ReasonCode::Timeout]);
    assert_eq!(left(vec![start(0), timeout()]), (1, 1));
    assert_eq!(left(vec![start(0), timeout(), start(1), timeout()]), (2, 0));
    let spoiled = Record::Sample(SampleRecord {
        cell: 4,
        attempt: 0,
        step: 0,
        repetition: 0,
        metric: "m".into(),
        value: Finite::new(1.0),
        validity: Validity::Invalid(ReasonCode::LogitsNotFinite),
    });
    assert_eq!(left(vec![start(0), spoiled, end(ExitCause::Done, vec![])]), (1, 1));
}

#[test]
fn the_journal_of_another_run_or_of_one_that_is_complete_is_refused() {
    let other = DevicePlan { run: "other".into(), ..plan() };
    assert!(Progress::of(&journal(vec![]), &other).unwrap_err().to_string().contains("another run"));
    let complete = journal(vec![Record::JournalEnd { interrupted: false }]);
    assert!(Progress::of(&complete, &plan()).unwrap_err().to_string().contains("complete"));
    assert!(Progress::of(&journal(vec![Record::JournalEnd { interrupted: true }]), &plan()).is_ok());
}
