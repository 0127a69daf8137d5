//! The run's journal on the lab host: one framed JSON line a durable event, append-only. It is the truth; the index can
//! be made again from it.

use crate::error::{Error, Result};
use crate::event::Event;
use farmgate_engine::protocol::frame;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
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
        Ok(Self { file, path, seq: 0 })
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

/// What reading a journal found besides its events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Damage {
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
    loop {
        line.clear();
        let taken = (&mut reader)
            .take(frame::LINE_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|e| Error::io("cannot read the run's journal", path, &e))?;
        if taken == 0 {
            return Ok(Damage::default());
        }
        number += 1;
        let broken = |why: String| Ok(Damage { broken_line: Some((number, why)) });
        if !line.ends_with(b"\n") {
            return broken("the line is cut".to_owned());
        }
        match frame::open::<LineIn>(&line) {
            Err(fault) => return broken(fault.to_string()),
            Ok(LineIn { seq, .. }) if seq + 1 != number as u64 => {
                return broken(format!("sequence number {seq} where {} was due", number - 1));
            }
            Ok(LineIn { event, .. }) => each(event)?,
        }
    }
}
