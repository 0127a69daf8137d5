//! Eight rows with one vector, where weights lie row by row. A row's products are summed in whole numbers block by block, as
//! memory has them; then those of eight rows are turned, so that floats are touched a row a lane and in the order that
//! strips have.

// Registers are indexed by row and block.
#![allow(clippy::needless_range_loop)]

use super::dot::Dot;
use super::formats::{Large, Small};
use super::strips::{GROUPS, STRIP};
use super::sums::{Eight, across, add_large, add_small, steps_of_offsets};
use super::{GROUP, PREFETCH_BYTES, group_scale, multiply, multiply_scaled, transpose};
use crate::kernels::Activations;
use std::arch::x86_64::*;

/// Blocks of a row that are looked at before the next row.
const CHUNK: usize = 64;
/// Blocks whose sums are one register.
const TOGETHER: usize = 8;

/// Whole numbers of eight rows, one for each block of a chunk.
type Numbers = [[i32; CHUNK]; STRIP];

/// What eight rows have in a chunk.
pub(super) struct Chunk {
    whole: Numbers,
    offsets: Numbers,
}

impl Chunk {
    pub(super) const fn new() -> Self {
        Self { whole: [[0; CHUNK]; STRIP], offsets: [[0; CHUNK]; STRIP] }
    }
}

/// The numbers of eight rows for eight blocks from `first` on: a block a register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_block(numbers: &Numbers, first: usize) -> [__m256i; TOGETHER] {
    let mut rows = [_mm256_setzero_ps(); STRIP];
    for r in 0..STRIP {
        // SAFETY: the slice has eight numbers; as floats they are only moved.
        rows[r] = unsafe { _mm256_loadu_ps(numbers[r][first..first + TOGETHER].as_ptr().cast()) };
    }
    transpose(rows).map(|v| _mm256_castps_si256(v))
}

/// The half-precision numbers at byte `at` of eight rows.
///
/// # Safety
/// The processor has AVX2 and F16C; the rows have these two bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight_halves(rows: &[*const u8; STRIP], at: usize) -> __m256 {
    // SAFETY: this function's contract.
    let half = |r: usize| unsafe { rows[r].add(at).cast::<i16>().read_unaligned() };
    _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)))
}

/// Rows in blocks of 32.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; rows are whole blocks of `F`, as many as vector `n` of `acts`
/// has groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn small_blocks<F: Small, D: Dot>(
    rows: [*const u8; STRIP],
    acts: &Activations,
    n: usize,
    chunk: &mut Chunk,
) -> __m256 {
    let (codes, scales, sums) = (acts.codes(n), acts.scales(n), acts.sums_32(n));
    let mut sum = _mm256_setzero_ps();
    for first in (0..scales.len()).step_by(CHUNK) {
        let count = (scales.len() - first).min(CHUNK);
        // SAFETY: the blocks and their groups of the vector are there; `D`'s instruction is too.
        unsafe {
            for r in 0..STRIP {
                let blocks = rows[r].add(first * F::BYTES);
                small_row::<F, D>(blocks, count, codes.as_ptr().add(first * GROUP), &mut chunk.whole[r]);
            }
            for eight in (0..count).step_by(TOGETHER) {
                let whole = by_block(&chunk.whole, eight);
                for (i, b) in (first + eight..first + count).take(TOGETHER).enumerate() {
                    let at = b * F::BYTES;
                    let minimum = if F::MINIMUM { eight_halves(&rows, at + 2) } else { _mm256_setzero_ps() };
                    let numbers = Eight { scale: eight_halves(&rows, at), minimum };
                    let of_vector = (*scales.get_unchecked(b), *sums.get_unchecked(b));
                    sum = add_small::<F>(sum, whole[i], numbers, F::STEPS, of_vector);
                }
            }
        }
    }
    sum
}

/// Sums of the products of `count` blocks of a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_row<F: Small, D: Dot>(blocks: *const u8, count: usize, codes: *const i8, to: &mut [i32; CHUNK]) {
    let mut b = 0;
    // SAFETY: the caller gives as many blocks, and 32 codes for each; `D`'s instruction is there.
    unsafe {
        while b + 8 <= count {
            fetch_ahead(blocks.add(b * F::BYTES), 8 * F::BYTES);
            let eight = small_group::<F, D, 8>(blocks.add(b * F::BYTES), codes.add(b * GROUP));
            _mm256_storeu_si256(to[b..b + 8].as_mut_ptr().cast(), eight);
            b += 8;
        }
        if b + 4 <= count {
            fetch_ahead(blocks.add(b * F::BYTES), 4 * F::BYTES);
            let four = small_group::<F, D, 4>(blocks.add(b * F::BYTES), codes.add(b * GROUP));
            _mm_storeu_si128(to[b..b + 4].as_mut_ptr().cast(), _mm256_castsi256_si128(four));
            b += 4;
        }
        if b + 2 <= count {
            fetch_ahead(blocks.add(b * F::BYTES), 2 * F::BYTES);
            let two = small_group::<F, D, 2>(blocks.add(b * F::BYTES), codes.add(b * GROUP));
            _mm_storel_epi64(to[b..b + 2].as_mut_ptr().cast(), _mm256_castsi256_si128(two));
            b += 2;
        }
        if b < count {
            let one = small_group::<F, D, 1>(blocks.add(b * F::BYTES), codes.add(b * GROUP));
            to[b] = _mm256_cvtsi256_si32(one);
        }
    }
}

