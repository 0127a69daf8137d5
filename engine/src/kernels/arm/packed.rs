//! Weights kept as strips of 8 rows in memory, as small as the file has them, byte for byte as x86 has them: a step is 4
//! codes of each row, side by side, so that `sdot` by lane meets 4 codes of a vector in all its lanes and feeds a row a lane.
//! No sum goes across lanes, the scales of 8 rows are one load, and memory is read in one stream instead of four.
//!
//! A strip is its blocks one after the other. A block is: scales of 8 rows (half precision), minimums likewise where the
//! format has them, for blocks of 256 the 8-bit scales of each part for 8 rows and the minimums likewise, then the codes of
//! each group, without sign. Codes of 4 bits and more have a plane of nibbles (4 times 32 bytes; the high nibbles are steps 4
//! to 7), then a plane of what is left: pairs of bits (2 times 32 bytes, 4 steps each) and single bits (32 bytes). Codes of 8
//! bits are as they are.
//!
//! Instructions executed for 8 rows of 32 codes with one vector, all included, counted under qemu (strips against rows): with
//! `sdot` Q4_0 70 against 137, Q5_0 108 / 189, Q8_0 57 / 129, Q2_K 84 / 169, Q3_K 117 / 200, Q4_K 62 / 137, Q5_K 108 / 176,
//! Q6_K 111 / 198; with NEON alone Q4_0 104 / 161, Q5_0 143 / 205, Q8_0 97 / 153, Q2_K 130 / 185, Q3_K 185 / 218, Q4_K 97 /
//! 153, Q5_K 153 / 193, Q6_K 173 / 214.
//!
//! Sums are those of `vector`: whole numbers within a block, then one fused multiply-add in the order of the row, so that a
//! product has the bits that it has in rows.

// Registers are indexed by half strip, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::dot::{Dot, DotStrip, Dotprod, REGISTERS};
use super::formats::{Format, Large, Small, each_group};
use super::matrix::{TOGETHER, code_sums_of_parts, parts};
use super::{GROUP, STRIP, fetch_ahead, widen_halves};
use crate::kernels::{Activations, STRIP_ROWS, SharedOut, WeightRows};
use std::arch::aarch64::*;
use std::ops::Range;

/// Bytes of 8 half-precision numbers.
const HALVES_BYTES: usize = 2 * STRIP_ROWS;
/// Bytes of a step of 8 rows.
const STEP_BYTES: usize = 4 * STRIP_ROWS;

/// A number for each row of a strip.
pub(super) type Eight = [float32x4_t; 2];

/// Bytes of the codes of a group of 8 rows.
const fn group_bytes<F: Format>() -> usize {
    GROUP * F::BITS
}

/// Where the codes are in a block of 32 of 8 rows.
const fn small_codes<F: Small>() -> usize {
    HALVES_BYTES * if F::MINIMUM { 2 } else { 1 }
}

/// Bytes of a block of 32 of 8 rows.
pub(super) const fn small_bytes<F: Small>() -> usize {
    small_codes::<F>() + group_bytes::<F>()
}

/// Where things lie in a block of 256 of 8 rows.
struct Layout {
    scales: usize,
    minimums: usize,
    codes: usize,
    bytes: usize,
}

const fn layout<F: Large>() -> Layout {
    let heads = HALVES_BYTES * if F::MINIMUM { 2 } else { 1 };
    let parts = parts::<F>() * STRIP_ROWS;
    let minimums = heads + parts;
    let codes = if F::MINIMUM { minimums + parts } else { minimums };
    Layout { scales: heads, minimums, codes, bytes: codes + TOGETHER * group_bytes::<F>() }
}

/// Bytes of a block of 256 of 8 rows.
pub(super) const fn large_bytes<F: Large>() -> usize {
    layout::<F>().bytes
}

/// The rows of a strip that there are.
type Blocks<'a> = [Option<&'a [u8]>; STRIP_ROWS];

/// Block `b`, of `bytes` bytes, of the rows from `first` on that are below `end`.
fn blocks_of<'a>(weights: &WeightRows<'a>, first: usize, end: usize, b: usize, bytes: usize) -> Blocks<'a> {
    std::array::from_fn(|r| (first + r < end).then(|| &weights.row(first + r)[b * bytes..][..bytes]))
}

