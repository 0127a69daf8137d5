//! One conversation with a model: its cache, its workers, its buffers, and the forward pass.

mod pass;
mod scratch;

use super::Model;
use super::attention::AttentionScratch;
use super::cost::Batch;
use super::hyperparameters::{Hyperparameters, LayerShape};
use super::rope::RopeTables;
use crate::error::{EngineError, Result};
use crate::kernels::{Activations, Isa, vector};
use crate::kv_cache::{CacheOptions, KvCache, LayerWidths};
use crate::pool::Pool;
use crate::profile::{Operator, Profile, Recorder};
use crate::protocol::{EngineConfig, KvType};
use scratch::Scratch;
use std::sync::Arc;

/// Tokens that go through the network together.
pub const BATCH_TOKENS_MAX: usize = 512;
/// Most tokens that may go together with the numbers of single steps.
pub const EXACT_TOKENS_MAX: usize = 32;
/// Rows of an embedding that are looked up before what was read of it is let go.
const EMBEDDING_ROWS_KEPT: usize = 256;

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
    /// What products take of the residual stream and of attention's output.
    inputs: Activations,
    /// What the down projection takes.
    gated: Activations,
    /// Tokens of the largest batch that the buffers hold.
    buffer_tokens: usize,
    logits: Vec<f32>,
    logits_finite: bool,
    batch_max: usize,
    /// Rows of the embedding that were looked up since it was let go.
    looked_up: usize,
    /// How keys and values are cached.
    cached_types: (KvType, KvType),
    /// What the cache was filled with, from the first token on; no more of it than the context.
    held: Vec<u32>,
}

/// Elements of the longest input of a product other than the down projection.
fn widest_input(h: &Hyperparameters) -> usize {
    h.hidden.max(h.widest(|l| l.heads) * h.value_dim)
}

/// What each layer needs of the cache.
fn widths(h: &Hyperparameters) -> Vec<LayerWidths> {
    let of = |l: &LayerShape| LayerWidths {
        kv_heads: l.kv_heads,
        key_dim: h.key_dim,
        value_dim: h.value_dim,
        window: h.window_tokens.filter(|_| l.local),
    };
    h.layers.iter().map(of).collect()
}

fn context_of(config: &EngineConfig) -> Result<usize> {
    match config.context_tokens as usize {
        0 => Err(EngineError::usage("a context of 0 tokens holds nothing").hint("ask for at least 1 token")),
        context => Ok(context),
    }
}

impl Session {
    /// A session whose keys and values are kept as the configuration says.
    pub fn new(model: Arc<Model>, config: &EngineConfig) -> Result<Self> {
        Self::with_cache(model, config, &CacheOptions::of(config))
    }

    /// Reserves the cache, kept as `options` say instead of the configuration, and starts the workers. Usage errors for
    /// a configuration that makes no sense, system errors when memory or threads cannot be had.
    pub fn with_cache(model: Arc<Model>, config: &EngineConfig, options: &CacheOptions) -> Result<Self> {
        Self::build(model, config, options, BATCH_TOKENS_MAX)
    }

    /// The usage errors of [`Self::new`] for a model of those numbers, without taking memory or starting workers; else the
    /// bytes of KV cache that such a session comes to hold when its context is full.
    pub fn foresee(h: &Hyperparameters, config: &EngineConfig) -> Result<u64> {
        let context = context_of(config)?;
        Pool::decode_threads_of(config)?;
        KvCache::bytes_max_of(&widths(h), &CacheOptions::of(config), context, BATCH_TOKENS_MAX.min(context))
    }

