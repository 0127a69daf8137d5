//! The device journal: append-only, one framed record a line, the truth about a run.
//!
//! A line reaches the kernel in one write, so what was appended survives the death of `farmhand`. Records that later
//! decisions rest on (start, proof, end of a cell, end of the journal) are also synced to the medium, so they survive
//! the death of the device; telemetry and samples are not, since a sync disturbs what is being measured.
//!
//! Times are `CLOCK_BOOTTIME` since the journal was created. A journal that is continued by a later process goes on from
//! the time of its last record: the time in between is not counted, and time never goes backwards.

mod reader;

pub use reader::{Entry, JournalReader, Trouble};

use crate::clock;
use crate::error::{EngineError, Result};
use crate::protocol::Record;
use crate::protocol::frame::{self, Framed};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A journal open for appending. While it is open, no other process can open it.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Bytes of good lines; what lies behind was torn.
    length_bytes: u64,
    seq_next: u64,
    /// `CLOCK_BOOTTIME` at time zero of this journal, microseconds; negative when it was continued after a reboot.
    epoch_us: i128,
}

/// What [`Journal::open`] found in the file.
#[derive(Debug, Default)]
pub struct Found {
    /// All good records, in order; empty for a new journal.
    pub records: Vec<Framed>,
    /// Bytes of a last line that was never finished; they have been cut off.
    pub torn_bytes: u64,
}

impl Journal {
    /// Opens `path` for appending, creates it (mode 0600) when it is missing. A torn last line, which is what a crash
    /// leaves, is cut off and appending goes on behind the last good line. Damage anywhere else is refused: it did not
    /// come from a crash of ours, and appending would hide it.
    pub fn open(path: &Path) -> Result<(Self, Found)> {
        let fault = |doing: &str, e: &std::io::Error| EngineError::io(doing, e).at(path.display().to_string());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|e| fault("cannot open the journal", &e))?;
        lock(&file, path)?;
        let (found, length_bytes) = read_existing(&mut file, path)?;
        if found.torn_bytes > 0 {
            file.set_len(length_bytes).map_err(|e| fault("cannot cut the torn end of the journal", &e))?;
        }
        file.seek(SeekFrom::Start(length_bytes)).map_err(|e| fault("cannot find the end of the journal", &e))?;
        let last = found.records.last();
        let journal = Self {
            file,
            path: path.to_owned(),
            length_bytes,
            seq_next: last.map_or(0, |f| f.seq + 1),
            epoch_us: i128::from(clock::boottime_us()) - last.map_or(0, |f| i128::from(f.time_us)),
        };
        journal.sync_folder();
        Ok((journal, found))
    }

    /// Appends one record, and syncs it when its kind asks for it (see the module's page). When the medium is full, the
    /// half-written line is taken back, so that the journal stays readable.
    pub fn append(&mut self, record: Record) -> Result<()> {
        let durable = is_durable(&record);
        let framed = Framed { seq: self.seq_next, time_us: self.now_us(), record };
        let line = frame::encode(&framed)
            .map_err(|e| EngineError::new(crate::error::ErrorKind::Bug, format!("cannot encode a record: {e}")))?;
        if line.len() > frame::LINE_BYTES_MAX {
            return Err(EngineError::protocol(format!(
                "a record of {} bytes is longer than a journal line may be ({} bytes)",
                line.len(),
                frame::LINE_BYTES_MAX
            )));
        }
        if let Err(e) = self.file.write_all(line.as_bytes()) {
            let _ = self.file.set_len(self.length_bytes);
            let _ = self.file.seek(SeekFrom::Start(self.length_bytes));
            return Err(self.fault("cannot append to the journal", &e).hint("free space on the device"));
        }
        self.length_bytes += line.len() as u64;
        self.seq_next += 1;
        if durable {
            self.file.sync_data().map_err(|e| self.fault("cannot sync the journal", &e))?;
        }
        Ok(())
    }

    /// Microseconds since the journal was created.
    pub fn now_us(&self) -> u64 {
        u64::try_from(i128::from(clock::boottime_us()) - self.epoch_us).unwrap_or(0)
    }

    fn fault(&self, doing: &str, e: &std::io::Error) -> EngineError {
        EngineError::io(doing, e).at(self.path.display().to_string())
    }

    /// A new file's name is durable only when its folder is synced; some filesystems refuse, which costs nothing else.
    fn sync_folder(&self) {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
    }
}

fn is_durable(record: &Record) -> bool {
    match record {
        Record::JournalStart { .. }
        | Record::ReadyBasis { .. }
        | Record::Proof { .. }
        | Record::CellEnd { .. }
        | Record::JournalEnd { .. } => true,
        Record::Waiting { .. }
        | Record::CellStart { .. }
        | Record::Sample(_)
        | Record::TokenTimes(_)
        | Record::Telemetry(_) => false,
    }
}

/// An advisory lock that ends with the file's last descriptor, so a crash cannot leave it behind.
fn lock(file: &File, path: &Path) -> Result<()> {
    // SAFETY: the descriptor is open for as long as `file` lives; flock touches no memory
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let e = std::io::Error::last_os_error();
    if e.kind() == std::io::ErrorKind::WouldBlock {
        return Err(EngineError::new(crate::error::ErrorKind::Lease, "another farmhand is writing this journal")
            .at(path.display().to_string())
            .hint("wait for it, or end it with `farmhand stop`"));
    }
    Err(EngineError::io("cannot lock the journal", &e).at(path.display().to_string()))
}

/// Reads what is there; returns the good records and the length of the good part.
fn read_existing(file: &mut File, path: &Path) -> Result<(Found, u64)> {
    let mut reader = JournalReader::new();
    let mut found = Found::default();
    let mut piece = vec![0u8; 1 << 16];
    loop {
        let n = file
            .read(&mut piece)
            .map_err(|e| EngineError::io("cannot read the journal", &e).at(path.display().to_string()))?;
        if n == 0 {
            break;
        }
        for entry in reader.feed(&piece[..n]) {
            match entry {
                Entry::Record(framed) => found.records.push(framed),
                Entry::Trouble(trouble) => {
                    return Err(EngineError::protocol(format!("the file is no intact journal: {trouble}"))
                        .at(path.display().to_string())
                        .hint("keep it for inspection and give `--journal` another name"));
                }
            }
        }
    }
    found.torn_bytes = reader.pending_bytes();
    Ok((found, reader.complete_bytes()))
}

#[cfg(test)]
mod tests;
