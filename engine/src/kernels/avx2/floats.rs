//! Weights that are stored as floats: decoded in registers, multiplied in f32.

use super::super::{Activations, SharedOut, WeightRows};
use super::horizontal;
use crate::gguf::TensorType;
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::ops::Range;

/// As [`super::matmul`] for F32, F16 and BF16.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn matmul(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    for row in rows {
        let bytes = weights.row(row);
        let mut n = 0;
        while n < acts.n() {
            let width = (acts.n() - n).min(4);
            // SAFETY: row and vectors hold `cols` elements; features as in the caller.
            unsafe {
                match (weights.tensor_type, width) {
                    (TensorType::F16, 4) => tile::<1, 4>(bytes, acts, n, row, out),
                    (TensorType::F16, _) => tile::<1, 1>(bytes, acts, n, row, out),
                    (TensorType::Bf16, 4) => tile::<2, 4>(bytes, acts, n, row, out),
                    (TensorType::Bf16, _) => tile::<2, 1>(bytes, acts, n, row, out),
                    (_, 4) => tile::<0, 4>(bytes, acts, n, row, out),
                    (_, _) => tile::<0, 1>(bytes, acts, n, row, out),
                }
            }
            n += if width == 4 { 4 } else { 1 };
        }
    }
}

/// One row with `C` vectors. `KIND` is 0 for F32, 1 for F16, 2 for BF16.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const KIND: usize, const C: usize>(
    row: &[u8],
    acts: &Activations,
    n: usize,
    column: usize,
    out: SharedOut,
) {
    let vectors: [&[f32]; C] = std::array::from_fn(|c| acts.floats(n + c));
    let cols = acts.cols();
    let mut sums = [[_mm256_setzero_ps(); 2]; C];
    let whole = cols / 8 * 8;
    for at in (0..whole).step_by(8) {
        // SAFETY: at + 8 elements lie within the row.
        let weight = unsafe { eight::<KIND>(row.as_ptr(), at) };
        for c in 0..C {
            // SAFETY: at + 8 elements lie within the vector.
            let x = unsafe { _mm256_loadu_ps(vectors[c].as_ptr().add(at)) };
            sums[c][at / 8 % 2] = _mm256_fmadd_ps(weight, x, sums[c][at / 8 % 2]);
        }
    }
    for c in 0..C {
        let mut sum = horizontal(_mm256_add_ps(sums[c][0], sums[c][1]));
        for at in whole..cols {
            sum += scalar_at::<KIND>(row, at) * vectors[c][at];
        }
        out.put(n + c, column, sum);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight<const KIND: usize>(row: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller gives eight elements from `at`.
    unsafe {
        match KIND {
            0 => _mm256_loadu_ps(row.cast::<f32>().add(at)),
            1 => _mm256_cvtph_ps(_mm_loadu_si128(row.add(2 * at).cast())),
            _ => {
                let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(row.add(2 * at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper))
            }
        }
    }
}

fn scalar_at<const KIND: usize>(row: &[u8], at: usize) -> f32 {
    match KIND {
        0 => f32::from_le_bytes([row[4 * at], row[4 * at + 1], row[4 * at + 2], row[4 * at + 3]]),
        1 => f16::from_le_bytes([row[2 * at], row[2 * at + 1]]).to_f32(),
        _ => bf16::from_le_bytes([row[2 * at], row[2 * at + 1]]).to_f32(),
    }
}

/// `a · b`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut sum = _mm256_setzero_ps();
    let (eights_a, eights_b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = eights_a.remainder().iter().zip(eights_b.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in eights_a.zip(eights_b) {
        // SAFETY: both chunks have eight floats.
        sum = unsafe { _mm256_fmadd_ps(_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(y.as_ptr()), sum) };
    }
    horizontal(sum) + rest
}
