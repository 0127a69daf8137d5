//! NEON forms of the attention products; whole numbers are multiplied by `sdot` where the processor has it, with the same
//! result.

// Sums are indexed by head and vector; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

mod stored;

use super::{BLOCK, CachedRows, Queries, Rows, TILE_KEYS};
use crate::kernels::Isa;
use crate::kernels::arm::{Dot, Dotprod, Neon, four_halves, half_at, sum_lanes};
use crate::protocol::KvType;
use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;
use stored::{Coded, F16, Q4_0, Q8_0, Stored};

/// Most heads that share one pass over the rows: with more, their sums would not fit the registers.
const HEADS: usize = 3;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Columns that are multiplied at a time.
const COLUMNS: usize = 8;

/// Runs of at most [`HEADS`] heads, of sizes as equal as can be: 7 are 2, 2 and 3.
fn passes(heads: usize) -> impl Iterator<Item = Range<usize>> {
    let count = heads.div_ceil(HEADS);
    (0..count).map(move |i| i * heads / count..(i + 1) * heads / count)
}

/// Bytes to fetch into the cache while something else is worked on, a line at a time.
struct Ahead {
    at: *const u8,
    lines: usize,
}

impl Ahead {
    fn new(bytes: &[u8]) -> Self {
        Self { at: bytes.as_ptr(), lines: bytes.len().div_ceil(LINE_BYTES) }
    }

    #[inline(always)]
    fn fetch_line(&mut self) {
        if self.lines > 0 {
            // SAFETY: a prefetch of any address is allowed and changes no memory.
            unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) self.at, options(readonly, nostack, preserves_flags)) };
            self.at = self.at.wrapping_add(LINE_BYTES);
            self.lines -= 1;
        }
    }

    /// What is left after the last row.
    fn fetch_rest(&mut self) {
        while self.lines > 0 {
            self.fetch_line();
        }
    }
}

/// As [`super::score_keys`].
///
/// # Safety
/// The processor has what `isa` names; the dimension is a multiple of 8, and the scores have `stride` elements, no less
/// than there are keys, for each head.
pub unsafe fn score_keys(
    isa: Isa,
    queries: Queries<'_>,
    keys: CachedRows<'_>,
    ahead: &[u8],
    scores: &mut [f32],
    stride: usize,
) {
    let mut ahead = Ahead::new(ahead);
    for heads in passes(queries.heads()) {
        let out = &mut scores[heads.start * stride..];
        // SAFETY: these heads exist, and the scores have room for them, by the caller's promise.
        unsafe {
            match heads.len() {
                1 => score_heads::<1>(isa, queries, heads.start, keys, &mut ahead, out, stride),
                2 => score_heads::<2>(isa, queries, heads.start, keys, &mut ahead, out, stride),
                _ => score_heads::<3>(isa, queries, heads.start, keys, &mut ahead, out, stride),
            }
        }
    }
    ahead.fetch_rest();
}

/// # Safety
/// As [`score_keys`]; heads `first..first + G` exist.
unsafe fn score_heads<const G: usize>(
    isa: Isa,
    queries: Queries<'_>,
    first: usize,
    keys: CachedRows<'_>,
    ahead: &mut Ahead,
    scores: &mut [f32],
    stride: usize,
) {
    // SAFETY: the same contract; rows are whole blocks of their type.
    unsafe {
        match (keys.kv_type, isa) {
            (KvType::F16, _) => score_halves::<G>(queries, first, keys, ahead, scores, stride),
            (KvType::Q8_0, Isa::Neon) => score_coded::<Q8_0, Neon, G>(queries, first, keys, ahead, scores, stride),
            (KvType::Q4_0, Isa::Neon) => score_coded::<Q4_0, Neon, G>(queries, first, keys, ahead, scores, stride),
            (KvType::Q8_0, _) => score_coded::<Q8_0, Dotprod, G>(queries, first, keys, ahead, scores, stride),
            (KvType::Q4_0, _) => score_coded::<Q4_0, Dotprod, G>(queries, first, keys, ahead, scores, stride),
        }
    }
}

