//! `farmhand run` on the real binary: what a run in good order says, and what it refuses.

mod agent;

use agent::*;
use farmgate_engine::protocol::{ExitCause, Finite, GoldenCase, ReasonCode, Record, Step, Validity};

#[test]
fn a_run_in_good_order_says_everything_once_and_in_order() {
    let steps = vec![
        Step::Load { cold: true },
        Step::WarmUp { prompt_tokens: 4, decode_tokens: 2 },
        Step::Prefill { prompt_tokens: 16, repetitions: 2 },
        Step::Decode { decode_tokens: 8, at_depth: 8, repetitions: 1 },
    ];
    let desk = Desk::new(&plan(vec![cell(0, steps), short(1)]));
    let output = desk.run();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stdout.is_empty(), "stdout is data");

    let records = desk.records();
    let Record::JournalStart { run, agent_sha256, .. } = &records[0] else { panic!("{:?}", records[0]) };
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_farmhand"));
    assert_eq!((run.as_str(), agent_sha256), ("run-1", &farmgate_engine::hash::sha256_file(binary).unwrap()));
    let ends = desk.ends();
    assert_eq!(ends, [(0, 0, ExitCause::Done, vec![]), (1, 0, ExitCause::Done, vec![])]);
    assert_eq!(desk.interrupted(), Some(false));

    let proofs: Vec<_> =
        records.iter().filter_map(|r| if let Record::Proof { proof, .. } = r { Some(proof) } else { None }).collect();
    assert_eq!(proofs.len(), 2);
    assert_eq!(proofs[0].model_sha256, model_ref(&tiny_model()).sha256);
    assert_eq!(&proofs[0].engine_sha256, agent_sha256);
    assert_eq!(proofs[0].threads_effective, 1);
    assert_eq!(proofs[1].eviction, "none");
    assert!(records.iter().any(|r| matches!(r, Record::Telemetry(t) if t.cell == 0 && t.memory.rss_bytes.is_some())));

    let samples = desk.samples();
    let of = |cell: u32, metric: &str| samples.iter().filter(|s| s.cell == cell && s.metric == metric).count();
    assert_eq!(
        [of(0, "load-cold-ms"), of(0, "prefill-tps@16"), of(0, "ttft-ms@16"), of(0, "decode-tps@8")],
        [1, 2, 2, 1]
    );
    assert_eq!([of(1, "load-warm-ms"), of(1, "decode-tps@4"), of(1, "itl-p99-ms@4"), of(1, "peak-rss-mb")], [1; 4]);
    let believed = |s: &&farmgate_engine::protocol::SampleRecord| s.metric != "load-cold-ms";
    assert!(samples.iter().filter(believed).all(|s| s.validity == Validity::Valid && s.value.unwrap().get() > 0.0));
    assert!(!desk.path("pid").exists(), "the pid file goes with its process");
}

#[test]
fn golden_tokens_of_the_trained_model_are_reproduced() {
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/parity/tiny-pd-1.3m.json"),
    )
    .unwrap();
    let known: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect();
    let mut cases: Vec<GoldenCase> = known["files"]["tiny-pd-1.3m-Q8_0.gguf"]["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| GoldenCase {
            name: case["name"].as_str().unwrap().into(),
            prompt: case["prompt"].as_str().unwrap().into(),
            prompt_ids: ids(&case["prompt_ids"]),
            generated_ids: ids(&case["generated_ids"]),
        })
        .collect();
    assert!(cases.len() > 1);
    let good = cell(0, vec![LOAD, Step::Golden { cases: cases.clone() }]);
    cases[0].generated_ids[1] ^= 1;
    let share = 1.0 - 1.0 / cases.len() as f64;
    let bad = cell(1, vec![LOAD, Step::Golden { cases }]);
    let desk = Desk::new(&plan(vec![good, bad]));
    desk.run();

    let samples = desk.samples();
    let ratio = |cell| samples.iter().find(|s| s.cell == cell && s.metric == "golden-match-ratio").unwrap();
    assert_eq!((ratio(0).value, &ratio(0).validity), (Finite::new(1.0), &Validity::Valid));
    assert!((ratio(1).value.unwrap().get() - share).abs() < 1e-9);
    assert_eq!(ratio(1).validity, Validity::Valid);
    let differs = Validity::Invalid(ReasonCode::GoldenTokensDiffer);
    for sample in samples.iter().filter(|s| s.metric != "golden-match-ratio") {
        assert_eq!(
            sample.validity,
            if sample.cell == 0 { Validity::Valid } else { differs.clone() },
            "{}",
            sample.metric
        );
    }
}

