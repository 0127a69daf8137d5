//! Models of noise: the shape, size and weight types of a real model before its weights exist. Speed and memory do not
//! depend on the values, so such a file shows whether a shape fits a device. Output is gibberish, and the tokenizer a
//! small byte-level one padded to the vocabulary's size.

use crate::error::{EngineError, Result};
use crate::gguf::{Metadata, TensorType, Value, Writer};
use crate::quant::quantise_row;
use crate::sampler::SplitMix64;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

/// Dimensions of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// `llama` or `qwen2`.
    pub architecture: &'static str,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the feed-forward part.
    pub ffn: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Longest context, tokens.
    pub context_tokens: u32,
    /// Whether the output matrix is the embedding matrix.
    pub tied: bool,
    /// Base of the rotary embedding.
    pub rope_base: u32,
}

/// The named shapes, from the public configurations of SmolLM2-135M, Llama-3.2-1B and -3B, Llama-2-7B and Qwen2.5-7B.
pub const NAMES: [&str; 5] = ["smollm2-135m", "llama-1b", "llama-3b", "llama-7b", "qwen-7b"];

/// Largest value of any dimension given by hand.
const DIMENSION_MAX: u32 = 1 << 20;
/// Most parameters of a shape given by hand.
const PARAMETERS_MAX: u64 = 200_000_000_000;
/// Noise that is made before it repeats, elements.
const TILE_ELEMENTS: usize = 1 << 18;
/// Two-byte merges of the tokenizer, commonest English pairs; `Ġ` stands for a space in byte-level vocabularies.
const MERGES: [&str; 12] = ["Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "e r", "Ġ s", "a t", "e n", "o r", "Ġt he"];
const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

impl Shape {
    /// One of [`NAMES`].
    pub fn named(name: &str) -> Option<Self> {
        let llama = |layers, hidden, ffn, heads, kv_heads, vocab, context_tokens, tied, rope_base| Self {
            architecture: "llama",
            layers,
            hidden,
            ffn,
            heads,
            kv_heads,
            head_dim: hidden / heads,
            vocab,
            context_tokens,
            tied,
            rope_base,
        };
        Some(match name {
            "smollm2-135m" => llama(30, 576, 1536, 9, 3, 49_152, 8192, true, 100_000),
            "llama-1b" => llama(16, 2048, 8192, 32, 8, 128_256, 131_072, true, 500_000),
            "llama-3b" => llama(28, 3072, 8192, 24, 8, 128_256, 131_072, true, 500_000),
            "llama-7b" => llama(32, 4096, 11_008, 32, 32, 32_000, 4096, false, 10_000),
            "qwen-7b" => {
                Self { architecture: "qwen2", ..llama(28, 3584, 18_944, 28, 4, 152_064, 32_768, false, 1_000_000) }
            }
            _ => return None,
        })
    }

    /// A name, or dimensions such as `layers=24,hidden=2048,ffn=8192,heads=32,kv-heads=8,vocab=32000`; further keys are
    /// `head-dim`, `context` and `tied` (0 or 1).
    ///
    /// # Errors
    /// An unknown name or key, a value out of range, dimensions that do not fit together.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(shape) = Self::named(text) {
            return Ok(shape);
        }
        if !text.contains('=') {
            return Err(EngineError::usage(format!("unknown shape `{text}`")).hint(format!(
                "known shapes: {}; or give dimensions: layers=24,hidden=2048,ffn=8192,heads=32,kv-heads=8,vocab=32000",
                NAMES.join(", ")
            )));
        }
        let mut given: HashMap<&str, u32> = HashMap::new();
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !["layers", "hidden", "ffn", "heads", "kv-heads", "head-dim", "vocab", "context", "tied"].contains(&key)
            {
                return Err(EngineError::usage(format!("unknown dimension `{key}`"))
                    .hint("dimensions are layers, hidden, ffn, heads, kv-heads, head-dim, vocab, context, tied"));
            }
            let number = value.parse::<u32>().ok().filter(|n| *n <= DIMENSION_MAX).ok_or_else(|| {
                EngineError::usage(format!("dimension `{key}`: `{value}` is not a number from 0 to {DIMENSION_MAX}"))
            })?;
            if given.insert(key, number).is_some() {
                return Err(EngineError::usage(format!("dimension `{key}` is given twice")));
            }
        }
        Self::from_dimensions(&given)
    }

    fn from_dimensions(given: &HashMap<&str, u32>) -> Result<Self> {
        let need = |key: &str| {
            given.get(key).copied().filter(|n| *n > 0).ok_or_else(|| {
                EngineError::usage(format!("dimension `{key}` is missing or zero"))
                    .hint("at least layers, hidden, ffn, heads and vocab are needed")
            })
        };
        let (hidden, heads) = (need("hidden")?, need("heads")?);
        let shape = Self {
            architecture: "llama",
            layers: need("layers")?,
            hidden,
            ffn: need("ffn")?,
            heads,
            kv_heads: given.get("kv-heads").copied().unwrap_or(heads),
            head_dim: given.get("head-dim").copied().unwrap_or(hidden / heads),
            vocab: need("vocab")?,
            context_tokens: given.get("context").copied().unwrap_or(8192),
            tied: given.get("tied").copied().unwrap_or(0) != 0,
            rope_base: 10_000,
        };
        shape.check()?;
        Ok(shape)
    }

    fn check(&self) -> Result<()> {
        let tokens_min = (256 + SPECIALS.len() + MERGES.len()) as u32;
        let fault = if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            format!("{} heads are no multiple of {} kv-heads", self.heads, self.kv_heads)
        } else if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            format!("head-dim {} is not an even number above zero", self.head_dim)
        } else if self.heads.checked_mul(self.head_dim).is_none_or(|width| width > DIMENSION_MAX) {
            format!("heads x head-dim is more than {DIMENSION_MAX}")
        } else if [self.hidden, self.ffn, self.heads * self.head_dim].iter().any(|width| !width.is_multiple_of(32)) {
            "hidden, ffn and heads x head-dim must be multiples of 32".to_owned()
        } else if self.vocab < tokens_min {
            format!("a vocabulary of {} tokens is too small, {tokens_min} are needed", self.vocab)
        } else if self.context_tokens == 0 {
            "context is zero".to_owned()
        } else if self.parameters() > PARAMETERS_MAX {
            format!("{} parameters are more than {PARAMETERS_MAX}", self.parameters())
        } else {
            return Ok(());
        };
        Err(EngineError::usage(fault))
    }

    /// Number of weights; as many as u64 counts when there are more.
    pub fn parameters(&self) -> u64 {
        let [hidden, ffn, heads, kv_heads, head_dim, vocab] =
            [self.hidden, self.ffn, self.heads, self.kv_heads, self.head_dim, self.vocab].map(u128::from);
        let layer = hidden * (2 * heads * head_dim + 2 * kv_heads * head_dim + 3 * ffn + 2);
        let ends = hidden * vocab * if self.tied { 1 } else { 2 } + hidden;
        u64::try_from(layer * u128::from(self.layers) + ends).unwrap_or(u64::MAX)
    }
}

