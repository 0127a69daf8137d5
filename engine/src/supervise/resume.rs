//! What an unfinished journal says about the cells of its plan, so that a run goes on where an earlier one ended.

use crate::error::{EngineError, Result};
use crate::protocol::frame::Framed;
use crate::protocol::{DevicePlan, ExitCause, ReasonCode, Record, Validity};
use std::collections::BTreeMap;

/// How far each cell has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    cells: BTreeMap<u32, CellProgress>,
    /// The lowest idle temperature that the run has found so far, C.
    idle_c: Option<f64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct CellProgress {
    /// The attempt number that is free.
    attempt_next: u32,
    /// Attempts that came to an end of their own; one that was interrupted or cut off does not count.
    tries_used: u32,
    /// The last attempt needs no other.
    is_settled: bool,
    is_spoiled: bool,
}

impl Progress {
    /// Reads the journal. Errors: it belongs to another run or device, or it is complete.
    pub(super) fn of(records: &[Framed], plan: &DevicePlan) -> Result<Self> {
        let mut progress = Self::default();
        if let Some(first) = records.first() {
            match &first.record {
                Record::JournalStart { run, device, .. } if *run == plan.run && *device == plan.device => {}
                _ => {
                    return Err(EngineError::protocol("the journal belongs to another run or device")
                        .hint("give `--journal` another name"));
                }
            }
        }
        if let Some(Framed { record: Record::JournalEnd { interrupted: false }, .. }) = records.last() {
            return Err(EngineError::protocol("the journal is complete: this run has ended")
                .hint("give `--journal` another name"));
        }
        records.iter().for_each(|framed| progress.take(&framed.record));
        Ok(progress)
    }

    fn take(&mut self, record: &Record) {
        match record {
            Record::ReadyBasis { idle_temperature_c: Some(idle), .. } => {
                self.idle_c = Some(self.idle_c.map_or(idle.get(), |before| before.min(idle.get())));
            }
            Record::CellStart { cell, attempt, .. } => {
                let state = self.cells.entry(*cell).or_default();
                state.attempt_next = attempt.saturating_add(1);
                state.is_settled = false;
                state.is_spoiled = false;
            }
            Record::Sample(sample) => {
                let lasting = Validity::Invalid(ReasonCode::GoldenTokensDiffer);
                let is_spoiled = sample.validity != Validity::Valid && sample.validity != lasting;
                self.cells.entry(sample.cell).or_default().is_spoiled |= is_spoiled;
            }
            Record::CellEnd { cell, exit, invalid, .. } if *exit != ExitCause::Interrupted => {
                let state = self.cells.entry(*cell).or_default();
                state.tries_used += 1;
                let is_refusal = matches!(exit, ExitCause::Failed { status: 2, .. });
                state.is_settled = is_refusal || (invalid.is_empty() && !state.is_spoiled);
            }
            _ => {}
        }
    }

    /// The idle temperature that an earlier part of the run has found, C: a run that goes on may find the device warm.
    pub(super) fn idle_c(&self) -> Option<f64> {
        self.idle_c
    }

    /// Number of the next attempt of a cell, and how many more may be made.
    pub(super) fn of_cell(&self, cell: u32, retries_max: u32) -> (u32, u32) {
        let state = self.cells.get(&cell).copied().unwrap_or_default();
        let left = if state.is_settled { 0 } else { (retries_max + 1).saturating_sub(state.tries_used) };
        (state.attempt_next, left)
    }
}
