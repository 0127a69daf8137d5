//! Any bytes as a model file: an error or a model, never a panic, and never more memory than the file deserves. What is
//! accepted is then used: every tensor's bytes are taken, and the metadata are read as a model's would be.
#![no_main]

use farmgate_engine::gguf::Gguf;
use farmgate_engine::kernels::Isa;
use farmgate_engine::model::{Hyperparameters, Logits, Model, Session};
use farmgate_engine::protocol::EngineConfig;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|bytes: &[u8]| {
    let gguf = match Gguf::from_bytes(bytes.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(error.place().is_some() && !error.what().is_empty(), "an error without a place: {error}");
            return;
        }
    };
    let taken: usize = gguf.tensors().iter().map(|tensor| gguf.data(tensor).len()).sum();
    assert_eq!(taken as u64, gguf.weight_bytes());
    let _ = Hyperparameters::from_metadata(gguf.metadata());
    let Ok(model) = Model::from_gguf(gguf, Some(Isa::Scalar)) else { return };
    let config = EngineConfig { threads: 1, context_tokens: 4, ..EngineConfig::default() };
    let Ok(mut session) = Session::new(Arc::new(model), &config) else { return };
    let _ = session.forward(&[0], Logits::Last).map(<[f32]>::len);
});
