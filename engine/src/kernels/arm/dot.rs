//! The products of 8-bit codes: what each generation of processors has for them, and the order in which it wants them.

// Registers are indexed by step and half strip; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::STRIP;
use std::arch::aarch64::*;
use std::arch::asm;

/// Registers of codes in a group of 32 of four rows, or of four vectors.
pub(in crate::kernels) const REGISTERS: usize = 8;
/// The codes of a group of four rows or vectors.
pub(in crate::kernels) type Four = [[int8x16_t; 2]; STRIP];

/// A way to multiply codes.
///
/// In the matrix functions `C`, 2 or 4, is the number of vectors, and the `C` registers of sums hold every row with every
/// vector once, in an order of this trait's own that [`Dot::by_vector`] undoes.
pub(in crate::kernels) trait Dot {
    /// What multiplies when there are too few vectors for a matrix.
    type Few: Dot + DotStrip;

    /// Adds 16 products to four sums.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn dot_16(sum: int32x4_t, weight: int8x16_t, act: int8x16_t) -> int32x4_t;

    /// 32 products in four sums; codes of weights are at most 64 in magnitude when `NARROW`.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    unsafe fn dot_32<const NARROW: bool>(weight: [int8x16_t; 2], act: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { Self::dot_16(Self::dot_16(vdupq_n_s32(0), weight[0], act[0]), weight[1], act[1]) }
    }

    /// The order in which [`Dot::add_half`] wants the weights of a group.
    fn arrange_weights(rows: Four) -> [int8x16_t; REGISTERS];
    /// The same from registers that hold codes 4i to 4i + 3 of the four rows.
    fn arrange_steps(steps: [int8x16_t; REGISTERS]) -> [int8x16_t; REGISTERS];
    /// The order in which it wants the activations; the first two vectors come first.
    fn arrange_acts(vectors: Four) -> [int8x16_t; REGISTERS];

    /// Adds the products of half a group.
    ///
    /// # Safety
    /// The processor has the instructions; `acts` has the `C` vectors' codes as arranged, `half` is 0 or 1.
    unsafe fn add_half<const C: usize>(
        sums: [int32x4_t; C],
        weights: &[int8x16_t; REGISTERS],
        acts: *const i8,
        half: usize,
    ) -> [int32x4_t; C];

    /// The products of a group; codes of weights are at most 64 in magnitude when `NARROW`.
    ///
    /// # Safety
    /// As [`Dot::add_half`].
    #[inline(always)]
    unsafe fn group<const C: usize, const NARROW: bool>(
        weights: &[int8x16_t; REGISTERS],
        acts: *const i8,
    ) -> [int32x4_t; C] {
        // SAFETY: the caller's promise.
        unsafe { Self::add_half(Self::add_half([vdupq_n_s32(0); C], weights, acts, 0), weights, acts, 1) }
    }

    /// A number for each row, in the order of the sums.
    fn of_rows<const C: usize>(rows: float32x4_t) -> [float32x4_t; C];
    /// A number for each vector, in the order of the sums.
    fn of_vectors<const C: usize>(vectors: float32x4_t) -> [float32x4_t; C];
    /// From the order of the sums to one register a vector, one row a lane.
    fn by_vector<const C: usize>(sums: [float32x4_t; C]) -> [float32x4_t; C];
}

/// A way to multiply the codes of 8 rows that lie side by side.
pub(in crate::kernels) trait DotStrip {
    /// Adds the products of `N` steps, 4 or 8, of two times four rows with as many times four codes of a vector; a step is
    /// four codes of each row. Codes of weights are below 64 in magnitude unless `WIDE`.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn add_steps<const N: usize, const WIDE: bool>(
        sums: [int32x4_t; 2],
        steps: [[int8x16_t; N]; 2],
        act: [int8x16_t; 2],
    ) -> [int32x4_t; 2];
}

/// What every 64-bit Arm has: products in 16 bits, added in pairs to 32. Both of a pair are at most 128 x 127.
pub(in crate::kernels) struct Neon;
/// `sdot`: 16 products added to four sums.
pub(in crate::kernels) struct Dotprod;
/// `smmla`: two rows of 8 codes with two vectors of 8, 32 products added to four sums.
pub(super) struct I8mm;

