//! Keys and values of past tokens, in half precision, allocated once.
//!
//! Layout of a layer's keys: (kv_heads, positions, key_dim), so that one head's keys lie together in the order in which
//! attention reads them; values likewise. Memory is taken zeroed from the system and becomes resident as it is written.

use crate::error::{EngineError, Result};
use half::f16;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Positions are allocated in multiples of this, so that a reader may take whole tiles.
pub const POSITIONS_STEP: usize = 64;

/// What one layer needs of the cache.
#[derive(Debug, Clone, Copy)]
pub struct LayerWidths {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

/// One layer's part of the cache.
pub struct LayerCache {
    /// (kv_heads, positions, key_dim)
    pub keys: Halves,
    /// (kv_heads, positions, value_dim)
    pub values: Halves,
}

/// The cache of a session.
pub struct KvCache {
    layers: Vec<LayerCache>,
    context_tokens: usize,
    positions: usize,
    depth: usize,
}

impl KvCache {
    /// Takes the memory for `context_tokens` positions of every layer. A system error with the size when it cannot be
    /// had.
    pub fn new(layers: &[LayerWidths], context_tokens: usize) -> Result<Self> {
        let too_large = || {
            EngineError::system(format!("no memory for a kv cache of {context_tokens} tokens"))
                .hint("ask for a smaller context")
        };
        let positions = context_tokens.checked_next_multiple_of(POSITIONS_STEP).ok_or_else(too_large)?;
        let take = |heads: usize, dim: usize| {
            let elements = heads.checked_mul(dim).and_then(|n| n.checked_mul(positions)).ok_or_else(too_large)?;
            Halves::zeroed(elements).ok_or_else(too_large)
        };
        let layers = layers
            .iter()
            .map(|l| Ok(LayerCache { keys: take(l.kv_heads, l.key_dim)?, values: take(l.kv_heads, l.value_dim)? }))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { layers, context_tokens, positions, depth: 0 })
    }

    /// Room, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Positions from one head to the next in a layer's arrays: the room, rounded up.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Tokens held.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Sets the number of tokens held; the caller has written those that are new. Panics past the room.
    pub fn set_depth(&mut self, depth: usize) {
        assert!(depth <= self.context_tokens, "{depth} tokens in a cache of {}", self.context_tokens);
        self.depth = depth;
    }

    /// One layer's arrays.
    pub fn layer(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|l| (size_of_val(&l.keys[..]) + size_of_val(&l.values[..])) as u64).sum()
    }
}

/// A fixed array of halves on cache-line boundaries, zeroed by the system on first touch instead of here and now.
pub struct Halves {
    start: NonNull<f16>,
    len: usize,
}

// SAFETY: an owned array of plain numbers.
unsafe impl Send for Halves {}
// SAFETY: shared access only reads.
unsafe impl Sync for Halves {}

impl Halves {
    const ALIGN_BYTES: usize = 64;

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.checked_mul(size_of::<f16>())?, Self::ALIGN_BYTES).ok()
    }

    /// `None` when the memory cannot be had.
    fn zeroed(len: usize) -> Option<Self> {
        let layout = Self::layout(len)?;
        if layout.size() == 0 {
            return Some(Self { start: NonNull::dangling(), len });
        }
        // SAFETY: the layout has a size; zero bytes are a valid f16.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast())?;
        Some(Self { start, len })
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        if self.len > 0 {
            let Some(layout) = Self::layout(self.len) else { handle_alloc_error(Layout::new::<f16>()) };
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl Deref for Halves {
    type Target = [f16];
    fn deref(&self) -> &[f16] {
        // SAFETY: `len` elements were allocated at `start` (or none are wanted), initialised to zero.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Halves {
    fn deref_mut(&mut self) -> &mut [f16] {
        // SAFETY: as above, and uniquely borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: LayerWidths = LayerWidths { kv_heads: 3, key_dim: 64, value_dim: 32 };

    #[test]
    fn room_is_rounded_up_to_whole_tiles_and_counted_as_allocated() {
        let mut cache = KvCache::new(&[WIDTHS, WIDTHS], 65).unwrap();
        assert_eq!((cache.context_tokens(), cache.positions()), (65, 128));
        assert_eq!(cache.bytes(), 2 * 128 * 3 * (64 + 32) * 2);
        assert!(cache.layer(1).values.iter().all(|v| v.to_bits() == 0));
    }

    #[test]
    fn an_impossible_context_is_refused_with_its_size() {
        for tokens in [usize::MAX, usize::MAX / 2, 1 << 55] {
            let error = KvCache::new(&[WIDTHS], tokens).err().unwrap();
            assert!(error.what().contains(&tokens.to_string()), "{error}");
        }
    }
}
