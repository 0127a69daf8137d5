//! How each block format unpacks into groups of 32 codes.

use std::arch::x86_64::*;

/// A block format as groups of 32 codes.
pub(super) trait Format {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether codes are signed.
    const SIGNED: bool = false;
    /// Bits of a code.
    const BITS: usize;
    /// How many sums of two products 16 bits hold, the largest code times 127 each; whole steps of a group.
    const DEPTH: usize;

    /// Codes of group `g`, in element order.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; `block` has [`Format::BYTES`] bytes and `g` is one of its groups.
    unsafe fn codes(block: &[u8], g: usize) -> __m256i;
}

/// A format with blocks of 32, one group: a half-precision scale first, after it a minimum or nothing.
pub(super) trait Small: Format {
    /// Steps that are taken off every code.
    const STEPS: f32 = 0.0;
    /// Whether a half-precision minimum follows the scale: `value = scale x code + minimum`.
    const MINIMUM: bool = false;
}

/// Scales and offsets of a block's parts, ready for whole-number arithmetic.
pub(super) struct LargeHead {
    /// Sub-block scales as 16-bit numbers: lane pair `g` of either half holds the scale of that half of group `g`.
    pub scales: __m256i,
    /// What is taken off for each part in order, as 16-bit numbers: its minimum, or where the format has none its scale
    /// [`Large::STEPS`] times. Groups have them in the lower eight lanes.
    pub offsets: __m256i,
}

/// A format with blocks of 256, whose sub-block scales are whole numbers.
pub(super) trait Large: Format {
    /// Whether the halves of a group have scales of their own.
    const HALVES: bool = false;
    /// Where the half-precision scale of the block is.
    const SCALE_AT: usize;
    /// Whether parts have minimums of their own, and where the half-precision scale of these is. Otherwise
    /// [`Self::STEPS`] are taken off every code.
    const MINIMUMS: bool = Self::STEPS == 0;
    /// See [`Self::MINIMUMS`].
    const MINIMUM_AT: usize = 0;
    /// Steps that are taken off every code, where parts have no minimums: a power of two.
    const STEPS: u32 = 0;
    /// Whether scales of parts have a sign: those without minimums.
    const SIGNED_SCALES: bool = !Self::MINIMUMS;

    /// Scales and minimums of the parts (groups or half groups) as stored, in order.
    fn parts(block: &[u8]) -> ([i8; 16], [u8; 16]);

    /// The block's scales and offsets.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; `block` has [`Format::BYTES`] bytes.
    unsafe fn head(block: &[u8]) -> LargeHead;
}

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

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_16(at: *const u8) -> __m128i {
    // SAFETY: the caller gives 16 readable bytes.
    unsafe { _mm_loadu_si128(at.cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_32(at: *const u8) -> __m256i {
    // SAFETY: the caller gives 32 readable bytes.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// 16 bytes of nibbles: low ones are elements 0 to 15, high ones 16 to 31.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles(at: *const u8) -> __m256i {
    // SAFETY: the caller gives 16 readable bytes.
    let twice = _mm256_broadcastsi128_si256(unsafe { load_16(at) });
    let shifted = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    _mm256_and_si256(shifted, _mm256_set1_epi8(15))
}

/// 16 scales of 8 bits in order, as [`LargeHead::scales`]: even ones in the lower half, odd ones in the upper.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_halves(scales: __m128i) -> __m256i {
    let apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, apart))
}

/// A block whose parts have scales with signs and no minimums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed_head(scales: __m128i) -> LargeHead {
    LargeHead { scales: by_halves(scales), offsets: _mm256_cvtepi8_epi16(scales) }
}

/// Bit j of `bits` becomes 16 in byte j.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_fifth(bits: u32) -> __m256i {
    let all = _mm256_set1_epi32(bits as i32);
    let which = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let byte = _mm256_shuffle_epi8(all, which);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, bit), bit);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

impl Format for Q4_0 {
    const BYTES: usize = 18;
    const BITS: usize = 4;
    const DEPTH: usize = 8;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], _: usize) -> __m256i {
        // SAFETY: the block has 18 bytes.
        unsafe { nibbles(block.as_ptr().add(2)) }
    }
}

impl Small for Q4_0 {
    const STEPS: f32 = 8.0;
}

