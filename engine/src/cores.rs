//! Cores and how they form clusters: by capacity, else by highest clock, else by the kind of core.

use crate::protocol::CoreCluster;
use crate::tree::{Tree, core_list, fields};
use std::cmp::Reverse;
use std::collections::BTreeMap;

const CPU: &str = "sys/devices/system/cpu";

#[derive(Debug, Default, Clone)]
struct Core {
    number: u32,
    online: bool,
    capacity: Option<u32>,
    clock_max_khz: Option<u64>,
    governor: Option<String>,
    /// `MIDR_EL1` or another mark of the kind of core.
    kind: Option<u64>,
    /// Cores that share this one's clock, offline ones included.
    related: Vec<u32>,
}

/// The device's clusters, fastest first. Cores that are offline say little about themselves: they are put with the
/// cores whose clock they share, else with those of equal capacity, else into a cluster of their own.
pub fn clusters(tree: &Tree) -> Vec<CoreCluster> {
    let cores = cores(tree);
    let online: Vec<&Core> = cores.iter().filter(|c| c.online).collect();
    let all = |has: fn(&Core) -> bool| !online.is_empty() && online.iter().all(|c| has(c));
    let key: fn(&Core) -> Option<u64> = if all(|c| c.capacity.is_some()) {
        |c| c.capacity.map(u64::from)
    } else if all(|c| c.clock_max_khz.is_some()) {
        |c| c.clock_max_khz
    } else {
        |c| c.kind
    };
    let mut groups: BTreeMap<(bool, Option<u64>), Vec<&Core>> = BTreeMap::new();
    for core in &online {
        groups.entry((false, key(core))).or_default().push(core);
    }
    for core in cores.iter().filter(|c| !c.online) {
        let sibling = online.iter().find(|c| c.related.contains(&core.number));
        let equal = online.iter().find(|c| c.capacity.is_some() && c.capacity == core.capacity);
        let place = sibling.or(equal).map_or((true, core.capacity.map(u64::from)), |c| (false, key(c)));
        groups.entry(place).or_default().push(core);
    }
    let mut clusters: Vec<CoreCluster> = groups.into_values().map(|mut group| cluster(&mut group)).collect();
    clusters.sort_by_key(|c| (Reverse(c.capacity), Reverse(c.clock_max_khz), c.cores.first().copied()));
    clusters
}

fn cluster(group: &mut [&Core]) -> CoreCluster {
    group.sort_by_key(|c| c.number);
    CoreCluster {
        cores: group.iter().map(|c| c.number).collect(),
        capacity: group.iter().find_map(|c| c.capacity),
        clock_max_khz: group.iter().filter_map(|c| c.clock_max_khz).max(),
        governor: group.iter().find_map(|c| c.governor.clone()),
        offline: group.iter().filter(|c| !c.online).map(|c| c.number).collect(),
    }
}

fn cores(tree: &Tree) -> Vec<Core> {
    let cpuinfo = tree.lines("proc/cpuinfo").unwrap_or_default();
    let kinds = kinds(&cpuinfo);
    let list = |file: &str| tree.word(&format!("{CPU}/{file}")).map(|list| core_list(&list));
    let mut numbers = list("present").or_else(|| list("possible")).unwrap_or_default();
    if numbers.is_empty() {
        let of_folders = tree.names(CPU).iter().filter_map(|n| n.strip_prefix("cpu")?.parse().ok()).collect();
        numbers = of_folders;
    }
    if numbers.is_empty() {
        numbers = kinds.keys().copied().collect();
    }
    numbers.sort_unstable();
    // without the list every core counts as online
    let online = list("online").unwrap_or_else(|| numbers.clone());
    numbers
        .into_iter()
        .map(|number| {
            let path = |file: &str| format!("{CPU}/cpu{number}/{file}");
            Core {
                number,
                online: online.contains(&number),
                capacity: tree.number(&path("cpu_capacity")),
                clock_max_khz: tree.number(&path("cpufreq/cpuinfo_max_freq")),
                governor: tree.word(&path("cpufreq/scaling_governor")),
                kind: tree
                    .number(&path("regs/identification/midr_el1"))
                    .or_else(|| kinds.get(&number).copied().flatten()),
                related: tree.word(&path("cpufreq/related_cpus")).map(|l| core_list(&l)).unwrap_or_default(),
            }
        })
        .collect()
}

/// Of each processor in `/proc/cpuinfo`: implementer and part (Arm), packed into one number.
fn kinds(cpuinfo: &str) -> BTreeMap<u32, Option<u64>> {
    let mut kinds = BTreeMap::new();
    let mut number = None;
    let mut implementer = 0;
    for (key, value) in fields(cpuinfo) {
        let hex = || u64::from_str_radix(value.trim_start_matches("0x"), 16).ok();
        match key {
            "processor" => {
                number = value.parse::<u32>().ok().filter(|n| *n < 4096);
                if let Some(number) = number {
                    kinds.insert(number, None);
                }
            }
            "CPU implementer" => implementer = hex().unwrap_or(0),
            "CPU part" => {
                if let (Some(number), Some(part)) = (number, hex()) {
                    kinds.insert(number, Some((implementer & 0xff) << 16 | (part & 0xffff)));
                }
            }
            _ => {}
        }
    }
    kinds
}
