//! Following a device journal from afar: its records, and whether its writer still lives.

use crate::error::{Error, Result};
use crate::transport::Transport;
use farmgate_engine::journal::{Entry, JournalReader, Trouble};
use farmgate_engine::protocol::Record;
use farmgate_engine::protocol::frame::Framed;
use serde::Deserialize;
use std::time::{Duration, Instant};

const READ: Duration = Duration::from_secs(20);
/// Bytes read at once, and how many such pieces one poll reads at most.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_MAX: usize = 16;
/// How often a silent farmhand is asked for, so that the question does not disturb what it measures.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(3);
/// Bytes of farmhand's log that an error shows.
const LOG_TAIL_BYTES: usize = 600;

/// Prints the pid file `$1`, the boot's name, and the process's state line; nothing when there is no pid file.
const LOOK: &str = r#"p=$(cat -- "$1" 2>/dev/null) || exit 0
n=${p#*\"pid\":}
n=${n%%[!0-9]*}
echo "$p"
cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo unknown
cat "/proc/$n/stat" 2>/dev/null
exit 0"#;

/// Prints the last bytes of log `$1`.
const LOG_TAIL: &str = r#"tail -c 2000 "$1" 2>/dev/null; exit 0"#;

/// A run at work on the device, as seen from here.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) journal: String,
    pub(super) pid_file: String,
    pub(super) log: String,
    reader: JournalReader,
    trouble: Option<Trouble>,
    ended: bool,
    is_complete: bool,
    looked: Instant,
    /// Records below this number are known already.
    seq_next: u64,
    /// Read before anybody asked for them.
    held: Vec<Framed>,
}

impl Following {
    /// Follows the journal in a run's folder, from record `seq_next` on.
    pub(super) fn new(folder: &str, seq_next: u64) -> Self {
        Self {
            journal: format!("{folder}/journal.jsonl"),
            pid_file: format!("{folder}/pid"),
            log: format!("{folder}/journal.jsonl.log"),
            reader: JournalReader::new(),
            trouble: None,
            ended: false,
            is_complete: false,
            looked: Instant::now(),
            seq_next,
            held: Vec::new(),
        }
    }

    /// Reads all that is there, past ends that were none since the run was gone on with, and holds it for the next poll.
    /// Says whether the last end is the plan's.
    pub(super) fn catch_up(&mut self, transport: &mut dyn Transport) -> Result<bool> {
        loop {
            let before = self.reader.fed_bytes();
            let had_ended = std::mem::replace(&mut self.ended, false);
            let records = self.read(transport)?;
            self.held.extend(records);
            if self.reader.fed_bytes() == before || self.trouble.is_some() {
                self.ended |= had_ended;
                return Ok(self.is_complete);
            }
        }
    }

    /// What comes next is written by a farmhand that is started now. It cuts off a torn last line, so the journal is read
    /// from its beginning once more.
    pub(super) fn goes_on(&mut self) {
        self.reader = JournalReader::new();
        self.trouble = None;
        self.ended = false;
        self.looked = Instant::now();
    }

