//! What verbs write on stdout, and one rule for a stdout that takes no more: a reader that has gone had enough, which is no
//! fault; anything else, such as a full disk, is an error.

use crate::error::{EngineError, Result};
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Writes now, and at once what ends with a line feed: whoever interrupts the process finds no half of a row.
pub(super) fn put(text: Arguments<'_>) -> Result<()> {
    let text = text.to_string();
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of a write to stdout.
pub(super) fn written(outcome: io::Result<()>) -> Result<()> {
    outcome.map_err(|e| {
        READER_GONE.fetch_or(e.kind() == ErrorKind::BrokenPipe, Ordering::Relaxed);
        EngineError::io("cannot write to stdout", &e).hint("is its disk full?")
    })
}

/// Whether a write failed since nobody reads any more.
pub(super) fn reader_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}
