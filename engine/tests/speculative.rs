//! Decoding with a draft model gives the tokens of decoding without one, whatever the draft is worth.

use farmgate_engine::generate::{Continue, GenerateOptions, Generation, generate};
use farmgate_engine::gguf::{Gguf, LoadMode, Value, Writer};
use farmgate_engine::kernels::Isa;
use farmgate_engine::model::{EXACT_TOKENS_MAX, LoadOptions, Logits, Model, Session};
use farmgate_engine::protocol::EngineConfig;
use farmgate_engine::sampler::Sampler;
use farmgate_engine::speculative::{
    Acceptance, DraftCost, DraftOptions, Speculation, VocabularyDifference, compare_vocabularies,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models")
}

fn all_models() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(models_folder()).unwrap().map(|e| e.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    all.sort();
    assert!(all.len() >= 19, "{} models", all.len());
    all
}

fn load(path: &Path, isa: Isa) -> Arc<Model> {
    Arc::new(Model::load(path, &LoadOptions { mmap: true, isa: Some(isa) }).unwrap_or_else(|e| panic!("{e}")))
}

fn session(model: &Arc<Model>, threads: u32, context_tokens: u32) -> Session {
    let config = EngineConfig { threads, context_tokens, ..EngineConfig::default() };
    Session::new(Arc::clone(model), &config).unwrap()
}

fn prompt(model: &Model, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (i * 37 + 11) % model.tokenizer().vocab_len() as u32).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn an_exact_batch_has_the_bits_of_single_steps_on_every_model_and_instruction_set() {
    let best = Isa::detect();
    let scalar =
        ["tiny-llama-Q4_K.gguf", "tiny-gemma3-Q8_0.gguf"].map(|file| (models_folder().join(file), Isa::Scalar));
    for (path, isa) in all_models().into_iter().map(|path| (path, best)).chain(scalar) {
        let model = load(&path, isa);
        let vocab = model.vocab();
        let (mut single, mut exact) = (session(&model, 2, 160), session(&model, 2, 160));
        for s in [&mut single, &mut exact] {
            s.forward(&prompt(&model, 21), Logits::None).unwrap();
        }
        // 1, 2, ... tokens, past the 64 of a tile and, with gemma3, past its window
        for n in [1usize, 2, 3, 9, 17, EXACT_TOKENS_MAX, 1] {
            let ids: Vec<u32> = prompt(&model, n as u32 + 3)[3..].to_vec();
            let alone: Vec<u32> =
                ids.iter().flat_map(|&id| bits(single.forward(&[id], Logits::Last).unwrap())).collect();
            let together = bits(exact.forward_exact(&ids).unwrap());
            let differs = (0..n * vocab).find(|&i| alone[i] != together[i]);
            let name = path.file_name().unwrap().to_string_lossy();
            assert_eq!(differs.map(|i| (i / vocab, i % vocab)), None, "{name} {} {n}: token, logit", isa.name());
        }
    }
}

#[test]
fn an_exact_batch_that_does_not_fit_changes_nothing() {
    let model = load(&models_folder().join("tiny-pd-1.3m-Q8_0.gguf"), Isa::detect());
    let mut session = session(&model, 1, 40);
    let too_many = session.forward_exact(&[1; EXACT_TOKENS_MAX + 1]).unwrap_err();
    assert!(too_many.what().contains("EXACT_TOKENS_MAX"), "{too_many}");
    session.forward(&prompt(&model, 38), Logits::None).unwrap();
    assert!(session.forward_exact(&[1, 2, 3]).unwrap_err().what().contains("do not fit a context of 40"));
    assert_eq!(session.depth(), 38);
    session.forward_exact(&[1, 2]).unwrap();
    assert_eq!(session.depth(), 40);
}

/// Lengths that depend on what was accepted alone.
const CHEAP: DraftCost = DraftCost::Given { draft: 0.0, check: 0.3 };
const PROMPT_TOKENS: u32 = 19;
const TOKENS: usize = 45;

fn on(tokens_max: usize) -> GenerateOptions {
    GenerateOptions { tokens_max, obey_eog: false }
}

fn go_on(_: u32, _: std::time::Instant) -> Continue {
    Continue::Yes
}

