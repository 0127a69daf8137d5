//! What became of a cell.

use crate::run::{CellData, Sample};
use farmgate_engine::protocol::{ExitCause, ReasonCode, Validity};

/// What became of a cell; only its last attempt counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CellState {
    /// Ended in good order, nothing spoke against it.
    Valid,
    /// Ended in good order, but something spoiled it or one of its samples; or the device did not get ready for it.
    Invalid,
    /// Its process crashed, was killed, refused or ran out of time.
    Died,
    /// Stopped by the user, or its end is not recorded.
    CutShort,
    /// Never started.
    NotStarted,
}

/// What became of this cell.
pub fn state_of(cell: &CellData) -> CellState {
    match &cell.exit {
        _ if cell.attempts == 0 => CellState::NotStarted,
        None | Some(ExitCause::Interrupted) => CellState::CutShort,
        Some(ExitCause::Done) if invalid_reasons(cell).is_empty() => CellState::Valid,
        Some(ExitCause::Done | ExitCause::NotReady { .. }) => CellState::Invalid,
        Some(_) => CellState::Died,
    }
}

/// Samples of the attempt that counts.
pub fn last_samples(cell: &CellData) -> impl Iterator<Item = &Sample> {
    let last = cell.attempts.saturating_sub(1);
    cell.samples.iter().filter(move |s| s.attempt == last)
}

/// Reasons that spoke against the attempt that counts or one of its samples, without those that follow from its end.
pub fn invalid_reasons(cell: &CellData) -> Vec<ReasonCode> {
    let mut reasons = cell.invalid.clone();
    reasons.extend(last_samples(cell).filter_map(|s| match s.validity {
        Validity::Invalid(reason) => Some(reason),
        Validity::Valid => None,
    }));
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

/// Whether a sample counts: last attempt, valid, in a cell that ended in good order and is not INVALID as a whole.
pub fn counts(cell: &CellData, sample: &Sample) -> bool {
    sample.attempt == cell.attempts.saturating_sub(1)
        && sample.validity == Validity::Valid
        && cell.invalid.is_empty()
        && cell.exit == Some(ExitCause::Done)
}

/// Reason codes as shown, separated by commas.
pub fn reason_words(reasons: &[ReasonCode]) -> String {
    reasons.iter().map(|r| r.as_str()).collect::<Vec<_>>().join(", ")
}
