//! What others take of the processors, and how often the cell's threads had to give way.

use crate::clock;
use crate::protocol::Finite;
use crate::tree::{Tree, fields};

/// Threads of the cell beyond this number are not asked.
const THREADS_MAX: usize = 64;

/// CPU time of everybody but one process, between readings.
#[derive(Debug, Default)]
pub(super) struct ForeignLoad {
    before: Option<CpuTimes>,
}

/// CPU time used so far, in clock ticks.
#[derive(Debug, Clone, Copy)]
struct CpuTimes {
    pid: u32,
    at_us: u64,
    everybody: u64,
    process: u64,
}

impl ForeignLoad {
    /// Ticks of everybody less those of the cell's process since the last reading of the same process; `None` for the
    /// first one.
    pub(super) fn read(&mut self, processes: &Tree, pid: u32) -> Option<Finite> {
        let now = CpuTimes {
            pid,
            at_us: clock::monotonic_us(),
            everybody: busy_ticks(&processes.lines("proc/stat")?)?,
            process: process_ticks(&processes.lines(&format!("proc/{pid}/stat"))?)?,
        };
        let before = self.before.replace(now).filter(|b| b.pid == pid)?;
        foreign_percent(before, now, ticks_per_second())
    }
}

/// The two figures come from different files, so the child may seem to have used more than everybody: that is 0.
fn foreign_percent(before: CpuTimes, now: CpuTimes, ticks_per_second: f64) -> Option<Finite> {
    let elapsed_s = now.at_us.checked_sub(before.at_us).filter(|us| *us > 0)? as f64 / 1e6;
    let everybody = now.everybody.checked_sub(before.everybody)?;
    let foreign = everybody.saturating_sub(now.process.checked_sub(before.process)?);
    Finite::new(foreign as f64 / ticks_per_second / elapsed_s * 100.0)
}

fn ticks_per_second() -> f64 {
    // SAFETY: sysconf takes a number and touches no memory of ours
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

/// user, nice, system, irq, softirq and steal of the first line of `/proc/stat`. Idle and iowait are no work, guest
/// time is already in user; steal is work of somebody else.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().take(8).map(|t| t.parse().unwrap_or(0)).collect();
    let part = |i: usize| ticks.get(i).copied().unwrap_or(0);
    [0, 1, 2, 5, 6, 7].iter().try_fold(0u64, |sum, &i| sum.checked_add(part(i)))
}

/// utime and stime of `/proc/PID/stat`. The name in brackets may hold anything, brackets too.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    user.checked_add(system)
}

/// Involuntary context switches of the threads that the process has now, summed; `status` of the process itself tells
/// those of its first thread alone.
pub fn involuntary_switches(processes: &Tree, pid: u32) -> Option<u64> {
    let folder = format!("proc/{pid}/task");
    let of_thread = |thread: &String| {
        let status = processes.lines(&format!("{folder}/{thread}/status"))?;
        let (_, count) = fields(&status).find(|(key, _)| *key == "nonvoluntary_ctxt_switches")?;
        count.parse::<u64>().ok()
    };
    let counts: Vec<u64> = processes.names(&folder).iter().take(THREADS_MAX).filter_map(of_thread).collect();
    (!counts.is_empty()).then(|| counts.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::made::Made;

    #[test]
    fn foreign_load_is_everybody_less_the_cell() {
        let before = CpuTimes { pid: 1, at_us: 0, everybody: 1_000, process: 500 };
        let now = CpuTimes { pid: 1, at_us: 2_000_000, everybody: 1_300, process: 700 };
        assert_eq!(foreign_percent(before, now, 100.0).unwrap().get(), 50.0);
        let skewed = CpuTimes { everybody: 1_100, ..now };
        assert_eq!(foreign_percent(before, skewed, 100.0).unwrap().get(), 0.0);
        assert!(foreign_percent(now, before, 100.0).is_none(), "a clock that stands still or goes back");
    }

    #[test]
    fn ticks_are_read_from_the_right_columns() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 64\ncpu0 9 9 9"), Some(63));
        assert_eq!(process_ticks("12 (a) b) R 1 1 1 0 -1 0 0 0 0 0 70 30 5 5 20"), Some(100));
        assert_eq!(process_ticks("12 (x) R 1"), None);
        assert_eq!(busy_ticks("intr 5"), None);
    }

    #[test]
    fn switches_of_all_threads_count_and_not_those_of_the_first_alone() {
        let status = |n: u32| format!("Name:\tx\nvoluntary_ctxt_switches:\t900\nnonvoluntary_ctxt_switches:\t{n}\n");
        let made = Made::new().file("proc/7/task/7/status", status(3)).file("proc/7/task/9/status", status(40));
        assert_eq!(involuntary_switches(&made.tree(), 7), Some(43));
        assert_eq!(involuntary_switches(&made.tree(), 8), None);
    }
}
