//! AVX2 with FMA and F16C. Every quantised type is seen as groups of 32 codes, with one scale and one offset for each group
//! (or for each half of it): `value = scale x code - offset`. Codes are unsigned bytes, so `pmaddubsw` multiplies them with
//! the signed activations without a sign trick; only Q8_0 needs one, since its codes use all 8 bits. The same code serves
//! AVX-VNNI and AVX-512 VNNI, see [`dot`].

mod dot;
mod floats;
mod formats;
mod matrix;
mod packed;
mod rounding;
mod strips;
mod sums;
mod vector;

use super::activations::GROUP;
use super::{Activations, Isa, Layout, SharedOut, WeightRows};
use crate::gguf::TensorType;
pub(crate) use dot::{Dot, Evex, Pairs, Vex};
pub(super) use floats::through_half;
use formats::{Format, Large, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Small};
pub(super) use rounding::round_vector;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;
use strips::STRIP;
use vector::Chunk;

/// From this many activation vectors on, a row is unpacked once for all of them.
const UNPACK_FROM: usize = 4;
/// Bytes of a row to fetch ahead of use.
const PREFETCH_BYTES: usize = 1024;

thread_local! {
    static CHUNK: RefCell<Chunk> = const { RefCell::new(Chunk::new()) };
}

/// As [`super::matmul`]; an `Isa` of this family exists only where the processor has its instructions.
pub(super) fn matmul(isa: Isa, weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: the caller's `isa` proves that AVX2, FMA, F16C and its own form of `vpdpbusd` are there; bounds were asserted
    // by `super::matmul`.
    unsafe {
        match isa {
            Isa::Avx512Vnni => with::<Evex>(weights, rows, acts, out),
            Isa::AvxVnni => with::<Vex>(weights, rows, acts, out),
            _ => with::<Pairs>(weights, rows, acts, out),
        }
    }
}

/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; `rows` lie within the weights, vectors are as long as rows.
unsafe fn with<D: Dot>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: same contract as this function's.
    unsafe {
        match weights.tensor_type {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => floats::matmul(weights, rows, acts, out),
            TensorType::Q4_0 => small::<Q4_0, D>(weights, rows, acts, out),
            TensorType::Q4_1 => small::<Q4_1, D>(weights, rows, acts, out),
            TensorType::Q5_0 => small::<Q5_0, D>(weights, rows, acts, out),
            TensorType::Q5_1 => small::<Q5_1, D>(weights, rows, acts, out),
            TensorType::Q8_0 => small::<Q8_0, D>(weights, rows, acts, out),
            TensorType::Q2K => large::<Q2K, D>(weights, rows, acts, out),
            TensorType::Q3K => large::<Q3K, D>(weights, rows, acts, out),
            TensorType::Q4K => large::<Q4K, D>(weights, rows, acts, out),
            TensorType::Q5K => large::<Q5K, D>(weights, rows, acts, out),
            TensorType::Q6K => large::<Q6K, D>(weights, rows, acts, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small<F: Small, D: Dot>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    if acts.n() >= UNPACK_FROM {
        // SAFETY: same contract as this function's.
        return unsafe { matrix::small_blocks::<F, D>(weights, rows, acts, out) };
    }
    if weights.layout == Layout::Strips {
        // SAFETY: same contract as this function's.
        return unsafe { packed::small_vectors::<F, D>(weights, rows, acts, out) };
    }
    // SAFETY: same contract as this function's.
    each_eight(weights, rows, acts, out, |eight, n, chunk| unsafe {
        vector::small_blocks::<F, D>(eight, acts, n, chunk)
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large<F: Large, D: Dot>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    if acts.n() >= UNPACK_FROM {
        // SAFETY: same contract as this function's.
        return unsafe { matrix::large_blocks::<F, D>(weights, rows, acts, out) };
    }
    if weights.layout == Layout::Strips {
        // SAFETY: same contract as this function's.
        return unsafe { packed::large_vectors::<F, D>(weights, rows, acts, out) };
    }
    // SAFETY: same contract as this function's.
    each_eight(weights, rows, acts, out, |eight, n, chunk| unsafe { vector::large_blocks::<F>(eight, acts, n, chunk) });
}

/// Runs `product` for eight rows at a time and every vector; where fewer are left, the last one stands in for the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn each_eight(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
    product: impl Fn([*const u8; STRIP], usize, &mut Chunk) -> __m256,
) {
    CHUNK.with_borrow_mut(|chunk| {
        for first in rows.clone().step_by(STRIP) {
            let count = (rows.end - first).min(STRIP);
            let eight = std::array::from_fn(|r| weights.row(first + r.min(count - 1)).as_ptr());
            for n in 0..acts.n() {
                let mut sums = [0.0f32; STRIP];
                // SAFETY: there is room for eight.
                unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), product(eight, n, chunk)) };
                out.put_row(n, first, &sums[..count]);
            }
        }
    });
}

