//! How a child ended, and who ended it, as far as that can be shown.

use super::signal;
use crate::clock;
use crate::error::EngineError;
use crate::protocol::ExitCause;
use crate::text;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why farmhand killed a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ours {
    /// It ran past a budget.
    Timeout { phase: &'static str, budget_ms: u64 },
    /// farmhand was asked to stop, or lost its lease.
    Interrupted,
    /// It broke the protocol.
    Garbled(String),
}

/// The cause in the words of the journal. `ours` says why we killed it, if we did; a child that had ended in good order
/// before the kill reached it is still done.
pub(super) fn exit_cause(status: ExitStatus, ours: Option<Ours>, stderr: &str, oom: &OomWatch, pid: u32) -> ExitCause {
    match (status.code(), ours) {
        (Some(0), None | Some(Ours::Timeout { .. } | Ours::Interrupted)) => return ExitCause::Done,
        (_, Some(Ours::Timeout { phase, budget_ms })) => {
            return ExitCause::Timeout { phase: phase.to_owned(), budget_ms };
        }
        (_, Some(Ours::Interrupted)) => return ExitCause::Interrupted,
        (code, Some(Ours::Garbled(what))) => return ExitCause::Failed { status: code.unwrap_or(-1), what },
        (Some(status), None) => return ExitCause::Failed { status, what: first_reason(stderr) },
        (None, None) => {}
    }
    match status.signal() {
        Some(libc::SIGKILL) => ExitCause::Killed { by: oom.who_killed(pid).to_owned() },
        Some(number) => ExitCause::Crash { signal: signal::name(number) },
        None => ExitCause::Crash { signal: "unknown".into() },
    }
}

/// The line that begins with `error: `, else the last line.
fn first_reason(stderr: &str) -> String {
    let reason = stderr.lines().find_map(|line| line.strip_prefix("error: "));
    let last = || stderr.lines().rfind(|line| !line.trim().is_empty());
    text::escaped(reason.or_else(last).unwrap_or("no reason given").as_bytes(), 500)
}

/// An error as the cause of a cell that could not even be started.
pub(super) fn refused(error: &EngineError) -> ExitCause {
    let what = match error.place() {
        Some(place) => format!("{} ({place})", error.what()),
        None => error.what().to_owned(),
    };
    ExitCause::Failed { status: i32::from(error.exit_code()), what: text::escaped(what.as_bytes(), 500) }
}

/// Watches for the kernel's memory killer from before a spawn until after the exit. Only two things count as evidence: a
/// line of the kernel's log that names the child's pid, and a rise of the kill counter of the child's own cgroup.
#[derive(Debug)]
pub(super) struct OomWatch {
    begun_us: u64,
    counters: Vec<(PathBuf, u64)>,
}

impl OomWatch {
    pub(super) fn begin() -> Self {
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let counters = counter_files(&cgroups).into_iter().filter_map(|p| kills(&p).map(|n| (p, n))).collect();
        Self { begun_us: clock::monotonic_us(), counters }
    }

    /// `oom-kernel`, `oom-lmkd` or `unknown`.
    fn who_killed(&self, pid: u32) -> &'static str {
        if let Some(who) = kernel_log().iter().find_map(|line| named_in(line, pid, self.begun_us)) {
            return who;
        }
        let has_risen = |(path, before): &(PathBuf, u64)| kills(path).is_some_and(|now| now > *before);
        if self.counters.iter().any(has_risen) { "oom-kernel" } else { "unknown" }
    }
}

/// Files that count the kills of this process's cgroup: version 2 (`0::/path`) and version 1 (`N:memory:/path`).
fn counter_files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if path.split('/').any(|part| part == "..") {
            continue;
        }
        if controllers.is_empty() {
            files.push(format!("/sys/fs/cgroup{path}/memory.events").into());
            files.push(format!("/sys/fs/cgroup/unified{path}/memory.events").into());
        } else if controllers.split(',').any(|c| c == "memory") {
            files.push(format!("/sys/fs/cgroup/memory{path}/memory.oom_control").into());
        }
    }
    files
}

