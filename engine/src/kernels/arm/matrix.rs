//! Many vectors: rows are unpacked once, as many as stay in the second-level cache, in strips of four whose codes lie in the
//! order that the multiplying instruction wants; so do the codes of the vectors, in fours. A tile is a strip with four
//! vectors or two.
//!
//! Vector operations for a tile of four by four and 32 codes, loads apart: 16 (`smmla`), 32 (`sdot`) or 92 to 108 (NEON) to
//! multiply, then 4 to convert, 4 for the scale and 4 to add; blocks of 256 have 4 or 8 instead, and those 12 once.

// Registers are indexed by row, vector and group; iterators over parallel arrays would hide which is which.
#![allow(clippy::needless_range_loop)]

use super::dot::{Dot, REGISTERS};
use super::formats::{Large, Small, each_group};
use super::packed::{self, LargeBlock};
use super::{GROUP, STRIP, four_halves, put_rows, strips};
use crate::kernels::{Activations, Layout, STRIP_ROWS, SharedOut, WeightRows};
use std::arch::aarch64::*;
use std::cell::RefCell;
use std::ops::Range;

/// Unpacked codes that stay in the cache while all vectors pass.
const UNPACKED_BYTES: usize = 64 << 10;
/// Vectors of a tile.
const TILE_VECTORS: usize = 4;
/// Groups of a large block.
pub(super) const TOGETHER: usize = 8;
/// Codes of a group of a strip, or of a tile's vectors.
const STRIP_GROUP: usize = STRIP * GROUP;

/// Unpacked rows and vectors; the last strip and the last tile are filled up with what is not used.
#[derive(Default)]
struct Unpacked {
    /// (strips, groups, 4 x 32), arranged
    codes: Vec<i8>,
    /// (strips, blocks, 4)
    scales: Vec<f32>,
    /// (strips, blocks, 4)
    minimums: Vec<f32>,
    /// Blocks of 256: (strips, groups, 4), or by halves (strips, 2 x groups, 4).
    whole_scales: Vec<i16>,
    /// Likewise.
    whole_minimums: Vec<i16>,
    /// (tiles, groups, 4 x 32), arranged
    act_codes: Vec<i8>,
    /// (tiles, groups, 4)
    act_scales: Vec<f32>,
    /// Scale x sum of codes: (tiles, groups, 4).
    act_sums: Vec<f32>,
}

thread_local! {
    static UNPACKED: RefCell<Unpacked> = RefCell::new(Unpacked::default());
}

/// Lengths of one unpacked row.
#[derive(Clone, Copy)]
struct Lengths {
    groups: usize,
    blocks: usize,
    minimums: usize,
    whole_scales: usize,
    whole_minimums: usize,
}

/// Makes room that is never given back, so that a thread allocates for its largest shape only.
fn grow<T: Clone + Default>(room: &mut Vec<T>, len: usize) {
    if room.len() < len {
        room.resize(len, T::default());
    }
}

/// Blocks of 32 against all vectors of `acts`.
///
/// # Safety
/// The processor has `D`'s instructions; `rows` lie within the weights, vectors are as long as rows.
pub(super) unsafe fn small_blocks<F: Small, D: Dot>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    let groups = weights.cols / GROUP;
    let minimums = if F::MINIMUM { groups } else { 0 };
    let lengths = Lengths { groups, blocks: groups, minimums, whole_scales: 0, whole_minimums: 0 };
    UNPACKED.with_borrow_mut(|room| {
        room.arrange_acts::<D>(acts);
        for rows in batches(rows, weights.cols) {
            room.make(rows.len(), lengths);
            // SAFETY: these rows lie within the weights, and there is room for them.
            unsafe { unpack_all_small::<F, D>(&weights, rows.clone(), room, groups) };
            for tile in (0..acts.n()).step_by(TILE_VECTORS) {
                for (s, first) in rows.clone().step_by(STRIP).enumerate() {
                    let strip = first..rows.end.min(first + STRIP);
                    // SAFETY: these rows and all vectors were unpacked; the caller's promise of `D`'s instructions.
                    unsafe {
                        if acts.n() - tile > 2 {
                            let products = small_tile::<F, D, 4>(room, groups, s, tile / TILE_VECTORS);
                            put(&strip, out, tile, acts.n(), products);
                        } else {
                            let products = small_tile::<F, D, 2>(room, groups, s, tile / TILE_VECTORS);
                            put(&strip, out, tile, acts.n(), products);
                        }
                    }
                }
            }
        }
    });
}

