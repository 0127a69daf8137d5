//! Keys and values of past tokens, in pages of 64 positions that are taken as the depth grows.
//!
//! A page holds 64 positions of every layer that sees the same part of the past: (layers, keys and values, kv_heads, 64,
//! row). One head's rows of a page lie together, in the order in which attention reads them. Address space is reserved
//! for all pages at once and becomes memory as it is written, first page first: what is held is one stretch, which the
//! system may back with huge pages, no table of pages is needed, and taking a page is not an allocation. Layers that see
//! a window only have fewer pages, which they use in turn.

mod pages;
mod policy;

pub use crate::protocol::KvPolicy;
pub use pages::{PAGE_POSITIONS, Place};
pub use policy::Span;

use crate::error::{EngineError, Result};
use crate::protocol::{EngineConfig, KvType};
use pages::{Arena, Slots};

/// What one layer needs of the cache.
#[derive(Debug, Clone, Copy)]
pub struct LayerWidths {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Positions that the layer sees, the token's own included; `None` is all.
    pub window: Option<usize>,
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheOptions {
    /// Element type of keys.
    pub key_type: KvType,
    /// Element type of values.
    pub value_type: KvType,
    /// What of the past is kept.
    pub policy: KvPolicy,
}

impl CacheOptions {
    /// As a configuration asks for.
    pub fn of(config: &EngineConfig) -> Self {
        Self { key_type: config.kv_type, value_type: config.value_type(), policy: config.kv_policy }
    }
}

/// One layer's part of the cache.
pub struct LayerCache<'a> {
    /// What `keys` and `values` are places in.
    pub bytes: &'a mut [u8],
    /// Where the keys are.
    pub keys: Place,
    /// Where the values are.
    pub values: Place,
    /// What a token sees.
    pub span: Span,
}

struct Layer {
    arena: usize,
    keys: Place,
    values: Place,
}

/// The cache of a session.
pub struct KvCache {
    layers: Vec<Layer>,
    arenas: Vec<Arena>,
    context_tokens: usize,
    /// Tokens that may be held at once; no limit for a policy that forgets.
    depth_max: usize,
    depth: usize,
}

impl KvCache {
    /// Reserves room for `context_tokens` positions of every layer, or for what the policy and the layers' windows keep
    /// of them when up to `batch_max` tokens are written at once. Usage errors for types and policies that do not fit;
    /// a system error with the size when the room cannot be had.
    pub fn new(
        layers: &[LayerWidths],
        options: &CacheOptions,
        context_tokens: usize,
        batch_max: usize,
    ) -> Result<Self> {
        let plan = Plan::new(layers, options, context_tokens, batch_max)?;
        let arenas = plan.arenas.iter().map(|a| Arena::reserve(a.span, a.slots, a.page_bytes));
        let arenas = arenas.collect::<Option<Vec<_>>>().ok_or_else(|| too_large(context_tokens))?;
        let layers = plan.layers.into_iter().map(|layer| Layer {
            keys: layer.keys.in_pages_of(arenas[layer.arena].page_bytes()),
            values: layer.values.in_pages_of(arenas[layer.arena].page_bytes()),
            ..layer
        });
        let depth_max = if options.policy == KvPolicy::Full { context_tokens } else { usize::MAX };
        Ok(Self { layers: layers.collect(), arenas, context_tokens, depth_max, depth: 0 })
    }

    /// What [`Self::bytes_max`] of such a cache would be; its usage errors, and nothing is reserved.
    pub fn bytes_max_of(
        layers: &[LayerWidths],
        options: &CacheOptions,
        context_tokens: usize,
        batch_max: usize,
    ) -> Result<u64> {
        let plan = Plan::new(layers, options, context_tokens, batch_max)?;
        let bytes = plan.arenas.iter().map(|a| a.slots.count() as u64 * a.page_bytes as u64);
        Ok(bytes.fold(0, u64::saturating_add))
    }

    /// The context asked for, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Tokens that still fit.
    pub fn room(&self) -> usize {
        self.depth_max - self.depth
    }

    /// Tokens that went in since the cache was empty; a policy may have dropped some of them.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Takes the pages that `tokens` more need; the caller is about to write them. Panics past the room.
    pub fn grow(&mut self, tokens: usize) {
        assert!(tokens <= self.room(), "{tokens} more tokens in a cache of {}", self.context_tokens);
        self.depth += tokens;
        for arena in &mut self.arenas {
            arena.take(self.depth);
        }
    }

