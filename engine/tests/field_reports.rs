//! What users of such tools reported in public, played with real model files that were cut, joined or altered. Each test is
//! named after the fact; `E13` and the like are the rows of the collection of reports that the rules were made from.

mod agent;

use agent::*;
use farmgate_engine::gguf::{Gguf, LoadMode, Metadata, TensorType, Value, Writer};
use farmgate_engine::kernels::{Isa, strips_bytes};
use farmgate_engine::model::{LoadOptions, Logits, Model, Session};
use farmgate_engine::protocol::{EngineConfig, GoldenCase, ReasonCode, Record, Repack, Step, Validity};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Remembers the largest piece of memory that each thread asked for.
struct Watching;

thread_local! {
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything on to the system's allocator; only remembers sizes.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST_BYTES.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(data, layout) }
    }
    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = LARGEST_BYTES.try_with(|largest| largest.set(largest.get().max(size)));
        // SAFETY: as above.
        unsafe { System.realloc(data, layout, size) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models")
}

fn llama() -> PathBuf {
    models_folder().join("tiny-llama-Q4_K.gguf")
}

/// What is said about a file of these bytes, by the reader and by the binary, which must exit with 2 and not abort.
fn refusal(bytes: &[u8], name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let error = Model::load(&path, &LoadOptions::default()).err().expect("the file must be refused").to_string();
    assert!(error.contains(name), "the error does not name the file: {error}");
    let output = farmhand().args(["generate", "-p", "a", "-m"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains(&error), "{}", stderr(&output));
    error
}

fn position(bytes: &[u8], of: &[u8]) -> usize {
    bytes.windows(of.len()).position(|w| w == of).unwrap()
}

// E13
#[test]
fn an_empty_key_is_refused_with_its_offset() {
    let whole = std::fs::read(llama()).unwrap();
    for at in [24, position(&whole, b"llama.block_count") - 8, position(&whole, b"tokenizer.ggml.model") - 8] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].fill(0);
        let error = refusal(&bytes, "empty-key.gguf");
        assert!(error.contains("the name is empty") && error.contains(&format!("byte {at}, ")), "{at}: {error}");
    }
}

// E14
#[test]
fn a_huge_length_takes_no_memory() {
    const BYTES_MAX: usize = 4 << 20;
    let whole = std::fs::read(llama()).unwrap();
    let of_key = position(&whole, b"general.architecture") - 8;
    let of_text = position(&whole, b"general.architecture") + "general.architecture".len() + 4;
    let of_array = position(&whole, b"tokenizer.ggml.tokens") + "tokenizer.ggml.tokens".len() + 8;
    let of_tensor_name = position(&whole, b"token_embd.weight") - 8;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.gguf");
    for at in [8, 16, of_key, of_text, of_array, of_tensor_name] {
        for huge in [u64::MAX, 1 << 63, 1 << 40, 1 << 32, (1 << 32) - 1] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&huge.to_le_bytes());
            std::fs::write(&path, &bytes).unwrap();
            LARGEST_BYTES.set(0);
            let error = Model::load(&path, &LoadOptions::default()).err().expect("refused").to_string();
            let largest = LARGEST_BYTES.get();
            assert!(largest < BYTES_MAX, "byte {at}, {huge}: {largest} bytes were asked for");
            assert!(error.contains(&format!("byte {at}, ")) || error.contains("byte "), "{error}");
        }
    }
    LARGEST_BYTES.set(0);
    drop(vec![0u8; 2 * BYTES_MAX]);
    assert!(LARGEST_BYTES.get() >= 2 * BYTES_MAX, "the watch does not see what is asked for");
}

/// A copy of a model with other metadata and, perhaps, other bytes in its tensors.
fn altered(
    path: &Path,
    folder: &Path,
    metadata: impl Fn(&Metadata) -> Metadata,
    weights: impl Fn(&str, &mut Vec<u8>),
) -> PathBuf {
    let gguf = Gguf::open(path, LoadMode::Map).unwrap();
    let mut writer = Writer::new(metadata(gguf.metadata()));
    for tensor in gguf.tensors() {
        let mut bytes = gguf.data(tensor).to_vec();
        weights(&tensor.name, &mut bytes);
        writer.tensor_bytes(&tensor.name, &tensor.shape, tensor.tensor_type, bytes).unwrap();
    }
    let copy = folder.join("altered.gguf");
    writer.write(&copy).unwrap();
    copy
}