/// Sums of each register's lanes.
#[inline(always)]
pub(in crate::kernels) fn sum_lanes(of: [int32x4_t; STRIP]) -> int32x4_t {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe { vpaddq_s32(vpaddq_s32(of[0], of[1]), vpaddq_s32(of[2], of[3])) }
}

/// # Safety
/// 16 codes can be read.
#[inline(always)]
unsafe fn load(codes: *const i8, register: usize) -> int8x16_t {
    // SAFETY: the caller's promise.
    unsafe { vld1q_s8(codes.add(16 * register)) }
}

#[inline(always)]
fn one_after_the_other(of: Four) -> [int8x16_t; REGISTERS] {
    std::array::from_fn(|i| of[i / 2][i % 2])
}

/// Of four registers of four times four codes, the first four codes of each, the second, and so on.
#[inline(always)]
fn transposed(of: [int8x16_t; 4]) -> [int8x16_t; 4] {
    // SAFETY: NEON is part of every 64-bit Arm.
    std::array::from_fn(|i| unsafe {
        let of = |r: usize| vreinterpretq_s32_s8(of[r]);
        // registers 0 and 1, 2 and 3, in the order 0 1 0 1
        let (even, odd) = match i % 2 {
            0 => (vtrn1q_s32(of(0), of(1)), vtrn1q_s32(of(2), of(3))),
            _ => (vtrn2q_s32(of(0), of(1)), vtrn2q_s32(of(2), of(3))),
        };
        let (even, odd) = (vreinterpretq_s64_s32(even), vreinterpretq_s64_s32(odd));
        vreinterpretq_s8_s64(if i < 2 { vtrn1q_s64(even, odd) } else { vtrn2q_s64(even, odd) })
    })
}

/// Four codes in all lanes: number `i` of those fours that `act` has.
#[inline(always)]
fn four_codes(act: [int8x16_t; 2], i: usize) -> int8x16_t {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        let act = vreinterpretq_s32_s8(act[i / 4]);
        vreinterpretq_s8_s32(match i % 4 {
            0 => vdupq_laneq_s32::<0>(act),
            1 => vdupq_laneq_s32::<1>(act),
            2 => vdupq_laneq_s32::<2>(act),
            _ => vdupq_laneq_s32::<3>(act),
        })
    }
}

#[inline(always)]
fn lanes<const C: usize>(vectors: float32x4_t) -> [float32x4_t; C] {
    // SAFETY: NEON is part of every 64-bit Arm.
    std::array::from_fn(|c| unsafe {
        match c {
            0 => vdupq_laneq_f32::<0>(vectors),
            1 => vdupq_laneq_f32::<1>(vectors),
            2 => vdupq_laneq_f32::<2>(vectors),
            _ => vdupq_laneq_f32::<3>(vectors),
        }
    })
}

impl Dot for Neon {
    type Few = Self;

    /// Three operations for 16 products.
    #[inline(always)]
    unsafe fn dot_16(sum: int32x4_t, weight: int8x16_t, act: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe {
            let pairs = vmull_s8(vget_low_s8(weight), vget_low_s8(act));
            vpadalq_s16(sum, vmlal_high_s8(pairs, weight, act))
        }
    }

    /// Five operations for 32 narrow ones: four products of 64 x 127 fit 16 bits.
    #[inline(always)]
    unsafe fn dot_32<const NARROW: bool>(weight: [int8x16_t; 2], act: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe {
            if !NARROW {
                return Self::dot_16(Self::dot_16(vdupq_n_s32(0), weight[0], act[0]), weight[1], act[1]);
            }
            let pairs = vmull_s8(vget_low_s8(weight[0]), vget_low_s8(act[0]));
            let pairs = vmlal_high_s8(pairs, weight[0], act[0]);
            let pairs = vmlal_s8(pairs, vget_low_s8(weight[1]), vget_low_s8(act[1]));
            vpaddlq_s16(vmlal_high_s8(pairs, weight[1], act[1]))
        }
    }