fn without_draft(target: &mut Session, prompt: &[u32], options: GenerateOptions) -> Generation {
    generate(target, prompt, options, &mut Sampler::greedy(), &mut go_on).unwrap()
}

fn with_draft(
    (target, draft): (&mut Session, &mut Session),
    prompt: &[u32],
    options: GenerateOptions,
    (tokens_min, tokens_max): (usize, usize),
) -> (Generation, Acceptance) {
    let draft_options = DraftOptions { tokens_min, tokens_max, cost: CHEAP };
    let mut speculation = Speculation::new(target, draft, draft_options).unwrap();
    speculation.generate(prompt, options, &mut go_on).unwrap()
}

/// Demands the same tokens with and without the draft, and the same state of the target afterwards.
fn check_same(
    target: &Arc<Model>,
    draft: &Arc<Model>,
    lengths: (usize, usize),
    context_tokens: (u32, u32),
) -> Acceptance {
    let what = format!("{:?} with {:?}, {lengths:?}", target.files(), draft.files());
    let prompt = prompt(target, PROMPT_TOKENS);
    let (mut alone, mut checked) = (session(target, 1, context_tokens.0), session(target, 1, context_tokens.0));
    let mut draft = session(draft, 1, context_tokens.1);
    let expected = without_draft(&mut alone, &prompt, on(TOKENS));
    let (found, acceptance) = with_draft((&mut checked, &mut draft), &prompt, on(TOKENS), lengths);
    assert_eq!(found.ids, expected.ids, "{what}");
    assert_eq!(found.first_eog_index, expected.first_eog_index, "{what}");
    assert_eq!((found.instants.len(), found.logits_finite), (TOKENS, true), "{what}");
    assert_eq!(checked.depth(), prompt.len() + TOKENS - 1, "{what}");
    assert!(draft.depth() <= checked.depth(), "{what}");
    assert_eq!(acceptance.decoded_tokens, TOKENS as u64 - 1, "{what}");
    // as deep as both are, the next logits must have the same bits
    if checked.depth() < checked.context_tokens() {
        let next = [expected.ids[TOKENS - 1]];
        let (a, b) = (alone.forward(&next, Logits::Last).unwrap(), checked.forward(&next, Logits::Last).unwrap());
        assert!(bits(a) == bits(b), "{what}: the caches differ");
    }
    acceptance
}

#[test]
fn a_draft_that_is_the_target_is_always_right_and_the_tokens_are_those_without_it() {
    for path in all_models() {
        let model = load(&path, Isa::detect());
        for lengths in [(1, 1), (4, 4), (0, 16)] {
            let acceptance = check_same(&model, &model, lengths, (128, 128));
            assert_eq!(acceptance.ratio(), Some(1.0), "{} {acceptance:?}", path.display());
            assert!(acceptance.tokens_per_pass().unwrap() > 1.8, "{} {acceptance:?}", path.display());
        }
    }
}

#[test]
fn another_model_of_the_same_vocabulary_changes_no_token() {
    let models: Vec<Arc<Model>> = all_models().iter().map(|path| load(path, Isa::detect())).collect();
    let (mut pairs, mut partly) = (0, 0);
    for (i, target) in models.iter().enumerate() {
        let same = |draft: &&Arc<Model>| compare_vocabularies(target.tokenizer(), draft.tokenizer()).is_ok();
        // one before and one after it, in a circle
        let others = (1..models.len()).map(|step| &models[(i + step) % models.len()]).filter(same);
        let others: Vec<&Arc<Model>> = others.collect();
        for draft in others.first().into_iter().chain(others.last()) {
            let acceptance = check_same(target, draft, (1, 6), (128, 128));
            pairs += 1;
            partly += usize::from(acceptance.ratio().is_some_and(|ratio| ratio > 0.0 && ratio < 1.0));
        }
    }
    assert!(pairs >= 30 && partly >= 10, "{partly} of {pairs} pairs accepted some and rejected some");
}

#[test]
fn the_scalar_kernels_are_as_exact() {
    let (big, small) = ("tiny-pd-1.3m-Q8_0.gguf", "tiny-pd-1.3m-Q4_0.gguf");
    let [big, small] = [big, small].map(|file| load(&models_folder().join(file), Isa::Scalar));
    let acceptance = check_same(&big, &small, (3, 3), (64, 64));
    assert!(acceptance.accepted_tokens > 0, "{acceptance:?}");
}

