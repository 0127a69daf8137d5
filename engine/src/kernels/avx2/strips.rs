//! Weights of a few rows, unpacked for many vectors: strips of 8 rows side by side, 4 elements of each row after those of
//! the row before, so that one register meets 4 elements of a vector in all its lanes and feeds 8 outputs without a sum
//! across lanes. A strip is made from the stored blocks when it is needed, stays in the second-level cache while the
//! vectors pass, and is overwritten by the next: the stored weights stay mapped and no second copy of them is kept.

use super::dot::{Dot, unsigned};
use super::formats::{Format, Large, Small};
use super::{GROUP, transpose};
use crate::kernels::WeightRows;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of a strip.
pub(super) const STRIP: usize = 8;
/// Groups of a large block.
pub(super) const GROUPS: usize = 8;

/// Strips of unpacked rows. Every array is grown to the largest shape once.
#[derive(Default)]
pub(super) struct Strips {
    /// (strips, groups, 8 steps, 8 rows, 4 elements)
    pub codes: Vec<u8>,
    /// Scale of a block: (strips, blocks, 8 rows).
    pub scales: Vec<f32>,
    /// Blocks of 32: their minimum; of 256: what the minimums are multiplied with. (strips, blocks, 8 rows)
    pub minimums: Vec<f32>,
    /// Large blocks: the scale of each group or half, twice: (strips, groups or halves, 8 rows, 2).
    pub whole_scales: Vec<i16>,
    /// Large blocks: what to take off for each group or half, see [`LargeHead::offsets`](super::formats::LargeHead), two
    /// of a row side by side: (strips, groups or halves / 2, 8 rows, 2).
    pub whole_offsets: Vec<i16>,
}

/// Sizes of one strip.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Elements of a row.
    pub cols: usize,
    /// Scales of a row.
    pub blocks: usize,
    /// Minimums of a row, or their scales.
    pub minimums: usize,
    /// Whole-number scales of a row, and as many offsets.
    pub parts: usize,
}

impl Shape {
    pub fn small<F: Small>(cols: usize) -> Self {
        let blocks = cols / GROUP;
        Self { cols, blocks, minimums: if F::MINIMUM { blocks } else { 0 }, parts: 0 }
    }

    pub fn large<F: Large>(cols: usize) -> Self {
        let blocks = cols / (GROUPS * GROUP);
        Self { cols, blocks, minimums: if F::MINIMUMS { blocks } else { 0 }, parts: blocks * parts::<F>() }
    }
}

impl Strips {
    pub fn make(&mut self, strips: usize, shape: Shape) {
        let rows = strips * STRIP;
        grow(&mut self.codes, rows * shape.cols, 0);
        grow(&mut self.scales, rows * shape.blocks, 0.0);
        grow(&mut self.minimums, rows * shape.minimums, 0.0);
        grow(&mut self.whole_scales, rows * shape.parts * 2, 0);
        grow(&mut self.whole_offsets, rows * shape.parts, 0);
    }

