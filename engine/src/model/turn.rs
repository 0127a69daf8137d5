//! What queries, keys and values go through between their product and their use.

use super::architecture::Rotation;
use super::rope::RopeTable;
use crate::kernels::{Isa, vector};

/// Bias, norm and rotation of heads; each is left out where a model has none.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// Added, (heads, dim).
    pub bias: Option<&'a [f32]>,
    /// Weight of each head's norm, (dim).
    pub norm: Option<&'a [f32]>,
    /// Added to the mean square in the norm.
    pub eps: f32,
    /// Angles of the batch's tokens.
    pub rope: Option<(&'a RopeTable, Rotation)>,
}

impl Turn<'_> {
    /// Turns one head, `x` (dim), of the batch's `token`-th token.
    pub fn apply(&self, token: usize, head: usize, x: &mut [f32]) {
        if let Some(bias) = self.bias {
            vector::add(self.isa, x, &bias[head * x.len()..(head + 1) * x.len()]);
        }
        if let Some(norm) = self.norm {
            vector::rms_norm_in_place(self.isa, x, norm, self.eps);
        }
        if let Some((rope, rotation)) = self.rope {
            rope.rotate(self.isa, rotation, token, x);
        }
    }
}
