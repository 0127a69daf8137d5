//! The tensors of a network, bound by name and checked by shape. Matrices stay where the file has them; norms and biases
//! are small and are widened at load.

use super::hyperparameters::{Hyperparameters, LayerShape};
use crate::error::{EngineError, Result};
use crate::gguf::{Gguf, TensorInfo, TensorType};
use crate::kernels::{Layout, WeightRows};
use crate::memory::Region;
use crate::quant;
use std::ops::Range;
use std::sync::Arc;

/// A weight matrix (rows, cols) in the file.
pub struct Matrix {
    info: TensorInfo,
    /// The same weights rearranged, and where they are.
    packed: Option<(Arc<Region>, Range<usize>)>,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl Matrix {
    /// How its rows are stored.
    pub fn tensor_type(&self) -> TensorType {
        self.info.tensor_type
    }

    /// The weights, as the kernels take them.
    pub fn weight_rows<'a>(&'a self, gguf: &'a Gguf) -> WeightRows<'a> {
        match &self.packed {
            None => self.rows_in_file(gguf),
            Some((region, at)) => {
                let (tensor_type, data) = (self.info.tensor_type, &region[at.clone()]);
                WeightRows { layout: Layout::Strips, tensor_type, cols: self.cols, data }
            }
        }
    }

    /// Bytes that a product with this matrix reads.
    pub fn bytes(&self) -> usize {
        self.packed.as_ref().map_or(self.info.bytes(), |(_, at)| at.len())
    }

    /// Whether the kernels take the weights from elsewhere than the file.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// From now on the kernels take the weights from there, in strips of rows.
    pub fn set_packed(&mut self, region: Arc<Region>, at: Range<usize>) {
        self.packed = Some((region, at));
    }

    /// The rows as the file has them.
    pub fn rows_in_file<'a>(&self, gguf: &'a Gguf) -> WeightRows<'a> {
        WeightRows {
            layout: Layout::Rows,
            tensor_type: self.info.tensor_type,
            cols: self.cols,
            data: gguf.data(&self.info),
        }
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Widens one row into `out` (cols). Panics past the last row.
    pub fn widen_row(&self, gguf: &Gguf, row: usize, out: &mut [f32]) {
        assert!(row < self.rows);
        let data = gguf.data(&self.info);
        let row_bytes = data.len() / self.rows;
        quant::dequantise_row(self.info.tensor_type, &data[row * row_bytes..(row + 1) * row_bytes], out);
    }
}

/// The weights of one layer.
pub struct LayerWeights {
    /// Norm before attention (hidden).
    pub attention_norm: Vec<f32>,
    /// (heads * key_dim, hidden)
    pub query: Matrix,
    /// (kv_heads * key_dim, hidden)
    pub key: Matrix,
    /// (kv_heads * value_dim, hidden)
    pub value: Matrix,
    /// (hidden, heads * value_dim)
    pub output: Matrix,
    /// Added to queries.
    pub query_bias: Option<Vec<f32>>,
    /// Added to keys.
    pub key_bias: Option<Vec<f32>>,
    /// Added to values.
    pub value_bias: Option<Vec<f32>>,
    /// Added to the output of attention.
    pub output_bias: Option<Vec<f32>>,
    /// Norm of each query head (key_dim).
    pub query_norm: Option<Vec<f32>>,
    /// Norm of each key head (key_dim).
    pub key_norm: Option<Vec<f32>>,
    /// Norm of attention's output before it joins the residual stream.
    pub attention_post_norm: Option<Vec<f32>>,
    /// Norm before the feed-forward part (hidden).
    pub ffn_norm: Vec<f32>,
    /// (ffn, hidden)
    pub gate: Matrix,
    /// (ffn, hidden)
    pub up: Matrix,
    /// (hidden, ffn)
    pub down: Matrix,
    /// Norm of the feed-forward output before it joins the residual stream.
    pub ffn_post_norm: Option<Vec<f32>>,
}

