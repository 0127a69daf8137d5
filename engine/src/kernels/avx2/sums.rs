//! What every form of a product does with a block's sums of eight rows: exact whole numbers, then one fused multiply-add a
//! scale, in the order of the row. So a product has the same bits from rows and from strips, alone and among others.

use super::formats::{Large, Small};
use super::strips::STRIP;
use std::arch::x86_64::*;

/// Parts whose offsets are looked at together.
pub(super) const PAIR: usize = 2;

/// A block's numbers of eight rows.
#[derive(Clone, Copy)]
pub(super) struct Eight {
    pub scale: __m256,
    /// Blocks of 32: their minimum; of 256: what the minimums are multiplied with. Unused where the format has none.
    pub minimum: __m256,
}

/// Adds a block of 32: `whole` are sums of products of codes, from each of which `steps` were to be taken off.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_small<F: Small>(
    sum: __m256,
    whole: __m256i,
    block: Eight,
    steps: f32,
    (act_scale, act_sum): (f32, f32),
) -> __m256 {
    let product = _mm256_cvtepi32_ps(whole);
    let product = if steps == 0.0 {
        _mm256_mul_ps(product, _mm256_set1_ps(act_scale))
    } else {
        // taken off while the sum is still in the vector's scale: one operation less for each strip
        _mm256_fmsub_ps(product, _mm256_set1_ps(act_scale), _mm256_set1_ps(steps * act_sum))
    };
    let sum = _mm256_fmadd_ps(product, block.scale, sum);
    if F::MINIMUM { _mm256_fmadd_ps(block.minimum, _mm256_set1_ps(act_sum), sum) } else { sum }
}

/// Adds a block of 256: `whole` are sums of products of codes and scales of parts, `offsets` those of the parts' offsets and
/// the vector's codes. The largest of what is taken off, of Q6_K, stays below 32 x 16 x 128 x 16 x 128 = 2^27.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_large<F: Large>(
    sum: __m256,
    whole: __m256i,
    offsets: __m256i,
    block: Eight,
    act_scale: f32,
) -> __m256 {
    // the vector's scale is shared by the block's eight groups, see `ActivationFormat::Q8K`
    let act_scale = _mm256_set1_ps(act_scale);
    let both = _mm256_mul_ps(block.scale, act_scale);
    if F::MINIMUMS {
        let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), both, sum);
        return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(offsets), _mm256_mul_ps(block.minimum, act_scale), sum);
    }
    let whole = _mm256_sub_epi32(whole, steps_of_offsets::<F>(offsets));
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), both, sum)
}

/// Offsets as products are counted, where they are steps of a scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn steps_of_offsets<F: Large>(offsets: __m256i) -> __m256i {
    _mm256_sll_epi32(offsets, _mm_cvtsi32_si128(F::STEPS.trailing_zeros() as i32))
}

/// Sums of a vector's codes for each part of a block of 256, in pairs that are in both halves of a register each: the first
/// four pairs, then those of a format whose halves of groups are parts.
///
/// # Safety
/// The processor has AVX2; the vector's 16 sums of 16 codes can be read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn part_sums<F: Large>(code_sums: *const i16) -> [__m256i; 2] {
    // SAFETY: this function's contract. A sum of 32 codes fits 16 bits.
    unsafe {
        let (low, high) = (_mm_loadu_si128(code_sums.cast()), _mm_loadu_si128(code_sums.add(8).cast()));
        if F::HALVES {
            [_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)]
        } else {
            [_mm256_broadcastsi128_si256(_mm_hadd_epi16(low, high)); 2]
        }
    }
}

/// Pair `pair` of [`part_sums`] in all lanes.
#[inline(always)]
pub(super) fn pair_of(sums: [__m256i; 2], pair: usize) -> __m256i {
    let four = sums[pair / 4];
    // SAFETY: whoever made the sums has AVX2.
    unsafe {
        match pair % 4 {
            0 => _mm256_shuffle_epi32::<0b00_00_00_00>(four),
            1 => _mm256_shuffle_epi32::<0b01_01_01_01>(four),
            2 => _mm256_shuffle_epi32::<0b10_10_10_10>(four),
            _ => _mm256_shuffle_epi32::<0b11_11_11_11>(four),
        }
    }
}

/// The sums of the eight lanes of each register, in order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn across(r: [__m256i; STRIP]) -> __m256i {
    let low = _mm256_hadd_epi32(_mm256_hadd_epi32(r[0], r[1]), _mm256_hadd_epi32(r[2], r[3]));
    let high = _mm256_hadd_epi32(_mm256_hadd_epi32(r[4], r[5]), _mm256_hadd_epi32(r[6], r[7]));
    let halves = (_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high));
    _mm256_add_epi32(halves.0, halves.1)
}
