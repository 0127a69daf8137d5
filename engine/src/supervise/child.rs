//! One child process: spawned, listened to, observed, and ended when it has to be.

use super::budget::{ModelReading, slow_cell, slow_load};
use super::cause::{OomWatch, Ours, exit_cause};
use super::conditions::Conditions;
use super::listener::{Listener, STDERR_BYTES_MAX};
use crate::clock;
use crate::error::{EngineError, Result};
use crate::execute::FileIdentity;
use crate::journal::Journal;
use crate::protocol::{CellPlan, DevicePlan, ExitCause, ReasonCode, Record, SelfProof};
use crate::roofline::ReadBandwidth;
use crate::telemetry::Observer;
use crate::text;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The longest pause before the supervisor looks around again: the bound on how late a signal or an exit is noticed
/// when no descriptor tells of it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

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
    /// What the device did meanwhile that speaks against the attempt.
    pub conditions: Vec<ReasonCode>,
}

impl Ended {
    /// The end of an attempt whose child was never spawned.
    pub(super) fn without_child(exit: ExitCause) -> Self {
        let (stderr_tail, proof, conditions) = (String::new(), None, Vec::new());
        Self { exit, stderr_tail, duration_ms: 0, proof, has_spoiled_samples: false, conditions }
    }
}

/// Runs one attempt to its end, whatever the end is. Errors are those of the journal and of the spawn; the child is
/// dead and reaped when this returns.
pub(super) fn run(attempt: &mut Attempt<'_>, journal: &mut Journal, observer: &mut Observer) -> Result<Ended> {
    let oom = OomWatch::begin();
    let begun = Instant::now();
    let mut process = spawn(attempt)?;
    let pid = process.id();
    let mut listener = Listener::new(&mut process)?;
    let mut watching = Watching {
        conditions: Conditions::new(&attempt.plan.ready, attempt.cell.about_heat),
        due: attempt.telemetry_period.map(|_| begun),
        was_ready: false,
        has_ended: false,
        is_alive: true,
    };
    let watched = watch(attempt, journal, observer, &mut process, &mut listener, &mut watching, begun);
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
        conditions: watching.conditions.reasons(observer.clusters(), listener.proof.as_deref()),
        proof: listener.proof,
        has_spoiled_samples: listener.has_spoiled_samples,
    })
}

/// The readings of one attempt.
struct Watching {
    conditions: Conditions,
    /// When the next reading is due; `None` without telemetry.
    due: Option<Instant>,
    /// The proof had come when this was last looked at.
    was_ready: bool,
    /// The reading at the end was taken.
    has_ended: bool,
    /// The child had not ended when this was last looked at.
    is_alive: bool,
}

impl Watching {
    /// Takes the reading that is due now, if any: at once when the proof comes, so that readings tell loading and
    /// measuring apart; when the child has done its steps and still is; and from time to time.
    fn look(
        &mut self,
        attempt: &Attempt<'_>,
        journal: &mut Journal,
        observer: &mut Observer,
        listener: &mut Listener,
        pid: u32,
    ) -> Result<()> {
        let (Some(due), Some(period)) = (self.due, attempt.telemetry_period) else { return Ok(()) };
        let is_ready = listener.ready.is_some();
        let at_end = listener.at_end.take().filter(|_| !self.has_ended);
        let now = Instant::now();
        // one that is gone holds no memory any more, and one that we kill tells nothing new
        let may_read = self.is_alive && !self.has_ended && listener.ours.is_none();
        let is_due = now >= due || (is_ready && !self.was_ready);
        if at_end.is_none() && !(may_read && is_due) {
            return Ok(());
        }
        let mut reading = observer.read(attempt.cell.cell, pid);
        if let Some(told) = at_end {
            // by now it may have let go of its memory
            reading.at_end = true;
            reading.memory = told.memory;
            reading.involuntary_switches = told.involuntary_switches;
            self.has_ended = true;
        }
        self.conditions.take(&reading, clock::monotonic_us(), self.was_ready);
        self.was_ready = is_ready;
        // a reading that came late does not make the next ones come in a bunch
        self.due = Some(if now >= due { (due + period).max(Instant::now()) } else { now + period });
        journal.append(Record::Telemetry(Box::new(reading)))
    }
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
        ready: attempt.plan.ready.clone(),
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
    watching: &mut Watching,
    begun: Instant,
) -> Result<ExitStatus> {
    let cell = attempt.cell;
    let budget = |ms: u64| Duration::from_millis(ms);
    loop {
        // asked before the pipes are drained: what the child wrote before it ended is then surely in them
        watching.is_alive = !has_ended(process)?;
        listener.hear(attempt, journal)?;
        watching.look(attempt, journal, observer, listener, process.id())?;
        if !watching.is_alive {
            return process.wait().map_err(|e| EngineError::io("cannot wait for the cell's process", &e));
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
        let until = watching.due.map_or(deadline, |due| due.min(deadline));
        listener.pause(until.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
    }
}

/// Whether the child has ended. It is not reaped yet, so that its number still means it and its CPU time can be read.
fn has_ended(process: &Child) -> Result<bool> {
    loop {
        // SAFETY: siginfo is plain data that the call fills in; without an end it stays zero
        let (result, ended_pid) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            (libc::waitid(libc::P_PID, process.id(), &mut info, flags), info.si_pid())
        };
        if result == 0 {
            return Ok(ended_pid != 0);
        }
        let e = std::io::Error::last_os_error();
        if e.kind() != std::io::ErrorKind::Interrupted {
            return Err(EngineError::io("cannot wait for the cell's process", &e));
        }
    }
}