/// Packs `rows`, of blocks of 32, into `out`.
pub(super) fn pack_small<F: Small>(weights: WeightRows<'_>, rows: Range<usize>, out: &mut [u8]) {
    let mut out = out.chunks_exact_mut(small_bytes::<F>());
    for first in rows.clone().step_by(STRIP_ROWS) {
        for (b, out) in (0..weights.cols / GROUP).zip(&mut out) {
            let blocks = blocks_of(&weights, first, rows.end, b, F::BYTES);
            put_halves(blocks, 0, &mut out[..HALVES_BYTES]);
            if F::MINIMUM {
                put_halves(blocks, 2, &mut out[HALVES_BYTES..]);
            }
            put_planes::<F, 0>(blocks, &mut out[small_codes::<F>()..]);
        }
    }
}

/// Packs `rows`, of blocks of 256, into `out`.
pub(super) fn pack_large<F: Large>(weights: WeightRows<'_>, rows: Range<usize>, out: &mut [u8]) {
    let at = layout::<F>();
    let mut out = out.chunks_exact_mut(at.bytes);
    for first in rows.clone().step_by(STRIP_ROWS) {
        for (b, out) in (0..weights.cols / (GROUP * TOGETHER)).zip(&mut out) {
            let blocks = blocks_of(&weights, first, rows.end, b, F::BYTES);
            put_halves(blocks, F::SCALE_AT, &mut out[..HALVES_BYTES]);
            if F::MINIMUM {
                put_halves(blocks, F::MINIMUM_AT, &mut out[HALVES_BYTES..]);
            }
            for (r, block) in blocks.iter().enumerate() {
                let zero = [0; 2 * TOGETHER];
                // SAFETY: the block is whole.
                let head = block.map(|block| unsafe { F::head(block.as_ptr()) });
                put_parts(
                    head.as_ref().map_or(zero, |head| bytes_of(head.scales)),
                    r,
                    &mut out[at.scales..at.minimums],
                );
                if F::MINIMUM {
                    let minimums = head.as_ref().map_or(zero, |head| bytes_of(head.minimums));
                    put_parts(minimums, r, &mut out[at.minimums..at.codes]);
                }
            }
            each_group!(G => {
                put_planes::<F, G>(blocks, &mut out[at.codes + G * group_bytes::<F>()..]);
            });
        }
    }
}

/// The half-precision numbers at byte `at` of 8 blocks, side by side.
fn put_halves(blocks: Blocks<'_>, at: usize, out: &mut [u8]) {
    for (to, block) in out.chunks_exact_mut(2).zip(blocks) {
        to.copy_from_slice(block.map_or(&[0, 0], |block| &block[at..at + 2]));
    }
}

/// Sixteen numbers of at most 8 bits.
fn bytes_of(whole: [int32x4_t; 4]) -> [u8; 2 * TOGETHER] {
    let mut bytes = [0; 2 * TOGETHER];
    for (bytes, four) in bytes.chunks_exact_mut(4).zip(whole) {
        let mut whole = [0i32; 4];
        // SAFETY: there is room for four.
        unsafe { vst1q_s32(whole.as_mut_ptr(), four) };
        bytes.iter_mut().zip(whole).for_each(|(byte, whole)| *byte = whole as u8);
    }
    bytes
}

/// Row `r`'s number for each part, in their places (parts, 8).
fn put_parts(of_row: [u8; 2 * TOGETHER], r: usize, out: &mut [u8]) {
    for (out, part) in out.chunks_exact_mut(STRIP_ROWS).zip(of_row) {
        out[r] = part;
    }
}