fn with(old: &Metadata, key: &str, value: Value) -> Metadata {
    let mut new = old.clone();
    new.set(key, value);
    new
}

fn as_it_was(_: &str, _: &mut Vec<u8>) {}

/// Bits of the logits after a few tokens, with these ways of loading.
fn logits(path: &Path, mmap: bool) -> Vec<u32> {
    let model = Model::load(path, &LoadOptions { mmap, isa: None }).unwrap_or_else(|e| panic!("{e}"));
    let config = EngineConfig { threads: 1, context_tokens: 32, mmap, ..EngineConfig::default() };
    let mut session = Session::new(Arc::new(model), &config).unwrap();
    session.forward(&[3, 1, 4, 1, 5, 9, 2, 6], Logits::Last).unwrap().iter().map(|x| x.to_bits()).collect()
}

fn said(path: &Path) -> String {
    Model::load(path, &LoadOptions::default()).err().expect("the file must be refused").to_string()
}

// E16
#[test]
fn an_array_per_layer_stands_for_a_number_where_layers_may_differ_and_is_named_where_not() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = Gguf::open(&llama(), LoadMode::Map).unwrap().metadata().clone();
    let number = |key: &str| metadata.u64(key).unwrap().unwrap();
    let layers = number("llama.block_count") as usize;
    for key in ["llama.attention.head_count", "llama.attention.head_count_kv", "llama.feed_forward_length"] {
        let array = |n: usize| Value::Integers(vec![number(key) as i64; n]);
        let path = altered(&llama(), folder.path(), |old| with(old, key, array(layers)), as_it_was);
        assert_eq!(logits(&path, true), logits(&llama(), true), "{key}");
        let path = altered(&llama(), folder.path(), |old| with(old, key, array(layers + 1)), as_it_was);
        let error = said(&path);
        assert!(
            error.contains(&format!("{} values for {layers} layers", layers + 1)) && error.contains(key),
            "{error}"
        );
    }
    for key in ["llama.block_count", "llama.embedding_length", "llama.context_length"] {
        let array = Value::Integers(vec![number(key) as i64; layers]);
        let path = altered(&llama(), folder.path(), |old| with(old, key, array.clone()), as_it_was);
        let error = said(&path);
        assert!(error.contains(&format!("`{key}` is an array of integers, expected an unsigned integer")), "{error}");
        assert!(error.contains("hint: "), "{error}");
    }
}

// E17
#[test]
fn general_keys_that_are_missing_or_odd_change_nothing_but_the_architecture_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let bare = |old: &Metadata| {
        let mut new = Metadata::new();
        let kept = |key: &str| !key.starts_with("general.") || key == "general.architecture";
        old.iter().filter(|(key, _)| kept(key)).for_each(|(key, value)| new.set(key, value.clone()));
        new
    };
    let odd = |old: &Metadata| {
        let mut new = bare(old);
        new.set("general.name", Value::Unsigned(7));
        new.set("general.file_type", Value::String("mostly something".into()));
        new.set("general.quantization_version", Value::Floats(vec![2.5]));
        new.set("general.languages", Value::Strings(Vec::new()));
        new.set("general.parameter_count", Value::Negative(-1));
        new.set("general.size_label", Value::Bool(true));
        new
    };
    let expected = logits(&llama(), true);
    for change in [&bare as &dyn Fn(&Metadata) -> Metadata, &odd] {
        let path = altered(&llama(), folder.path(), change, as_it_was);
        assert_eq!(logits(&path, true), expected);
        let output =
            farmhand().args(["bench", "-p", "4", "-n", "0", "-r", "1", "-o", "json", "-m"]).arg(&path).output();
        assert_eq!(output.unwrap().status.code(), Some(0), "whoever only prints such keys must not fail on them");
    }
    let without = |old: &Metadata| {
        let mut new = Metadata::new();
        let all = old.iter().filter(|(key, _)| *key != "general.architecture");
        all.for_each(|(key, value)| new.set(key, value.clone()));
        new
    };
    let error = said(&altered(&llama(), folder.path(), without, as_it_was));
    assert!(error.contains("`general.architecture` is missing"), "{error}");
    let number = |old: &Metadata| with(old, "general.architecture", Value::Unsigned(1));
    let error = said(&altered(&llama(), folder.path(), number, as_it_was));
    assert!(error.contains("`general.architecture` is an unsigned integer, expected a string"), "{error}");
}

