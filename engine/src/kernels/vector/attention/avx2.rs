//! AVX2 forms of the attention products. Every function requires avx2, fma and f16c.

use super::{Rows, TILE_KEYS};
use half::f16;
use std::arch::x86_64::*;

/// Eight halves from `p`, widened.
///
/// # Safety
/// 16 bytes from `p` must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_halves(p: *const f16) -> __m256 {
    // SAFETY: by the caller's promise; f16 is a transparent u16, and the load needs no alignment.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// The sums of four vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of(v: [__m256; 4]) -> __m128 {
    let pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs))
}

/// Scores of G query heads, at most 3, against all keys; dim a multiple of 8.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn score<const G: usize>(queries: &[f32], keys: &[f16], dim: usize, scores: &mut [f32], stride: usize) {
    let positions = keys.len() / dim;
    assert!(dim.is_multiple_of(8) && queries.len() >= G * dim && positions <= stride);
    assert!(scores.len() >= (G - 1) * stride + positions);
    for p in (0..positions).step_by(4) {
        // past the end, the last key stands in: its scores are not stored
        let rows = [0, 1, 2, 3].map(|i| keys[(p + i).min(positions - 1) * dim..].as_ptr());
        // 4 keys x 3 heads: 12 sums, 3 pieces of query and 1 of key fill the 16 registers
        let mut sums = [[_mm256_setzero_ps(); 4]; G];
        for d in (0..dim).step_by(8) {
            // SAFETY: d + 8 <= dim; every row has dim elements, and queries have G * dim.
            unsafe {
                let query: [__m256; G] = std::array::from_fn(|g| _mm256_loadu_ps(queries.as_ptr().add(g * dim + d)));
                for i in 0..4 {
                    let key = load_halves(rows[i].add(d));
                    for g in 0..G {
                        sums[g][i] = _mm256_fmadd_ps(key, query[g], sums[g][i]);
                    }
                }
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            let mut four = [0f32; 4];
            // SAFETY: four floats fit.
            unsafe { _mm_storeu_ps(four.as_mut_ptr(), sums_of(sums)) };
            let count = (positions - p).min(4);
            scores[g * stride + p..g * stride + p + count].copy_from_slice(&four[..count]);
        }
    }
}

/// Adds the weighted sums of all values to the outputs of G query heads, at most 3; dim a multiple of 8.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn gather<const G: usize>(weights: &[f32], stride: usize, values: &[f16], dim: usize, out: &mut [f32]) {
    let positions = values.len() / dim;
    assert!(dim.is_multiple_of(8) && out.len() >= G * dim && weights.len() >= (G - 1) * stride + positions);
    let mut d = 0;
    while d < dim {
        // SAFETY: d plus the columns taken stays within dim, and all rows were checked above.
        unsafe {
            d += if dim - d >= 32 {
                gather_columns::<G, 4>(weights, stride, values, dim, d, out)
            } else {
                gather_columns::<G, 1>(weights, stride, values, dim, d, out)
            };
        }
    }
}

/// Columns d..d + 8 * W of [`gather`]; returns their number. 3 heads x 4 vectors: 12 sums, 3 weights and 1 piece of
/// value fill the 16 registers, and each cache line of values is read once.
///
/// # Safety
/// d + 8 * W <= dim, `out` has G rows of dim, and `weights` G rows of as many positions as `values` has, at `stride`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn gather_columns<const G: usize, const W: usize>(
    weights: &[f32],
    stride: usize,
    values: &[f16],
    dim: usize,
    d: usize,
    out: &mut [f32],
) -> usize {
    let mut sums = [[_mm256_setzero_ps(); W]; G];
    for (p, value) in values.chunks_exact(dim).enumerate() {
        // SAFETY: g * stride + p is within the weights, d + 8 * W within the value, by the caller's promise.
        unsafe {
            let weight: [__m256; G] =
                std::array::from_fn(|g| _mm256_broadcast_ss(weights.get_unchecked(g * stride + p)));
            let pieces: [__m256; W] = std::array::from_fn(|i| load_halves(value.as_ptr().add(d + 8 * i)));
            for (sums, &weight) in sums.iter_mut().zip(&weight) {
                for (sum, &piece) in sums.iter_mut().zip(&pieces) {
                    *sum = _mm256_fmadd_ps(weight, piece, *sum);
                }
            }
        }
    }
    for (g, sums) in sums.iter().enumerate() {
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: g * dim + d + 8 * W <= G * dim <= out.len(), by the caller's promise.
            unsafe {
                let to = out.as_mut_ptr().add(g * dim + d + 8 * i);
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), *sum));
            }
        }
    }
    8 * W
}

/// Widens a slice.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn widen(x: &[f16], out: &mut [f32]) {
    let whole = x.len().min(out.len()) / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= whole <= both lengths.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(i), load_halves(x.as_ptr().add(i))) };
    }
    for (o, v) in out[whole..].iter_mut().zip(&x[whole..]) {
        *o = v.to_f32();
    }
}

/// Narrows a slice, round to nearest even.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn narrow(x: &[f32], out: &mut [f16]) {
    let whole = x.len().min(out.len()) / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= whole <= both lengths.
        unsafe {
            let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr().add(i)));
            _mm_storeu_si128(out.as_mut_ptr().add(i).cast(), eight);
        }
    }
    for (o, &v) in out[whole..].iter_mut().zip(&x[whole..]) {
        *o = f16::from_f32(v);
    }
}

/// Widens and transposes keys (p, dim) into `out` (dim, TILE_KEYS), in squares of 8; p and dim multiples of 8.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn widen_transposed(keys: &[f16], dim: usize, out: &mut [f32]) {
    let positions = keys.len() / dim;
    assert!(dim.is_multiple_of(8) && positions.is_multiple_of(8) && positions <= TILE_KEYS);
    assert!(out.len() >= dim * TILE_KEYS);
    for p in (0..positions).step_by(8) {
        for d in (0..dim).step_by(8) {
            let mut square = [_mm256_setzero_ps(); 8];
            for (i, row) in square.iter_mut().enumerate() {
                // SAFETY: (p + i) * dim + d + 8 <= positions * dim <= keys.len().
                *row = unsafe { load_halves(keys.as_ptr().add((p + i) * dim + d)) };
            }
            for (i, column) in transpose(square).iter().enumerate() {
                // SAFETY: (d + i) * TILE_KEYS + p + 8 <= dim * TILE_KEYS <= out.len().
                unsafe { _mm256_storeu_ps(out.as_mut_ptr().add((d + i) * TILE_KEYS + p), *column) };
            }
        }
    }
}

/// Transposes 8 rows of 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(r: [__m256; 8]) -> [__m256; 8] {
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
        for j in 0..k {
            let (low, high) = (_mm256_loadu_ps(b.add(j * b_stride)), _mm256_loadu_ps(b.add(j * b_stride + 8)));
            for (i, sum) in sums.iter_mut().enumerate() {
                let factor = _mm256_broadcast_ss(&*a.add(i * a_stride + j));
                sum[0] = _mm256_fmadd_ps(factor, low, sum[0]);
                sum[1] = _mm256_fmadd_ps(factor, high, sum[1]);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let to = c.add(i * c_stride);
            _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sum[0]));
            _mm256_storeu_ps(to.add(8), _mm256_add_ps(_mm256_loadu_ps(to.add(8)), sum[1]));
        }
    }
}
