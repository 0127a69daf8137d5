//! Loops that do one thing only: read memory, multiply and add floats, multiply and add bytes.
//!
//! With AVX2 the int8 loop has the instructions of the matrix products, `vpdpbusd` where the processor has it: unsigned
//! codes from a register, signed activations from the first-level cache. Where there is no form for an instruction set, plain Rust serves, as the
//! compiler vectorises it for the target's baseline; what ran is said by the `..._instructions` functions.

use crate::kernels::Isa;
use std::hint::black_box;

/// Turns of the f32 loop in a unit.
const F32_TURNS: usize = 1 << 17;
/// Floats that are multiplied and added in a turn: enough independent sums to hide the latency of two pipes.
const F32_LANES: usize = 96;
/// Operations of [`f32_unit`], a multiply-add being two.
pub const F32_UNIT_OPERATIONS: u64 = 2 * (F32_TURNS * F32_LANES) as u64;

/// Turns over the codes in a unit.
const INT8_TURNS: usize = 1 << 12;
/// Codes of a turn; they stay in the first-level cache.
const INT8_CODES: usize = 4096;
/// Operations of [`int8_unit`], a multiply-add being two.
pub const INT8_UNIT_OPERATIONS: u64 = 2 * (INT8_TURNS * INT8_CODES) as u64;

/// What [`read`] is made of.
pub fn read_instructions(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        _ if isa.has_avx2() => "avx2: 32-byte loads, paddq",
        _ => "plain Rust: 8-byte loads and adds, as the compiler vectorises them",
    }
}

/// What [`f32_unit`] is made of.
pub fn f32_instructions(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        _ if isa.has_avx2() => "avx2 + fma: vfmadd on 8 floats",
        _ if cfg!(target_arch = "aarch64") => "neon: fmla on 4 floats",
        _ => "plain Rust: multiply, then add, as the compiler vectorises them",
    }
}

/// What [`int8_unit`] is made of.
pub fn int8_instructions(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "avx2: pmaddubsw, pmaddwd, paddd on 32 bytes",
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => "avxvnni: vpdpbusd on 32 bytes",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => "avx512vnni: vpdpbusd on 32 bytes",
        _ => "plain Rust: int8 products summed in int32, as the compiler vectorises them",
    }
}

/// Reads all of `bytes` once; the answer only proves it. Its last few may be left out.
pub fn read(isa: Isa, bytes: &[u8]) -> u64 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a value exists only where the processor has AVX2.
        _ if isa.has_avx2() => unsafe { avx2::read(bytes) },
        _ => sum_words(bytes),
    }
}

/// [`F32_UNIT_OPERATIONS`] operations on floats in registers.
pub fn f32_unit(isa: Isa) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a value exists only where the processor has AVX2 and FMA.
        _ if isa.has_avx2() => unsafe { avx2::f32_unit() },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: NEON is part of the target's baseline.
        _ => unsafe { neon::f32_unit() },
        #[cfg(not(target_arch = "aarch64"))]
        _ => f32_plain(),
    }
}

/// [`INT8_UNIT_OPERATIONS`] operations on bytes.
pub fn int8_unit(isa: Isa) -> f32 {
    let mut codes = [0i8; INT8_CODES];
    codes.iter_mut().enumerate().for_each(|(i, code)| *code = (i % 15) as i8 - 7);
    let sum = match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a value exists only where the processor has AVX2 and the form of `vpdpbusd` that it names.
        _ if isa.has_avx2() => unsafe { avx2::int8(isa, &codes, INT8_TURNS) },
        _ => int8_plain(&codes),
    };
    sum as f32
}

