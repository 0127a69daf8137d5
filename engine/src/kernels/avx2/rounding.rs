//! Activations to codes, a whole vector at a time, if wanted as their norm has them: then a group is scaled, measured and
//! rounded in registers, and the normed vector is never written.

use super::super::ActivationFormat;
use super::super::activations::{CodesMut, GROUP, Scaled};
use std::arch::x86_64::*;

/// Elements that share a scale in `Q8K`.
const LARGE: usize = 8 * GROUP;

/// As `activations::round_vector`; `Isa::Avx2` exists only where the processor has the features.
pub(in crate::kernels) fn round_vector(format: ActivationFormat, x: Scaled<'_>, out: CodesMut<'_>) {
    let len = x.values.len();
    assert!(len.is_multiple_of(GROUP) && out.codes.len() == len && out.scales.len() == len / GROUP, "whole groups");
    assert!(out.sums_32.len() == len / GROUP && out.code_sums.len() == len / 16, "sums of as many groups");
    assert!(x.weights.is_none_or(|(weights, _)| weights.len() == len), "a weight for each element");
    // SAFETY: lengths were just asserted; the caller chose AVX2, which exists only where the processor has it.
    unsafe {
        match (format, x.weights.is_some()) {
            (ActivationFormat::Q8K, false) => large_blocks::<false>(x, out),
            (ActivationFormat::Q8K, true) => large_blocks::<true>(x, out),
            (_, false) => small_blocks::<false>(format, x, out),
            (_, true) => small_blocks::<true>(format, x, out),
        }
    }
}

/// 32 elements from `at` on, times the norm's scale and weights where there are some.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group<const NORMED: bool>(x: Scaled<'_>, at: usize) -> [__m256; 4] {
    // SAFETY: the caller gives a whole group within the vector, and weights of its length.
    std::array::from_fn(|i| unsafe {
        let values = _mm256_loadu_ps(x.values.as_ptr().add(at + 8 * i));
        match x.weights {
            Some((weights, scale)) if NORMED => {
                let weights = _mm256_loadu_ps(weights.as_ptr().add(at + 8 * i));
                _mm256_mul_ps(_mm256_mul_ps(values, _mm256_set1_ps(scale)), weights)
            }
            _ => values,
        }
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_blocks<const NORMED: bool>(format: ActivationFormat, x: Scaled<'_>, out: CodesMut<'_>) {
    for g in 0..out.scales.len() {
        // SAFETY: the group lies within the vector, its codes within theirs.
        let (values, codes) = unsafe { (group::<NORMED>(x, g * GROUP), out.codes.as_mut_ptr().add(g * GROUP)) };
        let (largest, finite) = largest_32(values);
        let (scale, inverse) = match (finite, largest == 0.0) {
            (false, _) => (f32::NAN, 0.0),
            (_, true) => (0.0, 0.0),
            _ => (largest / 127.0, 127.0 / largest),
        };
        let stored = through_half(scale);
        // SAFETY: as above.
        let sums = unsafe { round_codes(values, inverse, codes) };
        let sum = (sums[0] + sums[1]) as f32;
        out.scales[g] = stored;
        out.code_sums[2 * g..][..2].copy_from_slice(&sums.map(|sum| sum as i16));
        out.sums_32[g] = if format == ActivationFormat::Q8_1 { through_half(scale * sum) } else { stored * sum };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large_blocks<const NORMED: bool>(x: Scaled<'_>, out: CodesMut<'_>) {
    let mut block = [[_mm256_setzero_ps(); 4]; LARGE / GROUP];
    for first in (0..out.scales.len()).step_by(LARGE / GROUP) {
        let (mut largest, mut finite) = (0.0f32, true);
        for (i, values) in block.iter_mut().enumerate() {
            // SAFETY: vectors are whole blocks, which the activations check, so the group lies within.
            *values = unsafe { group::<NORMED>(x, (first + i) * GROUP) };
            let (of_group, finite_group) = largest_32(*values);
            (largest, finite) = (largest.max(of_group), finite && finite_group);
        }
        let (scale, inverse) = match (finite, largest == 0.0) {
            (false, _) => (f32::NAN, 0.0),
            (_, true) => (0.0, 0.0),
            // the first element of the largest magnitude becomes -127, whatever its sign
            _ => {
                let inverse = -127.0 / first_of_magnitude(&block, largest);
                (1.0 / inverse, inverse)
            }
        };
        for (i, values) in block.iter().enumerate() {
            let g = first + i;
            // SAFETY: the group's codes lie within the vector's.
            let sums = unsafe { round_codes(*values, inverse, out.codes.as_mut_ptr().add(g * GROUP)) };
            out.scales[g] = scale;
            out.code_sums[2 * g..][..2].copy_from_slice(&sums.map(|sum| sum as i16));
            out.sums_32[g] = scale * (sums[0] + sums[1]) as f32;
        }
    }
}

/// The first element with that magnitude; the magnitude itself where there is none.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn first_of_magnitude(block: &[[__m256; 4]], largest: f32) -> f32 {
    for values in block.iter().flatten() {
        let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(magnitude(*values), _mm256_set1_ps(largest));
        let found = _mm256_movemask_ps(equal);
        if found != 0 {
            let lane = _mm256_set1_epi32(found.trailing_zeros() as i32);
            return _mm256_cvtss_f32(_mm256_permutevar8x32_ps(*values, lane));
        }
    }
    largest
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn through_half(x: f32) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(x))))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn magnitude(x: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
}

/// As `activations::largest_of_group`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest_32(v: [__m256; 4]) -> (f32, bool) {
    let m =
        _mm256_max_ps(_mm256_max_ps(magnitude(v[0]), magnitude(v[1])), _mm256_max_ps(magnitude(v[2]), magnitude(v[3])));
    let four = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    let largest = _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)));
    // x - x is NaN exactly when x is not finite, whatever `max` made of it
    let odd = v.iter().fold(_mm256_setzero_ps(), |odd, v| {
        _mm256_or_ps(odd, _mm256_cmp_ps::<_CMP_UNORD_Q>(_mm256_sub_ps(*v, *v), *v))
    });
    (largest, _mm256_movemask_ps(odd) == 0)
}

/// As `activations::round_group`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_codes(x: [__m256; 4], inverse: f32, codes: *mut i8) -> [i32; 2] {
    let inverse = _mm256_set1_ps(inverse);
    let whole = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
    let (low, high) = (_mm256_packs_epi32(whole(0), whole(1)), _mm256_packs_epi32(whole(2), whole(3)));
    let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: the caller gives room for 32 codes.
    unsafe { _mm256_storeu_si256(codes.cast(), bytes) };
    let ones = _mm256_set1_epi16(1);
    let sum = |pairs| {
        let four = _mm256_madd_epi16(pairs, ones);
        let four = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b0100_1110>(four));
        _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b1011_0001>(two)))
    };
    // `low` holds the first 16 codes
    [sum(low), sum(high)]
}
