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
use super::{GROUP, STRIP, Strip, four_halves, strips};
use crate::kernels::{Activations, SharedOut, WeightRows};
use std::arch::aarch64::*;
use std::cell::RefCell;
use std::ops::Range;

/// Unpacked codes that stay in the cache while all vectors pass.
const UNPACKED_BYTES: usize = 64 << 10;
/// Vectors of a tile.
const TILE_VECTORS: usize = 4;
/// Groups of a large block.
const TOGETHER: usize = 8;
/// Codes of a group of a strip, or of a tile's vectors.
const STRIP_GROUP: usize = STRIP * GROUP;

/// Unpacked rows and vectors; the last strip and the last tile are filled up with what is not used.
#[derive(Default)]
struct Unpacked {
    /// (strips, groups, 4 x 32), arranged
    codes: Vec<i8>,
    /// (strips, blocks, 4)
    scales: Vec<f32>,
    /// Blocks of 32: (strips, blocks, 4). Blocks of 256: (rows, groups), or by halves (rows, 2 x groups).
    minimums: Vec<f32>,
    /// Blocks of 256: (strips, groups, 4), or by halves (strips, 2 x groups, 4).
    whole_scales: Vec<i16>,
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
    let lengths = Lengths { groups, blocks: groups, minimums, whole_scales: 0 };
    UNPACKED.with_borrow_mut(|room| {
        room.arrange_acts::<D>(acts);
        for rows in batches(rows, weights.cols) {
            room.make(rows.len(), lengths);
            for (s, strip) in strips(&weights, rows.clone()).enumerate() {
                for b in 0..groups {
                    let at = s * groups + b;
                    // SAFETY: block `b` of these rows is whole.
                    unsafe { unpack_small::<F, D>(strip.at(b * F::BYTES), room, at) };
                }
            }
            for tile in (0..acts.n()).step_by(TILE_VECTORS) {
                for (s, strip) in strips(&weights, rows.clone()).enumerate() {
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
    let minimums = if F::MINIMUM { of_row } else { 0 };
    let lengths = Lengths { groups, blocks, minimums, whole_scales: of_row };
    UNPACKED.with_borrow_mut(|room| {
        room.arrange_acts::<D>(acts);
        for rows in batches(rows, weights.cols) {
            room.make(rows.len(), lengths);
            for (s, strip) in strips(&weights, rows.clone()).enumerate() {
                for b in 0..blocks {
                    // SAFETY: block `b` of these rows is whole.
                    unsafe { unpack_large::<F, D>(strip.at(b * F::BYTES), room, lengths, s, b) };
                }
            }
            for tile in (0..acts.n()).step_by(TILE_VECTORS) {
                for (s, strip) in strips(&weights, rows.clone()).enumerate() {
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
fn put<const C: usize>(strip: &Strip<'_>, out: SharedOut, tile: usize, n: usize, products: [float32x4_t; C]) {
    for (c, product) in products.into_iter().enumerate().take(n - tile) {
        strip.put(out, tile + c, [product]);
    }
}

impl Unpacked {
    /// Room for `rows` rows.
    fn make(&mut self, rows: usize, lengths: Lengths) {
        let rows = rows.next_multiple_of(STRIP);
        grow(&mut self.codes, rows * lengths.groups * GROUP);
        grow(&mut self.scales, rows * lengths.blocks);
        grow(&mut self.minimums, rows * lengths.minimums);
        grow(&mut self.whole_scales, rows * lengths.whole_scales);
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
    let length = (UNPACKED_BYTES / cols.max(1)).next_multiple_of(STRIP).max(STRIP);
    rows.clone().step_by(length).map(move |first| first..(first + length).min(rows.end))
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
    let per_block = if F::HALVES { 2 * TOGETHER } else { TOGETHER };
    // SAFETY: the caller's promise; all targets are cut to what is written.
    unsafe {
        let scales = &mut room.scales[(s * lengths.blocks + b) * STRIP..][..STRIP];
        vst1q_f32(scales.as_mut_ptr(), four_halves(blocks, F::SCALE_AT));
        for (r, block) in blocks.into_iter().enumerate() {
            let head = F::head(block);
            let mut whole = [0i32; 16];
            for (q, four) in head.scales.into_iter().enumerate() {
                vst1q_s32(whole[4 * q..][..4].as_mut_ptr(), four);
            }
            let to = &mut room.whole_scales[s * STRIP * lengths.whole_scales + b * per_block * STRIP..];
            for (to, whole) in to.chunks_exact_mut(STRIP).zip(&whole[..per_block]) {
                to[r] = *whole as i16;
            }
            if F::MINIMUM {
                let to = &mut room.minimums[(s * STRIP + r) * lengths.minimums + b * per_block..][..per_block];
                for (to, four) in to.chunks_exact_mut(4).zip(head.minimums) {
                    vst1q_f32(to.as_mut_ptr(), four);
                }
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
                let act_sums = if F::HALVES { acts.sums_16(tile + c) } else { acts.sums_32(tile + c) };
                *product = vsubq_f32(*product, minimums_with(room, lengths.minimums, s, act_sums));
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

/// What a strip's minimums take off a vector's products, added in the order in which `vector::large_blocks` does.
fn minimums_with(room: &Unpacked, of_row: usize, s: usize, act_sums: &[f32]) -> float32x4_t {
    let rows: [&[f32]; STRIP] = std::array::from_fn(|r| &room.minimums[(s * STRIP + r) * of_row..][..of_row]);
    // SAFETY: of all slices, four floats from `at` on are there; NEON is part of every 64-bit Arm.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); STRIP];
        for at in (0..of_row.min(act_sums.len())).step_by(4) {
            let act = vld1q_f32(act_sums.as_ptr().add(at));
            for r in 0..STRIP {
                sums[r] = vfmaq_f32(sums[r], vld1q_f32(rows[r].as_ptr().add(at)), act);
            }
        }
        let off = sums.map(|lanes| vaddvq_f32(lanes));
        vld1q_f32(off.as_ptr())
    }
}
