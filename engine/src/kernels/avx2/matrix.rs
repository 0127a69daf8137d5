//! Many vectors: rows are unpacked once, as many as stay in the second-level cache, then pairs of them meet four vectors
//! at a time, which stay in the first-level cache.

// Tiles are indexed by row, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::formats::{Large, Small};
use super::{GROUP, floats, group_scale, horizontal, multiply, multiply_scaled};
use crate::kernels::{Activations, SharedOut, WeightRows};
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

/// Unpacked codes that stay in the cache while all vectors pass.
const UNPACKED_BYTES: usize = 64 << 10;
/// Vectors and rows of a tile.
const TILE_VECTORS: usize = 4;
const TILE_ROWS: usize = 2;
/// Groups whose scales are multiplied together, and groups of a large block.
const TOGETHER: usize = 8;

/// Unpacked rows.
#[derive(Default)]
struct Unpacked {
    /// (rows, cols)
    codes: Vec<u8>,
    /// (rows, blocks)
    scales: Vec<f32>,
    /// What to take off: (rows, cols / 32), or by halves (rows, cols / 16).
    offsets: Vec<f32>,
    /// Large blocks: (rows, blocks, 16), as `LargeHead::scales`.
    whole_scales: Vec<i16>,
}

thread_local! {
    static UNPACKED: RefCell<Unpacked> = RefCell::new(Unpacked::default());
}

/// Lengths of one unpacked row.
#[derive(Clone, Copy)]
struct Lengths {
    cols: usize,
    blocks: usize,
    offsets: usize,
    whole_scales: usize,
}

/// Blocks of 32 against all vectors of `acts`.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `rows` lie within the weights, vectors are as long as rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn small_blocks<F: Small>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    let groups = weights.cols / GROUP;
    let lengths = Lengths { cols: weights.cols, blocks: groups, offsets: groups, whole_scales: 0 };
    UNPACKED.with_borrow_mut(|room| {
        for rows in batches(rows, lengths.cols) {
            room.make(rows.len(), lengths);
            for (i, row) in rows.clone().enumerate() {
                let scales = &mut room.scales[i * groups..][..groups];
                let offsets = &mut room.offsets[i * groups..][..groups];
                for (b, block) in weights.row(row).chunks_exact(F::BYTES).enumerate() {
                    let to = &mut room.codes[i * lengths.cols + b * GROUP..][..GROUP];
                    // SAFETY: the block is whole, `to` has 32 bytes.
                    unsafe {
                        (scales[b], offsets[b]) = F::scale_and_offset(block);
                        _mm256_storeu_si256(to.as_mut_ptr().cast(), F::codes(block, 0));
                    }
                }
            }
            // SAFETY: these rows were unpacked, all vectors exist; features as in the caller.
            tiles(rows, acts.n(), |at, n, count| unsafe {
                match count {
                    (2, 4) => small_tile::<F, 2, 4>(room, lengths, at, acts, n, out),
                    (2, 3) => small_tile::<F, 2, 3>(room, lengths, at, acts, n, out),
                    (2, 2) => small_tile::<F, 2, 2>(room, lengths, at, acts, n, out),
                    (2, _) => small_tile::<F, 2, 1>(room, lengths, at, acts, n, out),
                    (_, 4) => small_tile::<F, 1, 4>(room, lengths, at, acts, n, out),
                    (_, 3) => small_tile::<F, 1, 3>(room, lengths, at, acts, n, out),
                    (_, 2) => small_tile::<F, 1, 2>(room, lengths, at, acts, n, out),
                    (_, _) => small_tile::<F, 1, 1>(room, lengths, at, acts, n, out),
                }
            });
        }
    });
}