/// Puts up to four scores of each of G heads in their places.
///
/// # Safety
/// The scores have `positions` elements from each `g * stride` on.
#[inline(always)]
unsafe fn put_scores<const G: usize>(
    sums: [float32x4_t; G],
    p: usize,
    positions: usize,
    scores: *mut f32,
    stride: usize,
) {
    for (g, sums) in sums.into_iter().enumerate() {
        // SAFETY: by the caller's promise; no more than the positions that are left.
        unsafe {
            let to = scores.add(g * stride + p);
            if p + 4 <= positions {
                vst1q_f32(to, sums);
            } else {
                let mut four = [0f32; 4];
                vst1q_f32(four.as_mut_ptr(), sums);
                std::ptr::copy_nonoverlapping(four.as_ptr(), to, positions - p);
            }
        }
    }
}

/// Where four rows from `p` on are; past the end, the last one stands in.
#[inline(always)]
fn four_rows(rows: CachedRows<'_>, p: usize, positions: usize, row_bytes: usize) -> [*const u8; 4] {
    [0, 1, 2, 3].map(|i| rows.data.as_ptr().wrapping_add((p + i).min(positions - 1) * row_bytes))
}

/// Scores of G heads, at most 3, against keys in half precision.
///
/// # Safety
/// As [`score_keys`]; heads `first..first + G` exist.
unsafe fn score_halves<const G: usize>(
    queries: Queries<'_>,
    first: usize,
    keys: CachedRows<'_>,
    ahead: &mut Ahead,
    scores: &mut [f32],
    stride: usize,
) {
    let (positions, dim, row_bytes) = (keys.len(), keys.dim, keys.row_bytes());
    let query: [*const f32; G] = std::array::from_fn(|g| queries.floats(first + g).as_ptr());
    for p in (0..positions).step_by(4) {
        let rows = four_rows(keys, p, positions, row_bytes);
        // SAFETY: d + 8 <= dim, which every row and every query has; the scores by the caller's promise.
        unsafe {
            let mut sums = [[vdupq_n_f32(0.0); 4]; G];
            for d in (0..dim).step_by(8) {
                // 4 keys x 8 halves: as many bytes as a line
                ahead.fetch_line();
                let query: [[float32x4_t; 2]; G] =
                    std::array::from_fn(|g| [vld1q_f32(query[g].add(d)), vld1q_f32(query[g].add(d + 4))]);
                for i in 0..4 {
                    let key = F16::eight(rows[i].add(2 * d), 0);
                    for g in 0..G {
                        sums[g][i] = vfmaq_f32(sums[g][i], key[0], query[g][0]);
                        sums[g][i] = vfmaq_f32(sums[g][i], key[1], query[g][1]);
                    }
                }
            }
            let of_keys = sums.map(|s| vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])));
            put_scores(of_keys, p, positions, scores.as_mut_ptr(), stride);
        }
    }
}

/// Scores of G heads against keys in codes: whole numbers within a block, four keys at a time, so that a block's scales
/// meet the sums of four keys at once.
///
/// # Safety
/// As [`score_keys`], the processor has `D`'s instructions; heads `first..first + G` exist, and keys are whole blocks of S.
unsafe fn score_coded<S: Coded, D: Dot, const G: usize>(
    queries: Queries<'_>,
    first: usize,
    keys: CachedRows<'_>,
    ahead: &mut Ahead,
    scores: &mut [f32],
    stride: usize,
) {
    let (positions, blocks, row_bytes) = (keys.len(), keys.dim / BLOCK, keys.row_bytes());
    let codes: [*const i8; G] = std::array::from_fn(|g| queries.codes(first + g).as_ptr());
    let scales: [&[f32]; G] = std::array::from_fn(|g| queries.scales(first + g));
    let offsets: [&[i32]; G] = std::array::from_fn(|g| queries.sums(first + g));
    for p in (0..positions).step_by(4) {
        let rows = four_rows(keys, p, positions, row_bytes);
        // SAFETY: block b is within every row, and the queries have as many blocks; the scores by the caller's promise.
        unsafe {
            let mut sums = [vdupq_n_f32(0.0); G];
            for b in 0..blocks {
                ahead.fetch_line();
                ahead.fetch_line();
                let block = rows.map(|row| row.add(b * S::BYTES));
                let key_scales = four_halves(block, 0);
                let key = block.map(|block| S::codes(block));
                for g in 0..G {
                    let at = codes[g].add(b * BLOCK);
                    let query = [vld1q_s8(at), vld1q_s8(at.add(16))];
                    let mut whole = sum_lanes(key.map(|key| match S::NARROW {
                        true => D::dot_32::<true>(key, query),
                        false => D::dot_32::<false>(key, query),
                    }));
                    if S::STEPS != 0 {
                        whole = vsubq_s32(whole, vdupq_n_s32(S::STEPS * offsets[g].get_unchecked(b)));
                    }
                    let scale = vmulq_n_f32(key_scales, *scales[g].get_unchecked(b));
                    sums[g] = vfmaq_f32(sums[g], vcvtq_f32_s32(whole), scale);
                }
            }
            put_scores(sums, p, positions, scores.as_mut_ptr(), stride);
        }
    }
}

