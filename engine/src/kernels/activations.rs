//! Activations, rounded once for all the rows they meet.

use super::{Isa, vector};
use crate::gguf::TensorType;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::slice;

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

    /// Elements that are rounded together.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q8_1 => GROUP,
            Self::Q8K => 8 * GROUP,
        }
    }

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

/// Elements to be rounded: as they are, or normed on the way.
#[derive(Clone, Copy)]
pub(super) struct Scaled<'a> {
    pub values: &'a [f32],
    /// A weight for each element, and the factor of all of them: `value * factor * weight`.
    pub weights: Option<(&'a [f32], f32)>,
}

/// Where the codes of some whole blocks go.
pub(super) struct CodesMut<'a> {
    pub codes: &'a mut [i8],
    pub scales: &'a mut [f32],
    pub sums_32: &'a mut [f32],
    pub code_sums: &'a mut [i16],
}

/// `n` vectors of `cols` elements, rounded. Buffers are made for the largest shape and used again.
pub struct Activations {
    format: ActivationFormat,
    n: usize,
    cols: usize,
    as_alone: bool,
    /// F32, F16, BF16: (n, cols), each vector at a multiple of [`floats_stride`].
    floats: Vec<f32>,
    /// Codes: (n, cols).
    codes: Vec<i8>,
    /// Codes: (n, cols / 32).
    scales: Vec<f32>,
    /// Codes: scale x sum of codes, (n, cols / 32).
    sums_32: Vec<f32>,
    /// Codes: their sums alone, (n, cols / 16).
    code_sums: Vec<i16>,
}

impl Activations {
    /// Room for `n_max` vectors of `cols_max` elements.
    pub fn new(cols_max: usize, n_max: usize) -> Self {
        let size = cols_max * n_max;
        let floats = floats_stride(cols_max) * n_max;
        let groups = n_max * cols_max.div_ceil(GROUP);
        Self {
            format: ActivationFormat::F32,
            n: 0,
            cols: 0,
            as_alone: false,
            floats: Vec::with_capacity(floats),
            codes: Vec::with_capacity(size),
            scales: Vec::with_capacity(groups),
            sums_32: Vec::with_capacity(groups),
            code_sums: Vec::with_capacity(2 * groups),
        }
    }

    /// From now on, vectors must have the products that each would have alone. Codes have these in any case; floats, of
    /// which many are multiplied faster in another order, are slower then.
    pub fn want_as_alone(&mut self, wanted: bool) {
        self.as_alone = wanted;
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        let floats = self.floats.capacity() + self.scales.capacity() + self.sums_32.capacity();
        (4 * floats + 2 * self.code_sums.capacity() + self.codes.capacity()) as u64
    }

    /// Rounds `x`, of shape (n, cols), into `format`.
    ///
    /// # Panics
    /// When `x` has another size, or for codes when `cols` is no whole number of their blocks.
    pub fn fill(&mut self, isa: Isa, format: ActivationFormat, x: &[f32], n: usize, cols: usize) {
        assert_eq!(x.len(), n * cols, "activations of shape (n, cols)");
        // SAFETY: one thread, one vector after the other, and all of them.
        let filling = unsafe { self.begin(isa, format, (n, cols)) };
        for (vector, x) in x.chunks_exact(cols.max(1)).enumerate() {
            filling.put(vector, 0, x);
        }
    }

