//! Which cores this process may use, which of them are fast, and which a request means.

use crate::cores::clusters;
use crate::error::{EngineError, Result};
use crate::protocol::{CoreCluster, CpuClusters, EngineConfig};
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Cores slower than this share of the fastest one's `cpu_capacity` are no performance cores.
const CAPACITY_SHARE_MIN: f64 = 0.6;
/// The same by highest clock, where the kernel gives no capacity; clocks differ less than speeds do.
const CLOCK_SHARE_MIN: f64 = 0.8;
/// Cores within this share of the fastest of their group are alike: some chips rate each core on its own.
const ALIKE_SHARE_MIN: f64 = 0.95;

/// The cores of a process, by speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Fastest first, equal ones by number.
    cores: Vec<usize>,
    /// How many of them are performance cores.
    performance: usize,
    /// Lengths of the groups of alike cores, in the order of `cores`.
    groups: Vec<usize>,
}

impl Topology {
    /// This device's, with the mask that the process had before the first pool pinned a thread: a pinned thread hands
    /// its mask down, and a second pool must not mistake that for the process's own.
    pub fn device() -> &'static Self {
        static DEVICE: OnceLock<Topology> = OnceLock::new();
        DEVICE.get_or_init(|| Self::new(&clusters(&Tree::new("/")), super::affinity::current_mask()))
    }

    /// The cores of `mask`; those that a cluster calls offline are left out. Cores of unknown speed make all alike.
    fn new(clusters: &[CoreCluster], mut mask: Vec<usize>) -> Self {
        let offline: Vec<u32> = clusters.iter().flat_map(|c| c.offline.iter().copied()).collect();
        mask.retain(|&core| !offline.iter().any(|&o| o as usize == core));
        mask.sort_unstable();
        let by_capacity = clusters.iter().filter(|c| c.offline.len() < c.cores.len()).all(|c| c.capacity.is_some());
        let (speed, share_min): (fn(&CoreCluster) -> Option<f64>, f64) = match by_capacity {
            true => (|c| c.capacity.map(f64::from), CAPACITY_SHARE_MIN),
            false => (|c| c.clock_max_khz.map(|khz| khz as f64), CLOCK_SHARE_MIN),
        };
        let of_core: BTreeMap<usize, f64> = clusters
            .iter()
            .flat_map(|c| c.cores.iter().map(move |&core| (core as usize, speed(c))))
            .filter_map(|(core, speed)| Some((core, speed?)))
            .collect();
        if !mask.iter().all(|core| of_core.contains_key(core)) {
            return Self { performance: mask.len().max(1), groups: vec![mask.len()], cores: mask };
        }
        // a stable sort keeps equal cores in the order of their numbers
        mask.sort_by(|a, b| of_core[b].total_cmp(&of_core[a]));
        let fastest = mask.first().map_or(0.0, |core| of_core[core]);
        let performance = mask.iter().filter(|core| of_core[core] >= share_min * fastest).count().max(1);
        let mut groups: Vec<usize> = Vec::new();
        let mut group_fastest = f64::INFINITY;
        for core in &mask {
            match groups.last_mut() {
                Some(len) if of_core[core] >= ALIKE_SHARE_MIN * group_fastest => *len += 1,
                _ => {
                    group_fastest = of_core[core];
                    groups.push(1);
                }
            }
        }
        Self { cores: mask, performance, groups }
    }

    /// Cores that the process may use, fastest first.
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// The cores that `which` names, fastest first. A usage error that shows the clusters when there are none.
    fn of(&self, which: CpuClusters) -> Result<&[usize]> {
        let first = self.groups.first().copied().unwrap_or(0);
        let last = if self.groups.len() > 1 { self.groups[self.groups.len() - 1] } else { 0 };
        let all = self.cores.len();
        let found = match which {
            CpuClusters::Big => &self.cores[..first],
            CpuClusters::Mid => &self.cores[first..all - last],
            CpuClusters::Little => &self.cores[all - last..],
            CpuClusters::All => &self.cores,
        };
        if !found.is_empty() {
            return Ok(found);
        }
        let mut rest = &self.cores[..];
        let mut shown = Vec::new();
        for &len in &self.groups {
            let (group, after) = rest.split_at(len);
            shown.push(group.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            rest = after;
        }
        let what = which.as_str();
        Err(EngineError::usage(format!("this process has no {what} cores; by speed they are: {}", shown.join(" | ")))
            .hint("name the cores themselves with --cpus, or leave the choice out"))
    }

    /// Where the workers of a configuration run, and how many serve a decode and a prefill. Usage errors for a list and
    /// clusters at once, for more workers than cores that were named, and for clusters that the device lacks.
    pub fn place(&self, config: &EngineConfig) -> Result<Placement> {
        let listed: Vec<usize>;
        let (cores, by_default) = match (config.cpus.is_empty(), config.cpu_clusters) {
            (false, Some(which)) => {
                let (list, which) = (&config.cpus, which.as_str());
                return Err(EngineError::usage(format!("cores {list} and clusters {which} are both asked for"))
                    .hint("give one of --cpus and --cpu-clusters"));
            }
            (false, None) => {
                listed = config.cpus.cpus().iter().map(|&core| core as usize).collect();
                (&listed[..], listed.len())
            }
            (true, Some(which)) => self.of(which).map(|cores| (cores, cores.len()))?,
            (true, None) => (&self.cores[..], self.performance),
        };
        let or = |given: u32, default: usize| if given == 0 { default } else { given as usize };
        let decode = or(config.threads, by_default);
        let prefill = or(config.threads_batch, decode);
        let workers = decode.max(prefill);
        let is_named = !config.cpus.is_empty() || config.cpu_clusters.is_some();
        if is_named && workers > cores.len() {
            return Err(EngineError::usage(format!("{workers} threads do not fit {} cores", cores.len()))
                .hint("name as many cores as threads, or ask for fewer threads"));
        }
        let core_of = |worker: usize| (workers <= cores.len()).then(|| cores[worker]);
        Ok(Placement { cores: (0..workers).map(core_of).collect(), decode, prefill })
    }
}

/// Where workers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Core of each worker; none where there are more workers than cores, so that none is pinned.
    pub cores: Vec<Option<usize>>,
    /// Workers that serve one token at a time.
    pub decode: usize,
    /// Workers that serve a prompt.
    pub prefill: usize,
}

#[cfg(test)]
mod tests;
