//! What the parity tests share: finding models and known answers, and comparing logits.
#![allow(dead_code)] // each test binary uses its part

use farmgate_engine::gguf::{Gguf, LoadMode, TensorType, Writer};
use farmgate_engine::kernels::{Isa, strips_bytes};
use farmgate_engine::model::{LoadOptions, Logits, Model, Session};
use farmgate_engine::protocol::{EngineConfig, Repack};
use farmgate_engine::quant::dequantise_row;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The known answers of one file in `tests/data/parity`.
pub fn known_answers(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/parity").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Where a model is: committed test data, `$FARMGATE_MODELS`, or `models/` of the workspace. Says so when nowhere.
pub fn find_model(test: &str, file: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let fetched = std::env::var_os("FARMGATE_MODELS").map_or_else(|| root.join("models"), PathBuf::from);
    let found = [root.join("tests/data/models"), fetched].into_iter().map(|d| d.join(file)).find(|p| p.is_file());
    if found.is_none() {
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIP {test}: {file} is not here (set FARMGATE_MODELS to the folder of fetched models)\n"),
        );
    }
    found
}

/// Scalar, and what this processor has beyond it, with weights as they are stored and rearranged.
pub fn forms() -> Vec<(Isa, Repack)> {
    let best = Isa::detect();
    let mut forms = vec![(Isa::Scalar, Repack::Off), (best, Repack::Off), (best, Repack::Auto)];
    // without another instruction set, or another layout, some are the same
    forms.dedup_by_key(|(isa, repack)| (*isa, *repack == Repack::Auto && has_strips()));
    forms
}

/// Whether this processor's kernels have another layout for weights.
fn has_strips() -> bool {
    strips_bytes(Isa::detect(), TensorType::Q8_0, 32, 8).is_some()
}

/// As messages name a form.
pub fn form_name((isa, repack): (Isa, Repack)) -> String {
    format!("{}, repack {}", isa.name(), repack.as_str())
}

/// A session with all the threads that the device would choose, and the layout of weights that runs have.
pub fn open(path: &Path, isa: Option<Isa>, context_tokens: usize) -> Session {
    open_with(path, (isa.unwrap_or_else(Isa::detect), Repack::Auto), context_tokens)
}

/// As [`open`], with weights rearranged or not.
pub fn open_with(path: &Path, (isa, repack): (Isa, Repack), context_tokens: usize) -> Session {
    let mut model = Model::load(path, &LoadOptions { mmap: true, isa: Some(isa) }).unwrap_or_else(|e| panic!("{e}"));
    let config = EngineConfig { context_tokens: context_tokens as u32, repack, ..EngineConfig::default() };
    model.repack(&config, &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    Session::new(Arc::new(model), &config).unwrap_or_else(|e| panic!("{e}"))
}

/// A JSON array of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    let array = value.as_array().expect("an array of ids");
    array.iter().map(|v| u32::try_from(v.as_u64().expect("an id")).expect("an id")).collect()
}

/// A JSON array of numbers.
pub fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("an array of numbers").iter().map(|v| v.as_f64().expect("a number") as f32).collect()
}

/// The largest difference of two rows of logits, and where it is.
pub fn largest_difference(ours: &[f32], theirs: &[f32]) -> (f32, usize) {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| if a.is_nan() { f32::INFINITY } else { (a - b).abs() });
    differences.zip(0..).fold((0.0, 0), |worst, (d, i)| if d > worst.0 { (d, i) } else { worst })
}

/// Index of the largest logit.
pub fn argmax(row: &[f32]) -> u32 {
    farmgate_engine::kernels::vector::argmax(Isa::Scalar, row) as u32
}

/// One recorded step: `[id, logit, second id, second logit]`.
pub struct Step {
    pub id: u32,
    pub margin: f32,
}

/// The recorded steps of a case.
pub fn steps(value: &Value) -> Vec<Step> {
    let all = value.as_array().expect("an array of steps");
    all.iter()
        .map(|step| {
            let at = |i: usize| step[i].as_f64().expect("a number");
            Step { id: at(0) as u32, margin: (at(1) - at(3)) as f32 }
        })
        .collect()
}

/// Teacher-forces `prompt` and then `generated`, and demands the recorded choice wherever its margin exceeds
/// `margin_min`. Returns the logits after the prompt and the number of steps compared.
pub fn teacher_force(
    session: &mut Session,
    what: &str,
    prompt: &[u32],
    generated: &[u32],
    steps: &[Step],
    margin_min: f32,
) -> (Vec<f32>, usize) {
    assert_eq!(generated.len(), steps.len());
    session.clear();
    let first = session.forward(prompt, Logits::Last).unwrap().to_vec();
    let vocab = first.len();
    let mut rows = first.clone();
    rows.extend_from_slice(session.forward(&generated[..generated.len() - 1], Logits::All).unwrap());
    let mut compared = 0;
    for (i, (row, step)) in rows.chunks_exact(vocab).zip(steps).enumerate() {
        assert_eq!(step.id, generated[i], "{what}: the recording disagrees with itself at step {i}");
        if step.margin > margin_min {
            let ours = argmax(row);
            assert_eq!(ours, step.id, "{what}: step {i}, recorded margin {}", step.margin);
            compared += 1;
        }
    }
    (first, compared)
}

/// A copy of a model in which every weight is widened to F32: what its weights say, without the rounding of activations
/// that coded weights bring. The copy goes to `folder`.
pub fn widened(path: &Path, folder: &Path) -> PathBuf {
    let gguf = Gguf::open(path, LoadMode::Map).unwrap();
    let mut writer = Writer::new(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        let (data, mut row) = (gguf.data(tensor), vec![0f32; tensor.cols()]);
        let mut bytes = Vec::with_capacity(4 * tensor.cols() * tensor.rows());
        for coded in data.chunks_exact(data.len() / tensor.rows()) {
            dequantise_row(tensor.tensor_type, coded, &mut row);
            bytes.extend(row.iter().flat_map(|v| v.to_le_bytes()));
        }
        writer.tensor_bytes(&tensor.name, &tensor.shape, TensorType::F32, bytes).unwrap();
    }
    let copy = folder.join(path.file_name().unwrap());
    writer.write(&copy).unwrap();
    copy
}

/// The root of the mean squared difference of two rows of logits.
pub fn rms_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let squares: f64 = a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    (squares / a.len() as f64).sqrt() as f32
}