    #[inline(always)]
    fn arrange_weights(rows: Four) -> [int8x16_t; REGISTERS] {
        one_after_the_other(rows)
    }
    #[inline(always)]
    fn arrange_steps(s: [int8x16_t; REGISTERS]) -> [int8x16_t; REGISTERS] {
        let halves = [transposed([s[0], s[1], s[2], s[3]]), transposed([s[4], s[5], s[6], s[7]])];
        std::array::from_fn(|i| halves[i % 2][i / 2])
    }
    #[inline(always)]
    fn arrange_acts(vectors: Four) -> [int8x16_t; REGISTERS] {
        one_after_the_other(vectors)
    }

    #[inline(always)]
    unsafe fn add_half<const C: usize>(
        mut sums: [int32x4_t; C],
        weights: &[int8x16_t; REGISTERS],
        acts: *const i8,
        half: usize,
    ) -> [int32x4_t; C] {
        for (c, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the vectors' codes are there; NEON is part of every 64-bit Arm.
            unsafe {
                let act = load(acts, 2 * c + half);
                let of_row = |r: usize| Self::dot_16(vdupq_n_s32(0), weights[2 * r + half], act);
                *sum = vaddq_s32(*sum, sum_lanes([of_row(0), of_row(1), of_row(2), of_row(3)]));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn group<const C: usize, const NARROW: bool>(
        weights: &[int8x16_t; REGISTERS],
        acts: *const i8,
    ) -> [int32x4_t; C] {
        // SAFETY: the vectors' codes are there; NEON is part of every 64-bit Arm.
        std::array::from_fn(|c| unsafe {
            let act = [load(acts, 2 * c), load(acts, 2 * c + 1)];
            let of_row = |r: usize| Self::dot_32::<NARROW>([weights[2 * r], weights[2 * r + 1]], act);
            sum_lanes([of_row(0), of_row(1), of_row(2), of_row(3)])
        })
    }

    #[inline(always)]
    fn of_rows<const C: usize>(rows: float32x4_t) -> [float32x4_t; C] {
        [rows; C]
    }
    #[inline(always)]
    fn of_vectors<const C: usize>(vectors: float32x4_t) -> [float32x4_t; C] {
        lanes(vectors)
    }
    #[inline(always)]
    fn by_vector<const C: usize>(sums: [float32x4_t; C]) -> [float32x4_t; C] {
        sums
    }
}

impl DotStrip for Neon {
    /// Two operations for 16 products and one for every 32 that comes with them, then eight: a lane of 16 bits has one
    /// product a step, and holds eight of 31 x 127, four of 63 x 127 or two of 128 x 127.
    #[inline(always)]
    unsafe fn add_steps<const N: usize, const WIDE: bool>(
        mut sums: [int32x4_t; 2],
        steps: [[int8x16_t; N]; 2],
        act: [int8x16_t; 2],
    ) -> [int32x4_t; 2] {
        let depth = if WIDE { 2 } else { N };
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe {
            // sums of rows 0 and 1 and of rows 2 and 3, two lanes for each
            let mut pairs = [[vdupq_n_s32(0); 2]; 2];
            let mut narrow = [[vdupq_n_s16(0); 2]; 2];
            for s in 0..N {
                let act = four_codes(act, s);
                for half in 0..2 {
                    let step = steps[half][s];
                    narrow[half] = match s % depth {
                        0 => [vmull_s8(vget_low_s8(step), vget_low_s8(act)), vmull_high_s8(step, act)],
                        _ => [
                            vmlal_s8(narrow[half][0], vget_low_s8(step), vget_low_s8(act)),
                            vmlal_high_s8(narrow[half][1], step, act),
                        ],
                    };
                    if s % depth == depth - 1 {
                        for (pairs, narrow) in pairs[half].iter_mut().zip(narrow[half]) {
                            *pairs = if s < depth { vpaddlq_s16(narrow) } else { vpadalq_s16(*pairs, narrow) };
                        }
                    }
                }
            }
            for half in 0..2 {
                sums[half] = vaddq_s32(sums[half], vpaddq_s32(pairs[half][0], pairs[half][1]));
            }
            sums
        }
    }
}

/// `sdot`, and its form in which all four sums take the same four activations. `.arch_extension` tells the assembler,
/// which otherwise refuses instructions that not every processor has.
macro_rules! sdot {
    ($sum:expr, $weight:expr, $act:expr, $form:literal) => {{
        let mut sum: int32x4_t = $sum;
        asm!(".arch_extension dotprod", concat!("sdot {sum:v}.4s, {weight:v}.16b, {act:v}", $form),
            sum = inout(vreg) sum, weight = in(vreg) $weight, act = in(vreg) $act,
            options(pure, nomem, nostack, preserves_flags));
        sum
    }};
}

impl Dot for Dotprod {
    type Few = Self;

    #[inline(always)]
    unsafe fn dot_16(sum: int32x4_t, weight: int8x16_t, act: int8x16_t) -> int32x4_t {
        // SAFETY: the processor has the instruction, which touches its operands alone.
        unsafe { sdot!(sum, weight, act, ".16b") }
    }

    /// Register i holds codes 4i to 4i + 3 of the four rows, so that a row's products end in a lane of its own.
    #[inline(always)]
    fn arrange_weights(rows: Four) -> [int8x16_t; REGISTERS] {
        let halves = [0, 1].map(|half| transposed(rows.map(|row| row[half])));
        std::array::from_fn(|i| halves[i / 4][i % 4])
    }
    #[inline(always)]
    fn arrange_steps(steps: [int8x16_t; REGISTERS]) -> [int8x16_t; REGISTERS] {
        steps
    }
    #[inline(always)]
    fn arrange_acts(vectors: Four) -> [int8x16_t; REGISTERS] {
        one_after_the_other(vectors)
    }

    /// Four operations for 64 products.
    #[inline(always)]
    unsafe fn add_half<const C: usize>(
        mut sums: [int32x4_t; C],
        weights: &[int8x16_t; REGISTERS],
        acts: *const i8,
        half: usize,
    ) -> [int32x4_t; C] {
        for (c, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the vectors' codes are there; the processor has the instruction.
            unsafe {
                let act = load(acts, 2 * c + half);
                *sum = sdot!(*sum, weights[4 * half], act, ".4b[0]");
                *sum = sdot!(*sum, weights[4 * half + 1], act, ".4b[1]");
                *sum = sdot!(*sum, weights[4 * half + 2], act, ".4b[2]");
                *sum = sdot!(*sum, weights[4 * half + 3], act, ".4b[3]");
            }
        }
        sums
    }

    #[inline(always)]
    fn of_rows<const C: usize>(rows: float32x4_t) -> [float32x4_t; C] {
        [rows; C]
    }
    #[inline(always)]
    fn of_vectors<const C: usize>(vectors: float32x4_t) -> [float32x4_t; C] {
        lanes(vectors)
    }
    #[inline(always)]
    fn by_vector<const C: usize>(sums: [float32x4_t; C]) -> [float32x4_t; C] {
        sums
    }
}

impl DotStrip for Dotprod {
    /// One operation for 16 products. Written out, since the compiler unrolls no loop around assembly.
    #[inline(always)]
    unsafe fn add_steps<const N: usize, const WIDE: bool>(
        mut sums: [int32x4_t; 2],
        steps: [[int8x16_t; N]; 2],
        act: [int8x16_t; 2],
    ) -> [int32x4_t; 2] {
        macro_rules! step {
            ($s:literal, $form:literal) => {
                // SAFETY: the processor has the instruction.
                unsafe {
                    sums[0] = sdot!(sums[0], steps[0][$s], act[$s / 4], $form);
                    sums[1] = sdot!(sums[1], steps[1][$s], act[$s / 4], $form);
                }
            };
        }
        step!(0, ".4b[0]");
        step!(1, ".4b[1]");
        step!(2, ".4b[2]");
        step!(3, ".4b[3]");
        if N == REGISTERS {
            step!(4, ".4b[0]");
            step!(5, ".4b[1]");
            step!(6, ".4b[2]");
            step!(7, ".4b[3]");
        }
        sums
    }
}

/// Registers 4p to 4p + 3: strips of 8 codes of rows 2p and 2p + 1.
#[inline(always)]
fn in_pairs(of: Four) -> [int8x16_t; REGISTERS] {
    // SAFETY: NEON is part of every 64-bit Arm.
    std::array::from_fn(|i| unsafe {
        let of = |r: usize| vreinterpretq_s64_s8(of[r][i % 4 / 2]);
        let (even, odd) = (of(i / 4 * 2), of(i / 4 * 2 + 1));
        vreinterpretq_s8_s64(if i % 2 == 0 { vtrn1q_s64(even, odd) } else { vtrn2q_s64(even, odd) })
    })
}

impl Dot for I8mm {
    /// A processor with `smmla` has `sdot`, which [`crate::kernels::Isa::available`] demands all the same.
    type Few = Dotprod;

    #[inline(always)]
    unsafe fn dot_16(sum: int32x4_t, weight: int8x16_t, act: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { Dotprod::dot_16(sum, weight, act) }
    }

    #[inline(always)]
    fn arrange_weights(rows: Four) -> [int8x16_t; REGISTERS] {
        in_pairs(rows)
    }
    #[inline(always)]
    fn arrange_steps(steps: [int8x16_t; REGISTERS]) -> [int8x16_t; REGISTERS] {
        // SAFETY: NEON is part of every 64-bit Arm.
        std::array::from_fn(|i| unsafe {
            let [first, second] = [0, 1].map(|k| vreinterpretq_s32_s8(steps[i % 4 * 2 + k]));
            vreinterpretq_s8_s32(if i < 4 { vzip1q_s32(first, second) } else { vzip2q_s32(first, second) })
        })
    }
    #[inline(always)]
    fn arrange_acts(vectors: Four) -> [int8x16_t; REGISTERS] {
        in_pairs(vectors)
    }

    /// Two operations for 64 products. A register of sums: row 2p with vectors 2q and 2q + 1, row 2p + 1 with both.
    #[inline(always)]
    unsafe fn add_half<const C: usize>(
        mut sums: [int32x4_t; C],
        weights: &[int8x16_t; REGISTERS],
        acts: *const i8,
        half: usize,
    ) -> [int32x4_t; C] {
        let pairs = C / 2;
        for strip in 2 * half..2 * half + 2 {
            for q in 0..pairs {
                // SAFETY: the vectors' codes are there.
                let act = unsafe { load(acts, 4 * q + strip) };
                for p in 0..STRIP / 2 {
                    let (sum, weight) = (&mut sums[p * pairs + q], weights[4 * p + strip]);
                    // SAFETY: the processor has the instruction, which touches its operands alone.
                    unsafe {
                        asm!(".arch_extension i8mm", "smmla {sum:v}.4s, {weight:v}.16b, {act:v}.16b",
                            sum = inout(vreg) *sum, weight = in(vreg) weight, act = in(vreg) act,
                            options(pure, nomem, nostack, preserves_flags));
                    }
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn of_rows<const C: usize>(rows: float32x4_t) -> [float32x4_t; C] {
        // SAFETY: NEON is part of every 64-bit Arm.
        let (low, high) = unsafe { (vzip1q_f32(rows, rows), vzip2q_f32(rows, rows)) };
        std::array::from_fn(|i| if i < C / 2 { low } else { high })
    }
    #[inline(always)]
    fn of_vectors<const C: usize>(vectors: float32x4_t) -> [float32x4_t; C] {
        // SAFETY: NEON is part of every 64-bit Arm.
        let (first, second) = unsafe {
            let (low, high) = (vget_low_f32(vectors), vget_high_f32(vectors));
            (vcombine_f32(low, low), vcombine_f32(high, high))
        };
        std::array::from_fn(|i| if i % (C / 2) == 0 { first } else { second })
    }
    #[inline(always)]
    fn by_vector<const C: usize>(sums: [float32x4_t; C]) -> [float32x4_t; C] {
        let pairs = C / 2;
        // SAFETY: NEON is part of every 64-bit Arm.
        std::array::from_fn(|c| unsafe {
            let (upper, lower) = (sums[c / 2], sums[pairs + c / 2]);
            if c % 2 == 0 { vuzp1q_f32(upper, lower) } else { vuzp2q_f32(upper, lower) }
        })
    }
}
