//! What is heard from a cell's process: its records on stdout, its words on stderr.

use super::cause::Ours;
use super::child::Attempt;
use crate::error::{EngineError, Result};
use crate::journal::Journal;
use crate::protocol::frame::LINE_BYTES_MAX;
use crate::protocol::{ReasonCode, Record, SelfProof, Telemetry, Validity};
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, ChildStderr, ChildStdout};
use std::time::{Duration, Instant};

/// The most of a child's stderr that is journalled, bytes.
pub(super) const STDERR_BYTES_MAX: usize = 2_000;
const LOOK_FOR_EXIT_EVERY: Duration = Duration::from_millis(5);

/// Both pipes of a child, and what has been heard from them.
pub(super) struct Listener {
    stdout: Option<ChildStdout>,
    stderr_pipe: Option<ChildStderr>,
    line: Vec<u8>,
    pub stderr: Vec<u8>,
    /// When the proof came.
    pub ready: Option<Instant>,
    pub proof: Option<Box<SelfProof>>,
    pub has_spoiled_samples: bool,
    /// What it held in memory when it had done all its steps: its last words.
    pub at_end: Option<Box<Telemetry>>,
    /// Why we kill it, once we do.
    pub ours: Option<Ours>,
}

impl Listener {
    /// Takes over both pipes.
    pub(super) fn new(process: &mut Child) -> Result<Self> {
        let stdout = process.stdout.take();
        let stderr_pipe = process.stderr.take();
        let descriptors = [stdout.as_ref().map(AsRawFd::as_raw_fd), stderr_pipe.as_ref().map(AsRawFd::as_raw_fd)];
        for descriptor in descriptors.into_iter().flatten() {
            never_wait_for(descriptor).map_err(|e| EngineError::io("cannot set up the cell's pipes", &e))?;
        }
        Ok(Self {
            stdout,
            stderr_pipe,
            line: Vec::new(),
            stderr: Vec::new(),
            ready: None,
            proof: None,
            has_spoiled_samples: false,
            at_end: None,
            ours: None,
        })
    }

    /// Takes everything that is in the pipes now.
    pub(super) fn hear(&mut self, attempt: &Attempt<'_>, journal: &mut Journal) -> Result<()> {
        let mut piece = [0u8; 1 << 14];
        while let Some(n) = read_some(&mut self.stderr_pipe, &mut piece) {
            self.stderr.extend_from_slice(&piece[..n]);
            // twice the bound, so that not every piece moves the rest
            if self.stderr.len() > 2 * STDERR_BYTES_MAX {
                self.stderr.drain(..self.stderr.len() - STDERR_BYTES_MAX);
            }
        }
        while let Some(n) = read_some(&mut self.stdout, &mut piece) {
            let mut rest = &piece[..n];
            while let Some(end) = rest.iter().position(|&b| b == b'\n') {
                self.line.extend_from_slice(&rest[..end]);
                rest = &rest[end + 1..];
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, attempt, journal)?;
            }
            self.line.extend_from_slice(rest);
            if self.line.len() > LINE_BYTES_MAX {
                self.line.clear();
                self.garbled("a line longer than a record may be");
            }
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], attempt: &Attempt<'_>, journal: &mut Journal) -> Result<()> {
        if matches!(self.ours, Some(Ours::Garbled(_))) {
            return Ok(());
        }
        let Ok(record) = serde_json::from_slice::<Record>(line) else {
            self.garbled("a line that is no record");
            return Ok(());
        };
        let (number, this) = (attempt.cell.cell, attempt.attempt);
        match &record {
            Record::Proof { cell, proof } if *cell == number && self.proof.is_none() => {
                self.ready = Some(Instant::now());
                self.proof = Some(proof.clone());
            }
            Record::Sample(sample) if sample.cell == number && sample.attempt == this && self.proof.is_some() => {
                // greedy output does not change by trying again
                let lasting = Validity::Invalid(ReasonCode::GoldenTokensDiffer);
                self.has_spoiled_samples |= sample.validity != Validity::Valid && sample.validity != lasting;
            }
            Record::Telemetry(told) if told.cell == number && self.proof.is_some() && self.at_end.is_none() => {
                self.at_end = Some(told.clone());
                return Ok(());
            }
            Record::TokenTimes(times) if times.cell == number && times.attempt == this && self.proof.is_some() => {}
            _ => {
                self.garbled("a record that is not its to write");
                return Ok(());
            }
        }
        journal.append(record)
    }

    fn garbled(&mut self, what: &str) {
        if self.ours.is_none() {
            self.ours = Some(Ours::Garbled(format!("the cell's process wrote {what}")));
        }
    }

    /// Waits until a pipe has something, or has been closed, or the time is over.
    pub(super) fn pause(&self, longest: Duration) {
        let watch =
            |descriptor: Option<RawFd>| libc::pollfd { fd: descriptor.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        let mut pipes = [
            watch(self.stdout.as_ref().map(AsRawFd::as_raw_fd)),
            watch(self.stderr_pipe.as_ref().map(AsRawFd::as_raw_fd)),
        ];
        // a closed pipe means that the exit is near, and nothing else will tell of it
        let longest = if self.stdout.is_none() { longest.min(LOOK_FOR_EXIT_EVERY) } else { longest };
        let timeout_ms = longest.as_millis().clamp(1, 1_000) as libc::c_int;
        // SAFETY: `pipes` is an array of two pollfd that outlives the call; a signal ends the call early, which is meant
        unsafe { libc::poll(pipes.as_mut_ptr(), pipes.len() as libc::nfds_t, timeout_ms) };
    }
}

