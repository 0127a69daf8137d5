//! Loading with rearranged weights: what is read, told and locked.

use super::*;
use crate::gguf::{LoadMode, TensorType, Writer};
use crate::model::{Logits, Session};
use std::path::{Path, PathBuf};

/// A model whose head is its own and of halves, which have no strips; all else is Q4_0.
fn with_head_of_halves(folder: &Path) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/tiny-llama-Q4_0.gguf");
    let gguf = Gguf::open(&path, LoadMode::Map).unwrap();
    let mut writer = Writer::new(gguf.metadata().clone());
    for tensor in gguf.tensors().iter().filter(|t| t.name != "output.weight") {
        writer.tensor_bytes(&tensor.name, &tensor.shape, tensor.tensor_type, gguf.data(tensor).to_vec()).unwrap();
    }
    let shape = &gguf.tensor("token_embd.weight").unwrap().shape;
    let halves = (0..shape.iter().product::<u64>()).map(|i| half::f16::from_f32((i % 17) as f32 / 64.0 - 0.125));
    let bytes = halves.flat_map(half::f16::to_le_bytes).collect();
    writer.tensor_bytes("output.weight", shape, TensorType::F16, bytes).unwrap();
    let to = folder.join("half-head.gguf");
    writer.write(&to).unwrap();
    to
}

/// Bytes of the tensors that a pass reads in the file once all that can be is rearranged.
fn left_bytes(model: &Model) -> u64 {
    let gguf = model.gguf();
    ["token_embd.weight", "output.weight"].map(|name| gguf.data(gguf.tensor(name).unwrap()).len() as u64).iter().sum()
}

#[test]
fn progress_tells_of_all_bytes_on_every_way_of_loading() {
    let folder = tempfile::tempdir().unwrap();
    let path = with_head_of_halves(folder.path());
    let file_bytes = std::fs::metadata(&path).unwrap().len();
    for (mmap, repack) in [(true, Repack::Off), (false, Repack::Off), (true, Repack::Auto)] {
        let config = EngineConfig { mmap, repack, ..EngineConfig::default() };
        let told = AtomicU64::new(0);
        let tell = |done| {
            told.fetch_max(done, Ordering::Relaxed);
        };
        let model = Model::for_config(&path, &config, &tell).unwrap();
        let rearranged = model.repack_bytes();
        let has_strips = kernels::strips_bytes(kernels::Isa::detect(), TensorType::Q4_0, 256, 8).is_some();
        assert_eq!(rearranged > 0, repack == Repack::Auto && has_strips);
        let expected = if rearranged > 0 { rearranged + left_bytes(&model) } else { file_bytes };
        assert_eq!(told.into_inner(), expected, "mmap {mmap} {repack:?}");
    }
}

/// Whether the kernel keeps the page at this address in memory, as it says itself.
#[cfg(target_os = "linux")]
fn is_locked(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) {
            inside = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return flags.split_whitespace().any(|flag| flag == "lo");
        }
    }
    panic!("no mapping at {address:#x}")
}

#[cfg(target_os = "linux")]
#[test]
fn what_products_read_is_locked_also_where_the_head_has_no_strips() {
    let folder = tempfile::tempdir().unwrap();
    let path = with_head_of_halves(folder.path());
    let config = EngineConfig { mlock: true, ..EngineConfig::default() };
    let model = Model::for_config(&path, &config, &|_| {}).unwrap();
    let head = model.weights.head.rows_in_file(model.gguf()).data;
    assert!(!model.weights.head.is_packed() && model.weights.head.tensor_type() == TensorType::F16);
    if let Some(warning) = model.lock_warning() {
        // without the right to lock that much, the refusal is told, and nothing is claimed that is not so
        assert!(warning.contains("not locked in memory"), "{warning}");
        assert!(model.locked_bytes() < model.repack_bytes() + left_bytes(&model));
        return;
    }
    assert!(is_locked(head.as_ptr() as usize) && is_locked(head.as_ptr() as usize + head.len() - 1));
    let rearranged = model.rearranged.as_ref();
    assert!(rearranged.is_none_or(|all| is_locked(all.as_ptr() as usize)));
    let all = if rearranged.is_some() { model.repack_bytes() + left_bytes(&model) } else { model.gguf().file_bytes() };
    assert_eq!(model.locked_bytes(), all);
}

/// What is resident of the mapping at this address, KiB, as the kernel says itself.
#[cfg(target_os = "linux")]
fn resident_kib(address: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) {
            inside = (start..end).contains(&address);
        } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| inside) {
            return size.trim().trim_end_matches(" kB").parse().unwrap();
        }
    }
    panic!("no mapping holds {address:#x}");
}

/// Else a long prompt would hold an embedding of some hundred megabytes twice: in the file and as the head.
#[test]
#[cfg(target_os = "linux")]
fn rows_of_a_rearranged_embedding_are_let_go_after_some_hundred_tokens() {
    if kernels::strips_bytes(kernels::Isa::detect(), TensorType::Q4_0, 256, 8).is_none() {
        return eprintln!("SKIP rows_of_a_rearranged_embedding: this processor has no other layout");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/tiny-pd-1.3m-Q4_0.gguf");
    let config = EngineConfig { threads: 1, context_tokens: 600, ..EngineConfig::default() };
    let model = std::sync::Arc::new(Model::for_config(&path, &config, &|_| {}).unwrap());
    let embedding = model.weights.embedding.rows_in_file(model.gguf()).data;
    assert!(model.weights.head.is_packed() && model.weights.head.name() == model.weights.embedding.name());
    let mut session = Session::new(std::sync::Arc::clone(&model), &config).unwrap();
    let ids: Vec<u32> = (0..255).map(|i| (i * 37 + 11) % model.vocab() as u32).collect();
    let at = embedding.as_ptr() as usize + embedding.len() / 2;
    session.forward(&ids, Logits::None).unwrap();
    let (held, embedding_kib) = (resident_kib(at), embedding.len() as u64 / 1024);
    assert!(held >= embedding_kib / 2, "{held} KiB resident, of {embedding_kib} KiB that were looked up");
    session.forward(&ids[..1], Logits::None).unwrap();
    let left = resident_kib(at);
    assert!(left + embedding_kib / 2 <= held, "{left} KiB resident after {held}");
}

/// Whether weights are rearranged may be left to the free memory, since no answer depends on it.
#[test]
fn rearranged_weights_give_the_bits_that_rows_give_of_every_logit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|e| e == "gguf")) {
        let [rows, strips] = [Repack::Off, Repack::Auto].map(|repack| {
            let config = EngineConfig { repack, threads: 1, context_tokens: 64, ..EngineConfig::default() };
            let model = std::sync::Arc::new(Model::for_config(&path, &config, &|_| {}).unwrap());
            let mut session = Session::new(std::sync::Arc::clone(&model), &config).unwrap();
            let ids: Vec<u32> = (0..27).map(|i| (i * 37 + 11) % model.vocab() as u32).collect();
            let mut bits = Vec::new();
            // a prompt, then tokens one by one and a few together
            for step in [&ids[..17], &ids[17..18], &ids[18..19], &ids[19..22], &ids[22..]] {
                bits.extend(session.forward(step, Logits::All).unwrap().iter().map(|logit| logit.to_bits()));
            }
            bits
        });
        assert!(rows == strips, "{}", path.display());
    }
}
