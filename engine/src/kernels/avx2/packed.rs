//! Weights kept as strips of 8 rows in memory, as small as the file has them: the order of [`super::strips`], codes cut
//! into planes of bits. One vector meets a strip in one pass with no sum across lanes, which is about half the operations
//! of going row by row.
//!
//! A strip is its blocks one after the other. A block is: scales of 8 rows (half precision), minimums likewise where the
//! format has them, for blocks of 256 the 8-bit scales of each part for 8 rows and the minimums likewise, then the codes of
//! each group. Codes of 4 bits and more have a plane of nibbles (4 registers; the high nibbles are steps 4 to 7), then a
//! plane of what is left: pairs of bits (2 registers, 4 steps each) and single bits (1 register). Codes of 8 bits are as
//! they are.

// Steps of a register and of a vector go together.
#![allow(clippy::needless_range_loop)]

use super::dot::{Dot, steps, unsigned, weighed};
use super::formats::{Format, Large, Small};
use super::strips::{GROUPS, STRIP, Shape, Strips, parts, put_eight, put_pairs, steps_of, strip_of};
use super::sums::{Eight, PAIR, add_large, add_small, pair_of, part_sums};
use super::{GROUP, pairs};
use crate::kernels::{Activations, SharedOut, WeightRows};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes ahead of use that are asked for.
const PREFETCH_BYTES: usize = 4096;
/// Bytes of 8 half-precision numbers.
const HALVES_BYTES: usize = 2 * STRIP;

/// Bytes of the codes of a group of 8 rows.
const fn group_bytes<F: Format>() -> usize {
    GROUP * F::BITS
}

/// Bytes of a block of 32 of 8 rows.
pub(super) const fn small_bytes<F: Small>() -> usize {
    HALVES_BYTES * if F::MINIMUM { 2 } else { 1 } + group_bytes::<F>()
}

/// Where things lie in a block of 256 of 8 rows.
struct Layout {
    scales: usize,
    minimums: usize,
    codes: usize,
    bytes: usize,
}

const fn layout<F: Large>() -> Layout {
    let heads = HALVES_BYTES * if F::MINIMUMS { 2 } else { 1 };
    let parts = parts::<F>() * STRIP;
    let minimums = heads + parts;
    let codes = if F::MINIMUMS { minimums + parts } else { minimums };
    Layout { scales: heads, minimums, codes, bytes: codes + GROUPS * group_bytes::<F>() }
}

/// Bytes of a block of 256 of 8 rows.
pub(super) const fn large_bytes<F: Large>() -> usize {
    layout::<F>().bytes
}

/// Packs the strips that begin at rows `rows`, of blocks of 32, into `out`.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `weights` are rows of format `F`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn pack_small<F: Small>(weights: WeightRows<'_>, rows: Range<usize>, out: &mut [u8]) {
    let blocks = weights.cols / GROUP;
    let mut out = out.chunks_exact_mut(small_bytes::<F>());
    for first in rows.clone().step_by(STRIP) {
        let strip = strip_of(weights, first, rows.end);
        for (b, out) in (0..blocks).zip(&mut out) {
            let block = strip.map(|row| row.map(|bytes| &bytes[b * F::BYTES..][..F::BYTES]));
            put_halves(block, 0, &mut out[..HALVES_BYTES]);
            if F::MINIMUM {
                put_halves(block, 2, &mut out[HALVES_BYTES..]);
            }
            let codes = small_bytes::<F>() - group_bytes::<F>();
            // SAFETY: features as in the caller; blocks are whole.
            unsafe { put_planes::<F>(block, 0, &mut out[codes..]) };
        }
    }
}

