//! Writes the first corpus of every fuzz target below `corpus/` of the current folder, which is `engine/fuzz`. The argument
//! is a folder of small GGUF files (`../../tests/data/models`). Of each, the metadata are kept with its lists cut short, and
//! no weights, since a fuzzer learns little from large inputs; whole models of a few kilobytes are made besides.

use farmgate_engine::gguf::{Gguf, LoadMode, Metadata, TensorType, Value, Writer};
use farmgate_engine::protocol::{
    Arm, CellPlan, DevicePlan, EngineConfig, ModelRef, PROTOCOL_VERSION, Record, Step, frame,
};
use std::error::Error;
use std::path::{Path, PathBuf};

const LIST_ELEMENTS_MAX: usize = 24;

fn main() -> Result<(), Box<dyn Error>> {
    let models = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("../../tests/data/models"), PathBuf::from);
    for target in ["gguf", "tokenizer", "journal"] {
        std::fs::create_dir_all(Path::new("corpus").join(target))?;
    }
    for entry in std::fs::read_dir(models)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "gguf") {
            let name = path.file_name().unwrap_or_default();
            let gguf = Gguf::open(&path, LoadMode::Map)?;
            Writer::new(shortened(gguf.metadata())).write(&Path::new("corpus/gguf").join(name))?;
        }
    }
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        smallest_model(architecture)?.write(&Path::new("corpus/gguf").join(format!("smallest-{architecture}.gguf")))?;
    }
    for model in 0..16u8 {
        let mut input = vec![model, 1, 2, 0, 1, if model > 7 { 0b1001 } else { 0 }, 7, b'\n'];
        input.extend("<unk>\n<s>\n</s>\na\nb\nab\nĠ\nĠa\n<0xC3>\n<0xA9>\n▁a\n'\n\na b\nĠ a\n\n".bytes());
        input.extend("ab <s> a'll  12é3\n\n\tABc </s>हि".bytes());
        std::fs::write(Path::new("corpus/tokenizer").join(format!("settings-{model:02}")), input)?;
    }
    let records = [Record::JournalEnd { interrupted: false }, Record::JournalEnd { interrupted: true }];
    let lines =
        (0u64..).zip(records).map(|(seq, record)| frame::encode(&frame::Framed { seq, time_us: 5 * seq, record }));
    std::fs::write("corpus/journal/lines", lines.collect::<Result<String, _>>()?)?;
    std::fs::write("corpus/journal/plan", serde_json::to_string(&plan())?)?;
    Ok(())
}

fn plan() -> DevicePlan {
    let model = ModelRef { path: "m.gguf".into(), sha256: vec!["0".repeat(64)] };
    let cell = CellPlan {
        cell: 0,
        scenario: "decode".into(),
        arm: Arm::Candidate,
        pair: 0,
        slot: 0,
        model,
        config: EngineConfig::default(),
        steps: vec![Step::Load { cold: true }, Step::Decode { decode_tokens: 8, at_depth: 0, repetitions: 2 }],
        seed: 1,
        load_timeout_ms: 1000,
        cell_timeout_ms: 1000,
        about_heat: false,
    };
    DevicePlan {
        protocol_version: PROTOCOL_VERSION,
        run: "r".into(),
        device: "d".into(),
        telemetry_period_ms: 0,
        retries_max: 1,
        lease_token: Some(3),
        ready: farmgate_engine::protocol::ReadyCriteria::default(),
        cells: vec![cell],
    }
}

fn shortened(metadata: &Metadata) -> Metadata {
    let mut out = Metadata::new();
    for (key, value) in metadata.iter() {
        let value = match value.clone() {
            Value::Strings(mut v) => {
                v.truncate(LIST_ELEMENTS_MAX);
                Value::Strings(v)
            }
            Value::Integers(mut v) => {
                v.truncate(LIST_ELEMENTS_MAX);
                Value::Integers(v)
            }
            Value::Floats(mut v) => {
                v.truncate(LIST_ELEMENTS_MAX);
                Value::Floats(v)
            }
            other => other,
        };
        out.set(key, value);
    }
    out
}

/// One layer of width 32, twelve tokens: some ten kilobytes that load and run.
fn smallest_model(architecture: &str) -> Result<Writer<'static>, Box<dyn Error>> {
    let mut metadata = Metadata::new();
    let mut set = |key: &str, value: Value| metadata.set(key, value);
    set("general.architecture", Value::String(architecture.into()));
    let numbers = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
    ];
    for (key, number) in numbers {
        set(&format!("{architecture}.{key}"), Value::Unsigned(number));
    }
    set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::Float(1e-5));
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "Ġ", "Ġa", "<0x0A>", "c", "d", "e"].map(String::from);
    set("tokenizer.ggml.model", Value::String("gpt2".into()));
    set("tokenizer.ggml.pre", Value::String("qwen2".into()));
    set("tokenizer.ggml.tokens", Value::Strings(tokens.to_vec()));
    set("tokenizer.ggml.merges", Value::Strings(vec!["a b".into(), "Ġ a".into()]));
    set("tokenizer.ggml.token_type", Value::Integers(vec![2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1]));
    set("tokenizer.ggml.eos_token_id", Value::Unsigned(2));
    let mut writer = Writer::new(metadata);
    let matrices = [
        ("token_embd", 12),
        ("blk.0.attn_q", 32),
        ("blk.0.attn_k", 16),
        ("blk.0.attn_v", 16),
        ("blk.0.attn_output", 32),
        ("blk.0.ffn_gate", 32),
        ("blk.0.ffn_up", 32),
        ("blk.0.ffn_down", 32),
    ];
    for (name, rows) in matrices {
        // a block: scale 0x2c00 (1/16), then 32 codes
        let block = [0x00u8, 0x2c].into_iter().chain((0..32).map(|i| i * 7)).collect::<Vec<_>>();
        writer.tensor_bytes(format!("{name}.weight"), &[32, rows], TensorType::Q8_0, block.repeat(rows as usize))?;
    }
    let norms = [("output_norm", 32), ("blk.0.attn_norm", 32), ("blk.0.ffn_norm", 32)];
    let head_norms = [("blk.0.attn_q_norm", 16), ("blk.0.attn_k_norm", 16)];
    let post_norms = [("blk.0.post_attention_norm", 32), ("blk.0.post_ffw_norm", 32)];
    let with_heads = if matches!(architecture, "qwen3" | "gemma3") { &head_norms[..] } else { &[] };
    let with_post = if architecture == "gemma3" { &post_norms[..] } else { &[] };
    for &(name, width) in norms.iter().chain(with_heads).chain(with_post) {
        let ones = 1f32.to_le_bytes().repeat(width as usize);
        writer.tensor_bytes(format!("{name}.weight"), &[width], TensorType::F32, ones)?;
    }
    if architecture == "qwen2" {
        for (name, width) in [("attn_q", 32), ("attn_k", 16), ("attn_v", 16)] {
            let zeroes = vec![0; 4 * width as usize];
            writer.tensor_bytes(format!("blk.0.{name}.bias"), &[width], TensorType::F32, zeroes)?;
        }
    }
    Ok(writer)
}
