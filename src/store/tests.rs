//! The journal is the truth: the index can always be made again from it.

use super::*;
use crate::run::{DeviceFacts, HostFacts, ModelFacts};
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{
    Arm, CellPlan, DevicePlan, EngineConfig, ExitCause, Finite, ModelRef, PROTOCOL_VERSION, ReasonCode, Record,
    SampleRecord, TokenTimes, Validity,
};
use std::io::Write;

fn model(letter: char) -> ModelFacts {
    ModelFacts {
        name: "tiny.gguf".into(),
        sha256: vec![letter.to_string().repeat(64)],
        file_bytes: 10,
        weight_bytes: 8,
        architecture: "llama".into(),
        parameters: 4,
        weight_type: "Q8_0".into(),
    }
}

fn manifest(run: &str) -> Manifest {
    Manifest {
        run: RunId::parse(run).unwrap(),
        created: "2026-01-02T03:04:05Z".into(),
        farmgate_version: "0.0.0".into(),
        host: HostFacts::default(),
        scenarios: vec!["smoke".into()],
        candidate: model('a'),
        baseline: None,
        pairs: [("smoke".to_owned(), 2)].into(),
        devices: vec![DeviceFacts { device: "local".into(), ..DeviceFacts::default() }],
        policy: None,
        typed: None,
    }
}

fn cell(cell: u32) -> CellPlan {
    CellPlan {
        cell,
        scenario: "smoke".into(),
        arm: Arm::Candidate,
        pair: cell,
        slot: 0,
        model: ModelRef { path: "/m".into(), sha256: vec!["a".repeat(64)] },
        config: EngineConfig::default(),
        steps: Vec::new(),
        seed: 1,
        load_timeout_ms: 1000,
        cell_timeout_ms: 1000,
        about_heat: false,
    }
}

fn record(seq: u64, record: Record) -> Event {
    Event::DeviceRecord { device: "local".into(), framed: Box::new(Framed { seq, time_us: seq * 10, record }) }
}

fn sample(cell: u32, value: f64, validity: Validity) -> Record {
    Record::Sample(SampleRecord {
        cell,
        attempt: 0,
        step: 1,
        repetition: 0,
        metric: "decode-tps@0".into(),
        value: Finite::new(value),
        validity,
    })
}

fn events() -> Vec<Event> {
    let plan = DevicePlan {
        protocol_version: PROTOCOL_VERSION,
        run: "r1".into(),
        device: "local".into(),
        telemetry_period_ms: 0,
        retries_max: 0,
        lease_token: None,
        ready: farmgate_engine::protocol::ReadyCriteria::default(),
        cells: vec![cell(0), cell(1)],
    };
    let start = |cell| Record::CellStart {
        cell,
        attempt: 0,
        scenario: "smoke".into(),
        arm: Arm::Candidate,
        pair: cell,
        slot: 0,
    };
    let end = |cell, invalid| Record::CellEnd {
        cell,
        attempt: 0,
        exit: ExitCause::Done,
        duration_ms: 5,
        invalid,
        stderr_tail: String::new(),
    };
    vec![
        Event::DevicePlanned { device: "local".into(), plan: Box::new(plan) },
        record(0, start(0)),
        record(1, sample(0, 12.5, Validity::Valid)),
        record(
            2,
            Record::TokenTimes(TokenTimes {
                cell: 0,
                attempt: 0,
                step: 1,
                repetition: 0,
                qualifier: "0".into(),
                itl_us: vec![80_000, 81_000],
                first_eog_index: None,
            }),
        ),
        record(3, end(0, vec![])),
        record(4, start(1)),
        record(5, sample(1, f64::NAN, Validity::Invalid(ReasonCode::NotFinite))),
        record(6, end(1, vec![ReasonCode::GoldenTokensDiffer])),
        Event::RunEnded { state: RunState::Complete },
    ]
}

fn write(results: &Path, run: &str) -> RunData {
    let mut store = Store::open(results).unwrap();
    let mut writer = store.begin(&manifest(run)).unwrap();
    writer.append_all(&events()).unwrap();
    drop(writer);
    store.load(&RunId::parse(run).unwrap()).unwrap()
}

