//! Many vectors: rows are unpacked once into strips, as many as stay in the second-level cache, and meet the vectors four
//! at a time, which stay in the first-level cache. Products of unsigned codes with signed activations are summed in 16 bits
//! for as long as they cannot overflow ([`Format::DEPTH`]), then in 32, or four at once in 32 ([`Dot::FOUR`]), and touch
//! floats once for every scale.

// Tiles are indexed by strip, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::GROUP;
use super::dot::{Dot, steps, weighed};
use super::formats::{Format, Large, Small};
use super::strips::{GROUPS, STRIP, Shape, Strips, parts};
use super::sums::{Eight, PAIR, add_large, add_small, pair_of, part_sums};
use crate::kernels::{Activations, Layout, SharedOut, WeightRows};
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

/// Unpacked codes that stay in the cache while all vectors pass.
const UNPACKED_BYTES: usize = 192 << 10;
/// Vectors of a tile: with two strips, eight 16-bit sums leave registers for what they are made of.
const TILE_VECTORS: usize = 4;
/// Elements of each row in one register of a strip.
const STEP: usize = 4;

thread_local! {
    static STRIPS: RefCell<Strips> = RefCell::new(Strips::default());
}

/// A tile's operands: strips from `strip` on, the rows of `out` from `row` on, vectors from `n` on.
#[derive(Clone, Copy)]
struct Tile<'a> {
    strips: &'a Strips,
    shape: Shape,
    strip: usize,
    row: usize,
    rows_end: usize,
    acts: &'a Activations,
    n: usize,
    out: SharedOut,
}

impl Tile<'_> {
    /// The scales of a block of the tile's strip `r`, and where the format has them its minimums.
    ///
    /// # Safety
    /// The strip has the block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn eight(&self, r: usize, block: usize, minimums: bool) -> Eight {
        let at = ((self.strip + r) * self.shape.blocks + block) * STRIP;
        // SAFETY: this function's contract; the arrays were made for all strips.
        let load = |from: &[f32]| unsafe {
            debug_assert!(at + STRIP <= from.len());
            _mm256_loadu_ps(from.as_ptr().add(at))
        };
        let scale = load(&self.strips.scales);
        Eight { scale, minimum: if minimums { load(&self.strips.minimums) } else { _mm256_setzero_ps() } }
    }
}

/// Blocks of 32 against all vectors of `acts`.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and `D`'s instruction; `rows` lie within the weights, vectors are as long as rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn small_blocks<F: Small, D: Dot>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    let shape = Shape::small::<F>(weights.cols);
    STRIPS.with_borrow_mut(|strips| {
        for rows in batches(rows, weights.cols) {
            // SAFETY: contract of this function; the tiles lie within what was unpacked.
            unsafe {
                match weights.layout {
                    Layout::Rows => strips.unpack_small::<F, D>(weights, rows.clone(), shape),
                    Layout::Strips => strips.unfold_small::<F, D>(weights, rows.clone(), shape),
                }
                let all = Tile { strips, shape, strip: 0, row: rows.start, rows_end: rows.end, acts, n: 0, out };
                tiles(all, |tile, size| match size {
                    (2, 4) => small_tile::<F, D, 2, 4>(tile),
                    (2, 3) => small_tile::<F, D, 2, 3>(tile),
                    (2, 2) => small_tile::<F, D, 2, 2>(tile),
                    (2, _) => small_tile::<F, D, 2, 1>(tile),
                    (_, 4) => small_tile::<F, D, 1, 4>(tile),
                    (_, 3) => small_tile::<F, D, 1, 3>(tile),
                    (_, 2) => small_tile::<F, D, 1, 2>(tile),
                    (_, _) => small_tile::<F, D, 1, 1>(tile),
                });
            }
        }
    });
}

/// Blocks of 256 against all vectors of `acts`.
///
/// # Safety
/// As [`small_blocks`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn large_blocks<F: Large, D: Dot>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    let shape = Shape::large::<F>(weights.cols);
    STRIPS.with_borrow_mut(|strips| {
        for rows in batches(rows, weights.cols) {
            // SAFETY: contract of this function; the tiles lie within what was unpacked.
            unsafe {
                match weights.layout {
                    Layout::Rows => strips.unpack_large::<F>(weights, rows.clone(), shape),
                    Layout::Strips => strips.unfold_large::<F>(weights, rows.clone(), shape),
                }
                let all = Tile { strips, shape, strip: 0, row: rows.start, rows_end: rows.end, acts, n: 0, out };
                tiles(all, |tile, size| match size {
                    (2, 4) => large_tile::<F, D, 2, 4>(tile),
                    (2, 3) => large_tile::<F, D, 2, 3>(tile),
                    (2, 2) => large_tile::<F, D, 2, 2>(tile),
                    (2, _) => large_tile::<F, D, 2, 1>(tile),
                    (_, 4) => large_tile::<F, D, 1, 4>(tile),
                    (_, 3) => large_tile::<F, D, 1, 3>(tile),
                    (_, 2) => large_tile::<F, D, 1, 2>(tile),
                    (_, _) => large_tile::<F, D, 1, 1>(tile),
                });
            }
        }
    });
}

