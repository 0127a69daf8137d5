//! Pages: which of them a position is in, and the memory that they are in.

use super::{KvPolicy, Span};
use crate::kernels::vector::attention::{CachedRows, TILE_KEYS};
use crate::protocol::KvType;
use memmap2::{MmapMut, MmapOptions};
use std::ops::Range;

/// Positions of a page: one tile of attention.
pub const PAGE_POSITIONS: usize = TILE_KEYS;

/// In which slot a page is: pages of the first positions have one of their own, all others take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slots {
    sinks: usize,
    ring: usize,
}

impl Slots {
    /// Enough for what is seen of a batch of up to `batch_max` tokens, and no more than a context with an end needs.
    /// `None` when a size overflows.
    pub(super) fn for_span(span: Span, policy: KvPolicy, context_tokens: usize, batch_max: usize) -> Option<Self> {
        let whole = context_tokens.checked_add(PAGE_POSITIONS - 1)? / PAGE_POSITIONS;
        let sinks = span.first.div_ceil(PAGE_POSITIONS);
        // the last token's window and all that the batch writes, wherever in a page that begins
        let ring = (span.last.saturating_add(batch_max) / PAGE_POSITIONS).saturating_add(2);
        let unending = policy != KvPolicy::Full;
        Some(if unending { Self { sinks, ring } } else { Self { sinks, ring: ring.min(whole.max(1)) } })
    }

    fn slot(self, page: usize) -> usize {
        if page < self.sinks { page } else { self.sinks + (page - self.sinks) % self.ring }
    }

    pub(super) fn count(self) -> usize {
        self.sinks + self.ring
    }
}

/// Where the keys or the values of one layer are.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    kv_type: KvType,
    dim: usize,
    row_bytes: usize,
    offset_bytes: usize,
    page_bytes: usize,
    slots: Slots,
}

impl Place {
    /// Rows of `dim` elements, from `offset_bytes` of each page on; `None` when such rows cannot be stored.
    pub(super) fn new(kv_type: KvType, dim: usize, offset_bytes: usize, slots: Slots) -> Option<Self> {
        Some(Self { kv_type, dim, row_bytes: kv_type.row_bytes(dim)?, offset_bytes, page_bytes: 0, slots })
    }

    pub(super) fn in_pages_of(self, page_bytes: usize) -> Self {
        Self { page_bytes, ..self }
    }

    pub(super) fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    pub(super) fn bytes_in_page(&self, kv_heads: usize) -> Option<usize> {
        kv_heads.checked_mul(PAGE_POSITIONS)?.checked_mul(self.row_bytes)
    }

    /// Elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Element type.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// The bytes of one head's rows at `positions`, which are of one page.
    pub fn bytes_of(&self, kv_head: usize, positions: Range<usize>) -> Range<usize> {
        let (page, row) = (positions.start / PAGE_POSITIONS, positions.start % PAGE_POSITIONS);
        assert!(row + positions.len() <= PAGE_POSITIONS, "{positions:?} are of several pages");
        let head = self.offset_bytes + kv_head * PAGE_POSITIONS * self.row_bytes;
        let start = self.slots.slot(page) * self.page_bytes + head + row * self.row_bytes;
        start..start + positions.len() * self.row_bytes
    }

    /// One head's rows at `positions`, which are of one page.
    pub fn rows<'a>(&self, bytes: &'a [u8], kv_head: usize, positions: Range<usize>) -> CachedRows<'a> {
        CachedRows { kv_type: self.kv_type, dim: self.dim, data: &bytes[self.bytes_of(kv_head, positions)] }
    }
}

/// The memory of all layers that see the same part of the past.
pub(super) struct Arena {
    memory: MmapMut,
    span: Span,
    slots: Slots,
    page_bytes: usize,
    slots_taken: usize,
    /// Pages written since the cache was empty, those that others have replaced included.
    pages_written: usize,
}

impl Arena {
    /// `None` when the address space cannot be had.
    pub(super) fn reserve(span: Span, slots: Slots, page_bytes: usize) -> Option<Self> {
        let bytes = slots.count().checked_mul(page_bytes)?.max(1);
        let memory = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().ok()?;
        // what is held is one stretch, so huge pages waste less than one of them; a refusal costs speed only
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        Some(Self { memory, span, slots, page_bytes, slots_taken: 0, pages_written: 0 })
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    pub(super) fn bytes_taken(&self) -> u64 {
        (self.slots_taken * self.page_bytes) as u64
    }

    pub(super) fn bytes_max(&self) -> u64 {
        (self.slots.count() * self.page_bytes) as u64
    }

    /// Counts the pages that `depth` tokens fill.
    pub(super) fn take(&mut self, depth: usize) {
        let pages = depth.div_ceil(PAGE_POSITIONS);
        self.pages_written = self.pages_written.max(pages);
        self.slots_taken = self.slots_taken.max(pages.min(self.slots.count()));
    }

    /// Whether nothing that a token at `position` or a later one sees has been replaced.
    pub(super) fn holds_what_is_seen_from(&self, position: usize) -> bool {
        let replaced = self.pages_written.saturating_sub(self.slots.count());
        let [_, last] = self.span.visible(position);
        replaced == 0 || last.start / PAGE_POSITIONS >= self.slots.sinks + replaced
    }

    /// Nothing of what was written is needed any more.
    pub(super) fn forget(&mut self) {
        self.pages_written = 0;
    }

    /// Gives back the memory of pages past those that `depth` tokens fill.
    pub(super) fn give_back_past(&mut self, depth: usize) {
        let keep = depth.div_ceil(PAGE_POSITIONS).min(self.slots.count());
        if keep >= self.slots_taken {
            return;
        }
        #[cfg(unix)]
        {
            // a system page that a kept page reaches into stays
            let start = (keep * self.page_bytes).next_multiple_of(SYSTEM_PAGE_BYTES_MAX);
            let end = self.slots_taken * self.page_bytes;
            if start < end {
                // SAFETY: the memory is private and anonymous, so it reads as zeroes afterwards; no page past the depth
                // is read before it is written again.
                let _ = unsafe {
                    self.memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
        }
        self.slots_taken = keep;
    }
}

/// The largest page of any system that we know, in bytes.
#[cfg(unix)]
const SYSTEM_PAGE_BYTES_MAX: usize = 64 << 10;