impl LayerWeights {
    /// Whether something comes between attention's output projection and the residual stream.
    pub fn joins_attention(&self) -> bool {
        self.output_bias.is_some() || self.attention_post_norm.is_some()
    }
}

/// All weights of a network.
pub struct Weights {
    /// (vocab, hidden)
    pub embedding: Matrix,
    /// (vocab, hidden); the embedding once more where the two are tied.
    pub head: Matrix,
    /// Norm before the head (hidden).
    pub head_norm: Vec<f32>,
    /// Llama 3's divisors of rotation frequencies (rope_dims / 2).
    pub rope_divisors: Option<Vec<f32>>,
    /// The layers, first to last.
    pub layers: Vec<LayerWeights>,
}

impl Weights {
    /// All matrices that are multiplied with, in about the order of a pass.
    pub fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Matrix> {
        let layers = self
            .layers
            .iter_mut()
            .flat_map(|l| [&mut l.query, &mut l.key, &mut l.value, &mut l.output, &mut l.gate, &mut l.up, &mut l.down]);
        layers.chain([&mut self.head])
    }

    /// The matrices that a pass reads in the file, each tensor once. The embedding is not among them where it is rearranged
    /// as the head: a token reads one row of it.
    pub fn left_in_file(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self
            .layers
            .iter()
            .flat_map(|l| [&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down])
            .chain([&self.head])
            .filter(|m| !m.is_packed());
        layers.chain(Some(&self.embedding).filter(|e| e.name() != self.head.name()))
    }

    /// Binds every tensor that the architecture needs. Model errors name the tensor that is missing, has another shape
    /// (expected and found), or that this architecture does not know: ignoring one would compute something else.
    pub fn bind(gguf: &Gguf, h: &Hyperparameters) -> Result<Self> {
        let mut binder = Binder { gguf, used: vec![false; gguf.tensors().len()], architecture: h.architecture.name() };
        let vocab = binder.rows_of("token_embd.weight")?;
        let embedding = binder.matrix("token_embd.weight", vocab, h.hidden)?;
        let head = match gguf.tensor("output.weight") {
            Some(_) => binder.matrix("output.weight", vocab, h.hidden)?,
            None => binder.matrix("token_embd.weight", vocab, h.hidden)?,
        };
        let head_norm = binder.vector("output_norm.weight", h.hidden)?;
        let rope_divisors = binder.optional("rope_freqs.weight", h.rope_dims / 2)?;
        if let Some(bad) = rope_divisors.iter().flatten().find(|d| !d.is_finite() || **d <= 0.0) {
            return Err(EngineError::model(format!("{bad} is no divisor of a frequency")).at("rope_freqs.weight"));
        }
        let layers = h
            .layers
            .iter()
            .enumerate()
            .map(|(i, shape)| bind_layer(&mut binder, h, i, shape))
            .collect::<Result<Vec<_>>>()?;
        binder.refuse_unused()?;
        Ok(Self { embedding, head, head_norm, rope_divisors, layers })
    }
}

