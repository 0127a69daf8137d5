//! Token for token the same as the recorded reference, on the vocabularies of the test models.

mod parity;

use farmgate_engine::gguf::{Gguf, LoadMode};
use farmgate_engine::tokenizer::{StreamDecoder, Tokenizer};
use parity::{find_model, ids, known_answers};
use serde_json::Value;
use std::path::Path;

fn open(path: &Path) -> Tokenizer {
    let gguf = Gguf::open(path, LoadMode::Map).unwrap_or_else(|e| panic!("{e}"));
    Tokenizer::from_metadata(gguf.metadata()).unwrap_or_else(|e| panic!("{e}"))
}

/// Every recorded text, raw and with special tokens, and the way back.
fn check_texts(tokenizer: &Tokenizer, answers: &Value) {
    let cases = answers["tokenizer_cases"].as_array().expect("tokenizer cases");
    assert!(cases.len() > 40, "only {} cases", cases.len());
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let raw = ids(&case["ids_raw"]);
        assert_eq!(tokenizer.encode(text, false, false), raw, "{text:?}, raw");
        assert_eq!(tokenizer.encode(text, false, true), ids(&case["ids_parse_special"]), "{text:?}, special");
        let back = case["detok_raw"].as_str().unwrap_or(text);
        assert_eq!(tokenizer.decode(&raw), back, "{text:?}, decoded");
        assert_eq!(stream(tokenizer, &raw), back, "{text:?}, streamed");
    }
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = StreamDecoder::new(tokenizer);
    let mut text: String = ids.iter().map(|id| decoder.push(*id)).collect();
    text.push_str(&decoder.finish());
    text
}

/// Recorded prompts, generated texts and ends of generation; returns how many prompts there were.
fn check_prompts(tokenizer: &Tokenizer, cases: &Value, text_key: &str, eog_key: &str) -> usize {
    let mut prompts = 0;
    for case in cases.as_array().expect("cases") {
        let name = &case["name"];
        if let Some(prompt) = case["prompt"].as_str() {
            let flag = |key: &str| case[key].as_bool().unwrap_or(true);
            let found = tokenizer.encode(prompt, flag("add_special"), flag("parse_special"));
            assert_eq!(found, ids(&case["prompt_ids"]), "{name}: {prompt:?}");
            prompts += 1;
        }
        let generated = ids(&case["generated_ids"]);
        let eog = generated.iter().position(|id| tokenizer.is_eog(*id));
        assert_eq!(eog.map(|i| i as u64), case[eog_key].as_u64(), "{name}: end of generation");
        // a recorded text may stop before its end token, and inside a character
        let text = case[text_key].as_str().expect("a text");
        let shown = tokenizer.decode(&generated);
        assert!(shown.starts_with(text.trim_end_matches('\u{fffd}')), "{name}: {shown:?} instead of {text:?}");
    }
    prompts
}

fn check_real(test: &str, answers: &str) {
    let answers = known_answers(answers);
    let Some(path) = find_model(test, answers["model_file"].as_str().expect("a file name")) else { return };
    let tokenizer = open(&path);
    check_texts(&tokenizer, &answers);
    assert!(check_prompts(&tokenizer, &answers["cases"], "generated_text", "first_eog_index") >= 3);
    assert_eq!(tokenizer.vocab_len() as u64, answers["n_vocab"].as_u64().expect("a size"));
    assert_eq!(tokenizer.bos().map(u64::from), answers["bos"].as_u64());
    assert_eq!(tokenizer.eos().map(u64::from), answers["eos"].as_u64());
    assert_eq!(Some(tokenizer.add_bos()), answers["add_bos"].as_bool());
    let eot = u32::try_from(answers["eot"].as_u64().expect("an id")).expect("an id");
    assert!(tokenizer.is_eog(eot));
    assert_eq!(tokenizer.warning(), None);
}

#[test]
fn the_tiny_trained_model_tokenises_as_recorded() {
    let test = "the_tiny_trained_model_tokenises_as_recorded";
    let answers = known_answers("tiny-pd-1.3m.json");
    let mut prompts = 0;
    for (file, recorded) in answers["files"].as_object().expect("files") {
        let Some(path) = find_model(test, file) else { continue };
        let tokenizer = open(&path);
        check_texts(&tokenizer, &answers);
        prompts += check_prompts(&tokenizer, &recorded["cases"], "text", "eog_index");
        assert_eq!(tokenizer.eos().map(u64::from), answers["chat_eos"].as_u64());
    }
    // these models are committed
    assert!(prompts >= 20, "only {prompts} prompts compared");
}

#[test]
fn smollm2_tokenises_as_recorded() {
    check_real("smollm2_tokenises_as_recorded", "smollm2-135m-instruct-q4_1.json");
}

#[test]
fn qwen2_tokenises_as_recorded() {
    check_real("qwen2_tokenises_as_recorded", "qwen2.5-coder-0.5b-instruct-q4_k_m.json");
}

#[test]
fn gemma3_brings_texts_back_and_ends_turns() {
    let Some(path) = find_model("gemma3_brings_texts_back_and_ends_turns", "gemma-3-270m-q4_k_m.gguf") else { return };
    let tokenizer = open(&path);
    let answers = known_answers("smollm2-135m-instruct-q4_1.json");
    for case in answers["tokenizer_cases"].as_array().expect("tokenizer cases") {
        // U+2581 is the space of this vocabulary
        let text = case["text"].as_str().expect("a text").replace('\u{2581}', "_");
        let found = tokenizer.encode(&text, false, true);
        assert_eq!(tokenizer.decode(&found), text, "{found:?}");
        assert_eq!(stream(&tokenizer, &found), text, "{found:?}");
    }
    let id = |text: &str| tokenizer.encode(text, false, true)[..].first().copied().expect("a token");
    assert_eq!(tokenizer.encode("<start_of_turn>user\nhi<end_of_turn>\n\n", true, true).len(), 7);
    assert_eq!(tokenizer.encode("Hello", true, false)[0], 2, "a text starts with BOS");
    assert!(tokenizer.is_eog(1) && tokenizer.is_eog(id("<end_of_turn>")) && !tokenizer.is_eog(id("Hello")));
    // words that the vocabulary holds whole
    assert_eq!(tokenizer.encode("The capital of France is Paris.", false, false).len(), 7);
}

#[test]
fn every_committed_model_has_a_tokenizer_that_brings_a_text_back() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models");
    let mut models = 0;
    for entry in std::fs::read_dir(folder).expect("the test models") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "gguf") {
            let tokenizer = open(&path);
            let text = "The cat, 42 times:\n  naïve 中国 🌍";
            assert_eq!(tokenizer.decode(&tokenizer.encode(text, false, true)), text, "{}", path.display());
            models += 1;
        }
    }
    assert!(models > 10, "only {models} models");
}