/// The model in three files, as `gguf-split` writes them. Returns their paths.
fn shards(model: &Path, folder: &Path) -> [PathBuf; 3] {
    let gguf = Gguf::open(model, LoadMode::Map).unwrap();
    let per_file = gguf.tensors().len().div_ceil(3);
    [0usize, 1, 2].map(|number| {
        let mut metadata = if number == 0 { gguf.metadata().clone() } else { Metadata::new() };
        metadata.set("split.no", Value::Unsigned(number as u64));
        metadata.set("split.count", Value::Unsigned(3));
        metadata.set("split.tensors.count", Value::Unsigned(gguf.tensors().len() as u64));
        let mut writer = Writer::new(metadata);
        for tensor in gguf.tensors().iter().skip(number * per_file).take(per_file) {
            let bytes = gguf.data(tensor).to_vec();
            writer.tensor_bytes(&tensor.name, &tensor.shape, tensor.tensor_type, bytes).unwrap();
        }
        let path = folder.join(format!("m-{:05}-of-00003.gguf", number + 1));
        writer.write(&path).unwrap();
        path
    })
}

// E19
#[test]
fn a_split_model_is_whole_whichever_shard_is_named_and_refused_when_one_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let files = shards(&llama(), folder.path());
    let expected = logits(&llama(), true);
    for file in &files {
        assert_eq!(logits(file, true), expected, "{}", file.display());
        assert_eq!(logits(file, false), expected, "{} read into memory", file.display());
    }
    // a shard under the name of a whole model: the second, the largest, the first
    for file in &files {
        let alone = folder.path().join("whole.gguf");
        std::fs::copy(file, &alone).unwrap();
        let error = said(&alone);
        assert!(error.contains("belongs to a set of 3 files, but 1 were found"), "{error}");
    }
    // a shard twice, under two numbers
    let second = std::fs::read(&files[1]).unwrap();
    std::fs::copy(&files[0], &files[1]).unwrap();
    assert!(said(&files[0]).contains("says it is part 0 (from 0), its name says 1"));
    std::fs::write(&files[1], &second[..second.len() - 40]).unwrap();
    assert!(said(&files[2]).contains("m-00002-of-00003.gguf"), "the shard that was cut short is named");
    std::fs::remove_file(&files[1]).unwrap();
    for file in [&files[0], &files[2]] {
        let error = said(file);
        assert!(error.contains("lacks m-00002-of-00003.gguf") && error.contains("hint: "), "{error}");
    }
}

// E19: the plan's hashes, one for each file
#[test]
fn a_shard_that_was_exchanged_is_noticed_by_its_hash() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = shards(&llama(), folder.path());
    let others = shards(&models_folder().join("tiny-llama-Q8_0.gguf"), other.path());
    let hash = |path: &PathBuf| farmgate_engine::hash::sha256_file(path).unwrap();
    let mut whole = cell(0, vec![LOAD, Step::Decode { decode_tokens: 4, at_depth: 0, repetitions: 1 }]);
    whole.model.path = files[0].display().to_string();
    whole.model.sha256 = files.iter().map(hash).collect();
    let mut first_only = whole.clone();
    (first_only.cell, first_only.model.sha256) = (1, whole.model.sha256[..1].to_vec());
    let desk = Desk::new(&plan(vec![whole.clone(), first_only]));
    assert_eq!(desk.run().status.code(), Some(0));
    let ends = desk.ends();
    assert_eq!(ends[0].3, [], "{:?}", ends[0]);
    assert!(!ends[1].3.is_empty(), "one hash for three files: {:?}", ends[1]);

    std::fs::copy(&others[1], &files[1]).unwrap();
    let desk = Desk::new(&plan(vec![whole]));
    desk.run();
    assert_eq!(desk.ends()[0].3, [ReasonCode::ModelHashDiffers]);
    assert!(desk.samples().is_empty(), "nothing is measured on it");
}

