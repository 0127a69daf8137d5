//! What is read from metadata, and what is said when it or the tensors do not fit. Files are written byte by byte here,
//! so that this holds the reader to the format and not to our own writer.

use super::hyperparameters::*;
use super::weights::Weights;
use crate::error::Result;
use crate::gguf::{Gguf, LoadMode};
use proptest::prelude::*;

#[derive(Clone)]
enum Field {
    U32(u32),
    U64(u64),
    F32(f32),
    Text(&'static str),
    U32s(Vec<u32>),
    Bools(Vec<bool>),
}
use Field::*;

/// A file of that metadata and of zeroed F32 tensors.
fn file(fields: &[(String, Field)], tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    let text = |out: &mut Vec<u8>, s: &str| {
        out.extend((s.len() as u64).to_le_bytes());
        out.extend(s.as_bytes());
    };
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((fields.len() as u64).to_le_bytes());
    for (key, field) in fields {
        text(&mut out, key);
        let kind: u32 = match field {
            U32(_) => 4,
            U64(_) => 10,
            F32(_) => 6,
            Text(_) => 8,
            U32s(_) | Bools(_) => 9,
        };
        out.extend(kind.to_le_bytes());
        match field {
            U32(v) => out.extend(v.to_le_bytes()),
            U64(v) => out.extend(v.to_le_bytes()),
            F32(v) => out.extend(v.to_le_bytes()),
            Text(v) => text(&mut out, v),
            U32s(v) => {
                out.extend(4u32.to_le_bytes());
                out.extend((v.len() as u64).to_le_bytes());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Bools(v) => {
                out.extend(7u32.to_le_bytes());
                out.extend((v.len() as u64).to_le_bytes());
                v.iter().for_each(|&v| out.push(u8::from(v)));
            }
        }
    }
    let mut offset = 0u64;
    for (name, shape) in tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (shape.iter().product::<u64>() * 4).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32) + offset as usize, 0);
    out
}

fn open(bytes: &[u8]) -> Gguf {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Gguf::open(&path, LoadMode::Read).unwrap()
}

/// Metadata of a small network of that family, before `changes`.
fn fields(arch: &'static str, layers: u32, changes: &[(&str, Option<Field>)]) -> Vec<(String, Field)> {
    let mut all = vec![("general.architecture".to_owned(), Text(arch))];
    let plain = [
        ("context_length", U32(128)),
        ("embedding_length", U32(8)),
        ("block_count", U32(layers)),
        ("feed_forward_length", U32(16)),
        ("attention.head_count", U32(4)),
        ("attention.head_count_kv", U32(2)),
        ("attention.layer_norm_rms_epsilon", F32(1e-5)),
    ];
    all.extend(plain.into_iter().map(|(key, field)| (format!("{arch}.{key}"), field)));
    for (key, field) in changes {
        let key = if key.contains("general.") { (*key).to_owned() } else { format!("{arch}.{key}") };
        all.retain(|(k, _)| *k != key);
        all.extend(field.clone().map(|field| (key, field)));
    }
    all
}

fn read(arch: &'static str, layers: u32, changes: &[(&str, Option<Field>)]) -> Result<Hyperparameters> {
    Hyperparameters::from_metadata(open(&file(&fields(arch, layers, changes), &[])).metadata())
}

/// The tensors of a one-layer llama of [`fields`].
fn tensors() -> Vec<(String, Vec<u64>)> {
    let layer = [
        ("attn_norm", vec![8]),
        ("attn_q", vec![8, 8]),
        ("attn_k", vec![8, 4]),
        ("attn_v", vec![8, 4]),
        ("attn_output", vec![8, 8]),
        ("ffn_norm", vec![8]),
        ("ffn_gate", vec![8, 16]),
        ("ffn_up", vec![8, 16]),
        ("ffn_down", vec![16, 8]),
    ];
    let named = layer.into_iter().map(|(name, shape)| (format!("blk.0.{name}.weight"), shape));
    let mut all: Vec<_> = named.collect();
    all.push(("token_embd.weight".into(), vec![8, 32]));
    all.push(("output_norm.weight".into(), vec![8]));
    all
}

fn bind(tensors: &[(String, Vec<u64>)]) -> Result<()> {
    let gguf = open(&file(&fields("llama", 1, &[]), tensors));
    let h = Hyperparameters::from_metadata(gguf.metadata())?;
    Weights::bind(&gguf, &h).map(|_| ())
}

/// What an error says, with place and hint.
fn said<T>(outcome: Result<T>) -> String {
    outcome.err().expect("an error").to_string()
}

