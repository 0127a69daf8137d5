//! The run's journal on the lab host: one framed JSON line a durable event, append-only. It is the truth; the index can
//! be made again from it.

use crate::error::{Error, Result};
use crate::event::Event;
use farmgate_engine::protocol::frame;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// File name of the journal within a run's folder.
pub const FILE_NAME: &str = "journal.jsonl";

#[derive(Serialize)]
struct LineOut<'a> {
    seq: u64,
    event: &'a Event,
}

#[derive(Deserialize)]
struct LineIn {
    seq: u64,
    event: Event,
}

/// Appends to one run's journal.
pub struct JournalWriter {
    file: File,
    path: PathBuf,
    seq: u64,
}

impl JournalWriter {
    /// Creates the journal; an existing one is never touched.
    pub fn create(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(|e| {
            Error::io("cannot create the run's journal", &path, &e).hint("check free space and rights of the folder")
        })?;
        lock(&file, &path)?;
        Ok(Self { file, path, seq: 0 })
    }

    /// Opens the journal of a run that farmgate did not bring to its end, hands its events to `each`, and goes on behind
    /// them. A torn last line, which is what a crash leaves, is cut off.
    ///
    /// # Errors
    /// Usage: there is no such journal, another farmgate writes it, or it is damaged elsewhere than at its end.
    pub fn reopen(folder: &Path, each: &mut dyn FnMut(Event) -> Result<()>) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let fault = |doing: &str, e: &std::io::Error| Error::io(doing, &path, e);
        let file =
            OpenOptions::new().append(true).open(&path).map_err(|e| fault("cannot open the run's journal", &e))?;
        lock(&file, &path)?;
        let damage = read(&path, each)?;
        let length = file.metadata().map_err(|e| fault("cannot read the run's journal", &e))?.len();
        if let Some((line, why)) = damage.broken_line.filter(|_| !damage.is_torn_end) {
            return Err(Error::usage(format!("the run's journal is damaged: line {line}: {why}"))
                .in_file(&path)
                .hint("what stands before it can be reported; start a new run to measure on"));
        }
        if length > damage.good_bytes {
            file.set_len(damage.good_bytes).map_err(|e| fault("cannot cut the torn end of the run's journal", &e))?;
        }
        Ok(Self { file, path, seq: damage.good_lines })
    }

    /// Appends a durable event; passing ones are ignored.
    pub fn append(&mut self, event: &Event) -> Result<()> {
        if !event.is_durable() {
            return Ok(());
        }
        let line = frame::seal(&LineOut { seq: self.seq, event })
            .map_err(|e| Error::bug(format!("an event cannot be written as json: {e}")))?;
        if line.len() > frame::LINE_BYTES_MAX {
            return Err(Error::usage(format!(
                "an event of {} bytes is longer than a journal line may be ({} bytes)",
                line.len(),
                frame::LINE_BYTES_MAX
            ))
            .hint("plan fewer pairs or scenarios in one run"));
        }
        let full = |e: &std::io::Error| {
            Error::io("cannot write the run's journal", &self.path, e)
                .hint("free some space; everything up to here is kept")
        };
        self.file.write_all(line.as_bytes()).map_err(|e| full(&e))?;
        if event.must_sync() {
            self.file.sync_data().map_err(|e| full(&e))?;
        }
        self.seq += 1;
        Ok(())
    }
}

/// One writer at a time; the lock ends with its process.
fn lock(file: &File, path: &Path) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::usage("another farmgate is carrying out this run")
            .in_file(path)
            .hint("wait until it has ended; `farmgate report --list` shows the state of all runs")),
        Err(TryLockError::Error(e)) => Err(Error::io("cannot lock the run's journal", path, &e)),
    }
}

/// What reading a journal found besides its events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Lines that could be read.
    pub good_lines: u64,
    /// Their bytes.
    pub good_bytes: u64,
    /// Whether the broken line is the last one and has no end: what a crash leaves.
    pub is_torn_end: bool,
    /// First line (from 1) that could not be read, and why; nothing after it was used.
    pub broken_line: Option<(usize, String)>,
}

/// Reads a journal's events in order, and hands each to `each`. A torn or altered line ends the reading: what stands
/// after it cannot be trusted to be in order. Lines are bounded, so that a damaged file cannot fill the memory.
pub fn read(path: &Path, each: &mut dyn FnMut(Event) -> Result<()>) -> Result<Damage> {
    let file = File::open(path).map_err(|e| Error::io("cannot read the run's journal", path, &e))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut number = 0usize;
    let mut found = Damage::default();
    loop {
        line.clear();
        let taken = (&mut reader)
            .take(frame::LINE_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|e| Error::io("cannot read the run's journal", path, &e))?;
        if taken == 0 {
            return Ok(found);
        }
        number += 1;
        if !line.ends_with(b"\n") {
            found.is_torn_end = taken <= frame::LINE_BYTES_MAX;
            found.broken_line = Some((number, "the line is cut".to_owned()));
            return Ok(found);
        }
        let mut broken = |why: String| found.broken_line = Some((number, why));
        match frame::open::<LineIn>(&line) {
            Err(fault) => {
                broken(fault.to_string());
                return Ok(found);
            }
            Ok(LineIn { seq, .. }) if seq + 1 != number as u64 => {
                broken(format!("sequence number {seq} where {} was due", number - 1));
                return Ok(found);
            }
            Ok(LineIn { event, .. }) => each(event)?,
        }
        found.good_lines += 1;
        found.good_bytes += taken as u64;
    }
}
