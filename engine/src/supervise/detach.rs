//! `farmhand run --detach`: the run goes on when the link that started it is gone.

use super::Orders;
use crate::error::{EngineError, ErrorKind, Result};
use crate::execute::read_plan;
use crate::protocol::CALL_MARK;
use crate::text;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for the first record.
const FIRST_RECORD_WITHIN: Duration = Duration::from_secs(30);
/// The longest wait for the end of a run that refused.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A run that goes on by itself: what is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Detached {
    /// Its process number.
    pub pid: u32,
    /// Its journal, which has its first record by now.
    pub journal: PathBuf,
    /// What it says on stderr.
    pub log: PathBuf,
}

/// Starts the run in a session of its own, with no terminal, and returns once its first record is in the journal. When it
/// refuses, its error is ours.
pub fn detach(orders: &Orders) -> Result<Detached> {
    // what is wrong with the plan is said here, where somebody listens
    read_plan(&orders.plan)?;
    let mut log_name = orders.journal.as_os_str().to_owned();
    log_name.push(".log");
    let log = PathBuf::from(log_name);
    let log_file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&log)
        .map_err(|e| EngineError::io("cannot open the log", &e).at(log.display().to_string()))?;
    let log_begin = log_file.metadata().map_or(0, |m| m.len());
    let mut process = spawn(orders, log_file)?;
    if has_announced(&mut process) {
        return Ok(Detached { pid: process.id(), journal: orders.journal.clone(), log });
    }
    // it has closed its stdout without a word, so it ends or has ended; or it hangs, which the kill puts an end to
    let begun = Instant::now();
    while begun.elapsed() < END_WITHIN {
        if let Some(status) = process.try_wait().map_err(|e| EngineError::io("cannot wait for farmhand", &e))? {
            return Err(refusal(status.code(), &log, log_begin));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = process.kill();
    let _ = process.wait();
    Err(EngineError::system("farmhand wrote no record in time").at(log.display().to_string()))
}

/// Waits for the line that the run prints when its first record is on the medium. The journal itself would not do: it
/// may be that of a run which is already at work.
fn has_announced(process: &mut Child) -> bool {
    let Some(mut stdout) = process.stdout.take() else { return false };
    let begun = Instant::now();
    while begun.elapsed() < FIRST_RECORD_WITHIN {
        let mut pipe = libc::pollfd { fd: stdout.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `pipe` is one pollfd that outlives the call
        let ready = unsafe { libc::poll(&mut pipe, 1, 100) };
        if ready > 0 {
            let mut byte = [0u8; 1];
            return matches!(stdout.read(&mut byte), Ok(1));
        }
    }
    false
}

fn spawn(orders: &Orders, log: File) -> Result<Child> {
    let binary = std::env::current_exe().map_err(|e| EngineError::io("cannot find this binary", &e))?;
    let mut command = Command::new(binary);
    command.arg("run").arg("--plan").arg(&orders.plan).arg("--journal").arg(&orders.journal);
    command.arg("--announce").arg("--root").arg(&orders.root);
    if let Some(pid_file) = &orders.pid_file {
        command.arg("--pid-file").arg(pid_file);
    }
    if let Some(workdir) = &orders.workdir {
        command.arg("--workdir").arg(workdir);
    }
    // or else the harness would take it for something that a lost link has left at work
    command.env_remove(CALL_MARK);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // SAFETY: between fork and exec only setsid and signal are called, which are async-signal-safe
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 {
                return Err(std::io::Error::last_os_error());
            }
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    command.spawn().map_err(|e| EngineError::io("cannot start farmhand", &e))
}

/// The error of a run that ended before its first record, from its log.
fn refusal(code: Option<i32>, log: &Path, log_begin: u64) -> EngineError {
    let mut said = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let _ = file.seek(SeekFrom::Start(log_begin)).and_then(|_| file.take(4096).read_to_end(&mut said));
    }
    let said = text::escaped_tail(&said, 2_000);
    let kind = match code {
        Some(2) => ErrorKind::Usage,
        Some(6) => ErrorKind::Lease,
        _ => ErrorKind::System,
    };
    let (what, hint) = said.trim().split_once("\n\nhint: ").unwrap_or((said.trim(), ""));
    let error = EngineError::new(kind, what.strip_prefix("error: ").unwrap_or(what));
    if hint.is_empty() { error } else { error.hint(hint) }
}