/// A copy of a model after these changes of its metadata.
fn altered(path: &Path, folder: &Path, metadata: &[(&str, Value)]) -> PathBuf {
    let gguf = Gguf::open(path, LoadMode::Map).unwrap();
    let mut all = gguf.metadata().clone();
    metadata.iter().for_each(|(key, value)| all.set(*key, value.clone()));
    let mut writer = Writer::new(all);
    for tensor in gguf.tensors() {
        let bytes = gguf.data(tensor).to_vec();
        writer.tensor_bytes(&tensor.name, &tensor.shape, tensor.tensor_type, bytes).unwrap();
    }
    let copy = folder.join("altered.gguf");
    writer.write(&copy).unwrap();
    copy
}

/// A draft that always proposes the token after the one that the target will choose, in the order of ids: the embedding,
/// moved on by one row, is its output head.
fn always_wrong(path: &Path, folder: &Path) -> PathBuf {
    let gguf = Gguf::open(path, LoadMode::Map).unwrap();
    let mut writer = Writer::new(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        let mut bytes = gguf.data(tensor).to_vec();
        writer.tensor_bytes(&tensor.name, &tensor.shape, tensor.tensor_type, bytes.clone()).unwrap();
        assert_ne!(tensor.name, "output.weight", "the embedding is to be the head as well");
        if tensor.name == "token_embd.weight" {
            let row_bytes = bytes.len() / tensor.rows();
            bytes.rotate_right(row_bytes);
            writer.tensor_bytes("output.weight", &tensor.shape, tensor.tensor_type, bytes).unwrap();
        }
    }
    let copy = folder.join("wrong.gguf");
    writer.write(&copy).unwrap();
    copy
}

#[test]
fn a_draft_that_is_always_wrong_is_never_accepted_soon_left_alone_and_changes_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = models_folder().join("tiny-llama-Q8_0.gguf");
    let target = load(&path, Isa::detect());
    let draft = load(&always_wrong(&path, folder.path()), Isa::detect());
    let asked = check_same(&target, &draft, (3, 3), (128, 128));
    assert_eq!((asked.accepted_tokens, asked.passes_undrafted), (0, 1), "the last pass has nothing to propose for");
    assert_eq!((asked.passes, asked.tokens_per_pass()), (TOKENS as u64 - 1, Some(1.0)));
    let free = check_same(&target, &draft, (0, 8), (128, 128));
    assert_eq!(free.accepted_tokens, 0);
    assert!(free.passes_undrafted > 2 * free.passes / 3, "{free:?}");
}

#[test]
fn the_end_of_either_context_changes_no_token() {
    let [target, draft] = ["tiny-pd-1.3m-Q8_0.gguf", "tiny-pd-1.3m-Q4_0.gguf"]
        .map(|file| load(&models_folder().join(file), Isa::detect()));
    let whole = PROMPT_TOKENS + TOKENS as u32 - 1;
    // the draft's: enough, one short, ends amid the answer, ends with the prompt, cannot hold the prompt
    for draft_context in [whole, whole - 1, whole - 20, PROMPT_TOKENS, PROMPT_TOKENS - 1, 1] {
        let acceptance = check_same(&target, &draft, (5, 5), (whole, draft_context));
        let asked = acceptance.drafted_tokens > 0;
        assert_eq!(asked, draft_context > PROMPT_TOKENS, "{draft_context}: {acceptance:?}");
    }
    let (mut short, mut draft) = (session(&target, 1, whole - 1), session(&draft, 1, 128));
    let options = DraftOptions { tokens_min: 0, tokens_max: 4, cost: CHEAP };
    let mut speculation = Speculation::new(&mut short, &mut draft, options).unwrap();
    let error = speculation.generate(&prompt(&target, PROMPT_TOKENS), on(TOKENS), &mut go_on).unwrap_err();
    assert!(error.what().contains("do not fit a context of"), "{error}");
    assert_eq!((short.depth(), draft.depth()), (0, 0));
}

