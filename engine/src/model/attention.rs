//! Causal attention over the cache, with query heads sharing key and value heads in groups.
//!
//! The query heads of one group are the rows of one small matrix product, so that keys and values are read once per
//! group. What a token sees comes in tiles, each within a page of the cache. One token: split over (kv head x part of the
//! tiles), merged at the end; while a tile's keys are scored its values are fetched, and while those are mixed the next
//! tile's keys, so that memory is never waited for twice. Many tokens: split over (kv head x block of tokens), each tile
//! widened once for the block. Either way with a running softmax.

use super::turn::Turn;
use crate::kernels::Isa;
use crate::kernels::vector::attention::{
    Queries, QueryBuffer, Rows, TILE_KEYS, gather_values, multiply_accumulate, score_keys, widen, widen_transposed,
};
use crate::kernels::vector::{exp_and_sum, max, scale, soft_cap};
use crate::kv_cache::{LayerCache, Place, Span};
use crate::pool::{Pool, SharedSlice};
use std::ops::Range;

/// Rows (tokens x heads of a group) that share one widened tile, at most: their buffers stay in the second-level cache.
const BLOCK_ROWS: usize = 96;
/// Rows that a product takes at once.
const PRODUCT_ROWS: usize = 6;
/// Most parts into which one token's attention is split.
const PARTS_MAX: usize = 16;
/// Tiles below which splitting further does not pay.
const PART_TILES_MIN: usize = 2;
/// Multiply-adds below which waking the other workers does not pay.
const ALONE_BELOW: usize = 32 * 1024;

/// One layer's attention for one batch.
pub struct Attention<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Factor of scores.
    pub scale: f32,
    /// Soft cap of scores.
    pub cap: Option<f32>,
    /// Position of the first query's token.
    pub first: usize,
    /// What queries go through first; nothing for `None`.
    pub turn: Option<Turn<'a>>,
    /// Which token of the batch the first query's is.
    pub token: usize,
    /// What a token sees.
    pub span: Span,
    /// What `keys` and `values` are places in.
    pub cached: &'a [u8],
    /// Where the keys are.
    pub keys: Place,
    /// Where the values are.
    pub values: Place,
}

/// Buffers of attention, allocated once for a model.
pub struct AttentionScratch {
    per_worker: Vec<f32>,
    worker_len: usize,
    records: Vec<f32>,
    /// For each worker.
    queries: Vec<QueryBuffer>,
}

impl AttentionScratch {
    /// Room for any batch of a model with at most `heads` query heads, at most `group` of them sharing a kv head.
    pub fn new(workers: usize, heads: usize, group: usize, key_dim: usize, value_dim: usize) -> Self {
        let rows = block_tokens(group) * group;
        let many = rows * (key_dim + TILE_KEYS + value_dim + 2) + TILE_KEYS * (key_dim + value_dim);
        let one = group * TILE_KEYS;
        let worker_len = many.max(one).next_multiple_of(32);
        Self {
            per_worker: vec![0.0; worker_len * workers],
            worker_len,
            records: vec![0.0; heads * PARTS_MAX * (value_dim + 2)],
            queries: (0..workers).map(|_| QueryBuffer::new(group, key_dim)).collect(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let queries: u64 = self.queries.iter().map(QueryBuffer::bytes).sum();
        (size_of_val(&self.per_worker[..]) + size_of_val(&self.records[..])) as u64 + queries
    }
}

/// Tokens of a block: such that no product is left with a few rows, where that can be had.
fn block_tokens(group: usize) -> usize {
    let even = (1..PRODUCT_ROWS).find(|tokens| (tokens * group).is_multiple_of(PRODUCT_ROWS)).unwrap_or(PRODUCT_ROWS);
    let tokens = BLOCK_ROWS / group;
    if tokens < even { tokens.max(1) } else { tokens / even * even }
}

/// Splits a worker's scratch into named pieces.
fn carve<const N: usize>(mut scratch: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| {
        let (piece, rest) = std::mem::take(&mut scratch).split_at_mut(len);
        scratch = rest;
        piece
    })
}

/// Positions, in runs that lie within a page each.
struct Tiles([Range<usize>; 2]);

impl Tiles {
    fn in_range(range: &Range<usize>) -> usize {
        if range.is_empty() { 0 } else { (range.end - 1) / TILE_KEYS - range.start / TILE_KEYS + 1 }
    }