/// Blocks of 256 against all vectors of `acts`.
///
/// # Safety
/// As [`small_blocks`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn large_blocks<F: Large>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    let per_block = if F::HALVES { 2 * TOGETHER } else { TOGETHER };
    let blocks = weights.cols / (TOGETHER * GROUP);
    let lengths = Lengths { cols: weights.cols, blocks, offsets: blocks * per_block, whole_scales: blocks * 16 };
    UNPACKED.with_borrow_mut(|room| {
        for rows in batches(rows, lengths.cols) {
            room.make(rows.len(), lengths);
            for (i, row) in rows.clone().enumerate() {
                for (b, block) in weights.row(row).chunks_exact(F::BYTES).enumerate() {
                    let at = i * blocks + b;
                    // SAFETY: the block is whole.
                    unsafe { unpack_large::<F>(block, room, at, per_block) };
                }
            }
            // SAFETY: these rows were unpacked, all vectors exist; features as in the caller.
            tiles(rows, acts.n(), |at, n, count| unsafe {
                match count {
                    (2, 4) => large_tile::<F, 2, 4>(room, lengths, at, acts, n, out),
                    (2, 3) => large_tile::<F, 2, 3>(room, lengths, at, acts, n, out),
                    (2, 2) => large_tile::<F, 2, 2>(room, lengths, at, acts, n, out),
                    (2, _) => large_tile::<F, 2, 1>(room, lengths, at, acts, n, out),
                    (_, 4) => large_tile::<F, 1, 4>(room, lengths, at, acts, n, out),
                    (_, 3) => large_tile::<F, 1, 3>(room, lengths, at, acts, n, out),
                    (_, 2) => large_tile::<F, 1, 2>(room, lengths, at, acts, n, out),
                    (_, _) => large_tile::<F, 1, 1>(room, lengths, at, acts, n, out),
                }
            });
        }
    });
}

impl Unpacked {
    /// Room for `rows` rows; grows to the largest shape once.
    fn make(&mut self, rows: usize, lengths: Lengths) {
        let grow = |have: usize, need: usize| have.max(need);
        self.codes.resize(grow(self.codes.len(), rows * lengths.cols), 0);
        self.scales.resize(grow(self.scales.len(), rows * lengths.blocks), 0.0);
        self.offsets.resize(grow(self.offsets.len(), rows * lengths.offsets), 0.0);
        self.whole_scales.resize(grow(self.whole_scales.len(), rows * lengths.whole_scales), 0);
    }
}

/// `rows` in pieces whose unpacked codes fit the cache.
fn batches(rows: Range<usize>, cols: usize) -> impl Iterator<Item = Range<usize>> {
    let length = (UNPACKED_BYTES / cols.max(1)).next_multiple_of(TILE_ROWS).max(TILE_ROWS);
    rows.clone().step_by(length).map(move |first| first..(first + length).min(rows.end))
}

