//! What each operator of a pass reads, writes and computes, from the shapes alone: for profiles.

use super::Model;
use super::operators::format_of;
use super::weights::Matrix;
use crate::kernels::ActivationFormat;
use crate::profile::{Cost, Operator};
use crate::protocol::KvType;

/// The part of a pass that costs depend on.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    /// Tokens.
    pub tokens: usize,
    /// How many of them, the last ones, come out of the layer.
    pub wanted: usize,
    /// Position of the first of them.
    pub first: usize,
    /// How keys and values are cached.
    pub cached: (KvType, KvType),
}

/// What a pass does once, not once a layer.
const OUTSIDE_LAYERS: [Operator; 4] = [Operator::Embedding, Operator::HeadNorm, Operator::Head, Operator::Sampling];

/// Bytes of `n` vectors of `width` floats.
fn floats(n: usize, width: usize) -> u64 {
    (n * width * size_of::<f32>()) as u64
}

/// Bytes of `n` vectors of `width` elements, rounded as that matrix wants them: codes, and for each 32 of them a scale and
/// three sums.
fn rounded(n: usize, width: usize, matrix: &Matrix) -> u64 {
    let quantised = format_of(matrix).is_quantised();
    if quantised { (n * (width + width / 32 * 4 * size_of::<f32>())) as u64 } else { floats(n, width) }
}

/// Bytes of `n` cached keys or values of `width` elements.
fn cached(n: usize, width: usize, kv_type: KvType) -> u64 {
    (n * kv_type.row_bytes(width).expect("whole blocks, which the cache checks")) as u64
}

impl Model {
    /// Weights and cached keys and values that decoding the token at `position` reads, bytes.
    pub(super) fn bytes_per_token(&self, position: usize, cached: (KvType, KvType)) -> u64 {
        let batch = Batch { tokens: 1, wanted: 1, first: position, cached };
        let of = |operator: Operator, layer: usize| {
            let cost = self.cost(operator, layer, batch);
            // what other operators have to do with the cache is writing
            cost.weight_bytes + if operator == Operator::Attention { cost.kv_bytes } else { 0 }
        };
        let in_layer = |operator: &Operator| !OUTSIDE_LAYERS.contains(operator);
        let layers = 0..self.hyperparameters.layers.len();
        let inside: u64 = layers
            .flat_map(|l| Operator::ALL.iter().filter(|&o| in_layer(o)).map(move |&o| (o, l)))
            .map(|(operator, layer)| of(operator, layer))
            .sum();
        inside + OUTSIDE_LAYERS.iter().map(|&operator| of(operator, 0)).sum::<u64>()
    }

    /// What `operator` takes for that batch, in that layer if it belongs to one. Each weight counts once a batch, each
    /// position of the cache that any token of the batch sees once a layer.
    pub(super) fn cost(&self, operator: Operator, layer: usize, batch: Batch) -> Cost {
        let (h, w) = (&self.hyperparameters, &self.weights);
        let n = match operator {
            Operator::Embedding | Operator::AttentionNorm | Operator::Qkv => batch.tokens,
            _ => batch.wanted,
        };
        let (shape, weights) = (&h.layers[layer], &w.layers[layer]);
        let (q, k, v) = (shape.heads * h.key_dim, shape.kv_heads * h.key_dim, shape.kv_heads * h.value_dim);
        let mixed = shape.heads * h.value_dim;
        let hidden = floats(n, h.hidden);
        let len = |vector: &Option<Vec<f32>>| vector.as_deref().map_or(0, |v| floats(1, v.len()));
        let cached = |n| cached(n, k, batch.cached.0) + cached(n, v, batch.cached.1);
        let activations = |bytes| Cost { activation_bytes: bytes, ..Cost::default() };
        let norm = |weight: &[f32], matrix| {
            let bytes = hidden + rounded(n, h.hidden, matrix);
            Cost { weight_bytes: floats(1, weight.len()), ..activations(bytes) }
        };
        let residual = |extra| Cost { weight_bytes: extra, ..activations(3 * hidden) };
        let with = |mut cost: Cost, more: Cost| {
            cost.add(&more);
            cost
        };
        // a product that is added to the residual stream reads that too
        let onto = |apart: bool| activations(if apart { 0 } else { hidden });
        match operator {
            Operator::Embedding => Cost {
                rows: n as u64,
                weight_bytes: stored_bytes(&w.embedding) / w.embedding.rows as u64 * n as u64,
                ..activations(hidden)
            },
            Operator::AttentionNorm => norm(&weights.attention_norm, &weights.query),
            Operator::Qkv => {
                let [query, key, value] = [&weights.query, &weights.key, &weights.value];
                let made = if batch.wanted > 0 { product(n, &[query, key, value]) } else { product(n, &[key, value]) };
                let weight_bytes = len(&weights.key_bias) + len(&weights.key_norm) + len(&weights.value_bias);
                with(made, Cost { weight_bytes, kv_bytes: cached(n), ..Cost::default() })
            }
            Operator::Attention => {
                let window = h.window_tokens.filter(|_| shape.local).unwrap_or(usize::MAX);
                let first = batch.first + batch.tokens - n;
                let seen = |token: usize| (first + token + 1).min(window);
                let pairs: usize = (0..n).map(seen).sum();
                // all that the first token sees, and each later token's own
                let positions = seen(0) + n - 1;
                Cost {
                    weight_bytes: len(&weights.query_bias) + len(&weights.query_norm),
                    kv_bytes: cached(positions),
                    f32_operations: 2 * (pairs * (q + mixed)) as u64,
                    ..activations(floats(n, q + mixed))
                }
            }
            Operator::OutputProjection => {
                let rounding = activations(floats(n, mixed) + rounded(n, mixed, &weights.output));
                with(with(product(n, &[&weights.output]), rounding), onto(weights.joins_attention()))
            }
            Operator::AttentionResidual => residual(len(&weights.output_bias) + len(&weights.attention_post_norm)),
            Operator::FfnNorm => norm(&weights.ffn_norm, &weights.gate),
            Operator::GateUp => {
                let gated = activations(rounded(n, shape.ffn, &weights.down));
                with(product(n, &[&weights.gate, &weights.up]), gated)
            }
            Operator::Down => with(product(n, &[&weights.down]), onto(weights.ffn_post_norm.is_some())),
            Operator::FfnResidual => residual(len(&weights.ffn_post_norm)),
            Operator::HeadNorm => norm(&w.head_norm, &w.head),
            Operator::Head => product(n, &[&w.head]),
            Operator::Sampling => activations(floats(n, w.head.rows)),
        }
    }
}

fn stored_bytes(matrix: &Matrix) -> u64 {
    matrix.bytes() as u64
}

/// Products of `n` vectors with matrices that share their input.
fn product(n: usize, matrices: &[&Matrix]) -> Cost {
    let mut cost = Cost { activation_bytes: rounded(n, matrices[0].cols, matrices[0]), ..Cost::default() };
    for matrix in matrices {
        let operations = 2 * (n * matrix.rows * matrix.cols) as u64;
        cost.rows += matrix.rows as u64;
        cost.weight_bytes += stored_bytes(matrix);
        cost.activation_bytes += floats(n, matrix.rows);
        match format_of(matrix) {
            ActivationFormat::F32 | ActivationFormat::F16 | ActivationFormat::Bf16 => cost.f32_operations += operations,
            _ => cost.int8_operations += operations,
        }
    }
    cost
}
