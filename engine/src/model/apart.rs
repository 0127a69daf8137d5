//! A few tokens through the network together, with the numbers that each alone would have had.
//!
//! Kernels for many activation vectors sum in another order than those for one, so a batch rounds otherwise than single
//! steps do. Where that must not be (a draft is checked against what single steps would have chosen), every product is
//! made for one vector at a time by the very kernel of a single step; but a stretch of rows is taken for all tokens
//! before the next, so that the weights still come from memory once.

use super::operators::{CHUNKS_PER_WORKER, Operators, ROWS_UNIT, rows_of};
use super::weights::Matrix;
use crate::kernels::{self, ActivationFormat, Activations, SharedOut};

/// Most tokens that may go together.
pub const EXACT_TOKENS_MAX: usize = 32;
/// Most matrices that share an input.
const JOBS_MAX: usize = 3;
/// Stretches of rows that a worker takes at most before it looks at the next token, so that they stay in its nearest
/// caches: 2 x 16 rows of a few hundred bytes to a few kilobytes.
const UNITS_MAX: usize = 2;

impl Operators<'_> {
    /// As [`Operators::project`], for each of `inputs` by itself: x (n, cols), every out (n, rows).
    pub(super) fn project_apart(&self, inputs: &mut [Activations], x: &[f32], jobs: &mut [(&Matrix, &mut [f32])]) {
        let cols = jobs[0].0.cols;
        let inputs = &mut inputs[..self.n];
        for format in ActivationFormat::ALL {
            let of_format = |m: &Matrix| kernels::activation_format(m.tensor_type()) == format;
            if !jobs.iter().any(|(m, _)| of_format(m)) {
                continue;
            }
            for (input, x) in inputs.iter_mut().zip(x.chunks_exact(cols)) {
                input.fill(self.isa, format, x, 1, cols);
            }
            let mut outs = [None; JOBS_MAX];
            let mut units = 0;
            for (slot, (matrix, out)) in outs.iter_mut().zip(jobs.iter_mut().filter(|(m, _)| of_format(m))) {
                assert!(matrix.cols == cols && out.len() == self.n * matrix.rows);
                let mut rows_of_token = [None; EXACT_TOKENS_MAX];
                for (slot, out) in rows_of_token.iter_mut().zip(out.chunks_exact_mut(matrix.rows)) {
                    // SAFETY: (1, rows) elements of this token alone, borrowed for the whole product; workers write
                    // disjoint rows.
                    *slot = Some(unsafe { SharedOut::new(out.as_mut_ptr(), out.len(), matrix.rows) });
                }
                *slot = Some((units, *matrix, rows_of_token));
                units += matrix.rows.div_ceil(ROWS_UNIT);
            }
            let chunk = (units / (self.pool.active() * CHUNKS_PER_WORKER)).clamp(1, UNITS_MAX);
            let (isa, gguf, inputs) = (self.isa, self.gguf, &*inputs);
            self.pool.scatter(units, chunk, &|_, range| {
                for (start, matrix, outs) in outs.iter().flatten() {
                    let rows = rows_of(&range, *start, matrix);
                    if rows.is_empty() {
                        continue;
                    }
                    for (input, out) in inputs.iter().zip(outs.iter().flatten()) {
                        kernels::matmul(isa, matrix.weight_rows(gguf), rows.clone(), input, *out);
                    }
                }
            });
        }
    }
}