/// As [`pack_small`] for blocks of 256.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn pack_large<F: Large>(weights: WeightRows<'_>, rows: Range<usize>, out: &mut [u8]) {
    let blocks = weights.cols / (GROUP * GROUPS);
    let at = layout::<F>();
    let mut out = out.chunks_exact_mut(at.bytes);
    for first in rows.clone().step_by(STRIP) {
        let strip = strip_of(weights, first, rows.end);
        for (b, out) in (0..blocks).zip(&mut out) {
            let block = strip.map(|row| row.map(|bytes| &bytes[b * F::BYTES..][..F::BYTES]));
            put_halves(block, F::SCALE_AT, &mut out[..HALVES_BYTES]);
            if F::MINIMUMS {
                put_halves(block, F::MINIMUM_AT, &mut out[HALVES_BYTES..]);
            }
            for (r, block) in block.iter().enumerate() {
                let (scales, minimums) = block.map_or_else(Default::default, |block| F::parts(block));
                for part in 0..parts::<F>() {
                    out[at.scales + part * STRIP + r] = scales[part] as u8;
                    if F::MINIMUMS {
                        out[at.minimums + part * STRIP + r] = minimums[part];
                    }
                }
            }
            for g in 0..GROUPS {
                // SAFETY: features as in the caller; blocks are whole.
                unsafe { put_planes::<F>(block, g, &mut out[at.codes + g * group_bytes::<F>()..]) };
            }
        }
    }
}

/// The half-precision numbers at byte `at` of 8 blocks, side by side.
fn put_halves(blocks: [Option<&[u8]>; STRIP], at: usize, out: &mut [u8]) {
    for (to, block) in out.chunks_exact_mut(2).zip(blocks) {
        to.copy_from_slice(block.map_or(&[0, 0], |block| &block[at..at + 2]));
    }
}

/// The codes of group `g` of 8 blocks as planes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn put_planes<F: Format>(blocks: [Option<&[u8]>; STRIP], g: usize, out: &mut [u8]) {
    // SAFETY: contract of this function.
    let steps = unsafe { steps_of::<F>(blocks, g) };
    let mut out = out[..group_bytes::<F>()].chunks_exact_mut(GROUP);
    let mut put = |v: __m256i| {
        let to = out.next().expect("as many registers as the planes have");
        // SAFETY: `to` has 32 bytes.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) };
    };
    // bits `from` and up of a step, as many as `mask` has, moved to bit `to`
    let bits = |v: __m256i, from: usize, mask: i8, to: usize| {
        let low = _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(from as i32)), _mm256_set1_epi8(mask));
        _mm256_sll_epi16(low, _mm_cvtsi32_si128(to as i32))
    };
    if F::BITS == 8 {
        return steps.into_iter().for_each(put);
    }
    if F::BITS >= 4 {
        for j in 0..4 {
            put(_mm256_or_si256(bits(steps[j], 0, 15, 0), bits(steps[j + 4], 0, 15, 4)));
        }
    }
    let from = F::BITS / 4 * 4;
    if F::BITS - from >= 2 {
        for four in steps.chunks_exact(4) {
            let planes = four.iter().enumerate().map(|(q, v)| bits(*v, from, 3, 2 * q));
            put(planes.fold(_mm256_setzero_si256(), |all, v| _mm256_or_si256(all, v)));
        }
    }
    if F::BITS % 2 == 1 {
        let planes = steps.iter().enumerate().map(|(s, v)| bits(*v, F::BITS - 1, 1, s));
        put(planes.fold(_mm256_setzero_si256(), |all, v| _mm256_or_si256(all, v)));
    }
}

/// The 8 steps of a group again.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpacked<F: Format>(codes: *const u8) -> [__m256i; 8] {
    // SAFETY: the caller gives the planes of a group.
    let register = |i: usize| unsafe { _mm256_loadu_si256(codes.add(i * GROUP).cast()) };
    let bits = |v: __m256i, from: usize, mask: i8| {
        _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(from as i32)), _mm256_set1_epi8(mask))
    };
    if F::BITS == 8 {
        return std::array::from_fn(register);
    }
    let nibbles = if F::BITS >= 4 { 4 } else { 0 };
    let pairs = if F::BITS % 4 >= 2 { 2 } else { 0 };
    std::array::from_fn(|s| {
        let mut code = _mm256_setzero_si256();
        if nibbles > 0 {
            code = bits(register(s % 4), s / 4 * 4, 15);
        }
        if pairs > 0 {
            let pair = bits(register(nibbles + s / 4), s % 4 * 2, 3);
            code = _mm256_or_si256(code, _mm256_sll_epi16(pair, _mm_cvtsi32_si128(nibbles as i32)));
        }
        if F::BITS % 2 == 1 {
            let bit = bits(register(nibbles + pairs), s, 1);
            code = _mm256_or_si256(code, _mm256_sll_epi16(bit, _mm_cvtsi32_si128(F::BITS as i32 - 1)));
        }
        code
    })
}