#[test]
fn lengths_by_the_clock_change_no_token() {
    let [target, draft] = ["tiny-pd-1.3m-f16.gguf", "tiny-pd-1.3m-Q4_0.gguf"]
        .map(|file| load(&models_folder().join(file), Isa::detect()));
    let prompt = prompt(&target, PROMPT_TOKENS);
    let expected = without_draft(&mut session(&target, 1, 512), &prompt, on(400)).ids;
    let (mut checked, mut draft) = (session(&target, 1, 512), session(&draft, 1, 512));
    let options = DraftOptions { tokens_min: 0, tokens_max: 8, cost: DraftCost::Measured };
    let mut speculation = Speculation::new(&mut checked, &mut draft, options).unwrap();
    let (found, acceptance) = speculation.generate(&prompt, on(400), &mut go_on).unwrap();
    assert_eq!(found.ids, expected);
    assert!(acceptance.passes_undrafted > 0 && acceptance.drafted_tokens > 0, "{acceptance:?}");
}

#[test]
fn one_token_and_none_need_no_draft() {
    let model = load(&models_folder().join("tiny-qwen2-Q8_0.gguf"), Isa::detect());
    for tokens in [0, 1] {
        let (mut target, mut draft) = (session(&model, 1, 64), session(&model, 1, 64));
        let (found, acceptance) = with_draft((&mut target, &mut draft), &[1, 2, 3], on(tokens), (0, 4));
        let expected = without_draft(&mut session(&model, 1, 64), &[1, 2, 3], on(tokens));
        assert_eq!((found.ids, acceptance), (expected.ids, Acceptance::default()));
        assert_eq!((acceptance.ratio(), acceptance.tokens_per_pass()), (None, None));
        assert_eq!(target.depth(), 3);
    }
}

#[test]
fn a_conversation_goes_on_after_what_both_hold() {
    let [target, draft] = ["tiny-pd-1.3m-f16.gguf", "tiny-pd-1.3m-Q4_K_M.gguf"]
        .map(|file| load(&models_folder().join(file), Isa::detect()));
    let (mut alone, mut checked, mut draft) =
        (session(&target, 1, 256), session(&target, 1, 256), session(&draft, 1, 256));
    for turn in [5u32, 9, 14] {
        let prompt = prompt(&target, turn);
        let expected = without_draft(&mut alone, &prompt, on(20));
        let (found, _) = with_draft((&mut checked, &mut draft), &prompt, on(20), (0, 5));
        assert_eq!(found.ids, expected.ids, "turn of {turn}");
        // the draft may have read less than the target: told the rest, both can go on
        if let Some(missing) = checked.depth().checked_sub(draft.depth()).filter(|&n| n > 0) {
            let last = &expected.ids[expected.ids.len() - 1 - missing..expected.ids.len() - 1];
            draft.forward(last, Logits::None).unwrap();
        }
    }
    let mut ahead = session(&target, 1, 256);
    ahead.forward(&[1], Logits::None).unwrap();
    let options = DraftOptions { tokens_min: 0, tokens_max: 4, cost: CHEAP };
    let error = Speculation::new(&mut ahead, &mut draft, options).err().expect("refused").to_string();
    assert!(error.contains("the target's cache holds 1 tokens") && error.contains("hint: "), "{error}");
}

#[test]
fn an_end_of_generation_token_is_recorded_and_obeyed_only_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = models_folder().join("tiny-pd-1.3m-Q8_0.gguf");
    let free = load(&path, Isa::detect());
    let ids = without_draft(&mut session(&free, 1, 128), &prompt(&free, PROMPT_TOKENS), on(TOKENS)).ids;
    // the first token from the eighth on that did not come before
    let at = (8..TOKENS).find(|&i| !ids[..i].contains(&ids[i])).expect("a token that comes late");
    let eos = [("tokenizer.ggml.eos_token_id", Value::Unsigned(ids[at].into()))];
    let model = load(&altered(&path, folder.path(), &eos), Isa::detect());
    for obey_eog in [false, true] {
        let options = GenerateOptions { tokens_max: TOKENS, obey_eog };
        let (mut target, mut draft) = (session(&model, 1, 128), session(&model, 1, 128));
        let prompt = prompt(&model, PROMPT_TOKENS);
        let (found, acceptance) = with_draft((&mut target, &mut draft), &prompt, options, (6, 6));
        assert_eq!(found.first_eog_index, Some(at));
        assert_eq!(found.ids, if obey_eog { &ids[..=at] } else { &ids[..] });
        assert_eq!(target.depth(), prompt.len() + found.ids.len() - 1);
        assert_eq!(acceptance.decoded_tokens, found.ids.len() as u64 - 1);
    }
}

