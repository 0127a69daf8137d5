//! One conversation with a model: its cache, its workers, its buffers, and the forward pass.

use super::Model;
use super::apart::EXACT_TOKENS_MAX;
use super::attention::{Attention, AttentionScratch};
use super::hyperparameters::Hyperparameters;
use super::operators::Operators;
use super::rope::RopeTables;
use crate::error::{EngineError, Result};
use crate::kernels::{Activations, Isa, vector};
use crate::kv_cache::{KvCache, LayerWidths};
use crate::pool::Pool;
use crate::protocol::{EngineConfig, KvType};
use std::sync::Arc;

/// Tokens that go through the network together.
pub const BATCH_TOKENS_MAX: usize = 512;
/// Which positions' logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// None: the tokens only fill the cache.
    None,
    /// The last position's.
    Last,
    /// Every position's.
    All,
}

/// A session: everything that one sequence of tokens needs besides the model. Belongs to the thread that made it, which
/// is its first worker.
pub struct Session {
    model: Arc<Model>,
    pool: Pool,
    cache: KvCache,
    ropes: RopeTables,
    scratch: Scratch,
    attention: AttentionScratch,
    activations: Activations,
    /// For each token of an exact batch; none until one is asked for.
    apart: Vec<Activations>,
    logits: Vec<f32>,
    logits_finite: bool,
}

/// Buffers of one batch, each (n, width) for n tokens.
struct Scratch {
    residual: Vec<f32>, // (n, hidden)
    branch: Vec<f32>,   // (n, hidden): what goes into and comes out of attention and feed-forward
    query: Vec<f32>,    // (n, heads * key_dim)
    key: Vec<f32>,      // (n, kv_heads * key_dim)
    value: Vec<f32>,    // (n, kv_heads * value_dim)
    mixed: Vec<f32>,    // (n, heads * value_dim)
    gate: Vec<f32>,     // (n, ffn)
    up: Vec<f32>,       // (n, ffn)
}

impl Scratch {
    fn new(h: &Hyperparameters, n: usize) -> Self {
        let of = |width: usize| vec![0.0; width * n];
        Self {
            residual: of(h.hidden),
            branch: of(h.hidden),
            query: of(h.widest(|l| l.heads) * h.key_dim),
            key: of(h.widest(|l| l.kv_heads) * h.key_dim),
            value: of(h.widest(|l| l.kv_heads) * h.value_dim),
            mixed: of(h.widest(|l| l.heads) * h.value_dim),
            gate: of(h.widest(|l| l.ffn)),
            up: of(h.widest(|l| l.ffn)),
        }
    }

    fn bytes(&self) -> u64 {
        let all =
            [&self.residual, &self.branch, &self.query, &self.key, &self.value, &self.mixed, &self.gate, &self.up];
        all.iter().map(|v| size_of_val(&v[..]) as u64).sum()
    }
}

/// Elements of the longest input of a product.
fn widest_input(h: &Hyperparameters) -> usize {
    h.hidden.max(h.widest(|l| l.ffn)).max(h.widest(|l| l.heads) * h.value_dim)
}

impl Session {
    /// Takes the cache, starts the workers. Usage errors for a configuration that makes no sense, system errors when
    /// memory or threads cannot be had.
    pub fn new(model: Arc<Model>, config: &EngineConfig) -> Result<Self> {
        let context = config.context_tokens as usize;
        if context == 0 {
            return Err(EngineError::usage("a context of 0 tokens holds nothing").hint("ask for at least 1 token"));
        }
        // the one type that there is; a new one must not be taken for it
        let KvType::F16 = config.kv_type;
        let h = model.hyperparameters();
        let widths: Vec<LayerWidths> = h
            .layers
            .iter()
            .map(|l| LayerWidths { kv_heads: l.kv_heads, key_dim: h.key_dim, value_dim: h.value_dim })
            .collect();
        let cache = KvCache::new(&widths, context)?;
        let pool = Pool::new(config.threads as usize)?;
        let batch_max = BATCH_TOKENS_MAX.min(context);
        let k_max = widest_input(h);
        let group = h.widest(|l| l.heads / l.kv_heads);
        let heads = h.widest(|l| l.heads);
        Ok(Self {
            ropes: RopeTables::new(h, model.weights.rope_divisors.as_deref(), batch_max),
            scratch: Scratch::new(h, batch_max),
            attention: AttentionScratch::new(pool.threads(), heads, group, h.key_dim, h.value_dim, context),
            activations: Activations::new(k_max, batch_max),
            apart: Vec::new(),
            logits: vec![0.0; model.vocab()],
            logits_finite: true,
            model,
            pool,
            cache,
        })
    }

