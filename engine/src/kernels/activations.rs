//! Activations, rounded once for all the rows they meet.

use super::Isa;
use crate::gguf::TensorType;
use half::{bf16, f16};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements that share a scale.
pub(super) const GROUP: usize = 32;

/// How activations are rounded before they meet a type of weights. The roundings are those of llama.cpp, so that its
/// logits can be met closely: a model amplifies any other rounding beyond what a parity test could allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the field writes these names with an underscore
pub enum ActivationFormat {
    /// As they are.
    F32,
    /// Rounded to half precision, since F16 weights are multiplied in that precision elsewhere too.
    F16,
    /// Rounded to bfloat16, for the same reason.
    Bf16,
    /// 8-bit codes, a half-precision scale for every 32: for Q4_0, Q5_0 and Q8_0 weights.
    Q8_0,
    /// The same with the scaled sum of the codes in half precision: for Q4_1 and Q5_1 weights.
    Q8_1,
    /// 8-bit codes, a single-precision scale for every 256: for the K types, whose kernels count on that one scale.
    Q8K,
}

impl ActivationFormat {
    /// All formats.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q8_1, Self::Q8K];

    /// Whether activations are codes in this format.
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q8_1 | Self::Q8K)
    }
}

/// The format that weights of a type ask for.
pub fn activation_format(tensor_type: TensorType) -> ActivationFormat {
    match tensor_type {
        TensorType::F32 => ActivationFormat::F32,
        TensorType::F16 => ActivationFormat::F16,
        TensorType::Bf16 => ActivationFormat::Bf16,
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => ActivationFormat::Q8_0,
        TensorType::Q4_1 | TensorType::Q5_1 => ActivationFormat::Q8_1,
        TensorType::Q2K | TensorType::Q3K | TensorType::Q4K | TensorType::Q5K | TensorType::Q6K => {
            ActivationFormat::Q8K
        }
    }
}

/// Has a number of items worked on in ranges, by any threads, and returns when all are done.
pub type Share<'a> = &'a dyn Fn(usize, &(dyn Fn(Range<usize>) + Sync));

/// `n` vectors of `cols` elements, rounded. Buffers are made for the largest shape and used again.
pub struct Activations {
    format: ActivationFormat,
    n: usize,
    cols: usize,
    /// F32, F16, BF16: (n, cols).
    floats: Vec<f32>,
    /// Codes: (n, cols).
    codes: Vec<i8>,
    /// Codes: (n, cols / 32).
    scales: Vec<f32>,
    /// Codes: scale x sum of codes, (n, cols / 32).
    sums_32: Vec<f32>,
    /// Codes: scale x sum of codes, (n, cols / 16).
    sums_16: Vec<f32>,
}