    fn count(&self) -> usize {
        self.0.iter().map(Self::in_range).sum()
    }

    fn positions(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    fn get(&self, i: usize) -> Range<usize> {
        let before = Self::in_range(&self.0[0]);
        let (range, i) = if i < before { (&self.0[0], i) } else { (&self.0[1], i - before) };
        let start = (range.start / TILE_KEYS + i) * TILE_KEYS;
        start.max(range.start)..range.end.min(start + TILE_KEYS)
    }
}

/// One token's attention, as its parts see it.
struct One {
    tiles: Tiles,
    parts: usize,
    part_tiles: usize,
}

impl<'a> Attention<'a> {
    /// Attention over one layer's cache.
    pub fn over(cache: &'a LayerCache<'_>, isa: Isa, (heads, kv_heads): (usize, usize), first: usize) -> Self {
        let LayerCache { bytes, keys, values, span } = cache;
        let (keys, values, span) = (*keys, *values, *span);
        Self {
            isa,
            heads,
            kv_heads,
            scale: 1.0,
            cap: None,
            first,
            turn: None,
            token: 0,
            span,
            cached: bytes,
            keys,
            values,
        }
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// `out` (n, heads * value_dim) from `queries` (n, heads * key_dim); the batch's own keys are in the cache already.
    pub fn run(&self, pool: &Pool, scratch: &mut AttentionScratch, queries: &[f32], out: &mut [f32]) {
        let tokens = queries.len() / (self.heads * self.keys.dim());
        if tokens == 1 { self.one(pool, scratch, queries, out) } else { self.many(pool, scratch, queries, out) }
    }

    /// One token: each part's weighted values, maximum and sum, then the merge.
    fn one(&self, pool: &Pool, scratch: &mut AttentionScratch, query: &[f32], out: &mut [f32]) {
        let AttentionScratch { per_worker, worker_len, records, queries } = scratch;
        let tiles = Tiles(self.span.visible(self.first));
        let work = tiles.positions() * self.heads * (self.keys.dim() + self.values.dim());
        let part_tiles = tiles.count().div_ceil(PARTS_MAX).max(PART_TILES_MIN);
        let one = One { parts: tiles.count().div_ceil(part_tiles), part_tiles, tiles };
        let record = self.group() * (self.values.dim() + 2);
        let items = self.kv_heads * one.parts;
        let chunk = if work < ALONE_BELOW { items } else { 1 };

        let worker_len = *worker_len;
        let workers = SharedSlice::new(per_worker);
        let shared = SharedSlice::new(records);
        let buffers = SharedSlice::new(queries);
        pool.scatter(items, chunk, &|worker, range| {
            // SAFETY: every worker has its own piece, and its own buffer.
            let (own, buffer) = unsafe {
                (workers.range(worker * worker_len..(worker + 1) * worker_len), buffers.range(worker..worker + 1))
            };
            let (buffer, mut held) = (&mut buffer[0], None);
            for item in range {
                let kv_head = item / one.parts;
                if held != Some(kv_head) {
                    self.take_queries(query, kv_head, buffer);
                    held = Some(kv_head);
                }
                // SAFETY: items never overlap, and each has a record of its own.
                let to = unsafe { shared.range(item * record..(item + 1) * record) };
                self.part(&one, item, buffer.heads(0, self.group()), own, to);
            }
        });
        for (kv_head, out) in out.chunks_exact_mut(self.group() * self.values.dim()).enumerate() {
            let records = &records[kv_head * one.parts * record..(kv_head + 1) * one.parts * record];
            self.merge(records, record, out);
        }
    }

    /// One token's query heads of one kv head, turned.
    fn take_queries(&self, query: &[f32], kv_head: usize, buffer: &mut QueryBuffer) {
        let (group, dim) = (self.group(), self.keys.dim());
        let query = &query[kv_head * group * dim..(kv_head + 1) * group * dim];
        let turn = |x: &mut [f32]| self.turn_heads(0, kv_head, x);
        buffer.fill_turned(self.isa, query, turn, self.scale, self.keys.kv_type());
    }

    /// Turns the query heads (group, key_dim) of one kv head and of the `at`-th of the tokens here.
    fn turn_heads(&self, at: usize, kv_head: usize, x: &mut [f32]) {
        let Some(turn) = &self.turn else { return };
        for (g, head) in x.chunks_exact_mut(self.keys.dim()).enumerate() {
            turn.apply(self.token + at, kv_head * self.group() + g, head);
        }
    }

    /// One kv head's group over one part of the tiles; the record is values (group, value_dim), maxima (group), sums
    /// (group).
    fn part(&self, one: &One, item: usize, queries: Queries<'_>, scratch: &mut [f32], record: &mut [f32]) {
        let (group, dim) = (self.group(), self.values.dim());
        let (kv_head, part) = (item / one.parts, item % one.parts);
        let [values, maxima, sums] = carve(record, [group * dim, group, group]);
        values.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        let first = part * one.part_tiles;
        for i in first..one.tiles.count().min(first + one.part_tiles) {
            let at = one.tiles.get(i);
            let rows = self.values.rows(self.cached, kv_head, at.clone());
            let scores = &mut scratch[..group * at.len()];
            let keys = self.keys.rows(self.cached, kv_head, at.clone());
            score_keys(self.isa, queries, keys, rows.data, scores, at.len());
            for (g, scores) in scores.chunks_exact_mut(at.len()).enumerate() {
                let values = &mut values[g * dim..(g + 1) * dim];
                self.soften(scores, [0..at.len(), 0..0], &mut maxima[g], &mut sums[g], values);
            }
            gather_values(self.isa, scores, at.len(), rows, self.keys_after(one, kv_head, i), values);
        }
    }

    /// The keys that are likely scored after tile `i`: of the next tile, or of the next head's first.
    fn keys_after(&self, one: &One, kv_head: usize, i: usize) -> &[u8] {
        let (kv_head, i) = if i + 1 < one.tiles.count() { (kv_head, i + 1) } else { (kv_head + 1, 0) };
        if kv_head == self.kv_heads {
            return &[];
        }
        &self.cached[self.keys.bytes_of(kv_head, one.tiles.get(i))]
    }

    /// The softmax over all parts of one kv head: each part's values weigh in by exp(its maximum - the largest).
    fn merge(&self, records: &[f32], record: usize, out: &mut [f32]) {
        let (group, dim) = (self.group(), self.values.dim());
        let maxima = group * dim;
        for (g, out) in out.chunks_exact_mut(dim).enumerate() {
            let parts = || records.chunks_exact(record);
            let largest = parts().map(|r| r[maxima + g]).fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = parts().map(|r| (r[maxima + g] - largest).exp() * r[maxima + group + g]).sum();
            out.fill(0.0);
            for part in parts() {
                let weight = (part[maxima + g] - largest).exp() / total;
                for (o, v) in out.iter_mut().zip(&part[g * dim..(g + 1) * dim]) {
                    *o += weight * v;
                }
            }
        }
    }

    /// Many tokens: every (kv head, block of tokens) by itself.
    fn many(&self, pool: &Pool, scratch: &mut AttentionScratch, queries: &[f32], out: &mut [f32]) {
        let tokens = queries.len() / (self.heads * self.keys.dim());
        let block = block_tokens(self.group());
        let blocks = tokens.div_ceil(block);
        let worker_len = scratch.worker_len;
        let workers = SharedSlice::new(&mut scratch.per_worker);
        let out = SharedSlice::new(out);
        pool.scatter(self.kv_heads * blocks, 1, &|worker, range| {
            // SAFETY: every worker has its own piece.
            let own = unsafe { workers.range(worker * worker_len..(worker + 1) * worker_len) };
            for item in range {
                // the last blocks see the most positions: first, so that no worker is left alone with one
                let at = blocks - 1 - item / self.kv_heads;
                self.block(item % self.kv_heads, at * block..tokens.min((at + 1) * block), queries, own, out);
            }
        });
    }

    /// One kv head's group over a block of the batch's tokens, with a running softmax over tiles of the cache.
    fn block(
        &self,
        kv_head: usize,
        tokens: Range<usize>,
        queries: &[f32],
        scratch: &mut [f32],
        out: SharedSlice<'_, f32>,
    ) {
        let (group, key_dim, value_dim) = (self.group(), self.keys.dim(), self.values.dim());
        let rows = tokens.len() * group;
        let [scaled, scores, mixed, maxima, sums, tile] = carve(
            scratch,
            [
                rows * key_dim,                     // (rows, key_dim)
                rows * TILE_KEYS,                   // (rows, TILE_KEYS)
                rows * value_dim,                   // (rows, value_dim)
                rows,                               // running maximum of each row
                rows,                               // running sum of each row
                TILE_KEYS * key_dim.max(value_dim), // keys, transposed, then values
            ],
        );
        for (i, token) in tokens.clone().enumerate() {
            let from = &queries[(token * self.heads + kv_head * group) * key_dim..][..group * key_dim];
            let to = &mut scaled[i * group * key_dim..(i + 1) * group * key_dim];
            to.copy_from_slice(from);
            self.turn_heads(token, kv_head, to);
        }
        scale(self.isa, scaled, self.scale);
        mixed.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);

        let tiles = self.whole_tiles(self.first + tokens.start..self.first + tokens.end);
        for at in (0..tiles.count()).map(|i| tiles.get(i)) {
            self.score_tile(kv_head, at.clone(), scaled, tile, scores);
            for row in 0..rows {
                let seen = self.span.visible(self.first + tokens.start + row / group);
                let seen =
                    seen.map(|s| s.start.clamp(at.start, at.end) - at.start..s.end.clamp(at.start, at.end) - at.start);
                let scores = &mut scores[row * TILE_KEYS..(row + 1) * TILE_KEYS];
                let mixed = &mut mixed[row * value_dim..(row + 1) * value_dim];
                self.soften(scores, seen, &mut maxima[row], &mut sums[row], mixed);
            }
            let tile = &mut tile[..at.len() * value_dim];
            widen(self.isa, self.values.rows(self.cached, kv_head, at.clone()), tile);
            let (a, b) = (Rows { data: scores, stride: TILE_KEYS }, Rows { data: tile, stride: value_dim });
            multiply_accumulate(self.isa, (rows, at.len(), value_dim), a, b, mixed, value_dim);
        }
        for row in 0..rows {
            let from = &mut mixed[row * value_dim..(row + 1) * value_dim];
            scale(self.isa, from, 1.0 / sums[row]);
            let head = (tokens.start + row / group) * self.heads + kv_head * group + row % group;
            // SAFETY: (token, head) belongs to this block and kv head alone.
            unsafe { out.range(head * value_dim..(head + 1) * value_dim) }.copy_from_slice(from);
        }
    }