impl Format for Q4_1 {
    const BYTES: usize = 20;
    const BITS: usize = 4;
    const DEPTH: usize = 8;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], _: usize) -> __m256i {
        // SAFETY: the block has 20 bytes.
        unsafe { nibbles(block.as_ptr().add(4)) }
    }
}

impl Small for Q4_1 {
    const MINIMUM: bool = true;
}

impl Format for Q5_0 {
    const BYTES: usize = 22;
    const BITS: usize = 5;
    const DEPTH: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], _: usize) -> __m256i {
        // SAFETY: the block has 22 bytes.
        _mm256_or_si256(unsafe { nibbles(block.as_ptr().add(6)) }, spread_fifth(word_at(block, 2)))
    }
}

impl Small for Q5_0 {
    const STEPS: f32 = 16.0;
}

impl Format for Q5_1 {
    const BYTES: usize = 24;
    const BITS: usize = 5;
    const DEPTH: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], _: usize) -> __m256i {
        // SAFETY: the block has 24 bytes.
        _mm256_or_si256(unsafe { nibbles(block.as_ptr().add(8)) }, spread_fifth(word_at(block, 4)))
    }
}

impl Small for Q5_1 {
    const MINIMUM: bool = true;
}

impl Format for Q8_0 {
    const BYTES: usize = 34;
    const BITS: usize = 8;
    const SIGNED: bool = true;
    const DEPTH: usize = 1;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], _: usize) -> __m256i {
        // SAFETY: the block has 34 bytes.
        unsafe { load_32(block.as_ptr().add(2)) }
    }
}

impl Small for Q8_0 {}

/// Scales and minimums of Q4_K and Q5_K: the 12 packed bytes four at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn six_bit_head(block: &[u8]) -> LargeHead {
    let (scales, mins, rest) = (word_at(block, 4), word_at(block, 8), word_at(block, 12));
    let (low_six, low_four, high_two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    let packed = _mm_setr_epi32(
        (scales & low_six) as i32,
        (rest & low_four | ((scales >> 6) & high_two) << 4) as i32,
        (mins & low_six) as i32,
        ((rest >> 4) & low_four | ((mins >> 6) & high_two) << 4) as i32,
    );
    LargeHead {
        scales: _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(packed)),
        offsets: _mm256_zextsi128_si256(_mm_cvtepu8_epi16(_mm_unpackhi_epi64(packed, packed))),
    }
}

/// Scales and minimums of Q4_K and Q5_K one by one.
fn six_bit_parts(block: &[u8]) -> ([i8; 16], [u8; 16]) {
    let mut parts = ([0; 16], [0; 16]);
    for g in 0..8 {
        let (scale, minimum) = crate::quant::scale_min_6bit(&block[4..16], g);
        (parts.0[g], parts.1[g]) = (scale as i8, minimum);
    }
    parts
}

/// Nibbles of group `g` of Q4_K and Q5_K: two groups share 32 bytes, the even one in the low nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn paired_nibbles(at: *const u8, g: usize) -> __m256i {
    // SAFETY: the caller gives 128 readable bytes and g below 8.
    let bytes = unsafe { load_32(at.add(g / 2 * 32)) };
    let bytes = if g % 2 == 1 { _mm256_srli_epi16::<4>(bytes) } else { bytes };
    _mm256_and_si256(bytes, _mm256_set1_epi8(15))
}

impl Format for Q4K {
    const BYTES: usize = 144;
    const BITS: usize = 4;
    const DEPTH: usize = 8;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], g: usize) -> __m256i {
        // SAFETY: the block has 144 bytes, g is below 8.
        unsafe { paired_nibbles(block.as_ptr().add(16), g) }
    }
}

impl Large for Q4K {
    const SCALE_AT: usize = 0;
    const MINIMUM_AT: usize = 2;

    fn parts(block: &[u8]) -> ([i8; 16], [u8; 16]) {
        six_bit_parts(block)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(block: &[u8]) -> LargeHead {
        six_bit_head(block)
    }
}

impl Format for Q5K {
    const BYTES: usize = 176;
    const BITS: usize = 5;
    const DEPTH: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], g: usize) -> __m256i {
        // SAFETY: the block has 176 bytes, g is below 8.
        let (low, high) = unsafe { (paired_nibbles(block.as_ptr().add(48), g), load_32(block.as_ptr().add(16))) };
        let bit = _mm256_set1_epi8((1u8 << g) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)))
    }
}