#[test]
fn a_listener_that_has_heard_enough_stops_amid_a_pass() {
    let model = load(&models_folder().join("tiny-pd-1.3m-Q8_0.gguf"), Isa::detect());
    let prompt = prompt(&model, PROMPT_TOKENS);
    let expected = without_draft(&mut session(&model, 1, 128), &prompt, on(TOKENS)).ids;
    for heard_max in 1..9 {
        let (mut target, mut draft) = (session(&model, 1, 128), session(&model, 1, 128));
        let options = DraftOptions { tokens_min: 4, tokens_max: 4, cost: CHEAP };
        let mut speculation = Speculation::new(&mut target, &mut draft, options).unwrap();
        let mut heard = Vec::new();
        let (found, _) = speculation
            .generate(&prompt, on(TOKENS), &mut |id, _| {
                heard.push(id);
                if heard.len() == heard_max { Continue::No } else { Continue::Yes }
            })
            .unwrap();
        assert_eq!((&heard, &found.ids[..]), (&found.ids, &expected[..heard_max]));
        assert_eq!(target.depth(), prompt.len() + heard_max - 1);
        assert!(draft.depth() <= target.depth());
    }
}

#[test]
fn a_draft_of_another_vocabulary_is_refused_with_the_first_token_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = models_folder().join("tiny-pd-1.3m-Q8_0.gguf");
    let target = load(&path, Isa::detect());
    let refused = |draft: &Arc<Model>| {
        let options = DraftOptions { tokens_min: 0, tokens_max: 4, cost: CHEAP };
        Speculation::new(&mut session(&target, 1, 64), &mut session(draft, 1, 64), options).err().expect("refused")
    };
    let strings = |key: &str| target.gguf().metadata().strings(key).unwrap().unwrap().to_vec();
    let (mut tokens, mut merges) = (strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges"));
    let last = tokens.len() - 1;
    merges.retain(|merge| merge.replace(' ', "") != tokens[last]);
    tokens[last] = "qqq".into();
    let changes =
        [("tokenizer.ggml.tokens", Value::Strings(tokens)), ("tokenizer.ggml.merges", Value::Strings(merges))];
    let draft = load(&altered(&path, folder.path(), &changes), Isa::detect());
    let difference = compare_vocabularies(target.tokenizer(), draft.tokenizer()).unwrap_err();
    let own = target.tokenizer().token_bytes(last as u32).unwrap().to_vec();
    assert_eq!(difference, VocabularyDifference::Token { id: last as u32, target: own, draft: b"qqq".to_vec() });
    let error = refused(&draft).to_string();
    assert!(error.contains(&format!("token {last} is `")) && error.contains("`qqq` to the draft"), "{error}");
    assert!(error.contains("hint: "), "{error}");
    let other = load(&models_folder().join("tiny-llama-Q4_K.gguf"), Isa::detect());
    assert!(refused(&other).what().contains("the draft has another vocabulary than the target"));
}

#[test]
fn a_draft_with_fewer_tokens_is_refused_with_both_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = models_folder().join("tiny-llama-Q8_0.gguf");
    let target = load(&path, Isa::detect());
    let metadata = target.gguf().metadata();
    let mut shorter = Vec::new();
    for key in ["tokens", "token_type", "scores"].map(|key| format!("tokenizer.ggml.{key}")) {
        let value = match metadata.get(&key) {
            Some(Value::Strings(v)) => Value::Strings(v[..v.len() - 1].to_vec()),
            Some(Value::Integers(v)) => Value::Integers(v[..v.len() - 1].to_vec()),
            Some(Value::Floats(v)) => Value::Floats(v[..v.len() - 1].to_vec()),
            _ => continue,
        };
        shorter.push((key, value));
    }
    let shorter: Vec<(&str, Value)> = shorter.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let draft = load(&altered(&path, folder.path(), &shorter), Isa::detect());
    let n = target.tokenizer().vocab_len();
    let difference = compare_vocabularies(target.tokenizer(), draft.tokenizer()).unwrap_err();
    assert_eq!(difference, VocabularyDifference::Size { target: n, draft: n - 1 });
    assert!(difference.to_string().contains(&format!("the target has {n} tokens, the draft {}", n - 1)));
}

