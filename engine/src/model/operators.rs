//! The steps of a layer, each over all tokens of a batch and all workers.
//!
//! What can be done to a product while it is in the cache of the worker that made it is done there, as a task's `after`:
//! keys and values are turned and stored, the gate is applied and rounded for the next product. So a layer takes five
//! regions of the pool, and two more for its norms where many tokens share them.

use super::architecture::Gate;
use super::turn::Turn;
use super::weights::Matrix;
use crate::gguf::Gguf;
use crate::kernels::vector::attention::narrow;
use crate::kernels::{self, ActivationFormat, Activations, Isa, STRIP_ROWS, SharedOut, vector};
use crate::kv_cache::Place;
use crate::pool::{Pool, SharedSlice};
use std::ops::Range;

/// Rows of a weight matrix that a worker takes at least.
const ROWS_UNIT: usize = 16;
/// Pieces that each worker gets of a product on average: enough to even out unequal cores.
const PIECES_PER_WORKER: usize = 8;
/// Fewest pieces a worker for which rounding within a piece, which makes pieces coarser, pays.
const COARSE_PIECES_PER_WORKER: usize = 4;
/// Tokens that a worker takes at a time in the steps between products.
const TOKENS_CHUNK: usize = 8;

/// The format that a matrix wants its inputs in.
pub fn format_of(matrix: &Matrix) -> ActivationFormat {
    kernels::activation_format(matrix.tensor_type())
}

/// The formats that matrices want their common input in, each once.
pub fn formats(matrices: &[&Matrix]) -> impl Iterator<Item = ActivationFormat> {
    ActivationFormat::ALL.into_iter().filter(|format| matrices.iter().any(|m| format_of(m) == *format))
}

/// A matrix and where its products go.
pub type Product<'a> = (&'a Matrix, SharedOut);

/// Products that are made in pieces of as many rows, and what becomes of a piece.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// One matrix, or two with as many rows, of which a piece is made together.
    pub products: [Option<Product<'a>>; 2],
    /// Rows of a piece; `None` for what suits the workers.
    pub rows_step: Option<usize>,
    /// Done by the worker that made a piece, after it.
    pub after: Option<&'a (dyn Fn(Range<usize>) + Sync)>,
}

impl<'a> Task<'a> {
    /// One matrix, nothing after it.
    pub fn plain(matrix: &'a Matrix, out: SharedOut) -> Self {
        Self { products: [Some((matrix, out)), None], rows_step: None, after: None }
    }

    fn rows(&self) -> usize {
        self.products[0].map_or(0, |(matrix, _)| matrix.rows)
    }
}

/// Keys or values on their way into the cache.
pub struct Store<'a> {
    /// What they go through first.
    pub turn: Turn<'a>,
    /// Where they go.
    pub place: Place,
    /// What that is a place in.
    pub cached: SharedSlice<'a, u8>,
    /// Position of the batch's first token.
    pub first: usize,
}

/// The steps of a layer over a batch of `n` tokens.
#[derive(Clone, Copy)]
pub struct Operators<'a> {
    /// Workers.
    pub pool: &'a Pool,
    /// Instruction set.
    pub isa: Isa,
    /// Where the weights are.
    pub gguf: &'a Gguf,
    /// Tokens of the batch.
    pub n: usize,
    /// Added to the mean square in every norm.
    pub eps: f32,
}

/// Where the products of a matrix go: (n, rows), shared by all workers for one region.
///
/// # Safety
/// As of [`SharedOut::new`], while the region lasts.
unsafe fn shared_out(out: SharedSlice<'_, f32>, rows: usize) -> SharedOut {
    // SAFETY: the slice's elements; the rest is the caller's promise.
    unsafe { SharedOut::new(out.start(), out.len(), rows) }
}

impl Store<'_> {
    /// Turns the heads of some rows of keys or values of `n` tokens, x (n, heads, dim), and stores them.
    fn put(&self, n: usize, rows: Range<usize>, x: SharedSlice<'_, f32>) {
        let (dim, width) = (self.place.dim(), x.len() / n);
        for head in rows.start / dim..rows.end / dim {
            for token in 0..n {
                let (at, position) = (token * width + head * dim, self.first + token);
                // SAFETY: (head, position) is of this piece alone, in the slice and in the cache, since a batch never needs a
                // slot twice.
                let (x, row) = unsafe {
                    (x.range(at..at + dim), self.cached.range(self.place.bytes_of(head, position..position + 1)))
                };
                self.turn.apply(token, head, x);
                narrow(self.turn.isa, self.place.kv_type(), x, row);
            }
        }
    }

    /// Fewest rows that are whole heads and whole strips.
    fn rows_step(&self) -> usize {
        let dim = self.place.dim();
        (1..).map(|heads| heads * dim).find(|rows| rows.is_multiple_of(STRIP_ROWS)).unwrap_or(dim)
    }
}

