//! AVX2 forms of the attention products. Every function requires avx2, fma and f16c.

// Sums are indexed by head and vector; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

mod stored;

use super::{BLOCK, CachedRows, Queries, Rows, TILE_KEYS};
use crate::kernels::avx2::transpose;
use crate::protocol::KvType;
use std::arch::x86_64::*;
use stored::{Coded, F16, Q4_0, Q8_0, Stored, wait};

/// Most heads that share one pass over the rows: with more, their sums would not fit the registers.
const HEADS: usize = 3;

/// Runs of at most [`HEADS`] heads, of sizes as equal as can be: 7 are 2, 2 and 3.
fn passes(heads: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
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

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fetch_line(&mut self) {
        if self.lines > 0 {
            // a hint, which no address can make go wrong
            _mm_prefetch::<_MM_HINT_T0>(self.at.cast());
            self.at = self.at.wrapping_add(LINE_BYTES);
            self.lines -= 1;
        }
    }

    /// What is left after the last row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fetch_rest(&mut self) {
        while self.lines > 0 {
            self.fetch_line();
        }
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// The sums of four vectors. Shuffles and an addition are quicker than the instruction that does both.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of(v: [__m256; 4]) -> __m128 {
    let add = |a, b| _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
    let pairs = add(add(v[0], v[1]), add(v[2], v[3]));
    _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs))
}

/// The sums of four vectors of whole numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn whole_sums_of(v: [__m256i; 4]) -> __m128i {
    let add = |a, b| {
        let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        let (even, odd) = (_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
        _mm256_add_epi32(_mm256_castps_si256(even), _mm256_castps_si256(odd))
    };
    let pairs = add(add(v[0], v[1]), add(v[2], v[3]));
    _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs))
}

/// As [`super::score_keys`].
///
/// # Safety
/// The dimension is a multiple of 8, and the scores have `stride` elements, no less than there are keys, for each head.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn score_keys(queries: Queries<'_>, keys: CachedRows<'_>, ahead: &[u8], scores: &mut [f32], stride: usize) {
    let mut ahead = Ahead::new(ahead);
    for heads in passes(queries.heads()) {
        let (out, first) = (&mut scores[heads.start * stride..], heads.start);
        // SAFETY: these heads exist, and the scores have room for them, by the caller's promise.
        unsafe {
            match keys.kv_type {
                KvType::F16 => match heads.len() {
                    1 => score_halves::<1>(queries, first, keys, &mut ahead, out, stride),
                    2 => score_halves::<2>(queries, first, keys, &mut ahead, out, stride),
                    _ => score_halves::<3>(queries, first, keys, &mut ahead, out, stride),
                },
                KvType::Q8_0 => score_coded_heads::<Q8_0>(queries, heads, keys, &mut ahead, out, stride),
                KvType::Q4_0 => score_coded_heads::<Q4_0>(queries, heads, keys, &mut ahead, out, stride),
            }
        }
    }
    ahead.fetch_rest();
}

/// Puts up to four scores of each of G heads in their places.
///
/// # Safety
/// The scores have `positions` elements from each `g * stride` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn put_scores<const G: usize>(sums: [__m128; G], p: usize, positions: usize, scores: *mut f32, stride: usize) {
    for (g, sums) in sums.into_iter().enumerate() {
        // SAFETY: by the caller's promise; no more than the positions that are left.
        unsafe {
            let to = scores.add(g * stride + p);
            if p + 4 <= positions {
                _mm_storeu_ps(to, sums);
            } else {
                let mut four = [0f32; 4];
                _mm_storeu_ps(four.as_mut_ptr(), sums);
                std::ptr::copy_nonoverlapping(four.as_ptr(), to, positions - p);
            }
        }
    }
}

/// Where four rows from `p` on are; past the end, the last one stands in.
#[inline]
fn four_rows(rows: CachedRows<'_>, p: usize, positions: usize, row_bytes: usize) -> [*const u8; 4] {
    [0, 1, 2, 3].map(|i| rows.data.as_ptr().wrapping_add((p + i).min(positions - 1) * row_bytes))
}

/// Scores of G heads, at most 3, against keys in half precision.
///
/// # Safety
/// As [`score_keys`]; heads `first..first + G` exist.
#[target_feature(enable = "avx2,fma,f16c")]
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
        // 4 keys x 3 heads: 12 sums, 3 pieces of query and 1 of key fill the 16 registers
        let mut sums = [[_mm256_setzero_ps(); 4]; G];
        for d in (0..dim).step_by(8) {
            // 4 keys x 8 halves: as many bytes as a line
            ahead.fetch_line();
            // SAFETY: d + 8 <= dim, which every row and every query has.
            unsafe {
                let query: [__m256; G] = std::array::from_fn(|g| _mm256_loadu_ps(query[g].add(d)));
                let mut rows = rows;
                for i in 0..4 {
                    let key = F16::eight(rows[i].add(2 * d), 0);
                    for g in 0..G {
                        sums[g][i] = _mm256_fmadd_ps(key, query[g], sums[g][i]);
                        if i < 3 {
                            wait(&mut rows[i + 1], &mut sums[g][i]);
                        }
                    }
                }
            }
        }
        // SAFETY: by the caller's promise.
        unsafe { put_scores(sums.map(|s| sums_of(s)), p, positions, scores.as_mut_ptr(), stride) };
    }
}