    /// Runs `ids` through the network after what the cache holds, and returns the logits asked for: (1, vocab) for
    /// `Last`, (n, vocab) for `All`, nothing for `None`. Usage errors, with nothing changed, for no tokens, for a token
    /// outside the vocabulary, and for more tokens than the context has room for.
    pub fn forward(&mut self, ids: &[u32], which: Logits) -> Result<&[f32]> {
        self.check(ids)?;
        let vocab = self.model.vocab();
        let wanted = match which {
            Logits::None => 0,
            Logits::Last => vocab,
            Logits::All => ids.len().saturating_mul(vocab),
        };
        self.reserve_logits(wanted)?;
        let batches = ids.len().div_ceil(BATCH_TOKENS_MAX);
        for (i, batch) in ids.chunks(BATCH_TOKENS_MAX).enumerate() {
            self.run_layers(batch, false);
            let n = batch.len();
            match which {
                Logits::All => self.run_head(0..n, i * BATCH_TOKENS_MAX * vocab, false),
                Logits::Last if i + 1 == batches => self.run_head(n - 1..n, 0, false),
                _ => {}
            }
        }
        let logits = &self.logits[..wanted];
        self.logits_finite &= vector::all_finite(self.model.isa, logits);
        Ok(logits)
    }

    /// As [`forward`](Self::forward) with [`Logits::All`], and bit for bit what one call of it for each token would give,
    /// in the logits and in the cache: slower than a batch, faster than single steps, since weights are read once.
    /// At most [`EXACT_TOKENS_MAX`] tokens; usage errors as there, with nothing changed.
    pub fn forward_exact(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.check(ids)?;
        self.reserve_exact(ids.len())?;
        let (n, wanted) = (ids.len(), ids.len() * self.model.vocab());
        self.run_layers(ids, true);
        self.run_head(0..n, 0, true);
        let logits = &self.logits[..wanted];
        self.logits_finite &= vector::all_finite(self.model.isa, logits);
        Ok(logits)
    }

    /// Takes the memory for [`forward_exact`](Self::forward_exact) of up to `tokens` tokens, which then takes none. A
    /// usage error beyond [`EXACT_TOKENS_MAX`], a system error when the memory cannot be had.
    pub fn reserve_exact(&mut self, tokens: usize) -> Result<()> {
        if tokens > EXACT_TOKENS_MAX {
            return Err(EngineError::usage(format!(
                "{tokens} tokens are too many for an exact batch, at most {EXACT_TOKENS_MAX} (EXACT_TOKENS_MAX)"
            )));
        }
        let k_max = widest_input(&self.model.hyperparameters);
        while self.apart.len() < tokens {
            self.apart.push(Activations::new(k_max, 1));
        }
        self.reserve_logits(tokens * self.model.vocab())
    }

    fn reserve_logits(&mut self, wanted: usize) -> Result<()> {
        if self.logits.len() < wanted {
            self.logits
                .try_reserve_exact(wanted - self.logits.len())
                .map_err(|_| EngineError::system(format!("no memory for {wanted} logits")))?;
            self.logits.resize(wanted, 0.0);
        }
        Ok(())
    }

    fn check(&self, ids: &[u32]) -> Result<()> {
        if ids.is_empty() {
            return Err(EngineError::usage("no tokens to process").hint("the prompt is empty"));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.model.vocab()) {
            let vocab = self.model.vocab();
            return Err(EngineError::usage(format!("token {id} is outside the vocabulary of {vocab}"))
                .hint("were these ids made with another model's tokenizer?"));
        }
        let (depth, room) = (self.cache.depth(), self.cache.context_tokens());
        if ids.len() > room - depth {
            return Err(EngineError::usage(format!(
                "{depth} tokens in the cache and {} more do not fit a context of {room}",
                ids.len()
            ))
            .hint("ask for a larger context, or for fewer tokens"));
        }
        Ok(())
    }

