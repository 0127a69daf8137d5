//! Four rows with one vector or two: what decoding a token spends its time on. Rows are read as they are stored and
//! unpacked in registers.
//!
//! Vector operations for four rows of 32 codes with one vector, loads and loop apart, are 8 (`sdot`) or 20 to 24 (NEON) to
//! multiply, 3 to add across lanes, 3 to scale, and four times what the format's `codes` says to unpack. Q4_0 with `sdot`:
//! 8 + 3 + 3 + 12, and 5 for the four scales, 31 for 128 weights of 72 bytes. Blocks of 256 add across lanes and scale once
//! for all their groups, but multiply each row's sums with the group's own scale: Q4_K with `sdot` has 8 + 4 + 8 for 128.

// Registers are indexed by row, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::dot::{Dot, sum_lanes};
use super::formats::{Format, Large, LargeHead, Small, each_group};
use super::{GROUP, STRIP, Strip, fetch_ahead, four_halves};
use crate::kernels::Activations;
use std::arch::aarch64::*;

/// Blocks of 32 for which the rows' next bytes are fetched at once.
const FETCH_BLOCKS: usize = 8;

/// Products of rows in blocks of 32 with vectors `n` to `n + C`, one row a lane.
///
/// # Safety
/// The processor has `D`'s instructions; rows are whole blocks of `F`, as many as the vectors, which exist, have groups.
pub(super) unsafe fn small_blocks<F: Small, D: Dot, const C: usize>(
    strip: &Strip<'_>,
    acts: &Activations,
    n: usize,
) -> [float32x4_t; C] {
    let codes: [*const i8; C] = std::array::from_fn(|c| acts.codes(n + c).as_ptr());
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    let act_sums: [&[f32]; C] = std::array::from_fn(|c| acts.sums_32(n + c));
    // SAFETY: every block and group named below lies within rows and vectors.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); C];
        let mut minimums = [vdupq_n_f32(0.0); C];
        for b in 0..act_scales[0].len() {
            let blocks = strip.at(b * F::BYTES);
            if b % FETCH_BLOCKS == 0 {
                blocks.iter().for_each(|row| fetch_ahead(*row, FETCH_BLOCKS * F::BYTES));
            }
            let mut scales = four_halves(blocks, 0);
            if F::FACTOR != 1.0 {
                scales = vmulq_n_f32(scales, F::FACTOR);
            }
            let weights = blocks.map(|block| F::codes::<0>(block));
            for c in 0..C {
                let act = load_group(codes[c].add(b * GROUP));
                let products = sum_lanes(weights.map(|weight| dot::<F, D>(weight, act)));
                let scale = vmulq_n_f32(scales, *act_scales[c].get_unchecked(b));
                sums[c] = vfmaq_f32(sums[c], vcvtq_f32_s32(products), scale);
            }
            if F::MINIMUM {
                let minimum = four_halves(blocks, 2);
                for c in 0..C {
                    minimums[c] = vfmaq_n_f32(minimums[c], minimum, *act_sums[c].get_unchecked(b));
                }
            }
        }
        std::array::from_fn(|c| vaddq_f32(sums[c], minimums[c]))
    }
}

#[inline(always)]
unsafe fn dot<F: Format, D: Dot>(weight: [int8x16_t; 2], act: [int8x16_t; 2]) -> int32x4_t {
    // SAFETY: the caller's promise of `D`'s instructions.
    unsafe { if F::NARROW { D::dot_32::<true>(weight, act) } else { D::dot_32::<false>(weight, act) } }
}

#[inline(always)]
unsafe fn load_group(codes: *const i8) -> [int8x16_t; 2] {
    // SAFETY: the caller gives 32 codes.
    unsafe { [vld1q_s8(codes), vld1q_s8(codes.add(16))] }
}

