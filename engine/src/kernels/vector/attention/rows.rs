//! Keys and values as they are stored, and queries as such keys ask for them.

use super::Isa;
use crate::gguf::TensorType;
use crate::protocol::KvType;
use half::f16;

/// Elements of a block; rows of halves are seen in pieces of as many.
pub(super) const BLOCK: usize = 32;

/// Rows of one cached head, one a position.
#[derive(Clone, Copy)]
pub struct CachedRows<'a> {
    /// How elements are stored.
    pub kv_type: KvType,
    /// Elements of a row.
    pub dim: usize,
    /// The rows, one after the other.
    pub data: &'a [u8],
}

impl<'a> CachedRows<'a> {
    pub(super) fn row_bytes(self) -> usize {
        self.kv_type.row_bytes(self.dim).expect("cached rows are whole blocks, which opening the cache checks")
    }

    /// Number of rows.
    pub fn len(self) -> usize {
        self.data.len() / self.row_bytes()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.data.is_empty()
    }

    pub(super) fn row(self, p: usize) -> &'a [u8] {
        &self.data[p * self.row_bytes()..][..self.row_bytes()]
    }

    /// The blocks of row `p`; the last piece of a row of halves may be shorter.
    pub(super) fn blocks(self, p: usize) -> impl Iterator<Item = &'a [u8]> {
        self.row(p).chunks(self.kv_type.row_bytes(BLOCK).expect("a whole block"))
    }

    /// The same type among those of weights.
    pub(super) fn tensor_type(self) -> TensorType {
        match self.kv_type {
            KvType::F16 => TensorType::F16,
            KvType::Q8_0 => TensorType::Q8_0,
            KvType::Q4_0 => TensorType::Q4_0,
        }
    }
}

for_each_isa! {
    /// Stores one key or value. An element that is not finite makes its whole block NaN, so that the fault shows in
    /// every product. `out` has the bytes of a row of that type.
    narrow = narrow_body(kv_type: KvType, x: &[f32], out: &mut [u8])
}

#[inline(always)]
fn narrow_body<const FMA: bool>(kv_type: KvType, x: &[f32], out: &mut [u8]) {
    assert_eq!(kv_type.row_bytes(x.len()), Some(out.len()), "a row of that type");
    match kv_type {
        KvType::F16 => {
            #[cfg(target_arch = "x86_64")]
            if FMA {
                // SAFETY: the wide form is only run where avx2, fma and f16c have been detected.
                return unsafe { super::avx2::narrow_halves(x, out) };
            }
            #[cfg(target_arch = "aarch64")]
            if FMA {
                return crate::kernels::arm::narrow(x, out);
            }
            for (o, v) in out.chunks_exact_mut(2).zip(x) {
                o.copy_from_slice(&f16::from_f32(*v).to_le_bytes());
            }
        }
        KvType::Q8_0 => {
            for (block, x) in out.chunks_exact_mut(34).zip(x.chunks_exact(BLOCK)) {
                let (scale, inverse) = scale_to(127.0, largest(x).abs());
                block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                for (code, v) in block[2..].iter_mut().zip(x) {
                    *code = nearest(v * inverse) as u8;
                }
            }
        }
        KvType::Q4_0 => {
            for (block, x) in out.chunks_exact_mut(18).zip(x.chunks_exact(BLOCK)) {
                // the largest magnitude becomes code 0, which is -8 steps
                let (scale, inverse) = scale_to(-8.0, largest(x));
                block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                let (low, high) = x.split_at(BLOCK / 2);
                for ((codes, l), h) in block[2..].iter_mut().zip(low).zip(high) {
                    let code = |v: &f32| (nearest(v * inverse) + 8).min(15) as u8;
                    *codes = code(l) | code(h) << 4;
                }
            }
        }
    }
}

/// The element of the largest magnitude; NaN when one is not finite.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    let (mut low, mut high, mut odd) = (0f32, 0f32, 0f32);
    for &v in x {
        low = if v < low { v } else { low };
        high = if v > high { v } else { high };
        odd += 0.0 * v;
    }
    if odd != 0.0 || odd.is_nan() {
        f32::NAN
    } else if -low > high {
        low
    } else {
        high
    }
}

/// Scale and its inverse such that `largest` becomes `steps`.
#[inline(always)]
fn scale_to(steps: f32, largest: f32) -> (f32, f32) {
    if largest == 0.0 { (0.0, 0.0) } else { (largest / steps, steps / largest) }
}

/// The nearest whole number, ties to even, of one between -2^22 and 2^22.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    // adding 1.5 * 2^23 rounds to an integer, which then stands in the low mantissa bits
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
}

