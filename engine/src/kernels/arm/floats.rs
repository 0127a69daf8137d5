//! Weights that are stored as floats: widened in registers, multiplied in f32. Every product is summed in four lanes in the
//! order of the row, whatever the tile.

// Tiles are indexed by row and vector; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::{Activations, STRIP, SharedOut, Strip, WeightRows, fetch_ahead, half_at, strips, widen_halves};
use crate::gguf::TensorType;
use std::arch::aarch64::*;
use std::ops::Range;

/// Bytes of rows that stay in the cache while all vectors pass.
const ROWS_BYTES: usize = 64 << 10;
/// Vectors of a tile: sixteen sums leave registers for what they are made of.
const TILE_VECTORS: usize = 4;

/// As [`super::matmul`] for F32, F16 and BF16.
///
/// # Safety
/// `rows` lie within the weights, vectors are as long as rows.
pub(super) unsafe fn matmul(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: same contract as this function's.
    unsafe {
        match weights.tensor_type {
            TensorType::F16 => all::<1>(weights, rows, acts, out),
            TensorType::Bf16 => all::<2>(weights, rows, acts, out),
            _ => all::<0>(weights, rows, acts, out),
        }
    }
}

/// `KIND` is 0 for F32, 1 for F16, 2 for BF16.
unsafe fn all<const KIND: usize>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    let batch = (ROWS_BYTES / weights.row_bytes().max(1)).next_multiple_of(STRIP).max(STRIP);
    let tiles = acts.n().div_ceil(TILE_VECTORS);
    for first in rows.clone().step_by(batch) {
        let rows = first..(first + batch).min(rows.end);
        for i in 0..tiles {
            // ragged vectors are spread evenly: nine are three times three
            let (n, to) = (i * acts.n() / tiles, (i + 1) * acts.n() / tiles);
            for strip in strips(&weights, rows.clone()) {
                // SAFETY: these rows and vectors exist.
                unsafe {
                    match to - n {
                        4 => strip.put(out, n, tile::<KIND, 4>(&strip, acts, n)),
                        3 => strip.put(out, n, tile::<KIND, 3>(&strip, acts, n)),
                        2 => strip.put(out, n, tile::<KIND, 2>(&strip, acts, n)),
                        _ => strip.put(out, n, tile::<KIND, 1>(&strip, acts, n)),
                    }
                }
            }
        }
    }
}

/// Products of a strip with vectors `n` to `n + C`, one row a lane.
unsafe fn tile<const KIND: usize, const C: usize>(strip: &Strip<'_>, acts: &Activations, n: usize) -> [float32x4_t; C] {
    let vectors: [&[f32]; C] = std::array::from_fn(|c| acts.floats(n + c));
    let cols = acts.cols();
    let whole = cols / 4 * 4;
    let rows = strip.rows.map(|row| row.as_ptr());
    let bytes = if KIND == 0 { 4 } else { 2 };
    // SAFETY: elements below `cols` lie within rows and vectors; NEON is part of every 64-bit Arm.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); STRIP]; C];
        for at in (0..whole).step_by(4) {
            if at * bytes % 64 == 0 {
                rows.iter().for_each(|row| fetch_ahead(row.wrapping_add(at * bytes), 64));
            }
            let weights = rows.map(|row| four::<KIND>(row, at));
            for c in 0..C {
                let x = vld1q_f32(vectors[c].as_ptr().add(at));
                for r in 0..STRIP {
                    sums[c][r] = vfmaq_f32(sums[c][r], weights[r], x);
                }
            }
        }
        std::array::from_fn(|c| {
            let four = sums[c];
            let mut products = vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3]));
            for at in whole..cols {
                let last = rows.map(|row| one::<KIND>(row, at));
                products = vfmaq_n_f32(products, vld1q_f32(last.as_ptr()), vectors[c][at]);
            }
            products
        })
    }
}

/// Four elements from `at` on, which the caller has.
#[inline(always)]
unsafe fn four<const KIND: usize>(row: *const u8, at: usize) -> float32x4_t {
    // SAFETY: the caller's promise; a file's bytes need no alignment.
    unsafe {
        match KIND {
            0 => vreinterpretq_f32_u8(vld1q_u8(row.add(4 * at))),
            1 => widen_halves(vreinterpret_u16_u8(vld1_u8(row.add(2 * at)))),
            _ => vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(row.add(2 * at))))),
        }
    }
}

/// Element `at`, which the caller has.
#[inline(always)]
unsafe fn one<const KIND: usize>(row: *const u8, at: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match KIND {
            0 => row.cast::<f32>().add(at).read_unaligned(),
            1 => half_at(row, 2 * at),
            _ => f32::from_bits(u32::from(row.cast::<u16>().add(at).read_unaligned()) << 16),
        }
    }
}