/// As [`super::gather_values`].
///
/// # Safety
/// The dimension is a multiple of 8, and there are `stride` weights, no less than there are values, for each head (for
/// the last as many as there are values).
pub unsafe fn gather_values(weights: &[f32], stride: usize, values: CachedRows<'_>, ahead: &[u8], out: &mut [f32]) {
    // SAFETY: the same contract; rows are whole blocks of their type.
    unsafe {
        match values.kv_type {
            KvType::F16 => gather_stored::<F16>(weights, stride, values, ahead, out),
            KvType::Q8_0 => gather_stored::<Q8_0>(weights, stride, values, ahead, out),
            KvType::Q4_0 => gather_stored::<Q4_0>(weights, stride, values, ahead, out),
        }
    }
}

/// # Safety
/// As [`gather_values`].
unsafe fn gather_stored<S: Stored>(
    weights: &[f32],
    stride: usize,
    values: CachedRows<'_>,
    ahead: &[u8],
    out: &mut [f32],
) {
    let dim = values.dim;
    let mut ahead = Ahead::new(ahead);
    for heads in passes(out.len() / dim) {
        let weights = &weights[heads.start * stride..];
        let out = &mut out[heads.start * dim..heads.end * dim];
        // SAFETY: the same contract, for some of the heads.
        unsafe {
            match heads.len() {
                1 => gather::<S, 1>(weights, stride, values, &mut ahead, out),
                2 => gather::<S, 2>(weights, stride, values, &mut ahead, out),
                _ => gather::<S, 3>(weights, stride, values, &mut ahead, out),
            }
        }
    }
    ahead.fetch_rest();
}

/// Adds the weighted sums of all values to the outputs of G heads, at most 3.
///
/// # Safety
/// As [`gather_values`].
unsafe fn gather<S: Stored, const G: usize>(
    weights: &[f32],
    stride: usize,
    values: CachedRows<'_>,
    ahead: &mut Ahead,
    out: &mut [f32],
) {
    let mut d = 0;
    while d < values.dim {
        // SAFETY: d plus the columns taken stays within dim.
        unsafe {
            d += if values.dim - d >= BLOCK {
                gather_columns::<S, G, 4>(weights, stride, values, d, ahead, out)
            } else {
                gather_columns::<S, G, 1>(weights, stride, values, d, ahead, out)
            };
        }
    }
}