/// Words of 8 bytes, summed in independent lanes.
#[inline(always)]
fn sum_words(bytes: &[u8]) -> u64 {
    const LANES: usize = 16;
    let mut sums = [0u64; LANES];
    let (blocks, _) = bytes.as_chunks::<{ 8 * LANES }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Floats that the plain form keeps in flight: what the registers of a small baseline hold.
const PLAIN_LANES: usize = 32;

#[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "every such processor has NEON"))]
fn f32_plain() -> f32 {
    let (x, y) = (black_box(0.999_f32), black_box(0.001_f32));
    let mut sums: [f32; PLAIN_LANES] = std::array::from_fn(|i| i as f32);
    for _ in 0..F32_TURNS * F32_LANES / PLAIN_LANES {
        // not `mul_add`: where the baseline has no such instruction it is a slow call
        sums = sums.map(|sum| sum * x + y);
    }
    sums.iter().sum()
}

fn int8_plain(codes: &[i8; INT8_CODES]) -> i32 {
    const LANES: usize = 32;
    let weights: [i8; LANES] = black_box(std::array::from_fn(|i| i as i8 % 7));
    let mut sums = [0i32; LANES];
    for _ in 0..INT8_TURNS {
        // what a turn reads must not be known to be what the last one read
        for block in black_box(codes).as_chunks::<LANES>().0 {
            for ((sum, weight), code) in sums.iter_mut().zip(&weights).zip(block) {
                *sum = sum.wrapping_add(i32::from(*weight) * i32::from(*code));
            }
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{F32_LANES, F32_TURNS, black_box};
    use std::arch::aarch64::*;

    #[target_feature(enable = "neon")]
    pub fn f32_unit() -> f32 {
        let (x, y) = (black_box(vdupq_n_f32(0.5)), black_box(vdupq_n_f32(0.25)));
        let mut sums: [float32x4_t; F32_LANES / 4] = std::array::from_fn(|i| vdupq_n_f32(i as f32));
        for _ in 0..F32_TURNS {
            for sum in &mut sums {
                *sum = vfmaq_f32(*sum, x, y);
            }
        }
        sums.iter().map(|sum| vgetq_lane_f32::<0>(*sum)).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{F32_LANES, F32_TURNS, INT8_CODES, black_box};
    use crate::kernels::{Dot, Evex, Isa, Pairs, Vex};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub fn read(bytes: &[u8]) -> u64 {
        super::sum_words(bytes)
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn f32_unit() -> f32 {
        let (x, y) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(0.25)));
        let mut sums: [__m256; F32_LANES / 8] = std::array::from_fn(|i| _mm256_set1_ps(i as f32));
        for _ in 0..F32_TURNS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(x, y, *sum);
            }
        }
        let all = sums.iter().fold(_mm256_setzero_ps(), |all, sum| _mm256_add_ps(all, *sum));
        _mm256_cvtss_f32(all)
    }

    /// # Safety
    /// The processor has `isa`, which is of this family.
    pub unsafe fn int8(isa: Isa, codes: &[i8; INT8_CODES], turns: usize) -> i32 {
        // SAFETY: same contract as this function's.
        unsafe {
            match isa {
                Isa::Avx512Vnni => int8_by::<Evex>(codes, turns),
                Isa::AvxVnni => int8_by::<Vex>(codes, turns),
                _ => int8_by::<Pairs>(codes, turns),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn int8_by<D: Dot>(codes: &[i8; INT8_CODES], turns: usize) -> i32 {
        const SUMS: usize = 8;
        let (weight, ones) = (black_box(_mm256_set1_epi8(15)), _mm256_set1_epi16(1));
        // vectors rather than bytes: loads through pointers are checked, and slow, where assertions are on
        let mut vectors = [_mm256_setzero_si256(); INT8_CODES / 32];
        for (vector, block) in vectors.iter_mut().zip(codes.as_chunks::<32>().0) {
            // SAFETY: 32 bytes, at any alignment.
            *vector = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        }
        let mut sums = [_mm256_setzero_si256(); SUMS];
        for _ in 0..turns {
            // what a turn reads must not be known to be what the last one read
            let (blocks, _) = black_box(&vectors).as_chunks::<SUMS>();
            for block in blocks {
                for (sum, act) in sums.iter_mut().zip(block) {
                    *sum = if D::FOUR {
                        // SAFETY: the instruction is there, by this function's contract.
                        unsafe { D::add(*sum, weight, *act) }
                    } else {
                        let pairs = _mm256_maddubs_epi16(weight, *act);
                        _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones))
                    };
                }
            }
        }
        let all = sums.iter().fold(_mm256_setzero_si256(), |all, sum| _mm256_add_epi32(all, *sum));
        _mm256_cvtsi256_si32(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_every_word() {
        // each word has its own value, so that one left out or read twice would show
        let words: Vec<u64> = (0..4096u64).map(|i| i * i + 1).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        for isa in [Isa::Scalar, Isa::detect()] {
            assert_eq!(read(isa, &bytes), words.iter().sum::<u64>(), "{}", isa.name());
        }
    }

    #[test]
    fn the_bytes_are_multiplied_as_often_as_is_counted() {
        let codes = [1i8; INT8_CODES];
        // the plain form's weights repeat 0..=6 over 32 lanes
        let weights: i32 = (0..32).map(|i| i % 7).sum();
        assert_eq!(int8_plain(&codes), weights * (INT8_TURNS * INT8_CODES / 32) as i32);
        #[cfg(target_arch = "x86_64")]
        for isa in crate::kernels::isas().into_iter().filter(|isa| isa.has_avx2()) {
            // few turns, since the instruction may be emulated
            let turns = 3;
            // SAFETY: the processor has the instruction set, or a handler that stands in for it.
            let lane = unsafe { avx2::int8(isa, &codes, turns) };
            // one of eight lanes
            assert_eq!(lane, 15 * (turns * INT8_CODES / 8) as i32, "{}", isa.name());
        }
    }

    #[test]
    fn the_floats_are_multiplied_as_often_as_is_counted() {
        // x -> 0.999 x + 0.001 goes to 1, whatever it starts from
        assert!((f32_plain() / PLAIN_LANES as f32 - 1.0).abs() < 1e-2);
        // one lane of every vector: its number, and an eighth for each turn, all of it exact
        let lanes = |vectors: usize| (vectors * (vectors - 1) / 2 + vectors * F32_TURNS / 8) as f32;
        if cfg!(target_arch = "aarch64") {
            assert_eq!(f32_unit(Isa::detect()), lanes(F32_LANES / 4));
        } else if Isa::detect() != Isa::Scalar {
            assert_eq!(f32_unit(Isa::detect()), lanes(F32_LANES / 8));
        }
    }
}
