//! One child process: spawned, listened to, observed, and ended when it has to be.

use super::budget::{ModelReading, slow_cell, slow_load};
use super::cause::{OomWatch, Ours, exit_cause};
use crate::clock;
use crate::error::{EngineError, Result};
use crate::execute::FileIdentity;
use crate::journal::Journal;
use crate::protocol::frame::LINE_BYTES_MAX;
use crate::protocol::{CellPlan, DevicePlan, ExitCause, Record, SelfProof, Validity};
use crate::roofline::ReadBandwidth;
use crate::telemetry::Observer;
use crate::text;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The most of a child's stderr that is journalled, bytes.
const STDERR_BYTES_MAX: usize = 2_000;
/// The longest pause before the supervisor looks around again: the bound on how late a signal or an exit is noticed
/// when no descriptor tells of it.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_FOR_EXIT_EVERY: Duration = Duration::from_millis(5);

/// How one attempt is to be run.
pub(super) struct Attempt<'a> {
    pub plan: &'a DevicePlan,
    pub plan_path: &'a Path,
    pub cell: &'a CellPlan,
    pub attempt: u32,
    pub eviction: &'static str,
    pub verified: &'a [FileIdentity],
    /// What the cell's workers read from memory at best.
    pub bandwidth: Option<ReadBandwidth>,
    /// How large the model is and how fast it could be read.
    pub model: ModelReading,
    /// Budget for opening the model, milliseconds.
    pub load_timeout_ms: u64,
    pub telemetry_period: Option<Duration>,
    /// Asked again and again; `true` ends the child.
    pub must_stop: &'a mut dyn FnMut() -> bool,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Ended {
    pub exit: ExitCause,
    pub stderr_tail: String,
    pub duration_ms: u64,
    pub proof: Option<Box<SelfProof>>,
    /// A sample said of itself that it is INVALID, for a reason that may be gone next time.
    pub has_spoiled_samples: bool,
}

/// Runs one attempt to its end, whatever the end is. Errors are those of the journal and of the spawn; the child is
/// dead and reaped when this returns.
pub(super) fn run(attempt: &mut Attempt<'_>, journal: &mut Journal, observer: &mut Observer) -> Result<Ended> {
    let oom = OomWatch::begin();
    let begun = Instant::now();
    let mut process = spawn(attempt)?;
    let pid = process.id();
    let mut listener = Listener::new(&mut process)?;
    let watched = watch(attempt, journal, observer, &mut process, &mut listener, begun);
    let status = match watched {
        Ok(status) => status,
        Err(error) => {
            kill(&process);
            let _ = process.wait();
            return Err(error);
        }
    };
    let stderr_tail = text::escaped_tail(&listener.stderr, STDERR_BYTES_MAX);
    Ok(Ended {
        exit: exit_cause(status, listener.ours, &stderr_tail, &oom, pid),
        stderr_tail,
        duration_ms: begun.elapsed().as_millis() as u64,
        proof: listener.proof,
        has_spoiled_samples: listener.has_spoiled_samples,
    })
}

/// The child is this very binary, in a process group of its own, and dies with its supervisor.
fn spawn(attempt: &Attempt<'_>) -> Result<Child> {
    let binary = std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        // the file was replaced or deleted since we started; the kernel still has it
        .unwrap_or_else(|| "/proc/self/exe".into());
    let verified = serde_json::to_string(attempt.verified)
        .map_err(|e| EngineError::system(format!("cannot encode the model's identity: {e}")))?;
    let supervisor = std::process::id();
    let mut command = Command::new(binary);
    command.arg("exec").arg("--plan");
    match plan_of_one_cell(attempt) {
        Ok(file) => command.arg("-").stdin(file),
        // kernels before 3.17 have no such files
        Err(_) => command.arg(attempt.plan_path).stdin(Stdio::null()),
    };
    command
        .args(["--cell", &attempt.cell.cell.to_string()])
        .args(["--attempt", &attempt.attempt.to_string()])
        .args(["--eviction", attempt.eviction])
        .args(["--verified", &verified])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(bandwidth) = attempt.bandwidth {
        let json = serde_json::to_string(&bandwidth)
            .map_err(|e| EngineError::system(format!("cannot encode the memory's bandwidth: {e}")))?;
        command.args(["--bandwidth", &json]);
    }
    // SAFETY: between fork and exec only the async-signal-safe calls prctl, getppid and _exit are made
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // the supervisor may have died before the line above
            if libc::getppid() as u32 != supervisor {
                libc::_exit(125);
            }
            Ok(())
        });
    }
    command.args(["--started-us", &clock::monotonic_us().to_string()]);
    command.spawn().map_err(|e| EngineError::io("cannot start the cell's process", &e))
}

