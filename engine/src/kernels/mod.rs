//! Matrix products of stored weights with activations.
//!
//! [`scalar`] is the specification: weights decoded to f32, activations as they were rounded, products summed in f64.
//! The SIMD forms are held against it by property tests. Which form runs is decided once, by [`Isa::detect`].

mod activations;
#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod emulated;
mod scalar;
#[cfg(test)]
mod tests;
pub mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Dot, Evex, Pairs, Vex};
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use tests::isas;

pub use activations::{ActivationFormat, Activations, Filling, activation_format};

use crate::gguf::TensorType;
use std::ops::Range;

/// An instruction set that the kernels are written for. Other crates cannot make one but [`Isa::Scalar`], and here only
/// [`Isa::available`] does: having the value proves that the processor has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust; the specification.
    Scalar,
    /// AVX2 with FMA and F16C.
    #[non_exhaustive]
    Avx2,
    /// The same with `vpdpbusd` as AVX-VNNI encodes it: Alder Lake and later, Zen 5.
    #[non_exhaustive]
    AvxVnni,
    /// AVX2 with `vpdpbusd` as AVX-512 VNNI encodes it, and AVX-512 F, BW, VL and DQ: Ice Lake, Zen 4.
    #[non_exhaustive]
    Avx512Vnni,
    /// What every 64-bit Arm has.
    #[non_exhaustive]
    Neon,
    /// The same with `sdot`: most since 2018, such as Cortex-A55 and A76.
    #[non_exhaustive]
    NeonDotprod,
    /// The same with `smmla` on top: Armv8.6 and Armv9, such as Cortex-A510 and A710.
    #[non_exhaustive]
    NeonI8mm,
}

impl Isa {
    /// All that this processor has, the best last.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_mut))]
        let mut found = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            found.push(Self::Avx2);
            if is_x86_feature_detected!("avxvnni") {
                found.push(Self::AvxVnni);
            }
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if wide && is_x86_feature_detected!("avx512vnni") {
                found.push(Self::Avx512Vnni);
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            found.push(Self::Neon);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                found.push(Self::NeonDotprod);
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    found.push(Self::NeonI8mm);
                }
            }
        }
        found
    }

    /// The best one that this processor has.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// The one of that name, if this processor has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// As reports and proofs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512Vnni => "avx512vnni",
            Self::Neon => "neon",
            Self::NeonDotprod => "dotprod",
            Self::NeonI8mm => "i8mm",
        }
    }

    /// Whether the value proves that AVX2, FMA and F16C are there.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_avx2(self) -> bool {
        matches!(self, Self::Avx2 | Self::AvxVnni | Self::Avx512Vnni)
    }
}

/// In which order a matrix lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// As in the file: row after row, whole blocks.
    Rows,
    /// Eight rows side by side, as [`pack`] makes them.
    Strips,
}

/// Rows of a weight matrix.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    /// In which order they lie.
    pub layout: Layout,
    /// How the elements are stored.
    pub tensor_type: TensorType,
    /// Elements of a row.
    pub cols: usize,
    /// All rows' bytes.
    pub data: &'a [u8],
}

impl<'a> WeightRows<'a> {
    /// Bytes of a row.
    fn row_bytes(&self) -> usize {
        self.tensor_type.row_bytes(self.cols).expect("weights are whole blocks, which loading checks")
    }

    /// The bytes of some rows in [`Layout::Rows`].
    pub fn bytes_of(&self, rows: Range<usize>) -> &'a [u8] {
        &self.data[rows.start * self.row_bytes()..rows.end * self.row_bytes()]
    }

    fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.row_bytes();
        &self.data[row * bytes..][..bytes]
    }
}

/// A matrix of shape (n, stride), row-major, that several threads write at once, each its own columns.
#[derive(Clone, Copy)]
pub struct SharedOut {
    data: *mut f32,
    len: usize,
    stride: usize,
    /// Whether products are added to what is there.
    adding: bool,
}

// SAFETY: whoever makes one promises that no two threads write the same element and nobody reads until all are done.
unsafe impl Send for SharedOut {}
// SAFETY: as above.
unsafe impl Sync for SharedOut {}

impl SharedOut {
    /// Shares `len` floats at `data` as rows of `stride`.
    ///
    /// # Safety
    /// `data` must be valid for writes of `len` floats as long as the value or a copy of it is used, no element may be
    /// written by two threads, and none may be read by another thread than its writer before all writers are done.
    pub unsafe fn new(data: *mut f32, len: usize, stride: usize) -> Self {
        Self { data, len, stride, adding: false }
    }

