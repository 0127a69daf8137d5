//! Activations, rounded once for all the rows they meet.

use super::Isa;
use crate::gguf::TensorType;
use half::{bf16, f16};

/// Elements that share a scale.
pub(super) const GROUP: usize = 32;

/// How activations are rounded before they meet a type of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationFormat {
    /// As they are.
    F32,
    /// Rounded to half precision, since F16 weights are multiplied in that precision elsewhere too.
    F16,
    /// Rounded to bfloat16, for the same reason.
    Bf16,
    /// 8-bit codes with an f32 scale for every 32, and the scaled sums of each 16 and 32 for weights with an offset.
    Q8,
}

impl ActivationFormat {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8];
}

/// The format that weights of a type ask for.
pub fn activation_format(tensor_type: TensorType) -> ActivationFormat {
    match tensor_type {
        TensorType::F32 => ActivationFormat::F32,
        TensorType::F16 => ActivationFormat::F16,
        TensorType::Bf16 => ActivationFormat::Bf16,
        _ => ActivationFormat::Q8,
    }
}

/// `n` vectors of `cols` elements, rounded. Buffers are made for the largest shape and used again.
pub struct Activations {
    format: ActivationFormat,
    n: usize,
    cols: usize,
    /// F32, F16, BF16: (n, cols).
    floats: Vec<f32>,
    /// Q8: (n, cols).
    codes: Vec<i8>,
    /// Q8: (n, cols / 32).
    scales: Vec<f32>,
    /// Q8: scale x sum of codes, (n, cols / 32).
    sums_32: Vec<f32>,
    /// Q8: scale x sum of codes, (n, cols / 16).
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
    /// When `x` has another size, or for Q8 when `cols` is no multiple of 32.
    pub fn fill(&mut self, isa: Isa, format: ActivationFormat, x: &[f32], n: usize, cols: usize) {
        assert_eq!(x.len(), n * cols, "activations of shape (n, cols)");
        (self.format, self.n, self.cols) = (format, n, cols);
        self.floats.clear();
        match format {
            ActivationFormat::F32 => self.floats.extend_from_slice(x),
            ActivationFormat::F16 => self.floats.extend(x.iter().map(|v| f16::from_f32(*v).to_f32())),
            ActivationFormat::Bf16 => self.floats.extend(x.iter().map(|v| bf16::from_f32(*v).to_f32())),
            ActivationFormat::Q8 => self.fill_q8(isa, x),
        }
    }

    fn fill_q8(&mut self, isa: Isa, x: &[f32]) {
        assert!(self.cols.is_multiple_of(GROUP), "quantised weights have rows of whole blocks");
        let groups = x.len() / GROUP;
        self.codes.resize(x.len(), 0);
        self.scales.resize(groups, 0.0);
        self.sums_32.resize(groups, 0.0);
        self.sums_16.resize(2 * groups, 0.0);
        let outputs = self.codes.chunks_exact_mut(GROUP).zip(&mut self.scales);
        for ((i, x), (codes, scale)) in x.chunks_exact(GROUP).enumerate().zip(outputs) {
            let sums = match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => super::avx2::quantise_group(x, codes, scale),
                _ => quantise_group(x, codes, scale),
            };
            let (low, high) = (*scale * sums[0] as f32, *scale * sums[1] as f32);
            self.sums_16[2 * i] = low;
            self.sums_16[2 * i + 1] = high;
            self.sums_32[i] = low + high;
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
    /// Elements of a vector.
    pub fn cols(&self) -> usize {
        self.cols
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
    pub(super) fn sums_32(&self, n: usize) -> &[f32] {
        let groups = self.cols / GROUP;
        &self.sums_32[n * groups..][..groups]
    }
    pub(super) fn sums_16(&self, n: usize) -> &[f32] {
        let groups = self.cols / 16;
        &self.sums_16[n * groups..][..groups]
    }
}

/// Codes of one group of 32: scale = largest magnitude / 127, nearest codes, half away from zero never matters beyond one
/// unit in the last place. A group that is not finite gets a NaN scale, so that the fault shows in the product.
/// Returns the sums of the codes of either half.
pub(super) fn quantise_group(x: &[f32], codes: &mut [i8], scale: &mut f32) -> [i32; 2] {
    // f32::max ignores NaN, so finiteness is looked at apart
    let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    *scale = if x.iter().all(|v| v.is_finite()) { largest / 127.0 } else { f32::NAN };
    let inverse = if largest > 0.0 && scale.is_finite() { 127.0 / largest } else { 0.0 };
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    let sum = |half: &[i8]| half.iter().map(|c| i32::from(*c)).sum();
    [sum(&codes[..16]), sum(&codes[16..])]
}