// E20
#[test]
fn files_joined_with_cat_are_refused_with_the_byte_where_the_second_begins() {
    let folder = tempfile::tempdir().unwrap();
    let files = shards(&llama(), folder.path());
    let bytes = |path: &PathBuf| std::fs::read(path).unwrap();
    let set = files.iter().flat_map(bytes).collect::<Vec<u8>>();
    let error = refusal(&set, "joined.gguf");
    let first = bytes(&files[0]).len();
    assert!(error.contains("joined with cat") && error.contains(&format!("byte {first}")), "{error}");
    let whole = std::fs::read(llama()).unwrap();
    let twice = [whole.clone(), whole.clone()].concat();
    assert!(refusal(&twice, "twice.gguf").contains(&format!("byte {}", whole.len())));
    // padded to a block in between, as some tools do
    let padded = [whole.clone(), vec![0; 4096], whole].concat();
    assert!(refusal(&padded, "padded.gguf").contains("joined with cat"));
}

/// Recorded answers of the trained model.
fn golden() -> Vec<GoldenCase> {
    let text = std::fs::read_to_string(models_folder().join("../parity/tiny-pd-1.3m.json")).unwrap();
    let known: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect();
    let cases = known["files"]["tiny-pd-1.3m-Q8_0.gguf"]["cases"].as_array().unwrap();
    let text = |v: &serde_json::Value| v.as_str().unwrap().to_owned();
    let of = |case: &serde_json::Value| GoldenCase {
        name: text(&case["name"]),
        prompt: text(&case["prompt"]),
        prompt_ids: ids(&case["prompt_ids"]),
        generated_ids: ids(&case["generated_ids"]),
    };
    cases.iter().map(of).collect()
}

/// Runs golden cases and a decode on a model; the share of cases that match, and whether any other sample is believed.
fn golden_share(path: &Path) -> (f64, bool) {
    let decode = Step::Decode { decode_tokens: 4, at_depth: 4, repetitions: 1 };
    let mut cell = cell(0, vec![LOAD, decode, Step::Golden { cases: golden() }]);
    cell.model = model_ref(path);
    let desk = Desk::new(&plan(vec![cell]));
    assert_eq!(desk.run().status.code(), Some(0));
    let samples = desk.samples();
    let ratio = samples.iter().find(|s| s.metric == "golden-match-ratio").expect("a ratio");
    let believed = samples.iter().any(|s| s.metric.starts_with("decode-tps") && s.validity == Validity::Valid);
    (ratio.value.unwrap().get(), believed)
}

// E8 (what one platform computes wrongly) and E22 (what a converter breaks): fluent, finite, fast, and wrong
#[test]
fn gibberish_from_weights_or_tokenizer_fails_the_golden_answers_and_spoils_every_speed() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(golden_share(&tiny_model()), (1.0, true));
    // the halves of every block's 32 codes exchanged in one kind of matrix, as a wrong shuffle in a kernel would
    let shuffled = |name: &str, bytes: &mut Vec<u8>| {
        if name.ends_with("ffn_down.weight") {
            bytes.chunks_exact_mut(34).for_each(|block| block[2..].rotate_left(16));
        }
    };
    let path = altered(&tiny_model(), folder.path(), Metadata::clone, shuffled);
    let (share, believed) = golden_share(&path);
    assert!(share < 1.0 && !believed, "{share}, speed believed: {believed}");
    let half = |old: &Metadata| {
        let merges = old.strings("tokenizer.ggml.merges").unwrap().unwrap();
        with(old, "tokenizer.ggml.merges", Value::Strings(merges[..merges.len() / 2].to_vec()))
    };
    let path = altered(&tiny_model(), folder.path(), half, as_it_was);
    let (share, believed) = golden_share(&path);
    assert!(share < 1.0 && !believed, "{share}, speed believed: {believed}");
}