fn apply_gate(isa: Isa, kind: Gate, gate: &mut [f32], up: &[f32]) {
    match kind {
        Gate::Silu => vector::silu_mul(isa, gate, up),
        Gate::Gelu => vector::gelu_mul(isa, gate, up),
    }
}

impl Operators<'_> {
    fn each_token(&self, work: &(dyn Fn(usize) + Sync)) {
        self.pool.scatter(self.n, TOKENS_CHUNK, &|_, tokens| tokens.for_each(work));
    }

    /// `to` = rms_norm(x) * weight, x (n, width), rounded into `format`.
    pub fn norm(&self, x: &[f32], weight: &[f32], format: ActivationFormat, to: &mut Activations) {
        let (width, eps) = (weight.len(), self.eps);
        // SAFETY: every token is one worker's, and the region ends before they are read.
        let filling = unsafe { to.begin(self.isa, format, (self.n, width)) };
        self.each_token(&|token| {
            filling.put_normed(token, &x[token * width..(token + 1) * width], weight, eps);
        });
    }

    /// `to` = x (n, width), rounded into `format`.
    pub fn round(&self, x: &[f32], format: ActivationFormat, to: &mut Activations) {
        let width = x.len() / self.n;
        // SAFETY: every token is one worker's, and the region ends before they are read.
        let filling = unsafe { to.begin(self.isa, format, (self.n, width)) };
        self.each_token(&|token| filling.put(token, 0, &x[token * width..(token + 1) * width]));
    }

    /// Rows of a piece of a product of `rows` in all.
    fn rows_step(&self, rows: usize) -> usize {
        let units = rows.div_ceil(ROWS_UNIT) / (self.pool.active() * PIECES_PER_WORKER);
        units.max(1) * ROWS_UNIT
    }

    /// All tasks as one region, in their order.
    pub fn run(&self, input: &Activations, tasks: &[Task<'_>]) {
        let suiting = self.rows_step(tasks.iter().map(Task::rows).sum());
        let step = |task: &Task<'_>| task.rows_step.unwrap_or(suiting);
        let pieces = |task: &Task<'_>| task.rows().div_ceil(step(task));
        let (isa, gguf) = (self.isa, self.gguf);
        self.pool.scatter(tasks.iter().map(pieces).sum(), 1, &|_, range| {
            for mut piece in range {
                let mut tasks = tasks.iter();
                let task = loop {
                    let task = tasks.next().expect("a piece of one of the tasks");
                    match piece.checked_sub(pieces(task)) {
                        Some(rest) => piece = rest,
                        None => break task,
                    }
                };
                let rows = piece * step(task)..task.rows().min((piece + 1) * step(task));
                for (matrix, out) in task.products.iter().flatten() {
                    kernels::matmul(isa, matrix.weight_rows(gguf), rows.clone(), input, *out);
                }
                if let Some(after) = task.after {
                    after(rows);
                }
            }
        });
    }

    /// `out = input · matrixᵀ`, out (n, rows); added to what is there if `adding`.
    pub fn project(&self, input: &Activations, matrix: &Matrix, out: &mut [f32], adding: bool) {
        assert_eq!(out.len(), self.n * matrix.rows);
        // SAFETY: borrowed for the whole region; workers write disjoint rows.
        let out = unsafe { shared_out(SharedSlice::new(out), matrix.rows) };
        self.run(input, &[Task::plain(matrix, if adding { out.adding() } else { out })]);
    }

    fn share<'o>(&self, matrix: &Matrix, out: &'o mut [f32]) -> SharedSlice<'o, f32> {
        assert_eq!(out.len(), self.n * matrix.rows);
        SharedSlice::new(out)
    }

    /// Queries, keys and values (n, width) of those matrices whose inputs have `format`; keys and values go into the cache
    /// as they come. `query` is left out where nobody asks.
    pub fn qkv(
        &self,
        (input, format): (&Activations, ActivationFormat),
        query: Option<(&Matrix, &mut [f32])>,
        [key, value]: [(&Matrix, &mut [f32], &Store<'_>); 2],
    ) {
        let (keys, values) = (self.share(key.0, key.1), self.share(value.0, value.1));
        let n = self.n;
        let after_keys = |rows: Range<usize>| key.2.put(n, rows, keys);
        let after_values = |rows: Range<usize>| value.2.put(n, rows, values);
        // SAFETY: borrowed for the whole region; workers write disjoint rows and read their own.
        let (keys, values) = unsafe { (shared_out(keys, key.0.rows), shared_out(values, value.0.rows)) };
        let key = Task { rows_step: Some(key.2.rows_step()), after: Some(&after_keys), ..Task::plain(key.0, keys) };
        let value =
            Task { rows_step: Some(value.2.rows_step()), after: Some(&after_values), ..Task::plain(value.0, values) };
        let query = query.map(|(matrix, out)| {
            // SAFETY: borrowed for the whole region; workers write disjoint rows.
            Task::plain(matrix, unsafe { shared_out(self.share(matrix, out), matrix.rows) })
        });
        // the largest pieces first, so that no worker is left alone with one
        let none = Task { products: [None; 2], rows_step: None, after: None };
        let mut tasks = [none; 3];
        let wanted = [Some(key), Some(value), query].into_iter().flatten();
        let wanted = wanted.filter(|t| t.products[0].is_some_and(|(matrix, _)| format_of(matrix) == format));
        for (slot, task) in tasks.iter_mut().zip(wanted) {
            *slot = task;
        }
        self.run(input, &tasks);
    }

    /// `gate = activation(gate) * up`, each (n, ffn).
    pub fn activate(&self, kind: Gate, gate: &mut [f32], up: &[f32]) {
        let width = gate.len() / self.n;
        let (isa, gate) = (self.isa, SharedSlice::new(gate));
        self.each_token(&|token| {
            let at = token * width..(token + 1) * width;
            // SAFETY: every token is one worker's.
            apply_gate(isa, kind, unsafe { gate.range(at.clone()) }, &up[at]);
        });
    }

    /// `gated` = activation(gate) * up of inputs that both matrices take, rounded into `format`; `buffers` for gate and up are (n, ffn) each.
    pub fn gate(
        &self,
        input: &Activations,
        [gate, up]: [&Matrix; 2],
        kind: Gate,
        buffers: [&mut [f32]; 2],
        (gated, format): (&mut Activations, ActivationFormat),
    ) {
        let width = gate.rows;
        let [gates, ups] = buffers.map(|buffer| {
            assert!(up.rows == width && buffer.len() == self.n * width);
            SharedSlice::new(buffer)
        });
        let unit = ROWS_UNIT.max(format.block_elements());
        let coarse = (self.rows_step(width) / unit * unit).max(unit);
        let active = self.pool.active();
        let rounds = active == 1 || width.div_ceil(coarse) >= active * COARSE_PIECES_PER_WORKER;
        let step = if rounds { coarse } else { self.rows_step(width) };
        // SAFETY: pieces have different elements, and the region ends before they are read.
        let filling = rounds.then(|| unsafe { gated.begin(self.isa, format, (self.n, width)) });
        let (isa, n) = (self.isa, self.n);
        let after = |rows: Range<usize>| {
            for token in 0..n {
                let at = token * width + rows.start..token * width + rows.end;
                // SAFETY: these rows are this piece's alone.
                let (gate, up) = unsafe { (gates.range(at.clone()), ups.range(at)) };
                apply_gate(isa, kind, gate, up);
                if let Some(filling) = &filling {
                    filling.put(token, rows.start, gate);
                }
            }
        };
        // SAFETY: borrowed for the whole region; workers write disjoint rows and read their own.
        let products = unsafe { [(gate, shared_out(gates, width)), (up, shared_out(ups, width))] };
        self.run(input, &[Task { products: products.map(Some), rows_step: Some(step), after: Some(&after) }]);
        if !rounds {
            // SAFETY: the region is over, and nobody else has the slice.
            self.round(unsafe { gates.range(0..self.n * width) }, format, gated);
        }
    }

    /// `residual += norm(branch + bias)`, each (n, hidden).
    pub fn join(&self, residual: &mut [f32], branch: &mut [f32], bias: Option<&[f32]>, norm: Option<&[f32]>) {
        let (isa, eps, width) = (self.isa, self.eps, residual.len() / self.n);
        let (residual, branch) = (SharedSlice::new(residual), SharedSlice::new(branch));
        self.each_token(&|token| {
            let at = token * width..(token + 1) * width;
            // SAFETY: every token is one worker's.
            let (residual, branch) = unsafe { (residual.range(at.clone()), branch.range(at)) };
            if let Some(bias) = bias {
                vector::add(isa, branch, bias);
            }
            if let Some(norm) = norm {
                vector::rms_norm_in_place(isa, branch, norm, eps);
            }
            vector::add(isa, residual, branch);
        });
    }
}
