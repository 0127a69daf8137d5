//! The profile of real passes: what the trace holds, what the tables add up to, and bytes against the model's shapes.

mod agent;

use agent::*;
use farmgate_engine::model::{LoadOptions, Logits, Model, Session};
use farmgate_engine::profile::{Ceilings, Operator, Phase, Profile, rows};
use farmgate_engine::protocol::EngineConfig;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn model_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models").join(file)
}

fn session(file: &str, threads: u32) -> Session {
    let model = Model::load(&model_path(file), &LoadOptions::default()).unwrap();
    let config = EngineConfig { threads, context_tokens: 640, ..EngineConfig::default() };
    Session::new(Arc::new(model), &config).unwrap()
}

/// A prompt of 40 tokens, then 3 single ones.
fn profiled(session: &mut Session) -> Profile {
    session.start_profile();
    session.forward(&(0..40).collect::<Vec<u32>>(), Logits::Last).unwrap();
    for id in 0..3 {
        session.forward(&[id], Logits::Last).unwrap();
    }
    session.take_profile().unwrap()
}

#[test]
fn shares_of_each_phase_sum_to_one_and_bytes_to_those_of_the_operators() {
    let ceilings = Ceilings { read_gb_per_s: 10.0, f32_gflop_per_s: 100.0, int8_gop_per_s: 100.0 };
    for threads in [1, 2] {
        let profile = profiled(&mut session("tiny-gemma3-Q8_0.gguf", threads));
        assert_eq!((profile.passes(Phase::Prefill), profile.passes(Phase::Decode)), ((1, 40), (3, 3)));
        for phase in Phase::ALL {
            let rows = rows(&profile, phase, Some(&ceilings));
            let sum: f64 = rows.iter().map(|r| r.share).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{threads} threads, {}: {sum}", phase.name());
            assert!(rows.iter().all(|r| (0.0..=1.0).contains(&r.share)), "{rows:?}");
            // all operators but sampling, and two kinds of waiting where there is someone to wait for
            assert_eq!(rows.len(), Operator::ALL.len() - 1 + if threads > 1 { 2 } else { 0 });
            let spans = profile.operators.iter().filter(|s| s.phase == phase);
            assert_eq!(rows.iter().map(|r| r.bytes).sum::<u64>(), spans.map(|s| s.cost.bytes()).sum::<u64>());
        }
    }
}

#[test]
fn without_a_profile_there_is_none_and_the_logits_are_the_same() {
    let mut session = session("tiny-llama-Q8_0.gguf", 2);
    assert!(session.take_profile().is_none());
    let ids: Vec<u32> = (0..20).collect();
    let plain = session.forward(&ids, Logits::Last).unwrap().to_vec();
    session.clear();
    session.start_profile();
    assert_eq!(session.forward(&ids, Logits::Last).unwrap(), plain);
    assert_eq!(session.last_logits(), plain);
}

#[test]
fn bytes_and_operations_of_a_decode_pass_are_those_of_its_shapes() {
    // hidden 256, 4 heads and 2 kv heads of 64, ffn 512, vocabulary 512, 2 layers; a Q8_0 row of 256 has 8 blocks of 34
    // bytes; the 5 tokens before and the token itself are seen, as halves
    // rounded, 32 elements are as many codes, a scale and three sums
    let (row, wide_row, hidden, layers) = (272, 544, 4 * 256, 2);
    let (rounded, wide_rounded) = (256 + 8 * 16, 512 + 16 * 16);
    let expected: BTreeMap<&str, (u64, u64, u64)> = [
        ("embedding", (row, 0, hidden)),
        ("attention norm", (layers * hidden, 0, layers * (hidden + rounded))),
        ("qkv", (layers * 512 * row, layers * 2 * 256, layers * (rounded + 4 * 512))),
        ("attention", (0, layers * 6 * 2 * 256, layers * 4 * (256 + 256))),
        // attention's output is read and rounded, the product is added to the residual stream
        ("output projection", (layers * 256 * row, 0, layers * (2 * rounded + 3 * hidden))),
        ("ffn norm", (layers * hidden, 0, layers * (hidden + rounded))),
        ("gate + up", (layers * 1024 * row, 0, layers * (rounded + 4 * 1024 + wide_rounded))),
        ("down", (layers * 256 * wide_row, 0, layers * (wide_rounded + 2 * hidden))),
        ("head norm", (hidden, 0, hidden + rounded)),
        ("head", (512 * row, 0, rounded + 4 * 512)),
    ]
    .into();
    let mut session = session("tiny-llama-Q8_0.gguf", 1);
    session.forward(&[1, 2, 3, 4, 5], Logits::None).unwrap();
    session.start_profile();
    session.forward(&[6], Logits::Last).unwrap();
    let profile = session.take_profile().unwrap();
    let found: BTreeMap<&str, (u64, u64, u64)> = Operator::ALL
        .map(|o| (o.name(), profile.total(Phase::Decode, o).cost))
        .into_iter()
        .filter(|(_, cost)| cost.bytes() > 0)
        .map(|(name, cost)| (name, (cost.weight_bytes, cost.kv_bytes, cost.activation_bytes)))
        .collect();
    assert_eq!(found, expected);
    let operations = |o| {
        let cost = profile.total(Phase::Decode, o).cost;
        (cost.f32_operations, cost.int8_operations)
    };
    assert_eq!(operations(Operator::Qkv), (0, layers * 2 * 512 * 256));
    assert_eq!(operations(Operator::Attention), (layers * 2 * 6 * (256 + 256), 0));
}