/// Which weight type each matrix gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mix {
    base: TensorType,
    /// As converters do for `q4_k_m`: more bits for values, half of the down projections, and the output.
    medium: bool,
}

impl Mix {
    fn parse(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        if lower == "q4_k_m" {
            return Ok(Self { base: TensorType::Q4K, medium: true });
        }
        let known = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q6_k", "f16", "bf16", "f32"];
        match TensorType::from_name(&lower) {
            Some(base) if known.contains(&lower.as_str()) => Ok(Self { base, medium: false }),
            _ => Err(EngineError::usage(format!("unknown weight type `{name}`"))
                .hint(format!("known: {}, q4_k_m", known.join(", ")))),
        }
    }

    /// The type of a matrix with rows of `cols`: rows that are no multiple of 256 cannot use the K types.
    fn of(self, role: Role, cols: u32) -> TensorType {
        let wanted = match (role, self.base) {
            (Role::Output, TensorType::F32 | TensorType::F16 | TensorType::Bf16 | TensorType::Q8_0) => self.base,
            (Role::Output, _) => TensorType::Q6K,
            (Role::MoreBits, _) if self.medium => TensorType::Q6K,
            _ => self.base,
        };
        match wanted {
            TensorType::Q4K if !cols.is_multiple_of(256) => TensorType::Q5_0,
            TensorType::Q6K if !cols.is_multiple_of(256) => TensorType::Q8_0,
            other => other,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Plain,
    MoreBits,
    Output,
}

/// Writes a model of this shape. `quant` is `q4_0`, `q4_1`, `q5_0`, `q5_1`, `q8_0`, `q4_k`, `q4_k_m`, `q6_k`, `f16`,
/// `bf16` or `f32`. The same shape, type and seed give the same bytes.
///
/// # Errors
/// An unknown weight type, or the file cannot be written.
pub fn write(shape: &Shape, quant: &str, seed: u64, path: &Path) -> Result<()> {
    shape.check()?;
    let mix = Mix::parse(quant)?;
    let mut noise = Noise { random: SplitMix64::new(seed), tiles: HashMap::new() };
    let mut writer = Writer::new(metadata(shape, quant));
    let hidden = shape.hidden;
    let embedding = if shape.tied { Role::Output } else { Role::Plain };
    noise.matrix(&mut writer, "token_embd.weight", hidden, shape.vocab, mix.of(embedding, hidden))?;
    if !shape.tied {
        noise.matrix(&mut writer, "output.weight", hidden, shape.vocab, mix.of(Role::Output, hidden))?;
    }
    ones(&mut writer, "output_norm.weight", hidden)?;
    for layer in 0..shape.layers {
        write_layer(shape, mix, layer, &mut noise, &mut writer)?;
    }
    writer.write(path)
}

fn write_layer(shape: &Shape, mix: Mix, layer: u32, noise: &mut Noise, writer: &mut Writer<'_>) -> Result<()> {
    let (hidden, ffn) = (shape.hidden, shape.ffn);
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let eighth = shape.layers / 8;
    let outer = layer < eighth || layer >= 7 * shape.layers / 8;
    let more = if outer || (layer - eighth) % 3 == 2 { Role::MoreBits } else { Role::Plain };
    let name = |part: &str| format!("blk.{layer}.{part}");
    ones(writer, &name("attn_norm.weight"), hidden)?;
    ones(writer, &name("ffn_norm.weight"), hidden)?;
    for (part, cols, rows, role) in [
        ("attn_q", hidden, q, Role::Plain),
        ("attn_k", hidden, kv, Role::Plain),
        ("attn_v", hidden, kv, more),
        ("attn_output", q, hidden, Role::Plain),
        ("ffn_gate", hidden, ffn, Role::Plain),
        ("ffn_up", hidden, ffn, Role::Plain),
        ("ffn_down", ffn, hidden, more),
    ] {
        noise.matrix(writer, &name(&format!("{part}.weight")), cols, rows, mix.of(role, cols))?;
    }
    if shape.architecture == "qwen2" {
        for (part, length) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            let zeros = vec![0u8; 4 * length as usize];
            writer.tensor_bytes(name(&format!("{part}.bias")), &[length.into()], TensorType::F32, zeros)?;
        }
    }
    Ok(())
}

fn ones(writer: &mut Writer<'_>, name: &str, length: u32) -> Result<()> {
    let bytes = 1.0f32.to_le_bytes().repeat(length as usize);
    writer.tensor_bytes(name, &[length.into()], TensorType::F32, bytes)
}

/// Encoded noise, made once for each type and row length and then repeated.
struct Noise {
    random: SplitMix64,
    tiles: HashMap<(TensorType, u32), Rc<Vec<u8>>>,
}

impl Noise {
    fn matrix(
        &mut self,
        writer: &mut Writer<'_>,
        name: &str,
        cols: u32,
        rows: u32,
        tensor_type: TensorType,
    ) -> Result<()> {
        let tile = self.tile(tensor_type, cols)?;
        let total = tensor_type.row_bytes(cols as usize).unwrap_or(0) * rows as usize;
        let source = move |out: &mut dyn Write| {
            let mut left = total;
            while left > 0 {
                let n = left.min(tile.len());
                out.write_all(&tile[..n])?;
                left -= n;
            }
            Ok(())
        };
        writer.tensor(name, &[cols.into(), rows.into()], tensor_type, Box::new(source))
    }

