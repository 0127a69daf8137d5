//! Activations to codes, and floats to half precision and back.

use super::{GROUP, narrow_to_halves, widen_halves};
use half::f16;
use std::arch::aarch64::*;

/// As `activations::largest_of_group`.
pub(in crate::kernels) fn largest_of_32(x: &[f32]) -> (f32, bool) {
    assert!(x.len() == GROUP, "a group of 32");
    // SAFETY: the length was just asserted; NEON is part of every 64-bit Arm.
    let largest = unsafe {
        let of = |i: usize| vabsq_f32(vld1q_f32(x[4 * i..][..4].as_ptr()));
        let two = |i: usize| vmaxq_f32(of(i), of(i + 1));
        vmaxvq_f32(vmaxq_f32(vmaxq_f32(two(0), two(2)), vmaxq_f32(two(4), two(6))))
    };
    // a NaN is the largest of all to this instruction
    (largest, largest.is_finite())
}

/// As `activations::round_group`.
pub(in crate::kernels) fn round_32(x: &[f32], inverse: f32, codes: &mut [i8]) -> [i32; 2] {
    assert!(x.len() == GROUP && codes.len() == GROUP, "a group of 32");
    let mut sums = [0; 2];
    for ((x, codes), sum) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).zip(&mut sums) {
        // SAFETY: both chunks have 16; NEON is part of every 64-bit Arm. Conversions go to the nearest, ties to even, and
        // stay within their type.
        unsafe {
            let whole = |i: usize| vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x.as_ptr().add(4 * i)), inverse));
            let low = vqmovn_high_s32(vqmovn_s32(whole(0)), whole(1));
            let high = vqmovn_high_s32(vqmovn_s32(whole(2)), whole(3));
            let bytes = vqmovn_high_s16(vqmovn_s16(low), high);
            vst1q_s8(codes.as_mut_ptr(), bytes);
            *sum = i32::from(vaddlvq_s8(bytes));
        }
    }
    sums
}

/// Rounds to half precision, as stored; `out` has two bytes for each.
pub(in crate::kernels) fn narrow(x: &[f32], out: &mut [u8]) {
    assert_eq!(2 * x.len(), out.len());
    let (mut fours, mut rooms) = (x.chunks_exact(4), out.chunks_exact_mut(8));
    for (x, out) in (&mut fours).zip(&mut rooms) {
        // SAFETY: four floats and room for eight bytes; NEON is part of every 64-bit Arm.
        unsafe { vst1_u8(out.as_mut_ptr(), vreinterpret_u8_u16(narrow_to_halves(vld1q_f32(x.as_ptr())))) };
    }
    for (out, v) in rooms.into_remainder().chunks_exact_mut(2).zip(fours.remainder()) {
        out.copy_from_slice(&f16::from_f32(*v).to_le_bytes());
    }
}

/// Stored half precision to single, exactly; `halves` has two bytes for each.
pub(in crate::kernels) fn widen(halves: &[u8], out: &mut [f32]) {
    assert_eq!(halves.len(), 2 * out.len());
    let (mut fours, mut rooms) = (halves.chunks_exact(8), out.chunks_exact_mut(4));
    for (halves, out) in (&mut fours).zip(&mut rooms) {
        // SAFETY: eight bytes and room for four floats; NEON is part of every 64-bit Arm.
        unsafe { vst1q_f32(out.as_mut_ptr(), widen_halves(vreinterpret_u16_u8(vld1_u8(halves.as_ptr())))) };
    }
    for (halves, out) in fours.remainder().chunks_exact(2).zip(rooms.into_remainder()) {
        *out = f16::from_le_bytes([halves[0], halves[1]]).to_f32();
    }
}

/// Rounds to half precision and widens again, in place.
pub(in crate::kernels) fn through_half(x: &mut [f32]) {
    let mut fours = x.chunks_exact_mut(4);
    for x in &mut fours {
        // SAFETY: the chunk has four; NEON is part of every 64-bit Arm.
        unsafe { vst1q_f32(x.as_mut_ptr(), widen_halves(narrow_to_halves(vld1q_f32(x.as_ptr())))) };
    }
    for v in fours.into_remainder() {
        *v = f16::from_f32(*v).to_f32();
    }
}
