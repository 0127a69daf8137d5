//! What products take: activations, rounded, of a whole batch together or of each token by itself.
//!
//! Kernels for many activation vectors sum in another order than those for one, so a batch rounds otherwise than single
//! steps do. Where that must not be (a draft is checked against what single steps would have chosen), every product is
//! made for one vector at a time by the very kernel of a single step; but a stretch of rows is taken for all tokens
//! before the next, so that the weights still come from memory once.

use crate::kernels::{self, ActivationFormat, Activations, Filling, Isa, SharedOut, WeightRows};
use std::ops::Range;

/// Most tokens that may go together with the numbers of single steps.
pub const EXACT_TOKENS_MAX: usize = 32;

/// The inputs of products, all of one width at a time.
pub struct Inputs {
    cols_max: usize,
    together: Activations,
    /// For each token of an exact batch; none until one is asked for.
    apart: Vec<Activations>,
    /// Tokens that are held apart now; 0 when they are together.
    apart_tokens: usize,
}

/// Inputs that are being rounded, by any workers at once.
#[allow(clippy::large_enum_variant)] // one at a time, on the stack
pub enum Fillings<'a> {
    /// Of a batch.
    Together(Filling<'a>),
    /// Of each token.
    Apart([Option<Filling<'a>>; EXACT_TOKENS_MAX]),
}

impl Inputs {
    /// Room for one token of at most `cols_max` elements.
    pub fn new(cols_max: usize) -> Self {
        Self { cols_max, together: Activations::new(cols_max, 1), apart: Vec::new(), apart_tokens: 0 }
    }

    /// Room for batches of `n` tokens; what was held is lost.
    pub fn make_room(&mut self, n: usize) {
        // the old ones go before the new ones come
        self.together = Activations::new(0, 0);
        self.together = Activations::new(self.cols_max, n);
    }

    /// Room for exact batches of `tokens`.
    pub fn make_room_apart(&mut self, tokens: usize) {
        while self.apart.len() < tokens {
            self.apart.push(Activations::new(self.cols_max, 1));
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.together.bytes() + self.apart.iter().map(Activations::bytes).sum::<u64>()
    }

    /// Begins to round (n, cols) elements into `format`; with the numbers of single steps if `exact`.
    ///
    /// # Safety
    /// As of [`Activations::begin`].
    pub unsafe fn begin(
        &mut self,
        isa: Isa,
        format: ActivationFormat,
        (n, cols): (usize, usize),
        exact: bool,
    ) -> Fillings<'_> {
        self.apart_tokens = if exact { n } else { 0 };
        if !exact {
            // SAFETY: the caller's promise.
            return Fillings::Together(unsafe { self.together.begin(isa, format, (n, cols)) });
        }
        let mut fillings = [None; EXACT_TOKENS_MAX];
        for (slot, activations) in fillings.iter_mut().zip(&mut self.apart[..n]) {
            // SAFETY: the caller's promise.
            *slot = Some(unsafe { activations.begin(isa, format, (1, cols)) });
        }
        Fillings::Apart(fillings)
    }

    /// `out[token][row] = weights[row] · inputs[token]` for the given rows and all tokens.
    pub fn multiply(&self, isa: Isa, weights: WeightRows<'_>, rows: Range<usize>, out: SharedOut) {
        if self.apart_tokens == 0 {
            return kernels::matmul(isa, weights, rows, &self.together, out);
        }
        for (token, input) in self.apart[..self.apart_tokens].iter().enumerate() {
            kernels::matmul(isa, weights, rows.clone(), input, out.row(token));
        }
    }
}

impl<'a> Fillings<'a> {
    fn of(&self, token: usize) -> (&Filling<'a>, usize) {
        match self {
            Self::Together(filling) => (filling, token),
            Self::Apart(fillings) => (fillings[token].as_ref().expect("a token of the batch"), 0),
        }
    }

    /// As [`Filling::put`].
    pub fn put(&self, token: usize, first: usize, x: &[f32]) {
        let (filling, vector) = self.of(token);
        filling.put(vector, first, x);
    }

    /// As [`Filling::put_normed`].
    pub fn put_normed(&self, token: usize, x: &[f32], weight: &[f32], eps: f32) {
        let (filling, vector) = self.of(token);
        filling.put_normed(vector, x, weight, eps);
    }
}
