//! Weights that are stored as floats, multiplied in f32: widened in registers for few vectors; for many, a block of rows is
//! widened and transposed once and is one operand of a plain matrix product.

// Tiles are indexed by row, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::super::vector::attention::{Rows, multiply_accumulate};
use super::super::{Activations, Isa, SharedOut, WeightRows};
use super::{horizontal, transpose};
use crate::gguf::TensorType;
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

/// Bytes of rows that stay in the cache while all vectors pass.
const ROWS_BYTES: usize = 128 << 10;
/// Vectors of a tile, whose rows or sums are four: twelve sums leave registers for what they are made of.
const TILE_VECTORS: usize = 3;
/// Rows from so many bytes on are read four at a time, which keeps more reads of memory under way. Shorter ones are read one
/// after the other: four streams would end before the processor's own prefetching has begun.
const LONG_BYTES: usize = 4 << 10;
const LONG_ROWS: usize = 4;
/// From this many vectors on, rows are widened once for all of them; sums have another order then.
const WIDEN_FROM: usize = 12;
/// Rows and elements of a widened block, which stays in the first-level cache as the vectors pass.
const BLOCK_ROWS: usize = 32;
const BLOCK_COLS: usize = 256;
/// Rows of a block that lie side by side: those that the product takes at a time.
const STRIP_ROWS: usize = 16;

/// Of rows side by side, those of the next tile are asked for if they are no more than this; else what follows in each.
const NEXT_ROWS_BYTES_MAX: usize = 24 << 10;
const AHEAD_BYTES: usize = 2048;

thread_local! {
    /// A widened block (strips, elements, 16 rows), and its products (vectors, rows).
    static BLOCK: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// As [`super::matmul`] for F32, F16 and BF16.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `rows` lie within the weights, vectors are as long as rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn matmul(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: same contract as this function's.
    unsafe {
        match weights.tensor_type {
            TensorType::F16 => all::<1>(weights, rows, acts, out),
            TensorType::Bf16 => all::<2>(weights, rows, acts, out),
            _ => all::<0>(weights, rows, acts, out),
        }
    }
}

