//! Decoding with a draft model gives the tokens of decoding without one, whatever the draft is worth.

use farmgate_engine::kernels::Isa;
use farmgate_engine::model::{EXACT_TOKENS_MAX, LoadOptions, Logits, Model, Session};
use farmgate_engine::protocol::EngineConfig;
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

/// Scalar, and what this processor has beyond it.
fn isas() -> Vec<Isa> {
    let best = Isa::detect();
    if best == Isa::Scalar { vec![best] } else { vec![Isa::Scalar, best] }
}

fn prompt(model: &Model, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (i * 37 + 11) % model.tokenizer().vocab_len() as u32).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn an_exact_batch_has_the_bits_of_single_steps_on_every_model_and_instruction_set() {
    for path in all_models() {
        for isa in isas() {
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
}

#[test]
fn an_exact_batch_that_does_not_fit_changes_nothing() {
    let model = load(&models_folder().join("tiny-pd-1.3m-Q8_0.gguf"), Isa::detect());
    let mut session = session(&model, 1, 40);
    let too_many = session.forward_exact(&vec![1; EXACT_TOKENS_MAX + 1]).unwrap_err();
    assert!(too_many.what().contains("EXACT_TOKENS_MAX"), "{too_many}");
    session.forward(&prompt(&model, 38), Logits::None).unwrap();
    assert!(session.forward_exact(&[1, 2, 3]).unwrap_err().what().contains("do not fit a context of 40"));
    assert_eq!(session.depth(), 38);
    session.forward_exact(&[1, 2]).unwrap();
    assert_eq!(session.depth(), 40);
}