    fn build(model: Arc<Model>, config: &EngineConfig, options: &CacheOptions, batch_max: usize) -> Result<Self> {
        let context = context_of(config)?;
        let h = model.hyperparameters();
        let batch_max = batch_max.min(context);
        let cache = KvCache::new(&widths(h), options, context, batch_max)?;
        let pool = Pool::for_config(config)?;
        let group = h.widest(|l| l.heads / l.kv_heads);
        let heads = h.widest(|l| l.heads);
        Ok(Self {
            ropes: RopeTables::new(h, model.weights.rope_divisors.as_deref(), 1),
            scratch: Scratch::new(h, 1),
            buffer_tokens: 1,
            attention: AttentionScratch::new(pool.threads(), heads, group, h.key_dim, h.value_dim),
            inputs: Activations::new(widest_input(h), 1),
            gated: Activations::new(h.widest(|l| l.ffn), 1),
            logits: vec![0.0; model.vocab()],
            logits_finite: true,
            batch_max,
            looked_up: 0,
            cached_types: (options.key_type, options.value_type),
            held: Vec::with_capacity(context),
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
        let batch_max = self.batch_max;
        let batches = ids.len().div_ceil(batch_max);
        for (i, batch) in ids.chunks(batch_max).enumerate() {
            self.remember(batch);
            let n = batch.len();
            if let Some(recorder) = self.pool.recorder() {
                recorder.begin_pass(n);
            }
            let (wanted, at) = match which {
                Logits::All => (n, i * batch_max * vocab),
                Logits::Last if i + 1 == batches => (1, 0),
                _ => (0, 0),
            };
            self.run_layers(batch, wanted, false);
            if wanted > 0 {
                self.run_head(n - wanted..n, at);
            }
        }
        let logits = &self.logits[..wanted];
        self.logits_finite &= vector::all_finite(self.model.isa, logits);
        self.rest();
        Ok(logits)
    }

    /// As [`forward`](Self::forward) with [`Logits::All`], and bit for bit what one call of it for each token would give,
    /// in the logits and in the cache: attention is made for one token after the other.
    /// At most [`EXACT_TOKENS_MAX`] tokens; usage errors as there, with nothing changed.
    pub fn forward_exact(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.check(ids)?;
        self.reserve_exact(ids.len())?;
        let (n, wanted) = (ids.len(), ids.len() * self.model.vocab());
        self.remember(ids);
        if let Some(recorder) = self.pool.recorder() {
            recorder.begin_pass(n);
        }
        self.run_layers(ids, n, true);
        self.run_head(0..n, 0);
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
        self.make_room(tokens);
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
        if ids.len() > self.cache.room() {
            return Err(EngineError::usage(format!(
                "{} tokens in the cache and {} more do not fit a context of {}",
                self.cache.depth(),
                ids.len(),
                self.cache.context_tokens()
            ))
            .hint("ask for a larger context, or for fewer tokens"));
        }
        Ok(())
    }

    /// Grows the buffers to batches of `n` tokens: a session that only decodes holds what one token needs. Their content is
    /// of no use after a batch, so the old ones go before the new ones come.
    fn make_room(&mut self, n: usize) {
        if n <= self.buffer_tokens {
            return;
        }
        // prompts of growing length must not each grow the buffers a little
        let room = n.next_power_of_two().min(self.batch_max).max(n);
        let h = &self.model.hyperparameters;
        self.scratch = Scratch::new(h, 0);
        self.scratch = Scratch::new(h, room);
        self.ropes = RopeTables::new(h, self.model.weights.rope_divisors.as_deref(), room);
        let widest = [widest_input(h), h.widest(|l| l.ffn)];
        for (buffer, cols_max) in [&mut self.inputs, &mut self.gated].into_iter().zip(widest) {
            *buffer = Activations::new(0, 0);
            *buffer = Activations::new(cols_max, room);
        }
        self.buffer_tokens = room;
    }

    /// Buffers and workers for a batch of `n` tokens.
    fn make_ready(&mut self, n: usize, exact: bool) {
        self.make_room(n);
        // a few tokens with the numbers of single steps cost about as much memory traffic as one
        let single = n == 1 || exact;
        let workers = if single { self.pool.decode_threads() } else { self.pool.prefill_threads() };
        self.pool.set_active(workers);
    }

    /// Records, from now on, what every operator of a pass takes.
    pub fn start_profile(&mut self) {
        let recorder = Recorder::new(self.pool.threads());
        self.pool.start_recording(recorder);
    }

    /// Ends the recording and returns it; `None` when there was none.
    pub fn take_profile(&mut self) -> Option<Profile> {
        self.pool.stop_recording().map(Recorder::finish)
    }

    /// The last position's logits (vocab) once more, after a pass that was asked for [`Logits::Last`].
    pub fn last_logits(&self) -> &[f32] {
        &self.logits[..self.model.vocab()]
    }

    /// For a profile: from now on a token is chosen from the last logits, until [`Self::rest`].
    pub fn mark_sampling(&self) {
        let batch = Batch { tokens: 1, wanted: 1, first: 0, cached: self.cached_types };
        self.pool.mark(Operator::Sampling, None, || self.model.cost(Operator::Sampling, 0, batch));
    }

    /// For a profile: what follows is not the engine's.
    pub fn rest(&self) {
        if let Some(recorder) = self.pool.recorder() {
            recorder.rest();
        }
    }

    /// Tokens in the cache.
    pub fn depth(&self) -> usize {
        self.cache.depth()
    }

    /// Forgets all tokens from `depth` on; does nothing when there are not that many. Returns the depth that is left:
    /// less than asked for, namely 0, when a cache that keeps a window only can no longer go back that far.
    pub fn truncate(&mut self, depth: usize) -> usize {
        let left = self.cache.truncate(depth);
        self.held.truncate(left);
        left
    }

    /// Forgets all but what the cache and `ids` have in common from the first token on, and returns how many tokens that
    /// is: those that need not be run again. The last of `ids` is never among them, since the logits after it are wanted.
    pub fn reuse_prefix(&mut self, ids: &[u32]) -> usize {
        let common = self.held.iter().zip(ids).take_while(|(held, id)| held == id).count();
        self.truncate(common.min(ids.len().saturating_sub(1)))
    }

    fn remember(&mut self, ids: &[u32]) {
        if self.held.len() == self.cache.depth() {
            let room = self.cache.context_tokens() - self.held.len();
            self.held.extend(ids.iter().take(room));
        }
    }

    /// Forgets all tokens, and that logits were not finite.
    pub fn clear(&mut self) {
        self.cache.clear();
        self.held.clear();
        self.logits_finite = true;
    }

    /// Whether every logit since the session began or was cleared has been a finite number.
    pub fn logits_finite(&self) -> bool {
        self.logits_finite
    }

    /// The context asked for, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.cache.context_tokens()
    }

    /// Tokens that still fit; without an end when the cache keeps a window only.
    pub fn room_tokens(&self) -> usize {
        self.cache.room()
    }

    /// Bytes of KV cache: of the pages taken so far.
    pub fn kv_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Bytes of KV cache once all its pages are taken.
    pub fn kv_bytes_max(&self) -> u64 {
        self.cache.bytes_max()
    }

    /// Bytes of scratch buffers, as allocated; they become resident as batches use them.
    pub fn scratch_bytes(&self) -> u64 {
        let logits = (self.logits.capacity() * size_of::<f32>()) as u64;
        let inputs = self.inputs.bytes() + self.gated.bytes();
        self.scratch.bytes() + self.attention.bytes() + self.ropes.bytes() + inputs + logits
    }

    /// Weights and cached keys and values that decoding the token at `position` reads, bytes.
    pub fn bytes_per_token(&self, position: usize) -> u64 {
        self.model.bytes_per_token(position, self.cached_types)
    }

    /// Element types of cached keys and of cached values.
    pub fn cached_types(&self) -> (KvType, KvType) {
        self.cached_types
    }

    /// Worker threads that serve one token at a time.
    pub fn threads_effective(&self) -> u32 {
        self.pool.decode_threads() as u32
    }

    /// Worker threads that serve a prompt.
    pub fn threads_batch_effective(&self) -> u32 {
        self.pool.prefill_threads() as u32
    }

    /// The core that each worker was to be pinned to; empty texts when none was.
    pub fn affinity_wanted(&self) -> Vec<String> {
        self.pool.affinity_wanted()
    }

    /// Where the kernel does not do now what was asked for, in words; empty when it does.
    pub fn affinity_faults(&self) -> Vec<String> {
        self.pool.affinity_faults()
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

#[cfg(test)]
mod tests;