impl Activations {
    /// Room for `n_max` vectors of `cols_max` elements.
    pub fn new(cols_max: usize, n_max: usize) -> Self {
        let size = cols_max * n_max;
        let groups = n_max * cols_max.div_ceil(GROUP);
        Self {
            format: ActivationFormat::F32,
            n: 0,
            cols: 0,
            floats: Vec::with_capacity(size),
            codes: Vec::with_capacity(size),
            scales: Vec::with_capacity(groups),
            sums_32: Vec::with_capacity(groups),
            sums_16: Vec::with_capacity(2 * groups),
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        let floats =
            self.floats.capacity() + self.scales.capacity() + self.sums_32.capacity() + self.sums_16.capacity();
        (4 * floats + self.codes.capacity()) as u64
    }

    /// Rounds `x`, of shape (n, cols), into `format`.
    ///
    /// # Panics
    /// When `x` has another size, or for codes when `cols` is no whole number of their blocks.
    pub fn fill(&mut self, isa: Isa, format: ActivationFormat, x: &[f32], n: usize, cols: usize) {
        self.fill_by(isa, format, x, (n, cols), &|n, round| round(0..n));
    }

    /// As [`Self::fill`] for `shape` (n, cols), by several threads: `share` is given n and what rounds a range of vectors; it
    /// must call that for every vector once, from any thread, and return when all calls have.
    pub fn fill_by(
        &mut self,
        isa: Isa,
        format: ActivationFormat,
        x: &[f32],
        (n, cols): (usize, usize),
        share: Share<'_>,
    ) {
        assert_eq!(x.len(), n * cols, "activations of shape (n, cols)");
        (self.format, self.n, self.cols) = (format, n, cols);
        let done = AtomicUsize::new(0);
        if format.is_quantised() {
            // Q8K shares a scale among eight groups
            let block = if format == ActivationFormat::Q8K { 8 * GROUP } else { GROUP };
            assert!(cols.is_multiple_of(block), "quantised weights have rows of whole blocks");
            let groups = x.len() / GROUP;
            self.codes.resize(x.len(), 0);
            self.scales.resize(groups, 0.0);
            self.sums_32.resize(groups, 0.0);
            self.sums_16.resize(2 * groups, 0.0);
            let (codes, scales) = (Pieces::of(&mut self.codes, cols), Pieces::of(&mut self.scales, cols / GROUP));
            let sums_32 = Pieces::of(&mut self.sums_32, cols / GROUP);
            let sums_16 = Pieces::of(&mut self.sums_16, cols / 16);
            share(n, &|vectors| {
                for (at, x) in vectors.clone().zip(x[vectors.start * cols..vectors.end * cols].chunks_exact(cols)) {
                    assert!(done.fetch_add(1, Ordering::Relaxed) < n, "a vector is rounded once");
                    // SAFETY: `share` hands out every vector once.
                    let parts = unsafe { (codes.get(at), scales.get(at), sums_32.get(at), sums_16.get(at)) };
                    round_vector(isa, format, x, parts);
                }
            });
        } else {
            self.floats.resize(x.len(), 0.0);
            let floats = Pieces::of(&mut self.floats, cols);
            share(n, &|vectors| {
                for (at, x) in vectors.clone().zip(x[vectors.start * cols..vectors.end * cols].chunks_exact(cols)) {
                    assert!(done.fetch_add(1, Ordering::Relaxed) < n, "a vector is rounded once");
                    // SAFETY: as above.
                    narrow_vector(isa, format, x, unsafe { floats.get(at) });
                }
            });
        }
        assert_eq!(done.into_inner(), n, "every vector is rounded");
    }

    /// The format in force.
    pub fn format(&self) -> ActivationFormat {
        self.format
    }
    /// Number of vectors.
    pub fn n(&self) -> usize {
        self.n
    }
    /// Elements of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn all_floats(&self) -> &[f32] {
        &self.floats[..self.n * self.cols]
    }
    pub(super) fn floats(&self, n: usize) -> &[f32] {
        &self.floats[n * self.cols..][..self.cols]
    }
    pub(super) fn codes(&self, n: usize) -> &[i8] {
        &self.codes[n * self.cols..][..self.cols]
    }
    pub(super) fn scales(&self, n: usize) -> &[f32] {
        let groups = self.cols / GROUP;
        &self.scales[n * groups..][..groups]
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn sums_32(&self, n: usize) -> &[f32] {
        let groups = self.cols / GROUP;
        &self.sums_32[n * groups..][..groups]
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn sums_16(&self, n: usize) -> &[f32] {
        let groups = self.cols / 16;
        &self.sums_16[n * groups..][..groups]
    }
}

/// Equal pieces of a slice, for several threads.
struct Pieces<T> {
    start: *mut T,
    len: usize,
    count: usize,
}

// SAFETY: pieces do not overlap, and whoever takes one promises that nobody else has it; `T` are plain numbers.
unsafe impl<T: Send> Sync for Pieces<T> {}

impl<T> Pieces<T> {
    fn of(slice: &mut [T], len: usize) -> Self {
        Self { start: slice.as_mut_ptr(), len, count: slice.len() / len.max(1) }
    }

    /// Piece `at`.
    ///
    /// # Safety
    /// Nobody else uses this piece, and the slice is not used otherwise, for as long as it is in use.
    #[allow(clippy::mut_from_ref)]
    unsafe fn get(&self, at: usize) -> &mut [T] {
        assert!(at < self.count, "piece {at} of {}", self.count);
        // SAFETY: in bounds by the assertion, unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at * self.len), self.len) }
    }
}

/// Rounds a vector to codes, scales and sums over 32 and over 16 elements.
fn round_vector(
    isa: Isa,
    format: ActivationFormat,
    x: &[f32],
    (codes, scales, sums_32, sums_16): (&mut [i8], &mut [f32], &mut [f32], &mut [f32]),
) {
    let shared = if format == ActivationFormat::Q8K { 8 } else { 1 };
    for (i, block) in x.chunks_exact(shared * GROUP).enumerate() {
        let (scale, inverse) = scale_of(isa, format, block);
        let stored = if shared == 1 { f16::from_f32(scale).to_f32() } else { scale };
        for (g, x) in block.chunks_exact(GROUP).enumerate() {
            let group = i * shared + g;
            let sums = round_group(isa, x, inverse, &mut codes[group * GROUP..][..GROUP]);
            scales[group] = stored;
            sums_16[2 * group] = stored * sums[0] as f32;
            sums_16[2 * group + 1] = stored * sums[1] as f32;
            let sum = (sums[0] + sums[1]) as f32;
            sums_32[group] = match format {
                ActivationFormat::Q8_1 => f16::from_f32(scale * sum).to_f32(),
                _ => stored * sum,
            };
        }
    }
}

/// Rounds a vector to the precision of its format.
fn narrow_vector(isa: Isa, format: ActivationFormat, x: &[f32], out: &mut [f32]) {
    let _ = isa;
    match format {
        #[cfg(target_arch = "aarch64")]
        ActivationFormat::F16 if isa != Isa::Scalar => {
            out.copy_from_slice(x);
            super::arm::through_half(out);
        }
        ActivationFormat::F16 => out.iter_mut().zip(x).for_each(|(o, v)| *o = f16::from_f32(*v).to_f32()),
        ActivationFormat::Bf16 => out.iter_mut().zip(x).for_each(|(o, v)| *o = bf16::from_f32(*v).to_f32()),
        _ => out.copy_from_slice(x),
    }
}

/// Scale of a block, and what to multiply with to get codes. A block that is not finite gets a NaN scale, so that the
/// fault shows in every product.
fn scale_of(isa: Isa, format: ActivationFormat, block: &[f32]) -> (f32, f32) {
    let (largest, finite) = block.chunks_exact(GROUP).fold((0.0f32, true), |(largest, finite), x| {
        let (m, f) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => super::avx2::largest_of_32(x),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => super::arm::largest_of_32(x),
            _ => largest_of_group(x),
        };
        (largest.max(m), finite && f)
    });
    if !finite {
        return (f32::NAN, 0.0);
    }
    if largest == 0.0 {
        return (0.0, 0.0);
    }
    if format != ActivationFormat::Q8K {
        let scale = largest / 127.0;
        return (scale, 127.0 / largest);
    }
    // the first element of the largest magnitude becomes -127, whatever its sign
    let extreme = block.iter().copied().find(|v| v.abs() == largest).unwrap_or(largest);
    let inverse = -127.0 / extreme;
    (1.0 / inverse, inverse)
}

fn largest_of_group(x: &[f32]) -> (f32, bool) {
    // f32::max ignores NaN, so finiteness is looked at apart
    (x.iter().fold(0.0f32, |m, v| m.max(v.abs())), x.iter().all(|v| v.is_finite()))
}

/// Nearest codes (ties to even) of a group of 32, and their sums in either half.
fn round_group(isa: Isa, x: &[f32], inverse: f32, codes: &mut [i8]) -> [i32; 2] {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        return super::avx2::round_32(x, inverse, codes);
    }
    #[cfg(target_arch = "aarch64")]
    if isa != Isa::Scalar {
        return super::arm::round_32(x, inverse, codes);
    }
    let _ = isa;
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round_ties_even().clamp(-128.0, 127.0) as i8;
    }
    let sum = |half: &[i8]| half.iter().map(|c| i32::from(*c)).sum();
    [sum(&codes[..16]), sum(&codes[16..])]
}