/// `KIND` is 0 for F32, 1 for F16, 2 for BF16.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all<const KIND: usize>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    if acts.n() >= WIDEN_FROM && !acts.as_alone() {
        // SAFETY: same contract as this function's.
        return unsafe { many::<KIND>(weights, rows, acts, out) };
    }
    let batch = (ROWS_BYTES / weights.row_bytes().max(1)).next_multiple_of(LONG_ROWS).max(LONG_ROWS);
    let count = acts.n().div_ceil(TILE_VECTORS);
    let is_long = weights.row_bytes() >= LONG_BYTES;
    for first in rows.clone().step_by(batch) {
        let end = (first + batch).min(rows.end);
        for i in 0..count {
            let (n, to) = (i * acts.n() / count, (i + 1) * acts.n() / count);
            let mut row = first;
            while row < end {
                let height = if is_long && row + LONG_ROWS <= end { LONG_ROWS } else { 1 };
                // SAFETY: rows and vectors of the tile exist; features as in the caller.
                unsafe {
                    match (is_long, height, to - n) {
                        (false, _, 3) => tile::<KIND, 1, 4, 3>(weights, acts, n, row, out),
                        (false, _, 2) => tile::<KIND, 1, 4, 2>(weights, acts, n, row, out),
                        (false, _, _) => tile::<KIND, 1, 4, 1>(weights, acts, n, row, out),
                        (_, LONG_ROWS, 3) => tile::<KIND, LONG_ROWS, 1, 3>(weights, acts, n, row, out),
                        (_, LONG_ROWS, 2) => tile::<KIND, LONG_ROWS, 1, 2>(weights, acts, n, row, out),
                        (_, LONG_ROWS, _) => tile::<KIND, LONG_ROWS, 1, 1>(weights, acts, n, row, out),
                        (_, _, 3) => tile::<KIND, 1, 1, 3>(weights, acts, n, row, out),
                        (_, _, 2) => tile::<KIND, 1, 1, 2>(weights, acts, n, row, out),
                        (_, _, _) => tile::<KIND, 1, 1, 1>(weights, acts, n, row, out),
                    }
                }
                row += height;
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn many<const KIND: usize>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    let (n, cols) = (acts.n(), weights.cols);
    BLOCK.with_borrow_mut(|(block, products)| {
        block.resize(BLOCK_COLS * BLOCK_ROWS, 0.0);
        products.resize(products.len().max(n * BLOCK_ROWS), 0.0);
        let products = &mut products[..n * BLOCK_ROWS];
        for first in rows.clone().step_by(BLOCK_ROWS) {
            let count = (rows.end - first).min(BLOCK_ROWS);
            products.fill(0.0);
            for col in (0..cols).step_by(BLOCK_COLS) {
                let width = (cols - col).min(BLOCK_COLS);
                // SAFETY: these rows and columns lie within the weights; features as in the caller.
                unsafe { widen_block::<KIND>(weights, first..first + count, col..col + width, block) };
                let next = if col + width < cols { (first, col + width) } else { (first + BLOCK_ROWS, 0) };
                fetch_block(weights, next.0..rows.end.min(next.0 + BLOCK_ROWS), next.1);
                let (floats, stride) = acts.all_floats();
                let vectors = Rows { data: &floats[col..], stride };
                for (strip, widened) in block.chunks_exact(BLOCK_COLS * STRIP_ROWS).enumerate() {
                    let widened = Rows { data: widened, stride: STRIP_ROWS };
                    let products = &mut products[strip * STRIP_ROWS..];
                    multiply_accumulate(Isa::Avx2, (n, width, STRIP_ROWS), vectors, widened, products, BLOCK_ROWS);
                }
            }
            for (n, products) in products.chunks_exact(BLOCK_ROWS).enumerate() {
                out.put_row(n, first, &products[..count]);
            }
        }
    });
}

/// Asks for the columns from `col` on of some rows, to be there when they are widened.
#[target_feature(enable = "avx2,fma,f16c")]
fn fetch_block(weights: WeightRows<'_>, rows: Range<usize>, col: usize) {
    for row in rows {
        let row = weights.row(row);
        let element = row.len() / weights.cols;
        let columns = &row[col * element..weights.cols.min(col + BLOCK_COLS) * element];
        for line in columns.chunks(64) {
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
        }
    }
}

/// Columns of up to [`BLOCK_ROWS`] rows, widened, into `block` (strips, columns, [`STRIP_ROWS`]); what is missing are zeros.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen_block<const KIND: usize>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    block: &mut [f32],
) {
    for group in (0..BLOCK_ROWS).step_by(8) {
        let strip: [Option<&[u8]>; 8] =
            std::array::from_fn(|r| (rows.start + group + r < rows.end).then(|| weights.row(rows.start + group + r)));
        let block = &mut block[group / STRIP_ROWS * BLOCK_COLS * STRIP_ROWS + group % STRIP_ROWS..];
        let mut done = 0;
        if KIND != 0 {
            done = cols.len() / 16 * 16;
            for at in (0..done).step_by(16) {
                let rows = strip.map(|row| match row {
                    // SAFETY: sixteen elements of two bytes from this column on lie within the row.
                    Some(row) => unsafe { _mm256_loadu_si256(row.as_ptr().add(2 * (cols.start + at)).cast()) },
                    None => _mm256_setzero_si256(),
                });
                for (i, column) in transpose_halves(rows).into_iter().enumerate() {
                    let (low, high) = (_mm256_castsi256_si128(column), _mm256_extracti128_si256::<1>(column));
                    for (column, eight) in [(at + i, low), (at + 8 + i, high)] {
                        let to = &mut block[column * STRIP_ROWS..][..8];
                        // SAFETY: `to` has eight floats.
                        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), widened::<KIND>(eight)) };
                    }
                }
            }
        }
        let whole = cols.len() / 8 * 8;
        for at in (done..whole).step_by(8) {
            let square = strip.map(|row| match row {
                // SAFETY: eight elements from this column on lie within the row.
                Some(row) => unsafe { eight::<KIND>(row.as_ptr(), cols.start + at) },
                None => _mm256_setzero_ps(),
            });
            for (i, column) in transpose(square).into_iter().enumerate() {
                let to = &mut block[(at + i) * STRIP_ROWS..][..8];
                // SAFETY: `to` has eight floats.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), column) };
            }
        }
        for at in whole..cols.len() {
            for (r, row) in strip.iter().enumerate() {
                block[at * STRIP_ROWS + r] = row.map_or(0.0, |row| scalar_at::<KIND>(row, cols.start + at));
            }
        }
    }
}

