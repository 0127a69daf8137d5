use super::*;
use crate::kv_cache::KvPolicy;
use crate::model::LoadOptions;
use std::path::Path;

fn model(file: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models").join(file);
    Arc::new(Model::load(&path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}")))
}

fn config(context_tokens: u32) -> EngineConfig {
    EngineConfig { threads: 1, context_tokens, ..EngineConfig::default() }
}

fn ids(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 7 + i * seed + 3) % 500).collect()
}

/// `n` tokens after the session's prompt, each the likeliest.
fn greedy(session: &mut Session, first: u32, n: usize) -> (Vec<u32>, Vec<f32>) {
    let (mut out, mut all) = (vec![first], Vec::new());
    for _ in 0..n {
        let logits = session.forward(&out[out.len() - 1..], Logits::Last).unwrap();
        all.extend_from_slice(logits);
        out.push(vector::argmax(Isa::Scalar, logits) as u32);
    }
    (out, all)
}

#[test]
fn a_ring_for_window_layers_changes_nothing() {
    let model = model("tiny-gemma3-Q8_0.gguf");
    assert_eq!(model.hyperparameters().window_tokens, Some(128));
    let options = CacheOptions::default();
    // batches of 16 make a ring of 4 pages; with batches of 512 the whole context is held
    let mut ring = Session::build(model.clone(), &config(768), &options, 16).unwrap();
    let mut whole = Session::build(model, &config(768), &options, 512).unwrap();
    for batch in ids(500, 1).chunks(16) {
        let from_ring = ring.forward(batch, Logits::All).unwrap();
        let from_whole = whole.forward(batch, Logits::All).unwrap();
        assert!(from_ring == from_whole, "logits differ at {}", ring.depth());
    }
    let (a, b) = (greedy(&mut ring, 5, 200), greedy(&mut whole, 5, 200));
    assert_eq!(a.0, b.0);
    assert!(a.1 == b.1, "logits of generated tokens differ");
    // (128 + 16) / 64 and two borders; 700 tokens fill 11 pages
    assert_eq!(ring.kv_bytes() * 11, whole.kv_bytes() * 4);
    assert_eq!(ring.kv_bytes(), ring.kv_bytes_max());
}

#[test]
fn a_prefix_that_is_held_need_not_be_run_again() {
    for file in ["tiny-pd-1.3m-Q8_0.gguf", "tiny-gemma3-Q8_0.gguf"] {
        let model = model(file);
        let mut session = Session::new(model.clone(), &config(600)).unwrap();
        session.forward(&ids(300, 1), Logits::None).unwrap();
        let mut turn = ids(200, 1);
        turn.extend(ids(70, 2));
        assert_eq!(session.reuse_prefix(&turn), 200, "{file}");
        let reused = session.forward(&turn[200..], Logits::Last).unwrap().to_vec();

        let mut fresh = Session::new(model, &config(600)).unwrap();
        fresh.forward(&ids(300, 1)[..200], Logits::None).unwrap();
        let scratch = fresh.forward(&turn[200..], Logits::Last).unwrap();
        assert!(reused == scratch, "{file}: other logits than from scratch");
        fresh.clear();
        let at_once = fresh.forward(&turn, Logits::Last).unwrap();
        let worst = reused.iter().zip(at_once).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst < 0.05, "{file}: {worst} off what one batch says");

        // what is held already runs its last token again, and nothing is held of what is new
        assert_eq!(session.reuse_prefix(&turn), 269);
        assert_eq!(session.reuse_prefix(&[499, 1]), 0);
        assert_eq!((session.depth(), session.reuse_prefix(&[])), (0, 0));
    }
}

#[test]
fn a_window_that_cannot_go_back_starts_afresh() {
    let policy = KvPolicy::Window { last_tokens: 100 };
    let options = CacheOptions { policy, ..CacheOptions::default() };
    let mut session = Session::build(model("tiny-pd-1.3m-Q8_0.gguf"), &config(128), &options, 16).unwrap();
    let first = session.forward(&ids(20, 1), Logits::Last).unwrap().to_vec();
    session.forward(&ids(400, 2), Logits::None).unwrap();
    assert_eq!(session.depth(), 420);
    assert_eq!(session.reuse_prefix(&ids(20, 1)), 0);
    assert!(session.forward(&ids(20, 1), Logits::Last).unwrap() == first, "traces of what was forgotten");
    // what is remembered ends with the context; a longer prefix is not claimed
    let long = ids(200, 3);
    session.clear();
    session.forward(&long, Logits::None).unwrap();
    assert!(session.reuse_prefix(&long) <= 128);
}