    /// The same, where products are added to what is there; all of it must hold numbers.
    pub fn adding(self) -> Self {
        Self { adding: true, ..self }
    }

    /// Row `n` alone.
    pub fn row(self, n: usize) -> Self {
        assert!((n + 1) * self.stride <= self.len, "row {n} of {}", self.len / self.stride);
        Self { data: self.data.wrapping_add(n * self.stride), len: self.stride, ..self }
    }

    /// Shares a slice; tests use it up before the slice goes.
    #[cfg(test)]
    pub(crate) fn over(out: &mut [f32], stride: usize) -> Self {
        Self { data: out.as_mut_ptr(), len: out.len(), stride, adding: false }
    }

    #[inline]
    fn put(self, n: usize, column: usize, value: f32) {
        let at = n * self.stride + column;
        assert!(at < self.len && column < self.stride, "a product outside the output");
        // SAFETY: in bounds by the assertion; the maker of this value promised that nobody else writes this element.
        unsafe {
            let to = self.data.add(at);
            *to = if self.adding { *to + value } else { value };
        }
    }

    /// Several columns from `column` on.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn put_row(self, n: usize, column: usize, values: &[f32]) {
        let at = n * self.stride + column;
        assert!(at + values.len() <= self.len && column + values.len() <= self.stride, "a product outside the output");
        // SAFETY: as in `put`.
        unsafe {
            let to = self.data.add(at);
            if !self.adding {
                return std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
            }
            for (i, value) in values.iter().enumerate() {
                *to.add(i) += value;
            }
        }
    }
}

/// `out[n][row] = weights[row] · activations[n]` for the given rows and all columns of `acts`. Allocates nothing once a
/// thread has run its largest shape.
///
/// # Panics
/// When rows lie outside the weights or, of strips, do not begin one, the activations have another length or format than the weights ask for, or the
/// output is too small.
pub fn matmul(isa: Isa, weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    assert_eq!(acts.cols(), weights.cols, "activations of another length than the rows");
    assert_eq!(acts.format(), activation_format(weights.tensor_type), "activations in another format");
    let needed = match weights.layout {
        Layout::Rows => rows.end * weights.row_bytes(),
        Layout::Strips => strips_bytes(isa, weights.tensor_type, weights.cols, rows.end).expect("packed for this isa"),
    };
    assert!(needed <= weights.data.len(), "rows outside the weights");
    assert!(weights.layout == Layout::Rows || rows.start.is_multiple_of(STRIP_ROWS), "rows that begin a strip");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => avx2::matmul(isa, weights, rows, acts, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => arm::matmul(isa, weights, rows, acts, out),
        _ => scalar::matmul(weights, rows, acts, out),
    }
}

/// Rows that lie side by side in [`Layout::Strips`].
pub const STRIP_ROWS: usize = 8;

/// Bytes of `rows` rows of `cols` elements in [`Layout::Strips`], the last strip filled up with zeros; `None` where the
/// instruction set or the type has no such form.
pub fn strips_bytes(isa: Isa, tensor_type: TensorType, cols: usize, rows: usize) -> Option<usize> {
    let block: Option<usize> = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => avx2::strip_block_bytes(tensor_type),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => arm::strip_block_bytes(tensor_type),
        _ => None,
    };
    block.map(|bytes| rows.div_ceil(STRIP_ROWS) * (cols / tensor_type.block_elements()) * bytes)
}

/// Puts rows that begin at a strip in [`Layout::Strips`] into `out`, which has the [`strips_bytes`] of as many rows.
///
/// # Panics
/// When there is no such form, the rows are already in it or lie outside the weights, or `out` has another size.
pub fn pack(isa: Isa, weights: WeightRows<'_>, rows: Range<usize>, out: &mut [u8]) {
    assert!(weights.layout == Layout::Rows && rows.start.is_multiple_of(STRIP_ROWS), "rows that begin a strip");
    assert!(rows.end * weights.row_bytes() <= weights.data.len(), "rows outside the weights");
    let bytes = strips_bytes(isa, weights.tensor_type, weights.cols, rows.len()).expect("a form in strips");
    assert_eq!(out.len(), bytes, "room for these strips");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => avx2::pack(weights, rows, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => arm::pack(weights, rows, out),
        _ => unreachable!("only forms that there are have a size"),
    }
}
