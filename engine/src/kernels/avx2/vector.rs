//! Eight rows with one vector, where weights lie row by row: a row's products are summed across its register in whole
//! numbers, so that floats are touched a row a lane and in the order that strips have.

use super::dot::Dot;
use super::formats::{Large, Small};
use super::strips::{GROUPS, STRIP, halves_of};
use super::sums::{Eight, across, add_large, add_small, steps_of_offsets};
use super::{GROUP, PREFETCH_BYTES, group_scale, multiply, multiply_scaled};
use crate::kernels::Activations;
use std::arch::x86_64::*;

/// Rows in blocks of 32.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; rows are whole blocks of `F`, as many as vector `n` of `acts`
/// has groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn small_blocks<F: Small, D: Dot>(rows: [&[u8]; STRIP], acts: &Activations, n: usize) -> __m256 {
    let (codes, scales, sums) = (acts.codes(n), acts.scales(n), acts.sums_32(n));
    let mut sum = _mm256_setzero_ps();
    for (b, (&act_scale, &act_sum)) in scales.iter().zip(sums).enumerate() {
        // SAFETY: the block and the group of the vector are there; `D`'s instruction is too.
        unsafe {
            let blocks = rows.map(|row| row.get_unchecked(b * F::BYTES..(b + 1) * F::BYTES));
            let act = _mm256_loadu_si256(codes.as_ptr().add(b * GROUP).cast());
            let whole = across(|r| {
                fetch_ahead(blocks[r]);
                multiply::<F, D>(F::codes(blocks[r], 0), act)
            });
            let blocks = blocks.map(Some);
            let minimum = if F::MINIMUM { halves_of(blocks, 2) } else { _mm256_setzero_ps() };
            let eight = Eight { scale: halves_of(blocks, 0), minimum };
            sum = add_small::<F>(sum, whole, eight, F::STEPS, (act_scale, act_sum));
        }
    }
    sum
}

/// Rows in blocks of 256.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; rows are whole blocks of `F`, as many elements as vector `n` of `acts` has.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn large_blocks<F: Large>(rows: [&[u8]; STRIP], acts: &Activations, n: usize) -> __m256 {
    let (codes, scales, code_sums) = (acts.codes(n), acts.scales(n), acts.code_sums(n));
    let mut sum = _mm256_setzero_ps();
    for b in 0..scales.len() / GROUPS {
        let mut whole = [_mm256_setzero_si256(); STRIP];
        let mut offsets = [_mm256_setzero_si256(); STRIP];
        // SAFETY: the block and its part of the vector are there.
        unsafe {
            let blocks = rows.map(|row| row.get_unchecked(b * F::BYTES..(b + 1) * F::BYTES));
            let act_sums = sums_of_parts::<F>(code_sums.as_ptr().add(b * 2 * GROUPS));
            for r in 0..STRIP {
                fetch_ahead(blocks[r]);
                let head = F::head(blocks[r]);
                whole[r] = products::<F>(blocks[r], head.scales, codes.as_ptr().add(b * GROUPS * GROUP));
                offsets[r] = _mm256_madd_epi16(head.offsets, act_sums);
                if !F::MINIMUMS {
                    whole[r] = _mm256_sub_epi32(whole[r], steps_of_offsets::<F>(offsets[r]));
                }
            }
            let blocks = blocks.map(Some);
            let minimum = if F::MINIMUMS { halves_of(blocks, F::MINIMUM_AT) } else { _mm256_setzero_ps() };
            let eight = Eight { scale: halves_of(blocks, F::SCALE_AT), minimum };
            let taken_off = if F::MINIMUMS { across(|r| offsets[r]) } else { _mm256_setzero_si256() };
            sum = add_large::<F>(sum, across(|r| whole[r]), taken_off, eight, scales[b * GROUPS]);
        }
    }
    sum
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

/// Asks for the cache lines that follow some way behind `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fetch_ahead(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(line + PREFETCH_BYTES).cast());
    }
}
