//! Where the time of a forward pass goes: by operator and worker, with the bytes and operations of each.
//!
//! A pass is a row of operators, one after the other on the thread that owns the pool: [`Recorder::mark`] ends one and
//! begins the next, so that no time is lost between them. Inside an operator, the pool's regions note when each worker
//! took its first chunk and ended its last one; whoever works then writes only to a slot of its own, and the owner
//! books it after the region. All buffers are made beforehand: when they are full, events are counted instead of kept,
//! and the totals go on.

mod operator;
mod recorder;
mod table;
mod trace;

pub use operator::{Cost, Operator, Phase};
pub use recorder::{Recorder, Stopwatch};
pub use table::{Ceilings, Row, rows, table};
pub use trace::write_trace;

use std::time::Instant;

/// One call of an operator. Times are nanoseconds after the recording began.
#[derive(Debug, Clone, Copy)]
pub struct OperatorSpan {
    /// Which.
    pub operator: Operator,
    /// In which kind of pass.
    pub phase: Phase,
    /// Layer; `None` outside of the layers.
    pub layer: Option<u16>,
    /// Tokens of the pass.
    pub tokens: u32,
    /// Begin.
    pub start_ns: u64,
    /// Length.
    pub duration_ns: u64,
    /// What it took.
    pub cost: Cost,
}

/// What a worker did in a region of the pool.
#[derive(Debug, Clone, Copy)]
pub struct WorkerSpan {
    /// Of which operator.
    pub operator: Operator,
    /// Layer; `None` outside of the layers.
    pub layer: Option<u16>,
    /// Begin.
    pub start_ns: u64,
    /// Length.
    pub duration_ns: u64,
    /// Items of the region that it took; `None` while it waited for the others.
    pub items: Option<u32>,
}

/// Sums over the calls of an operator in one phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Total {
    /// Calls.
    pub calls: u64,
    /// Parallel regions that they opened.
    pub regions: u64,
    /// Time from begin to end.
    pub wall_ns: u64,
    /// Time that workers worked, summed over them.
    pub busy_ns: u64,
    /// Time in regions that workers did not work, summed over them.
    pub synchronisation_ns: u64,
    /// Time outside of regions, when one worker works and the others have nothing to do, summed over the others.
    pub alone_ns: u64,
    /// What the calls took.
    pub cost: Cost,
}

/// What was recorded.
pub struct Profile {
    /// Workers.
    pub threads: usize,
    /// When it began.
    pub origin: Instant,
    /// Calls in the order of time.
    pub operators: Vec<OperatorSpan>,
    /// What each worker did in the regions, worker 0 first, in the order of time.
    pub workers: Vec<Vec<WorkerSpan>>,
    /// Events for which there was no room.
    pub dropped_events: u64,
    totals: [[Total; Operator::ALL.len()]; 2],
    passes: [(u64, u64); 2],
    worker_busy_ns: Vec<[u64; 2]>,
}

impl Profile {
    /// The sums of an operator in a phase, dropped events included.
    pub fn total(&self, phase: Phase, operator: Operator) -> &Total {
        &self.totals[phase as usize][operator as usize]
    }

    /// Time that each worker worked in operators of that phase, nanoseconds, worker 0 first.
    pub fn worker_busy_ns(&self, phase: Phase) -> impl Iterator<Item = u64> {
        self.worker_busy_ns.iter().map(move |of| of[phase as usize])
    }

    /// Passes of that kind, and tokens that went through them.
    pub fn passes(&self, phase: Phase) -> (u64, u64) {
        self.passes[phase as usize]
    }
}

#[cfg(test)]
mod tests;