impl Large for Q5K {
    const SCALE_AT: usize = 0;
    const MINIMUM_AT: usize = 2;

    fn parts(block: &[u8]) -> ([i8; 16], [u8; 16]) {
        six_bit_parts(block)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(block: &[u8]) -> LargeHead {
        six_bit_head(block)
    }
}

/// 2-bit codes of group `g` of Q2_K and Q3_K: 32 bytes hold four groups, one a pair of bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn two_bit_plane(at: *const u8, g: usize) -> __m256i {
    // SAFETY: the caller gives 64 readable bytes and g below 8.
    let bytes = unsafe { load_32(at.add(g / 4 * 32)) };
    let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * (g % 4) as i32));
    _mm256_and_si256(shifted, _mm256_set1_epi8(3))
}

impl Format for Q2K {
    const BYTES: usize = 84;
    const BITS: usize = 2;
    const DEPTH: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], g: usize) -> __m256i {
        // SAFETY: the block has 84 bytes, g is below 8.
        unsafe { two_bit_plane(block.as_ptr().add(16), g) }
    }
}

impl Large for Q2K {
    const HALVES: bool = true;
    const SCALE_AT: usize = 80;
    const MINIMUM_AT: usize = 82;

    fn parts(block: &[u8]) -> ([i8; 16], [u8; 16]) {
        (std::array::from_fn(|i| (block[i] & 15) as i8), std::array::from_fn(|i| block[i] >> 4))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(block: &[u8]) -> LargeHead {
        // SAFETY: the block has 84 bytes, 16 of them scales in low and minimums in high nibbles.
        let both = unsafe { load_16(block.as_ptr()) };
        let low = _mm_set1_epi8(15);
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(both), low);
        LargeHead { scales: by_halves(_mm_and_si128(both, low)), offsets: _mm256_cvtepu8_epi16(mins) }
    }
}

impl Format for Q3K {
    const BYTES: usize = 110;
    const BITS: usize = 3;
    const DEPTH: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], g: usize) -> __m256i {
        // SAFETY: the block has 110 bytes, g is below 8.
        let (low, mask) = unsafe { (two_bit_plane(block.as_ptr().add(32), g), load_32(block.as_ptr())) };
        let bit = _mm256_set1_epi8((1u8 << g) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(mask, bit), bit);
        _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(4)))
    }
}

impl Large for Q3K {
    const HALVES: bool = true;
    const SCALE_AT: usize = 108;
    const STEPS: u32 = 4;

    fn parts(block: &[u8]) -> ([i8; 16], [u8; 16]) {
        (crate::quant::q3_k_scales(&block[96..108]), [0; 16])
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(block: &[u8]) -> LargeHead {
        let scales = crate::quant::q3_k_scales(&block[96..108]);
        // SAFETY: there are 16 scales.
        let scales = unsafe { load_16(scales.as_ptr().cast()) };
        signed_head(scales)
    }
}

impl Format for Q6K {
    const BYTES: usize = 210;
    const BITS: usize = 6;
    const DEPTH: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: &[u8], g: usize) -> __m256i {
        let (part, row) = (g / 4, g % 4);
        // SAFETY: the block has 210 bytes: 128 of low nibbles, then 64 of high pairs; g is below 8.
        let (low, high) = unsafe {
            (load_32(block.as_ptr().add(part * 64 + row % 2 * 32)), load_32(block.as_ptr().add(128 + part * 32)))
        };
        let low = if row >= 2 { _mm256_srli_epi16::<4>(low) } else { low };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * row as i32));
        let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
        _mm256_or_si256(low, high)
    }
}

impl Large for Q6K {
    const HALVES: bool = true;
    const SCALE_AT: usize = 208;
    const STEPS: u32 = 32;

    fn parts(block: &[u8]) -> ([i8; 16], [u8; 16]) {
        (std::array::from_fn(|i| block[192 + i] as i8), [0; 16])
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(block: &[u8]) -> LargeHead {
        // SAFETY: the block has 210 bytes, 16 scales from byte 192 on.
        let scales = unsafe { load_16(block.as_ptr().add(192)) };
        signed_head(scales)
    }
}