// E23
#[test]
fn a_model_that_ends_at_once_still_decodes_every_token_that_is_timed() {
    const TOKENS: u32 = 24;
    let folder = tempfile::tempdir().unwrap();
    // every token ends a generation
    let model = Model::load(&tiny_model(), &LoadOptions::default()).unwrap();
    let config = EngineConfig { threads: 1, context_tokens: 64, ..EngineConfig::default() };
    let mut session = Session::new(Arc::new(model), &config).unwrap();
    let likeliest = |row: &[f32]| farmgate_engine::sampler::Sampler::greedy().sample(row);
    let first = likeliest(session.forward(&[1], Logits::Last).unwrap());
    let at_once = |old: &Metadata| with(old, "tokenizer.ggml.eos_token_id", Value::Unsigned(first.into()));
    let path = altered(&tiny_model(), folder.path(), at_once, as_it_was);
    let mut cell = cell(0, vec![LOAD, Step::Decode { decode_tokens: TOKENS, at_depth: 0, repetitions: 2 }]);
    cell.model = model_ref(&path);
    let desk = Desk::new(&plan(vec![cell]));
    assert_eq!(desk.run().status.code(), Some(0));
    let times: Vec<_> =
        desk.records().into_iter().filter_map(|r| if let Record::TokenTimes(t) = r { Some(t) } else { None }).collect();
    assert_eq!(times.len(), 2);
    for times in &times {
        assert_eq!(times.itl_us.len(), TOKENS as usize - 1, "an early end must not shorten what is timed");
        let sum_s: f64 = times.itl_us.iter().map(|us| f64::from(*us) / 1e6).sum();
        let samples = desk.samples();
        let told = samples.iter().find(|s| s.metric == "decode-tps@0" && s.repetition == times.repetition).unwrap();
        let counted = f64::from(TOKENS - 1) / sum_s;
        // each gap was cut to whole microseconds
        assert!((told.value.unwrap().get() / counted - 1.0).abs() < 0.2, "{told:?} against {counted}");
    }
}

// E25
#[test]
fn a_request_that_measures_nothing_is_an_error_and_not_a_success() {
    let refused = |steps: Vec<Step>, what: &str| {
        let desk = Desk::new(&plan(vec![cell(0, steps)]));
        let output = desk.run();
        assert_eq!(output.status.code(), Some(2), "{what}: {}", stderr(&output));
        assert!(stderr(&output).contains(what), "{what}: {}", stderr(&output));
        assert!(!desk.path("journal").exists(), "{what}");
    };
    refused(Vec::new(), "number of steps is 0");
    refused(vec![LOAD, Step::Decode { decode_tokens: 8, at_depth: 0, repetitions: 0 }], "repetitions is 0");
    refused(vec![LOAD, Step::Decode { decode_tokens: 0, at_depth: 0, repetitions: 1 }], "decode-tokens is 0");
    refused(vec![LOAD, Step::Prefill { prompt_tokens: 8, repetitions: 0 }], "repetitions is 0");
    refused(vec![LOAD, Step::Prefill { prompt_tokens: 0, repetitions: 1 }], "a prompt has at least one token");
    let desk = Desk::new(&plan(Vec::new()));
    assert_eq!(desk.run().status.code(), Some(2), "a plan of no cells");
    for arguments in [["-p", "0", "-n", "0"], ["-r", "0", "-p", "4"]] {
        let output = farmhand().arg("bench").args(arguments).arg("-m").arg(tiny_model()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("error: "), "{}", stderr(&output));
    }
}

