//! How each block format unpacks into groups of 32 signed codes.

use std::arch::aarch64::*;

/// A block format as groups of 32 codes.
pub(super) trait Format {
    /// Bytes of a block.
    const BYTES: usize;
    /// Bits of a code.
    const BITS: usize;
    /// Steps by which a code as stored is larger than what it stands for, which [`Format::codes`] gives.
    const STEPS: i8 = 0;
    /// Bits by which [`Format::codes`] are shifted to the left.
    const SHIFT: usize = 0;
    /// Whether none of [`Format::codes`] is larger than 64 in magnitude.
    const NARROW: bool = true;

    /// Codes of group `G`, in element order.
    ///
    /// # Safety
    /// `block` has [`Format::BYTES`] bytes and `G` is one of its groups.
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2];
}

/// A format with blocks of 32, one group: a half-precision scale first, after it a minimum or nothing.
pub(super) trait Small: Format {
    /// `value = scale x factor x code`
    const FACTOR: f32 = 1.0 / (1 << Self::SHIFT) as f32;
    /// Whether a half-precision minimum follows the scale, which every value has on top.
    const MINIMUM: bool = false;
}

/// Scales of a block of 256.
pub(super) struct LargeHead {
    /// Whole-number scales of each half group in order, or in the first eight lanes of each group.
    pub scales: [int32x4_t; 4],
    /// Whole-number minimums in the same order.
    pub minimums: [int32x4_t; 4],
}

/// A format with blocks of 256, whose sub-block scales are whole numbers.
pub(super) trait Large: Format {
    /// Where the block's half-precision scale is.
    const SCALE_AT: usize;
    /// Whether the halves of a group have scales of their own.
    const HALVES: bool = false;
    /// Whether values have something taken off: `value = scale x sub-block scale x code - minimum`, and where the
    /// half-precision number is that whole-number minimums are multiples of.
    const MINIMUM: bool = Self::MINIMUM_AT != 0;
    /// See [`Large::MINIMUM`].
    const MINIMUM_AT: usize = 0;

    /// The block's sub-block scales and minimums.
    ///
    /// # Safety
    /// `block` has [`Format::BYTES`] bytes.
    unsafe fn head(block: *const u8) -> LargeHead;
}

/// Runs the body for the eight groups of a block, the group's number a constant, so that its shifts are immediate.
macro_rules! each_group {
    ($group:ident => $body:block) => {
        each_group!($group => $body, 0 1 2 3 4 5 6 7)
    };
    ($group:ident => $body:block, $($number:literal)*) => {{
        $({
            const $group: usize = $number;
            $body
        })*
    }};
}
pub(super) use each_group;

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;

/// # Safety
/// 32 bytes can be read.
#[inline(always)]
unsafe fn load_32(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { [vld1q_u8(at), vld1q_u8(at.add(16))] }
}

/// # Safety
/// Four bytes can be read.
#[inline(always)]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<u32>().read_unaligned() }
}

#[inline(always)]
fn signed(codes: [uint8x16_t; 2]) -> [int8x16_t; 2] {
    // SAFETY: NEON is part of every 64-bit Arm.
    codes.map(|c| unsafe { vreinterpretq_s8_u8(c) })
}

/// 16 bytes of nibbles: low ones are elements 0 to 15, high ones 16 to 31. Two operations.
///
/// # Safety
/// 16 bytes can be read.
#[inline(always)]
unsafe fn nibbles(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let both = vld1q_u8(at);
        [vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both)]
    }
}

/// All bits of a byte for each bit that is set in the four bytes at `at`, in order.
///
/// # Safety
/// Four bytes can be read.
#[inline(always)]
unsafe fn fifth_set(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise; NEON is part of every 64-bit Arm.
    unsafe {
        let bits = vreinterpretq_u8_u32(vdupq_n_u32(word(at)));
        let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let which = |first: u64| {
            let low = first * 0x0101_0101_0101_0101;
            vcombine_u8(vcreate_u8(low), vcreate_u8(low + 0x0101_0101_0101_0101))
        };
        [vtstq_u8(vqtbl1q_u8(bits, which(0)), bit), vtstq_u8(vqtbl1q_u8(bits, which(2)), bit)]
    }
}

/// `low`, with `bits` on top where `set` has all bits.
#[inline(always)]
fn on_where<const BITS: u8>(low: [uint8x16_t; 2], set: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: NEON is part of every 64-bit Arm.
    std::array::from_fn(|i| unsafe { vorrq_u8(low[i], vandq_u8(set[i], vdupq_n_u8(BITS))) })
}

/// `low`, with `bits` on top where `set` has none: with the upper bits of a byte, that takes a power of two off.
#[inline(always)]
fn off_where_not<const BITS: u8>(low: [uint8x16_t; 2], set: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: NEON is part of every 64-bit Arm.
    std::array::from_fn(|i| unsafe { vorrq_u8(low[i], vbicq_u8(vdupq_n_u8(BITS), set[i])) })
}

