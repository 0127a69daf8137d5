//! What users reported in public about speed and time, played with the real binary. Each test is named after the fact; `E10`
//! and the like are the rows of the collection of reports that the rules were made from.

mod agent;

use agent::*;
use farmgate_engine::protocol::{ExitCause, ReasonCode, Record, Step};
use std::path::Path;
use std::time::Duration;

/// Rows of `farmhand bench` on the small model.
fn bench(args: &[&str]) -> Vec<serde_json::Value> {
    let mut command = farmhand();
    command.args(["bench", "-r", "1", "-o", "jsonl", "--no-model-hash", "-m"]).arg(tiny_model()).args(args);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

// E10
#[test]
fn a_depth_sweep_has_a_row_for_each_depth_with_its_real_positions_and_its_ratio_to_the_first() {
    let rows = bench(&["-t", "1", "-p", "16", "-n", "8", "-d", "0,64,448"]);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| ["n_prompt", "n_gen", "n_depth", "n_positions"].map(|field| row[field].as_u64().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [[16, 0, 0, 16], [0, 8, 0, 8], [16, 0, 64, 80], [0, 8, 64, 72], [16, 0, 448, 464], [0, 8, 448, 456]]
    );
    for (row, first) in rows.iter().zip([0, 1, 0, 1, 0, 1]) {
        let speed = |row: &serde_json::Value| row["avg_ts"].as_f64().unwrap();
        let ratio = row["ratio_to_first"].as_f64().unwrap();
        assert!((ratio - speed(row) / speed(&rows[first])).abs() < 1e-9, "{row}");
    }
    let mut command = farmhand();
    command.args(["bench", "-r", "1", "-p", "0", "-n", "4", "-d", "0,32", "-t", "1", "-m"]).arg(tiny_model());
    let table = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(table.starts_with("| model | size | params | threads | mmap | test | t/s | ratio |\n"), "{table}");
    assert!(table.lines().nth(2).unwrap().ends_with(" 1.00 |") && table.contains("| tg4 @ d32 |"), "{table}");
}

#[test]
fn a_bench_with_a_kv_policy_keeps_what_the_policy_says_and_proves_it() {
    let bytes = |row: &serde_json::Value| row["memory"]["kv_bytes"].as_u64().unwrap();
    let args = ["-t", "1", "-p", "0", "-n", "8", "-d", "2040", "-ctv", "q8_0"];
    let full = &bench(&args)[0];
    let window = &bench(&[&args[..], &["--kv-policy", "window:64"]].concat())[0];
    assert_eq!((&full["kv_policy"], &window["kv_policy"]), (&"full".into(), &"window:64".into()));
    assert_eq!(window["proof"]["config"]["kv-policy"], "window:64");
    assert_eq!(window["proof"]["config"]["kv-type-v"], "q8_0");
    assert!(bytes(window) < bytes(full), "{} and {} bytes", bytes(window), bytes(full));
    let unknown = farmhand().args(["bench", "--kv-policy", "ring:3", "-m"]).arg(tiny_model()).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("unknown kv policy `ring:3`"), "{}", stderr(&unknown));
}

#[test]
fn a_pipe_is_no_model_and_nobody_waits_for_its_writer() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.gguf");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the name is a C string that outlives the call
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let refused = |args: &[&str]| {
        let mut running = Running { process: farmhand().args(args).arg(&pipe).spawn().unwrap() };
        assert_eq!(running.wait().code(), Some(2), "{args:?}");
    };
    refused(&["generate", "-p", "a", "-m"]);
    refused(&["bench", "-m"]);
    refused(&["warm", "-m"]);
    let mut of_pipe = short(0);
    of_pipe.model.path = pipe.display().to_string();
    let desk = Desk::new(&plan(vec![of_pipe]));
    assert_eq!(desk.start().wait().code(), Some(0), "a cell that cannot run is a finding");
    let (_, _, exit, invalid) = desk.ends().remove(0);
    assert!(matches!(exit, ExitCause::Failed { what, .. } if what.contains("not a regular file")));
    assert_eq!(invalid, [ReasonCode::CellDied]);
}

/// Stops a process of ours for a while.
fn hold(pid: u32, how_long: Duration) {
    signal(pid, libc::SIGSTOP);
    std::thread::sleep(how_long);
    signal(pid, libc::SIGCONT);
}

