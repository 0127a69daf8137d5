//! What kind of network a file holds: everything read from its metadata, checked for sense, with an error that names
//! the key.

use super::architecture::{Architecture, Rotation};
use crate::error::{EngineError, Result};
use crate::gguf::Metadata;

/// More layers than this are refused.
pub const LAYERS_MAX: usize = 1024;
/// Widths beyond this are refused; no published model comes near, and products of two of them stay within 64 bits.
const WIDTH_MAX: u64 = 1 << 24;

/// The numbers of a network. Per-layer figures are per layer throughout, also where most files state one for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Context the model was trained for, in tokens.
    pub context_trained_tokens: usize,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Width of a query and key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// The layers, first to last.
    pub layers: Vec<LayerShape>,
    /// Leading elements of each head that are rotated.
    pub rope_dims: usize,
    /// Rotation of layers that see everything.
    pub rope_global: Rope,
    /// Rotation of layers that see a window.
    pub rope_local: Rope,
    /// Positions that a local layer sees, itself included; `None` when no layer is local.
    pub window_tokens: Option<usize>,
    /// Factor of query x key products.
    pub attention_scale: f32,
    /// Soft cap of attention scores.
    pub attention_cap: Option<f32>,
    /// Soft cap of logits.
    pub logit_cap: Option<f32>,
    /// Factor of embeddings as they enter the residual stream.
    pub embedding_scale: f32,
}

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of the feed-forward part.
    pub ffn: usize,
    /// Whether the layer sees only a window of the context.
    pub local: bool,
}

/// How positions become angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f32,
    /// Factor of positions: 1 / the context's stretch.
    pub position_scale: f32,
    /// YaRN's blend of stretched and unstretched angles.
    pub yarn: Option<Yarn>,
}

/// YaRN: high frequencies keep their angles, low ones are stretched, with a ramp in between (arXiv 2309.00071).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Context before stretching, in tokens.
    pub context_before_tokens: f32,
    /// Extra factor of the rotated values.
    pub attention_factor: f32,
    /// Rotations over the old context above which a frequency is kept.
    pub beta_fast: f32,
    /// Rotations below which it is fully stretched.
    pub beta_slow: f32,
}

impl Hyperparameters {
    /// Reads the metadata. Errors are model errors that name the key; an unknown architecture is named together with
    /// those that are known.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let name = metadata.str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
        let architecture = Architecture::from_name(name)?;
        let keys = Keys { metadata, prefix: architecture.name() };
        keys.refuse_experts()?;

        let hidden = keys.width("embedding_length")?;
        let layer_count = keys.required("block_count")?;
        if layer_count == 0 || layer_count > LAYERS_MAX as u64 {
            return Err(EngineError::model(format!("{layer_count} layers are outside 1..={LAYERS_MAX}"))
                .at(keys.name("block_count")));
        }
        let window_tokens = keys.optional("attention.sliding_window")?.filter(|&w| w > 0).map(|w| w as usize);
        let layers = read_layers(&keys, architecture, layer_count as usize, window_tokens.is_some())?;
        let key_dim = match keys.optional_width("attention.key_length")? {
            Some(dim) => dim,
            None => hidden_per_head(&keys, hidden, layers[0].heads)?,
        };
        let value_dim = match keys.optional_width("attention.value_length")? {
            Some(dim) => dim,
            None => hidden_per_head(&keys, hidden, layers[0].heads)?,
        };
        let rope_dims = keys.optional_width("rope.dimension_count")?.unwrap_or(key_dim);
        if rope_dims > key_dim || !rope_dims.is_multiple_of(2) {
            return Err(EngineError::model(format!("{rope_dims} rotated dimensions do not fit heads of {key_dim}"))
                .at(keys.name("rope.dimension_count")));
        }
        let context = keys.required("context_length")?;
        let rope_global = read_rope(&keys, context)?;
        let base_local = keys.float("rope.freq_base_swa")?.unwrap_or_else(|| architecture.local_base(rope_global.base));
        Ok(Self {
            architecture,
            hidden,
            context_trained_tokens: usize::try_from(context).unwrap_or(usize::MAX),
            norm_eps: keys
                .positive("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| missing(&keys.name("attention.layer_norm_rms_epsilon")))?,
            key_dim,
            value_dim,
            rope_dims,
            rope_global,
            rope_local: Rope { base: base_local, ..architecture.local_rope(rope_global) },
            window_tokens,
            attention_scale: match keys.positive("attention.scale")? {
                Some(scale) => scale,
                None => architecture.attention_scale(hidden, key_dim, &layers),
            },
            attention_cap: keys.positive("attn_logit_softcapping")?,
            logit_cap: keys.positive("final_logit_softcapping")?,
            embedding_scale: architecture.embedding_scale(hidden),
            layers,
        })
    }

    /// How each head's pairs are laid out.
    pub fn rotation(&self) -> Rotation {
        self.architecture.rotation()
    }

    /// The largest of a per-layer figure.
    pub fn widest(&self, figure: impl Fn(&LayerShape) -> usize) -> usize {
        self.layers.iter().map(figure).max().unwrap_or(0)
    }
}

/// Keys under the architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