/// Reads what is there; `None` when there is nothing now. A pipe at its end is dropped.
fn read_some<R: Read>(pipe: &mut Option<R>, piece: &mut [u8]) -> Option<usize> {
    loop {
        match pipe.as_mut()?.read(piece) {
            Ok(n) if n > 0 => return Some(n),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => {
                *pipe = None;
                return None;
            }
        }
    }
}

fn never_wait_for(descriptor: RawFd) -> std::io::Result<()> {
    // SAFETY: fcntl with these commands touches no memory; the descriptor is open
    let set = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        flags >= 0 && libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::super::budget::ModelReading;
    use super::*;
    use crate::protocol::{
        Arm, CellPlan, DevicePlan, EngineConfig, ModelRef, PROTOCOL_VERSION, ReadyCriteria, SampleRecord,
    };
    use std::os::fd::OwnedFd;
    use std::path::Path;

    fn cell() -> CellPlan {
        CellPlan {
            cell: 3,
            scenario: "s".into(),
            arm: Arm::Candidate,
            pair: 0,
            slot: 0,
            model: ModelRef { path: "m".into(), sha256: vec![] },
            config: EngineConfig::default(),
            steps: vec![],
            seed: 0,
            load_timeout_ms: 1,
            cell_timeout_ms: 1,
            about_heat: false,
        }
    }

    fn proof() -> Record {
        let proof = SelfProof {
            build: String::new(),
            engine_sha256: String::new(),
            model_sha256: vec![],
            isa: String::new(),
            config: EngineConfig::default(),
            threads_effective: 1,
            affinity_effective: vec![],
            weight_bytes: 0,
            kv_bytes: 0,
            scratch_bytes: 0,
            eviction: "none".into(),
            ..SelfProof::default()
        };
        Record::Proof { cell: 3, proof: Box::new(proof) }
    }

    fn sample(cell: u32, attempt: u32) -> Record {
        let validity = Validity::Valid;
        let metric = "m".into();
        Record::Sample(SampleRecord { cell, attempt, step: 0, repetition: 0, metric, value: None, validity })
    }

    fn line(record: &Record) -> Vec<u8> {
        let mut line = serde_json::to_vec(record).unwrap();
        line.push(b'\n');
        line
    }

    /// What the listener makes of a child that writes `lines`: its objection, and how many records were journalled.
    fn heard(lines: &[Vec<u8>]) -> (Option<Ours>, usize) {
        let cell = cell();
        let plan = DevicePlan {
            protocol_version: PROTOCOL_VERSION,
            run: "r".into(),
            device: "d".into(),
            telemetry_period_ms: 0,
            retries_max: 0,
            lease_token: None,
            ready: ReadyCriteria::default(),
            cells: vec![],
        };
        let attempt = Attempt {
            plan: &plan,
            plan_path: Path::new("p"),
            cell: &cell,
            attempt: 1,
            eviction: "none",
            verified: &[],
            bandwidth: None,
            model: ModelReading { bytes: 0, bytes_per_s: None },
            load_timeout_ms: 1,
            telemetry_period: None,
            must_stop: &mut || false,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut listener = Listener {
            stdout: Some(OwnedFd::from(reader).into()),
            stderr_pipe: None,
            line: Vec::new(),
            stderr: Vec::new(),
            ready: None,
            proof: None,
            has_spoiled_samples: false,
            at_end: None,
            ours: None,
        };
        let bytes = lines.concat();
        let writing = std::thread::spawn(move || {
            use std::io::Write;
            let _ = writer.write_all(&bytes);
        });
        while listener.stdout.is_some() {
            listener.hear(&attempt, &mut journal).unwrap();
        }
        writing.join().unwrap();
        let journalled = std::fs::read(&path).unwrap().iter().filter(|b| **b == b'\n').count();
        (listener.ours, journalled)
    }

    #[test]
    fn what_is_the_childs_to_write_is_journalled() {
        assert_eq!(heard(&[line(&proof()), line(&sample(3, 1))]), (None, 2));
    }

    #[test]
    fn what_a_child_says_of_its_memory_at_the_end_is_kept_for_the_last_reading_and_taken_once() {
        let told = || line(&Record::Telemetry(Box::new(Telemetry { cell: 3, ..Telemetry::default() })));
        assert_eq!(heard(&[line(&proof()), told()]), (None, 1));
        assert!(matches!(heard(&[line(&proof()), told(), told()]).0, Some(Ours::Garbled(_))));
        assert!(matches!(heard(&[told()]).0, Some(Ours::Garbled(_))), "before the proof");
    }

    #[test]
    fn a_child_that_writes_anything_else_is_ended_and_heard_no_more() {
        let end = Record::JournalEnd { interrupted: false };
        for bad in [b"hello\n".to_vec(), line(&sample(4, 1)), line(&sample(3, 0)), line(&proof()), line(&end)] {
            let (ours, journalled) = heard(&[line(&proof()), bad.clone(), line(&sample(3, 1))]);
            assert!(matches!(ours, Some(Ours::Garbled(_))), "{}", String::from_utf8_lossy(&bad));
            assert_eq!(journalled, 1);
        }
        assert!(matches!(heard(&[line(&sample(3, 1))]).0, Some(Ours::Garbled(_))), "a sample before the proof");
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let (ours, journalled) = heard(&[line(&proof()), vec![b'x'; 3 * LINE_BYTES_MAX]]);
        assert!(matches!(ours, Some(Ours::Garbled(what)) if what.contains("longer")));
        assert_eq!(journalled, 1);
    }
}
