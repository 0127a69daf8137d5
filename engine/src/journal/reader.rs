//! Reading a journal piece by piece, as its bytes arrive: pure, bounded, never stopped by a bad line.

use crate::protocol::frame::{self, FrameError, Framed, LINE_BYTES_MAX};

/// What a piece of a journal held.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A good record.
    Record(Framed),
    /// Something that must not be passed over in silence.
    Trouble(Trouble),
}

/// What can be wrong with a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// A line that is no frame, that was altered, or that is too long. It is skipped.
    BadLine {
        /// Where the line begins, in bytes from the start of the journal.
        offset_bytes: u64,
        /// What is wrong with it.
        why: FrameError,
    },
    /// Records are missing before the one that follows.
    Gap {
        /// The sequence number that was due.
        expected: u64,
        /// The one that came; it follows as a record.
        found: u64,
    },
    /// A sequence number came again; the record is dropped.
    Repeated {
        /// The sequence number.
        seq: u64,
    },
    /// A record is older than the one before it; it follows as a record all the same.
    ClockBackwards {
        /// Its sequence number.
        seq: u64,
        /// By how much, in microseconds.
        by_us: u64,
    },
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadLine { offset_bytes, why } => write!(f, "{why}, at byte {offset_bytes}"),
            Self::Gap { expected, found } => write!(f, "records {expected} to {} are missing", found.saturating_sub(1)),
            Self::Repeated { seq } => write!(f, "record {seq} came twice"),
            Self::ClockBackwards { seq, by_us } => write!(f, "the clock went back by {by_us} us at record {seq}"),
        }
    }
}

/// Splits the bytes of a journal into records. Feed it the bytes in order, in pieces of any size.
///
/// Holds at most one unfinished line of [`LINE_BYTES_MAX`] bytes; a longer one is reported once and skipped up to its
/// line feed. To go on reading after a lost link, read the journal from [`fed_bytes`](Self::fed_bytes); a reader that
/// starts afresh must start at byte 0 or at a [`complete_bytes`](Self::complete_bytes) with the sequence number known
/// ([`starting_at`](Self::starting_at)).
#[derive(Debug, Default)]
pub struct JournalReader {
    pending: Vec<u8>,
    skipping: bool,
    complete_bytes: u64,
    fed_bytes: u64,
    seq_next: u64,
    time_us_last: u64,
}

impl JournalReader {
    /// A reader for the start of a journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader that begins in the middle: at the start of a line `offset_bytes` into the journal, where record
    /// `seq_next` is due.
    pub fn starting_at(offset_bytes: u64, seq_next: u64) -> Self {
        Self { complete_bytes: offset_bytes, fed_bytes: offset_bytes, seq_next, ..Self::default() }
    }

    /// Takes the next bytes and returns what they complete, in order.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&b| b == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            self.fed_bytes += line.len() as u64;
            self.take_part(&line[..end], &mut entries);
            if !std::mem::take(&mut self.skipping) {
                let line = std::mem::take(&mut self.pending);
                self.take_line(&line, &mut entries);
                self.pending = line;
            }
            self.pending.clear();
            self.complete_bytes = self.fed_bytes;
        }
        self.fed_bytes += rest.len() as u64;
        self.take_part(rest, &mut entries);
        entries
    }

    /// Bytes fed so far: where the next piece begins.
    pub fn fed_bytes(&self) -> u64 {
        self.fed_bytes
    }

    /// Bytes up to the end of the last finished line.
    pub fn complete_bytes(&self) -> u64 {
        self.complete_bytes
    }

    /// Bytes of the line that is not finished yet: the torn tail, when nothing more will come.
    pub fn pending_bytes(&self) -> u64 {
        self.fed_bytes - self.complete_bytes
    }

    /// The sequence number that is due next.
    pub fn seq_next(&self) -> u64 {
        self.seq_next
    }

    /// Adds a part of a line, unless the line has grown too long.
    fn take_part(&mut self, part: &[u8], entries: &mut Vec<Entry>) {
        if self.skipping {
            return;
        }
        if self.pending.len() + part.len() >= LINE_BYTES_MAX {
            self.skipping = true;
            self.pending = Vec::new();
            entries.push(self.bad_line(FrameError::TooLong));
            return;
        }
        self.pending.extend_from_slice(part);
    }

    fn bad_line(&self, why: FrameError) -> Entry {
        Entry::Trouble(Trouble::BadLine { offset_bytes: self.complete_bytes, why })
    }

    fn take_line(&mut self, line: &[u8], entries: &mut Vec<Entry>) {
        let framed = match frame::decode(line) {
            Ok(framed) => framed,
            Err(why) => return entries.push(self.bad_line(why)),
        };
        if framed.seq < self.seq_next {
            return entries.push(Entry::Trouble(Trouble::Repeated { seq: framed.seq }));
        }
        if framed.seq > self.seq_next {
            entries.push(Entry::Trouble(Trouble::Gap { expected: self.seq_next, found: framed.seq }));
        }
        if framed.time_us < self.time_us_last {
            let by_us = self.time_us_last - framed.time_us;
            entries.push(Entry::Trouble(Trouble::ClockBackwards { seq: framed.seq, by_us }));
        }
        // a stated number must not be able to overflow ours
        self.seq_next = framed.seq.saturating_add(1);
        self.time_us_last = framed.time_us;
        entries.push(Entry::Record(framed));
    }
}