#[test]
fn another_model_than_the_plans_is_never_started_and_not_tried_again() {
    let mut wrong = short(0);
    wrong.model.sha256 = vec!["0".repeat(64)];
    let mut with_retries = plan(vec![wrong, short(1)]);
    with_retries.retries_max = 2;
    let desk = Desk::new(&with_retries);
    assert_eq!(desk.run().status.code(), Some(0));
    let ends = desk.ends();
    assert_eq!(ends.len(), 2);
    assert_eq!((ends[0].0, &ends[0].3[..]), (0, &[ReasonCode::ModelHashDiffers][..]));
    let ExitCause::Failed { status: 2, what } = &ends[0].2 else { panic!("{:?}", ends[0].2) };
    assert!(what.contains(&model_ref(&tiny_model()).sha256[0]), "{what}");
    assert_eq!(ends[1].2, ExitCause::Done, "the next cell runs");
}

#[test]
fn a_missing_or_malformed_model_costs_its_cell_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF and then nothing that makes sense").unwrap();
    let mut malformed = short(0);
    malformed.model = model_ref(&broken);
    let mut missing = short(1);
    missing.model.path = folder.path().join("none.gguf").display().to_string();
    let desk = Desk::new(&plan(vec![malformed, missing]));
    assert_eq!(desk.run().status.code(), Some(0));
    let ends = desk.ends();
    let what = |i: usize| match &ends[i].2 {
        ExitCause::Failed { what, .. } => what.clone(),
        other => panic!("{other:?}"),
    };
    assert!(what(0).contains("broken.gguf"), "{}", what(0));
    assert!(what(1).contains("none.gguf"), "{}", what(1));
    assert!(ends.iter().all(|end| end.3 == [ReasonCode::CellDied]));
}

#[test]
fn a_bad_plan_leaves_no_journal() {
    let mut bad = plan(vec![short(0), short(0)]);
    bad.retries_max = 1;
    let desk = Desk::new(&bad);
    let output = desk.run();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cell 0 appears twice"), "{}", stderr(&output));
    assert!(!desk.path("journal").exists());
}

#[test]
fn a_journal_that_is_complete_or_of_another_run_is_left_alone() {
    let desk = Desk::new(&plan(vec![short(0)]));
    desk.run();
    let before = std::fs::read(desk.path("journal")).unwrap();
    let again = desk.run();
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("complete"), "{}", stderr(&again));
    let mut other = plan(vec![short(0)]);
    other.run = "run-2".into();
    desk.put_plan(&other);
    let refused = desk.run();
    assert!(stderr(&refused).contains("another run"), "{}", stderr(&refused));
    assert_eq!(std::fs::read(desk.path("journal")).unwrap(), before);
}

#[test]
fn a_torn_journal_is_continued_behind_its_last_good_line() {
    let desk = Desk::new(&plan(vec![short(0), short(1)]));
    desk.run();
    let whole = std::fs::read_to_string(desk.path("journal")).unwrap();
    // as if the device had died in the middle of the second cell's end
    let at = whole.match_indices("\"cell-end\"").nth(1).unwrap().0 + 5;
    std::fs::write(desk.path("journal"), &whole[..at]).unwrap();
    let output = desk.run();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ends: Vec<(u32, u32)> = desk.ends().iter().map(|end| (end.0, end.1)).collect();
    assert_eq!(ends, [(0, 0), (1, 1)], "the cell that was cut off runs again, the finished one does not");
    assert_eq!(desk.interrupted(), Some(false));
}

#[test]
fn a_full_medium_ends_the_run_with_an_error_and_a_readable_journal() {
    let desk = Desk::new(&plan(vec![endless(0)]));
    // files may grow to 8 KiB; the signal that the kernel sends beyond is ignored, so that the write fails instead
    let script = "ulimit -f 8; trap '' XFSZ; exec \"$0\" \"$@\"";
    let command = desk.command();
    let output = std::process::Command::new("bash")
        .args(["-c", script])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot append to the journal"), "{}", stderr(&output));
    let bytes = std::fs::read(desk.path("journal")).unwrap();
    assert!(!desk.records().is_empty());
    assert_eq!(bytes.last(), Some(&b'\n'), "the half-written line was taken back");
}

#[test]
fn a_plan_file_that_is_gone_does_not_stop_the_run_that_has_read_it() {
    let desk = Desk::new(&plan(vec![endless(0), short(1)]));
    let mut running = desk.start();
    desk.wait_for_proof();
    std::fs::remove_file(desk.path("plan.json")).unwrap();
    signal(child_of(running.pid()), libc::SIGKILL);
    assert_eq!(running.wait().code(), Some(0));
    assert_eq!(desk.ends()[1].2, ExitCause::Done);
}

#[test]
fn exec_alone_prints_its_records_proof_first() {
    let desk = Desk::new(&plan(vec![short(7)]));
    let output = farmhand().args(["exec", "--cell", "7", "--plan"]).arg(desk.path("plan.json")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(records[0], Record::Proof { cell: 7, .. }));
    assert!(records.len() > 4);
    let missing = farmhand().args(["exec", "--cell", "8", "--plan"]).arg(desk.path("plan.json")).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
}
