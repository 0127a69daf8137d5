//! Causal attention over the cache, with query heads sharing key and value heads in groups.
//!
//! The query heads of one group are the rows of one small matrix product, so that keys and values are read once per
//! group. One token: split over (kv head x part of the cache), merged at the end. Many tokens: split over (kv head x
//! block of tokens), tile by tile with a running softmax.

use crate::kernels::Isa;
use crate::kernels::vector::attention::{
    Rows, TILE_KEYS, gather_values, multiply_accumulate, score_keys, widen, widen_transposed,
};
use crate::kernels::vector::{exp_and_sum, max, scale, soft_cap};
use crate::pool::{Pool, SharedSlice};
use half::f16;
use std::ops::Range;

/// Rows (tokens x heads of a group) that share one widened tile; a multiple of the 6 rows of a product's block.
const BLOCK_ROWS: usize = 48;
/// Most parts into which one token's attention is split.
const PARTS_MAX: usize = 16;
/// Positions below which splitting further does not pay.
const PART_POSITIONS_MIN: usize = 128;
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
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Positions seen, the token's own included.
    pub window: usize,
    /// Factor of scores.
    pub scale: f32,
    /// Soft cap of scores.
    pub cap: Option<f32>,
    /// Position of the batch's first token.
    pub first: usize,
    /// (kv_heads, positions, key_dim)
    pub keys: &'a [f16],
    /// (kv_heads, positions, value_dim)
    pub values: &'a [f16],
    /// Positions from one kv head to the next.
    pub positions: usize,
}

/// Buffers of attention, allocated once for a model and a context.
pub struct AttentionScratch {
    per_worker: Vec<f32>,
    worker_len: usize,
    records: Vec<f32>,
}

impl AttentionScratch {
    /// Room for any batch of a model with at most `heads` query heads, at most `group` of them sharing a kv head.
    pub fn new(workers: usize, heads: usize, group: usize, key_dim: usize, value_dim: usize, context: usize) -> Self {
        let rows = block_tokens(group) * group;
        let many = rows * (key_dim + TILE_KEYS + value_dim + 2) + TILE_KEYS * (key_dim + value_dim);
        let one = group * (part_positions(context) + key_dim);
        let worker_len = many.max(one).next_multiple_of(32);
        Self {
            per_worker: vec![0.0; worker_len * workers],
            worker_len,
            records: vec![0.0; heads * PARTS_MAX * (value_dim + 2)],
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.per_worker[..]) + size_of_val(&self.records[..])) as u64
    }
}

fn block_tokens(group: usize) -> usize {
    (BLOCK_ROWS / group).max(1)
}

fn part_positions(visible: usize) -> usize {
    visible.div_ceil(PARTS_MAX).max(PART_POSITIONS_MIN)
}

/// Splits a worker's scratch into named pieces.
fn carve<const N: usize>(mut scratch: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| {
        let (piece, rest) = std::mem::take(&mut scratch).split_at_mut(len);
        scratch = rest;
        piece
    })
}