/// Products of rows in blocks of 256 with vectors `n` to `n + C`, one row a lane.
///
/// # Safety
/// The processor has `D`'s instructions; rows are whole blocks of `F`, as many elements as the vectors, which exist, have.
pub(super) unsafe fn large_blocks<F: Large, D: Dot, const C: usize>(
    strip: &Strip<'_>,
    acts: &Activations,
    n: usize,
) -> [float32x4_t; C] {
    let codes: [*const i8; C] = std::array::from_fn(|c| acts.codes(n + c).as_ptr());
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    let code_sums: [*const i16; C] = std::array::from_fn(|c| acts.code_sums(n + c).as_ptr());
    // SAFETY: every block and group named below lies within rows and vectors.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); C];
        let mut minimum_sums = [vdupq_n_f32(0.0); C];
        for b in 0..act_scales[0].len() / 8 {
            let blocks = strip.at(b * F::BYTES);
            let at = codes.map(|codes| codes.add(b * 8 * GROUP));
            let part_sums = code_sums.map(|sums| part_sums::<F>(sums.add(b * 16)));
            let mut minimums = [[vdupq_n_s32(0); STRIP]; C];
            let mut whole = [[vdupq_n_s32(0); STRIP]; C];
            for (r, block) in blocks.into_iter().enumerate() {
                fetch_ahead(block, F::BYTES);
                let head = F::head(block);
                let of_row = row_products::<F, D, C>(block, &head, at);
                for c in 0..C {
                    whole[c][r] = of_row[c];
                    if F::MINIMUM {
                        for q in 0..if F::HALVES { 4 } else { 2 } {
                            minimums[c][r] = vmlaq_s32(minimums[c][r], head.minimums[q], part_sums[c][q]);
                        }
                    }
                }
            }
            let scales = four_halves(blocks, F::SCALE_AT);
            for c in 0..C {
                // the vector's scale is shared by the block's eight groups, see `ActivationFormat::Q8K`
                let scale = vmulq_n_f32(scales, *act_scales[c].get_unchecked(b * 8));
                sums[c] = vfmaq_f32(sums[c], vcvtq_f32_s32(sum_lanes(whole[c])), scale);
            }
            if F::MINIMUM {
                let scales = four_halves(blocks, F::MINIMUM_AT);
                for c in 0..C {
                    let scale = vmulq_n_f32(scales, *act_scales[c].get_unchecked(b * 8));
                    minimum_sums[c] = vfmaq_f32(minimum_sums[c], vcvtq_f32_s32(sum_lanes(minimums[c])), scale);
                }
            }
        }
        std::array::from_fn(|c| vsubq_f32(sums[c], minimum_sums[c]))
    }
}

/// Sums of a vector's codes for each part of a block of 256: in order, or of groups in the first eight lanes.
#[inline(always)]
unsafe fn part_sums<F: Large>(code_sums: *const i16) -> [int32x4_t; 4] {
    // SAFETY: the caller gives the 16 sums of a block.
    unsafe {
        let (low, high) = (vld1q_s16(code_sums), vld1q_s16(code_sums.add(8)));
        if F::HALVES {
            return [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ];
        }
        let (low, high) = (vpaddlq_s16(low), vpaddlq_s16(high));
        [low, high, low, high]
    }
}

/// Products of a block of one row, times the sub-block scales, in whole numbers. The largest sum, of Q6_K, stays below
/// 256 x 32 x 127 x 128 = 2^27.
#[inline(always)]
unsafe fn row_products<F: Large, D: Dot, const C: usize>(
    block: *const u8,
    head: &LargeHead,
    acts: [*const i8; C],
) -> [int32x4_t; C] {
    // SAFETY: the caller gives a whole block and 256 codes of each vector.
    unsafe {
        let mut sums = [vdupq_n_s32(0); C];
        each_group!(G => {
            let weight = F::codes::<G>(block);
            for c in 0..C {
                let act = load_group(acts[c].add(G * GROUP));
                sums[c] = if F::HALVES {
                    let zero = vdupq_n_s32(0);
                    let first = add_scaled::<{ 2 * G }>(sums[c], D::dot_16(zero, weight[0], act[0]), &head.scales);
                    add_scaled::<{ 2 * G + 1 }>(first, D::dot_16(zero, weight[1], act[1]), &head.scales)
                } else {
                    add_scaled::<G>(sums[c], dot::<F, D>(weight, act), &head.scales)
                };
            }
        });
        sums
    }
}

/// `sum + products x scales[AT]`, in one operation.
#[inline(always)]
fn add_scaled<const AT: usize>(sum: int32x4_t, products: int32x4_t, scales: &[int32x4_t; 4]) -> int32x4_t {
    let four = scales[AT / 4];
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        match AT % 4 {
            0 => vmlaq_laneq_s32::<0>(sum, products, four),
            1 => vmlaq_laneq_s32::<1>(sum, products, four),
            2 => vmlaq_laneq_s32::<2>(sum, products, four),
            _ => vmlaq_laneq_s32::<3>(sum, products, four),
        }
    }
}
