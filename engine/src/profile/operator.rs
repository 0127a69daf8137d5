//! The operators of a pass and what they cost, as profiles name them.

/// A step of the forward pass, as it shows in a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Rows of the embedding, widened.
    Embedding,
    /// Norm before attention, rounded.
    AttentionNorm,
    /// Queries, keys and values; keys and values are turned (bias, head norm, rotation) and stored.
    Qkv,
    /// Queries are turned; scores, softmax and weighted values.
    Attention,
    /// Attention's output, rounded, into the hidden width; added to the residual stream where no bias or norm comes first.
    OutputProjection,
    /// Bias and norm of attention's output where there are any, and adding it to the residual stream.
    AttentionResidual,
    /// Norm before the feed-forward part, rounded.
    FfnNorm,
    /// Gate and up projections, and the activated gate times up, rounded.
    GateUp,
    /// Down projection, added to the residual stream where no norm comes first.
    Down,
    /// Norm of the feed-forward part where there is one, and adding it to the residual stream.
    FfnResidual,
    /// Norm before the head, rounded.
    HeadNorm,
    /// Logits, their cap and the check that they are finite.
    Head,
    /// Choosing a token.
    Sampling,
}

impl Operator {
    /// All of them, in the order of a pass.
    pub const ALL: [Self; 13] = [
        Self::Embedding,
        Self::AttentionNorm,
        Self::Qkv,
        Self::Attention,
        Self::OutputProjection,
        Self::AttentionResidual,
        Self::FfnNorm,
        Self::GateUp,
        Self::Down,
        Self::FfnResidual,
        Self::HeadNorm,
        Self::Head,
        Self::Sampling,
    ];

    /// As tables and traces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::AttentionNorm => "attention norm",
            Self::Qkv => "qkv",
            Self::Attention => "attention",
            Self::OutputProjection => "output projection",
            Self::AttentionResidual => "attention residual",
            Self::FfnNorm => "ffn norm",
            Self::GateUp => "gate + up",
            Self::Down => "down",
            Self::FfnResidual => "ffn residual",
            Self::HeadNorm => "head norm",
            Self::Head => "head",
            Self::Sampling => "sampling",
        }
    }
}

/// What kind of pass an operator belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Several tokens at once.
    Prefill,
    /// One token.
    Decode,
}

impl Phase {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// As tables and traces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What an operator reads, writes and computes. Every byte counts once a call, however often caches serve it again;
/// operations are those of matrix products and of attention, a multiply-add being two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Rows of weight matrices.
    pub rows: u64,
    /// Weights read, as stored.
    pub weight_bytes: u64,
    /// Keys and values read or written, as cached.
    pub kv_bytes: u64,
    /// Other vectors read or written.
    pub activation_bytes: u64,
    /// On floats.
    pub f32_operations: u64,
    /// On int8 codes.
    pub int8_operations: u64,
}

impl Cost {
    /// Bytes of all kinds.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.kv_bytes + self.activation_bytes
    }

    /// Operations of both kinds.
    pub fn operations(&self) -> u64 {
        self.f32_operations + self.int8_operations
    }

    /// Adds another call's.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.weight_bytes += other.weight_bytes;
        self.kv_bytes += other.kv_bytes;
        self.activation_bytes += other.activation_bytes;
        self.f32_operations += other.f32_operations;
        self.int8_operations += other.int8_operations;
    }
}
