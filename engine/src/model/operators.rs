//! The steps of a layer, each over all tokens of a batch and all workers.

use super::architecture::{Gate, Rotation};
use super::rope::RopeTable;
use super::weights::Matrix;
use crate::gguf::Gguf;
use crate::kernels::vector::attention::narrow;
use crate::kernels::{self, ActivationFormat, Activations, Isa, SharedOut, vector};
use crate::kv_cache::Place;
use crate::pool::{Pool, SharedSlice};
use std::ops::Range;

/// Rows of a weight matrix that a worker takes at least.
pub(super) const ROWS_UNIT: usize = 16;
/// Chunks that each worker gets of a product on average: enough to even out unequal cores.
pub(super) const CHUNKS_PER_WORKER: usize = 8;
/// Tokens that a worker takes at a time in the steps between products.
const TOKENS_CHUNK: usize = 8;

/// The steps of a layer over a batch of `n` tokens.
pub struct Operators<'a> {
    /// Workers.
    pub pool: &'a Pool,
    /// Instruction set.
    pub isa: Isa,
    /// Where the weights are.
    pub gguf: &'a Gguf,
    /// Where the input of a product is quantised.
    pub activations: &'a mut Activations,
    /// For each token one of its own, where its products must be those of a single step.
    pub apart: Option<&'a mut [Activations]>,
    /// Tokens of the batch.
    pub n: usize,
    /// Added to the mean square in every norm.
    pub eps: f32,
}

/// Rows of a matrix whose units begin at `start`, for a range of the units of all matrices; empty when it has none of them.
pub(super) fn rows_of(units: &Range<usize>, start: usize, matrix: &Matrix) -> Range<usize> {
    let first = units.start.max(start) - start;
    let end = units.end.saturating_sub(start) * ROWS_UNIT;
    (first * ROWS_UNIT).min(matrix.rows)..end.min(matrix.rows)
}

