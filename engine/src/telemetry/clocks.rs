//! Clocks of the clusters: what they are now, and their means since the reading before.

use crate::protocol::{ClusterClock, CoreCluster};
use crate::tree::Tree;
use std::collections::BTreeMap;

/// Distinct clocks of one cluster beyond this number are no table that a kernel writes.
const CLOCKS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Clocks {
    clusters: Vec<Cluster>,
}

#[derive(Debug)]
struct Cluster {
    /// Cores that were online when the device was probed; the first one names the cluster.
    cores: Vec<u32>,
    /// Whether the kernel adds up time by clock here.
    has_times: bool,
    /// Time at each clock so far, in units of 10 ms.
    before: Option<BTreeMap<u64, u64>>,
}

impl Clocks {
    pub(super) fn new(tree: &Tree, clusters: &[CoreCluster]) -> Self {
        let cluster = |c: &CoreCluster| {
            let cores: Vec<u32> = c.cores.iter().copied().filter(|core| !c.offline.contains(core)).collect();
            let mut cluster = Cluster { cores, has_times: false, before: None };
            cluster.has_times = cluster.times(tree).is_some();
            (!cluster.cores.is_empty()).then_some(cluster)
        };
        Self { clusters: clusters.iter().filter_map(cluster).collect() }
    }

    /// The clock of each cluster that tells one.
    pub(super) fn now(&self, tree: &Tree) -> Vec<ClusterClock> {
        let mut cpuinfo = None;
        let clock = |cluster: &Cluster| {
            let of_cpufreq = |core: &u32| tree.number::<u64>(&path(*core, "scaling_cur_freq"));
            let core = *cluster.cores.first()?;
            let clock_khz = cluster.cores.iter().find_map(of_cpufreq).or_else(|| {
                let text = cpuinfo.get_or_insert_with(|| tree.lines("proc/cpuinfo").unwrap_or_default());
                cpuinfo_clock_khz(text, core)
            })?;
            Some(ClusterClock { core, clock_khz })
        };
        self.clusters.iter().filter_map(clock).collect()
    }

    /// The mean clock of each cluster since this was last called; nothing at the first call.
    pub(super) fn means(&mut self, tree: &Tree) -> Vec<ClusterClock> {
        let mean = |cluster: &mut Cluster| {
            let now = cluster.has_times.then(|| cluster.times(tree)).flatten()?;
            let clock_khz = mean_khz(cluster.before.as_ref(), &now);
            cluster.before = Some(now);
            Some(ClusterClock { core: *cluster.cores.first()?, clock_khz: clock_khz? })
        };
        self.clusters.iter_mut().filter_map(mean).collect()
    }
}

impl Cluster {
    fn times(&self, tree: &Tree) -> Option<BTreeMap<u64, u64>> {
        self.cores.iter().find_map(|core| time_in_state(&tree.lines(&path(*core, "stats/time_in_state"))?))
    }
}

/// A core that went offline has no such folder any more: then another of its cluster tells the same.
fn path(core: u32, file: &str) -> String {
    format!("sys/devices/system/cpu/cpu{core}/cpufreq/{file}")
}

/// Lines of clock (kHz) and time (10 ms).
fn time_in_state(text: &str) -> Option<BTreeMap<u64, u64>> {
    let line = |line: &str| {
        let (clock, time) = line.split_once(' ')?;
        Some((clock.trim().parse().ok()?, time.trim().parse().ok()?))
    };
    let times: BTreeMap<u64, u64> = text.lines().take(CLOCKS_MAX).filter_map(line).collect();
    (!times.is_empty()).then_some(times)
}

/// `None` when no time has passed, or less than none: the kernel begins anew when a cluster has been offline.
fn mean_khz(before: Option<&BTreeMap<u64, u64>>, now: &BTreeMap<u64, u64>) -> Option<u64> {
    let before = before?;
    let (mut weighted, mut time) = (0u128, 0u128);
    for (clock, total) in now {
        let passed = total.checked_sub(before.get(clock).copied().unwrap_or(0))?;
        weighted += u128::from(*clock) * u128::from(passed);
        time += u128::from(passed);
    }
    u64::try_from(weighted.checked_div(time)?).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_clock_weighs_each_clock_by_its_time() {
        let times = |text: &str| time_in_state(text).unwrap();
        let before = times("300000 1000\n1800000 50\n2400000 0\n");
        let now = times("300000 1000\n1800000 100\n2400000 150\n");
        assert_eq!(mean_khz(Some(&before), &now), Some((1_800_000 * 50 + 2_400_000 * 150) / 200));
        assert_eq!(mean_khz(None, &now), None, "the first reading");
        assert_eq!(mean_khz(Some(&now), &now), None, "no time has passed");
        assert_eq!(mean_khz(Some(&now), &before), None, "the kernel began anew");
        assert!(time_in_state("").is_none() && time_in_state("no table").is_none());
    }
}