/// Calls `tile` with (place in the batch, row), first vector and (rows, vectors) of every tile. Ragged vectors are spread
/// evenly: nine are three times three.
#[inline]
fn tiles(rows: Range<usize>, n: usize, mut tile: impl FnMut((usize, usize), usize, (usize, usize))) {
    let count = n.div_ceil(TILE_VECTORS);
    for i in 0..count {
        let (from, to) = (i * n / count, (i + 1) * n / count);
        for at in (0..rows.len()).step_by(TILE_ROWS) {
            tile((at, rows.start + at), from, ((rows.len() - at).min(TILE_ROWS), to - from));
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn small_tile<F: Small, const R: usize, const C: usize>(
    room: &Unpacked,
    lengths: Lengths,
    (at, row): (usize, usize),
    acts: &Activations,
    n: usize,
    out: SharedOut,
) {
    let weight_codes: [&[u8]; R] = std::array::from_fn(|r| &room.codes[(at + r) * lengths.cols..][..lengths.cols]);
    let weight_scales: [&[f32]; R] =
        std::array::from_fn(|r| &room.scales[(at + r) * lengths.blocks..][..lengths.blocks]);
    let act_codes: [&[i8]; C] = std::array::from_fn(|c| acts.codes(n + c));
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    for first in (0..lengths.blocks).step_by(TOGETHER) {
        let count = (lengths.blocks - first).min(TOGETHER);
        let mut scales = [[[0.0f32; TOGETHER]; C]; R];
        for r in 0..R {
            let weight = up_to_eight(&weight_scales[r][first..]);
            for c in 0..C {
                let both = _mm256_mul_ps(weight, up_to_eight(&act_scales[c][first..]));
                // SAFETY: there is room for eight.
                unsafe { _mm256_storeu_ps(scales[r][c].as_mut_ptr(), both) };
            }
        }
        for i in 0..count {
            let from = (first + i) * GROUP;
            // SAFETY: group `first + i` lies within rows and vectors.
            let weight: [__m256i; R] =
                std::array::from_fn(|r| unsafe { _mm256_loadu_si256(weight_codes[r].as_ptr().add(from).cast()) });
            for c in 0..C {
                // SAFETY: as above.
                let act = unsafe { _mm256_loadu_si256(act_codes[c].as_ptr().add(from).cast()) };
                for r in 0..R {
                    let products = _mm256_cvtepi32_ps(multiply::<F>(weight[r], act));
                    sums[r][c] = _mm256_fmadd_ps(products, _mm256_set1_ps(scales[r][c][i]), sums[r][c]);
                }
            }
        }
    }
    for r in 0..R {
        let offsets = &room.offsets[(at + r) * lengths.offsets..][..lengths.offsets];
        for c in 0..C {
            let offset = if F::OFFSET { floats::dot(offsets, acts.sums_32(n + c)) } else { 0.0 };
            out.put(n + c, row + r, horizontal(sums[r][c]) - offset);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn large_tile<F: Large, const R: usize, const C: usize>(
    room: &Unpacked,
    lengths: Lengths,
    (at, row): (usize, usize),
    acts: &Activations,
    n: usize,
    out: SharedOut,
) {
    let weight_codes: [&[u8]; R] = std::array::from_fn(|r| &room.codes[(at + r) * lengths.cols..][..lengths.cols]);
    let act_codes: [&[i8]; C] = std::array::from_fn(|c| acts.codes(n + c));
    let act_scales: [&[f32]; C] = std::array::from_fn(|c| acts.scales(n + c));
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    for block in 0..lengths.blocks {
        let mut whole = [[_mm256_setzero_si256(); C]; R];
        // SAFETY: sixteen scales of every block were unpacked.
        let scales: [__m256i; R] = std::array::from_fn(|r| unsafe {
            _mm256_loadu_si256(room.whole_scales.as_ptr().add(((at + r) * lengths.blocks + block) * 16).cast())
        });
        for g in 0..TOGETHER {
            let from = (block * TOGETHER + g) * GROUP;
            let scale: [__m256i; R] = std::array::from_fn(|r| group_scale(scales[r], g));
            // SAFETY: group `g` of this block lies within rows and vectors.
            let weight: [__m256i; R] =
                std::array::from_fn(|r| unsafe { _mm256_loadu_si256(weight_codes[r].as_ptr().add(from).cast()) });
            for c in 0..C {
                // SAFETY: as above.
                let act = unsafe { _mm256_loadu_si256(act_codes[c].as_ptr().add(from).cast()) };
                for r in 0..R {
                    whole[r][c] = _mm256_add_epi32(whole[r][c], multiply_scaled(weight[r], act, scale[r]));
                }
            }
        }
        for r in 0..R {
            let weight_scale = room.scales[(at + r) * lengths.blocks + block];
            for c in 0..C {
                // the vector's scale is shared by the block's eight groups, see `ActivationFormat::Q8K`
                let scale = _mm256_set1_ps(weight_scale * act_scales[c][block * TOGETHER]);
                sums[r][c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r][c]), scale, sums[r][c]);
            }
        }
    }
    for r in 0..R {
        let offsets = &room.offsets[(at + r) * lengths.offsets..][..lengths.offsets];
        for c in 0..C {
            let act_sums = if F::HALVES { acts.sums_16(n + c) } else { acts.sums_32(n + c) };
            out.put(n + c, row + r, horizontal(sums[r][c]) - floats::dot(offsets, act_sums));
        }
    }
}

/// Unpacks a block of 256 as block `at` of the room.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_large<F: Large>(block: &[u8], room: &mut Unpacked, at: usize, per_block: usize) {
    let codes = &mut room.codes[at * TOGETHER * GROUP..][..TOGETHER * GROUP];
    let offsets = &mut room.offsets[at * per_block..][..per_block];
    let scales = &mut room.whole_scales[at * 16..][..16];
    // SAFETY: the caller gives a whole block; every target was just cut to its size.
    unsafe {
        let head = F::head(block);
        room.scales[at] = head.scale;
        _mm256_storeu_si256(scales.as_mut_ptr().cast(), head.scales);
        for (to, from) in offsets.chunks_exact_mut(8).zip(head.offsets) {
            _mm256_storeu_ps(to.as_mut_ptr(), from);
        }
        for (g, to) in codes.chunks_exact_mut(GROUP).enumerate() {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), F::codes(block, g));
        }
    }
}

/// The first eight floats, zeros where there are fewer.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn up_to_eight(values: &[f32]) -> __m256 {
    let mut eight = [0.0f32; 8];
    let from = match values.get(..8) {
        Some(whole) => whole,
        None => {
            eight[..values.len()].copy_from_slice(values);
            &eight
        }
    };
    // SAFETY: both have eight.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}
