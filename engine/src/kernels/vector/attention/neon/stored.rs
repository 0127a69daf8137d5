//! How the elements of cached rows come out of memory.

use super::BLOCK;
use crate::kernels::arm::{half_at, widen_halves};
use std::arch::aarch64::*;

/// Eight elements in order.
pub type Eight = [float32x4_t; 2];

/// An element type, seen as blocks of 32 = 4 times 8.
pub trait Stored {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether elements are codes that a block's scale has yet to meet.
    const SCALED: bool;

    /// Elements 8 i to 8 i + 7, without their scale.
    ///
    /// # Safety
    /// These elements can be read.
    unsafe fn eight(block: *const u8, i: usize) -> Eight;
}

/// An element type of whole-number codes.
pub trait Coded: Stored {
    /// Steps by which unsigned codes are larger than what they stand for.
    const STEPS: i32;
    /// Whether no code is larger than 64.
    const NARROW: bool;

    /// The 32 codes of a block.
    ///
    /// # Safety
    /// A block can be read.
    unsafe fn codes(block: *const u8) -> [int8x16_t; 2];
}

/// Half precision.
pub struct F16;
/// A half-precision scale, 32 signed bytes.
pub struct Q8_0;
/// A half-precision scale, 32 codes of 4 bits: of each byte, the low ones come first.
pub struct Q4_0;

/// Elements d to d + 7 of a row, scaled.
///
/// # Safety
/// The row has those elements, and they are of one block.
#[inline(always)]
pub unsafe fn eight_at<S: Stored>(row: *const u8, d: usize) -> Eight {
    // SAFETY: by the caller's promise.
    unsafe {
        let block = row.add(d / BLOCK * S::BYTES);
        let eight = S::eight(block, d % BLOCK / 8);
        if S::SCALED {
            let scale = half_at(block, 0);
            eight.map(|four| vmulq_n_f32(four, scale))
        } else {
            eight
        }
    }
}

/// Eight whole numbers as they are.
#[inline(always)]
unsafe fn wide(codes: int8x8_t) -> [int32x4_t; 2] {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        let halves = vmovl_s8(codes);
        [vmovl_s16(vget_low_s16(halves)), vmovl_high_s16(halves)]
    }
}

impl Stored for F16 {
    const BYTES: usize = 64;
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn eight(block: *const u8, i: usize) -> Eight {
        // SAFETY: by the caller's promise.
        unsafe {
            let halves = vreinterpretq_u16_u8(vld1q_u8(block.add(16 * i)));
            [widen_halves(vget_low_u16(halves)), widen_halves(vget_high_u16(halves))]
        }
    }
}

impl Stored for Q8_0 {
    const BYTES: usize = 34;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn eight(block: *const u8, i: usize) -> Eight {
        // SAFETY: by the caller's promise.
        unsafe { wide(vld1_s8(block.add(2 + 8 * i).cast())).map(|four| vcvtq_f32_s32(four)) }
    }
}

impl Coded for Q8_0 {
    const STEPS: i32 = 0;
    const NARROW: bool = false;

    #[inline(always)]
    unsafe fn codes(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: by the caller's promise.
        unsafe { [vld1q_s8(block.add(2).cast()), vld1q_s8(block.add(18).cast())] }
    }
}

impl Stored for Q4_0 {
    const BYTES: usize = 18;
    const SCALED: bool = true;

    /// With its top bit turned, a nibble is its value as a signed number of 4 bits; as the upper half of a byte it is 16
    /// times that, which the conversion takes off.
    #[inline(always)]
    unsafe fn eight(block: *const u8, i: usize) -> Eight {
        // SAFETY: by the caller's promise.
        unsafe {
            let both = veor_u8(vld1_u8(block.add(2 + i % 2 * 8)), vdup_n_u8(0x88));
            let upper = if i < 2 { vshl_n_u8::<4>(both) } else { vand_u8(both, vdup_n_u8(0xf0)) };
            wide(vreinterpret_s8_u8(upper)).map(|four| vcvtq_n_f32_s32::<4>(four))
        }
    }
}

impl Coded for Q4_0 {
    const STEPS: i32 = 8;
    const NARROW: bool = true;

    #[inline(always)]
    unsafe fn codes(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: by the caller's promise.
        unsafe {
            let both = vld1q_u8(block.add(2));
            [vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8::<4>(both))]
        }
    }
}
