//! The forward pass: a batch through all layers, and some of its tokens through the head.

use super::scratch::Scratch;
use super::{EMBEDDING_ROWS_KEPT, Session};
use crate::kernels::{Activations, vector};
use crate::kv_cache::LayerCache;
use crate::model::Model;
use crate::model::attention::{Attention, AttentionScratch};
use crate::model::cost::Batch;

use crate::model::operators::{Operators, Store, format_of, formats};
use crate::model::rope::RopeTables;
use crate::model::turn::Turn;
use crate::pool::{Pool, SharedSlice};
use crate::profile::Operator;
use std::ops::Range;

/// Tokens that a worker embeds at a time.
const TOKENS_CHUNK: usize = 8;

/// What the layers of a pass have in common.
struct Pass<'a> {
    model: &'a Model,
    ops: Operators<'a>,
    batch: Batch,
    ropes: &'a RopeTables,
    scratch: &'a mut Scratch,
    attention: &'a mut AttentionScratch,
    inputs: &'a mut Activations,
    gated: &'a mut Activations,
    /// Whether the numbers are those of single steps.
    exact: bool,
}

impl Session {
    /// Embeds a batch and takes it through all layers; leaves the residual stream in the scratch and the cache grown. Only
    /// the last `wanted` tokens come out of the last layer. `exact`: with the numbers of single steps.
    pub(super) fn run_layers(&mut self, ids: &[u32], wanted: usize, exact: bool) {
        self.make_ready(ids.len(), exact);
        let Self { model, pool, cache, ropes, scratch, attention, inputs, gated, cached_types, looked_up, .. } = self;
        let (h, n, first) = (&model.hyperparameters, ids.len(), cache.depth());
        inputs.want_as_alone(exact);
        gated.want_as_alone(exact);
        cache.grow(n);
        let batch = Batch { tokens: n, wanted: n, first, cached: *cached_types };
        embed(model, pool, ids, batch, &mut scratch.residual[..n * h.hidden]);
        *looked_up += n;
        if *looked_up >= EMBEDDING_ROWS_KEPT {
            model.let_embedding_go();
            *looked_up = 0;
        }
        ropes.fill(pool, first, n);
        let ops = Operators { pool, isa: model.isa, gguf: &model.gguf, n, eps: h.norm_eps };
        let mut pass = Pass { model, ops, batch, ropes, scratch, attention, inputs, gated, exact };
        let layers = model.weights.layers.len();
        for i in 0..layers {
            pass.batch.wanted = if i + 1 == layers { wanted } else { n };
            pass.attend(i, cache.layer(i));
            pass.feed_forward(i);
        }
    }

    /// Final norm and output head for `tokens` of the last batch; logits go to `self.logits[at..]`.
    pub(super) fn run_head(&mut self, tokens: Range<usize>, at: usize) {
        let Self { model, pool, scratch, inputs, logits, cached_types, .. } = self;
        let (h, weights, n) = (&model.hyperparameters, &model.weights, tokens.len());
        let ops = Operators { pool, isa: model.isa, gguf: &model.gguf, n, eps: h.norm_eps };
        let residual = &scratch.residual[tokens.start * h.hidden..tokens.end * h.hidden]; // (n, hidden)
        let logits = &mut logits[at..at + n * model.vocab()]; // (n, vocab)
        let batch = Batch { tokens: n, wanted: n, first: 0, cached: *cached_types };
        let mark = |operator| pool.mark(operator, None, || model.cost(operator, 0, batch));

        mark(Operator::HeadNorm);
        ops.norm(residual, &weights.head_norm, format_of(&weights.head), inputs);
        mark(Operator::Head);
        ops.project(inputs, &weights.head, logits, false);
        if let Some(cap) = h.logit_cap {
            vector::soft_cap(model.isa, logits, cap);
        }
    }
}

/// Starts the residual stream (n, hidden) with the tokens' embeddings.
fn embed(model: &Model, pool: &Pool, ids: &[u32], batch: Batch, residual: &mut [f32]) {
    let h = &model.hyperparameters;
    pool.mark(Operator::Embedding, None, || model.cost(Operator::Embedding, 0, batch));
    let residual = SharedSlice::new(residual);
    pool.scatter(ids.len(), TOKENS_CHUNK, &|_, tokens| {
        for token in tokens {
            // SAFETY: every token is one worker's.
            let row = unsafe { residual.range(token * h.hidden..(token + 1) * h.hidden) };
            model.weights.embedding.widen_row(&model.gguf, ids[token] as usize, row);
            if h.embedding_scale != 1.0 {
                vector::scale(model.isa, row, h.embedding_scale);
            }
        }
    });
}

impl<'a> Pass<'a> {
    fn mark(&self, operator: Operator, layer: usize) {
        self.ops.pool.mark(operator, Some(layer), || self.model.cost(operator, layer, self.batch));
    }

    /// The steps for the tokens that come out of a layer, and which these are.
    fn wanted(&self) -> (Operators<'a>, Range<usize>) {
        let Batch { tokens, wanted, .. } = self.batch;
        (Operators { n: wanted, ..self.ops }, tokens - wanted..tokens)
    }