    /// Whether the journal's last record has been handed out.
    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.held.is_empty()
    }

    /// What has been written since the last call. Damage is told after the good records before it.
    pub(super) fn poll(&mut self, transport: &mut dyn Transport) -> Result<Vec<Framed>> {
        if !self.held.is_empty() {
            return Ok(std::mem::take(&mut self.held));
        }
        if let Some(trouble) = &self.trouble {
            return Err(damaged(trouble));
        }
        let mut records = self.read(transport)?;
        if records.is_empty() && !self.ended && self.trouble.is_none() && self.looked.elapsed() > SIGN_OF_LIFE_EVERY {
            self.looked = Instant::now();
            if !self.is_alive(transport)? {
                // it may have ended in good order between the two looks
                records = self.read(transport)?;
                if !self.ended && records.is_empty() {
                    return Err(self.died(transport));
                }
            }
        }
        Ok(records)
    }

    fn read(&mut self, transport: &mut dyn Transport) -> Result<Vec<Framed>> {
        let mut records = Vec::new();
        for _ in 0..PIECES_MAX {
            if self.ended || self.trouble.is_some() {
                break;
            }
            let piece = match transport.read_from(&self.journal, self.reader.fed_bytes(), PIECE_BYTES, READ) {
                Ok(piece) => piece,
                // what has been read must not be lost with the link
                Err(_) if !records.is_empty() => break,
                Err(error) => return Err(error),
            };
            for entry in self.reader.feed(&piece) {
                match entry {
                    Entry::Record(framed) => {
                        self.ended = matches!(framed.record, Record::JournalEnd { .. });
                        self.is_complete = matches!(framed.record, Record::JournalEnd { interrupted: false });
                        if framed.seq >= self.seq_next {
                            self.seq_next = framed.seq + 1;
                            records.push(framed);
                        }
                    }
                    Entry::Trouble(trouble @ (Trouble::Repeated { .. } | Trouble::ClockBackwards { .. })) => {
                        log::warn!("{}: {trouble}", self.journal);
                    }
                    Entry::Trouble(trouble) => {
                        self.trouble = Some(trouble);
                        break;
                    }
                }
            }
            if piece.len() < PIECE_BYTES {
                break;
            }
        }
        Ok(records)
    }

    /// Whether the process that the pid file names is that farmhand and runs.
    pub(super) fn is_alive(&self, transport: &mut dyn Transport) -> Result<bool> {
        let output = transport.exec(&["sh", "-c", LOOK, "sh", &self.pid_file], READ)?;
        Ok(is_running(&String::from_utf8_lossy(&output.stdout)))
    }

    fn died(&self, transport: &mut dyn Transport) -> Error {
        let log = transport.exec(&["sh", "-c", LOG_TAIL, "sh", &self.log], READ).unwrap_or_default();
        let tail = farmgate_engine::text::escaped_tail(log.stdout.trim_ascii(), LOG_TAIL_BYTES);
        let words = if tail.is_empty() { "it left no word in its log" } else { tail.trim() };
        Error::infra(format!("farmhand died on the device before the end of its plan: {}", words.replace('\n', "; ")))
            .hint("the device may have restarted or run out of memory; what was measured before is kept")
    }
}

fn damaged(trouble: &Trouble) -> Error {
    Error::infra(format!("the device's journal is damaged: {trouble}"))
        .hint("suspect the device's medium or memory; what was read before is kept")
}

/// Judges the answer to [`LOOK`]: number, start time and boot of the process all have to fit.
fn is_running(text: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Identity {
        start_ticks: u64,
        boot_id: String,
    }
    let mut lines = text.lines();
    let Some(Ok(identity)) = lines.next().map(serde_json::from_str::<Identity>) else { return false };
    let Some(boot) = lines.next() else { return false };
    // the name in brackets may hold anything, line feeds too
    let rest: Vec<&str> = lines.collect();
    let rest = rest.join("\n");
    let Some((_, fields)) = rest.rsplit_once(')') else { return false };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().unwrap_or("X");
    let start = fields.nth(18).and_then(|f| f.parse().ok());
    boot.trim() == identity.boot_id && !matches!(state, "Z" | "X" | "x") && start == Some(identity.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_only_when_number_start_and_boot_fit() {
        let file = "{\"pid\":7,\"start-ticks\":99,\"boot-id\":\"b\",\"journal\":\"j\"}";
        let stat = |state: &str, start: u32| format!("7 (farm) hand) {state} {}{start} 0 0", "0 ".repeat(18));
        assert!(is_running(&format!("{file}\nb\n{}\n", stat("S", 99))));
        for other in [
            String::new(),
            format!("{file}\nb\n"),
            format!("{file}\nother\n{}\n", stat("S", 99)),
            format!("{file}\nb\n{}\n", stat("S", 98)),
            format!("{file}\nb\n{}\n", stat("Z", 99)),
            "junk\nb\nstat".to_owned(),
        ] {
            assert!(!is_running(&other), "{other}");
        }
    }
}