/// Columns d..d + 8 * W of [`gather`]; returns their number. 3 heads x 8 registers: 24 sums, 3 weights and what a piece of
/// value takes fill the 32 registers, and each cache line of values is read once.
///
/// # Safety
/// d + 8 * W <= dim, within one block; otherwise as [`gather_values`].
#[inline(always)]
unsafe fn gather_columns<S: Stored, const G: usize, const W: usize>(
    weights: &[f32],
    stride: usize,
    values: CachedRows<'_>,
    d: usize,
    ahead: &mut Ahead,
    out: &mut [f32],
) -> usize {
    let row_bytes = values.row_bytes();
    // SAFETY: g * stride + p is within the weights, the columns within the values, and g * dim + d + 8 * W <= G * dim
    // <= out.len(), by the caller's promise.
    unsafe {
        let mut sums = [[[vdupq_n_f32(0.0); 2]; W]; G];
        for p in 0..values.len() {
            ahead.fetch_line();
            let block = values.data.as_ptr().add(p * row_bytes + d / BLOCK * S::BYTES);
            let scale = if S::SCALED { half_at(block, 0) } else { 1.0 };
            let weight: [f32; G] = std::array::from_fn(|g| {
                let weight = *weights.get_unchecked(g * stride + p);
                if S::SCALED { weight * scale } else { weight }
            });
            for i in 0..W {
                let piece = S::eight(block, if W == 4 { i } else { d % BLOCK / 8 + i });
                for g in 0..G {
                    for k in 0..2 {
                        sums[g][i][k] = vfmaq_n_f32(sums[g][i][k], piece[k], weight[g]);
                    }
                }
            }
        }
        for (g, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().flatten().enumerate() {
                let to = out.as_mut_ptr().add(g * values.dim + d + 4 * i);
                vst1q_f32(to, vaddq_f32(vld1q_f32(to), *sum));
            }
        }
    }
    8 * W
}

/// As [`super::widen`].
///
/// # Safety
/// `out` has as many elements as the rows, a multiple of 8 for each.
pub unsafe fn widen(rows: CachedRows<'_>, out: &mut [f32]) {
    // SAFETY: the same contract; rows are whole blocks of their type.
    unsafe {
        match rows.kv_type {
            KvType::F16 => widen_stored::<F16>(rows, out),
            KvType::Q8_0 => widen_stored::<Q8_0>(rows, out),
            KvType::Q4_0 => widen_stored::<Q4_0>(rows, out),
        }
    }
}

/// # Safety
/// As [`widen`].
unsafe fn widen_stored<S: Stored>(rows: CachedRows<'_>, out: &mut [f32]) {
    for (p, out) in out.chunks_exact_mut(rows.dim).enumerate() {
        let row = rows.row(p).as_ptr();
        for (d, out) in out.chunks_exact_mut(8).enumerate() {
            // SAFETY: eight elements from 8 d on are within the row, and fit the output.
            unsafe {
                let eight = stored::eight_at::<S>(row, 8 * d);
                vst1q_f32(out.as_mut_ptr(), eight[0]);
                vst1q_f32(out[4..].as_mut_ptr(), eight[1]);
            }
        }
    }
}

/// As [`super::widen_transposed`] for the first keys, a multiple of 4, whose number is returned.
///
/// # Safety
/// The dimension is a multiple of 8; `out` has room for the dimension x [`TILE_KEYS`].
pub unsafe fn widen_transposed(keys: CachedRows<'_>, out: &mut [f32]) -> usize {
    // SAFETY: the same contract; rows are whole blocks of their type.
    unsafe {
        match keys.kv_type {
            KvType::F16 => widen_transposed_stored::<F16>(keys, out),
            KvType::Q8_0 => widen_transposed_stored::<Q8_0>(keys, out),
            KvType::Q4_0 => widen_transposed_stored::<Q4_0>(keys, out),
        }
    }
}

/// In squares of 4.
///
/// # Safety
/// As [`widen_transposed`].
unsafe fn widen_transposed_stored<S: Stored>(keys: CachedRows<'_>, out: &mut [f32]) -> usize {
    let whole = keys.len() / 4 * 4;
    for p in (0..whole).step_by(4) {
        let rows: [*const u8; 4] = std::array::from_fn(|i| keys.row(p + i).as_ptr());
        for d in (0..keys.dim).step_by(8) {
            // SAFETY: eight elements from d on are within every row; (d + 8) * TILE_KEYS <= dim * TILE_KEYS <= out.len()
            // and p + 4 <= TILE_KEYS.
            unsafe {
                let eights = rows.map(|row| stored::eight_at::<S>(row, d));
                for half in 0..2 {
                    let square = transposed(eights.map(|eight| eight[half]));
                    for (i, column) in square.into_iter().enumerate() {
                        vst1q_f32(out.as_mut_ptr().add((d + 4 * half + i) * TILE_KEYS + p), column);
                    }
                }
            }
        }
    }
    whole
}