/// As [`score_coded`] for some heads.
///
/// # Safety
/// As [`score_keys`]; the heads exist, at most 3 of them.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn score_coded_heads<S: Coded>(
    queries: Queries<'_>,
    heads: std::ops::Range<usize>,
    keys: CachedRows<'_>,
    ahead: &mut Ahead,
    scores: &mut [f32],
    stride: usize,
) {
    let first = heads.start;
    // SAFETY: the same contract.
    unsafe {
        match heads.len() {
            1 => score_coded::<S, 1>(queries, first, keys, ahead, scores, stride),
            2 => score_coded::<S, 2>(queries, first, keys, ahead, scores, stride),
            _ => score_coded::<S, 3>(queries, first, keys, ahead, scores, stride),
        }
    }
}

/// Scores of G heads against keys in codes: whole numbers within a block, four keys at a time, so that a block's scales
/// meet the sums of four keys at once.
///
/// # Safety
/// As [`score_keys`]; heads `first..first + G` exist, and keys are whole blocks of S.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn score_coded<S: Coded, const G: usize>(
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
        let mut sums = [_mm_setzero_ps(); G];
        for b in 0..blocks {
            ahead.fetch_line();
            ahead.fetch_line();
            // SAFETY: block b is within every row, and the queries have as many blocks.
            unsafe {
                let block = rows.map(|row| row.add(b * S::BYTES));
                let key_scales = stored::four_scales(block);
                let key = block.map(|block| S::codes(block));
                for g in 0..G {
                    let query = _mm256_loadu_si256(codes[g].add(b * BLOCK).cast());
                    let whole = whole_sums_of(key.map(|key| S::products(key, query)));
                    let whole = _mm_sub_epi32(whole, _mm_set1_epi32(S::STEPS * offsets[g].get_unchecked(b)));
                    let scale = _mm_mul_ps(key_scales, _mm_set1_ps(*scales[g].get_unchecked(b)));
                    sums[g] = _mm_fmadd_ps(_mm_cvtepi32_ps(whole), scale, sums[g]);
                }
            }
        }
        // SAFETY: by the caller's promise.
        unsafe { put_scores(sums, p, positions, scores.as_mut_ptr(), stride) };
    }
}

/// As [`super::gather_values`].
///
/// # Safety
/// The dimension is a multiple of 8, and there are `stride` weights, no less than there are values, for each head (for
/// the last as many as there are values).
#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
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

/// Columns d..d + 8 * W of [`gather`]; returns their number. 3 heads x 4 vectors: 12 sums, 3 weights and 1 piece of
/// value fill the 16 registers, and each cache line of values is read once.
///
/// # Safety
/// d + 8 * W <= dim, within one block; otherwise as [`gather_values`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn gather_columns<S: Stored, const G: usize, const W: usize>(
    weights: &[f32],
    stride: usize,
    values: CachedRows<'_>,
    d: usize,
    ahead: &mut Ahead,
    out: &mut [f32],
) -> usize {
    let mut sums = [[_mm256_setzero_ps(); W]; G];
    let row_bytes = values.row_bytes();
    for p in 0..values.len() {
        ahead.fetch_line();
        // SAFETY: g * stride + p is within the weights, the columns within the value, by the caller's promise.
        unsafe {
            let mut block = values.data.as_ptr().add(p * row_bytes + d / BLOCK * S::BYTES);
            let scale = S::scale(block);
            let mut weight: [__m256; G] = std::array::from_fn(|g| {
                let weight = _mm256_broadcast_ss(weights.get_unchecked(g * stride + p));
                if S::SCALED { _mm256_mul_ps(weight, scale) } else { weight }
            });
            if S::SCALED {
                weight.iter_mut().for_each(|weight| wait(&mut block, weight));
            }
            for i in 0..W {
                let piece = S::eight(block, if W == 4 { i } else { d % BLOCK / 8 + i });
                for g in 0..G {
                    sums[g][i] = _mm256_fmadd_ps(weight[g], piece, sums[g][i]);
                    wait(&mut block, &mut sums[g][i]);
                }
            }
        }
    }
    for (g, sums) in sums.iter().enumerate() {
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: g * dim + d + 8 * W <= G * dim <= out.len(), by the caller's promise.
            unsafe {
                let to = out.as_mut_ptr().add(g * values.dim + d + 8 * i);
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), *sum));
            }
        }
    }
    8 * W
}