/// Blocks of 256 against all vectors of `acts`.
///
/// # Safety
/// As [`small_blocks`].
pub(super) unsafe fn large_blocks<F: Large, D: Dot>(
    weights: WeightRows<'_>,
    rows: Range<usize>,
    acts: &Activations,
    out: SharedOut,
) {
    let groups = weights.cols / GROUP;
    let blocks = groups / TOGETHER;
    let of_row = if F::HALVES { 2 * groups } else { groups };
    let (minimums, whole_minimums) = if F::MINIMUM { (blocks, of_row) } else { (0, 0) };
    let lengths = Lengths { groups, blocks, minimums, whole_scales: of_row, whole_minimums };
    UNPACKED.with_borrow_mut(|room| {
        room.arrange_acts::<D>(acts);
        for rows in batches(rows, weights.cols) {
            room.make(rows.len(), lengths);
            // SAFETY: these rows lie within the weights, and there is room for them.
            unsafe { unpack_all_large::<F, D>(&weights, rows.clone(), room, lengths) };
            for tile in (0..acts.n()).step_by(TILE_VECTORS) {
                for (s, first) in rows.clone().step_by(STRIP).enumerate() {
                    let strip = first..rows.end.min(first + STRIP);
                    // SAFETY: these rows and all vectors were unpacked; the caller's promise of `D`'s instructions.
                    unsafe {
                        if acts.n() - tile > 2 {
                            let products = large_tile::<F, D, 4>(room, lengths, s, tile, acts);
                            put(&strip, out, tile, acts.n(), products);
                        } else {
                            let products = large_tile::<F, D, 2>(room, lengths, s, tile, acts);
                            put(&strip, out, tile, acts.n(), products);
                        }
                    }
                }
            }
        }
    });
}

/// Writes those of a tile's products that belong to vectors.
#[inline(always)]
fn put<const C: usize>(strip: &Range<usize>, out: SharedOut, tile: usize, n: usize, products: [float32x4_t; C]) {
    for (c, product) in products.into_iter().enumerate().take(n - tile) {
        put_rows(out, tile + c, strip.clone(), product);
    }
}

impl Unpacked {
    /// Room for `rows` rows.
    fn make(&mut self, rows: usize, lengths: Lengths) {
        let rows = rows.next_multiple_of(STRIP_ROWS);
        grow(&mut self.codes, rows * lengths.groups * GROUP);
        grow(&mut self.scales, rows * lengths.blocks);
        grow(&mut self.minimums, rows * lengths.minimums);
        grow(&mut self.whole_scales, rows * lengths.whole_scales);
        grow(&mut self.whole_minimums, rows * lengths.whole_minimums);
    }

    /// Brings the vectors into the tiles' order.
    fn arrange_acts<D: Dot>(&mut self, acts: &Activations) {
        let (n, groups) = (acts.n(), acts.cols() / GROUP);
        let tiles = n.div_ceil(TILE_VECTORS);
        grow(&mut self.act_codes, tiles * groups * STRIP_GROUP);
        grow(&mut self.act_scales, tiles * groups * TILE_VECTORS);
        grow(&mut self.act_sums, tiles * groups * TILE_VECTORS);
        for tile in 0..tiles {
            let vectors: [usize; TILE_VECTORS] = std::array::from_fn(|c| (tile * TILE_VECTORS + c).min(n - 1));
            let (codes, scales, sums) =
                (vectors.map(|v| acts.codes(v)), vectors.map(|v| acts.scales(v)), vectors.map(|v| acts.sums_32(v)));
            for g in 0..groups {
                let at = tile * groups + g;
                for c in 0..TILE_VECTORS {
                    self.act_scales[at * TILE_VECTORS + c] = scales[c][g];
                    self.act_sums[at * TILE_VECTORS + c] = sums[c][g];
                }
                let to = &mut self.act_codes[at * STRIP_GROUP..][..STRIP_GROUP];
                let four = codes.map(|codes| {
                    let codes = &codes[g * GROUP..][..GROUP];
                    // SAFETY: there are 32 codes.
                    unsafe { [vld1q_s8(codes.as_ptr()), vld1q_s8(codes[16..].as_ptr())] }
                });
                store(D::arrange_acts(four), to);
            }
        }
    }
}