// E7
#[test]
fn the_instruction_set_that_runs_is_one_that_the_processor_lists() {
    let desk = Desk::new(&plan(vec![short(0)]));
    assert_eq!(desk.run().status.code(), Some(0));
    let records = desk.records();
    let isa = records.iter().find_map(|r| if let Record::Proof { proof, .. } = r { Some(&proof.isa) } else { None });
    let isa = isa.expect("a proof");
    assert_eq!(isa, Isa::detect().name());
    let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| listed.split_ascii_whitespace().any(|word| word == flag);
    let (needed, known): (&[&str], bool) = match isa.as_str() {
        "scalar" => (&[], true),
        "avx2" => (&["avx2", "fma", "f16c"], true),
        "avxvnni" => (&["avx2", "fma", "f16c", "avx_vnni"], true),
        "avx512vnni" => (&["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"], true),
        _ => (&[], false),
    };
    if known {
        assert!(needed.iter().all(|flag| has(flag)), "{isa} needs {needed:?}");
    }
}

/// Whether this processor's kernels have another layout for weights.
fn has_strips() -> bool {
    strips_bytes(Isa::detect(), TensorType::Q8_0, 32, 8).is_some()
}

// E28, E29
#[test]
fn a_model_is_held_once_however_it_is_loaded_and_mapped_or_read_it_gives_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("noise.gguf");
    let shape = "layers=6,hidden=512,ffn=2048,heads=8,kv-heads=2,vocab=4096";
    let shape = farmgate_engine::synth::Shape::parse(shape).unwrap();
    farmgate_engine::synth::write(&shape, "Q8_0", 1, &path).unwrap();
    assert_eq!(logits(&path, true), logits(&path, false));
    let cells: Vec<_> = [(true, Repack::Off), (false, Repack::Off), (true, Repack::On)]
        .into_iter()
        .zip(0..)
        .filter(|((_, repack), _)| *repack == Repack::Off || has_strips())
        .map(|((mmap, repack), number)| {
            let steps = vec![LOAD, Step::Decode { decode_tokens: 40, at_depth: 8, repetitions: 4 }];
            let mut cell = cell(number, steps);
            (cell.model, cell.config.mmap, cell.config.context_tokens) = (model_ref(&path), mmap, 64);
            cell.config.repack = repack;
            cell
        })
        .collect();
    let mut plan = plan(cells);
    plan.telemetry_period_ms = 20;
    let desk = Desk::new(&plan);
    assert_eq!(desk.run().status.code(), Some(0));
    let records = desk.records();
    let weights = records.iter().find_map(|r| match r {
        Record::Proof { proof, .. } => Some(proof.weight_bytes),
        _ => None,
    });
    let weights = weights.expect("a proof");
    assert!(weights > 20 << 20, "{weights} bytes of weights are too few to tell");
    let most = |cell: u32, part: fn(&farmgate_engine::protocol::MemoryParts) -> Option<u64>| {
        let of_cell = |r: &Record| match r {
            Record::Telemetry(t) if t.cell == cell => part(&t.memory),
            _ => None,
        };
        records.iter().filter_map(of_cell).max().expect("telemetry of the cell")
    };
    let (mapped_anon, read_anon) = (most(0, |m| m.anon_bytes), most(1, |m| m.anon_bytes));
    assert!(mapped_anon < weights / 2, "mapped, but {mapped_anon} bytes are anonymous besides {weights} of weights");
    assert!(read_anon >= weights, "read into memory, but only {read_anon} bytes are anonymous");
    if has_strips() {
        let all = most(2, |m| Some(m.anon_bytes? + m.file_bytes?));
        assert!(
            most(2, |m| m.anon_bytes) >= weights / 4 * 3,
            "all but the embedding is rearranged, in anonymous memory"
        );
        assert!(all < weights + weights / 2, "{all} bytes are resident for {weights} of rearranged weights");
    }
    let seconds_of = |cell: u32| {
        let samples = desk.samples();
        let load = samples.into_iter().find(|s| s.cell == cell && s.metric == "load-warm-ms").expect("a load time");
        load.value.unwrap().get()
    };
    assert!(seconds_of(0) > 0.0 && seconds_of(1) > 0.0, "both ways of loading are measured");
}