/// As [`super::widen`].
///
/// # Safety
/// `out` has as many elements as the rows, a multiple of 8 for each.
#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen_stored<S: Stored>(rows: CachedRows<'_>, out: &mut [f32]) {
    for (p, out) in out.chunks_exact_mut(rows.dim).enumerate() {
        let row = rows.row(p).as_ptr();
        for (d, out) in out.chunks_exact_mut(8).enumerate() {
            // SAFETY: eight elements from 8 d on are within the row, and fit the output.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), stored::eight_at::<S>(row, 8 * d)) };
        }
    }
}

/// Narrows a slice to half precision, round to nearest even; `out` has two bytes an element.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn narrow_halves(x: &[f32], out: &mut [u8]) {
    let whole = x.len().min(out.len() / 2) / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= whole <= both lengths, in elements.
        unsafe {
            let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr().add(i)));
            _mm_storeu_si128(out.as_mut_ptr().add(2 * i).cast(), eight);
        }
    }
    for (o, &v) in out[2 * whole..].chunks_exact_mut(2).zip(&x[whole..]) {
        o.copy_from_slice(&half::f16::from_f32(v).to_le_bytes());
    }
}

/// As [`super::widen_transposed`].
///
/// # Safety
/// The number of keys and their dimension are multiples of 8; `out` has room for the dimension x [`TILE_KEYS`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn widen_transposed(keys: CachedRows<'_>, out: &mut [f32]) {
    // SAFETY: the same contract; rows are whole blocks of their type.
    unsafe {
        match keys.kv_type {
            KvType::F16 => widen_transposed_stored::<F16>(keys, out),
            KvType::Q8_0 => widen_transposed_stored::<Q8_0>(keys, out),
            KvType::Q4_0 => widen_transposed_stored::<Q4_0>(keys, out),
        }
    }
}

/// In squares of 8.
///
/// # Safety
/// As [`widen_transposed`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen_transposed_stored<S: Stored>(keys: CachedRows<'_>, out: &mut [f32]) {
    for p in (0..keys.len()).step_by(8) {
        let rows: [*const u8; 8] = std::array::from_fn(|i| keys.row(p + i).as_ptr());
        for d in (0..keys.dim).step_by(8) {
            // SAFETY: eight elements from d on are within every row.
            let square = rows.map(|row| unsafe { stored::eight_at::<S>(row, d) });
            for (i, column) in transpose(square).iter().enumerate() {
                // SAFETY: (d + i) * TILE_KEYS + p + 8 <= dim * TILE_KEYS <= out.len().
                unsafe { _mm256_storeu_ps(out.as_mut_ptr().add((d + i) * TILE_KEYS + p), *column) };
            }
        }
    }
}

/// `c += a · b`, n a multiple of 16, in blocks of 6 x 16: 12 accumulators, 2 columns of b and 1 element of a at a time.
///
/// # Safety
/// Row i of each matrix must lie within its slice at `i * stride`.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn multiply_accumulate(
    (m, k, n): (usize, usize, usize),
    a: Rows<'_>,
    b: Rows<'_>,
    c: &mut [f32],
    c_stride: usize,
) {
    for col in (0..n).step_by(16) {
        let mut row = 0;
        while row < m {
            // SAFETY: rows row..row + height <= m and columns col..col + 16 <= n are within the matrices.
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
                    _ => block::<6>(k, a_at, a.stride, b_at, b.stride, c_at, c_stride),
                }
            }
            row += 6;
        }
    }
}

/// Floats of a cache line.
const LINE: usize = 64 / size_of::<f32>();

/// The next M rows of `a` are asked for on the way: they are short pieces far apart, which no processor foresees.
///
/// # Safety
/// M rows of k at `a`, k rows of 16 at `b` and M rows of 16 at `c` must be accessible at their strides.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<const M: usize>(
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    // SAFETY: all offsets are within the rows promised by the caller.
    unsafe {
        for line in (0..k).step_by(LINE) {
            for i in 0..M {
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add((M + i) * a_stride + line).cast());
            }
            for j in line..k.min(line + LINE) {
                let (low, high) = (_mm256_loadu_ps(b.add(j * b_stride)), _mm256_loadu_ps(b.add(j * b_stride + 8)));
                for (i, sum) in sums.iter_mut().enumerate() {
                    let factor = _mm256_broadcast_ss(&*a.add(i * a_stride + j));
                    sum[0] = _mm256_fmadd_ps(factor, low, sum[0]);
                    sum[1] = _mm256_fmadd_ps(factor, high, sum[1]);
                }
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let to = c.add(i * c_stride);
            _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sum[0]));
            _mm256_storeu_ps(to.add(8), _mm256_add_ps(_mm256_loadu_ps(to.add(8)), sum[1]));
        }
    }
}