/// The codes of group `G` of 8 blocks as planes.
fn put_planes<F: Format, const G: usize>(blocks: Blocks<'_>, out: &mut [u8]) {
    // SAFETY: blocks are whole; NEON is part of every 64-bit Arm.
    let rows = blocks.map(|block| unsafe {
        let stored = |codes| vaddq_s8(vshlq_s8(codes, vdupq_n_s8(-(F::SHIFT as i8))), vdupq_n_s8(F::STEPS));
        block.map_or([vdupq_n_s8(0); 2], |block| F::codes::<G>(block.as_ptr()).map(stored))
    });
    for half in 0..2 {
        let steps = Dotprod::arrange_weights(std::array::from_fn(|r| rows[half * STRIP + r]));
        // SAFETY: NEON is part of every 64-bit Arm.
        let steps = steps.map(|step| unsafe { vreinterpretq_u8_s8(step) });
        let mut rooms = out[..group_bytes::<F>()].chunks_exact_mut(STEP_BYTES);
        let mut put = |plane: uint8x16_t| {
            let room = &mut rooms.next().expect("as many registers as the planes have")[16 * half..][..16];
            // SAFETY: there is room for 16.
            unsafe { vst1q_u8(room.as_mut_ptr(), plane) };
        };
        if F::BITS == 8 {
            steps.into_iter().for_each(&mut put);
            continue;
        }
        // bits `from` and up of some steps, as many as `mask` has, side by side; steps are `apart` from each other
        let plane = |steps: &[uint8x16_t], apart: usize, from: usize, mask: u8, width: usize| {
            let moved = steps.iter().step_by(apart).enumerate().map(|(i, step)| moved(*step, from, mask, i * width));
            // SAFETY: NEON is part of every 64-bit Arm.
            moved.fold(unsafe { vdupq_n_u8(0) }, |all, bits| unsafe { vorrq_u8(all, bits) })
        };
        if F::BITS >= 4 {
            (0..4).for_each(|j| put(plane(&steps[j..], 4, 0, 15, 4)));
        }
        let from = F::BITS / 4 * 4;
        if F::BITS - from >= 2 {
            steps.chunks_exact(4).for_each(|four| put(plane(four, 1, from, 3, 2)));
        }
        if F::BITS % 2 == 1 {
            put(plane(&steps, 1, F::BITS - 1, 1, 1));
        }
    }
}

/// Bits `from` and up, as many as `mask` has, moved to bit `to`.
#[inline(always)]
fn moved(codes: uint8x16_t, from: usize, mask: u8, to: usize) -> uint8x16_t {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        let low = vandq_u8(vshlq_u8(codes, vdupq_n_s8(-(from as i8))), vdupq_n_u8(mask));
        vshlq_u8(low, vdupq_n_s8(to as i8))
    }
}

/// `v` shifted by `by` to the left, or to the right where that is below zero; a constant, so that one instruction is left.
#[inline(always)]
fn shifted(v: uint8x16_t, by: isize) -> uint8x16_t {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        match by {
            -6 => vshrq_n_u8::<6>(v),
            -5 => vshrq_n_u8::<5>(v),
            -4 => vshrq_n_u8::<4>(v),
            -3 => vshrq_n_u8::<3>(v),
            -2 => vshrq_n_u8::<2>(v),
            -1 => vshrq_n_u8::<1>(v),
            0 => v,
            1 => vshlq_n_u8::<1>(v),
            2 => vshlq_n_u8::<2>(v),
            3 => vshlq_n_u8::<3>(v),
            4 => vshlq_n_u8::<4>(v),
            _ => unreachable!("planes have no bits that far apart"),
        }
    }
}

/// The steps of four rows of a group, without sign unless codes have 8 bits.
///
/// # Safety
/// The planes of a group can be read.
#[inline(always)]
unsafe fn steps<F: Format>(codes: *const u8, half: usize) -> [int8x16_t; REGISTERS] {
    // SAFETY: the caller's promise. Written out, so that every step's shifts are constants.
    unsafe {
        [
            step::<F, 0>(codes, half),
            step::<F, 1>(codes, half),
            step::<F, 2>(codes, half),
            step::<F, 3>(codes, half),
            step::<F, 4>(codes, half),
            step::<F, 5>(codes, half),
            step::<F, 6>(codes, half),
            step::<F, 7>(codes, half),
        ]
    }
}

/// The steps of all rows of a group.
///
/// # Safety
/// As [`steps`].
#[inline(always)]
unsafe fn both_steps<F: Format>(codes: *const u8) -> [[int8x16_t; REGISTERS]; 2] {
    // SAFETY: the caller's promise. Not by `map`, which the compiler takes through memory when the function is large.
    unsafe { [steps::<F>(codes, 0), steps::<F>(codes, 1)] }
}