/// Bytes of a block of 8 rows in [`Layout::Strips`]; `None` for types that have no such form.
pub(super) fn strip_block_bytes(tensor_type: TensorType) -> Option<usize> {
    Some(match tensor_type {
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => return None,
        TensorType::Q4_0 => packed::small_bytes::<Q4_0>(),
        TensorType::Q4_1 => packed::small_bytes::<Q4_1>(),
        TensorType::Q5_0 => packed::small_bytes::<Q5_0>(),
        TensorType::Q5_1 => packed::small_bytes::<Q5_1>(),
        TensorType::Q8_0 => packed::small_bytes::<Q8_0>(),
        TensorType::Q2K => packed::large_bytes::<Q2K>(),
        TensorType::Q3K => packed::large_bytes::<Q3K>(),
        TensorType::Q4K => packed::large_bytes::<Q4K>(),
        TensorType::Q5K => packed::large_bytes::<Q5K>(),
        TensorType::Q6K => packed::large_bytes::<Q6K>(),
    })
}

/// As [`super::pack`].
pub(super) fn pack(weights: WeightRows<'_>, rows: Range<usize>, out: &mut [u8]) {
    // SAFETY: the caller's `isa` is of this family and proves that AVX2, FMA and F16C are there.
    unsafe {
        match weights.tensor_type {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => unreachable!("floats have no strips"),
            TensorType::Q4_0 => packed::pack_small::<Q4_0>(weights, rows, out),
            TensorType::Q4_1 => packed::pack_small::<Q4_1>(weights, rows, out),
            TensorType::Q5_0 => packed::pack_small::<Q5_0>(weights, rows, out),
            TensorType::Q5_1 => packed::pack_small::<Q5_1>(weights, rows, out),
            TensorType::Q8_0 => packed::pack_small::<Q8_0>(weights, rows, out),
            TensorType::Q2K => packed::pack_large::<Q2K>(weights, rows, out),
            TensorType::Q3K => packed::pack_large::<Q3K>(weights, rows, out),
            TensorType::Q4K => packed::pack_large::<Q4K>(weights, rows, out),
            TensorType::Q5K => packed::pack_large::<Q5K>(weights, rows, out),
            TensorType::Q6K => packed::pack_large::<Q6K>(weights, rows, out),
        }
    }
}

/// Sixteen sums of two products, of unsigned codes with signed ones; signed codes give their signs to the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs<F: Format>(weight: __m256i, act: __m256i) -> __m256i {
    if F::SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(act, weight))
    } else {
        _mm256_maddubs_epi16(weight, act)
    }
}

/// Eight sums of four products each; lanes 0 to 3 belong to the first half of the group.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<F: Format, D: Dot>(weight: __m256i, act: __m256i) -> __m256i {
    if !D::FOUR {
        return _mm256_madd_epi16(pairs::<F>(weight, act), _mm256_set1_epi16(1));
    }
    let (weight, act) =
        if F::SIGNED { (_mm256_abs_epi8(weight), _mm256_sign_epi8(act, weight)) } else { (weight, act) };
    // SAFETY: same contract as this function's.
    unsafe { D::add(_mm256_setzero_si256(), weight, act) }
}

/// As [`multiply`] for unsigned codes, each product times the 16-bit scale in its lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_scaled(weight: __m256i, act: __m256i, scale: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(weight, act), scale)
}

/// The scales of group `g` out of [`formats::LargeHead::scales`], in all lanes of their halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn group_scale(scales: __m256i, g: usize) -> __m256i {
    _mm256_shuffle_epi8(scales, _mm256_set1_epi16(((2 * g) | ((2 * g + 1) << 8)) as i16))
}

/// Transposes 8 rows of 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    let mut pairs = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let mut fours = [_mm256_setzero_ps(); 8];
    for half in 0..2 {
        let p = &pairs[4 * half..4 * half + 4];
        fours[4 * half] = _mm256_shuffle_ps::<0x44>(p[0], p[2]);
        fours[4 * half + 1] = _mm256_shuffle_ps::<0xee>(p[0], p[2]);
        fours[4 * half + 2] = _mm256_shuffle_ps::<0x44>(p[1], p[3]);
        fours[4 * half + 3] = _mm256_shuffle_ps::<0xee>(p[1], p[3]);
    }
    let mut out = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        out[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        out[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn horizontal(x: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