/// The plan with this cell alone, in a file without a name: what the child reads counts as load time, so it must not grow
/// with the length of the plan, and the plan's own file may be gone or another by now.
fn plan_of_one_cell(attempt: &Attempt<'_>) -> std::io::Result<File> {
    // SAFETY: the name is a valid C string; the call returns a new descriptor or -1
    let descriptor = unsafe { libc::memfd_create(c"cell-plan".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, open, and owned by nobody else
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    let plan = DevicePlan {
        protocol_version: attempt.plan.protocol_version,
        run: attempt.plan.run.clone(),
        device: attempt.plan.device.clone(),
        telemetry_period_ms: attempt.plan.telemetry_period_ms,
        retries_max: attempt.plan.retries_max,
        lease_token: attempt.plan.lease_token,
        cells: vec![attempt.cell.clone()],
    };
    file.write_all(&serde_json::to_vec(&plan)?)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Kills the child's whole process group. The child has not been reaped, so its number still means it.
fn kill(process: &Child) {
    // SAFETY: kill touches no memory; the group is the child's own
    unsafe { libc::kill(-(process.id() as i32), libc::SIGKILL) };
}

fn watch(
    attempt: &mut Attempt<'_>,
    journal: &mut Journal,
    observer: &mut Observer,
    process: &mut Child,
    listener: &mut Listener,
    begun: Instant,
) -> Result<ExitStatus> {
    let cell = attempt.cell;
    let budget = |ms: u64| Duration::from_millis(ms);
    let mut telemetry_due = attempt.telemetry_period.map(|_| begun);
    loop {
        // asked before the pipes are drained: what the child wrote before it ended is then surely in them
        let status = process.try_wait().map_err(|e| EngineError::io("cannot wait for the cell's process", &e))?;
        listener.hear(attempt, journal)?;
        if let Some(status) = status {
            return Ok(status);
        }
        let now = Instant::now();
        let (phase, budget_ms, deadline) = match listener.ready {
            None => ("load", attempt.load_timeout_ms, begun + budget(attempt.load_timeout_ms)),
            Some(ready) => ("cell", cell.cell_timeout_ms, ready + budget(cell.cell_timeout_ms)),
        };
        if listener.ours.is_none() && (attempt.must_stop)() {
            listener.ours = Some(Ours::Interrupted);
        }
        if listener.ours.is_none() && now >= deadline {
            listener.ours = Some(Ours::Timeout { phase, budget_ms });
            let said = match phase {
                "load" => slow_load(budget_ms, attempt.model),
                _ => slow_cell(budget_ms, cell),
            };
            listener.stderr.extend_from_slice(said.as_bytes());
        }
        if listener.ours.is_some() {
            kill(process);
        }
        if let (Some(due), Some(period)) = (telemetry_due, attempt.telemetry_period)
            && now >= due
            && listener.ours.is_none()
        {
            journal.append(Record::Telemetry(Box::new(observer.read(cell.cell, process.id()))))?;
            // a reading that came late does not make the next ones come in a bunch
            telemetry_due = Some((due + period).max(Instant::now()));
        }
        let until = telemetry_due.map_or(deadline, |due| due.min(deadline));
        listener.pause(until.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
    }
}

/// Both pipes of a child, and what has been heard from them.
struct Listener {
    stdout: Option<ChildStdout>,
    stderr_pipe: Option<ChildStderr>,
    line: Vec<u8>,
    stderr: Vec<u8>,
    /// When the proof came.
    ready: Option<Instant>,
    proof: Option<Box<SelfProof>>,
    has_spoiled_samples: bool,
    /// Why we kill it, once we do.
    ours: Option<Ours>,
}

impl Listener {
    fn new(process: &mut Child) -> Result<Self> {
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
            ours: None,
        })
    }

    /// Takes everything that is in the pipes now.
    fn hear(&mut self, attempt: &Attempt<'_>, journal: &mut Journal) -> Result<()> {
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
                let lasting = Validity::Invalid(crate::protocol::ReasonCode::GoldenTokensDiffer);
                self.has_spoiled_samples |= sample.validity != Validity::Valid && sample.validity != lasting;
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
    fn pause(&self, longest: Duration) {
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
    use super::*;
    use crate::protocol::{Arm, EngineConfig, ModelRef, PROTOCOL_VERSION, SampleRecord};
    use std::os::fd::OwnedFd;

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
