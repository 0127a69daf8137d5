//! The products of attention: queries with cached keys, weights with cached values, both half precision in memory.
//!
//! Two forms. For one token at a time, [`score_keys`] and [`gather_values`] read each cached row once for all query heads
//! of a group. For many tokens, a tile of the cache is widened once ([`widen`], [`widen_transposed`]) and then used as
//! one operand of [`multiply_accumulate`].

use super::Isa;
use half::f16;

/// Cached positions in one widened tile.
pub const TILE_KEYS: usize = 64;

/// `scores[g * stride + p] = queries[g] · keys[p]` for queries (g, dim) and keys (p, dim).
pub fn score_keys(isa: Isa, queries: &[f32], keys: &[f16], dim: usize, scores: &mut [f32], stride: usize) {
    let (heads, positions) = (queries.len() / dim, keys.len() / dim);
    assert!(positions <= stride && heads * stride <= scores.len());
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2 && dim.is_multiple_of(8) {
        let step = heads_at_once(heads);
        for first in (0..heads).step_by(step) {
            let group = &queries[first * dim..heads.min(first + step) * dim];
            let out = &mut scores[first * stride..];
            // SAFETY: `Isa::Avx2` is only made where avx2, fma and f16c have been detected.
            unsafe {
                match group.len() / dim {
                    1 => avx2::score::<1>(group, keys, dim, out, stride),
                    2 => avx2::score::<2>(group, keys, dim, out, stride),
                    _ => avx2::score::<3>(group, keys, dim, out, stride),
                }
            }
        }
        return;
    }
    let _ = isa;
    for (g, query) in queries.chunks_exact(dim).enumerate() {
        for (p, key) in keys.chunks_exact(dim).enumerate() {
            scores[g * stride + p] = query.iter().zip(key).map(|(&q, k)| q * k.to_f32()).sum();
        }
    }
}

/// Up to 3 heads at a time, evenly: 4 are 2 and 2.
#[cfg(target_arch = "x86_64")]
fn heads_at_once(heads: usize) -> usize {
    heads.div_ceil(heads.div_ceil(3).max(1)).max(1)
}

/// `out[g] += sum over p of weights[g * stride + p] * values[p]` for values (p, dim) and out (g, dim).
pub fn gather_values(isa: Isa, weights: &[f32], stride: usize, values: &[f16], dim: usize, out: &mut [f32]) {
    let (heads, positions) = (out.len() / dim, values.len() / dim);
    assert!(positions <= stride && (heads == 0 || (heads - 1) * stride + positions <= weights.len()));
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2 && dim.is_multiple_of(8) {
        let step = heads_at_once(heads);
        for first in (0..heads).step_by(step) {
            let group = &mut out[first * dim..heads.min(first + step) * dim];
            let weights = &weights[first * stride..];
            // SAFETY: `Isa::Avx2` is only made where avx2, fma and f16c have been detected.
            unsafe {
                match group.len() / dim {
                    1 => avx2::gather::<1>(weights, stride, values, dim, group),
                    2 => avx2::gather::<2>(weights, stride, values, dim, group),
                    _ => avx2::gather::<3>(weights, stride, values, dim, group),
                }
            }
        }
        return;
    }
    let _ = isa;
    for (g, row) in out.chunks_exact_mut(dim).enumerate() {
        for (p, value) in values.chunks_exact(dim).enumerate() {
            let weight = weights[g * stride + p];
            for (o, v) in row.iter_mut().zip(value) {
                *o += weight * v.to_f32();
            }
        }
    }
}

/// Widens to single precision, exactly; both of one length.
pub fn widen(isa: Isa, x: &[f16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2 {
        // SAFETY: `Isa::Avx2` is only made where avx2, fma and f16c have been detected.
        return unsafe { avx2::widen(x, out) };
    }
    let _ = isa;
    for (o, v) in out.iter_mut().zip(x) {
        *o = v.to_f32();
    }
}

/// Widens keys (p, dim), p <= [`TILE_KEYS`], into `out` (dim, [`TILE_KEYS`]); columns from p on are left as they are.
pub fn widen_transposed(isa: Isa, keys: &[f16], dim: usize, out: &mut [f32]) {
    let positions = keys.len() / dim;
    assert!(positions <= TILE_KEYS && out.len() >= dim * TILE_KEYS);
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2 && dim.is_multiple_of(8) && positions.is_multiple_of(8) {
        // SAFETY: `Isa::Avx2` is only made where avx2, fma and f16c have been detected.
        return unsafe { avx2::widen_transposed(keys, dim, out) };
    }
    let _ = isa;
    for (p, key) in keys.chunks_exact(dim).enumerate() {
        for (d, v) in key.iter().enumerate() {
            out[d * TILE_KEYS + p] = v.to_f32();
        }
    }
}

/// A row-major matrix inside a slice: `stride` elements from row to row.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The elements, from the first row on.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
}

/// `c += a · b` for a (m, k), b (k, n) and c (m, n), c with rows of `c_stride`.
pub fn multiply_accumulate(
    isa: Isa,
    (m, k, n): (usize, usize, usize),
    a: Rows<'_>,
    b: Rows<'_>,
    c: &mut [f32],
    c_stride: usize,
) {
    let fits = |rows: usize, cols: usize, stride: usize, len: usize| {
        cols <= stride && (rows == 0 || (rows - 1) * stride + cols <= len)
    };
    assert!(fits(m, k, a.stride, a.data.len()) && fits(k, n, b.stride, b.data.len()) && fits(m, n, c_stride, c.len()));
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
    let mut n_done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx2 {
        n_done = n / 16 * 16;
        // SAFETY: `Isa::Avx2` is only made where avx2, fma and f16c have been detected; the assertion above holds
        // every row within its slice.
        unsafe { avx2::multiply_accumulate((m, k, n_done), a, b, c, c_stride) };
    }
    let _ = isa;
    if n_done == n {
        return;
    }
    for i in 0..m {
        let row = &mut c[i * c_stride + n_done..i * c_stride + n];
        for j in 0..k {
            let factor = a.data[i * a.stride + j];
            for (o, &v) in row.iter_mut().zip(&b.data[j * b.stride + n_done..]) {
                *o += factor * v;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::narrow as narrow_avx2;

#[cfg(target_arch = "x86_64")]
mod avx2;