    /// Makes room for `shape` (n, cols) in `format`, which what is returned then fills.
    ///
    /// # Safety
    /// No two threads put the same elements at once, and none reads what is not complete.
    ///
    /// # Panics
    /// For codes when `cols` is no whole number of their blocks.
    pub unsafe fn begin(&mut self, isa: Isa, format: ActivationFormat, (n, cols): (usize, usize)) -> Filling<'_> {
        assert!(cols.is_multiple_of(format.block_elements()), "quantised weights have rows of whole blocks");
        (self.format, self.n, self.cols) = (format, n, cols);
        let size = n * cols;
        if format.is_quantised() {
            self.codes.resize(size, 0);
            self.scales.resize(size / GROUP, 0.0);
            self.sums_32.resize(size / GROUP, 0.0);
            self.code_sums.resize(size / 16, 0);
        } else {
            self.floats.resize(n * floats_stride(cols), 0.0);
        }
        Filling {
            isa,
            format,
            n,
            cols,
            floats: self.floats.as_mut_ptr(),
            codes: self.codes.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums_32: self.sums_32.as_mut_ptr(),
            code_sums: self.code_sums.as_mut_ptr(),
            _borrow: PhantomData,
        }
    }

    /// The format in force.
    pub fn format(&self) -> ActivationFormat {
        self.format
    }
    /// Number of vectors.
    pub fn n(&self) -> usize {
        self.n
    }
    /// See [`Self::want_as_alone`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // elsewhere all products are as alone
    pub(super) fn as_alone(&self) -> bool {
        self.as_alone
    }
    /// Elements of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All vectors, and the elements from one to the next.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn all_floats(&self) -> (&[f32], usize) {
        let stride = floats_stride(self.cols);
        (&self.floats[..self.n * stride], stride)
    }
    pub(super) fn floats(&self, n: usize) -> &[f32] {
        &self.floats[n * floats_stride(self.cols)..][..self.cols]
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
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
    pub(super) fn code_sums(&self, n: usize) -> &[i16] {
        let groups = self.cols / 16;
        &self.code_sums[n * groups..][..groups]
    }
}

/// Elements from one vector of floats to the next: an odd number of cache lines, since vectors a power of two apart fall
/// into the same few sets of a cache and drive each other out.
fn floats_stride(cols: usize) -> usize {
    const LINE: usize = 64 / size_of::<f32>();
    (cols.div_ceil(LINE) | 1) * LINE
}

/// Activations that are being rounded, by any threads at once.
#[derive(Clone, Copy)]
pub struct Filling<'a> {
    isa: Isa,
    format: ActivationFormat,
    n: usize,
    cols: usize,
    floats: *mut f32,
    codes: *mut i8,
    scales: *mut f32,
    sums_32: *mut f32,
    code_sums: *mut i16,
    _borrow: PhantomData<&'a mut Activations>,
}

// SAFETY: whoever called `Activations::begin` promised that threads put different elements.
unsafe impl Send for Filling<'_> {}
// SAFETY: as above.
unsafe impl Sync for Filling<'_> {}

impl Filling<'_> {
    /// Elements that are rounded together, and so put together.
    pub fn block_elements(&self) -> usize {
        self.format.block_elements()
    }

    /// Rounds `x`, which become the elements of `vector` from `first` on.
    ///
    /// # Panics
    /// When they lie outside the vector, or are no whole blocks.
    pub fn put(&self, vector: usize, first: usize, x: &[f32]) {
        self.put_scaled(vector, first, Scaled { values: x, weights: None });
    }

    /// Rounds a whole vector's norm, `x / sqrt(mean(x²) + eps) * weight`.
    ///
    /// # Panics
    /// When `x` or `weight` is not as long as a vector.
    pub fn put_normed(&self, vector: usize, x: &[f32], weight: &[f32], eps: f32) {
        assert!(x.len() == self.cols && weight.len() == self.cols, "a whole vector and its weights");
        let scale = vector::rms_scale(self.isa, x, eps);
        self.put_scaled(vector, 0, Scaled { values: x, weights: Some((weight, scale)) });
    }

    fn put_scaled(&self, vector: usize, first: usize, x: Scaled<'_>) {
        let len = x.values.len();
        assert!(vector < self.n && first + len <= self.cols, "elements outside the activations");
        let block = self.format.block_elements();
        assert!(first.is_multiple_of(block) && len.is_multiple_of(block), "whole blocks");
        let at = vector * self.cols + first;
        // SAFETY: `Activations::begin` made room for n vectors of `cols` elements in the buffers of this format, which the
        // assertions hold the range within; its caller promised that no other thread has these elements now.
        unsafe {
            if self.format.is_quantised() {
                let out = CodesMut {
                    codes: slice::from_raw_parts_mut(self.codes.add(at), len),
                    scales: slice::from_raw_parts_mut(self.scales.add(at / GROUP), len / GROUP),
                    sums_32: slice::from_raw_parts_mut(self.sums_32.add(at / GROUP), len / GROUP),
                    code_sums: slice::from_raw_parts_mut(self.code_sums.add(at / 16), len / 16),
                };
                round_scaled(self.isa, self.format, x, out);
            } else {
                narrow_scaled(
                    self.isa,
                    self.format,
                    x,
                    slice::from_raw_parts_mut(self.floats.add(vector * floats_stride(self.cols) + first), len),
                );
            }
        }
    }
}