/// Writes the codes of a group.
#[inline(always)]
fn store(registers: [int8x16_t; REGISTERS], to: &mut [i8]) {
    for (register, to) in registers.into_iter().zip(to.chunks_exact_mut(16)) {
        // SAFETY: there is room for 16.
        unsafe { vst1q_s8(to.as_mut_ptr(), register) };
    }
}

/// `rows` in pieces whose unpacked codes fit the cache.
fn batches(rows: Range<usize>, cols: usize) -> impl Iterator<Item = Range<usize>> {
    let length = (UNPACKED_BYTES / cols.max(1)).next_multiple_of(STRIP_ROWS).max(STRIP_ROWS);
    rows.clone().step_by(length).map(move |first| first..(first + length).min(rows.end))
}

/// Unpacks all blocks of 32 of `rows`, from either layout.
///
/// # Safety
/// `rows` lie within the weights and begin a strip where these are packed; there is room for them.
unsafe fn unpack_all_small<F: Small, D: Dot>(
    weights: &WeightRows<'_>,
    rows: Range<usize>,
    room: &mut Unpacked,
    groups: usize,
) {
    // SAFETY: block `b` of these rows is whole.
    unsafe {
        if weights.layout == Layout::Strips {
            for s in 0..2 * rows.len().div_ceil(STRIP_ROWS) {
                for b in 0..groups {
                    unfold_small::<F, D>(weights, rows.start / STRIP_ROWS, room, s, b);
                }
            }
            return;
        }
        for (s, strip) in strips(weights, rows).enumerate() {
            for b in 0..groups {
                unpack_small::<F, D>(strip.at(b * F::BYTES), room, s * groups + b);
            }
        }
    }
}

/// As [`unpack_all_small`] for blocks of 256.
///
/// # Safety
/// As there.
unsafe fn unpack_all_large<F: Large, D: Dot>(
    weights: &WeightRows<'_>,
    rows: Range<usize>,
    room: &mut Unpacked,
    lengths: Lengths,
) {
    // SAFETY: block `b` of these rows is whole.
    unsafe {
        if weights.layout == Layout::Strips {
            for s in 0..2 * rows.len().div_ceil(STRIP_ROWS) {
                for b in 0..lengths.blocks {
                    let strip = rows.start / STRIP_ROWS + s / 2;
                    unfold_large::<F, D>(&LargeBlock::new::<F>(weights, strip, b, s % 2), room, lengths, s, b);
                }
            }
            return;
        }
        for (s, strip) in strips(weights, rows).enumerate() {
            for b in 0..lengths.blocks {
                unpack_large::<F, D>(strip.at(b * F::BYTES), room, lengths, s, b);
            }
        }
    }
}

/// Unpacks block `b` of 32 of four packed rows, the `s`th four from strip `first` on.
///
/// # Safety
/// The weights have that block, the room has a place for it.
#[inline(always)]
unsafe fn unfold_small<F: Small, D: Dot>(
    weights: &WeightRows<'_>,
    first: usize,
    room: &mut Unpacked,
    s: usize,
    b: usize,
) {
    let at = s * (weights.cols / GROUP) + b;
    // SAFETY: the caller's promise; all targets are cut to what is written.
    unsafe {
        let block = packed::small_block::<F, D>(weights, first + s / 2, b, s % 2);
        // unlike those of rows, these codes are not shifted; that and its undoing are exact, so the product is the same
        vst1q_f32(room.scales[at * STRIP..][..STRIP].as_mut_ptr(), block.scales);
        if F::MINIMUM {
            vst1q_f32(room.minimums[at * STRIP..][..STRIP].as_mut_ptr(), block.minimums);
        }
        store(block.codes, &mut room.codes[at * STRIP_GROUP..][..STRIP_GROUP]);
    }
}