fn bind_layer(binder: &mut Binder<'_>, h: &Hyperparameters, i: usize, shape: &LayerShape) -> Result<LayerWeights> {
    let name = |part: &str| format!("blk.{i}.{part}");
    let (q, k, v) = (shape.heads * h.key_dim, shape.kv_heads * h.key_dim, shape.kv_heads * h.value_dim);
    let mixed = shape.heads * h.value_dim;
    let arch = h.architecture;
    Ok(LayerWeights {
        attention_norm: binder.vector(&name("attn_norm.weight"), h.hidden)?,
        query: binder.matrix(&name("attn_q.weight"), q, h.hidden)?,
        key: binder.matrix(&name("attn_k.weight"), k, h.hidden)?,
        value: binder.matrix(&name("attn_v.weight"), v, h.hidden)?,
        output: binder.matrix(&name("attn_output.weight"), h.hidden, mixed)?,
        query_bias: binder.vector_if(arch.needs_qkv_biases(), &name("attn_q.bias"), q)?,
        key_bias: binder.vector_if(arch.needs_qkv_biases(), &name("attn_k.bias"), k)?,
        value_bias: binder.vector_if(arch.needs_qkv_biases(), &name("attn_v.bias"), v)?,
        output_bias: binder.optional(&name("attn_output.bias"), h.hidden)?,
        query_norm: binder.vector_if(arch.has_head_norms(), &name("attn_q_norm.weight"), h.key_dim)?,
        key_norm: binder.vector_if(arch.has_head_norms(), &name("attn_k_norm.weight"), h.key_dim)?,
        attention_post_norm: binder.vector_if(arch.has_post_norms(), &name("post_attention_norm.weight"), h.hidden)?,
        ffn_norm: binder.vector(&name("ffn_norm.weight"), h.hidden)?,
        gate: binder.matrix(&name("ffn_gate.weight"), shape.ffn, h.hidden)?,
        up: binder.matrix(&name("ffn_up.weight"), shape.ffn, h.hidden)?,
        down: binder.matrix(&name("ffn_down.weight"), h.hidden, shape.ffn)?,
        ffn_post_norm: binder.vector_if(arch.has_post_norms(), &name("post_ffw_norm.weight"), h.hidden)?,
    })
}

/// Takes tensors by name and remembers which were taken.
struct Binder<'a> {
    gguf: &'a Gguf,
    used: Vec<bool>,
    architecture: &'static str,
}

impl<'a> Binder<'a> {
    fn take(&mut self, name: &str) -> Result<&'a TensorInfo> {
        let at = self.gguf.tensors().iter().position(|t| t.name == name).ok_or_else(|| {
            EngineError::model(format!("tensor `{name}` is missing; architecture {} needs it", self.architecture))
                .hint("convert the model again, or check that the download is complete")
        })?;
        self.used[at] = true;
        Ok(&self.gguf.tensors()[at])
    }

    fn rows_of(&mut self, name: &str) -> Result<usize> {
        let info = self.take(name)?;
        match *info.shape.as_slice() {
            [_, rows] if rows > 0 && rows <= u64::from(u32::MAX) => Ok(rows as usize),
            _ => Err(EngineError::model(format!("tensor `{name}` is no matrix: shape {:?}", info.shape))),
        }
    }

    /// A matrix of that shape; the file states (cols, rows).
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let info = self.take(name)?;
        check_shape(info, &[cols as u64, rows as u64])?;
        Ok(Matrix { info: info.clone(), packed: None, rows, cols })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let info = self.take(name)?;
        check_shape(info, &[len as u64])?;
        let mut out = vec![0.0; len];
        quant::dequantise_row(info.tensor_type, self.gguf.data(info), &mut out);
        Ok(out)
    }

    fn optional(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        match self.gguf.tensor(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }

    /// Missing is an error only where it is needed.
    fn vector_if(&mut self, needed: bool, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        if needed { self.vector(name, len).map(Some) } else { self.optional(name, len) }
    }

    fn refuse_unused(&self) -> Result<()> {
        match self.used.iter().position(|used| !used) {
            None => Ok(()),
            Some(at) => Err(EngineError::model(format!(
                "tensor `{}` is not known to architecture {}",
                self.gguf.tensors()[at].name,
                self.architecture
            ))
            .hint("the file holds a variant of the architecture that this engine does not implement")),
        }
    }
}

/// Trailing dimensions of 1 do not matter.
fn check_shape(info: &TensorInfo, expected: &[u64]) -> Result<()> {
    let significant = info.shape.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1).max(expected.len());
    if info.shape.len() < expected.len() || info.shape[..significant] != *expected {
        return Err(EngineError::model(format!(
            "tensor `{}` has shape {:?}, expected {expected:?}",
            info.name, info.shape
        ))
        .hint("metadata and tensors of the file disagree"));
    }
    Ok(())
}
