//! 64-bit Arm: NEON, with `sdot` and `smmla` where the processor has them. Every quantised type is seen as groups of 32
//! signed codes with one scale for each group (or for each half of it), and for some types a minimum.
//!
//! Sums over a group, or over a block of 256 with its whole-number scales, are exact; what is rounded is one fused
//! multiply-add for each, done in the order of the row, one row a lane. So a product has the same bits on NEON, dotprod and
//! i8mm, and for one vector as for many: text does not depend on the phone's generation or on the size of a batch.
//!
//! `sdot` and `smmla` are written as assembly, since Rust has their intrinsics on its nightly channel only.

mod dot;
mod floats;
mod formats;
mod matrix;
mod packed;
mod rounding;
mod vector;

pub(super) use dot::{Dot, Dotprod, Neon, sum_lanes};
pub(super) use rounding::{largest_of_32, narrow, round_32, through_half, widen};

use super::activations::GROUP;
use super::{Activations, Isa, Layout, SharedOut, WeightRows};
use crate::gguf::TensorType;
use dot::I8mm;
use formats::{Large, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Small};
use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

/// Rows that are computed together, one a lane.
const STRIP: usize = 4;
/// From this many activation vectors on, rows are unpacked once for all of them.
const UNPACK_FROM: usize = 4;
/// Bytes of a row to fetch ahead of use.
const PREFETCH_BYTES: usize = 512;

/// As [`super::matmul`]; an `Isa` of this architecture exists only where the processor has its instructions.
pub(super) fn matmul(isa: Isa, weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: the caller's `isa` proves that the instructions are there; bounds were asserted by `super::matmul`.
    unsafe {
        match isa {
            Isa::NeonI8mm => with::<I8mm>(weights, rows, acts, out),
            Isa::NeonDotprod => with::<Dotprod>(weights, rows, acts, out),
            _ => with::<Neon>(weights, rows, acts, out),
        }
    }
}

/// # Safety
/// The processor has `D`'s instructions; `rows` lie within the weights, vectors are as long as rows.
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

/// # Safety
/// As [`with`].
unsafe fn small<F: Small, D: Dot>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: same contract as this function's; every strip has rows, and these vectors exist.
    unsafe {
        if acts.n() >= UNPACK_FROM {
            return matrix::small_blocks::<F, D>(weights, rows, acts, out);
        }
        if weights.layout == Layout::Strips {
            return packed::small::<F, D::Few>(weights, rows, acts, out);
        }
        for strip in strips(&weights, rows) {
            for n in (0..acts.n()).step_by(2) {
                match acts.n() - n {
                    1 => strip.put(out, n, vector::small_blocks::<F, D::Few, 1>(&strip, acts, n)),
                    _ => strip.put(out, n, vector::small_blocks::<F, D::Few, 2>(&strip, acts, n)),
                }
            }
        }
    }
}

/// # Safety
/// As [`with`].
unsafe fn large<F: Large, D: Dot>(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    // SAFETY: same contract as this function's; every strip has rows, and these vectors exist.
    unsafe {
        if acts.n() >= UNPACK_FROM {
            return matrix::large_blocks::<F, D>(weights, rows, acts, out);
        }
        if weights.layout == Layout::Strips {
            return packed::large::<F, D::Few>(weights, rows, acts, out);
        }
        for strip in strips(&weights, rows) {
            for n in (0..acts.n()).step_by(2) {
                match acts.n() - n {
                    1 => strip.put(out, n, vector::large_blocks::<F, D::Few, 1>(&strip, acts, n)),
                    _ => strip.put(out, n, vector::large_blocks::<F, D::Few, 2>(&strip, acts, n)),
                }
            }
        }
    }
}

/// Up to four rows; where there are fewer, the last one stands in for those that are missing.
struct Strip<'a> {
    first: usize,
    count: usize,
    rows: [&'a [u8]; STRIP],
}

fn strips<'a>(weights: &WeightRows<'a>, rows: Range<usize>) -> impl Iterator<Item = Strip<'a>> {
    let weights = *weights;
    rows.clone().step_by(STRIP).map(move |first| {
        let count = STRIP.min(rows.end - first);
        Strip { first, count, rows: std::array::from_fn(|r| weights.row(first + r.min(count - 1))) }
    })
}

impl Strip<'_> {
    /// Where byte `at` of each row is.
    #[inline(always)]
    fn at(&self, at: usize) -> [*const u8; STRIP] {
        self.rows.map(|row| row[at..].as_ptr())
    }

    /// Writes the products, one row a lane, of vectors `n` and following.
    #[inline(always)]
    fn put<const C: usize>(&self, out: SharedOut, n: usize, products: [float32x4_t; C]) {
        for (c, four) in products.into_iter().enumerate() {
            put_rows(out, n + c, self.first..self.first + self.count, four);
        }
    }
}

/// Writes the products, one row a lane, of vector `n` with up to four rows.
#[inline(always)]
fn put_rows(out: SharedOut, n: usize, rows: Range<usize>, products: float32x4_t) {
    let mut lanes = [0.0; STRIP];
    // SAFETY: there is room for four.
    unsafe { vst1q_f32(lanes.as_mut_ptr(), products) };
    out.put_row(n, rows.start, &lanes[..rows.len()]);
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

/// The half-precision numbers at byte `at` of four blocks.
///
/// # Safety
/// The blocks reach that far.
#[inline(always)]
pub(super) unsafe fn four_halves(blocks: [*const u8; STRIP], at: usize) -> float32x4_t {
    // SAFETY: the caller's promise; NEON is part of every 64-bit Arm.
    unsafe {
        let half = |r: usize| blocks[r].add(at).cast::<u16>().read_unaligned();
        let halves = vdup_n_u16(half(0));
        let halves = vset_lane_u16::<1>(half(1), halves);
        let halves = vset_lane_u16::<2>(half(2), halves);
        widen_halves(vset_lane_u16::<3>(half(3), halves))
    }
}

/// The half-precision number at byte `at` of a block.
///
/// # Safety
/// The block reaches that far.
#[inline(always)]
pub(super) unsafe fn half_at(block: *const u8, at: usize) -> f32 {
    // SAFETY: as above.
    unsafe { vgetq_lane_f32::<0>(widen_halves(vdup_n_u16(block.add(at).cast::<u16>().read_unaligned()))) }
}

/// Half precision to single, exactly. Rust has no stable type for half-precision lanes; the instruction is in every 64-bit
/// Arm.
#[inline(always)]
pub(super) fn widen_halves(halves: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: the instruction touches its operands alone.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = out(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Single precision to half, to the nearest, ties to even.
#[inline(always)]
fn narrow_to_halves(wide: float32x4_t) -> uint16x4_t {
    let halves;
    // SAFETY: the instruction touches its operands alone.
    unsafe {
        asm!("fcvtn {halves:v}.4h, {wide:v}.4s", wide = in(vreg) wide, halves = out(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    halves
}

/// Asks for the cache lines of `bytes` bytes that follow some way behind `at`.
#[inline(always)]
fn fetch_ahead(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        let address = at.wrapping_add(line + PREFETCH_BYTES);
        // SAFETY: a prefetch of any address is allowed and changes no memory.
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) address, options(readonly, nostack, preserves_flags)) };
    }
}