/// Unpacks four packed rows' block `b` of 256, the `s`th four of the room.
///
/// # Safety
/// The room has a place for it.
#[inline(always)]
unsafe fn unfold_large<F: Large, D: Dot>(
    block: &LargeBlock,
    room: &mut Unpacked,
    lengths: Lengths,
    s: usize,
    b: usize,
) {
    let at = s * lengths.blocks + b;
    // SAFETY: all targets are cut to what is written.
    unsafe {
        vst1q_f32(room.scales[at * STRIP..][..STRIP].as_mut_ptr(), block.scales);
        if F::MINIMUM {
            vst1q_f32(room.minimums[at * STRIP..][..STRIP].as_mut_ptr(), block.minimums);
        }
        for part in 0..parts::<F>() {
            let (scales, minimums) = block.part::<F>(part);
            let to = (at * parts::<F>() + part) * STRIP;
            vst1_s16(room.whole_scales[to..][..STRIP].as_mut_ptr(), scales);
            if F::MINIMUM {
                vst1_s16(room.whole_minimums[to..][..STRIP].as_mut_ptr(), minimums);
            }
        }
    }
    let to = &mut room.codes[at * TOGETHER * STRIP_GROUP..][..TOGETHER * STRIP_GROUP];
    each_group!(G => {
        store(block.codes::<F, D, G>(), &mut to[G * STRIP_GROUP..][..STRIP_GROUP]);
    });
}

/// Unpacks a block of 32 of each row of a strip as block `at` of the room.
///
/// # Safety
/// The blocks are whole.
#[inline(always)]
unsafe fn unpack_small<F: Small, D: Dot>(blocks: [*const u8; STRIP], room: &mut Unpacked, at: usize) {
    let scales = &mut room.scales[at * STRIP..][..STRIP];
    // SAFETY: the caller's promise; there is room for four.
    unsafe {
        vst1q_f32(scales.as_mut_ptr(), vmulq_n_f32(four_halves(blocks, 0), F::FACTOR));
        if F::MINIMUM {
            vst1q_f32(room.minimums[at * STRIP..][..STRIP].as_mut_ptr(), four_halves(blocks, 2));
        }
        let codes = D::arrange_weights(blocks.map(|block| F::codes::<0>(block)));
        store(codes, &mut room.codes[at * STRIP_GROUP..][..STRIP_GROUP]);
    }
}

/// Unpacks block `b`, of 256, of each row of strip `s`.
///
/// # Safety
/// The blocks are whole.
#[inline(always)]
unsafe fn unpack_large<F: Large, D: Dot>(
    blocks: [*const u8; STRIP],
    room: &mut Unpacked,
    lengths: Lengths,
    s: usize,
    b: usize,
) {
    let per_block = parts::<F>();
    // SAFETY: the caller's promise; all targets are cut to what is written.
    unsafe {
        let at = (s * lengths.blocks + b) * STRIP;
        vst1q_f32(room.scales[at..][..STRIP].as_mut_ptr(), four_halves(blocks, F::SCALE_AT));
        if F::MINIMUM {
            vst1q_f32(room.minimums[at..][..STRIP].as_mut_ptr(), four_halves(blocks, F::MINIMUM_AT));
        }
        for (r, block) in blocks.into_iter().enumerate() {
            let head = F::head(block);
            put_parts(head.scales, r, &mut room.whole_scales[at * per_block..][..per_block * STRIP]);
            if F::MINIMUM {
                put_parts(head.minimums, r, &mut room.whole_minimums[at * per_block..][..per_block * STRIP]);
            }
        }
        let at = s * lengths.groups + b * TOGETHER;
        let to = &mut room.codes[at * STRIP_GROUP..][..TOGETHER * STRIP_GROUP];
        each_group!(G => {
            let codes = D::arrange_weights(blocks.map(|block| F::codes::<G>(block)));
            store(codes, &mut to[G * STRIP_GROUP..][..STRIP_GROUP]);
        });
    }
}

/// Parts of a block of 256: groups, or by halves of them.
pub(super) const fn parts<F: Large>() -> usize {
    if F::HALVES { 2 * TOGETHER } else { TOGETHER }
}

/// The whole numbers of row `r`, one for each part, in their places (parts, 4).
fn put_parts(of_row: [int32x4_t; 4], r: usize, to: &mut [i16]) {
    let mut whole = [0i32; 16];
    for (whole, four) in whole.chunks_exact_mut(4).zip(of_row) {
        // SAFETY: there is room for four.
        unsafe { vst1q_s32(whole.as_mut_ptr(), four) };
    }
    for (to, whole) in to.chunks_exact_mut(STRIP).zip(whole) {
        to[r] = whole as i16;
    }
}