/// Runs farmhand; its exit code, stdout and stderr.
fn farmhand(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_farmhand")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_verbs_give_the_same_text_with_a_draft_and_say_what_it_was_worth() {
    let path = |file: &str| models_folder().join(file).display().to_string();
    let (target, draft) = (path("tiny-pd-1.3m-f16.gguf"), path("tiny-pd-1.3m-Q8_0.gguf"));
    let common = ["generate", "-m", &target, "-p", "In the beginning", "-n", "50", "--ignore-eos", "-t", "1"];
    let with = |more: &[&str]| farmhand(&[&common, more].concat());
    let drafted = ["--draft-model", &draft, "--draft-max", "5", "--draft-min", "2"];
    let (code, text, talk) = with(&[]);
    assert_eq!((code, talk.contains("draft:")), (Some(0), false), "{talk}");
    let (code, same_text, talk) = with(&drafted);
    assert_eq!((code, &same_text), (Some(0), &text), "{talk}");
    assert!(talk.contains("tokens accepted") && talk.contains("tokens per pass"), "{talk}");

    let (code, json, talk) = with(&[&drafted[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{talk}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["text"].as_str(), text.strip_suffix('\n'));
    assert_eq!(json["ids"].as_array().map(Vec::len), Some(50));
    let worth = &json["draft"];
    let number = |key: &str| worth[key].as_f64().unwrap_or_else(|| panic!("no {key} in {worth}"));
    assert_eq!(number("decoded-tokens"), 49.0);
    assert_eq!(number("acceptance-ratio"), number("accepted-tokens") / number("drafted-tokens"));
    assert_eq!(number("tokens-per-pass"), 49.0 / number("passes"));
    assert!(number("tokens-per-pass") > 1.0 && worth["draft-model"] == draft.as_str(), "{worth}");
    let (_, plain, _) = with(&["--json"]);
    let plain: serde_json::Value = serde_json::from_str(&plain).unwrap();
    assert_eq!((&plain["ids"], plain.get("draft")), (&json["ids"], None));

    let bench = ["bench", "-m", &target, "-p", "0", "-n", "8", "-r", "2", "-t", "1", "-o", "json"];
    let (code, rows, talk) = farmhand(&[&bench[..], &drafted[..]].concat());
    assert_eq!(code, Some(0), "{talk}");
    let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
    assert_eq!((rows.as_array().map(Vec::len), rows[0].get("draft")), (Some(2), None));
    assert_eq!(rows[1]["draft"]["decoded-tokens"].as_u64(), Some(16), "{rows}");
}

#[test]
fn a_draft_that_cannot_be_is_refused_before_anything_runs() {
    let path = |file: &str| models_folder().join(file).display().to_string();
    let (target, other) = (path("tiny-pd-1.3m-Q8_0.gguf"), path("tiny-qwen2-Q8_0.gguf"));
    for (more, what) in [
        (vec!["--draft-model", other.as_str()], "tiny-qwen2-Q8_0.gguf"),
        (vec!["--draft-model", target.as_str(), "--temp", "0.8"], "greedy"),
        (vec!["--draft-model", target.as_str(), "--draft-max", "0"], "makes no sense"),
        (vec!["--draft-model", target.as_str(), "--draft-max", "32"], "`--draft-max` is 1 to 31"),
        (vec!["--draft-model", target.as_str(), "--draft-max", "2", "--draft-min", "3"], "makes no sense"),
        (vec!["--draft-max", "4"], "needs `--draft-model`"),
        (vec!["--draft-model", "/none.gguf"], "/none.gguf"),
    ] {
        let (code, text, talk) = farmhand(&[&["generate", "-m", &target, "-p", "a"], &more[..]].concat());
        assert_eq!((code, text.as_str()), (Some(2), ""), "{more:?}: {talk}");
        assert!(talk.contains(what), "{more:?}: {talk}");
    }
}
