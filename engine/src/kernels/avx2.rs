//! AVX2 with FMA and F16C. Every quantised type is seen as groups of 32 codes, with one scale and one offset for each group
//! (or for each half of it): `value = scale x code - offset`. Codes are unsigned bytes, so `pmaddubsw` multiplies them with
//! the signed activations without a sign trick; only Q8_0 needs one, since its codes use all 8 bits.

mod floats;
mod formats;
mod vector;

use super::activations::GROUP;
use super::{Activations, SharedOut, WeightRows};
use crate::gguf::TensorType;
use formats::{Format, Large, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Small};
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

/// From this many activation vectors on, a row is unpacked once for all of them.
const UNPACK_FROM: usize = 4;
/// Bytes of a row to fetch ahead of use.
const PREFETCH_BYTES: usize = 1024;

/// As [`super::matmul`]; `Isa::Avx2` exists only where the processor has the features.
pub(super) fn matmul(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: the caller chose AVX2, which `Isa::detect` gives only where AVX2, FMA and F16C are there; bounds were
    // asserted by `super::matmul`.
    unsafe {
        match weights.tensor_type {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => floats::matmul(weights, rows, acts, out),
            TensorType::Q4_0 => small::<Q4_0>(weights, rows, acts, out),
            TensorType::Q4_1 => small::<Q4_1>(weights, rows, acts, out),
            TensorType::Q5_0 => small::<Q5_0>(weights, rows, acts, out),
            TensorType::Q5_1 => small::<Q5_1>(weights, rows, acts, out),
            TensorType::Q8_0 => small::<Q8_0>(weights, rows, acts, out),
            TensorType::Q2K => large::<Q2K>(weights, rows, acts, out),
            TensorType::Q3K => large::<Q3K>(weights, rows, acts, out),
            TensorType::Q4K => large::<Q4K>(weights, rows, acts, out),
            TensorType::Q5K => large::<Q5K>(weights, rows, acts, out),
            TensorType::Q6K => large::<Q6K>(weights, rows, acts, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small<F: Small>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    if acts.n() >= UNPACK_FROM {
        // SAFETY: same contract as this function's.
        return unsafe { many::<F>(weights, rows, acts, out) };
    }
    for row in rows {
        let bytes = weights.row(row);
        for n in 0..acts.n() {
            // SAFETY: the row holds `cols` elements in whole blocks, the activations as many.
            out.put(n, row, unsafe { vector::small_blocks::<F>(bytes, acts, n) });
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large<F: Large>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    if acts.n() >= UNPACK_FROM {
        // SAFETY: same contract as this function's.
        return unsafe { many::<F>(weights, rows, acts, out) };
    }
    for row in rows {
        let bytes = weights.row(row);
        for n in 0..acts.n() {
            // SAFETY: the row holds `cols` elements in whole blocks, the activations as many.
            out.put(n, row, unsafe { vector::large_blocks::<F>(bytes, acts, n) });
        }
    }
}

/// Eight sums of four products each; lanes 0 to 3 belong to the first half of the group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<F: Format>(weight: __m256i, act: __m256i) -> __m256i {
    let pairs = if F::SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(act, weight))
    } else {
        _mm256_maddubs_epi16(weight, act)
    };
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn horizontal(x: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Rows unpacked for many vectors: codes as bytes, scales and offsets for each group (or half group).
#[derive(Default)]
struct Unpacked {
    /// (2, cols)
    codes: Vec<u8>,
    /// (2, cols / 32) or, by halves, (2, cols / 16)
    scales: Vec<f32>,
    /// As `scales`.
    offsets: Vec<f32>,
}

thread_local! {
    static UNPACKED: RefCell<Unpacked> = RefCell::new(Unpacked::default());
}

/// Two rows at a time, unpacked once, with tiles of up to four vectors.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn many<F: Format>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    UNPACKED.with_borrow_mut(|room| {
        let groups = weights.cols / GROUP * if F::HALVES { 2 } else { 1 };
        room.codes.resize(2 * weights.cols, 0);
        room.scales.resize(2 * groups, 0.0);
        room.offsets.resize(2 * groups, 0.0);
        for first in rows.clone().step_by(2) {
            let count = (rows.end - first).min(2);
            for i in 0..count {
                // SAFETY: the row holds whole blocks, the room one row's codes and groups.
                unsafe { unpack::<F>(weights.row(first + i), i, weights.cols, groups, room) };
            }
            // SAFETY: `count` rows were unpacked; features as in the caller.
            unsafe {
                match count {
                    2 => tiles::<F, 2>(room, acts, first, weights.cols, groups, out),
                    _ => tiles::<F, 1>(room, acts, first, weights.cols, groups, out),
                }
            }
        }
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<F: Format>(row: &[u8], i: usize, cols: usize, groups: usize, room: &mut Unpacked) {
    let per_block = F::GROUPS * if F::HALVES { 2 } else { 1 };
    let mut codes = room.codes[i * cols..][..cols].chunks_exact_mut(GROUP);
    let scales = room.scales[i * groups..][..groups].chunks_exact_mut(per_block);
    let offsets = room.offsets[i * groups..][..groups].chunks_exact_mut(per_block);
    for ((block, scales), offsets) in row.chunks_exact(F::BYTES).zip(scales).zip(offsets) {
        let head = F::head(block);
        scales.copy_from_slice(&head.scales[..per_block]);
        offsets.copy_from_slice(&head.offsets[..per_block]);
        for g in 0..F::GROUPS {
            let to = codes.next().expect("as many groups as the row has");
            // SAFETY: `to` has 32 bytes, the block holds group `g`.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), F::codes(block, g)) };
        }
    }
}

/// All vectors against `R` unpacked rows, in tiles of four and a rest.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<F: Format, const R: usize>(
    room: &Unpacked,
    acts: &Activations,
    first: usize,
    cols: usize,
    groups: usize,
    out: SharedOut,
) {
    let mut n = 0;
    while n < acts.n() {
        let width = (acts.n() - n).min(4);
        // SAFETY: rows and vectors of the tile exist; features as in the caller.
        unsafe {
            match width {
                4 => tile::<F, R, 4>(room, acts, (n, first), cols, groups, out),
                3 => tile::<F, R, 3>(room, acts, (n, first), cols, groups, out),
                2 => tile::<F, R, 2>(room, acts, (n, first), cols, groups, out),
                _ => tile::<F, R, 1>(room, acts, (n, first), cols, groups, out),
            }
        }
        n += width;
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<F: Format, const R: usize, const C: usize>(
    room: &Unpacked,
    acts: &Activations,
    (n, first): (usize, usize),
    cols: usize,
    groups: usize,
    out: SharedOut,
) {
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    let act_codes: [*const i8; C] = std::array::from_fn(|c| acts.codes(n + c).as_ptr());
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    for group in 0..cols / GROUP {
        let mut weight = [_mm256_setzero_si256(); R];
        let mut weight_scale = [_mm256_setzero_ps(); R];
        for r in 0..R {
            // SAFETY: group lies within the row's codes.
            weight[r] = unsafe { _mm256_loadu_si256(room.codes.as_ptr().add(r * cols + group * GROUP).cast()) };
            let at = r * groups + group * if F::HALVES { 2 } else { 1 };
            weight_scale[r] = if F::HALVES {
                _mm256_set_m128(_mm_set1_ps(room.scales[at + 1]), _mm_set1_ps(room.scales[at]))
            } else {
                _mm256_set1_ps(room.scales[at])
            };
        }
        for c in 0..C {
            // SAFETY: group lies within the vector's codes.
            let act = unsafe { _mm256_loadu_si256(act_codes[c].add(group * GROUP).cast()) };
            let act_scale = _mm256_set1_ps(act_scales[c][group]);
            for r in 0..R {
                let products = _mm256_cvtepi32_ps(multiply::<F>(weight[r], act));
                sums[r][c] = _mm256_fmadd_ps(products, _mm256_mul_ps(weight_scale[r], act_scale), sums[r][c]);
            }
        }
    }
    for r in 0..R {
        let offsets = &room.offsets[r * groups..][..groups];
        for c in 0..C {
            let act_sums = if F::HALVES { acts.sums_16(n + c) } else { acts.sums_32(n + c) };
            out.put(
                n + c,
                first + r,
                horizontal(sums[r][c]) - if F::OFFSET { floats::dot(offsets, act_sums) } else { 0.0 },
            );
        }
    }
}

/// As `activations::largest_of_group`.
pub(super) fn largest_of_32(x: &[f32]) -> (f32, bool) {
    assert!(x.len() == GROUP, "a group of 32");
    // SAFETY: the length was just asserted; the caller chose AVX2, which exists only where the processor has it.
    unsafe { largest_32(x.as_ptr()) }
}

/// As `activations::round_group`.
pub(super) fn round_32(x: &[f32], inverse: f32, codes: &mut [i8]) -> [i32; 2] {
    assert!(x.len() == GROUP && codes.len() == GROUP, "a group of 32");
    // SAFETY: as above.
    unsafe { round_codes(x.as_ptr(), inverse, codes.as_mut_ptr()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn largest_32(x: *const f32) -> (f32, bool) {
    // SAFETY: the caller gives 32 floats.
    let v: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.add(8 * i)) });
    let magnitude = |v| _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_codes(x: *const f32, inverse: f32, codes: *mut i8) -> [i32; 2] {
    let inverse = _mm256_set1_ps(inverse);
    // SAFETY: the caller gives 32 floats.
    let whole = |i: usize| unsafe { _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(8 * i)), inverse)) };
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
