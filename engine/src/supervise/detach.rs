//! `farmhand run --detach`: the run goes on when the link that started it is gone.

use super::Orders;
use crate::error::{EngineError, ErrorKind, Result};
use crate::execute::read_plan;
use crate::text;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for the first record.
const FIRST_RECORD_WITHIN: Duration = Duration::from_secs(30);

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

/// Starts the run in a session of its own, with no terminal and no open descriptor of ours, and returns once its first
/// record is in the journal. When it refuses, its error is ours.
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
    let journal_begin = std::fs::metadata(&orders.journal).map_or(0, |m| m.len());
    let mut process = spawn(orders, log_file)?;
    let begun = Instant::now();
    loop {
        let ended = process.try_wait().map_err(|e| EngineError::io("cannot wait for farmhand", &e))?;
        // a short run may have ended already, and well
        if has_first_record(&orders.journal, journal_begin) {
            return Ok(Detached { pid: process.id(), journal: orders.journal.clone(), log });
        }
        if let Some(status) = ended {
            return Err(refusal(status.code(), &log, log_begin));
        }
        if begun.elapsed() >= FIRST_RECORD_WITHIN {
            let _ = process.kill();
            let _ = process.wait();
            return Err(EngineError::system("farmhand wrote no record in time").at(log.display().to_string()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn spawn(orders: &Orders, log: File) -> Result<Child> {
    let binary = std::env::current_exe().map_err(|e| EngineError::io("cannot find this binary", &e))?;
    let mut command = Command::new(binary);
    command.arg("run").arg("--plan").arg(&orders.plan).arg("--journal").arg(&orders.journal);
    command.arg("--root").arg(&orders.root);
    if let Some(pid_file) = &orders.pid_file {
        command.arg("--pid-file").arg(pid_file);
    }
    if let Some(workdir) = &orders.workdir {
        command.arg("--workdir").arg(workdir);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
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

/// Whether a whole line has been added behind what was there. The file may first have lost a torn end.
fn has_first_record(journal: &Path, begin: u64) -> bool {
    let added = |mut file: File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(begin))?;
        file.take(1 << 16).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes.contains(&b'\n'))
    };
    File::open(journal).and_then(added).unwrap_or(false)
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
