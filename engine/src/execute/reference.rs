//! The reference engine, as a cell uses it.

use super::Engine;
use crate::error::Result;
use crate::model::{Logits, Model, Session};
use crate::proof::Facts;
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
        let model = Model::for_config(Path::new(&cell.model.path), &cell.config, &|_| {})?;
        if let Some(warning) = model.lock_warning() {
            // what a child says here stands in the journal
            crate::talk::talk!("warning: {warning}");
        }
        let model = Arc::new(model);
        Ok(Self { session: Session::new(model, &cell.config)?, config: cell.config.clone() })
    }
}

impl Engine for Reference {
    fn facts(&self) -> Facts {
        Facts::of_session(&self.session, &self.config)
    }

    fn model_sha256(&self) -> Vec<String> {
        self.session.model().gguf().sha256()
    }

    fn affinity_faults(&self) -> Vec<String> {
        self.session.affinity_faults()
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

    fn bytes_per_token(&self, position: usize) -> u64 {
        // a policy that forgets leaves no more to read than it keeps
        let seen_before = match self.config.kv_policy.kept_tokens() {
            0 => position,
            kept => position.min(kept - 1),
        };
        self.session.bytes_per_token(seen_before)
    }

    fn is_end_of_generation(&self, id: u32) -> bool {
        self.session.model().tokenizer().is_eog(id)
    }
}