/// Step `S` of [`steps`]. Operations: one for 4 bits, two or one for 2 bits, and two more for what 3, 5 and 6 bits have on
/// top.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn step<F: Format, const S: usize>(codes: *const u8, half: usize) -> int8x16_t {
    let nibbles = if F::BITS >= 4 { 4 } else { 0 };
    let pairs = if F::BITS % 4 >= 2 { 2 } else { 0 };
    // SAFETY: the caller's promise; NEON is part of every 64-bit Arm.
    unsafe {
        let register = |i: usize| vld1q_u8(codes.add(i * STEP_BYTES + 16 * half));
        if F::BITS == 8 {
            return vreinterpretq_s8_u8(register(S));
        }
        let mut code = match (nibbles, S) {
            (0, _) if S % 4 == 3 => vshrq_n_u8::<6>(register(S / 4)),
            (0, _) => vandq_u8(shifted(register(S / 4), -2 * (S % 4) as isize), vdupq_n_u8(3)),
            (_, 0..4) => vandq_u8(register(S), vdupq_n_u8(15)),
            _ => vshrq_n_u8::<4>(register(S - 4)),
        };
        if nibbles > 0 && pairs > 0 {
            let pair = shifted(register(nibbles + S / 4), 4 - 2 * (S % 4) as isize);
            code = vbslq_u8(vdupq_n_u8(0x30), pair, code);
        }
        if F::BITS % 2 == 1 {
            let top = F::BITS - 1;
            let bit = shifted(register(nibbles + pairs), top as isize - S as isize);
            code = vbslq_u8(vdupq_n_u8(1 << top), bit, code);
        }
        vreinterpretq_s8_u8(code)
    }
}

/// Eight half-precision numbers.
///
/// # Safety
/// 16 bytes can be read.
#[inline(always)]
unsafe fn eight_halves(at: *const u8) -> Eight {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = vreinterpretq_u16_u8(vld1q_u8(at));
        [widen_halves(vget_low_u16(halves)), widen_halves(vget_high_u16(halves))]
    }
}

/// Eight numbers of 8 bits.
///
/// # Safety
/// 8 bytes can be read.
#[inline(always)]
unsafe fn eight_bytes(at: *const u8) -> int16x8_t {
    // SAFETY: the caller's promise.
    unsafe { vmovl_s8(vld1_s8(at.cast())) }
}

/// The strip at `strip`, of blocks of 32, with vectors `n` to `n + C`.
///
/// # Safety
/// The processor has `D`'s instructions; the strip is whole, its rows as long as the vectors, which exist.
unsafe fn small_vectors<F: Small, D: DotStrip, const C: usize>(
    strip: &[u8],
    acts: &Activations,
    n: usize,
) -> [Eight; C] {
    let codes: [*const i8; C] = std::array::from_fn(|c| acts.codes(n + c).as_ptr());
    let code_sums: [*const i16; C] = std::array::from_fn(|c| acts.code_sums(n + c).as_ptr());
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    let act_sums: [&[f32]; C] = std::array::from_fn(|c| acts.sums_32(n + c));
    // SAFETY: the block is whole, and the vectors have group `b`.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 2]; C];
        let mut minimums = sums;
        for (b, block) in strip.chunks_exact(small_bytes::<F>()).enumerate() {
            let at = block.as_ptr();
            fetch_ahead(at, small_bytes::<F>());
            let weights = both_steps::<F>(at.add(small_codes::<F>()));
            let scales = eight_halves(at);
            for c in 0..C {
                // what all codes of the group are too large by, of all rows
                let off = match F::STEPS {
                    0 => vdupq_n_s32(0),
                    steps => {
                        let two = vdupq_n_s32(code_sums[c].add(2 * b).cast::<i32>().read_unaligned());
                        vmulq_n_s32(vpaddlq_s16(vreinterpretq_s16_s32(two)), -i32::from(steps))
                    }
                };
                let act = load_group(codes[c].add(b * GROUP));
                let products = match F::BITS {
                    8 => D::add_steps::<8, true>([off; 2], weights, act),
                    _ => D::add_steps::<8, false>([off; 2], weights, act),
                };
                for half in 0..2 {
                    let scale = vmulq_n_f32(scales[half], *act_scales[c].get_unchecked(b));
                    sums[c][half] = vfmaq_f32(sums[c][half], vcvtq_f32_s32(products[half]), scale);
                }
                if F::MINIMUM {
                    let minimum = eight_halves(at.add(HALVES_BYTES));
                    for half in 0..2 {
                        let act_sum = *act_sums[c].get_unchecked(b);
                        minimums[c][half] = vfmaq_n_f32(minimums[c][half], minimum[half], act_sum);
                    }
                }
            }
        }
        std::array::from_fn(|c| [0, 1].map(|half| vaddq_f32(sums[c][half], minimums[c][half])))
    }
}

