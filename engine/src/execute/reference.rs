//! The reference engine, as a cell uses it.

use super::{Engine, Facts};
use crate::error::Result;
use crate::model::{LoadOptions, Logits, Model, Session};
use crate::protocol::{CellPlan, EngineConfig};
use std::path::Path;
use std::sync::Arc;

/// An open model with one session on it.
pub(super) struct Reference {
    session: Session,
    config: EngineConfig,
}

impl Reference {
    /// Opens the cell's model and allocates everything that it needs, threads included.
    pub(super) fn open(cell: &CellPlan) -> Result<Self> {
        let options = LoadOptions { mmap: cell.config.mmap, isa: None };
        let model = Arc::new(Model::load(Path::new(&cell.model.path), &options)?);
        Ok(Self { session: Session::new(model, &cell.config)?, config: cell.config.clone() })
    }
}

impl Engine for Reference {
    fn facts(&self) -> Facts {
        let model = self.session.model();
        Facts {
            files: model.files().to_vec(),
            isa: self.session.isa().name().to_owned(),
            config: self.config.clone(),
            threads_effective: self.session.threads_effective(),
            affinity_effective: self.session.affinity_effective(),
            weight_bytes: model.weight_bytes(),
            kv_bytes: self.session.kv_bytes_max(),
            scratch_bytes: self.session.scratch_bytes(),
        }
    }

    fn tokenise(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.session.model().tokenizer().encode(text, add_special, parse_special)
    }

    fn clear(&mut self) {
        self.session.clear();
    }

    fn truncate(&mut self, depth: usize) -> usize {
        self.session.truncate(depth)
    }

    fn forward(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.session.forward(ids, Logits::Last)
    }

    fn is_end_of_generation(&self, id: u32) -> bool {
        self.session.model().tokenizer().is_eog(id)
    }
}