impl Format for Q4_0 {
    const BYTES: usize = 18;
    const BITS: usize = 4;
    const STEPS: i8 = 8;
    const SHIFT: usize = 4;
    const NARROW: bool = false;
    /// With its top bit turned, a nibble is its value as a signed number of 4 bits; as the upper half of a byte it is 16
    /// times that. Three operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 18 bytes.
        unsafe {
            let both = veorq_u8(vld1q_u8(block.add(2)), vdupq_n_u8(0x88));
            signed([vshlq_n_u8::<4>(both), vandq_u8(both, vdupq_n_u8(0xf0))])
        }
    }
}

impl Small for Q4_0 {}

impl Format for Q4_1 {
    const BYTES: usize = 20;
    const BITS: usize = 4;
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 20 bytes.
        signed(unsafe { nibbles(block.add(4)) })
    }
}

impl Small for Q4_1 {
    const MINIMUM: bool = true;
}

impl Format for Q5_0 {
    const BYTES: usize = 22;
    const BITS: usize = 5;
    const STEPS: i8 = 16;
    /// Ten operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 22 bytes.
        signed(unsafe { off_where_not::<0xf0>(nibbles(block.add(6)), fifth_set(block.add(2))) })
    }
}

impl Small for Q5_0 {}

impl Format for Q5_1 {
    const BYTES: usize = 24;
    const BITS: usize = 5;
    /// Ten operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 24 bytes.
        signed(unsafe { on_where::<16>(nibbles(block.add(8)), fifth_set(block.add(4))) })
    }
}

impl Small for Q5_1 {
    const MINIMUM: bool = true;
}

impl Format for Q8_0 {
    const BYTES: usize = 34;
    const BITS: usize = 8;
    const NARROW: bool = false;
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 34 bytes.
        signed(unsafe { load_32(block.add(2)) })
    }
}

impl Small for Q8_0 {}

/// Eight numbers without sign.
#[inline(always)]
fn wide(bytes: uint8x8_t) -> [uint32x4_t; 2] {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        let halves = vmovl_u8(bytes);
        [vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves)]
    }
}

/// Sixteen numbers with sign.
#[inline(always)]
fn wide_signed(bytes: int8x16_t) -> [int32x4_t; 4] {
    // SAFETY: NEON is part of every 64-bit Arm.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
    }
}

/// For formats without minimums.
#[inline(always)]
fn nothing_off() -> [int32x4_t; 4] {
    // SAFETY: NEON is part of every 64-bit Arm.
    [unsafe { vdupq_n_s32(0) }; 4]
}

/// Scales and minimums of Q4_K and Q5_K: the 12 packed bytes four at a time.
///
/// # Safety
/// 16 bytes can be read.
#[inline(always)]
unsafe fn six_bit_head(block: *const u8) -> LargeHead {
    // SAFETY: the caller's promise; NEON is part of every 64-bit Arm.
    unsafe {
        let (scales, mins, rest) = (word(block.add(4)), word(block.add(8)), word(block.add(12)));
        let (low_six, low_four, high_two) = (0x3f3f_3f3fu32, 0x0f0f_0f0fu32, 0x0303_0303u32);
        let eight = |low: u32, high: u32| vcreate_u8(u64::from(low) | u64::from(high) << 32);
        let scales_8 = eight(scales & low_six, rest & low_four | (scales >> 6 & high_two) << 4);
        let mins_8 = eight(mins & low_six, rest >> 4 & low_four | (mins >> 6 & high_two) << 4);
        let scales = wide(scales_8).map(|s| vreinterpretq_s32_u32(s));
        let mins = wide(mins_8).map(|m| vreinterpretq_s32_u32(m));
        LargeHead {
            scales: [scales[0], scales[1], scales[0], scales[1]],
            minimums: [mins[0], mins[1], mins[0], mins[1]],
        }
    }
}

/// Nibbles of group `G` of Q4_K and Q5_K: two groups share 32 bytes, the even one in the low nibbles.
///
/// # Safety
/// 128 bytes can be read.
#[inline(always)]
unsafe fn paired_nibbles<const G: usize>(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let both = load_32(at.add(G / 2 * 32));
        both.map(|b| if G.is_multiple_of(2) { vandq_u8(b, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(b) })
    }
}

impl Format for Q4K {
    const BYTES: usize = 144;
    const BITS: usize = 4;
    /// Two operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 144 bytes.
        signed(unsafe { paired_nibbles::<G>(block.add(16)) })
    }
}

impl Large for Q4K {
    const SCALE_AT: usize = 0;
    const MINIMUM_AT: usize = 2;
    #[inline(always)]
    unsafe fn head(block: *const u8) -> LargeHead {
        // SAFETY: the block has 144 bytes.
        unsafe { six_bit_head(block) }
    }
}

/// All bits of a byte where bit `G` of the 32 bytes at `at` is set.
///
/// # Safety
/// 32 bytes can be read.
#[inline(always)]
unsafe fn bit_set<const G: usize>(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { load_32(at).map(|bits| vtstq_u8(bits, vdupq_n_u8(1 << G))) }
}