/// Transposes 4 rows of 4.
#[inline(always)]
fn transposed(r: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        let pair = |v| vreinterpretq_f64_f32(v);
        let (even, odd) = (pair(vtrn1q_f32(r[0], r[1])), pair(vtrn2q_f32(r[0], r[1])));
        let (even_2, odd_2) = (pair(vtrn1q_f32(r[2], r[3])), pair(vtrn2q_f32(r[2], r[3])));
        [vtrn1q_f64(even, even_2), vtrn1q_f64(odd, odd_2), vtrn2q_f64(even, even_2), vtrn2q_f64(odd, odd_2)]
            .map(|v| vreinterpretq_f32_f64(v))
    }
}

/// `c += a · b` for the first columns, a multiple of 8, whose number is returned; in blocks of up to 8 x 8: 16 sums, 2
/// registers of b and 8 of a, each of which serves four steps.
///
/// # Safety
/// Row i of each matrix must lie within its slice at `i * stride`.
pub unsafe fn multiply_accumulate(
    (m, k, n): (usize, usize, usize),
    a: Rows<'_>,
    b: Rows<'_>,
    c: &mut [f32],
    c_stride: usize,
) -> usize {
    let whole = n / COLUMNS * COLUMNS;
    for col in (0..whole).step_by(COLUMNS) {
        for row in (0..m).step_by(8) {
            // SAFETY: rows row..row + height <= m and columns col..col + 8 <= n are within the matrices.
            unsafe {
                let a_at = a.data.as_ptr().add(row * a.stride);
                let b_at = b.data.as_ptr().add(col);
                let c_at = c.as_mut_ptr().add(row * c_stride + col);
                match m - row {
                    1 => block::<1>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    2 => block::<2>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    3 => block::<3>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    4 => block::<4>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    5 => block::<5>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    6 => block::<6>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    7 => block::<7>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                    _ => block::<8>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                }
            }
        }
    }
    whole
}

/// # Safety
/// M rows of k at `a`, k rows of 8 at `b` and M rows of 8 at `c` must be accessible at their strides.
#[inline(always)]
unsafe fn block<const M: usize>(
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
) {
    // SAFETY: all offsets are within the rows promised by the caller.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 2]; M];
        let mut j = 0;
        while j + 4 <= k {
            let factors: [float32x4_t; M] = std::array::from_fn(|i| vld1q_f32(a.add(i * a_stride + j)));
            add_step::<M, 0>(&mut sums, factors, b.add(j * b_stride));
            add_step::<M, 1>(&mut sums, factors, b.add((j + 1) * b_stride));
            add_step::<M, 2>(&mut sums, factors, b.add((j + 2) * b_stride));
            add_step::<M, 3>(&mut sums, factors, b.add((j + 3) * b_stride));
            j += 4;
        }
        for j in j..k {
            let factors: [float32x4_t; M] = std::array::from_fn(|i| vdupq_n_f32(*a.add(i * a_stride + j)));
            add_step::<M, 0>(&mut sums, factors, b.add(j * b_stride));
        }
        for (i, sum) in sums.iter().enumerate() {
            let to = c.add(i * c_stride);
            vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum[0]));
            vst1q_f32(to.add(4), vaddq_f32(vld1q_f32(to.add(4)), sum[1]));
        }
    }
}

/// Adds lane L of each factor times a row of b.
///
/// # Safety
/// Eight floats can be read at `b`.
#[inline(always)]
unsafe fn add_step<const M: usize, const L: i32>(
    sums: &mut [[float32x4_t; 2]; M],
    factors: [float32x4_t; M],
    b: *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let row = [vld1q_f32(b), vld1q_f32(b.add(4))];
        for i in 0..M {
            for half in 0..2 {
                sums[i][half] = vfmaq_laneq_f32::<L>(sums[i][half], row[half], factors[i]);
            }
        }
    }
}