/// Products of `STEPS` steps with a vector, four at once: eight 32-bit sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<F: Format, D: Dot, const STEPS: usize>(steps: &[__m256i], act: *const i8) -> __m256i {
    let mut sums = _mm256_setzero_si256();
    for s in 0..STEPS {
        // SAFETY: the caller gives as many steps of the vector; `D`'s instruction is there.
        unsafe {
            let act = _mm256_set1_epi32(act.add(4 * s).cast::<i32>().read_unaligned());
            sums = D::add(sums, unsigned::<F, D>(steps[s]), act);
        }
    }
    sums
}

/// Products of `STEPS` steps with a vector: eight 32-bit sums, weighed by `scales`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<F: Format, D: Dot, const STEPS: usize>(
    steps: &[__m256i],
    act: *const i8,
    scales: __m256i,
) -> __m256i {
    if D::FOUR {
        // SAFETY: same contract as this function's.
        return weighed(unsafe { dots::<F, D, STEPS>(steps, act) }, scales);
    }
    let mut sum = _mm256_setzero_si256();
    let mut narrow = _mm256_setzero_si256();
    for s in 0..STEPS {
        // SAFETY: the caller gives as many steps of the vector.
        let act = _mm256_set1_epi32(unsafe { act.add(4 * s).cast::<i32>().read_unaligned() });
        let two = pairs::<F>(steps[s], act);
        narrow = if s % F::DEPTH == 0 { two } else { _mm256_add_epi16(narrow, two) };
        if s % F::DEPTH == F::DEPTH - 1 || s + 1 == STEPS {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, scales));
        }
    }
    sum
}

/// Eight half-precision numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight_halves(at: *const u8) -> __m256 {
    // SAFETY: the caller gives 16 readable bytes.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fetch_ahead(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line + PREFETCH_BYTES).cast());
    }
}

/// The strip at `strip`, of blocks of 32, with vector `n`.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; the strip is whole, its rows as long as the vector.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_vector<F: Small, D: Dot>(strip: &[u8], acts: &Activations, n: usize) -> __m256 {
    let (codes, scales, act_sums) = (acts.codes(n), acts.scales(n), acts.sums_32(n));
    let mut sum = _mm256_setzero_ps();
    for (b, block) in strip.chunks_exact(small_bytes::<F>()).enumerate() {
        let at = block.as_ptr();
        // SAFETY: the block is whole, and the vector has group `b`.
        unsafe {
            fetch_ahead(at, block.len());
            let unpacked = unpacked::<F>(at.add(small_bytes::<F>() - group_bytes::<F>()));
            let act = codes.as_ptr().add(b * GROUP);
            let whole = if D::FOUR {
                dots::<F, D, 8>(&unpacked, act)
            } else {
                products::<F, D, 8>(&unpacked, act, _mm256_set1_epi16(1))
            };
            let minimum = if F::MINIMUM { eight_halves(at.add(HALVES_BYTES)) } else { _mm256_setzero_ps() };
            let eight = Eight { scale: eight_halves(at), minimum };
            let of_vector = (*scales.get_unchecked(b), *act_sums.get_unchecked(b));
            sum = add_small::<F>(sum, whole, eight, steps::<F, D>(), of_vector);
        }
    }
    sum
}