impl Attention<'_> {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn keys_of(&self, kv_head: usize, at: Range<usize>) -> &[f16] {
        let base = kv_head * self.positions;
        &self.keys[(base + at.start) * self.key_dim..(base + at.end) * self.key_dim]
    }

    fn values_of(&self, kv_head: usize, at: Range<usize>) -> &[f16] {
        let base = kv_head * self.positions;
        &self.values[(base + at.start) * self.value_dim..(base + at.end) * self.value_dim]
    }

    /// Positions that the token at `position` sees.
    fn visible(&self, position: usize) -> Range<usize> {
        (position + 1).saturating_sub(self.window)..position + 1
    }

    /// `out` (n, heads * value_dim) from `queries` (n, heads * key_dim); the batch's own keys are in the cache already.
    pub fn run(&self, pool: &Pool, scratch: &mut AttentionScratch, queries: &[f32], out: &mut [f32]) {
        let tokens = queries.len() / (self.heads * self.key_dim);
        if tokens == 1 { self.one(pool, scratch, queries, out) } else { self.many(pool, scratch, queries, out) }
    }

    /// One token: each part's weighted values, maximum and sum, then the merge.
    fn one(&self, pool: &Pool, scratch: &mut AttentionScratch, query: &[f32], out: &mut [f32]) {
        let visible = self.visible(self.first);
        let part_len = part_positions(visible.len());
        let parts = visible.len().div_ceil(part_len);
        let record = self.group() * (self.value_dim + 2);
        let items = self.kv_heads * parts;
        let work = visible.len() * self.heads * (self.key_dim + self.value_dim);
        let chunk = if work < ALONE_BELOW { items } else { 1 };

        let worker_len = scratch.worker_len;
        let workers = SharedSlice::new(&mut scratch.per_worker);
        let records = SharedSlice::new(&mut scratch.records);
        pool.scatter(items, chunk, &|worker, range| {
            // SAFETY: every worker has its own piece.
            let own = unsafe { workers.range(worker * worker_len..(worker + 1) * worker_len) };
            for item in range {
                let (kv_head, part) = (item / parts, item % parts);
                let start = visible.start + part * part_len;
                let at = start..visible.end.min(start + part_len);
                // SAFETY: items never overlap, and each has a record of its own.
                let to = unsafe { records.range(item * record..(item + 1) * record) };
                self.part(kv_head, at, query, own, to);
            }
        });
        for (kv_head, out) in out.chunks_exact_mut(self.group() * self.value_dim).enumerate() {
            let records = &scratch.records[kv_head * parts * record..(kv_head + 1) * parts * record];
            self.merge(records, record, out);
        }
    }

    /// One kv head's group over positions `at`; the record is values (group, value_dim), maxima (group), sums (group).
    fn part(&self, kv_head: usize, at: Range<usize>, query: &[f32], scratch: &mut [f32], record: &mut [f32]) {
        let (group, len) = (self.group(), at.len());
        let [scores, scaled] = carve(scratch, [group * len, group * self.key_dim]);
        scaled.copy_from_slice(&query[kv_head * group * self.key_dim..][..group * self.key_dim]);
        scale(self.isa, scaled, self.scale);
        score_keys(self.isa, scaled, self.keys_of(kv_head, at.clone()), self.key_dim, scores, len);
        if let Some(cap) = self.cap {
            soft_cap(self.isa, scores, cap);
        }
        let [values, maxima, sums] = carve(record, [group * self.value_dim, group, group]);
        for (g, row) in scores.chunks_exact_mut(len).enumerate() {
            maxima[g] = max(self.isa, row);
            sums[g] = exp_and_sum(self.isa, row, maxima[g]);
        }
        values.fill(0.0);
        gather_values(self.isa, scores, len, self.values_of(kv_head, at), self.value_dim, values);
    }

    /// The softmax over all parts of one kv head: each part's values weigh in by exp(its maximum - the largest).
    fn merge(&self, records: &[f32], record: usize, out: &mut [f32]) {
        let (group, dim) = (self.group(), self.value_dim);
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
        let tokens = queries.len() / (self.heads * self.key_dim);
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
        let (group, key_dim, value_dim) = (self.group(), self.key_dim, self.value_dim);
        let rows = tokens.len() * group;
        let [scaled, scores, mixed, maxima, sums, tile_keys, tile_values] = carve(
            scratch,
            [
                rows * key_dim,        // (rows, key_dim)
                rows * TILE_KEYS,      // (rows, TILE_KEYS)
                rows * value_dim,      // (rows, value_dim)
                rows,                  // running maximum of each row
                rows,                  // running sum of each row
                key_dim * TILE_KEYS,   // keys, transposed
                TILE_KEYS * value_dim, // values
            ],
        );
        for (i, token) in tokens.clone().enumerate() {
            let from = &queries[(token * self.heads + kv_head * group) * key_dim..][..group * key_dim];
            scaled[i * group * key_dim..(i + 1) * group * key_dim].copy_from_slice(from);
        }
        scale(self.isa, scaled, self.scale);
        mixed.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);

        let visible = self.visible(self.first + tokens.start).start..self.first + tokens.end;
        for start in (visible.start / TILE_KEYS * TILE_KEYS..visible.end).step_by(TILE_KEYS) {
            let end = visible.end.min(start + TILE_KEYS);
            // the cache has room for whole tiles; what lies beyond the last position is scored and then left unused
            let keys = self.keys_of(kv_head, start..start + (end - start).next_multiple_of(8));
            widen_transposed(self.isa, keys, key_dim, tile_keys);
            scores.fill(0.0);
            let (a, b) = (Rows { data: scaled, stride: key_dim }, Rows { data: tile_keys, stride: TILE_KEYS });
            let width = (end - start).next_multiple_of(16);
            multiply_accumulate(self.isa, (rows, key_dim, width), a, b, scores, TILE_KEYS);
            for row in 0..rows {
                let seen = self.visible(self.first + tokens.start + row / group);
                let seen = seen.start.clamp(start, end) - start..seen.end.clamp(start, end) - start;
                let scores = &mut scores[row * TILE_KEYS..(row + 1) * TILE_KEYS];
                let mixed = &mut mixed[row * value_dim..(row + 1) * value_dim];
                self.soften(scores, seen, &mut maxima[row], &mut sums[row], mixed);
            }
            widen(self.isa, self.values_of(kv_head, start..end), &mut tile_values[..(end - start) * value_dim]);
            let (a, b) = (Rows { data: scores, stride: TILE_KEYS }, Rows { data: tile_values, stride: value_dim });
            multiply_accumulate(self.isa, (rows, end - start, value_dim), a, b, mixed, value_dim);
        }
        for row in 0..rows {
            let from = &mut mixed[row * value_dim..(row + 1) * value_dim];
            scale(self.isa, from, 1.0 / sums[row]);
            let head = (tokens.start + row / group) * self.heads + kv_head * group + row % group;
            // SAFETY: (token, head) belongs to this block and kv head alone.
            unsafe { out.range(head * value_dim..(head + 1) * value_dim) }.copy_from_slice(from);
        }
    }

    /// Turns one row's scores of a tile into weights, zero outside `seen`, and moves what has been mixed so far to the
    /// new maximum.
    fn soften(&self, scores: &mut [f32], seen: Range<usize>, maximum: &mut f32, sum: &mut f32, mixed: &mut [f32]) {
        let visible = &mut scores[seen.clone()];
        if !visible.is_empty() {
            if let Some(cap) = self.cap {
                soft_cap(self.isa, visible, cap);
            }
            let larger = max(self.isa, visible).max(*maximum);
            if larger > *maximum {
                let shrink = (*maximum - larger).exp();
                *sum *= shrink;
                scale(self.isa, mixed, shrink);
                *maximum = larger;
            }
            *sum += exp_and_sum(self.isa, visible, larger);
        }
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 22) as f32 - 2.0
            })
            .collect()
    }

    /// The definition, in double precision.
    fn reference(a: &Attention<'_>, queries: &[f32], tokens: usize) -> Vec<f32> {
        let mut out = Vec::new();
        for token in 0..tokens {
            for head in 0..a.heads {
                let kv = head / (a.heads / a.kv_heads);
                let query = &queries[(token * a.heads + head) * a.key_dim..][..a.key_dim];
                let seen = a.visible(a.first + token);
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|p| {
                        let key = a.keys_of(kv, p..p + 1);
                        let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * k.to_f64()).sum();
                        let score = dot * f64::from(a.scale);
                        a.cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                for d in 0..a.value_dim {
                    let mixed: f64 = seen
                        .clone()
                        .zip(&scores)
                        .map(|(p, s)| (s - largest).exp() / total * a.values_of(kv, p..p + 1)[d].to_f64())
                        .sum();
                    out.push(mixed as f32);
                }
            }
        }
        out
    }

    #[test]
    fn every_split_and_tile_follows_the_definition() {
        // (heads, kv heads, key dim, value dim, first, tokens, window, cap)
        let cases = [
            (9, 3, 64, 64, 0, 1, usize::MAX, None),
            (9, 3, 64, 64, 700, 1, usize::MAX, None),
            (4, 2, 64, 32, 300, 1, 130, Some(5.0)),
            (9, 3, 64, 64, 0, 65, usize::MAX, None),
            (14, 2, 64, 64, 131, 40, usize::MAX, None),
            (4, 1, 48, 24, 190, 50, 100, Some(5.0)),
            (2, 2, 8, 8, 3, 2, 1, None),
        ];
        for (i, &(heads, kv_heads, key_dim, value_dim, first, tokens, window, cap)) in cases.iter().enumerate() {
            let positions = usize::next_multiple_of(first + tokens, 64) + 64;
            let halves = |len, seed| noise(len, seed).into_iter().map(f16::from_f32).collect::<Vec<_>>();
            let (keys, mut values) =
                (halves(kv_heads * positions * key_dim, 1), halves(kv_heads * positions * value_dim, 2));
            // what lies past the last token must not matter, whatever it is
            for kv in 0..kv_heads {
                let past = (kv * positions + first + tokens) * value_dim;
                values[past..(kv + 1) * positions * value_dim].fill(f16::NAN);
            }
            for (isa, threads) in [(Isa::Scalar, 1), (Isa::detect(), 2)] {
                let attention = Attention {
                    isa,
                    heads,
                    kv_heads,
                    key_dim,
                    value_dim,
                    window,
                    scale: 0.125,
                    cap,
                    first,
                    keys: &keys,
                    values: &values,
                    positions,
                };
                let pool = Pool::new(threads).unwrap();
                let group = heads / kv_heads;
                let mut scratch = AttentionScratch::new(threads, heads, group, key_dim, value_dim, positions);
                let queries = noise(tokens * heads * key_dim, 3);
                let mut out = vec![0.0; tokens * heads * value_dim];
                attention.run(&pool, &mut scratch, &queries, &mut out);
                for (at, (ours, real)) in out.iter().zip(reference(&attention, &queries, tokens)).enumerate() {
                    assert!((ours - real).abs() < 2e-5, "case {i} {isa:?} element {at}: {ours} against {real}");
                }
            }
        }
    }
}