#[test]
fn what_was_appended_is_what_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let run = write(folder.path(), "r1");
    assert_eq!(run.state, RunState::Complete);
    let series = run.series();
    assert_eq!(series.len(), 1);
    let values = &series[0].candidate;
    assert_eq!(values[0].value.as_ref().unwrap().get(), 12.5);
    assert_eq!(values[1].value.as_ref().unwrap_err(), &vec![ReasonCode::GoldenTokensDiffer, ReasonCode::NotFinite]);
    assert_eq!(run.devices[0].cells[0].token_times[0].itl_us, [80_000, 81_000]);
}

#[test]
fn an_index_rebuilt_from_the_journals_equals_the_one_that_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let before = write(folder.path(), "r1");
    write(folder.path(), "r2");
    fs::remove_file(folder.path().join(INDEX_FILE)).unwrap();
    let rebuilt = rebuild(folder.path(), &mut |_| {}).unwrap();
    assert_eq!((rebuilt.runs, rebuilt.damaged.len()), (2, 0));
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(store.load(&before.manifest.run).unwrap(), before);
    assert_eq!(store.find(None).unwrap().as_str(), "r2", "the newest run comes first");
}

#[test]
fn a_torn_journal_keeps_everything_before_the_tear() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "r1");
    let path = folder.path().join("r1").join(journal::FILE_NAME);
    let text = fs::read(&path).unwrap();
    fs::write(&path, &text[..text.len() - 20]).unwrap();
    let rebuilt = rebuild(folder.path(), &mut |_| {}).unwrap();
    assert_eq!(rebuilt.damaged.len(), 1);
    let run = Store::open(folder.path()).unwrap().load(&RunId::parse("r1").unwrap()).unwrap();
    assert_eq!(run.state, RunState::Unfinished, "the end was torn off");
    assert_eq!(run.devices[0].cells.len(), 2);
}

#[test]
fn a_line_that_was_altered_or_left_out_ends_the_reading() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "r1");
    let path = folder.path().join("r1").join(journal::FILE_NAME);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut file = fs::File::create(&path).unwrap();
    for (i, line) in lines.iter().enumerate() {
        if i != 3 {
            writeln!(file, "{line}").unwrap();
        }
    }
    let rebuilt = rebuild(folder.path(), &mut |_| {}).unwrap();
    assert!(rebuilt.damaged[0].1.contains("sequence number"), "{:?}", rebuilt.damaged);
    fs::write(&path, text.replace("12.5", "99.5")).unwrap();
    let rebuilt = rebuild(folder.path(), &mut |_| {}).unwrap();
    assert!(rebuilt.damaged[0].1.contains("crc"), "{:?}", rebuilt.damaged);
}

#[test]
fn an_unknown_run_is_named_with_the_nearest_one() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "nightly-1");
    let store = Store::open(folder.path()).unwrap();
    let error = store.find(Some("nightly-2")).unwrap_err();
    assert!(error.to_string().contains("did you mean `nightly-1`?"), "{error}");
    assert!(store.find(Some("../etc")).is_err());
}

#[test]
fn an_index_that_is_gone_or_empty_is_made_again_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "r1");
    for spoil in [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "").unwrap()] {
        spoil(&folder.path().join(INDEX_FILE));
        for leftover in ["index.sqlite-wal", "index.sqlite-shm"] {
            let _ = fs::remove_file(folder.path().join(leftover));
        }
        assert_eq!(Store::open(folder.path()).unwrap().find(None).unwrap().as_str(), "r1");
    }
}

#[test]
fn a_run_whose_journal_is_gone_or_empty_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "r1");
    fs::create_dir(folder.path().join("20260102-030405")).unwrap();
    fs::create_dir(folder.path().join("20260102-030406")).unwrap();
    fs::write(folder.path().join("20260102-030406").join(journal::FILE_NAME), "").unwrap();
    fs::create_dir(folder.path().join("artefacts")).unwrap();
    let rebuilt = rebuild(folder.path(), &mut |_| {}).unwrap();
    assert_eq!((rebuilt.runs, rebuilt.damaged.len()), (1, 2), "{:?}", rebuilt.damaged);
}