    /// Unpacks `rows`, of blocks of 32, for sums by `D`. Rows past the last are zeros.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; `rows` lie within the weights, which are of format `F`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn unpack_small<F: Small, D: Dot>(&mut self, weights: WeightRows<'_>, rows: Range<usize>, shape: Shape) {
        self.make(rows.len().div_ceil(STRIP), shape);
        for (s, first) in rows.clone().step_by(STRIP).enumerate() {
            let strip = strip_of(weights, first, rows.end);
            for b in 0..shape.blocks {
                let at = s * shape.blocks + b;
                let blocks = strip.map(|row| row.map(|bytes| &bytes[b * F::BYTES..][..F::BYTES]));
                put_eight(&mut self.scales, at, halves_of(blocks, 0));
                if F::MINIMUM {
                    put_eight(&mut self.minimums, at, halves_of(blocks, 2));
                }
                // SAFETY: features as in the caller.
                unsafe { self.put_steps(at, steps_of::<F>(blocks, 0).map(|step| unsigned::<F, D>(step))) };
            }
        }
    }

    /// Unpacks `rows`, of blocks of 256. Rows past the last are zeros.
    ///
    /// # Safety
    /// As [`Self::unpack_small`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn unpack_large<F: Large>(&mut self, weights: WeightRows<'_>, rows: Range<usize>, shape: Shape) {
        self.make(rows.len().div_ceil(STRIP), shape);
        for (s, first) in rows.clone().step_by(STRIP).enumerate() {
            let strip = strip_of(weights, first, rows.end);
            for b in 0..shape.blocks {
                let at = s * shape.blocks + b;
                let blocks = strip.map(|row| row.map(|bytes| &bytes[b * F::BYTES..][..F::BYTES]));
                // SAFETY: features as in the caller.
                unsafe {
                    self.put_heads::<F>(at, blocks);
                    for g in 0..GROUPS {
                        self.put_steps(at * GROUPS + g, steps_of::<F>(blocks, g));
                    }
                }
            }
        }
    }

    /// Eight steps become group `at` of the strips.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn put_steps(&mut self, at: usize, steps: [__m256i; 8]) {
        let to = &mut self.codes[at * STRIP * GROUP..][..STRIP * GROUP];
        for (to, step) in to.chunks_exact_mut(GROUP).zip(steps) {
            // SAFETY: `to` has 32 bytes.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), step) };
        }
    }

    /// Scales and offsets of 8 blocks of 256 become those of block `at` of the strips.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn put_heads<F: Large>(&mut self, at: usize, blocks: [Option<&[u8]>; STRIP]) {
        let halves = parts::<F>() / GROUPS;
        let mut scales = [[_mm256_setzero_ps(); STRIP]; 2];
        let mut offsets = [_mm256_setzero_ps(); STRIP];
        for (r, block) in blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            // SAFETY: a block is whole; features as in the caller.
            let head = unsafe { F::head(block) };
            let twice = |v| {
                let wide = _mm256_cvtepu16_epi32(v);
                _mm256_castsi256_ps(_mm256_or_si256(wide, _mm256_slli_epi32::<16>(wide)))
            };
            scales[0][r] = twice(_mm256_castsi256_si128(head.scales));
            scales[1][r] = twice(_mm256_extracti128_si256::<1>(head.scales));
            offsets[r] = _mm256_castsi256_ps(head.offsets);
        }
        put_eight(&mut self.scales, at, halves_of(blocks, F::SCALE_AT));
        if F::MINIMUMS {
            put_eight(&mut self.minimums, at, halves_of(blocks, F::MINIMUM_AT));
        }
        let first = at * parts::<F>();
        for (half, scales) in scales.into_iter().enumerate().take(halves) {
            for (g, eight) in transpose(scales).into_iter().enumerate() {
                put_pairs(&mut self.whole_scales, first + g * halves + half, _mm256_castps_si256(eight));
            }
        }
        for (pair, eight) in transpose(offsets).into_iter().take(parts::<F>() / 2).enumerate() {
            put_pairs(&mut self.whole_offsets, first / 2 + pair, _mm256_castps_si256(eight));
        }
    }
}

/// Parts of a block of 256 that have a scale of their own.
pub(super) const fn parts<F: Large>() -> usize {
    if F::HALVES { 2 * GROUPS } else { GROUPS }
}

/// The half-precision numbers at byte `at` of eight blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves_of(blocks: [Option<&[u8]>; STRIP], at: usize) -> __m256 {
    let half = |r: usize| blocks[r].map_or(0, |block| i16::from_le_bytes([block[at], block[at + 1]]));
    _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)))
}

/// Number `at` of eight rows becomes `eight`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn put_eight(to: &mut [f32], at: usize, eight: __m256) {
    // SAFETY: the slice has eight floats.
    unsafe { _mm256_storeu_ps(to[at * STRIP..][..STRIP].as_mut_ptr(), eight) };
}

/// Two numbers, `at`, of eight rows become `pairs`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn put_pairs(to: &mut [i16], at: usize, pairs: __m256i) {
    // SAFETY: the slice has 16 numbers of 16 bits.
    unsafe { _mm256_storeu_si256(to[at * 2 * STRIP..][..2 * STRIP].as_mut_ptr().cast(), pairs) };
}

/// Group `g` of 8 blocks as 8 steps, each 4 elements of 8 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn steps_of<F: Format>(blocks: [Option<&[u8]>; STRIP], g: usize) -> [__m256i; 8] {
    // SAFETY: the caller gives whole blocks, and `g` is one of their groups; features as in the caller.
    let rows = blocks.map(|block| block.map_or(_mm256_setzero_si256(), |block| unsafe { F::codes(block, g) }));
    transpose(rows.map(|v| _mm256_castsi256_ps(v))).map(|v| _mm256_castps_si256(v))
}

/// Up to 8 rows from `first` on.
pub(super) fn strip_of<'a>(weights: WeightRows<'a>, first: usize, end: usize) -> [Option<&'a [u8]>; STRIP] {
    std::array::from_fn(|r| (first + r < end).then(|| weights.row(first + r)))
}

fn grow<T: Clone>(room: &mut Vec<T>, len: usize, fill: T) {
    if room.len() < len {
        room.resize(len, fill);
    }
}
