//! The child of a cell: opens the model, proves what it runs, carries out the steps, tells what it measured.
//!
//! Records go out as they come, one JSON line each, never while something is being timed. The supervisor journals them;
//! it also decides what makes a whole attempt INVALID. What makes a single sample INVALID is decided here.

pub(crate) mod bandwidth;
mod identity;
mod plan;
mod prompt;
mod reference;
mod steps;

pub use identity::FileIdentity;
pub use plan::read_plan;

use crate::clock;
use crate::error::{EngineError, Result};
use crate::probe::Tree;
use crate::proof::Facts;
use crate::protocol::{CellPlan, Finite, Record, Telemetry};
use crate::roofline::ReadBandwidth;
use crate::telemetry::{involuntary_switches, memory_parts};
use std::path::PathBuf;
use std::time::Instant;
use steps::Steps;

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
    /// What the cell's workers read from memory at best; `None` when nobody measured it, then `mbu` is not sampled.
    pub bandwidth: Option<ReadBandwidth>,
}

/// What a cell needs of an engine.
pub(crate) trait Engine {
    fn facts(&self) -> Facts;
    /// sha256 of the model's bytes as they are in use, one a file.
    fn model_sha256(&self) -> Vec<String>;
    /// Where workers are not on the cores that they were pinned to, now.
    fn affinity_faults(&self) -> Vec<String>;
    /// Ids of `text`; `add_special` adds what the model wants at the start of a text.
    fn tokenise(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32>;
    /// Empties the cache.
    fn clear(&mut self);
    /// Forgets all but the first `depth` tokens of the cache; returns how many are left, 0 when it cannot go back so far.
    fn truncate(&mut self, depth: usize) -> usize;
    /// Puts tokens into the cache and gives the logits after the last one.
    fn forward(&mut self, ids: &[u32]) -> Result<&[f32]>;
    /// Weights and cached keys and values that decoding the token at `position` reads, bytes.
    fn bytes_per_token(&self, position: usize) -> u64;
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
    let model = model_hashes(errand, before.as_deref(), &engine, &facts.files);
    let is_the_plans = model.0 == cell.model.sha256;
    let mut proof = facts.prove(Some(model), &errand.eviction)?;
    proof.read_bandwidth_gb_per_s = errand.bandwidth.and_then(|b| Finite::new(b.read_gb_per_s));
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
    tell(last_words(cell.cell))
}

/// What this process holds now that all steps are done: the supervisor's look from outside may come too late.
fn last_words(cell: u32) -> Record {
    let (tree, pid) = (Tree::new("/"), std::process::id());
    Record::Telemetry(Box::new(Telemetry {
        cell,
        at_end: true,
        memory: memory_parts(&tree, pid, true),
        involuntary_switches: involuntary_switches(&tree, pid),
        ..Telemetry::default()
    }))
}

/// sha256 of the bytes that are in use, and what hashing them cost in milliseconds. Files that the supervisor hashed need
/// not be read again, as long as they are still the same ones, before and after the engine opened them.
fn model_hashes(
    errand: &Errand<'_>,
    before: Option<&[FileIdentity]>,
    engine: &impl Engine,
    files: &[PathBuf],
) -> (Vec<String>, u64) {
    let verified = &errand.verified;
    let is_same_set = !verified.is_empty()
        && verified.len() == files.len()
        && verified.iter().zip(files).all(|(identity, file)| identity.path == *file);
    let after = FileIdentity::of_all(verified);
    if is_same_set && before == Some(verified) && after.as_deref() == Some(verified) {
        return (errand.cell.model.sha256.clone(), 0);
    }
    let begun = Instant::now();
    (engine.model_sha256(), begun.elapsed().as_millis() as u64)
}

#[cfg(test)]
mod tests;