/// Rounds whole blocks, normed on the way where there are weights.
fn round_scaled(isa: Isa, format: ActivationFormat, x: Scaled<'_>, out: CodesMut<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        return super::avx2::round_vector(format, x, out);
    }
    let Some((weights, scale)) = x.weights else { return round_vector(isa, format, x.values, out) };
    // a few blocks at a time, in a buffer that stays in the nearest cache
    let CodesMut { mut codes, mut scales, mut sums_32, mut code_sums } = out;
    let mut normed = [0.0; 8 * GROUP];
    for (x, weights) in x.values.chunks(normed.len()).zip(weights.chunks(normed.len())) {
        let normed = &mut normed[..x.len()];
        vector::scale_each(isa, x, scale, weights, normed);
        let part = CodesMut {
            codes: take_front(&mut codes, x.len()),
            scales: take_front(&mut scales, x.len() / GROUP),
            sums_32: take_front(&mut sums_32, x.len() / GROUP),
            code_sums: take_front(&mut code_sums, x.len() / 16),
        };
        round_vector(isa, format, normed, part);
    }
}

/// Takes the first `len` elements off a slice.
fn take_front<'a, T>(slice: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (front, rest) = std::mem::take(slice).split_at_mut(len);
    *slice = rest;
    front
}

/// Rounds whole blocks to codes, scales and sums.
fn round_vector(isa: Isa, format: ActivationFormat, x: &[f32], to: CodesMut<'_>) {
    let shared = if format == ActivationFormat::Q8K { 8 } else { 1 };
    for (i, block) in x.chunks_exact(shared * GROUP).enumerate() {
        let (scale, inverse) = scale_of(isa, format, block);
        let stored = if shared == 1 { f16::from_f32(scale).to_f32() } else { scale };
        for (g, x) in block.chunks_exact(GROUP).enumerate() {
            let group = i * shared + g;
            let sums = round_group(isa, x, inverse, &mut to.codes[group * GROUP..][..GROUP]);
            to.scales[group] = stored;
            for (half, sum) in sums.into_iter().enumerate() {
                // 16 codes of 8 bits
                to.code_sums[2 * group + half] = sum as i16;
            }
            let sum = (sums[0] + sums[1]) as f32;
            to.sums_32[group] = match format {
                ActivationFormat::Q8_1 => f16::from_f32(scale * sum).to_f32(),
                _ => stored * sum,
            };
        }
    }
}

/// Narrows elements to the precision of their format, normed on the way where there are weights.
fn narrow_scaled(isa: Isa, format: ActivationFormat, x: Scaled<'_>, out: &mut [f32]) {
    match x.weights {
        Some((weights, scale)) => vector::scale_each(isa, x.values, scale, weights, out),
        None => out.copy_from_slice(x.values),
    }
    narrow_vector(isa, format, out);
}

/// Rounds a vector to the precision of its format.
fn narrow_vector(isa: Isa, format: ActivationFormat, x: &mut [f32]) {
    let _ = isa;
    match format {
        #[cfg(target_arch = "aarch64")]
        ActivationFormat::F16 if isa != Isa::Scalar => super::arm::through_half(x),
        #[cfg(target_arch = "x86_64")]
        ActivationFormat::F16 if isa != Isa::Scalar => super::avx2::through_half(x),
        ActivationFormat::F16 => x.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
        ActivationFormat::Bf16 => x.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
        _ => {}
    }
}

/// Scale of a block, and what to multiply with to get codes. A block that is not finite gets a NaN scale, so that the
/// fault shows in every product.
fn scale_of(isa: Isa, format: ActivationFormat, block: &[f32]) -> (f32, f32) {
    let (largest, finite) = block.chunks_exact(GROUP).fold((0.0f32, true), |(largest, finite), x| {
        let (m, f) = match isa {
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