/// Eight 8-bit scales, each as a pair of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale_pairs<const SIGNED: bool>(at: *const u8) -> __m256i {
    // SAFETY: the caller gives 8 readable bytes.
    let all = _mm256_set1_epi64x(unsafe { at.cast::<i64>().read_unaligned() });
    let z = -1;
    if SIGNED {
        let high = _mm256_setr_epi8(
            z, 0, z, 0, z, 1, z, 1, z, 2, z, 2, z, 3, z, 3, z, 4, z, 4, z, 5, z, 5, z, 6, z, 6, z, 7, z, 7,
        );
        _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(all, high))
    } else {
        let low = _mm256_setr_epi8(
            0, z, 0, z, 1, z, 1, z, 2, z, 2, z, 3, z, 3, z, 4, z, 4, z, 5, z, 5, z, 6, z, 6, z, 7, z, 7, z,
        );
        _mm256_shuffle_epi8(all, low)
    }
}

/// The offsets of pair `pair` of a block's parts, eight rows side by side: their minimums, or where the format has none
/// their scales.
///
/// # Safety
/// The block is whole and has the pair.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn offset_pair<F: Large>(block: *const u8, pair: usize) -> __m256i {
    let at = layout::<F>();
    let from = if F::MINIMUMS { at.minimums } else { at.scales };
    // SAFETY: this function's contract: two parts of eight bytes.
    let both = unsafe { _mm_loadu_si128(block.add(from + pair * PAIR * STRIP).cast()) };
    let pairs = _mm_unpacklo_epi8(both, _mm_unpackhi_epi64(both, both));
    if F::MINIMUMS { _mm256_cvtepu8_epi16(pairs) } else { _mm256_cvtepi8_epi16(pairs) }
}

/// The strip at `strip`, of blocks of 256, with vector `n`.
///
/// # Safety
/// As [`small_vector`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large_vector<F: Large, D: Dot>(strip: &[u8], acts: &Activations, n: usize) -> __m256 {
    let (codes, scales, code_sums) = (acts.codes(n), acts.scales(n), acts.code_sums(n));
    let at = layout::<F>();
    let mut sum = _mm256_setzero_ps();
    for (b, bytes) in strip.chunks_exact(at.bytes).enumerate() {
        let block = bytes.as_ptr();
        let mut whole = [_mm256_setzero_si256(); 2];
        let mut offsets = [_mm256_setzero_si256(); 2];
        // SAFETY: the block is whole, and the vector has its eight groups.
        unsafe {
            fetch_ahead(block, at.codes);
            for g in 0..GROUPS {
                let group = block.add(at.codes + g * group_bytes::<F>());
                fetch_ahead(group, group_bytes::<F>());
                let steps = unpacked::<F>(group);
                let act = codes.as_ptr().add((b * GROUPS + g) * GROUP);
                for half in 0..parts::<F>() / GROUPS {
                    let part = g * (parts::<F>() / GROUPS) + half;
                    let weigh = scale_pairs_of::<F>(block.add(at.scales + part * STRIP));
                    let products = if F::HALVES {
                        products::<F, D, 4>(&steps[4 * half..], act.add(16 * half), weigh)
                    } else {
                        products::<F, D, 8>(&steps, act, weigh)
                    };
                    whole[half] = _mm256_add_epi32(whole[half], products);
                }
            }
            let act_sums = part_sums::<F>(code_sums.as_ptr().add(b * 2 * GROUPS));
            for pair in 0..parts::<F>() / PAIR {
                let products = _mm256_madd_epi16(offset_pair::<F>(block, pair), pair_of(act_sums, pair));
                offsets[pair % 2] = _mm256_add_epi32(offsets[pair % 2], products);
            }
            let minimum = if F::MINIMUMS { eight_halves(block.add(HALVES_BYTES)) } else { _mm256_setzero_ps() };
            let eight = Eight { scale: eight_halves(block), minimum };
            let whole = _mm256_add_epi32(whole[0], whole[1]);
            let offsets = _mm256_add_epi32(offsets[0], offsets[1]);
            sum = add_large::<F>(sum, whole, offsets, eight, *scales.get_unchecked(b * GROUPS));
        }
    }
    sum
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale_pairs_of<F: Large>(at: *const u8) -> __m256i {
    // SAFETY: same contract as the function called.
    unsafe { if F::SIGNED_SCALES { scale_pairs::<true>(at) } else { scale_pairs::<false>(at) } }
}