/// Query heads that share a kv head, as their keys ask for them.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// Elements of a query.
    pub dim: usize,
    /// (g, dim)
    floats: &'a [f32],
    /// (g, dim), rounded
    codes: &'a [i8],
    /// (g, dim / 32)
    scales: &'a [f32],
    /// Sums of the codes, (g, dim / 32).
    sums: &'a [i32],
}

impl<'a> Queries<'a> {
    /// Query heads.
    pub fn heads(self) -> usize {
        self.floats.len() / self.dim
    }

    pub(super) fn floats(self, g: usize) -> &'a [f32] {
        &self.floats[g * self.dim..][..self.dim]
    }

    pub(super) fn codes(self, g: usize) -> &'a [i8] {
        &self.codes[g * self.dim..][..self.dim]
    }

    pub(super) fn scales(self, g: usize) -> &'a [f32] {
        &self.scales[g * (self.dim / BLOCK)..][..self.dim / BLOCK]
    }

    pub(super) fn sums(self, g: usize) -> &'a [i32] {
        &self.sums[g * (self.dim / BLOCK)..][..self.dim / BLOCK]
    }

    /// `queries[g] · keys[p]` with both as codes: whole numbers within a block.
    pub(super) fn dot_coded(self, g: usize, keys: CachedRows<'_>, p: usize) -> f32 {
        let mut sum = 0.0;
        for (b, (block, codes)) in keys.blocks(p).zip(self.codes(g).chunks_exact(BLOCK)).enumerate() {
            let key = &block[2..];
            let products: i32 = match keys.kv_type {
                KvType::Q4_0 => {
                    let (low, high) = codes.split_at(BLOCK / 2);
                    let low = low.iter().zip(key).map(|(q, k)| i32::from(*q) * i32::from(k & 15));
                    let high = high.iter().zip(key).map(|(q, k)| i32::from(*q) * i32::from(k >> 4));
                    // codes are 8 steps larger than what they stand for
                    low.sum::<i32>() + high.sum::<i32>() - 8 * self.sums(g)[b]
                }
                _ => codes.iter().zip(key).map(|(q, k)| i32::from(*q) * i32::from(*k as i8)).sum(),
            };
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
            sum += scale * self.scales(g)[b] * products as f32;
        }
        sum
    }
}

/// Query heads of a token, rounded once for all keys that they meet.
pub struct QueryBuffer {
    floats: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    dim: usize,
}

impl QueryBuffer {
    /// Room for `heads` queries of `dim` elements.
    pub fn new(heads: usize, dim: usize) -> Self {
        let (size, blocks) = (heads * dim, heads * dim.div_ceil(BLOCK));
        Self {
            floats: Vec::with_capacity(size),
            codes: vec![0; size],
            scales: vec![0.0; blocks],
            sums: vec![0; blocks],
            dim,
        }
    }

    /// Takes `x` (heads, dim) times `factor`, and rounds it when keys of that type ask for it.
    pub fn fill(&mut self, isa: Isa, x: &[f32], factor: f32, keys: KvType) {
        self.fill_turned(isa, x, |_| {}, factor, keys);
    }

    /// As [`Self::fill`], of what `turn` makes of `x`.
    pub fn fill_turned(&mut self, isa: Isa, x: &[f32], turn: impl FnOnce(&mut [f32]), factor: f32, keys: KvType) {
        self.floats.clear();
        self.floats.extend_from_slice(x);
        turn(&mut self.floats);
        super::super::scale(isa, &mut self.floats, factor);
        if keys != KvType::F16 {
            round(isa, &self.floats, &mut self.codes, &mut self.scales, &mut self.sums);
        }
    }

    /// `count` heads from `first` on.
    pub fn heads(&self, first: usize, count: usize) -> Queries<'_> {
        let (dim, blocks) = (self.dim, self.dim / BLOCK);
        Queries {
            dim,
            floats: &self.floats[first * dim..(first + count) * dim],
            codes: &self.codes[first * dim..(first + count) * dim],
            scales: &self.scales[first * blocks..(first + count) * blocks],
            sums: &self.sums[first * blocks..(first + count) * blocks],
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (4 * self.floats.capacity() + size_of_val(&self.codes[..]) + 8 * self.scales.len()) as u64
    }
}

for_each_isa! {
    /// Rounds blocks of 32 to 8-bit codes with a scale; the codes of a block also come summed.
    round = round_body(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32])
}

#[inline(always)]
fn round_body<const FMA: bool>(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    let blocks = x.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK));
    for (((x, codes), to), sum) in blocks.zip(scales).zip(sums) {
        let (scale, inverse) = scale_to(127.0, largest(x).abs());
        let mut total = 0;
        for (code, v) in codes.iter_mut().zip(x) {
            let whole = nearest(v * inverse);
            *code = whole as i8;
            total += whole as i8 as i32;
        }
        (*to, *sum) = (scale, total);
    }
}
