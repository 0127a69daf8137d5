//! One row with one vector: what decoding a token spends its time on. Scales are looked at eight at a time, so that what
//! is left for each group of 32 codes is unpacking, multiplying and one fused multiply-add; the K types sum whole numbers
//! over 256 elements, scales included, and touch floats once a block. Of these, `vpdpbusd` would save nothing: a group is one
//! register, so that its scale takes as many instructions after four products as after two.

// Tiles are indexed by row, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::dot::Dot;
use super::formats::{Format, Large, Small};
use super::{GROUP, PREFETCH_BYTES, group_scale, horizontal, multiply, multiply_scaled};
use crate::kernels::Activations;
use std::arch::x86_64::*;

/// Blocks of 32 whose scales are handled together.
const TOGETHER: usize = 8;

/// A row in blocks of 32.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; `row` is whole blocks of `F`, as many as vector `n` of `acts` has groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn small_blocks<F: Small, D: Dot>(row: &[u8], acts: &Activations, n: usize) -> f32 {
    let (codes, scales, sums) = (acts.codes(n).as_ptr(), acts.scales(n), acts.sums_32(n));
    let mut sum = [_mm256_setzero_ps(); 2];
    let mut offset = _mm256_setzero_ps();
    let whole = scales.len() / TOGETHER * TOGETHER;
    for first in (0..whole).step_by(TOGETHER) {
        let blocks = &row[first * F::BYTES..][..TOGETHER * F::BYTES];
        fetch_ahead(blocks);
        let mut together = [0.0f32; TOGETHER];
        // SAFETY: eight blocks, scales and sums from `first` on are there; `together` has room for eight.
        unsafe {
            let weight_scales = eight_halves::<F>(blocks, 0);
            let act_scales = _mm256_loadu_ps(scales.as_ptr().add(first));
            _mm256_storeu_ps(together.as_mut_ptr(), _mm256_mul_ps(weight_scales, act_scales));
            let act_sums = _mm256_loadu_ps(sums.as_ptr().add(first));
            if F::MINIMUM {
                offset = _mm256_fnmadd_ps(eight_halves::<F>(blocks, 2), act_sums, offset);
            } else if F::OFFSET {
                offset = _mm256_fmadd_ps(weight_scales, act_sums, offset);
            }
        }
        for i in 0..TOGETHER {
            // SAFETY: the block and the group of the vector are there.
            let products = unsafe { block_products::<F, D>(&blocks[i * F::BYTES..], codes.add((first + i) * GROUP)) };
            sum[i % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_set1_ps(together[i]), sum[i % 2]);
        }
    }
    let steps = if F::MINIMUM { 1.0 } else { F::STEPS };
    let mut offset = horizontal(offset) * steps;
    for (i, block) in row.chunks_exact(F::BYTES).enumerate().skip(whole) {
        // SAFETY: as above.
        let ((scale, off), products) =
            unsafe { (F::scale_and_offset(block), block_products::<F, D>(block, codes.add(i * GROUP))) };
        sum[0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_set1_ps(scale * scales[i]), sum[0]);
        offset += off * sums[i];
    }
    horizontal(_mm256_add_ps(sum[0], sum[1])) - offset
}

/// A row in blocks of 256.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `row` is whole blocks of `F`, as many elements as vector `n` of `acts` has.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn large_blocks<F: Large>(row: &[u8], acts: &Activations, n: usize) -> f32 {
    let (codes, scales) = (acts.codes(n).as_ptr(), acts.scales(n));
    let sums = if F::HALVES { acts.sums_16(n) } else { acts.sums_32(n) };
    let per_block = if F::HALVES { 16 } else { 8 };
    let mut sum = _mm256_setzero_ps();
    let mut offset = _mm256_setzero_ps();
    for (i, block) in row.chunks_exact(F::BYTES).enumerate() {
        fetch_ahead(block);
        // SAFETY: the block and its part of the vector are there.
        unsafe {
            let head = F::head(block);
            let products = _mm256_cvtepi32_ps(large_products::<F>(block, head.scales, codes.add(i * 8 * GROUP)));
            // the vector's scale is shared by the block's eight groups, see `ActivationFormat::Q8K`
            sum = _mm256_fmadd_ps(products, _mm256_set1_ps(head.scale * scales[i * 8]), sum);
            let act_sums = sums.as_ptr().add(i * per_block);
            offset = _mm256_fmadd_ps(head.offsets[0], _mm256_loadu_ps(act_sums), offset);
            if F::HALVES {
                offset = _mm256_fmadd_ps(head.offsets[1], _mm256_loadu_ps(act_sums.add(8)), offset);
            }
        }
    }
    horizontal(_mm256_sub_ps(sum, offset))
}

/// Products of a block of 256 times the sub-block scales, in whole numbers. The largest sum, of Q6_K, stays below
/// 2 x 8 x 2 x 63 x 127 x 128 = 2^25.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large_products<F: Large>(block: &[u8], scales: __m256i, codes: *const i8) -> __m256i {
    let mut sums = [_mm256_setzero_si256(); 2];
    for g in 0..8 {
        // SAFETY: the caller gives a whole block and 256 codes.
        let (weight, act) = unsafe { (F::codes(block, g), _mm256_loadu_si256(codes.add(g * GROUP).cast())) };
        sums[g % 2] = _mm256_add_epi32(sums[g % 2], multiply_scaled(weight, act, group_scale(scales, g)));
    }
    _mm256_add_epi32(sums[0], sums[1])
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_products<F: Format, D: Dot>(block: &[u8], codes: *const i8) -> __m256i {
    // SAFETY: the caller gives a block and 32 codes; `D`'s instruction is there.
    unsafe { multiply::<F, D>(F::codes(block, 0), _mm256_loadu_si256(codes.cast())) }
}

/// The half-precision numbers at byte `at` of eight blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight_halves<F: Format>(blocks: &[u8], at: usize) -> __m256 {
    let half = |i: usize| i16::from_le_bytes([blocks[i * F::BYTES + at], blocks[i * F::BYTES + at + 1]]);
    _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)))
}

/// Asks for the cache lines that follow some way behind `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fetch_ahead(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(line + PREFETCH_BYTES).cast());
    }
}