/// # Safety
/// 32 codes can be read.
#[inline(always)]
unsafe fn load_group(codes: *const i8) -> [int8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { [vld1q_s8(codes), vld1q_s8(codes.add(16))] }
}

/// The strip at `strip`, of blocks of 256, with vectors `n` to `n + C`.
///
/// # Safety
/// As [`small_vectors`].
unsafe fn large_vectors<F: Large, D: DotStrip, const C: usize>(
    strip: &[u8],
    acts: &Activations,
    n: usize,
) -> [Eight; C] {
    let codes: [*const i8; C] = std::array::from_fn(|c| acts.codes(n + c).as_ptr());
    let code_sums: [*const i16; C] = std::array::from_fn(|c| acts.code_sums(n + c).as_ptr());
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    let at = layout::<F>();
    // SAFETY: the block is whole, and the vectors have its eight groups.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 2]; C];
        let mut minimums = sums;
        for (b, block) in strip.chunks_exact(at.bytes).enumerate() {
            let block = block.as_ptr();
            let mut whole = [Whole { products: [vdupq_n_s32(0); 2], minimums: [vdupq_n_s32(0); 2] }; C];
            let of_parts = code_sums.map(|sums| code_sums_of_parts::<F>(sums.add(b * 2 * TOGETHER)));
            fetch_ahead(block, at.codes);
            each_group!(G => {
                let group = block.add(at.codes + G * group_bytes::<F>());
                fetch_ahead(group, group_bytes::<F>());
                let weights = both_steps::<F>(group);
                for c in 0..C {
                    let act = load_group(codes[c].add((b * TOGETHER + G) * GROUP));
                    add_group::<F, D, G>(&mut whole[c], block, weights, act, of_parts[c]);
                }
            });
            let scales = eight_halves(block);
            for c in 0..C {
                // the vector's scale is shared by the block's eight groups, see `ActivationFormat::Q8K`
                let act_scale = *act_scales[c].get_unchecked(b * TOGETHER);
                for half in 0..2 {
                    let scale = vmulq_n_f32(scales[half], act_scale);
                    sums[c][half] = vfmaq_f32(sums[c][half], vcvtq_f32_s32(whole[c].products[half]), scale);
                }
                if F::MINIMUM {
                    let scales = eight_halves(block.add(HALVES_BYTES));
                    for half in 0..2 {
                        let scale = vmulq_n_f32(scales[half], act_scale);
                        minimums[c][half] = vfmaq_f32(minimums[c][half], vcvtq_f32_s32(whole[c].minimums[half]), scale);
                    }
                }
            }
        }
        std::array::from_fn(|c| [0, 1].map(|half| vsubq_f32(sums[c][half], minimums[c][half])))
    }
}

/// Sums of a block of 256 of 8 rows.
#[derive(Clone, Copy)]
struct Whole {
    products: [int32x4_t; 2],
    minimums: [int32x4_t; 2],
}

/// Adds group `G`: its products times the scales of its parts, and the minimums of these times the sums of their codes.
///
/// # Safety
/// The processor has `D`'s instructions; the block is whole.
#[inline(always)]
unsafe fn add_group<F: Large, D: DotStrip, const G: usize>(
    whole: &mut Whole,
    block: *const u8,
    weights: [[int8x16_t; REGISTERS]; 2],
    act: [int8x16_t; 2],
    of_parts: [int16x8_t; 2],
) {
    let at = layout::<F>();
    // SAFETY: the caller's promise.
    unsafe {
        if !F::HALVES {
            let products = D::add_steps::<8, false>([vdupq_n_s32(0); 2], weights, act);
            return add_part::<F>(whole, block.add(at.scales), G, products, of_parts[0]);
        }
        for half in 0..2 {
            let part = 2 * G + half;
            // what all codes of the part are too large by, of all rows
            let off = times_lane(vdup_n_s16(-i16::from(F::STEPS)), of_parts[part / TOGETHER], part % TOGETHER);
            let four = |w: [int8x16_t; REGISTERS]| [w[4 * half], w[4 * half + 1], w[4 * half + 2], w[4 * half + 3]];
            let steps = [four(weights[0]), four(weights[1])];
            let products = D::add_steps::<4, false>([off; 2], steps, [act[half]; 2]);
            add_part::<F>(whole, block.add(at.scales), part, products, of_parts[part / TOGETHER]);
        }
    }
}