/// `rows` in pieces whose unpacked codes fit the cache.
fn batches(rows: Range<usize>, cols: usize) -> impl Iterator<Item = Range<usize>> {
    let length = (UNPACKED_BYTES / cols.max(1) / (2 * STRIP)).max(1) * 2 * STRIP;
    rows.clone().step_by(length).map(move |first| first..(first + length).min(rows.end))
}

/// Calls `run` with every tile and its size in strips and vectors. Ragged vectors are spread evenly: nine are three times
/// three.
#[inline]
fn tiles<'a>(all: Tile<'a>, mut run: impl FnMut(Tile<'a>, (usize, usize))) {
    let (strips, n) = ((all.rows_end - all.row).div_ceil(STRIP), all.acts.n());
    let count = n.div_ceil(TILE_VECTORS);
    for i in 0..count {
        let (from, to) = (i * n / count, (i + 1) * n / count);
        for strip in (0..strips).step_by(2) {
            let tile = Tile { strip, row: all.row + strip * STRIP, n: from, ..all };
            run(tile, ((strips - strip).min(2), to - from));
        }
    }
}

/// Products of `STEPS` registers of R strips with C vectors, four at once, added to eight 32-bit sums each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<D: Dot, const R: usize, const C: usize, const STEPS: usize>(
    weights: [*const u8; R],
    acts: [*const i8; C],
    sums: &mut [[__m256i; C]; R],
) {
    for step in 0..STEPS {
        // SAFETY: the caller gives `STEPS` registers of each strip, and as many steps of each vector; `D`'s instruction is
        // there.
        unsafe {
            let weight: [__m256i; R] = std::array::from_fn(|r| _mm256_loadu_si256(weights[r].add(step * GROUP).cast()));
            for c in 0..C {
                D::step(weight, acts[c].add(step * STEP), std::array::from_fn(|r| &raw mut sums[r][c]));
            }
        }
    }
}

/// Products of `STEPS` registers of R strips with C vectors, added to eight 32-bit sums each: sums of `DEPTH` products in
/// 16 bits are weighed by `scales` as they are widened, those of a whole part when it ends.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<F: Format, D: Dot, const R: usize, const C: usize, const STEPS: usize>(
    weights: [*const u8; R],
    acts: [*const i8; C],
    scales: [__m256i; R],
    sums: &mut [[__m256i; C]; R],
) {
    if D::FOUR {
        let mut part = [[_mm256_setzero_si256(); C]; R];
        // SAFETY: same contract as this function's.
        unsafe { dots::<D, R, C, STEPS>(weights, acts, &mut part) };
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = _mm256_add_epi32(sums[r][c], weighed(part[r][c], scales[r]));
            }
        }
        return;
    }
    let mut narrow = [[_mm256_setzero_si256(); C]; R];
    for step in 0..STEPS {
        // SAFETY: the caller gives `STEPS` registers of each strip, and as many steps of each vector.
        unsafe {
            let weight: [__m256i; R] = std::array::from_fn(|r| _mm256_loadu_si256(weights[r].add(step * GROUP).cast()));
            for c in 0..C {
                let act = acts[c].add(step * STEP);
                if F::SIGNED {
                    signed_step(weight, act, scales[0], std::array::from_fn(|r| &raw mut sums[r][c]));
                } else {
                    narrow_step(weight, act, std::array::from_fn(|r| &raw mut narrow[r][c]));
                }
            }
        }
        if !F::SIGNED && (step % F::DEPTH == F::DEPTH - 1 || step + 1 == STEPS) {
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(narrow[r][c], scales[r]));
                    narrow[r][c] = _mm256_setzero_si256();
                }
            }
        }
    }
}