// E32
#[test]
fn a_disturbance_in_the_middle_of_a_decode_shows_in_the_tail_of_the_token_times_and_not_in_the_median() {
    const HELD_MS: u64 = 200;
    let desk =
        Desk::new(&plan(vec![cell(0, vec![LOAD, Step::Decode { decode_tokens: 400, at_depth: 0, repetitions: 60 }])]));
    let mut running = desk.start();
    desk.wait_for("the first decode", |r| matches!(r, Record::TokenTimes(_)));
    let child = child_of(running.pid());
    // one may fall between two decodes, where nothing is being timed
    for _ in 0..3 {
        hold(child, Duration::from_millis(HELD_MS));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(running.wait().code(), Some(0));
    let samples = desk.samples();
    let of = |metric: &str| -> Vec<f64> {
        samples.iter().filter(|s| s.metric == metric).map(|s| s.value.unwrap().get()).collect()
    };
    let (median, longest) = (of("itl-p50-ms@0"), of("itl-max-ms@0"));
    let (percentile_95, percentile_99) = (of("itl-p95-ms@0"), of("itl-p99-ms@0"));
    assert_eq!([median.len(), percentile_95.len(), percentile_99.len(), longest.len()], [60; 4]);
    let hit = (0..60).find(|&i| longest[i] >= HELD_MS as f64).expect("the disturbance shows in a longest time");
    assert!(median[hit] < longest[hit] / 10.0, "median {} ms, longest {} ms", median[hit], longest[hit]);
    for i in 0..60 {
        let rising = [median[i], percentile_95[i], percentile_99[i], longest[i]];
        assert!(rising.is_sorted(), "{rising:?}");
    }
}

// E1
#[test]
fn a_cell_that_makes_no_headway_is_cut_off_at_its_budget_and_says_how_slow_it_was() {
    let mut slow = endless(0);
    slow.cell_timeout_ms = 1_000;
    let desk = Desk::new(&plan(vec![slow, short(1)]));
    let mut running = desk.start();
    desk.wait_for_proof();
    // a hundred times slower than it should be, or worse: it gets no time at all
    signal(child_of(running.pid()), libc::SIGSTOP);
    assert_eq!(running.wait().code(), Some(0));
    let ends = desk.ends();
    assert_eq!(ends[0].2, ExitCause::Timeout { phase: "cell".into(), budget_ms: 1_000 });
    assert_eq!(ends[0].3, [ReasonCode::Timeout]);
    assert_eq!(ends[1].2, ExitCause::Done, "the next cell runs");
    let said = desk.records().into_iter().find_map(|record| match record {
        Record::CellEnd { cell: 0, stderr_tail, .. } => Some(stderr_tail),
        _ => None,
    });
    let said = said.unwrap();
    assert!(said.contains("4000000 generated tokens did not come within 1000 ms"), "{said}");
    assert!(said.contains("slower than 4000000.0 token/s"), "{said}");
}

// E31
#[test]
fn a_load_that_takes_too_long_is_ended_with_its_size_and_rate() {
    let mut slow = endless(0);
    slow.load_timeout_ms = 1;
    let bytes = std::fs::metadata(Path::new(&slow.model.path)).unwrap().len();
    let desk = Desk::new(&plan(vec![slow]));
    desk.run();
    let (_, _, exit, invalid) = desk.ends().remove(0);
    let ExitCause::Timeout { phase, budget_ms } = exit else { panic!("{exit:?}") };
    assert_eq!((phase.as_str(), invalid), ("load", vec![ReasonCode::Timeout]));
    let Some(Record::CellEnd { stderr_tail, .. }) = desk.records().into_iter().rev().nth(1) else { panic!() };
    let rate = bytes as f64 / budget_ms as f64 / 1e3;
    let expected = format!("the load of {bytes} bytes did not end within {budget_ms} ms: slower than {rate:.1} MB/s");
    assert!(stderr_tail.contains(&expected) && stderr_tail.contains("hint: "), "{stderr_tail}");
}

// E23
#[test]
fn a_real_decode_says_which_part_of_the_memory_bandwidth_it_used() {
    let mut decode = cell(0, vec![LOAD, Step::Decode { decode_tokens: 64, at_depth: 16, repetitions: 5 }]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("noise.gguf");
    let shape = "layers=6,hidden=768,ffn=2048,heads=12,kv-heads=4,vocab=4096";
    let shape = farmgate_engine::synth::Shape::parse(shape).unwrap();
    farmgate_engine::synth::write(&shape, "Q4_0", 1, &path).unwrap();
    decode.model = model_ref(&path);
    let desk = Desk::new(&plan(vec![decode]));
    assert_eq!(desk.run().status.code(), Some(0));
    let records = desk.records();
    let proof = records.iter().find_map(|r| if let Record::Proof { proof, .. } = r { Some(proof) } else { None });
    let bandwidth = proof.unwrap().read_bandwidth_gb_per_s.expect("measured before the cell").get();
    assert!(bandwidth > 0.0);
    let samples = desk.samples();
    let of = |metric: &str| -> Vec<f64> {
        samples.iter().filter(|s| s.metric == metric).map(|s| s.value.unwrap().get()).collect()
    };
    let (mbu, speed) = (of("mbu@16"), of("decode-tps@16"));
    assert_eq!((mbu.len(), speed.len()), (5, 5));
    let weights = proof.unwrap().weight_bytes as f64;
    for (mbu, speed) in mbu.iter().zip(speed) {
        assert!(0.0 < *mbu && *mbu <= 1.2, "{mbu}");
        let bytes_per_token = mbu * bandwidth * 1e9 / speed;
        // a row of the embedding is read instead of all of it, keys and values come on top
        assert!((0.5..1.5).contains(&(bytes_per_token / weights)), "{bytes_per_token} bytes of {weights} a token");
    }
}