/// # Safety
/// A group of a strip can be read.
#[inline(always)]
unsafe fn load_strip(codes: *const i8) -> [int8x16_t; REGISTERS] {
    // SAFETY: the caller's promise.
    std::array::from_fn(|i| unsafe { vld1q_s8(codes.add(16 * i)) })
}

/// Strip `s` with tile `t` of the vectors: one register a vector, one row a lane.
///
/// # Safety
/// The processor has `D`'s instructions; strip and tile were unpacked.
unsafe fn small_tile<F: Small, D: Dot, const C: usize>(
    room: &Unpacked,
    groups: usize,
    s: usize,
    t: usize,
) -> [float32x4_t; C] {
    let codes = &room.codes[s * groups * STRIP_GROUP..][..groups * STRIP_GROUP];
    let act_codes = &room.act_codes[t * groups * STRIP_GROUP..][..groups * STRIP_GROUP];
    let scales = &room.scales[s * groups * STRIP..][..groups * STRIP];
    let act_scales = &room.act_scales[t * groups * TILE_VECTORS..][..groups * TILE_VECTORS];
    let minimums = if F::MINIMUM { &room.minimums[s * groups * STRIP..][..groups * STRIP] } else { scales };
    let act_sums = &room.act_sums[t * groups * TILE_VECTORS..][..groups * TILE_VECTORS];
    // SAFETY: group `g` lies within all of these.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); C];
        let mut minimum_sums = [vdupq_n_f32(0.0); C];
        for g in 0..groups {
            let weights = load_strip(codes.as_ptr().add(g * STRIP_GROUP));
            let acts = act_codes.as_ptr().add(g * STRIP_GROUP);
            let products: [int32x4_t; C] = match F::NARROW {
                true => D::group::<C, true>(&weights, acts),
                false => D::group::<C, false>(&weights, acts),
            };
            let of_rows = D::of_rows::<C>(vld1q_f32(scales.as_ptr().add(g * STRIP)));
            let of_vectors = D::of_vectors::<C>(vld1q_f32(act_scales.as_ptr().add(g * TILE_VECTORS)));
            for i in 0..C {
                sums[i] = vfmaq_f32(sums[i], vcvtq_f32_s32(products[i]), vmulq_f32(of_rows[i], of_vectors[i]));
            }
            if F::MINIMUM {
                let of_rows = D::of_rows::<C>(vld1q_f32(minimums.as_ptr().add(g * STRIP)));
                let of_vectors = D::of_vectors::<C>(vld1q_f32(act_sums.as_ptr().add(g * TILE_VECTORS)));
                for i in 0..C {
                    minimum_sums[i] = vfmaq_f32(minimum_sums[i], of_rows[i], of_vectors[i]);
                }
            }
        }
        D::by_vector(std::array::from_fn(|i| vaddq_f32(sums[i], minimum_sums[i])))
    }
}

/// Strip `s` with the vectors from `tile` on: one register a vector, one row a lane.
///
/// # Safety
/// The processor has `D`'s instructions; strip and tile were unpacked.
unsafe fn large_tile<F: Large, D: Dot, const C: usize>(
    room: &Unpacked,
    lengths: Lengths,
    s: usize,
    tile: usize,
    acts: &Activations,
) -> [float32x4_t; C] {
    let (groups, t) = (lengths.groups, tile / TILE_VECTORS);
    let codes = &room.codes[s * groups * STRIP_GROUP..][..groups * STRIP_GROUP];
    let act_codes = &room.act_codes[t * groups * STRIP_GROUP..][..groups * STRIP_GROUP];
    let scales = &room.scales[s * lengths.blocks * STRIP..][..lengths.blocks * STRIP];
    let act_scales = &room.act_scales[t * groups * TILE_VECTORS..][..groups * TILE_VECTORS];
    let whole_scales = &room.whole_scales[s * STRIP * lengths.whole_scales..][..STRIP * lengths.whole_scales];
    // SAFETY: block `b` and group `g` lie within all of these.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); C];
        for b in 0..lengths.blocks {
            let mut whole = [vdupq_n_s32(0); C];
            for g in b * TOGETHER..(b + 1) * TOGETHER {
                let weights = load_strip(codes.as_ptr().add(g * STRIP_GROUP));
                let acts = act_codes.as_ptr().add(g * STRIP_GROUP);
                if F::HALVES {
                    for half in 0..2 {
                        let products = D::add_half([vdupq_n_s32(0); C], &weights, acts, half);
                        add_scaled::<D, C>(&mut whole, products, whole_scales.as_ptr().add((2 * g + half) * STRIP));
                    }
                } else {
                    let products = D::group::<C, true>(&weights, acts);
                    add_scaled::<D, C>(&mut whole, products, whole_scales.as_ptr().add(g * STRIP));
                }
            }
            let of_rows = D::of_rows::<C>(vld1q_f32(scales.as_ptr().add(b * STRIP)));
            // a vector's scale is shared by the block's eight groups, see `ActivationFormat::Q8K`
            let of_vectors = D::of_vectors::<C>(vld1q_f32(act_scales.as_ptr().add(b * TOGETHER * TILE_VECTORS)));
            for i in 0..C {
                sums[i] = vfmaq_f32(sums[i], vcvtq_f32_s32(whole[i]), vmulq_f32(of_rows[i], of_vectors[i]));
            }
        }
        let mut products = D::by_vector(sums);
        if F::MINIMUM {
            for (c, product) in products.iter_mut().enumerate().take(acts.n() - tile) {
                *product = vsubq_f32(*product, minimums_with::<F>(room, lengths, s, acts, tile + c));
            }
        }
        products
    }
}