impl Operators<'_> {
    /// `out` = rms_norm(x) * weight, each (n, width).
    pub fn norm(&self, x: &[f32], weight: &[f32], out: &mut [f32]) {
        let (isa, eps, width) = (self.isa, self.eps, weight.len());
        let out = SharedSlice::new(out);
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
            for at in tokens.map(|t| t * width..(t + 1) * width) {
                // SAFETY: every token is one worker's.
                let out = unsafe { out.range(at.clone()) };
                vector::rms_norm(isa, &x[at], weight, eps, out);
            }
        });
    }

    /// `out = x · matrixᵀ` for each (matrix, out): x (n, cols), out (n, rows). The matrices share their input, which is
    /// quantised once for each format that they ask for.
    pub fn project(&mut self, x: &[f32], jobs: &mut [(&Matrix, &mut [f32])]) {
        if let Some(apart) = self.apart.take() {
            self.project_apart(apart, x, jobs);
            self.apart = Some(apart);
            return;
        }
        let cols = jobs[0].0.cols;
        for format in ActivationFormat::ALL {
            let of_format = |m: &Matrix| kernels::activation_format(m.tensor_type()) == format;
            if !jobs.iter().any(|(m, _)| of_format(m)) {
                continue;
            }
            let pool = self.pool;
            // SAFETY: every token is one worker's, and the region ends before they are read.
            let filling = unsafe { self.activations.begin(self.isa, format, (self.n, cols)) };
            pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
                tokens.for_each(|token| filling.put(token, 0, &x[token * cols..(token + 1) * cols]));
            });
            let mut outs = [None; 3];
            let mut units = 0;
            for (slot, (matrix, out)) in outs.iter_mut().zip(jobs.iter_mut().filter(|(m, _)| of_format(m))) {
                assert!(matrix.cols == cols && out.len() == self.n * matrix.rows);
                // SAFETY: (n, rows) elements, borrowed for the whole product; workers write disjoint rows.
                let out = unsafe { SharedOut::new(out.as_mut_ptr(), out.len(), matrix.rows) };
                *slot = Some((units, *matrix, out));
                units += matrix.rows.div_ceil(ROWS_UNIT);
            }
            let chunk = (units / (self.pool.active() * CHUNKS_PER_WORKER)).max(1);
            let (isa, gguf, activations) = (self.isa, self.gguf, &*self.activations);
            self.pool.scatter(units, chunk, &|_, range| {
                for &(start, matrix, out) in outs.iter().flatten() {
                    let rows = rows_of(&range, start, matrix);
                    if !rows.is_empty() {
                        kernels::matmul(isa, matrix.weight_rows(gguf), rows, activations, out);
                    }
                }
            });
        }
    }

    /// `x += bias` for each token, x (n, width).
    pub fn shift(&self, x: &mut [f32], bias: Option<&[f32]>) {
        let Some(bias) = bias else { return };
        let isa = self.isa;
        let x = SharedSlice::new(x);
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
            for token in tokens {
                // SAFETY: every token is one worker's.
                vector::add(isa, unsafe { x.range(token * bias.len()..(token + 1) * bias.len()) }, bias);
            }
        });
    }

    /// Norm and rotation of every head of queries or keys, x (n, heads, dim).
    pub fn turn(&self, x: &mut [f32], dim: usize, norm: Option<&[f32]>, rope: &RopeTable, rotation: Rotation) {
        let (isa, eps, width) = (self.isa, self.eps, x.len() / self.n);
        let x = SharedSlice::new(x);
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
            for token in tokens {
                // SAFETY: every token is one worker's.
                let heads = unsafe { x.range(token * width..(token + 1) * width) };
                for head in heads.chunks_exact_mut(dim) {
                    if let Some(norm) = norm {
                        vector::rms_norm_in_place(isa, head, norm, eps);
                    }
                    rope.rotate(isa, rotation, token, head);
                }
            }
        });
    }

    /// Keys or values, x (n, heads, dim), go to positions `first..first + n` of their place in `cached`.
    pub fn store(&self, x: &[f32], place: &Place, cached: &mut [u8], first: usize) {
        let (isa, width) = (self.isa, x.len() / self.n);
        let cached = SharedSlice::new(cached);
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
            for token in tokens {
                let position = first + token;
                for (i, head) in x[token * width..(token + 1) * width].chunks_exact(place.dim()).enumerate() {
                    // SAFETY: (head, position) belongs to this token alone; a batch never needs a slot twice.
                    let row = unsafe { cached.range(place.bytes_of(i, position..position + 1)) };
                    narrow(isa, place.kv_type(), head, row);
                }
            }
        });
    }

    /// `residual += norm(branch + bias)`, each (n, hidden).
    pub fn join(&self, residual: &mut [f32], branch: &mut [f32], bias: Option<&[f32]>, norm: Option<&[f32]>) {
        let (isa, eps, width) = (self.isa, self.eps, residual.len() / self.n);
        let (residual, branch) = (SharedSlice::new(residual), SharedSlice::new(branch));
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
            for at in tokens.map(|t| t * width..(t + 1) * width) {
                // SAFETY: every token is one worker's.
                let (residual, branch) = unsafe { (residual.range(at.clone()), branch.range(at)) };
                if let Some(bias) = bias {
                    vector::add(isa, branch, bias);
                }
                if let Some(norm) = norm {
                    vector::rms_norm_in_place(isa, branch, norm, eps);
                }
                vector::add(isa, residual, branch);
            }
        });
    }

    /// `gate = activation(gate) * up`, each (n, ffn).
    pub fn gate(&self, kind: Gate, gate: &mut [f32], up: &[f32]) {
        let (isa, width) = (self.isa, gate.len() / self.n);
        let gate = SharedSlice::new(gate);
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| {
            for at in tokens.map(|t| t * width..(t + 1) * width) {
                // SAFETY: every token is one worker's.
                let gate = unsafe { gate.range(at.clone()) };
                match kind {
                    Gate::Silu => vector::silu_mul(isa, gate, &up[at]),
                    Gate::Gelu => vector::gelu_mul(isa, gate, &up[at]),
                }
            }
        });
    }
}