fn missing(key: &str) -> EngineError {
    EngineError::model(format!("metadata key `{key}` is missing")).hint("convert the model again with a current tool")
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn optional(&self, key: &str) -> Result<Option<u64>> {
        self.metadata.u64(&self.name(key))
    }

    fn required(&self, key: &str) -> Result<u64> {
        self.optional(key)?.ok_or_else(|| missing(&self.name(key)))
    }

    fn optional_width(&self, key: &str) -> Result<Option<usize>> {
        self.optional(key)?.map(|value| self.check_width(key, value)).transpose()
    }

    fn width(&self, key: &str) -> Result<usize> {
        self.check_width(key, self.required(key)?)
    }

    fn check_width(&self, key: &str, value: u64) -> Result<usize> {
        if value == 0 || value > WIDTH_MAX {
            return Err(EngineError::model(format!("{value} is outside 1..={WIDTH_MAX}")).at(self.name(key)));
        }
        Ok(value as usize)
    }

    fn float(&self, key: &str) -> Result<Option<f32>> {
        let value = self.metadata.f32(&self.name(key))?;
        if let Some(value) = value.filter(|v| !v.is_finite()) {
            return Err(EngineError::model(format!("{value} is not a finite number")).at(self.name(key)));
        }
        Ok(value)
    }

    /// A number above zero; zero stands for "not used" in several keys and counts as absent.
    fn positive(&self, key: &str) -> Result<Option<f32>> {
        match self.float(key)? {
            Some(value) if value < 0.0 => Err(EngineError::model(format!("{value} is negative")).at(self.name(key))),
            value => Ok(value.filter(|&v| v > 0.0)),
        }
    }

    /// One figure per layer: a scalar counts for all, an array must have one element per layer.
    fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>> {
        let name = self.name(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(None) };
        let values = match value.integers() {
            Some(values) => values
                .into_iter()
                .map(|n| u64::try_from(n).map_err(|_| EngineError::model(format!("{n} is negative")).at(name.clone())))
                .collect::<Result<Vec<u64>>>()?,
            None => vec![self.required(key)?; layers],
        };
        if values.len() != layers {
            return Err(EngineError::model(format!("{} values for {layers} layers", values.len())).at(name));
        }
        values.into_iter().map(|value| self.check_width(key, value)).collect::<Result<Vec<usize>>>().map(Some)
    }

    fn refuse_experts(&self) -> Result<()> {
        match self.optional("expert_count")? {
            Some(experts) if experts > 0 => {
                Err(EngineError::model(format!("mixture-of-experts models are not supported ({experts} experts)"))
                    .at(self.name("expert_count")))
            }
            _ => Ok(()),
        }
    }
}

fn hidden_per_head(keys: &Keys<'_>, hidden: usize, heads: usize) -> Result<usize> {
    if !hidden.is_multiple_of(heads) {
        return Err(EngineError::model(format!(
            "{hidden} is no multiple of {heads} heads, and no key_length is given"
        ))
        .at(keys.name("embedding_length")));
    }
    Ok(hidden / heads)
}

fn read_layers(keys: &Keys<'_>, arch: Architecture, count: usize, windowed: bool) -> Result<Vec<LayerShape>> {
    let required = |key: &str| keys.per_layer(key, count)?.ok_or_else(|| missing(&keys.name(key)));
    let heads = required("attention.head_count")?;
    let kv_heads = keys.per_layer("attention.head_count_kv", count)?.unwrap_or_else(|| heads.clone());
    let ffn = required("feed_forward_length")?;
    let local = if windowed { local_layers(keys, arch, count)? } else { vec![false; count] };
    (0..count)
        .map(|i| {
            if !heads[i].is_multiple_of(kv_heads[i]) {
                let what = format!("{} heads of layer {i} are no multiple of {} kv heads", heads[i], kv_heads[i]);
                return Err(EngineError::model(what).at(keys.name("attention.head_count_kv")));
            }
            Ok(LayerShape { heads: heads[i], kv_heads: kv_heads[i], ffn: ffn[i], local: local[i] })
        })
        .collect()
}

/// Which layers see a window only: by a pattern array, or every layer but each n-th.
fn local_layers(keys: &Keys<'_>, arch: Architecture, count: usize) -> Result<Vec<bool>> {
    let key = "attention.sliding_window_pattern";
    if let Some(pattern) = keys.metadata.get(&keys.name(key)).and_then(|value| value.integers()) {
        if pattern.len() != count {
            let what = format!("{} values for {count} layers", pattern.len());
            return Err(EngineError::model(what).at(keys.name(key)));
        }
        return Ok(pattern.into_iter().map(|local| local != 0).collect());
    }
    let period = match keys.optional(key)? {
        Some(period) => period as usize,
        None => arch.window_period(),
    };
    // period 0: no layer is global
    Ok((0..count).map(|i| period == 0 || i % period != period - 1).collect())
}

fn read_rope(keys: &Keys<'_>, context_trained: u64) -> Result<Rope> {
    let base = keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
    let kind = keys.metadata.str(&keys.name("rope.scaling.type"))?.unwrap_or("linear");
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.positive("rope.scale_linear")?.unwrap_or(1.0),
    };
    let plain = Rope { base, position_scale: 1.0, yarn: None };
    match kind {
        "none" => Ok(plain),
        "linear" => Ok(Rope { position_scale: 1.0 / factor, ..plain }),
        "yarn" => Ok(Rope {
            position_scale: 1.0 / factor,
            yarn: Some(Yarn {
                context_before_tokens: keys.optional("rope.scaling.original_context_length")?.unwrap_or(context_trained)
                    as f32,
                attention_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
                beta_fast: keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            }),
            ..plain
        }),
        other => Err(EngineError::model(format!("rope scaling `{other}` is not supported"))
            .at(keys.name("rope.scaling.type"))
            .hint("known: none, linear, yarn")),
    }
}