/// `sums[r] += weight[r] · act` in 16 bits, four elements of a vector with two strips or one. In assembly, since the
/// compiler otherwise gathers the broadcasts of a whole group first, and parks them on the stack.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn narrow_step<const R: usize>(weight: [__m256i; R], act: *const i8, sums: [*mut __m256i; R]) {
    // SAFETY: the caller gives four readable elements, and sums that nothing else uses; R is 1 or 2.
    unsafe {
        if R == 2 {
            asm!(
                "vpbroadcastd {act}, dword ptr [{at}]",
                "vpmaddubsw {pairs}, {w0}, {act}",
                "vpmaddubsw {act}, {w1}, {act}",
                "vpaddw {s0}, {s0}, {pairs}",
                "vpaddw {s1}, {s1}, {act}",
                at = in(reg) act,
                act = out(ymm_reg) _,
                pairs = out(ymm_reg) _,
                w0 = in(ymm_reg) weight[0],
                w1 = in(ymm_reg) weight[R - 1],
                s0 = inout(ymm_reg) *sums[0],
                s1 = inout(ymm_reg) *sums[R - 1],
                options(nostack, preserves_flags, readonly),
            );
        } else {
            asm!(
                "vpbroadcastd {act}, dword ptr [{at}]",
                "vpmaddubsw {act}, {w0}, {act}",
                "vpaddw {s0}, {s0}, {act}",
                at = in(reg) act,
                act = out(ymm_reg) _,
                w0 = in(ymm_reg) weight[0],
                s0 = inout(ymm_reg) *sums[0],
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

/// As [`narrow_step`] for codes that use all 8 bits: magnitudes times activations that took the signs over. A sum of two
/// such products fills 16 bits, so each is widened at once, into 32-bit sums; `ones` are 16-bit ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn signed_step<const R: usize>(weight: [__m256i; R], act: *const i8, ones: __m256i, sums: [*mut __m256i; R]) {
    let magnitude = weight.map(|w| _mm256_abs_epi8(w));
    // SAFETY: as in `narrow_step`.
    unsafe {
        if R == 2 {
            asm!(
                "vpbroadcastd {act}, dword ptr [{at}]",
                "vpsignb {pairs}, {act}, {w0}",
                "vpsignb {act}, {act}, {w1}",
                "vpmaddubsw {pairs}, {m0}, {pairs}",
                "vpmaddubsw {act}, {m1}, {act}",
                "vpmaddwd {pairs}, {pairs}, {ones}",
                "vpmaddwd {act}, {act}, {ones}",
                "vpaddd {s0}, {s0}, {pairs}",
                "vpaddd {s1}, {s1}, {act}",
                at = in(reg) act,
                act = out(ymm_reg) _,
                pairs = out(ymm_reg) _,
                ones = in(ymm_reg) ones,
                w0 = in(ymm_reg) weight[0],
                w1 = in(ymm_reg) weight[R - 1],
                m0 = in(ymm_reg) magnitude[0],
                m1 = in(ymm_reg) magnitude[R - 1],
                s0 = inout(ymm_reg) *sums[0],
                s1 = inout(ymm_reg) *sums[R - 1],
                options(nostack, preserves_flags, readonly),
            );
        } else {
            asm!(
                "vpbroadcastd {act}, dword ptr [{at}]",
                "vpsignb {act}, {act}, {w0}",
                "vpmaddubsw {act}, {m0}, {act}",
                "vpmaddwd {act}, {act}, {ones}",
                "vpaddd {s0}, {s0}, {act}",
                at = in(reg) act,
                act = out(ymm_reg) _,
                ones = in(ymm_reg) ones,
                w0 = in(ymm_reg) weight[0],
                m0 = in(ymm_reg) magnitude[0],
                s0 = inout(ymm_reg) *sums[0],
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_tile<F: Small, D: Dot, const R: usize, const C: usize>(tile: Tile<'_>) {
    let (strips, shape, n) = (tile.strips, tile.shape, tile.n);
    let codes: [*const u8; R] = std::array::from_fn(|r| {
        let length = STRIP * shape.cols;
        strips.codes[(tile.strip + r) * length..][..length].as_ptr()
    });
    let acts: [*const i8; C] = std::array::from_fn(|c| tile.acts.codes(n + c).as_ptr());
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| tile.acts.scales(n + c));
    let act_sums: [&[f32]; C] = std::array::from_fn(|c| tile.acts.sums_32(n + c));
    let ones = [_mm256_set1_epi16(1); R];
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    for block in 0..shape.blocks {
        let mut whole = [[_mm256_setzero_si256(); C]; R];
        // SAFETY: the block lies within strips and vectors.
        unsafe {
            let weights = std::array::from_fn(|r| codes[r].add(block * STRIP * GROUP));
            let vectors = std::array::from_fn(|c| acts[c].add(block * GROUP));
            if D::FOUR {
                dots::<D, R, C, 8>(weights, vectors, &mut whole);
            } else {
                products::<F, D, R, C, 8>(weights, vectors, ones, &mut whole);
            }
            for r in 0..R {
                let eight = tile.eight(r, block, F::MINIMUM);
                for c in 0..C {
                    let of_vector = (*act_scales[c].get_unchecked(block), *act_sums[c].get_unchecked(block));
                    sums[r][c] = add_small::<F>(sums[r][c], whole[r][c], eight, steps::<F, D>(), of_vector);
                }
            }
        }
    }
    store(tile, sums);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large_tile<F: Large, D: Dot, const R: usize, const C: usize>(tile: Tile<'_>) {
    let (strips, shape, n) = (tile.strips, tile.shape, tile.n);
    let halves = parts::<F>() / GROUPS;
    let codes: [*const u8; R] =
        std::array::from_fn(|r| strips.codes[(tile.strip + r) * STRIP * shape.cols..][..STRIP * shape.cols].as_ptr());
    let pairs_of_strip = |pairs: &[i16], r: usize, count: usize| {
        let length = STRIP * count * 2;
        pairs[(tile.strip + r) * length..][..length].as_ptr()
    };
    let whole_scales: [_; R] = std::array::from_fn(|r| pairs_of_strip(&strips.whole_scales, r, shape.parts));
    let whole_offsets: [_; R] = std::array::from_fn(|r| pairs_of_strip(&strips.whole_offsets, r, shape.parts / PAIR));
    let acts: [*const i8; C] = std::array::from_fn(|c| tile.acts.codes(n + c).as_ptr());
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    for block in 0..shape.blocks {
        let mut whole = [[_mm256_setzero_si256(); C]; R];
        let mut offsets = [[_mm256_setzero_si256(); C]; R];
        // SAFETY: the groups, or their halves, lie within strips and vectors.
        unsafe {
            for part in block * parts::<F>()..(block + 1) * parts::<F>() {
                let scales = std::array::from_fn(|r| _mm256_loadu_si256(whole_scales[r].add(part * STRIP * 2).cast()));
                let weights = std::array::from_fn(|r| codes[r].add(part * STRIP * GROUP / halves));
                let vectors = std::array::from_fn(|c| acts[c].add(part * GROUP / halves));
                if F::HALVES {
                    products::<F, D, R, C, 4>(weights, vectors, scales, &mut whole);
                } else {
                    products::<F, D, R, C, 8>(weights, vectors, scales, &mut whole);
                }
            }
            let act_sums: [_; C] =
                std::array::from_fn(|c| part_sums::<F>(tile.acts.code_sums(n + c).as_ptr().add(block * 2 * GROUPS)));
            for pair in 0..parts::<F>() / PAIR {
                let at = (block * parts::<F>() / PAIR + pair) * STRIP * 2;
                let of_rows: [_; R] = std::array::from_fn(|r| _mm256_loadu_si256(whole_offsets[r].add(at).cast()));
                for c in 0..C {
                    let of_vector = pair_of(act_sums[c], pair);
                    for r in 0..R {
                        let products = _mm256_madd_epi16(of_rows[r], of_vector);
                        offsets[r][c] = _mm256_add_epi32(offsets[r][c], products);
                    }
                }
            }
            for r in 0..R {
                let eight = tile.eight(r, block, F::MINIMUMS);
                for c in 0..C {
                    let act_scale = tile.acts.scales(n + c)[block * GROUPS];
                    sums[r][c] = add_large::<F>(sums[r][c], whole[r][c], offsets[r][c], eight, act_scale);
                }
            }
        }
    }
    store(tile, sums);
}

/// Stores what lies within the rows asked for.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store<const R: usize, const C: usize>(tile: Tile<'_>, sums: [[__m256; C]; R]) {
    for r in 0..R {
        let row = tile.row + r * STRIP;
        let count = tile.rows_end.saturating_sub(row).min(STRIP);
        for c in 0..C {
            let mut eight = [0.0f32; STRIP];
            // SAFETY: there is room for eight.
            unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), sums[r][c]) };
            match count {
                STRIP => tile.out.put_row(tile.n + c, row, &eight),
                _ => tile.out.put_row(tile.n + c, row, &eight[..count]),
            }
        }
    }
}