    /// Whole rows of uniform noise whose products with a normalised vector have variance 1.
    fn tile(&mut self, tensor_type: TensorType, cols: u32) -> Result<Rc<Vec<u8>>> {
        if let Some(tile) = self.tiles.get(&(tensor_type, cols)) {
            return Ok(Rc::clone(tile));
        }
        let amplitude = (3.0 / f64::from(cols)).sqrt();
        let mut bytes = Vec::new();
        for _ in 0..TILE_ELEMENTS.div_ceil(cols as usize) {
            let row: Vec<f32> = (0..cols).map(|_| ((self.random.next_f64() * 2.0 - 1.0) * amplitude) as f32).collect();
            quantise_row(tensor_type, &row, &mut bytes)?;
        }
        let tile = Rc::new(bytes);
        self.tiles.insert((tensor_type, cols), Rc::clone(&tile));
        Ok(tile)
    }
}

fn metadata(shape: &Shape, quant: &str) -> Metadata {
    let mut metadata = Metadata::new();
    let arch = shape.architecture;
    let text = |s: &str| Value::String(s.to_owned());
    metadata.set("general.architecture", text(arch));
    metadata.set("general.name", text(&format!("synthetic {arch} of noise, {quant}")));
    for (key, value) in [
        ("block_count", shape.layers),
        ("context_length", shape.context_tokens),
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.vocab),
    ] {
        metadata.set(format!("{arch}.{key}"), Value::Unsigned(value.into()));
    }
    metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), Value::Float(1e-5));
    metadata.set(format!("{arch}.rope.freq_base"), Value::Float(shape.rope_base.into()));
    tokenizer(shape.vocab, &mut metadata);
    metadata
}