/// Sums of the products of N blocks of a row, at most eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_group<F: Small, D: Dot, const N: usize>(blocks: *const u8, codes: *const i8) -> __m256i {
    let mut products = [_mm256_setzero_si256(); TOGETHER];
    for b in 0..N {
        // SAFETY: the caller gives as many blocks, and 32 codes for each; `D`'s instruction is there.
        unsafe {
            let block = std::slice::from_raw_parts(blocks.add(b * F::BYTES), F::BYTES);
            let act = _mm256_loadu_si256(codes.add(b * GROUP).cast());
            products[b] = multiply::<F, D>(F::codes(block, 0), act);
        }
    }
    across(products)
}

/// Rows in blocks of 256.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; rows are whole blocks of `F`, as many elements as vector `n` of `acts` has.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn large_blocks<F: Large>(
    rows: [*const u8; STRIP],
    acts: &Activations,
    n: usize,
    chunk: &mut Chunk,
) -> __m256 {
    let (codes, scales, code_sums) = (acts.codes(n), acts.scales(n), acts.code_sums(n));
    let blocks = scales.len() / GROUPS;
    let mut sum = _mm256_setzero_ps();
    for first in (0..blocks).step_by(CHUNK) {
        let count = (blocks - first).min(CHUNK);
        // SAFETY: the blocks and their parts of the vector are there.
        unsafe {
            let (codes, code_sums) =
                (codes.as_ptr().add(first * GROUPS * GROUP), code_sums.as_ptr().add(first * 2 * GROUPS));
            for r in 0..STRIP {
                large_row::<F>((rows[r].add(first * F::BYTES), count), codes, code_sums, chunk, r);
            }
            for eight in (0..count).step_by(TOGETHER) {
                let whole = by_block(&chunk.whole, eight);
                let offsets =
                    if F::MINIMUMS { by_block(&chunk.offsets, eight) } else { [_mm256_setzero_si256(); TOGETHER] };
                for (i, b) in (first + eight..first + count).take(TOGETHER).enumerate() {
                    let at = b * F::BYTES;
                    let minimum =
                        if F::MINIMUMS { eight_halves(&rows, at + F::MINIMUM_AT) } else { _mm256_setzero_ps() };
                    let numbers = Eight { scale: eight_halves(&rows, at + F::SCALE_AT), minimum };
                    sum = add_large::<F>(sum, whole[i], offsets[i], numbers, *scales.get_unchecked(b * GROUPS));
                }
            }
        }
    }
    sum
}

/// Sums of the products of some blocks of row `r`, scales included, and of its offsets.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large_row<F: Large>(
    (blocks, count): (*const u8, usize),
    codes: *const i8,
    code_sums: *const i16,
    chunk: &mut Chunk,
    r: usize,
) {
    for b in 0..count {
        // SAFETY: the caller gives 256 codes and 16 sums of them for each block.
        unsafe {
            let block = blocks.add(b * F::BYTES);
            fetch_ahead(block, F::BYTES);
            let block = std::slice::from_raw_parts(block, F::BYTES);
            let head = F::head(block);
            let whole = products::<F>(block, head.scales, codes.add(b * GROUPS * GROUP));
            let offsets = _mm256_madd_epi16(head.offsets, sums_of_parts::<F>(code_sums.add(b * 2 * GROUPS)));
            if F::MINIMUMS {
                // both sums at once
                let two = _mm256_hadd_epi32(whole, offsets);
                let two = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256::<1>(two));
                let two = _mm_hadd_epi32(two, two);
                chunk.whole[r][b] = _mm_cvtsi128_si32(two);
                chunk.offsets[r][b] = _mm_extract_epi32::<1>(two);
            } else {
                chunk.whole[r][b] = horizontal(_mm256_sub_epi32(whole, steps_of_offsets::<F>(offsets)));
            }
        }
    }
}

/// The sum of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn horizontal(eight: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b0100_1110>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b1011_0001>(two)))
}

/// Sums of a vector's codes for each part of a block, in order as `LargeHead::offsets` has the parts.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sums_of_parts<F: Large>(code_sums: *const i16) -> __m256i {
    // SAFETY: the caller gives 16 sums. A sum of 32 codes fits 16 bits.
    unsafe {
        if F::HALVES {
            return _mm256_loadu_si256(code_sums.cast());
        }
        let (low, high) = (_mm_loadu_si128(code_sums.cast()), _mm_loadu_si128(code_sums.add(8).cast()));
        _mm256_zextsi128_si256(_mm_hadd_epi16(low, high))
    }
}

/// Products of a block of 256 times the scales of its parts, in whole numbers. The largest sum, of Q6_K, stays below
/// 2 x 8 x 2 x 63 x 127 x 128 = 2^25.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<F: Large>(block: &[u8], scales: __m256i, codes: *const i8) -> __m256i {
    let mut sums = [_mm256_setzero_si256(); 2];
    for g in 0..GROUPS {
        // SAFETY: the caller gives a whole block and 256 codes.
        let (weight, act) = unsafe { (F::codes(block, g), _mm256_loadu_si256(codes.add(g * GROUP).cast())) };
        sums[g % 2] = _mm256_add_epi32(sums[g % 2], multiply_scaled(weight, act, group_scale(scales, g)));
    }
    _mm256_add_epi32(sums[0], sums[1])
}

/// Asks for the cache lines that follow some way behind these.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fetch_ahead(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line + PREFETCH_BYTES).cast());
    }
}