#[test]
fn a_layer_of_a_decode_pass_takes_one_region_a_product() {
    let profile = profiled(&mut session("tiny-llama-Q8_0.gguf", 2));
    for operator in Operator::ALL {
        let total = profile.total(Phase::Decode, operator);
        // so few positions are attended to by one worker
        let regions = match operator {
            Operator::Qkv | Operator::OutputProjection | Operator::GateUp | Operator::Down | Operator::Head => 1,
            _ => 0,
        };
        assert_eq!(total.regions, regions * total.calls, "{}", operator.name());
    }
    let prefill = |operator| profile.total(Phase::Prefill, operator).regions;
    // of two layers, the last one's feed-forward part is for one token, which one worker norms
    assert_eq!([Operator::AttentionNorm, Operator::FfnNorm, Operator::Down].map(prefill), [2, 1, 2]);
}

#[test]
fn a_decode_pass_reads_every_weight_of_the_file_once_but_only_a_row_of_the_embedding() {
    for file in ["tiny-pd-1.3m-Q4_K_M.gguf", "tiny-qwen2-Q8_0.gguf", "tiny-qwen3-Q8_0.gguf", "tiny-gemma3-Q8_0.gguf"] {
        let mut session = session(file, 1);
        session.start_profile();
        session.forward(&[3], Logits::Last).unwrap();
        let profile = session.take_profile().unwrap();
        let gguf = session.model().gguf();
        let embedding = gguf.data(gguf.tensor("token_embd.weight").unwrap()).len() as u64;
        // the head is the embedding once more where the file has no other
        let unread = if gguf.tensor("output.weight").is_some() { embedding } else { 0 };
        let expected = session.model().weight_bytes() - unread + embedding / session.model().vocab() as u64;
        let read: u64 = profile.operators.iter().map(|s| s.cost.weight_bytes).sum();
        assert_eq!(read, expected, "{file}");
    }
}

#[test]
fn a_window_bounds_what_attention_reads() {
    let mut session = session("tiny-gemma3-Q8_0.gguf", 1);
    let h = session.model().hyperparameters().clone();
    let window = h.window_tokens.unwrap();
    assert!(h.layers.iter().any(|l| l.local));
    session.forward(&vec![1; window + 20], Logits::None).unwrap();
    session.start_profile();
    session.forward(&[2], Logits::Last).unwrap();
    let profile = session.take_profile().unwrap();
    let spans: Vec<_> = profile.operators.iter().filter(|s| s.operator == Operator::Attention).collect();
    assert_eq!(spans.len(), h.layers.len());
    for (span, layer) in spans.iter().zip(&h.layers) {
        let seen = if layer.local { window } else { window + 21 };
        let position_bytes = layer.kv_heads * (h.key_dim + h.value_dim) * 2;
        assert_eq!(span.cost.kv_bytes, (seen * position_bytes) as u64, "layer {:?}", span.layer);
    }
}

/// Complete events by process and thread.
fn complete(trace: &Value) -> BTreeMap<(u64, u64), Vec<&Value>> {
    let mut out: BTreeMap<(u64, u64), Vec<&Value>> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X") {
        out.entry((event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())).or_default().push(event);
    }
    out
}

