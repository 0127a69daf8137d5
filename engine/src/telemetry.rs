//! State of the device while a cell runs: temperatures, clocks, memory, load by others. One reading costs a few dozen
//! small files, so that observing does not disturb what is observed.

use crate::clock;
use crate::probe::{Tree, hottest_by_type, read_sensor};
use crate::protocol::{ClusterClock, Fingerprint, Finite, MemoryParts, Reading, Telemetry};
use crate::tree::kilobytes;
use std::time::Instant;

/// Sensors beyond this number are not read; the rest of the fingerprint's trusted ones are left out.
const SENSORS_MAX: usize = 64;
/// Reading `smaps_rollup` walks the page tables of the cell's process, which takes long for a large model. It is read
/// again only after this many times what it last cost: at most 0.5 % of one core.
const ROLLUP_REST_FACTOR: u32 = 200;

/// Reads the state of one device, again and again.
#[derive(Debug)]
pub struct Observer {
    device: Tree,
    processes: Tree,
    sensors: Vec<(String, String)>,
    first_cores: Vec<u32>,
    before: Option<CpuTimes>,
    rollup_not_before: Option<Instant>,
}

/// CPU time used so far, in clock ticks.
#[derive(Debug, Clone, Copy)]
struct CpuTimes {
    pid: u32,
    at_us: u64,
    everybody: u64,
    process: u64,
}

impl Observer {
    /// `device` holds temperatures, clocks and `meminfo`; `processes` holds `/proc` with the cell's process, which is
    /// the running system's even when the device's files are made ones. Only sensors that the fingerprint trusts are
    /// read.
    pub fn new(device: Tree, processes: Tree, fingerprint: &Fingerprint) -> Self {
        let trusted = fingerprint.sensors.iter().filter(|s| s.distrust.is_none()).take(SENSORS_MAX);
        let first_online =
            fingerprint.clusters.iter().filter_map(|c| c.cores.iter().copied().find(|core| !c.offline.contains(core)));
        Self {
            device,
            processes,
            sensors: trusted.map(|s| (s.sensor.clone(), s.path.clone())).collect(),
            first_cores: first_online.collect(),
            before: None,
            rollup_not_before: None,
        }
    }

    /// One reading while process `pid` works on `cell`.
    pub fn read(&mut self, cell: u32, pid: u32) -> Telemetry {
        Telemetry {
            cell,
            temperatures: self.temperatures(),
            clocks: self.clocks(),
            memory: self.memory(pid),
            mem_available_bytes: self.device.lines("proc/meminfo").and_then(|t| kilobytes(&t, "MemAvailable")),
            foreign_cpu_percent: self.foreign_cpu_percent(pid),
        }
    }

    /// The hottest sensor of each type; a sensor that goes bad later is left out of that reading.
    fn temperatures(&self) -> Vec<Reading> {
        let good = self.sensors.iter().filter_map(|(kind, path)| {
            read_sensor(&self.device, path, kind).ok().map(|celsius| (kind.clone(), celsius))
        });
        hottest_by_type(good).into_iter().map(|(sensor, celsius)| Reading { sensor, celsius }).collect()
    }

    fn clocks(&self) -> Vec<ClusterClock> {
        let mut cpuinfo = None;
        let clock = |&core: &u32| {
            let path = format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq");
            let clock_khz = self.device.number::<u64>(&path).or_else(|| {
                let text = cpuinfo.get_or_insert_with(|| self.device.lines("proc/cpuinfo").unwrap_or_default());
                cpuinfo_clock_khz(text, core)
            })?;
            Some(ClusterClock { core, clock_khz })
        };
        self.first_cores.iter().filter_map(clock).collect()
    }

    fn memory(&mut self, pid: u32) -> MemoryParts {
        let begun = Instant::now();
        if self.rollup_not_before.is_some_and(|moment| begun < moment) {
            return memory_parts(&self.processes, pid, false);
        }
        let parts = memory_parts(&self.processes, pid, true);
        self.rollup_not_before = Some(Instant::now() + begun.elapsed() * ROLLUP_REST_FACTOR);
        parts
    }

