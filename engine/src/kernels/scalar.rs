//! The specification of every product: decode, multiply, add.

use super::activations::GROUP;
use super::{Activations, SharedOut, WeightRows};
use crate::quant::dequantise_row;
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// A decoded row, and an activation vector as it was rounded.
    static ROW: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

pub(super) fn matmul(weights: WeightRows<'_>, rows: Range<usize>, acts: &Activations, out: SharedOut) {
    ROW.with_borrow_mut(|(row_values, vector)| {
        row_values.resize(weights.cols, 0.0);
        for row in rows {
            dequantise_row(weights.tensor_type, weights.row(row), row_values);
            for n in 0..acts.n() {
                out.put(n, row, dot(row_values, rounded(acts, n, vector)) as f32);
            }
        }
    });
}

/// The activations as the kernels see them: codes times scale where they are codes.
fn rounded<'a>(acts: &'a Activations, n: usize, room: &'a mut Vec<f32>) -> &'a [f32] {
    if !acts.format().is_quantised() {
        return acts.floats(n);
    }
    room.clear();
    for (codes, scale) in acts.codes(n).chunks_exact(GROUP).zip(acts.scales(n)) {
        room.extend(codes.iter().map(|c| f32::from(*c) * scale));
    }
    room
}

/// Summed in f64, so that the specification has no rounding of its own worth speaking of.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}
