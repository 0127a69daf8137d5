//! Block formats. [`dequantise_row`] is the specification: scalar, straight from the layouts of the ggml project's
//! `ggml-common.h`. Kernels are held against it. [`quantise_row`] is a plain encoder for tests and synthetic models.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use decode::q3_k_scales;
pub use decode::{dequantise_row, scale_min_6bit};
pub use encode::quantise_row;