    /// Norm, queries, keys and values of all tokens; then attention and its projection of those that are wanted, onto the
    /// residual stream.
    fn attend(&mut self, i: usize, cached: LayerCache<'_>) {
        let (h, layer) = (&self.model.hyperparameters, &self.model.weights.layers[i]);
        let shape = &h.layers[i];
        let Batch { tokens: n, wanted, first, .. } = self.batch;
        let LayerCache { bytes, keys, values, span } = cached;
        let rope = Some((self.ropes.of(shape.local), h.rotation()));
        let turn = Turn { isa: self.ops.isa, bias: None, norm: None, eps: self.ops.eps, rope: None };
        let turn_key = Turn { bias: layer.key_bias.as_deref(), norm: layer.key_norm.as_deref(), rope, ..turn };
        let turn_value = Turn { bias: layer.value_bias.as_deref(), ..turn };
        let turn_query = Turn { bias: layer.query_bias.as_deref(), norm: layer.query_norm.as_deref(), rope, ..turn };
        let (query_width, mixed_width) = (shape.heads * h.key_dim, shape.heads * h.value_dim);

        let shared = SharedSlice::new(&mut *bytes);
        let store_key = Store { turn: turn_key, place: keys, cached: shared, first };
        let store_value = Store { turn: turn_value, place: values, cached: shared, first };
        for (pass, format) in formats(&[&layer.query, &layer.key, &layer.value]).enumerate() {
            if pass == 0 {
                self.mark(Operator::AttentionNorm, i);
            }
            self.ops.norm(&self.scratch.residual[..n * h.hidden], &layer.attention_norm, format, self.inputs);
            if pass == 0 {
                self.mark(Operator::Qkv, i);
            }
            let Scratch { query, key, value, .. } = &mut *self.scratch;
            let query = &mut query[..n * query_width]; // (n, heads, key_dim)
            let key = &mut key[..n * shape.kv_heads * h.key_dim]; // (n, kv_heads, key_dim)
            let value = &mut value[..n * shape.kv_heads * h.value_dim]; // (n, kv_heads, value_dim)
            let query = (wanted > 0).then_some((&layer.query, query));
            let stored = [(&layer.key, key, &store_key), (&layer.value, value, &store_value)];
            self.ops.qkv((self.inputs, format), query, stored);
        }
        if wanted == 0 {
            return;
        }

        self.mark(Operator::Attention, i);
        let cached = LayerCache { bytes, keys, values, span };
        // all tokens at once, or each as the single one that it must look like
        let rows = if self.exact { 1 } else { wanted };
        let query = self.scratch.query[(n - wanted) * query_width..n * query_width].chunks_exact(rows * query_width);
        let mixed = self.scratch.mixed[..wanted * mixed_width].chunks_exact_mut(rows * mixed_width);
        for (t, (query, mixed)) in query.zip(mixed).enumerate() {
            let token = n - wanted + t * rows;
            let attention = Attention {
                scale: h.attention_scale,
                cap: h.attention_cap,
                turn: Some(turn_query),
                token,
                ..Attention::over(&cached, self.ops.isa, (shape.heads, shape.kv_heads), first + token)
            };
            attention.run(self.ops.pool, self.attention, query, mixed);
        }
        self.mark(Operator::OutputProjection, i);
        let (ops, tokens) = self.wanted();
        ops.round(&self.scratch.mixed[..wanted * mixed_width], format_of(&layer.output), self.inputs);
        let (residual, branch) = self.scratch.streams(&tokens, h.hidden);
        if !layer.joins_attention() {
            return ops.project(self.inputs, &layer.output, residual, true);
        }
        ops.project(self.inputs, &layer.output, branch, false);
        self.mark(Operator::AttentionResidual, i);
        let (residual, branch) = self.scratch.streams(&tokens, h.hidden);
        ops.join(residual, branch, layer.output_bias.as_deref(), layer.attention_post_norm.as_deref());
    }

    /// The feed-forward part of the tokens that are wanted, onto the residual stream.
    fn feed_forward(&mut self, i: usize) {
        if self.batch.wanted == 0 {
            return;
        }
        let (h, layer) = (&self.model.hyperparameters, &self.model.weights.layers[i]);
        let (ops, tokens) = self.wanted();
        let (pair, kind) = ([&layer.gate, &layer.up], h.architecture.gate());
        let down_format = format_of(&layer.down);
        let width = ops.n * h.layers[i].ffn;

        self.mark(Operator::FfnNorm, i);
        let residual = &self.scratch.residual[tokens.start * h.hidden..tokens.end * h.hidden]; // (n, hidden)
        ops.norm(residual, &layer.ffn_norm, format_of(&layer.gate), self.inputs);
        self.mark(Operator::GateUp, i);
        let Scratch { residual, gate, up, .. } = &mut *self.scratch;
        let residual = &residual[tokens.start * h.hidden..tokens.end * h.hidden]; // (n, hidden)
        let (gate, up) = (&mut gate[..width], &mut up[..width]); // (n, ffn)
        if format_of(&layer.gate) == format_of(&layer.up) {
            ops.gate(self.inputs, pair, kind, [gate, up], (self.gated, down_format));
        } else {
            ops.project(self.inputs, &layer.gate, gate, false);
            ops.norm(residual, &layer.ffn_norm, format_of(&layer.up), self.inputs);
            ops.project(self.inputs, &layer.up, up, false);
            ops.activate(kind, gate, up);
            ops.round(gate, down_format, self.gated);
        }
        self.mark(Operator::Down, i);
        let (residual, branch) = self.scratch.streams(&tokens, h.hidden);
        let Some(norm) = &layer.ffn_post_norm else { return ops.project(self.gated, &layer.down, residual, true) };
        ops.project(self.gated, &layer.down, branch, false);
        self.mark(Operator::FfnResidual, i);
        let (residual, branch) = self.scratch.streams(&tokens, h.hidden);
        ops.join(residual, branch, None, Some(norm));
    }
}
