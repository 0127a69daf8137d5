//! The child of a cell: opens the model, proves what it runs, carries out the steps, tells what it measured.
//!
//! Records go out as they come, one JSON line each, never while something is being timed. The supervisor journals them;
//! it also decides what makes a whole attempt INVALID. What makes a single sample INVALID is decided here.

mod identity;
mod plan;
mod prompt;
mod reference;
mod steps;

pub use identity::FileIdentity;
pub use plan::read_plan;

use crate::clock;
use crate::error::{EngineError, Result};
use crate::hash::sha256_file;
use crate::probe::{TARGET, Tree};
use crate::protocol::{CellPlan, EngineConfig, Record, SelfProof};
use crate::telemetry::memory_parts;
use std::path::{Path, PathBuf};
use steps::Steps;

/// Version and target of this binary; its sha256, which is the build's real name, stands beside it in every proof.
pub fn build() -> String {
    format!("farmhand {} {TARGET}", env!("CARGO_PKG_VERSION"))
}

/// What the supervisor hands to the child of a cell.
#[derive(Debug, Clone)]
pub struct Errand<'a> {
    /// The cell.
    pub cell: &'a CellPlan,
    /// From 0; above 0 the cell is being tried again.
    pub attempt: u32,
    /// `CLOCK_MONOTONIC` at the spawn, microseconds: where the load time begins.
    pub started_us: u64,
    /// How the page cache was emptied: `none`, `posix_fadvise` or `drop_caches`.
    pub eviction: String,
    /// The model's files as the supervisor hashed them and found them equal to the plan; empty when nobody did, then
    /// they are hashed here.
    pub verified: Vec<FileIdentity>,
}

/// What an engine says about itself once it is open.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub files: Vec<PathBuf>,
    pub isa: String,
    pub config: EngineConfig,
    pub threads_effective: u32,
    pub affinity_effective: Vec<String>,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    pub scratch_bytes: u64,
}

/// What a cell needs of an engine.
pub(crate) trait Engine {
    fn facts(&self) -> Facts;
    /// Ids of `text`; `add_special` adds what the model wants at the start of a text.
    fn tokenise(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32>;
    /// Empties the cache.
    fn clear(&mut self);
    /// Forgets all but the first `depth` tokens of the cache.
    fn truncate(&mut self, depth: usize);
    /// Puts tokens into the cache and gives the logits after the last one.
    fn forward(&mut self, ids: &[u32]) -> Result<&[f32]>;
    fn is_end_of_generation(&self, id: u32) -> bool;
}

/// Carries out one cell with the reference engine. `tell` receives the records, the proof first.
pub fn execute(errand: &Errand<'_>, tell: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
    execute_with(errand, reference::Reference::open, tell)
}

fn execute_with<E: Engine>(
    errand: &Errand<'_>,
    open: impl FnOnce(&CellPlan) -> Result<E>,
    tell: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    let cell = errand.cell;
    // taken before the engine opens the files and compared after, so that a file exchanged in between is noticed
    let before = FileIdentity::of_all(&errand.verified);
    let engine = open(cell)?;
    let ready_us = clock::monotonic_us();

    let facts = engine.facts();
    let model_sha256 = model_hashes(errand, before.as_deref(), &facts.files)?;
    let is_the_plans = model_sha256 == cell.model.sha256;
    let proof = SelfProof {
        build: build(),
        engine_sha256: sha256_file(Path::new("/proc/self/exe"))?,
        model_sha256,
        isa: facts.isa,
        config: facts.config,
        threads_effective: facts.threads_effective,
        affinity_effective: facts.affinity_effective.clone(),
        weight_bytes: facts.weight_bytes,
        kv_bytes: facts.kv_bytes,
        scratch_bytes: facts.scratch_bytes,
        eviction: errand.eviction.clone(),
    };
    tell(Record::Proof { cell: cell.cell, proof: Box::new(proof) })?;
    if !is_the_plans {
        return Err(EngineError::model("the model has another sha256 than the plan says")
            .at(cell.model.path.clone())
            .hint("push the model again"));
    }

    let load_ms = ready_us.saturating_sub(errand.started_us) as f64 / 1_000.0;
    let mut steps = Steps::new(errand, engine, tell);
    let outcome = steps.run(load_ms, &|| {
        let memory = memory_parts(&Tree::new("/"), std::process::id(), false);
        memory.peak_rss_bytes.map(|bytes| bytes as f64 / 1e6)
    });
    // what was held back is told even when a later step failed
    steps.release(None)?;
    outcome?;
    affinity_kept(&facts.affinity_effective, &steps.engine_facts().affinity_effective)
}

/// The kernel widens a thread's mask when the cores in it go away, and says nothing; what was measured from then on ran
/// elsewhere.
fn affinity_kept(before: &[String], after: &[String]) -> Result<()> {
    match before.iter().zip(after).position(|(before, after)| before != after) {
        None => Ok(()),
        Some(worker) => Err(EngineError::system(format!(
            "the kernel moved worker {worker} during the cell: it was allowed cores {}, now {}",
            before[worker], after[worker]
        ))
        .hint("cores were taken offline, or something else set the affinity")),
    }
}

/// sha256 of the files that were opened. Those that the supervisor hashed need not be read again, as long as they are
/// still the same files, before and after the engine opened them.
fn model_hashes(errand: &Errand<'_>, before: Option<&[FileIdentity]>, files: &[PathBuf]) -> Result<Vec<String>> {
    let verified = &errand.verified;
    let is_same_set = !verified.is_empty()
        && verified.len() == files.len()
        && verified.iter().zip(files).all(|(identity, file)| identity.path == *file);
    let after = FileIdentity::of_all(verified);
    if is_same_set && before == Some(verified) && after.as_deref() == Some(verified) {
        return Ok(errand.cell.model.sha256.clone());
    }
    files.iter().map(|file| sha256_file(file)).collect()
}

#[cfg(test)]
mod tests;
