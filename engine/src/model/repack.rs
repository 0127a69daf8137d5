//! Weights rearranged at load into the layout that this processor's kernels like best, in memory of their own.
//!
//! The copy is about as large as the file. The mapped pages it was made from are let go as it is made, so that what is
//! resident stays about one file; they remain in the page cache, and a row of the embedding is still read from there.

use super::Model;
use super::weights::{Matrix, Weights};
use crate::error::{EngineError, Result};
use crate::gguf::Gguf;
use crate::kernels::{self, Isa, STRIP_ROWS, WeightRows};
use crate::memory::{self, Region};
use crate::protocol::{EngineConfig, Repack};
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a thread packs at a time: smaller ones spend their time on asking for pages and giving them back.
const JOB_BYTES: usize = 4 << 20;
/// Jobs between the one that is packed and the one whose bytes are asked for meanwhile.
const JOBS_AHEAD: usize = 8;
/// A matrix begins at a multiple of this, bytes: a cache line.
const ALIGN_BYTES: usize = 64;

/// Some rows of a matrix and where they go.
struct Job<'a> {
    weights: WeightRows<'a>,
    rows: Range<usize>,
    out: &'a mut [u8],
}

impl<'a> Job<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.weights.bytes_of(self.rows.clone())
    }
}

impl Model {
    /// Rearranges the weights as `config` asks for. `auto` does so where there is a layout for this processor, the model
    /// is mapped (else it would be in memory twice), and half of the available memory holds the copy. `progress` hears how
    /// many bytes are done. A usage error when it was asked for and there is no such layout, a system error when there is
    /// no memory for it.
    pub fn repack(&mut self, config: &EngineConfig, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let bytes = self.weights.matrices_mut().map(|m| slot_bytes(self.isa, m)).sum::<usize>();
        let wanted = match config.repack {
            Repack::Off => false,
            Repack::On if bytes == 0 => {
                let what = format!("{} kernels have no other layout for these weights", self.isa.name());
                return Err(EngineError::usage(what).hint("leave out --repack, or say auto"));
            }
            Repack::On => true,
            Repack::Auto => {
                let fits = memory::available_bytes().is_none_or(|available| bytes as u64 <= available / 2);
                bytes > 0 && config.mmap && fits
            }
        };
        if wanted {
            self.rearranged = Some(pack_all(&self.gguf, &mut self.weights, self.isa, bytes, progress)?);
        }
        Ok(())
    }
}

/// Bytes that a packed matrix takes, 0 where there is no form for it.
fn slot_bytes(isa: Isa, matrix: &Matrix) -> usize {
    kernels::strips_bytes(isa, matrix.tensor_type(), matrix.cols, matrix.rows)
        .map_or(0, |bytes| bytes.next_multiple_of(ALIGN_BYTES))
}

fn pack_all(
    gguf: &Gguf,
    weights: &mut Weights,
    isa: Isa,
    bytes: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Arc<Region>> {
    let mut region = Region::zeroed(bytes).map_err(|e| {
        EngineError::io(format!("no memory for {bytes} bytes of rearranged weights"), &e).hint("say --repack off")
    })?;
    let mut slots = Vec::new();
    let mut jobs = Vec::new();
    let (mut rest, mut at) = (&mut region[..], 0);
    for matrix in weights.matrices_mut() {
        let Some(size) = kernels::strips_bytes(isa, matrix.tensor_type(), matrix.cols, matrix.rows) else {
            slots.push(None);
            continue;
        };
        slots.push(Some(at..at + size));
        let slot;
        (slot, rest) = rest.split_at_mut(size.next_multiple_of(ALIGN_BYTES));
        at += size.next_multiple_of(ALIGN_BYTES);
        push_jobs(&mut jobs, isa, matrix.rows_in_file(gguf), matrix.rows, &mut slot[..size]);
    }
    run_jobs(isa, jobs, gguf.anonymous_bytes() == 0, progress);
    let region = Arc::new(region);
    for (matrix, slot) in weights.matrices_mut().zip(slots) {
        if let Some(slot) = slot {
            matrix.set_packed(Arc::clone(&region), slot);
        }
    }
    Ok(region)
}

fn push_jobs<'a>(jobs: &mut Vec<Job<'a>>, isa: Isa, weights: WeightRows<'a>, rows: usize, mut out: &'a mut [u8]) {
    let strip_bytes = (weights.data.len() / rows.max(1) * STRIP_ROWS).max(1);
    let job_rows = (JOB_BYTES / strip_bytes).max(1) * STRIP_ROWS;
    for first in (0..rows).step_by(job_rows) {
        let rows = first..rows.min(first + job_rows);
        let size = kernels::strips_bytes(isa, weights.tensor_type, weights.cols, rows.len()).expect("it has a form");
        let piece;
        (piece, out) = out.split_at_mut(size);
        jobs.push(Job { weights, rows, out: piece });
    }
}

/// Packs by as many threads as the process has cores, in the order of the file, each byte of which is read once: pages are
/// asked for some jobs ahead, mapped for their own job, and let go after it.
fn run_jobs(isa: Isa, mut jobs: Vec<Job<'_>>, mapped: bool, progress: &(dyn Fn(u64) + Sync)) {
    jobs.sort_unstable_by_key(|job| job.bytes().as_ptr());
    if mapped {
        jobs.iter().take(JOBS_AHEAD).for_each(|job| memory::fetch(job.bytes()));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = jobs.len().clamp(1, cores);
    let (jobs, done) = (Mutex::new(jobs.into_iter()), AtomicU64::new(0));
    let take = || {
        let mut jobs = jobs.lock().unwrap_or_else(|e| e.into_inner());
        let next = jobs.next();
        (next, jobs.as_slice().get(JOBS_AHEAD - 1).map(Job::bytes))
    };
    let serve = || {
        while let (Some(job), ahead) = take() {
            let from = job.bytes();
            if mapped {
                ahead.into_iter().for_each(memory::fetch);
                memory::bring_in(from);
            }
            kernels::pack(isa, job.weights, job.rows, job.out);
            memory::let_go(from, mapped);
            let bytes = job.out.len() as u64;
            progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        }
    };
    std::thread::scope(|scope| {
        for i in 1..threads {
            // fewer threads than wanted are enough
            let _ = std::thread::Builder::new().name(format!("repack-{i}")).spawn_scoped(scope, serve);
        }
        serve();
    });
}

#[cfg(test)]
mod tests;