#[test]
fn generation_goes_on_past_the_context_when_the_policy_forgets() {
    let model = model("tiny-pd-1.3m-Q8_0.gguf");
    let of = |policy, context| {
        let options = CacheOptions { policy, ..CacheOptions::default() };
        Session::build(model.clone(), &config(context), &options, 64).unwrap()
    };
    let mut full = of(KvPolicy::Full, 64);
    full.forward(&ids(60, 1), Logits::None).unwrap();
    assert_eq!(full.room_tokens(), 4);
    assert!(full.forward(&ids(5, 1), Logits::None).unwrap_err().what().contains("context of 64"));

    let sink = KvPolicy::Sink { first_tokens: 4, last_tokens: 60 };
    for policy in [sink, KvPolicy::Window { last_tokens: 64 }] {
        let mut session = of(policy, 64);
        session.forward(&ids(60, 1), Logits::None).unwrap();
        let (_, logits) = greedy(&mut session, 5, 400);
        assert_eq!(session.depth(), 460);
        assert!(session.logits_finite() && logits.iter().all(|v| v.is_finite()));
        assert_eq!(session.kv_bytes(), session.kv_bytes_max());
    }

    // as long as nothing was forgotten, nothing differs
    let (mut full, mut window) = (of(KvPolicy::Full, 300), of(KvPolicy::Window { last_tokens: 300 }, 300));
    for session in [&mut full, &mut window] {
        session.forward(&ids(60, 1), Logits::None).unwrap();
    }
    assert_eq!(greedy(&mut full, 5, 200), greedy(&mut window, 5, 200));
}

#[test]
fn coded_caches_stay_close_to_half_precision() {
    let model = model("tiny-pd-1.3m-Q8_0.gguf");
    let logits = |key_type, value_type| {
        let options = CacheOptions { key_type, value_type, ..CacheOptions::default() };
        let mut session = Session::with_cache(model.clone(), &config(256), &options).unwrap();
        session.forward(&ids(200, 1), Logits::None).unwrap();
        let mut all = session.forward(&[7], Logits::Last).unwrap().to_vec();
        all.extend_from_slice(session.forward(&ids(9, 3), Logits::Last).unwrap());
        assert!(session.logits_finite());
        (all, session.kv_bytes())
    };
    use crate::protocol::KvType::{F16, Q4_0, Q8_0};
    let (real, bytes) = logits(F16, F16);
    let size = (real.iter().map(|v| v * v).sum::<f32>() / real.len() as f32).sqrt();
    for (key_type, value_type, share, within) in
        [(Q8_0, Q8_0, (34, 64), 0.05), (Q8_0, Q4_0, (26, 64), 0.2), (Q4_0, Q4_0, (18, 64), 0.4)]
    {
        let (coded, coded_bytes) = logits(key_type, value_type);
        let squares: f32 = coded.iter().zip(&real).map(|(a, b)| (a - b) * (a - b)).sum();
        let error = (squares / real.len() as f32).sqrt() / size;
        assert!(error < within, "{key_type:?} {value_type:?}: {error}");
        assert!(error > 0.0 && coded_bytes * share.1 == bytes * share.0);
    }
}

#[test]
fn which_logits_are_wanted_changes_nothing_in_the_cache() {
    for file in ["tiny-pd-1.3m-Q8_0.gguf", "tiny-gemma3-Q8_0.gguf", "tiny-qwen2-Q8_0.gguf"] {
        let model = model(file);
        let after = |which| {
            let mut session = Session::build(model.clone(), &config(256), &CacheOptions::default(), 32).unwrap();
            // two batches and a part of one
            let of_prompt = session.forward(&ids(75, 1), which).unwrap().to_vec();
            (of_prompt, session.forward(&[7], Logits::Last).unwrap().to_vec())
        };
        let ((none, a), (last, b), (all, c)) = (after(Logits::None), after(Logits::Last), after(Logits::All));
        assert!(none.is_empty() && a == b && b == c, "{file}: the next token's logits differ");
        let of_all = &all[all.len() - last.len()..];
        let worst = last.iter().zip(of_all).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst < 0.05, "{file}: {worst} between the last logits alone and the last of all");
    }
}

#[test]
fn gate_and_up_may_want_their_inputs_in_different_formats() {
    use crate::gguf::{Gguf, LoadMode, TensorType, Writer};
    let folder = tempfile::tempdir().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/tiny-pd-1.3m-Q8_0.gguf");
    let gguf = Gguf::open(&path, LoadMode::Map).unwrap();
    let mut writer = Writer::new(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        let (mut tensor_type, mut bytes) = (tensor.tensor_type, gguf.data(tensor).to_vec());
        if tensor.name.contains("ffn_up") {
            // the same numbers as floats, for which activations are not rounded
            let mut floats = vec![0.0; tensor.elements() as usize];
            crate::quant::dequantise_row(tensor_type, &bytes, &mut floats);
            (tensor_type, bytes) = (TensorType::F32, floats.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
        writer.tensor_bytes(&tensor.name, &tensor.shape, tensor_type, bytes).unwrap();
    }
    let mixed = folder.path().join("mixed.gguf");
    writer.write(&mixed).unwrap();
    let logits = |path: &Path, threads| {
        let model = Arc::new(Model::load(path, &LoadOptions::default()).unwrap());
        let config = EngineConfig { threads, ..config(64) };
        let mut session = Session::new(model, &config).unwrap();
        let mut all = session.forward(&ids(30, 1), Logits::Last).unwrap().to_vec();
        all.extend_from_slice(session.forward(&[7], Logits::Last).unwrap());
        all
    };
    let (plain, mixed, by_two) = (logits(&path, 1), logits(&mixed, 1), logits(&mixed, 2));
    assert!(mixed == by_two, "another number of threads, other logits");
    let squares: f32 = mixed.iter().zip(&plain).map(|(a, b)| (a - b) * (a - b)).sum();
    let relative = (squares / plain.iter().map(|v| v * v).sum::<f32>()).sqrt();
    assert!(relative > 0.0 && relative < 0.05, "{relative}");
}