/// Adds a part's products and minimums. The largest sum, of Q6_K, stays below 256 x 32 x 127 x 128 = 2^27.
///
/// # Safety
/// There are scales, and minimums where the format has them, from `scales` on.
#[inline(always)]
unsafe fn add_part<F: Large>(
    whole: &mut Whole,
    scales: *const u8,
    part: usize,
    products: [int32x4_t; 2],
    of_parts: int16x8_t,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let eight = eight_bytes(scales.add(part * STRIP_ROWS));
        let scales_32 = [vmovl_s16(vget_low_s16(eight)), vmovl_high_s16(eight)];
        for half in 0..2 {
            whole.products[half] = vmlaq_s32(whole.products[half], products[half], scales_32[half]);
        }
        if F::MINIMUM {
            let eight = eight_bytes(scales.add((parts::<F>() + part) * STRIP_ROWS));
            let lane = part % TOGETHER;
            whole.minimums[0] = vaddq_s32(whole.minimums[0], times_lane(vget_low_s16(eight), of_parts, lane));
            whole.minimums[1] = vaddq_s32(whole.minimums[1], times_lane(vget_high_s16(eight), of_parts, lane));
        }
    }
}

/// `four` times one lane of `eight`; the lane is a constant, and with an addition this is one operation.
#[inline(always)]
fn times_lane(four: int16x4_t, eight: int16x8_t, lane: usize) -> int32x4_t {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        match lane {
            0 => vmull_laneq_s16::<0>(four, eight),
            1 => vmull_laneq_s16::<1>(four, eight),
            2 => vmull_laneq_s16::<2>(four, eight),
            3 => vmull_laneq_s16::<3>(four, eight),
            4 => vmull_laneq_s16::<4>(four, eight),
            5 => vmull_laneq_s16::<5>(four, eight),
            6 => vmull_laneq_s16::<6>(four, eight),
            _ => vmull_laneq_s16::<7>(four, eight),
        }
    }
}

/// Every vector of `acts`, two at a time, with the strips of blocks of 32 that hold `rows`.
///
/// # Safety
/// The processor has `D`'s instructions; `rows` lie within the packed weights, vectors are as long as rows.
pub(super) unsafe fn small<F: Small, D: DotStrip>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    for (strip, within) in packed_strips(weights, weights.cols / GROUP * small_bytes::<F>(), rows) {
        for n in (0..acts.n()).step_by(2) {
            // SAFETY: contract of this function.
            unsafe {
                match acts.n() - n {
                    1 => put(small_vectors::<F, D, 1>(strip, acts, n), n, &within, out),
                    _ => put(small_vectors::<F, D, 2>(strip, acts, n), n, &within, out),
                }
            }
        }
    }
}

/// As [`small`] for blocks of 256.
///
/// # Safety
/// As there.
pub(super) unsafe fn large<F: Large, D: DotStrip>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    for (strip, within) in packed_strips(weights, weights.cols / (GROUP * TOGETHER) * large_bytes::<F>(), rows) {
        for n in (0..acts.n()).step_by(2) {
            // SAFETY: contract of this function.
            unsafe {
                match acts.n() - n {
                    1 => put(large_vectors::<F, D, 1>(strip, acts, n), n, &within, out),
                    _ => put(large_vectors::<F, D, 2>(strip, acts, n), n, &within, out),
                }
            }
        }
    }
}

/// The strips that hold `rows`, which begin a strip, and which rows are in each.
fn packed_strips<'a>(
    weights: WeightRows<'a>,
    strip_bytes: usize,
    rows: Range<usize>,
) -> impl Iterator<Item = (&'a [u8], Range<usize>)> {
    rows.clone().step_by(STRIP_ROWS).map(move |first| {
        let strip = &weights.data[first / STRIP_ROWS * strip_bytes..][..strip_bytes];
        (strip, first..rows.end.min(first + STRIP_ROWS))
    })
}

