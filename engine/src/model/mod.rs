//! The networks: what a file holds, its weights, and the forward pass.

mod architecture;
mod attention;
mod cost;
mod hyperparameters;
mod operators;
mod repack;
mod rope;
mod session;
mod turn;
mod weights;

pub use architecture::{Architecture, Gate, Rotation};
pub use hyperparameters::{Hyperparameters, LayerShape, Rope, Yarn};
pub use session::{BATCH_TOKENS_MAX, EXACT_TOKENS_MAX, Logits, Session};

use crate::error::{EngineError, Result};
use crate::gguf::{Gguf, LoadMode};
use crate::kernels::Isa;
use crate::memory::{self, Locked, Region};
use crate::protocol::EngineConfig;
use crate::tokenizer::Tokenizer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weights::Weights;

/// How a model is opened.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Map the file (`true`) or read it into anonymous memory.
    pub mmap: bool,
    /// Instruction set; `None` takes the best that the processor has.
    pub isa: Option<Isa>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { mmap: true, isa: None }
    }
}

/// A model, open and checked: shared by any number of sessions.
pub struct Model {
    gguf: Gguf,
    hyperparameters: Hyperparameters,
    tokenizer: Tokenizer,
    weights: Weights,
    isa: Isa,
    locked: Locked,
    /// Weights rearranged at load, all in one stretch.
    rearranged: Option<Arc<Region>>,
}

impl Model {
    /// Opens the file, or the set of files that `path` is one of. Errors are model errors that name the key, tensor or
    /// offset, or system errors of reading.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self> {
        let mode = if options.mmap { LoadMode::Map } else { LoadMode::Read };
        Self::from_gguf(Gguf::open(path, mode)?, options.isa)
    }

    /// The model in an opened file. Model errors that name the key or tensor, and the file.
    pub fn from_gguf(gguf: Gguf, isa: Option<Isa>) -> Result<Self> {
        let in_file = |e: EngineError| {
            let path = gguf.files()[0].display();
            let place = e.place().map_or_else(|| path.to_string(), |place| format!("{path}, {place}"));
            e.at(place)
        };
        let hyperparameters = Hyperparameters::from_metadata(gguf.metadata()).map_err(in_file)?;
        let tokenizer = Tokenizer::from_metadata(gguf.metadata()).map_err(in_file)?;
        let weights = Weights::bind(&gguf, &hyperparameters).map_err(in_file)?;
        if tokenizer.vocab_len() > weights.embedding.rows {
            return Err(in_file(EngineError::model(format!(
                "the tokenizer has {} tokens, the embedding only {} rows",
                tokenizer.vocab_len(),
                weights.embedding.rows
            ))));
        }
        let isa = isa.unwrap_or_else(Isa::detect);
        Ok(Self { gguf, hyperparameters, tokenizer, weights, isa, locked: Locked::default(), rearranged: None })
    }

    /// As [`Self::load`], set up as `config` asks for: weights are rearranged, what a pass reads in mapped files is brought in
    /// where all of it fits into the memory that can be had, and what products read is locked if wanted. That locking was
    /// refused is no error: see [`Self::lock_warning`]. `progress` hears how many bytes are done so far, on any thread.
    pub fn for_config(path: &Path, config: &EngineConfig, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        let mode = if config.mmap { LoadMode::Map } else { LoadMode::Read };
        let mut model = Self::from_gguf(Gguf::open_with(path, mode, progress)?, None)?;
        let read_bytes = model.gguf.anonymous_bytes();
        model.repack(config, &|done| progress(read_bytes + done))?;
        model.page_in(&|done| progress(read_bytes + model.repack_bytes() + done));
        if config.mlock {
            model.locked = model.lock();
        }
        Ok(model)
    }

    /// What a pass reads in mapped files; nothing when that is more than the memory that can be had, since it would push its
    /// own first pages out again.
    fn page_in(&self, progress: &(dyn Fn(u64) + Sync)) {
        let fits = |bytes: u64| memory::available_bytes().is_none_or(|available| bytes <= available);
        if self.rearranged.is_none() {
            if fits(self.gguf.mapped_bytes()) {
                self.gguf.page_in(progress);
            }
            return;
        }
        let left = || self.weights.left_in_file().map(|matrix| matrix.rows_in_file(&self.gguf).data);
        if self.gguf.mapped_bytes() > 0 && fits(left().map(|data| data.len() as u64).sum()) {
            let mut before = 0;
            for data in left() {
                memory::page_in(data, &|done| progress(before + done));
                before += data.len() as u64;
            }
        }
    }

    /// Keeps what products read in memory.
    fn lock(&self) -> Locked {
        let Some(rearranged) = &self.rearranged else { return self.gguf.lock() };
        let left = self.weights.left_in_file().map(|matrix| memory::lock(matrix.rows_in_file(&self.gguf).data));
        left.fold(memory::lock(rearranged), Locked::and)
    }

    /// Lets go of what was read of an embedding that is also the head, and rearranged as that: each row that is looked up
    /// maps its neighbours too, until the whole of it would be in memory twice.
    fn let_embedding_go(&self) {
        let Weights { embedding, head, .. } = &self.weights;
        if head.is_packed() && embedding.name() == head.name() {
            memory::let_go(embedding.rows_in_file(&self.gguf).data, self.gguf.anonymous_bytes() == 0);
        }
    }

    /// How weights are rearranged: `none`, or `strips-8`.
    pub fn repack_name(&self) -> &'static str {
        if self.rearranged.is_some() { "strips-8" } else { "none" }
    }

    /// Bytes of rearranged weights.
    pub fn repack_bytes(&self) -> u64 {
        self.rearranged.as_ref().map_or(0, |region| region.len() as u64)
    }

    /// Bytes of the model that are locked in memory.
    pub fn locked_bytes(&self) -> u64 {
        self.locked.bytes
    }

    /// Why less is locked than was asked for, with a hint.
    pub fn lock_warning(&self) -> Option<&str> {
        self.locked.warning.as_deref()
    }

    /// About what metadata and tokenizer take on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        self.gguf.metadata().heap_bytes() + self.tokenizer.heap_bytes()
    }

    /// The tokenizer that the file carries.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The numbers of the network.
    pub fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    /// Logits of a position: rows of the embedding, at least the tokenizer's vocabulary.
    pub fn vocab(&self) -> usize {
        self.weights.embedding.rows
    }

    /// Bytes of weights, as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.gguf.weight_bytes()
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.gguf.tensors().iter().map(elements).sum()
    }

    /// The type that holds most of the weights, for instance `Q4_K`.
    pub fn dominant_type(&self) -> &'static str {
        let mut by_type = BTreeMap::new();
        for tensor in self.gguf.tensors() {
            *by_type.entry(tensor.tensor_type.name()).or_insert(0u64) += elements(tensor);
        }
        by_type.into_iter().max_by_key(|&(_, n)| n).map_or("none", |(name, _)| name)
    }

    /// The model's files, in order.
    pub fn files(&self) -> &[PathBuf] {
        self.gguf.files()
    }

    /// The file itself: its metadata and tensors.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

fn elements(tensor: &crate::gguf::TensorInfo) -> u64 {
    tensor.shape.iter().product()
}

#[cfg(test)]
mod tests;
