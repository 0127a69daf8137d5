//! How products of unsigned codes with signed activations are summed: in pairs and 16 bits, as AVX2 has it, or four at once
//! in 32 bits, which is `vpdpbusd`. That instruction has two encodings, one for processors without AVX-512 (AVX-VNNI) and
//! one for those with it; here both use registers of 32 bytes, so that everything around them is AVX2.
//!
//! Instructions of a step, which are 4 elements of 16 rows with a vector: with AVX2 one load that broadcasts, two
//! `vpmaddubsw` and two `vpaddw`, then for every 2 to 8 steps two `vpmaddwd` and two `vpaddd`; with `vpdpbusd` the load and
//! two of them, then for K types two `vpmulld` and two `vpaddd` for every part. Of a group of 4-bit codes that is 44 against
//! 24, or against 28 with the scales of a K type; of Q8_0, whose codes have signs, 72 against 24. The
//! tests emulate the instruction where the processor has none.
//!
//! Whole numbers are exact either way and floats are summed in one order, so a product has the same bits on all three.

use super::formats::{Format, Small};
use std::arch::asm;
use std::arch::x86_64::*;

/// A way to sum products.
pub(crate) trait Dot {
    /// Whether four products are summed in 32 bits at once. Where not, the other functions are never called.
    const FOUR: bool;

    /// Adds to each of eight sums the products of four codes with four activations.
    ///
    /// # Safety
    /// The processor has AVX2 and, where [`Self::FOUR`], the instruction.
    unsafe fn add(sums: __m256i, codes: __m256i, acts: __m256i) -> __m256i;

    /// As [`Self::add`], the four activations at `act` with two strips or one.
    ///
    /// # Safety
    /// As there; four activations are readable, and nothing else uses the sums. R is 1 or 2.
    unsafe fn step<const R: usize>(codes: [__m256i; R], act: *const i8, sums: [*mut __m256i; R]);
}

/// Without an instruction for it.
pub(crate) struct Pairs;
/// `vpdpbusd` as AVX-VNNI encodes it.
pub(crate) struct Vex;
/// `vpdpbusd` as AVX-512 VNNI with VL encodes it.
pub(crate) struct Evex;

impl Dot for Pairs {
    const FOUR: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add(_: __m256i, _: __m256i, _: __m256i) -> __m256i {
        unreachable!("pairs are summed in 16 bits")
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn step<const R: usize>(_: [__m256i; R], _: *const i8, _: [*mut __m256i; R]) {
        unreachable!("pairs are summed in 16 bits")
    }
}

/// One encoding of `vpdpbusd`. In assembly, so that it takes registers alone, the first sixteen: that is what the tests
/// can emulate, and the features of everything around it stay those of AVX2.
macro_rules! dot_by {
    ($name:ident, $encoding:literal) => {
        impl Dot for $name {
            const FOUR: bool = true;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn add(sums: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
                let mut sums = sums;
                // SAFETY: the instruction is there, by this function's contract, and touches its operands alone.
                unsafe {
                    asm!(
                        concat!($encoding, " vpdpbusd {sums}, {codes}, {acts}"),
                        sums = inout(ymm_reg) sums,
                        codes = in(ymm_reg) codes,
                        acts = in(ymm_reg) acts,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                sums
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn step<const R: usize>(codes: [__m256i; R], act: *const i8, sums: [*mut __m256i; R]) {
                // SAFETY: contract of this function.
                unsafe {
                    if R == 2 {
                        asm!(
                            "vpbroadcastd {act}, dword ptr [{at}]",
                            concat!($encoding, " vpdpbusd {s0}, {c0}, {act}"),
                            concat!($encoding, " vpdpbusd {s1}, {c1}, {act}"),
                            at = in(reg) act,
                            act = out(ymm_reg) _,
                            c0 = in(ymm_reg) codes[0],
                            c1 = in(ymm_reg) codes[R - 1],
                            s0 = inout(ymm_reg) *sums[0],
                            s1 = inout(ymm_reg) *sums[R - 1],
                            options(nostack, preserves_flags, readonly),
                        );
                    } else {
                        asm!(
                            "vpbroadcastd {act}, dword ptr [{at}]",
                            concat!($encoding, " vpdpbusd {s0}, {c0}, {act}"),
                            at = in(reg) act,
                            act = out(ymm_reg) _,
                            c0 = in(ymm_reg) codes[0],
                            s0 = inout(ymm_reg) *sums[0],
                            options(nostack, preserves_flags, readonly),
                        );
                    }
                }
            }
        }
    };
}

dot_by!(Vex, "{{vex}}");
dot_by!(Evex, "{{evex}}");

/// Steps that are taken off every code of blocks of 32 in strips: those of the format, or what [`unsigned`] added. With
/// the latter too a product has the bits that it has without: a group's sum of activations is exact in single precision,
/// since its scale is a half-precision number, and both terms are rounded once, together.
pub(super) const fn steps<F: Small, D: Dot>() -> f32 {
    if D::FOUR && F::SIGNED { 128.0 } else { F::STEPS }
}

/// Codes as `vpdpbusd` takes them: those with signs get 128 added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unsigned<F: Format, D: Dot>(codes: __m256i) -> __m256i {
    if D::FOUR && F::SIGNED { _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) } else { codes }
}

/// Eight sums times the scale that each of their lanes holds twice, in 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn weighed(sums: __m256i, scales: __m256i) -> __m256i {
    _mm256_mullo_epi32(sums, _mm256_srai_epi32::<16>(scales))
}