    /// What any token at `positions` sees, in tiles that begin with their page.
    fn whole_tiles(&self, positions: Range<usize>) -> Tiles {
        // the first token's view reaches back farthest
        let [first, last] = self.span.visible(positions.start);
        let start = last.start / TILE_KEYS * TILE_KEYS;
        if start <= first.end { Tiles([0..0, 0..positions.end]) } else { Tiles([first, start..positions.end]) }
    }

    /// Scores of all rows of a block against one tile, (rows, TILE_KEYS).
    fn score_tile(&self, kv_head: usize, at: Range<usize>, scaled: &[f32], tile: &mut [f32], scores: &mut [f32]) {
        let (key_dim, start) = (self.keys.dim(), at.start);
        // a page has room for whole tiles; what lies beyond the last position is scored and then left unused
        let keys = start..start + at.len().next_multiple_of(8);
        widen_transposed(self.isa, self.keys.rows(self.cached, kv_head, keys), tile);
        scores.fill(0.0);
        let (a, b) = (Rows { data: scaled, stride: key_dim }, Rows { data: tile, stride: TILE_KEYS });
        let shape = (scaled.len() / key_dim, key_dim, at.len().next_multiple_of(16));
        multiply_accumulate(self.isa, shape, a, b, scores, TILE_KEYS);
    }

    /// Turns one row's scores of a tile into weights, zero outside `seen`, and moves what has been mixed so far to the
    /// new maximum.
    fn soften(&self, scores: &mut [f32], seen: [Range<usize>; 2], maximum: &mut f32, sum: &mut f32, mixed: &mut [f32]) {
        let seen = || seen.iter().filter(|s| !s.is_empty()).cloned();
        let mut larger = *maximum;
        for at in seen() {
            if let Some(cap) = self.cap {
                soft_cap(self.isa, &mut scores[at.clone()], cap);
            }
            larger = larger.max(max(self.isa, &scores[at]));
        }
        if larger > *maximum {
            let shrink = (*maximum - larger).exp();
            *sum *= shrink;
            scale(self.isa, mixed, shrink);
            *maximum = larger;
        }
        let mut done = 0;
        for at in seen() {
            *sum += exp_and_sum(self.isa, &mut scores[at.clone()], larger);
            scores[done..at.start].fill(0.0);
            done = at.end;
        }
        scores[done..].fill(0.0);
    }
}

#[cfg(test)]
mod tests;
