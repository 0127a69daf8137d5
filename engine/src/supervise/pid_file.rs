//! The pid file of a running farmhand, and how it is used to end it.
//!
//! A process number alone is worth nothing after a crash or a reboot, since it is given out again. The file also holds
//! the process's start time and the boot's name; only a process that fits all three is signalled.

use crate::clock;
use crate::error::{EngineError, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PID_FILE_BYTES_MAX: u64 = 16 * 1024;

/// A pid file that is ours; removed when dropped.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

/// Which process a pid file means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Identity {
    pid: u32,
    /// Clock ticks from boot to the process's start.
    start_ticks: u64,
    boot_id: String,
    journal: String,
}

/// What [`stop`] found and did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Stopped {
    /// The process number in the file; `None` when there is no file.
    pub pid: Option<u32>,
    /// Whether that farmhand was still running, and has been ended.
    pub was_running: bool,
}

impl PidFile {
    /// Writes the number of this process. Errors: [`ErrorKind::Lease`] when the file names a farmhand that still runs.
    pub fn take(path: &Path, journal: &Path) -> Result<Self> {
        let place = path.display().to_string();
        // a file that cannot be understood names nobody
        if let Ok(Some(other)) = read(path)
            && other.pid != std::process::id()
            && other.is_running()
        {
            return Err(EngineError::new(ErrorKind::Lease, format!("farmhand {} is already running", other.pid))
                .at(place)
                .hint("wait for it, or end it with `farmhand stop`"));
        }
        let pid = std::process::id();
        let identity = Identity {
            pid,
            start_ticks: start_ticks(pid).unwrap_or(0),
            boot_id: clock::boot_id(),
            journal: journal.display().to_string(),
        };
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let text = serde_json::to_string(&identity)
            .map_err(|e| EngineError::new(ErrorKind::Bug, format!("cannot encode the pid file: {e}")))?;
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| writeln!(file, "{text}"))
            .and_then(|()| std::fs::rename(&draft, path))
            .map_err(|e| EngineError::io("cannot write the pid file", &e).at(place))?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if matches!(read(&self.path), Ok(Some(identity)) if identity.pid == std::process::id()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Identity {
    fn is_running(&self) -> bool {
        self.boot_id == clock::boot_id() && start_ticks(self.pid) == Some(self.start_ticks)
    }
}

fn read(path: &Path) -> Result<Option<Identity>> {
    let place = || path.display().to_string();
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(PID_FILE_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(EngineError::io("cannot read the pid file", &e).at(place())),
    }
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|e| EngineError::protocol(format!("the pid file is not understood: {e}")).at(place()))
}

/// Start time of a process in clock ticks since boot; `None` when there is none of that number, or only what is left of
/// one that has ended. The name in brackets may hold anything, brackets too.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Asks the farmhand of `pid_file` to stop and waits until it has ended, at most `patience`. One that is not running any
/// more is no error.
pub fn stop(pid_file: &Path, patience: Duration) -> Result<Stopped> {
    let Some(identity) = read(pid_file)? else { return Ok(Stopped { pid: None, was_running: false }) };
    let pid = identity.pid;
    if !identity.is_running() {
        let _ = std::fs::remove_file(pid_file);
        return Ok(Stopped { pid: Some(pid), was_running: false });
    }
    let number = i32::try_from(pid).ok().filter(|pid| *pid > 1);
    let number = number.ok_or_else(|| EngineError::protocol(format!("the pid file names process {pid}")))?;
    // SAFETY: kill touches no memory; the process was identified by number, start time and boot just now
    if unsafe { libc::kill(number, libc::SIGTERM) } != 0 {
        let e = std::io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::ESRCH) {
            return Err(EngineError::io(format!("cannot signal farmhand {pid}"), &e));
        }
    }
    let begun = Instant::now();
    while identity.is_running() {
        if begun.elapsed() >= patience {
            return Err(EngineError::system(format!("farmhand {pid} did not end within {} ms", patience.as_millis()))
                .hint(format!("`kill -9 {pid}` ends it; its journal stays readable")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Stopped { pid: Some(pid), was_running: true })
}