/// Byte-level BPE: special tokens, the 256 bytes, a few merges, and unused tokens up to the vocabulary's size.
fn tokenizer(vocab: u32, metadata: &mut Metadata) {
    let (normal, control, unused) = (1, 3, 5);
    let mut tokens: Vec<String> = SPECIALS.iter().map(|s| (*s).to_owned()).collect();
    tokens.extend((0u8..=255).map(|byte| byte_char(byte).to_string()));
    tokens.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    let used = tokens.len();
    tokens.extend((used..vocab as usize).map(|i| format!("<|unused_{i}|>")));
    let kind = |i: usize| match i {
        _ if i < SPECIALS.len() => control,
        _ if i < used => normal,
        _ => unused,
    };
    metadata.set("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    metadata.set("tokenizer.ggml.pre", Value::String("qwen2".to_owned()));
    metadata.set("tokenizer.ggml.token_type", Value::Integers((0..tokens.len()).map(kind).collect()));
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.set("tokenizer.ggml.merges", Value::Strings(MERGES.iter().map(|m| (*m).to_owned()).collect()));
    metadata.set("tokenizer.ggml.bos_token_id", Value::Unsigned(0));
    metadata.set("tokenizer.ggml.eos_token_id", Value::Unsigned(2));
    metadata.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
}

/// The printable character that stands for a byte in byte-level vocabularies (GPT-2's table): itself where it is printable
/// and no space, else the next free one from U+0100.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(0x100 + before).expect("68 characters from U+0100 on are all assigned")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, LoadMode};
    use crate::model::{LoadOptions, Logits, Model, Session};
    use crate::protocol::EngineConfig;
    use std::sync::Arc;

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
        let folder = tempfile::tempdir().unwrap();
        let shape = Shape::parse("layers=2,hidden=64,ffn=128,heads=4,kv-heads=2,vocab=300").unwrap();
        let make = |seed| {
            let path = folder.path().join(format!("{seed}.gguf"));
            write(&shape, "q4_0", seed, &path).unwrap();
            std::fs::read(path).unwrap()
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }

    #[test]
    fn the_file_has_the_parameters_and_types_of_its_shape() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let shape = Shape::parse("layers=8,hidden=256,ffn=512,heads=4,kv-heads=2,vocab=300,tied=1").unwrap();
        write(&shape, "q4_k_m", 1, &path).unwrap();
        let gguf = Gguf::open(&path, LoadMode::Map).unwrap();
        assert_eq!(gguf.parameters(), shape.parameters());
        assert_eq!(gguf.tensor("token_embd.weight").unwrap().tensor_type, TensorType::Q6K);
        assert_eq!(gguf.tensor("blk.0.ffn_down.weight").unwrap().tensor_type, TensorType::Q6K);
        assert_eq!(gguf.tensor("blk.0.ffn_up.weight").unwrap().tensor_type, TensorType::Q4K);
    }

    #[test]
    fn named_shapes_have_about_the_parameters_of_their_names() {
        for (name, millions) in
            [("smollm2-135m", 135), ("llama-1b", 1236), ("llama-3b", 3213), ("llama-7b", 6738), ("qwen-7b", 7616)]
        {
            let found = Shape::named(name).unwrap().parameters() / 1_000_000;
            assert!(found.abs_diff(millions) * 100 <= millions, "{name}: {found} M, {millions} M expected");
        }
    }

    #[test]
    fn a_synthetic_model_loads_and_its_logits_are_finite_and_differ() {
        let folder = tempfile::tempdir().unwrap();
        for (arch, quant) in [("llama", "q4_0"), ("llama", "q4_k_m"), ("llama", "bf16"), ("qwen2", "q5_1")] {
            let text = "layers=4,hidden=256,ffn=512,heads=4,kv-heads=2,vocab=300,context=64";
            let shape = Shape { architecture: arch, ..Shape::parse(text).unwrap() };
            let path = folder.path().join(format!("{arch}-{quant}.gguf"));
            write(&shape, quant, 7, &path).unwrap();
            let model = Model::load(&path, &LoadOptions { mmap: true, isa: None }).unwrap();
            let ids = model.tokenizer().encode("noise", true, true);
            let config = EngineConfig { threads: 1, context_tokens: 64, ..EngineConfig::default() };
            let mut session = Session::new(Arc::new(model), &config).unwrap();
            let logits = session.forward(&ids, Logits::Last).unwrap();
            let (low, high) =
                logits.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
            assert!(logits.iter().all(|x| x.is_finite()), "{arch} {quant}");
            assert!(high - low > 1.0 && high - low < 100.0, "{arch} {quant}: {low} to {high}");
        }
    }

    #[test]
    fn impossible_shapes_are_refused_with_a_reason() {
        for (text, word) in [
            ("llama-9b", "unknown shape"),
            ("layers=2", "`hidden` is missing"),
            ("layers=2,hidden=64,ffn=128,heads=4,kv-heads=3,vocab=300", "no multiple of 3 kv-heads"),
            ("layers=2,hidden=64,ffn=128,heads=4,vocab=10", "too small"),
            ("layers=2,hidden=-1", "not a number"),
            ("layers=2,layers=3", "given twice"),
            ("layer=2", "unknown dimension"),
            ("layers=1000000,hidden=1000000,ffn=1000000,heads=100,vocab=1000000", "more than"),
            ("layers=1,hidden=1024,ffn=64,heads=1000000,head-dim=1000000,vocab=300", "heads x head-dim"),
            ("layers=1048576,hidden=1048576,ffn=1048576,heads=32,vocab=1048576", "more than"),
        ] {
            let error = Shape::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(write(&Shape::named("smollm2-135m").unwrap(), "q9", 1, Path::new("/nowhere")).is_err());
    }
}