#[test]
fn an_unknown_architecture_is_named_with_those_that_are_known() {
    let said = said(read("mamba", 1, &[]));
    for word in ["`mamba`", "llama", "qwen2", "qwen3", "gemma3"] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn a_missing_key_is_named() {
    for key in ["context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"] {
        assert!(said(read("llama", 1, &[(key, None)])).contains(&format!("`llama.{key}`")), "{key}");
    }
    assert!(said(read("llama", 1, &[("general.architecture", None)])).contains("`general.architecture`"));
}

#[test]
fn one_number_stands_for_all_layers_and_an_array_for_each() {
    let h = read(
        "llama",
        2,
        &[("attention.head_count_kv", Some(U32s(vec![2, 1]))), ("feed_forward_length", Some(U32s(vec![16, 24])))],
    )
    .unwrap();
    let shapes: Vec<_> = h.layers.iter().map(|l| (l.heads, l.kv_heads, l.ffn, l.local)).collect();
    assert_eq!(shapes, [(4, 2, 16, false), (4, 1, 24, false)]);
    assert_eq!((h.key_dim, h.value_dim, h.rope_dims), (2, 2, 2));

    let said = said(read("llama", 2, &[("attention.head_count_kv", Some(U32s(vec![2])))]));
    assert!(said.contains("1 values for 2 layers") && said.contains("attention.head_count_kv"), "{said}");
}

#[test]
fn every_sixth_layer_of_gemma3_is_global_unless_the_file_says_otherwise() {
    let window = ("attention.sliding_window", Some(U32(64)));
    let local = |changes: &[(&str, Option<Field>)]| -> Vec<bool> {
        read("gemma3", 8, changes).unwrap().layers.iter().map(|l| l.local).collect()
    };
    let key = "attention.sliding_window_pattern";
    assert_eq!(local(std::slice::from_ref(&window)), [true, true, true, true, true, false, true, true]);
    assert_eq!(local(&[window.clone(), (key, Some(U32(2)))]), [true, false].repeat(4));
    let listed = vec![false, true, true, false, true, true, true, true];
    assert_eq!(local(&[window.clone(), (key, Some(Bools(listed.clone())))]), listed);
    assert_eq!(local(&[]), [false; 8]);

    let h = read("gemma3", 8, &[window, ("rope.freq_base", Some(F32(1e6))), ("rope.scaling.factor", Some(F32(8.0)))]);
    let h = h.unwrap();
    assert_eq!((h.rope_global.base, h.rope_global.position_scale), (1e6, 0.125));
    assert_eq!((h.rope_local.base, h.rope_local.position_scale), (1e4, 1.0));
    assert_eq!(h.embedding_scale, 8f32.sqrt());
}

#[test]
fn what_this_engine_cannot_compute_is_refused_by_name() {
    let said_of = |key, field| said(read("llama", 1, &[(key, Some(field))]));
    assert!(said_of("expert_count", U32(8)).contains("mixture-of-experts"));
    let longrope = said_of("rope.scaling.type", Text("longrope"));
    assert!(longrope.contains("`longrope`") && longrope.contains("yarn"), "{longrope}");
    assert!(said_of("attention.head_count_kv", U32(3)).contains("4 heads of layer 0"));
    assert!(said_of("rope.dimension_count", U32(6)).contains("rope.dimension_count"));
    assert!(said_of("attention.layer_norm_rms_epsilon", F32(f32::NAN)).contains("layer_norm_rms_epsilon"));
}

#[test]
fn yarn_is_read_with_its_defaults() {
    let h = read("qwen2", 1, &[("rope.scaling.type", Some(Text("yarn"))), ("rope.scaling.factor", Some(F32(4.0)))])
        .unwrap();
    let yarn = h.rope_global.yarn.unwrap();
    assert_eq!(h.rope_global.position_scale, 0.25);
    assert_eq!((yarn.context_before_tokens, yarn.beta_fast, yarn.beta_slow), (128.0, 32.0, 1.0));
}

#[test]
fn a_missing_tensor_is_named() {
    bind(&tensors()).unwrap();
    for i in 0..tensors().len() {
        let mut some = tensors();
        let (name, _) = some.remove(i);
        assert!(said(bind(&some)).contains(&format!("`{name}` is missing")), "{name}");
    }
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    for i in 0..tensors().len() {
        let mut some = tensors();
        some[i].1[0] += 8;
        let (name, found) = &some[i];
        let said = said(bind(&some));
        assert!(said.contains(&format!("`{name}` has shape {found:?}, expected ")), "{said}");
    }
}

#[test]
fn a_tensor_that_the_architecture_does_not_know_is_named() {
    let mut some = tensors();
    some.push(("blk.0.attn_sinks.weight".into(), vec![8]));
    assert!(said(bind(&some)).contains("`blk.0.attn_sinks.weight` is not known"));
}

proptest! {
    #[test]
    fn no_number_in_the_metadata_makes_it_panic(
        at in 0usize..12, value in prop_oneof![Just(0u64), Just(1), Just(u64::MAX), Just(1 << 32), any::<u64>(), 0u64..64],
        arch in prop::sample::select(vec!["llama", "qwen2", "qwen3", "gemma3"]),
    ) {
        let keys = [
            "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
            "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
            "attention.sliding_window", "attention.sliding_window_pattern", "expert_count",
        ];
        let window = ("attention.sliding_window", Some(U32(4)));
        let _ = read(arch, 3, &[window, (keys[at], Some(U64(value)))]);
    }
}