/// Writes the products of vectors `n` and following with rows `within`.
fn put<const C: usize>(products: [Eight; C], n: usize, within: &Range<usize>, out: SharedOut) {
    for (c, eight) in products.into_iter().enumerate() {
        let mut lanes = [0.0; STRIP_ROWS];
        // SAFETY: there is room for eight.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), eight[0]);
            vst1q_f32(lanes[STRIP..].as_mut_ptr(), eight[1]);
        }
        out.put_row(n + c, within.start, &lanes[..within.len()]);
    }
}

/// A block of 32 of four rows of a strip, for many vectors.
pub(super) struct SmallBlock {
    /// Codes in the order that `D` wants.
    pub codes: [int8x16_t; REGISTERS],
    /// Scales of the rows.
    pub scales: float32x4_t,
    /// Minimums of the rows, or anything when the format has none.
    pub minimums: float32x4_t,
}

/// The rows of `half` of strip `strip`, block `b` of 32.
///
/// # Safety
/// The weights have that block.
#[inline(always)]
pub(super) unsafe fn small_block<F: Small, D: Dot>(
    weights: &WeightRows<'_>,
    strip: usize,
    b: usize,
    half: usize,
) -> SmallBlock {
    // SAFETY: the caller's promise.
    unsafe {
        let block = weights.data.as_ptr().add((strip * (weights.cols / GROUP) + b) * small_bytes::<F>());
        SmallBlock {
            codes: D::arrange_steps(signed_steps::<F>(block.add(small_codes::<F>()), half)),
            scales: eight_halves(block)[half],
            minimums: eight_halves(block.add(if F::MINIMUM { HALVES_BYTES } else { 0 }))[half],
        }
    }
}

/// The steps of four rows of a group, as what they stand for.
///
/// # Safety
/// The planes of a group can be read.
#[inline(always)]
unsafe fn signed_steps<F: Format>(codes: *const u8, half: usize) -> [int8x16_t; REGISTERS] {
    // SAFETY: the caller's promise.
    unsafe { steps::<F>(codes, half).map(|codes| vsubq_s8(codes, vdupq_n_s8(F::STEPS))) }
}

/// A block of 256 of four rows of a strip, for many vectors.
pub(super) struct LargeBlock {
    block: *const u8,
    half: usize,
    /// Scales of the rows.
    pub scales: float32x4_t,
    /// What minimums are multiples of, or anything when the format has none.
    pub minimums: float32x4_t,
}

impl LargeBlock {
    /// The rows of `half` of strip `strip`, block `b` of 256.
    ///
    /// # Safety
    /// The weights have that block, as long as this value is used.
    #[inline(always)]
    pub unsafe fn new<F: Large>(weights: &WeightRows<'_>, strip: usize, b: usize, half: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let blocks = weights.cols / (GROUP * TOGETHER);
            let block = weights.data.as_ptr().add((strip * blocks + b) * large_bytes::<F>());
            let minimums = eight_halves(block.add(if F::MINIMUM { HALVES_BYTES } else { 0 }))[half];
            Self { block, half, scales: eight_halves(block)[half], minimums }
        }
    }

    /// Codes of group `G` in the order that `D` wants.
    #[inline(always)]
    pub fn codes<F: Large, D: Dot, const G: usize>(&self) -> [int8x16_t; REGISTERS] {
        // SAFETY: the block is whole, as `new` demands.
        unsafe {
            let group = self.block.add(layout::<F>().codes + G * group_bytes::<F>());
            D::arrange_steps(signed_steps::<F>(group, self.half))
        }
    }

    /// Whole-number scales of the rows for part `part`; minimums likewise where the format has them.
    #[inline(always)]
    pub fn part<F: Large>(&self, part: usize) -> (int16x4_t, int16x4_t) {
        let at = layout::<F>();
        // SAFETY: the block is whole, as `new` demands.
        unsafe {
            let of = |from: usize| {
                let eight = eight_bytes(self.block.add(from + part * STRIP_ROWS));
                if self.half == 0 { vget_low_s16(eight) } else { vget_high_s16(eight) }
            };
            (of(at.scales), if F::MINIMUM { of(at.minimums) } else { vdup_n_s16(0) })
        }
    }
}
