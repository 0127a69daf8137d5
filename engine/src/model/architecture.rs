//! The families of networks, and what each fixes that its files do not state.

use super::hyperparameters::{LayerShape, Rope};
use crate::error::{EngineError, Result};

/// A family of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, Mistral, TinyLlama, SmolLM2.
    Llama,
    /// Qwen2 and Qwen2.5: biases of query, key and value.
    Qwen2,
    /// Qwen3: norms of query and key heads.
    Qwen3,
    /// Gemma 3 text models: norms before and after each part, GELU, local and global layers.
    Gemma3,
}

/// How the pairs that rotate together lie in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Neighbours: (0, 1), (2, 3), ...
    Interleaved,
    /// Half a head apart: (0, n/2), (1, n/2 + 1), ...
    Halves,
}

/// The gate of the feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// x * sigmoid(x).
    Silu,
    /// GELU in its tanh form.
    Gelu,
}

impl Architecture {
    /// All families.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma3];

    /// The family's name in `general.architecture`, also the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
        }
    }

    /// The family of that name; a model error that lists the known ones otherwise.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|a| a.name()).collect();
            // untrusted text: bounded and without control characters
            let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            EngineError::model(format!("architecture `{shown}` is not supported"))
                .at("general.architecture")
                .hint(format!("known: {}", known.join(", ")))
        })
    }

    /// How heads are rotated.
    pub fn rotation(self) -> Rotation {
        match self {
            Self::Llama => Rotation::Interleaved,
            Self::Qwen2 | Self::Qwen3 | Self::Gemma3 => Rotation::Halves,
        }
    }

    /// The gate of the feed-forward part.
    pub fn gate(self) -> Gate {
        match self {
            Self::Gemma3 => Gate::Gelu,
            _ => Gate::Silu,
        }
    }

    /// Whether query and key heads have norms.
    pub fn has_head_norms(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3)
    }

    /// Whether query, key and value must have biases. (Where they need not, they may.)
    pub fn needs_qkv_biases(self) -> bool {
        self == Self::Qwen2
    }

    /// Whether attention and feed-forward outputs have norms before they join the residual stream.
    pub fn has_post_norms(self) -> bool {
        self == Self::Gemma3
    }

    pub(super) fn embedding_scale(self, hidden: usize) -> f32 {
        match self {
            Self::Gemma3 => (hidden as f32).sqrt(),
            _ => 1.0,
        }
    }

    /// Gemma 3 27B alone scales by the width per head instead of the head's own; its files are told by their 62 layers.
    pub(super) fn attention_scale(self, hidden: usize, key_dim: usize, layers: &[LayerShape]) -> f32 {
        const GEMMA3_27B_LAYERS: usize = 62;
        let width = match self {
            Self::Gemma3 if layers.len() == GEMMA3_27B_LAYERS => hidden as f32 / layers[0].heads as f32,
            _ => key_dim as f32,
        };
        1.0 / width.sqrt()
    }

    /// Every how many layers one is global, where the file does not say; 0 means none is.
    pub(super) fn window_period(self) -> usize {
        match self {
            Self::Gemma3 => 6,
            _ => 0,
        }
    }

    pub(super) fn local_base(self, global: f32) -> f32 {
        match self {
            Self::Gemma3 => 10_000.0,
            _ => global,
        }
    }

    /// Gemma 3's local layers are not stretched.
    pub(super) fn local_rope(self, global: Rope) -> Rope {
        match self {
            Self::Gemma3 => Rope { position_scale: 1.0, yarn: None, ..global },
            _ => global,
        }
    }
}
