//! How the elements of cached rows come out of memory.

use super::BLOCK;
use std::arch::asm;
use std::arch::x86_64::*;

/// An element type, seen as blocks of 32 = 4 vectors of 8.
pub trait Stored {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether elements are codes that a block's scale has yet to meet.
    const SCALED: bool;

    /// The block's scale in all lanes; anything when there is none.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; a block can be read from `block` on.
    unsafe fn scale(block: *const u8) -> __m256;

    /// Elements 8 i to 8 i + 7, without their scale.
    ///
    /// # Safety
    /// As [`Self::scale`], up to those elements.
    unsafe fn eight(block: *const u8, i: usize) -> __m256;
}

/// An element type of whole-number codes.
pub trait Coded: Stored {
    /// Steps by which unsigned codes are larger than what they stand for.
    const STEPS: i32;

    /// The 32 codes of a block.
    ///
    /// # Safety
    /// As [`Stored::scale`].
    unsafe fn codes(block: *const u8) -> __m256i;

    /// Eight sums of four products each of codes with signed ones of at most 127.
    ///
    /// # Safety
    /// The processor has AVX2.
    unsafe fn products(codes: __m256i, query: __m256i) -> __m256i;
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
/// The processor has AVX2, FMA and F16C; the row has those elements, and they are of one block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn eight_at<S: Stored>(row: *const u8, d: usize) -> __m256 {
    // SAFETY: by the caller's promise.
    unsafe {
        let block = row.add(d / BLOCK * S::BYTES);
        let eight = S::eight(block, d % BLOCK / 8);
        if S::SCALED { _mm256_mul_ps(eight, S::scale(block)) } else { eight }
    }
}

/// The scales of four coded blocks.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; each block has its two bytes of scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn four_scales(blocks: [*const u8; 4]) -> __m128 {
    // SAFETY: by the caller's promise; scales need no alignment.
    let half = blocks.map(|block| unsafe { block.cast::<i16>().read_unaligned() });
    _mm_cvtph_ps(_mm_setr_epi16(half[0], half[1], half[2], half[3], 0, 0, 0, 0))
}

/// A coded block's scale in all lanes.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; the block has its two bytes of scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale_of_block(block: *const u8) -> __m256 {
    // SAFETY: by the caller's promise; scales need no alignment.
    _mm256_cvtph_ps(_mm_set1_epi16(unsafe { block.cast::<i16>().read_unaligned() }))
}

/// Makes the compiler read nothing at `at` before it has computed `value`; costs no instruction. Left to itself, it
/// reads early and then has no register for one of the sums, whose way through memory takes longer than all other work
/// of a round.
#[allow(clippy::pointers_in_nomem_asm_block)] // nothing is read or written there
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn wait(at: &mut *const u8, value: &mut __m256) {
    // SAFETY: there is no instruction in it.
    unsafe { asm!("/* {0} {1} */", inout(reg) * at, inout(ymm_reg) * value, options(nomem, nostack, preserves_flags)) };
}

impl Stored for F16 {
    const BYTES: usize = 64;
    const SCALED: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale(_: *const u8) -> __m256 {
        _mm256_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(block: *const u8, i: usize) -> __m256 {
        // SAFETY: by the caller's promise; the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(block.add(16 * i).cast())) }
    }
}

impl Stored for Q8_0 {
    const BYTES: usize = 34;
    const SCALED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale(block: *const u8) -> __m256 {
        // SAFETY: by the caller's promise.
        unsafe { scale_of_block(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(block: *const u8, i: usize) -> __m256 {
        // SAFETY: by the caller's promise; the load needs no alignment.
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(block.add(2 + 8 * i).cast()) }))
    }
}

impl Coded for Q8_0 {
    const STEPS: i32 = 0;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: *const u8) -> __m256i {
        // SAFETY: by the caller's promise; the load needs no alignment.
        unsafe { _mm256_loadu_si256(block.add(2).cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn products(codes: __m256i, query: __m256i) -> __m256i {
        // no code is -128, so a pair of products is at most 2 x 127 x 127 and fits 16 bits
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(query, codes));
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }
}

impl Stored for Q4_0 {
    const BYTES: usize = 18;
    const SCALED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale(block: *const u8) -> __m256 {
        // SAFETY: by the caller's promise.
        unsafe { scale_of_block(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(block: *const u8, i: usize) -> __m256 {
        // SAFETY: by the caller's promise; the load needs no alignment.
        let bytes = unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(block.add(2 + i % 2 * 8).cast())) };
        let codes = if i < 2 { _mm256_and_si256(bytes, _mm256_set1_epi32(15)) } else { _mm256_srli_epi32::<4>(bytes) };
        _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(8)))
    }
}

impl Coded for Q4_0 {
    const STEPS: i32 = 8;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes(block: *const u8) -> __m256i {
        // SAFETY: by the caller's promise; the load needs no alignment.
        let bytes = unsafe { _mm_loadu_si128(block.add(2).cast()) };
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn products(codes: __m256i, query: __m256i) -> __m256i {
        _mm256_madd_epi16(_mm256_maddubs_epi16(codes, query), _mm256_set1_epi16(1))
    }
}