fn kills(path: &PathBuf) -> Option<u64> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The kernel's log, where this process may read it.
fn kernel_log() -> Vec<String> {
    const RECORDS_MAX: usize = 200_000;
    let mut lines = Vec::new();
    let Ok(mut log) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg") else {
        return lines;
    };
    let mut record = [0u8; 8192];
    for _ in 0..RECORDS_MAX {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(n) => {
                let line = String::from_utf8_lossy(&record[..n]);
                if line.contains("Kill") {
                    lines.push(line.into_owned());
                }
            }
            // the record was overwritten while we read: the next one follows
            Err(e) if e.raw_os_error() == Some(libc::EPIPE) || e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines
}

/// Who the record `LEVEL,SEQ,TIME_US,FLAGS;TEXT` says killed `pid` after `since_us`. The kernel's log clock and the
/// monotonic clock may differ by a little.
fn named_in(record: &str, pid: u32, since_us: u64) -> Option<&'static str> {
    const SLACK_US: u64 = 1_000_000;
    let (head, line) = record.split_once(';')?;
    let time_us: u64 = head.split(',').nth(2)?.parse().ok()?;
    if time_us + SLACK_US < since_us {
        return None;
    }
    let words_after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest);
    let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next().and_then(|d| d.parse::<u32>().ok());
    if words_after("Killed process ").and_then(number) == Some(pid) {
        return Some("oom-kernel");
    }
    let is_lmkd = line.contains("lowmemorykiller: Kill") || line.contains("lmkd: Kill");
    (is_lmkd && line.contains(&format!("({pid})"))).then_some("oom-lmkd")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> OomWatch {
        OomWatch { begun_us: u64::MAX / 2, counters: vec![] }
    }

    fn cause(raw: i32, ours: Option<Ours>) -> ExitCause {
        exit_cause(ExitStatus::from_raw(raw), ours, "talk\nerror: no such tensor (m.gguf)\n\nhint: x\n", &watch(), 1)
    }

    #[test]
    fn every_way_to_end_has_its_own_name() {
        assert_eq!(cause(0, None), ExitCause::Done);
        assert_eq!(cause(2 << 8, None), ExitCause::Failed { status: 2, what: "no such tensor (m.gguf)".into() });
        assert_eq!(cause(libc::SIGSEGV, None), ExitCause::Crash { signal: "SIGSEGV".into() });
        assert_eq!(cause(libc::SIGKILL, None), ExitCause::Killed { by: "unknown".into() });
        assert_eq!(cause(libc::SIGKILL, Some(Ours::Interrupted)), ExitCause::Interrupted);
        let timeout = Ours::Timeout { phase: "load", budget_ms: 7 };
        assert_eq!(
            cause(libc::SIGKILL, Some(timeout.clone())),
            ExitCause::Timeout { phase: "load".into(), budget_ms: 7 }
        );
        assert_eq!(cause(0, Some(timeout)), ExitCause::Done, "it was done before the kill reached it");
    }

    #[test]
    fn only_a_line_that_names_the_pid_is_evidence() {
        let line = "3,1234,5000000,-;Memory cgroup out of memory: Killed process 4242 (farmhand) total-vm:1kB";
        assert_eq!(named_in(line, 4242, 4_500_000), Some("oom-kernel"));
        assert_eq!(named_in(line, 424, 4_500_000), None);
        assert_eq!(named_in(line, 4242, 9_000_000), None, "an older process of the same pid");
        let lmkd = "6,1,5000000,-;lmkd: Kill 'farmhand' (77), uid 2000, oom_score_adj 900";
        assert_eq!(named_in(lmkd, 77, 0), Some("oom-lmkd"));
        assert_eq!(named_in(lmkd, 7, 0), None);
        assert_eq!(named_in("no record", 7, 0), None);
    }

    #[test]
    fn both_kinds_of_cgroup_are_watched() {
        let files = counter_files("9:name=systemd:/\n4:memory:/lab/a\n0::/user.slice\n7:cpu,memory:/../x\n");
        let files: Vec<&str> = files.iter().map(|f| f.to_str().unwrap()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/lab/a/memory.oom_control",
                "/sys/fs/cgroup/user.slice/memory.events",
                "/sys/fs/cgroup/unified/user.slice/memory.events"
            ]
        );
    }
}