/// Every vector of `acts` by itself with the strips of blocks of 32 that hold `rows`.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; `rows` lie within the packed weights, vectors are as long as
/// rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn small_vectors<F: Small, D: Dot>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    // SAFETY: contract of this function.
    each_strip(weights, weights.cols / GROUP * small_bytes::<F>(), rows, acts, out, |strip, n| unsafe {
        small_vector::<F, D>(strip, acts, n)
    });
}

/// As [`small_vectors`] for blocks of 256.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn large_vectors<F: Large, D: Dot>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    // SAFETY: contract of this function.
    each_strip(weights, weights.cols / (GROUP * GROUPS) * large_bytes::<F>(), rows, acts, out, |strip, n| unsafe {
        large_vector::<F, D>(strip, acts, n)
    });
}

/// Runs `product` for every strip that holds some of `rows` and every vector, and stores what lies within `rows`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn each_strip(
    weights: WeightRows<'_>,
    strip_bytes: usize,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
    product: impl Fn(&[u8], usize) -> __m256,
) {
    for s in rows.start / STRIP..rows.end.div_ceil(STRIP) {
        let strip = &weights.data[s * strip_bytes..][..strip_bytes];
        let within = rows.start.max(s * STRIP)..rows.end.min((s + 1) * STRIP);
        for n in 0..acts.n() {
            let mut eight = [0.0f32; STRIP];
            // SAFETY: there is room for eight.
            unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), product(strip, n)) };
            out.put_row(n, within.start, &eight[within.start - s * STRIP..within.end - s * STRIP]);
        }
    }
}

impl Strips {
    /// Unpacks the packed strips of blocks of 32 that hold `rows`, which begin a strip, for sums by `D`.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; `rows` lie within the packed weights of format `F`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn unfold_small<F: Small, D: Dot>(&mut self, weights: WeightRows<'_>, rows: Range<usize>, shape: Shape) {
        let strips = rows.len().div_ceil(STRIP);
        self.make(strips, shape);
        let packed = &weights.data[rows.start / STRIP * shape.blocks * small_bytes::<F>()..];
        for (at, block) in packed.chunks_exact(small_bytes::<F>()).take(strips * shape.blocks).enumerate() {
            let from = block.as_ptr();
            // SAFETY: the block is whole; the targets were made for these strips.
            unsafe {
                put_eight(&mut self.scales, at, eight_halves(from));
                if F::MINIMUM {
                    put_eight(&mut self.minimums, at, eight_halves(from.add(HALVES_BYTES)));
                }
                let steps = unpacked::<F>(from.add(small_bytes::<F>() - group_bytes::<F>()));
                self.put_steps(at, steps.map(|step| unsigned::<F, D>(step)));
            }
        }
    }

    /// As [`Self::unfold_small`] for blocks of 256.
    ///
    /// # Safety
    /// As there.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn unfold_large<F: Large>(&mut self, weights: WeightRows<'_>, rows: Range<usize>, shape: Shape) {
        let strips = rows.len().div_ceil(STRIP);
        self.make(strips, shape);
        let layout = layout::<F>();
        let packed = &weights.data[rows.start / STRIP * shape.blocks * layout.bytes..];
        for (at, block) in packed.chunks_exact(layout.bytes).take(strips * shape.blocks).enumerate() {
            let from = block.as_ptr();
            // SAFETY: the block is whole; the targets were made for these strips.
            unsafe {
                put_eight(&mut self.scales, at, eight_halves(from));
                if F::MINIMUMS {
                    put_eight(&mut self.minimums, at, eight_halves(from.add(HALVES_BYTES)));
                }
                for part in 0..parts::<F>() {
                    let pairs = scale_pairs_of::<F>(from.add(layout.scales + part * STRIP));
                    put_pairs(&mut self.whole_scales, at * parts::<F>() + part, pairs);
                }
                for pair in 0..parts::<F>() / PAIR {
                    put_pairs(&mut self.whole_offsets, at * parts::<F>() / PAIR + pair, offset_pair::<F>(from, pair));
                }
                for g in 0..GROUPS {
                    self.put_steps(at * GROUPS + g, unpacked::<F>(from.add(layout.codes + g * group_bytes::<F>())));
                }
            }
        }
    }
}