impl Format for Q5K {
    const BYTES: usize = 176;
    const BITS: usize = 5;
    /// Eight operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 176 bytes.
        signed(unsafe { on_where::<16>(paired_nibbles::<G>(block.add(48)), bit_set::<G>(block.add(16))) })
    }
}

impl Large for Q5K {
    const SCALE_AT: usize = 0;
    const MINIMUM_AT: usize = 2;
    #[inline(always)]
    unsafe fn head(block: *const u8) -> LargeHead {
        // SAFETY: the block has 176 bytes.
        unsafe { six_bit_head(block) }
    }
}

/// 2-bit codes of group `G` of Q2_K and Q3_K: 32 bytes hold four groups, one a pair of bits.
///
/// # Safety
/// 64 bytes can be read.
#[inline(always)]
unsafe fn two_bit_plane<const G: usize>(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        load_32(at.add(G / 4 * 32)).map(|bytes| {
            let low = vdupq_n_u8(3);
            match G % 4 {
                0 => vandq_u8(bytes, low),
                1 => vandq_u8(vshrq_n_u8::<2>(bytes), low),
                2 => vandq_u8(vshrq_n_u8::<4>(bytes), low),
                _ => vshrq_n_u8::<6>(bytes),
            }
        })
    }
}

impl Format for Q2K {
    const BYTES: usize = 84;
    const BITS: usize = 2;
    /// Four operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 84 bytes.
        signed(unsafe { two_bit_plane::<G>(block.add(16)) })
    }
}

impl Large for Q2K {
    const SCALE_AT: usize = 80;
    const HALVES: bool = true;
    const MINIMUM_AT: usize = 82;
    #[inline(always)]
    unsafe fn head(block: *const u8) -> LargeHead {
        // SAFETY: the block has 84 bytes, 16 of them scales in low and minimums in high nibbles.
        unsafe {
            let [scales, mins] = nibbles(block);
            LargeHead {
                scales: wide_signed(vreinterpretq_s8_u8(scales)),
                minimums: wide_signed(vreinterpretq_s8_u8(mins)),
            }
        }
    }
}

impl Format for Q3K {
    const BYTES: usize = 110;
    const BITS: usize = 3;
    const STEPS: i8 = 4;
    /// Ten operations.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the block has 110 bytes.
        signed(unsafe { off_where_not::<0xfc>(two_bit_plane::<G>(block.add(32)), bit_set::<G>(block)) })
    }
}

impl Large for Q3K {
    const SCALE_AT: usize = 108;
    const HALVES: bool = true;
    /// As [`crate::quant::dequantise_row`] unpacks them, four bytes at a time.
    #[inline(always)]
    unsafe fn head(block: *const u8) -> LargeHead {
        // SAFETY: the block has 110 bytes; NEON is part of every 64-bit Arm.
        unsafe {
            let (first, second, high) = (word(block.add(96)), word(block.add(100)), word(block.add(104)));
            let (low_four, high_two) = (0x0f0f_0f0fu32, 0x0303_0303u32);
            let four = |low: u32, shift: u32| u64::from(low & low_four | (high >> shift & high_two) << 4);
            let (low, upper) =
                (four(first, 0) | four(second, 2) << 32, four(first >> 4, 4) | four(second >> 4, 6) << 32);
            let sixteen = vreinterpretq_s8_u8(vcombine_u8(vcreate_u8(low), vcreate_u8(upper)));
            LargeHead { scales: wide_signed(vsubq_s8(sixteen, vdupq_n_s8(32))), minimums: nothing_off() }
        }
    }
}

impl Format for Q6K {
    const BYTES: usize = 210;
    const BITS: usize = 6;
    const STEPS: i8 = 32;
    /// Ten operations, eight for some groups.
    #[inline(always)]
    unsafe fn codes<const G: usize>(block: *const u8) -> [int8x16_t; 2] {
        let (part, row) = (G / 4, G % 4);
        // SAFETY: the block has 210 bytes: 128 of low nibbles, then 64 of high pairs.
        unsafe {
            let low = load_32(block.add(part * 64 + row % 2 * 32));
            let high = load_32(block.add(128 + part * 32));
            std::array::from_fn(|i| {
                let low = if row >= 2 { vshrq_n_u8::<4>(low[i]) } else { vandq_u8(low[i], vdupq_n_u8(15)) };
                let high = match row {
                    0 => vshlq_n_u8::<4>(high[i]),
                    1 => vshlq_n_u8::<2>(high[i]),
                    2 => high[i],
                    _ => vshrq_n_u8::<2>(high[i]),
                };
                let code = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30)));
                vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32))
            })
        }
    }
}

impl Large for Q6K {
    const SCALE_AT: usize = 208;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn head(block: *const u8) -> LargeHead {
        // SAFETY: the block has 210 bytes, 16 scales from byte 192 on.
        unsafe { LargeHead { scales: wide_signed(vld1q_s8(block.add(192).cast())), minimums: nothing_off() } }
    }
}