    /// Embeds a batch and takes it through all layers; leaves the residual stream in the scratch and the cache grown.
    /// `exact`: with the numbers of single steps.
    fn run_layers(&mut self, ids: &[u32], exact: bool) {
        let Self { model, pool, cache, ropes, scratch, attention, activations, apart, .. } = self;
        let (h, weights, n, first) = (&model.hyperparameters, &model.weights, ids.len(), cache.depth());
        let positions = cache.positions();
        let apart = exact.then_some(&mut apart[..]);
        let mut ops = Operators { pool, isa: model.isa, gguf: &model.gguf, activations, apart, n, eps: h.norm_eps };
        let residual = &mut scratch.residual[..n * h.hidden]; // (n, hidden)
        let branch = &mut scratch.branch[..n * h.hidden]; // (n, hidden)

        for (row, &id) in residual.chunks_exact_mut(h.hidden).zip(ids) {
            weights.embedding.widen_row(&model.gguf, id as usize, row);
        }
        if h.embedding_scale != 1.0 {
            vector::scale(model.isa, residual, h.embedding_scale);
        }
        ropes.fill(first, n);

        for (i, (layer, shape)) in weights.layers.iter().zip(&h.layers).enumerate() {
            let query = &mut scratch.query[..n * shape.heads * h.key_dim]; // (n, heads, key_dim)
            let key = &mut scratch.key[..n * shape.kv_heads * h.key_dim]; // (n, kv_heads, key_dim)
            let value = &mut scratch.value[..n * shape.kv_heads * h.value_dim]; // (n, kv_heads, value_dim)
            let mixed = &mut scratch.mixed[..n * shape.heads * h.value_dim]; // (n, heads, value_dim)
            let gate = &mut scratch.gate[..n * shape.ffn]; // (n, ffn)
            let up = &mut scratch.up[..n * shape.ffn]; // (n, ffn)

            ops.norm(residual, &layer.attention_norm, branch);
            ops.project(
                branch,
                &mut [(&layer.query, &mut *query), (&layer.key, &mut *key), (&layer.value, &mut *value)],
            );
            let (rope, rotation, cached) = (ropes.of(shape.local), h.rotation(), cache.layer(i));
            ops.shift(query, layer.query_bias.as_deref());
            ops.shift(key, layer.key_bias.as_deref());
            ops.shift(value, layer.value_bias.as_deref());
            ops.turn(query, h.key_dim, layer.query_norm.as_deref(), rope, rotation);
            ops.turn(key, h.key_dim, layer.key_norm.as_deref(), rope, rotation);
            ops.store(key, h.key_dim, &mut cached.keys, positions, first);
            ops.store(value, h.value_dim, &mut cached.values, positions, first);
            let attend = |first: usize| Attention {
                isa: model.isa,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                key_dim: h.key_dim,
                value_dim: h.value_dim,
                window: h.window_tokens.filter(|_| shape.local).unwrap_or(usize::MAX),
                scale: h.attention_scale,
                cap: h.attention_cap,
                first,
                keys: &cached.keys,
                values: &cached.values,
                positions,
            };
            // all tokens at once, or each as the single one that it must look like
            let rows = if exact { 1 } else { n };
            let (query_len, mixed_len) = (rows * shape.heads * h.key_dim, rows * shape.heads * h.value_dim);
            for (i, (query, mixed)) in query.chunks_exact(query_len).zip(mixed.chunks_exact_mut(mixed_len)).enumerate()
            {
                attend(first + i).run(pool, attention, query, mixed);
            }
            ops.project(mixed, &mut [(&layer.output, &mut *branch)]);
            ops.join(residual, branch, layer.output_bias.as_deref(), layer.attention_post_norm.as_deref());

            ops.norm(residual, &layer.ffn_norm, branch);
            ops.project(branch, &mut [(&layer.gate, &mut *gate), (&layer.up, &mut *up)]);
            ops.gate(h.architecture.gate(), gate, up);
            ops.project(gate, &mut [(&layer.down, &mut *branch)]);
            ops.join(residual, branch, None, layer.ffn_post_norm.as_deref());
        }
        cache.set_depth(first + n);
    }

    /// Final norm and output head for `tokens` of the last batch; logits go to `self.logits[at..]`.
    fn run_head(&mut self, tokens: std::ops::Range<usize>, at: usize, exact: bool) {
        let Self { model, pool, scratch, activations, apart, logits, .. } = self;
        let (h, weights, n) = (&model.hyperparameters, &model.weights, tokens.len());
        let apart = exact.then_some(&mut apart[..]);
        let mut ops = Operators { pool, isa: model.isa, gguf: &model.gguf, activations, apart, n, eps: h.norm_eps };
        let residual = &scratch.residual[tokens.start * h.hidden..tokens.end * h.hidden]; // (n, hidden)
        let branch = &mut scratch.branch[..n * h.hidden]; // (n, hidden)
        let logits = &mut logits[at..at + n * model.vocab()]; // (n, vocab)

        ops.norm(residual, &weights.head_norm, branch);
        ops.project(branch, &mut [(&weights.head, &mut *logits)]);
        if let Some(cap) = h.logit_cap {
            vector::soft_cap(model.isa, logits, cap);
        }
    }

    /// Tokens in the cache.
    pub fn depth(&self) -> usize {
        self.cache.depth()
    }

    /// Forgets all tokens from `depth` on; does nothing when there are not that many.
    pub fn truncate(&mut self, depth: usize) {
        self.cache.set_depth(depth.min(self.cache.depth()));
    }

    /// Forgets all tokens, and that logits were not finite.
    pub fn clear(&mut self) {
        self.cache.set_depth(0);
        self.logits_finite = true;
    }

    /// Whether every logit since the session began or was cleared has been a finite number.
    pub fn logits_finite(&self) -> bool {
        self.logits_finite
    }

    /// Room in the cache, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.cache.context_tokens()
    }

    /// Bytes of KV cache, as allocated.
    pub fn kv_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Bytes of scratch buffers, as allocated; they become resident as batches use them.
    pub fn scratch_bytes(&self) -> u64 {
        let logits = (self.logits.capacity() * size_of::<f32>()) as u64;
        let apart: u64 = self.apart.iter().map(Activations::bytes).sum();
        self.scratch.bytes() + self.attention.bytes() + self.ropes.bytes() + self.activations.bytes() + apart + logits
    }

    /// Worker threads running.
    pub fn threads_effective(&self) -> u32 {
        self.pool.threads() as u32
    }

    /// `Cpus_allowed_list` of each worker, as the kernel has it now.
    pub fn affinity_effective(&self) -> Vec<String> {
        self.pool.affinity()
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.model.isa
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }
}
