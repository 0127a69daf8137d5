//! Rotary position embedding: cosines and sines of one batch of positions, for global and for local layers.

use super::architecture::Rotation;
use super::hyperparameters::{Hyperparameters, Rope};
use crate::kernels::Isa;
use crate::kernels::vector;
use crate::pool::{Pool, SharedSlice};
use std::f64::consts::PI;

/// Tokens whose angles a worker computes at a time.
const TOKENS_CHUNK: usize = 8;

/// Angles of a batch: for each token, `pairs` cosines and sines.
pub struct RopeTable {
    /// Angle per position of each pair.
    frequencies: Vec<f64>,
    /// Factor of cosine and sine.
    magnitude: f64,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// For up to `batch_max` tokens. `divisors` are a file's `rope_freqs.weight`: one per pair, dividing its frequency.
    pub fn new(rope: &Rope, dims: usize, divisors: Option<&[f32]>, batch_max: usize) -> Self {
        let pairs = dims / 2;
        let ramp = rope.yarn.map(|yarn| yarn_ramp(f64::from(rope.base), dims, &yarn));
        let scale = f64::from(rope.position_scale);
        let frequencies = (0..pairs)
            .map(|i| {
                let divisor = divisors.map_or(1.0, |d| f64::from(d[i]));
                let plain = f64::from(rope.base).powf(-(2.0 * i as f64) / dims as f64) / divisor;
                let kept = ramp.as_ref().map_or(0.0, |ramp| ramp[i]);
                plain * (scale * (1.0 - kept) + kept)
            })
            .collect();
        let magnitude = rope.yarn.map_or(1.0, |yarn| f64::from(yarn.attention_factor) * (1.0 - 0.1 * scale.ln()));
        Self { frequencies, magnitude, cos: vec![0.0; pairs * batch_max], sin: vec![0.0; pairs * batch_max] }
    }

    /// Computes the angles of tokens at positions `first..first + n`.
    pub fn fill(&mut self, pool: &Pool, first: usize, n: usize) {
        let Self { frequencies, magnitude, cos, sin } = self;
        let (pairs, cos, sin) = (frequencies.len(), SharedSlice::new(cos), SharedSlice::new(sin));
        pool.scatter(n, TOKENS_CHUNK, &|_, tokens| {
            for token in tokens {
                let at = token * pairs..(token + 1) * pairs;
                // SAFETY: every token is one worker's.
                let (cos, sin) = unsafe { (cos.range(at.clone()), sin.range(at)) };
                for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
                    let (s, c) = ((first + token) as f64 * frequency).sin_cos();
                    (*cos, *sin) = ((c * *magnitude) as f32, (s * *magnitude) as f32);
                }
            }
        });
    }

    /// Rotates one head of the batch's `token`-th token; elements past the rotated ones stay.
    pub fn rotate(&self, isa: Isa, rotation: Rotation, token: usize, head: &mut [f32]) {
        let pairs = self.frequencies.len();
        let at = token * pairs..(token + 1) * pairs;
        let (cos, sin) = (&self.cos[at.clone()], &self.sin[at]);
        match rotation {
            Rotation::Interleaved => vector::rotate_interleaved(isa, &mut head[..2 * pairs], cos, sin),
            Rotation::Halves => vector::rotate_halves(isa, &mut head[..2 * pairs], cos, sin),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.cos[..]) + size_of_val(&self.sin[..]) + size_of_val(&self.frequencies[..])) as u64
    }
}

/// Tables of both kinds of layer.
pub struct RopeTables {
    global: RopeTable,
    local: Option<RopeTable>,
}

impl RopeTables {
    /// Tables for a model; `divisors` as in [`RopeTable::new`], for global layers.
    pub fn new(h: &Hyperparameters, divisors: Option<&[f32]>, batch_max: usize) -> Self {
        let any_local = h.layers.iter().any(|l| l.local);
        Self {
            global: RopeTable::new(&h.rope_global, h.rope_dims, divisors, batch_max),
            local: any_local.then(|| RopeTable::new(&h.rope_local, h.rope_dims, None, batch_max)),
        }
    }

    /// Computes the angles of a batch.
    pub fn fill(&mut self, pool: &Pool, first: usize, n: usize) {
        self.global.fill(pool, first, n);
        if let Some(local) = &mut self.local {
            local.fill(pool, first, n);
        }
    }

    /// The table for a layer of that kind.
    pub fn of(&self, local: bool) -> &RopeTable {
        self.local.as_ref().filter(|_| local).unwrap_or(&self.global)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.global.bytes() + self.local.as_ref().map_or(0, RopeTable::bytes)
    }
}

/// Per pair, the share (0..=1) of its angle that is not stretched.
fn yarn_ramp(base: f64, dims: usize, yarn: &super::hyperparameters::Yarn) -> Vec<f64> {
    // the pair that turns `rotations` times over the old context
    let pair_of = |rotations: f32| {
        let context = f64::from(yarn.context_before_tokens);
        dims as f64 * (context / (f64::from(rotations) * 2.0 * PI)).ln() / (2.0 * base.ln())
    };
    let low = pair_of(yarn.beta_fast).floor().max(0.0);
    let high = pair_of(yarn.beta_slow).ceil().min(dims as f64 - 1.0);
    (0..dims / 2).map(|i| 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::hyperparameters::Yarn;
    use super::*;

    fn plain(base: f32) -> Rope {
        Rope { base, position_scale: 1.0, yarn: None }
    }

    fn one() -> Pool {
        Pool::new(1).unwrap()
    }

    #[test]
    fn angles_are_position_times_falling_powers_of_the_base() {
        let mut table = RopeTable::new(&plain(10_000.0), 4, None, 2);
        table.fill(&one(), 3, 2);
        // pairs turn by 1 and 0.01 a position
        for (token, position) in [(0, 3.0f32), (1, 4.0)] {
            let mut head = [1.0, 0.0, 1.0, 0.0, 9.0];
            table.rotate(Isa::Scalar, Rotation::Interleaved, token, &mut head);
            let expected = [position.cos(), position.sin(), (position * 0.01).cos(), (position * 0.01).sin(), 9.0];
            assert!(head.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{head:?}");
        }
    }

    #[test]
    fn linear_scaling_by_four_turns_position_eight_into_two() {
        let stretched = Rope { position_scale: 0.25, ..plain(10_000.0) };
        let (mut a, mut b) = (RopeTable::new(&stretched, 8, None, 1), RopeTable::new(&plain(10_000.0), 8, None, 1));
        a.fill(&one(), 8, 1);
        b.fill(&one(), 2, 1);
        assert_eq!((a.cos, a.sin), (b.cos, b.sin));
    }

    #[test]
    fn divisors_of_llama_3_slow_their_pairs() {
        let mut table = RopeTable::new(&plain(1.0), 4, Some(&[1.0, 8.0]), 1);
        table.fill(&one(), 8, 1);
        assert!((table.cos[0] - 8f32.cos()).abs() < 1e-6 && (table.cos[1] - 1f32.cos()).abs() < 1e-6);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let yarn = Yarn { context_before_tokens: 4096.0, attention_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 };
        let rope = Rope { base: 10_000.0, position_scale: 0.25, yarn: Some(yarn) };
        let table = RopeTable::new(&rope, 128, None, 1);
        let plain = RopeTable::new(&plain(10_000.0), 128, None, 1);
        assert_eq!(table.frequencies[0], plain.frequencies[0]);
        assert!((table.frequencies[63] / plain.frequencies[63] - 0.25).abs() < 1e-12);
        assert!((table.magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12);
    }
}