/// `R` rows with `C` vectors, each product in `SUMS` sums. Either rows or sums are several, so that no addition waits for the
/// one before it; the order of sums follows from the length of rows alone.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const KIND: usize, const R: usize, const SUMS: usize, const C: usize>(
    weights: WeightRows<'_>,
    acts: &Activations,
    n: usize,
    row: usize,
    out: SharedOut,
) {
    let rows: [&[u8]; R] = std::array::from_fn(|r| weights.row(row + r));
    let vectors: [&[f32]; C] = std::array::from_fn(|c| acts.floats(n + c));
    let mut sums = [[[_mm256_setzero_ps(); SUMS]; C]; R];
    let (together, whole) = (R * weights.row_bytes(), weights.cols / 8 * 8);
    let ahead = if R > 1 && together <= NEXT_ROWS_BYTES_MAX { together } else { AHEAD_BYTES };
    for at in (0..whole).step_by(8 * SUMS) {
        if (at * element::<KIND>()).is_multiple_of(64) {
            for row in rows {
                _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(at * element::<KIND>() + ahead).cast());
            }
        }
        for i in 0..SUMS.min((whole - at) / 8) {
            // SAFETY: the eight elements of this sum lie within rows and vectors.
            unsafe {
                let at = at + 8 * i;
                let x: [__m256; C] = std::array::from_fn(|c| _mm256_loadu_ps(vectors[c].as_ptr().add(at)));
                for r in 0..R {
                    let weight = eight::<KIND>(rows[r].as_ptr(), at);
                    for c in 0..C {
                        sums[r][c][i] = _mm256_fmadd_ps(weight, x[c], sums[r][c][i]);
                    }
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            let rest: f32 = (whole..weights.cols).map(|at| scalar_at::<KIND>(rows[r], at) * vectors[c][at]).sum();
            let sum = sums[r][c].into_iter().reduce(|a, b| _mm256_add_ps(a, b)).unwrap_or_else(|| _mm256_setzero_ps());
            out.put(n + c, row + r, horizontal(sum) + rest);
        }
    }
}

/// Bytes of an element.
const fn element<const KIND: usize>() -> usize {
    if KIND == 0 { 4 } else { 2 }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight<const KIND: usize>(row: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller gives eight elements from `at`.
    unsafe {
        match KIND {
            0 => _mm256_loadu_ps(row.cast::<f32>().add(at)),
            _ => widened::<KIND>(_mm_loadu_si128(row.add(2 * at).cast())),
        }
    }
}

/// Eight numbers of 16 bits: half precision where `KIND` is 1, else bfloat16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widened<const KIND: usize>(eight: __m128i) -> __m256 {
    if KIND == 1 {
        return _mm256_cvtph_ps(eight);
    }
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eight)))
}

/// Columns 0 to 7 of 8 rows of 16 numbers of 16 bits, and in the upper halves columns 8 to 15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose_halves(r: [__m256i; 8]) -> [__m256i; 8] {
    let low: [__m256i; 4] = std::array::from_fn(|i| _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]));
    let high: [__m256i; 4] = std::array::from_fn(|i| _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]));
    let mut out = [_mm256_setzero_si256(); 8];
    for (half, pairs) in [low, high].into_iter().enumerate() {
        let two = [_mm256_unpacklo_epi32(pairs[0], pairs[1]), _mm256_unpacklo_epi32(pairs[2], pairs[3])];
        let next = [_mm256_unpackhi_epi32(pairs[0], pairs[1]), _mm256_unpackhi_epi32(pairs[2], pairs[3])];
        out[4 * half] = _mm256_unpacklo_epi64(two[0], two[1]);
        out[4 * half + 1] = _mm256_unpackhi_epi64(two[0], two[1]);
        out[4 * half + 2] = _mm256_unpacklo_epi64(next[0], next[1]);
        out[4 * half + 3] = _mm256_unpackhi_epi64(next[0], next[1]);
    }
    out
}

fn scalar_at<const KIND: usize>(row: &[u8], at: usize) -> f32 {
    match KIND {
        0 => f32::from_le_bytes([row[4 * at], row[4 * at + 1], row[4 * at + 2], row[4 * at + 3]]),
        1 => f16::from_le_bytes([row[2 * at], row[2 * at + 1]]).to_f32(),
        _ => bf16::from_le_bytes([row[2 * at], row[2 * at + 1]]).to_f32(),
    }
}

/// Rounds to half precision and back.
pub(in crate::kernels) fn through_half(x: &mut [f32]) {
    // SAFETY: the caller chose AVX2, which exists only where the processor has F16C too.
    unsafe { through_half_by_eight(x) };
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn through_half_by_eight(x: &mut [f32]) {
    let mut eights = x.chunks_exact_mut(8);
    for eight in &mut eights {
        // SAFETY: the chunk has eight floats.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(eight.as_ptr()));
            _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(half));
        }
    }
    for v in eights.into_remainder() {
        *v = f16::from_f32(*v).to_f32();
    }
}
