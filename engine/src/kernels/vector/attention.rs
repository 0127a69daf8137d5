//! The products of attention: queries with cached keys, weights with cached values, as they are stored.
//!
//! Two forms. For one token at a time, [`score_keys`] and [`gather_values`] read each cached row once for all query heads
//! of a group; quantised keys meet a query that was rounded to 8 bits, so that their products are whole numbers. For many
//! tokens, a tile of the cache is widened once ([`widen`], [`widen_transposed`]) and then used as one operand of
//! [`multiply_accumulate`]. What rows hold is what [`dequantise_row`] says.

mod rows;

pub use rows::{CachedRows, Queries, QueryBuffer, narrow};

use super::Isa;
use crate::protocol::KvType;
use crate::quant::dequantise_row;
use rows::BLOCK;

/// Cached positions in one widened tile.
pub const TILE_KEYS: usize = 64;

/// `scores[g * stride + p] = queries[g] · keys[p]`. Meanwhile the bytes of `ahead` are fetched into the cache, where the
/// processor can be asked to.
pub fn score_keys(
    isa: Isa,
    queries: Queries<'_>,
    keys: CachedRows<'_>,
    ahead: &[u8],
    scores: &mut [f32],
    stride: usize,
) {
    let (heads, positions) = (queries.heads(), keys.len());
    assert!(queries.dim == keys.dim && positions <= stride && heads * stride <= scores.len());
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() && keys.dim.is_multiple_of(8) {
        // SAFETY: such a value is only made where avx2, fma and f16c have been detected; sizes were just asserted.
        return unsafe { avx2::score_keys(queries, keys, ahead, scores, stride) };
    }
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar && keys.dim.is_multiple_of(8) {
        // SAFETY: an `Isa` is only made where its instructions have been detected; sizes were just asserted.
        return unsafe { neon::score_keys(isa, queries, keys, ahead, scores, stride) };
    }
    let _ = (isa, ahead);
    for g in 0..heads {
        for p in 0..positions {
            scores[g * stride + p] = match keys.kv_type {
                KvType::F16 => dot_stored(isa, queries.floats(g), keys, p),
                KvType::Q8_0 | KvType::Q4_0 => queries.dot_coded(g, keys, p),
            };
        }
    }
}

/// What stored elements of `rows` say, by instructions where the processor has some and otherwise by the specification.
fn widen_stored(isa: Isa, rows: CachedRows<'_>, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar && rows.kv_type == KvType::F16 {
        return crate::kernels::arm::widen(bytes, out);
    }
    let _ = isa;
    dequantise_row(rows.tensor_type(), bytes, out);
}

/// `query · keys[p]`, the key as it is stored.
fn dot_stored(isa: Isa, query: &[f32], keys: CachedRows<'_>, p: usize) -> f32 {
    let mut sum = 0.0;
    for (query, bytes) in query.chunks(BLOCK).zip(keys.blocks(p)) {
        let mut key = [0f32; BLOCK];
        let key = &mut key[..query.len()];
        widen_stored(isa, keys, bytes, key);
        sum += super::dot(isa, query, key);
    }
    sum
}

/// `out[g] += sum over p of weights[g * stride + p] * values[p]` for out (g, dim). Meanwhile the bytes of `ahead` are
/// fetched into the cache, where the processor can be asked to.
pub fn gather_values(isa: Isa, weights: &[f32], stride: usize, values: CachedRows<'_>, ahead: &[u8], out: &mut [f32]) {
    let dim = values.dim;
    let (heads, positions) = (out.len() / dim, values.len());
    assert!(positions <= stride && (heads == 0 || (heads - 1) * stride + positions <= weights.len()));
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() && dim.is_multiple_of(8) {
        // SAFETY: such a value is only made where avx2, fma and f16c have been detected; sizes were just asserted.
        return unsafe { avx2::gather_values(weights, stride, values, ahead, out) };
    }
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar && dim.is_multiple_of(8) {
        // SAFETY: sizes were just asserted.
        return unsafe { neon::gather_values(weights, stride, values, ahead, out) };
    }
    let _ = (isa, ahead);
    for p in 0..positions {
        for (block, bytes) in values.blocks(p).enumerate() {
            let at = block * BLOCK..dim.min((block + 1) * BLOCK);
            let mut value = [0f32; BLOCK];
            let value = &mut value[..at.len()];
            widen_stored(isa, values, bytes, value);
            for g in 0..heads {
                let weight = weights[g * stride + p];
                for (o, v) in out[g * dim..][at.clone()].iter_mut().zip(&*value) {
                    *o += weight * v;
                }
            }
        }
    }
}

/// Widens rows (p, dim) to single precision, exactly; `out` is as many.
pub fn widen(isa: Isa, rows: CachedRows<'_>, out: &mut [f32]) {
    assert_eq!(rows.len() * rows.dim, out.len());
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() && rows.dim.is_multiple_of(8) {
        // SAFETY: such a value is only made where avx2, fma and f16c have been detected; the length was just asserted.
        return unsafe { avx2::widen(rows, out) };
    }
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar && rows.dim.is_multiple_of(8) {
        // SAFETY: the length was just asserted.
        return unsafe { neon::widen(rows, out) };
    }
    let _ = isa;
    for (p, out) in out.chunks_exact_mut(rows.dim).enumerate() {
        widen_stored(isa, rows, rows.row(p), out);
    }
}

/// Widens keys (p, dim), p <= [`TILE_KEYS`], into `out` (dim, [`TILE_KEYS`]); columns from p on are left as they are.
pub fn widen_transposed(isa: Isa, keys: CachedRows<'_>, out: &mut [f32]) {
    let (positions, dim) = (keys.len(), keys.dim);
    assert!(positions <= TILE_KEYS && out.len() >= dim * TILE_KEYS);
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() && dim.is_multiple_of(8) && positions.is_multiple_of(8) {
        // SAFETY: such a value is only made where avx2, fma and f16c have been detected; sizes were just asserted.
        return unsafe { avx2::widen_transposed(keys, out) };
    }
    #[cfg_attr(not(target_arch = "aarch64"), allow(unused_mut))]
    let mut done = 0;
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar && dim.is_multiple_of(8) {
        // SAFETY: sizes were just asserted.
        done = unsafe { neon::widen_transposed(keys, out) };
    }
    let _ = isa;
    for p in done..positions {
        for (block, bytes) in keys.blocks(p).enumerate() {
            let at = block * BLOCK..dim.min((block + 1) * BLOCK);
            let mut key = [0f32; BLOCK];
            let key = &mut key[..at.len()];
            widen_stored(isa, keys, bytes, key);
            for (d, v) in at.zip(&*key) {
                out[d * TILE_KEYS + p] = *v;
            }
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
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_mut))]
    let mut n_done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        n_done = n / 16 * 16;
        // SAFETY: such a value is only made where avx2, fma and f16c have been detected; the assertion above holds
        // every row within its slice.
        unsafe { avx2::multiply_accumulate((m, k, n_done), a, b, c, c_stride) };
    }
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar {
        // SAFETY: the assertion above holds every row within its slice.
        n_done = unsafe { neon::multiply_accumulate((m, k, n), a, b, c, c_stride) };
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
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
