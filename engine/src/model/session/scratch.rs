//! What a pass keeps between its operators.

use super::super::hyperparameters::Hyperparameters;
use std::ops::Range;

/// Buffers of one batch, each (n, width) for n tokens.
pub struct Scratch {
    pub residual: Vec<f32>, // (n, hidden)
    pub branch: Vec<f32>,   // (n, hidden): what is normed before it joins the residual stream
    pub query: Vec<f32>,    // (n, heads * key_dim)
    pub key: Vec<f32>,      // (n, kv_heads * key_dim)
    pub value: Vec<f32>,    // (n, kv_heads * value_dim)
    pub mixed: Vec<f32>,    // (n, heads * value_dim)
    pub gate: Vec<f32>,     // (n, ffn)
    pub up: Vec<f32>,       // (n, ffn)
}

impl Scratch {
    /// Room for `n` tokens.
    pub fn new(h: &Hyperparameters, n: usize) -> Self {
        let of = |width: usize| vec![0.0; width * n];
        Self {
            residual: of(h.hidden),
            branch: of(h.hidden),
            query: of(h.widest(|l| l.heads) * h.key_dim),
            key: of(h.widest(|l| l.kv_heads) * h.key_dim),
            value: of(h.widest(|l| l.kv_heads) * h.value_dim),
            mixed: of(h.widest(|l| l.heads) * h.value_dim),
            gate: of(h.widest(|l| l.ffn)),
            up: of(h.widest(|l| l.ffn)),
        }
    }

    /// The residual stream of some tokens, and a branch for as many; each (tokens, hidden).
    pub fn streams(&mut self, tokens: &Range<usize>, hidden: usize) -> (&mut [f32], &mut [f32]) {
        let branch = &mut self.branch[..tokens.len() * hidden];
        (&mut self.residual[tokens.start * hidden..tokens.end * hidden], branch)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let all =
            [&self.residual, &self.branch, &self.query, &self.key, &self.value, &self.mixed, &self.gate, &self.up];
        all.iter().map(|v| size_of_val(&v[..]) as u64).sum()
    }
}