    /// Ticks of everybody less those of the cell's process since the last reading of the same process; `None` for the
    /// first one.
    fn foreign_cpu_percent(&mut self, pid: u32) -> Option<Finite> {
        let now = CpuTimes {
            pid,
            at_us: clock::monotonic_us(),
            everybody: busy_ticks(&self.processes.lines("proc/stat")?)?,
            process: process_ticks(&self.processes.lines(&format!("proc/{pid}/stat"))?)?,
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

/// `cpu MHz` of one processor, which x86 kernels give where there is no cpufreq.
fn cpuinfo_clock_khz(cpuinfo: &str, core: u32) -> Option<u64> {
    let of_core = |block: &str| {
        let field = |name: &str| {
            block.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.trim() == name).map(|(_, v)| v.trim())
        };
        if field("processor")?.parse() != Ok(core) {
            return None;
        }
        let mhz = field("cpu MHz")?.parse::<f64>().ok().filter(|mhz| (1.0..1e6).contains(mhz))?;
        Some((mhz * 1_000.0) as u64)
    };
    cpuinfo.split("\n\n").find_map(of_core)
}

/// Memory of a process: from `smaps_rollup` when `rollup` asks for it and the kernel lets us, else from `status`.
/// The peak always comes from `status`, which alone has it. A process that is gone has no figures.
pub fn memory_parts(tree: &Tree, pid: u32, rollup: bool) -> MemoryParts {
    let status = tree.lines(&format!("proc/{pid}/status")).unwrap_or_default();
    let of_status = |name: &str| kilobytes(&status, name);
    let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b.unwrap_or(0));
    let from_status = MemoryParts {
        source: "status".into(),
        rss_bytes: of_status("VmRSS"),
        peak_rss_bytes: of_status("VmHWM"),
        pss_bytes: None,
        anon_bytes: of_status("RssAnon"),
        file_bytes: sum(of_status("RssFile"), of_status("RssShmem")),
        swap_bytes: of_status("VmSwap"),
    };
    let text = if rollup { tree.lines(&format!("proc/{pid}/smaps_rollup")).unwrap_or_default() } else { String::new() };
    let of_rollup = |name: &str| kilobytes(&text, name);
    let Some(rss) = of_rollup("Rss") else { return from_status };
    let anon = of_rollup("Anonymous");
    MemoryParts {
        source: "smaps_rollup".into(),
        rss_bytes: Some(rss),
        pss_bytes: of_rollup("Pss"),
        anon_bytes: anon,
        file_bytes: anon.map(|anon| rss.saturating_sub(anon)),
        swap_bytes: of_rollup("Swap"),
        ..from_status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let tree = Tree::new(folder.path());
        (folder, tree)
    }

    const STATUS: &str = "Name:\tx\nVmHWM:\t  9000 kB\nVmRSS:\t  8000 kB\nRssAnon:\t 5000 kB\nRssFile:\t 2900 kB\nRssShmem:\t 100 kB\nVmSwap:\t 7 kB\n";

    #[test]
    fn memory_names_its_source_and_keeps_the_peak() {
        let rollup =
            "5581-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 8100 kB\nPss: 6000 kB\nAnonymous: 5100 kB\nSwap: 3 kB\n";
        let (_keep, both) = tree(&[("proc/7/status", STATUS), ("proc/7/smaps_rollup", rollup)]);
        let parts = memory_parts(&both, 7, true);
        assert_eq!(parts.source, "smaps_rollup");
        assert_eq!(parts.pss_bytes, Some(6000 * 1024));
        assert_eq!(parts.file_bytes, Some(3000 * 1024));
        assert_eq!(parts.peak_rss_bytes, Some(9000 * 1024));
        let (_keep, status_only) = tree(&[("proc/7/status", STATUS)]);
        let parts = memory_parts(&status_only, 7, true);
        assert_eq!((parts.source.as_str(), parts.pss_bytes), ("status", None));
        assert_eq!(parts.file_bytes, Some(3000 * 1024));
        assert_eq!(memory_parts(&status_only, 8, true).rss_bytes, None, "a process that is gone");
    }

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
    fn clocks_come_from_cpufreq_else_from_cpuinfo() {
        let cpuinfo = "processor : 0\ncpu MHz : 2300.000\n\nprocessor : 4\ncpu MHz : 1800.5\n";
        let (_keep, tree) =
            tree(&[("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1416000\n"), ("proc/cpuinfo", cpuinfo)]);
        let mut fingerprint = Fingerprint::default();
        for (cores, offline) in [(vec![0, 1], vec![]), (vec![3, 4], vec![3]), (vec![7], vec![7])] {
            fingerprint.clusters.push(crate::protocol::CoreCluster { cores, offline, ..Default::default() });
        }
        let observer = Observer::new(tree.clone(), tree, &fingerprint);
        let clocks: Vec<(u32, u64)> = observer.clocks().iter().map(|c| (c.core, c.clock_khz)).collect();
        assert_eq!(clocks, [(0, 1_416_000), (4, 1_800_500)]);
    }

    #[test]
    fn only_trusted_sensors_are_read_and_the_hottest_of_a_type_counts() {
        let (_keep, tree) = tree(&[
            ("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n"),
            ("sys/class/thermal/thermal_zone0/temp", "48000\n"),
            ("sys/class/thermal/thermal_zone1/type", "cpu-thermal\n"),
            ("sys/class/thermal/thermal_zone1/temp", "51\n"),
            ("sys/class/thermal/thermal_zone2/type", "stuck\n"),
            ("sys/class/thermal/thermal_zone2/temp", "135000\n"),
        ]);
        let fingerprint = crate::probe::probe(&tree);
        let observer = Observer::new(tree.clone(), tree, &fingerprint);
        let readings = observer.temperatures();
        assert_eq!(readings.len(), 1);
        assert_eq!((readings[0].sensor.as_str(), readings[0].celsius.get()), ("cpu-thermal", 51.0));
    }

    #[test]
    fn a_reading_of_this_very_process_has_memory_and_foreign_load() {
        let mut observer = Observer::new(Tree::new("/"), Tree::new("/"), &Fingerprint::default());
        let pid = std::process::id();
        let first = observer.read(3, pid);
        assert_eq!(first.cell, 3);
        assert!(first.memory.rss_bytes.unwrap() > 0 && first.mem_available_bytes.unwrap() > 0);
        assert!(first.foreign_cpu_percent.is_none());
        std::thread::sleep(Duration::from_millis(20));
        assert!(observer.read(3, pid).foreign_cpu_percent.is_some());
    }
}