    /// Forgets all tokens from `depth` on; does nothing when there are not that many. Returns the depth that is left:
    /// less than asked for when pages that would be needed again have been used for later tokens; then nothing is left.
    /// Pages stay taken.
    pub fn truncate(&mut self, depth: usize) -> usize {
        if depth < self.depth {
            self.depth = if self.arenas.iter().all(|a| a.holds_what_is_seen_from(depth)) { depth } else { 0 };
        }
        if self.depth == 0 {
            self.arenas.iter_mut().for_each(Arena::forget);
        }
        self.depth
    }

    /// Forgets all tokens, and gives back the pages that they did not use: the next conversation is likely as long as
    /// this one, not as the longest ever.
    pub fn clear(&mut self) {
        for arena in &mut self.arenas {
            arena.give_back_past(self.depth);
        }
        self.truncate(0);
    }

    /// One layer's part.
    pub fn layer(&mut self, layer: usize) -> LayerCache<'_> {
        let Layer { arena, keys, values } = self.layers[layer];
        let arena = &mut self.arenas[arena];
        LayerCache { span: arena.span(), bytes: arena.bytes(), keys, values }
    }

    /// Bytes of the pages taken.
    pub fn bytes(&self) -> u64 {
        self.arenas.iter().map(Arena::bytes_taken).sum()
    }

    /// Bytes of all pages, taken or not.
    pub fn bytes_max(&self) -> u64 {
        self.arenas.iter().map(Arena::bytes_max).sum()
    }
}

/// Which layers share pages, and where in a page each of them is.
struct Plan {
    layers: Vec<Layer>,
    arenas: Vec<PlannedArena>,
}

struct PlannedArena {
    span: Span,
    slots: Slots,
    page_bytes: usize,
}

fn too_large(context_tokens: usize) -> EngineError {
    EngineError::system(format!("no memory for a kv cache of {context_tokens} tokens"))
        .hint("ask for a smaller context")
}

impl Plan {
    /// For all layers. Usage errors for types and policies that do not fit, a system error when a size overflows.
    fn new(layers: &[LayerWidths], options: &CacheOptions, context_tokens: usize, batch_max: usize) -> Result<Self> {
        options.policy.check(context_tokens)?;
        for (dim, kv_type, what) in layers
            .iter()
            .flat_map(|l| [(l.key_dim, options.key_type, "keys"), (l.value_dim, options.value_type, "values")])
        {
            if kv_type.row_bytes(dim).is_none() {
                return Err(EngineError::usage(format!(
                    "{what} of {dim} elements cannot be cached as {}, which has blocks of 32",
                    kv_type.as_str()
                ))
                .hint("use f16 for this model"));
            }
        }
        let mut plan = Self { layers: Vec::with_capacity(layers.len()), arenas: Vec::new() };
        for widths in layers {
            plan.add(widths, options, context_tokens, batch_max).ok_or_else(|| too_large(context_tokens))?;
        }
        Ok(plan)
    }

    /// Adds one layer; `None` when a size overflows.
    fn add(&mut self, l: &LayerWidths, options: &CacheOptions, context: usize, batch_max: usize) -> Option<()> {
        let span = options.policy.span(l.window);
        let slots = Slots::for_span(span, options.policy, context, batch_max)?;
        let arena = self.arenas.iter().position(|a| a.span == span && a.slots == slots).unwrap_or_else(|| {
            self.arenas.push(PlannedArena { span, slots, page_bytes: 0 });
            self.arenas.len() - 1
        });
        let offset = self.arenas[arena].page_bytes;
        let keys = Place::new(options.key_type, l.key_dim, offset, slots)?;
        let values = Place::new(options.value_type, l.value_dim, offset + keys.bytes_in_page(l.kv_heads)?, slots)?;
        let page_bytes = values.offset_bytes().checked_add(values.bytes_in_page(l.kv_heads)?)?;
        self.arenas[arena].page_bytes = page_bytes;
        self.layers.push(Layer { arena, keys, values });
        Some(())
    }
}

#[cfg(test)]
mod tests;