/// `whole += products x the scales of four rows`.
///
/// # Safety
/// Four scales can be read.
#[inline(always)]
unsafe fn add_scaled<D: Dot, const C: usize>(whole: &mut [int32x4_t; C], products: [int32x4_t; C], scales: *const i16) {
    // SAFETY: the caller's promise.
    unsafe {
        // the order of the sums is the same for whole numbers
        let scales = D::of_rows::<C>(vreinterpretq_f32_s32(vmovl_s16(vld1_s16(scales))));
        for i in 0..C {
            whole[i] = vmlaq_s32(whole[i], products[i], vreinterpretq_s32_f32(scales[i]));
        }
    }
}

/// What a strip's minimums take off the products of vector `n`, added in the order in which `vector::large_blocks` does.
fn minimums_with<F: Large>(room: &Unpacked, lengths: Lengths, s: usize, acts: &Activations, n: usize) -> float32x4_t {
    let (scales, code_sums) = (acts.scales(n), acts.code_sums(n));
    let minimums = &room.minimums[s * lengths.blocks * STRIP..][..lengths.blocks * STRIP];
    let whole_minimums = &room.whole_minimums[s * STRIP * lengths.whole_minimums..][..STRIP * lengths.whole_minimums];
    // SAFETY: four rows have these numbers for every block and part, the vector has its sums; NEON is part of every 64-bit
    // Arm.
    unsafe {
        let mut sums = vdupq_n_f32(0.0);
        for b in 0..lengths.blocks {
            let of_parts = code_sums_of_parts::<F>(code_sums.as_ptr().add(b * 16));
            let mut whole = vdupq_n_s32(0);
            each_group!(G => {
                let at = |part: usize| vld1_s16(whole_minimums.as_ptr().add((b * parts::<F>() + part) * STRIP));
                whole = vmlal_laneq_s16::<{ G as i32 }>(whole, at(G), of_parts[0]);
                if F::HALVES {
                    whole = vmlal_laneq_s16::<{ G as i32 }>(whole, at(TOGETHER + G), of_parts[1]);
                }
            });
            let scale = vmulq_n_f32(vld1q_f32(minimums.as_ptr().add(b * STRIP)), scales[b * TOGETHER]);
            sums = vfmaq_f32(sums, vcvtq_f32_s32(whole), scale);
        }
        sums
    }
}

/// Sums of a vector's codes for each part of a block of 256: of half groups in order, or of groups in the first register.
///
/// # Safety
/// 16 sums can be read.
#[inline(always)]
pub(super) unsafe fn code_sums_of_parts<F: Large>(code_sums: *const i16) -> [int16x8_t; 2] {
    // SAFETY: the caller's promise. A sum of 32 codes fits 16 bits.
    unsafe {
        let of_halves = [vld1q_s16(code_sums), vld1q_s16(code_sums.add(8))];
        if F::HALVES { of_halves } else { [vpaddq_s16(of_halves[0], of_halves[1]); 2] }
    }
}