#[test]
fn the_trace_of_bench_has_every_operator_and_thread_and_its_spans_nest() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, ceilings) = (folder.path().join("trace.json"), folder.path().join("roofline.json"));
    let measured =
        farmhand().args(["roofline", "-t", "2,1", "-r", "1", "--buffer-mib", "8", "-o", "json"]).output().unwrap();
    assert_eq!(measured.status.code(), Some(0), "{}", stderr(&measured));
    std::fs::write(&ceilings, &measured.stdout).unwrap();
    let model = model_path("tiny-llama-Q8_0.gguf");
    let output = farmhand()
        .args(["bench", "-p", "40", "-n", "4", "-r", "2", "-t", "2", "-o", "json", "-m"])
        .arg(&model)
        .arg("--profile")
        .arg(&trace)
        .arg("--roofline")
        .arg(&ceilings)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "stdout is the rows alone");
    let talk = stderr(&output);
    for text in ["pp40, prefill: 2 passes, 80 tokens, 2 threads", "tg4, decode: 8 passes, 8 tokens, 2 threads"] {
        assert!(talk.contains(text), "{talk}");
    }
    assert!(talk.contains("| synchronisation |") && talk.contains("roofline of 2 threads"), "{talk}");

    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let names =
        trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "M" && e["name"] == "thread_name");
    assert_eq!(
        names.map(|e| e["args"]["name"].as_str().unwrap()).collect::<BTreeSet<_>>(),
        ["worker 0", "worker 1"].into()
    );
    let threads = complete(&trace);
    assert_eq!(threads.keys().copied().collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1), (2, 2)]);
    threads.values().for_each(|events| assert_nested(events));
    // the tokens of a prompt are normed by all workers, a single one by the first alone
    for (pid, passes, normed) in [(1, 2, 40), (2, 8, 0)] {
        let operators: Vec<_> = threads[&(pid, 1)].iter().filter(|e| e["cat"] == "operator").collect();
        let called: BTreeSet<&str> = operators.iter().map(|e| e["name"].as_str().unwrap()).collect();
        // nothing comes between a product of this architecture and the residual stream
        let unused = ["attention residual", "ffn residual", "sampling"];
        let all = Operator::ALL.map(Operator::name).into_iter().filter(|n| !unused.contains(n));
        assert_eq!(called, all.collect());
        let items = |operator: &str| -> u64 {
            let work = [1, 2].iter().flat_map(|&tid| &threads[&(pid, tid)]);
            let of = work.filter(|e| e["cat"] == "work" && e["name"] == operator);
            of.map(|e| e["args"]["items"].as_u64().unwrap()).sum()
        };
        // in 2 layers: 2 heads of keys and of values by themselves, 256 rows of queries in pieces of 32
        assert_eq!(items("qkv"), passes * 2 * (2 + 2 + 8));
        assert_eq!(items("attention norm"), passes * 2 * normed);
    }
}

/// Each event begins after the one before has ended, or lies inside it.
fn assert_nested(events: &[&Value]) {
    let mut events: Vec<(f64, f64)> = events
        .iter()
        .map(|e| (e["ts"].as_f64().unwrap(), e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap()))
        .collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    // half a nanosecond: sums of two microsecond figures
    let slack = 5e-4;
    let mut open: Vec<(f64, f64)> = Vec::new();
    for event in events {
        while open.last().is_some_and(|outer| outer.1 <= event.0 + slack) {
            open.pop();
        }
        if let Some(outer) = open.last() {
            assert!(event.1 <= outer.1 + slack, "{event:?} reaches out of {outer:?}");
        }
        open.push(event);
    }
}

#[test]
fn generate_profiles_sampling_and_says_when_the_roofline_lacks_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, ceilings) = (folder.path().join("trace.json"), folder.path().join("roofline.json"));
    let measured =
        farmhand().args(["roofline", "-t", "2", "-r", "1", "--buffer-mib", "8", "-o", "json"]).output().unwrap();
    std::fs::write(&ceilings, &measured.stdout).unwrap();
    let model = model_path("tiny-pd-1.3m-Q8_0.gguf");
    let command = |extra: &[&str]| {
        let mut command = farmhand();
        command.args(["generate", "-p", "Once upon a time", "-n", "3", "--ignore-eos", "-t", "1", "-m"]).arg(&model);
        command.args(extra).output().unwrap()
    };
    let plain = command(&[]);
    let (trace_arg, ceilings_arg) = (trace.to_str().unwrap(), ceilings.to_str().unwrap());
    let output = command(&["--profile", trace_arg, "--roofline", ceilings_arg]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(output.stdout, plain.stdout);
    assert!(stderr(&output).contains("hint: `farmhand roofline -t 1 -o json`"), "{}", stderr(&output));
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let threads = complete(&trace);
    assert_eq!(threads.keys().copied().collect::<Vec<_>>(), [(1, 1)]);
    assert_nested(&threads[&(1, 1)]);
    let sampled = threads[&(1, 1)].iter().filter(|e| e["name"] == "sampling").count();
    assert_eq!(sampled, 3);
}

#[test]
fn a_profile_that_cannot_be_written_or_compared_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_path("tiny-pd-1.3m-Q8_0.gguf");
    let missing = folder.path().join("none/trace.json");
    let no_profile = [("--roofline", missing.as_path())];
    let nowhere = [("--profile", missing.as_path())];
    let on_stdout = [("--profile", Path::new("-"))];
    let folder_itself = [("--profile", folder.path())];
    for (flags, code, text) in [
        (no_profile, 2, "add --profile FILE"),
        (nowhere, 5, "cannot create the trace"),
        (folder_itself, 5, "cannot create the trace"),
        (on_stdout, 2, "one that is called `-` is `./-`"),
    ] {
        let mut command = farmhand();
        command.args(["generate", "-p", "hi", "-n", "1", "-m"]).arg(&model);
        flags.iter().for_each(|(flag, path)| {
            command.arg(flag).arg(path);
        });
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(stderr(&output).contains(text) && output.stdout.is_empty(), "{}", stderr(&output));
    }
}
