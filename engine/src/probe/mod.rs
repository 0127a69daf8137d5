//! The probe: asks a device what it is and changes nothing. Its answer is the fingerprint.
//!
//! Everything is read below a root, so that a copied or made tree can be probed. What is missing or odd is normal on
//! phones and boards: it leaves a field empty, it never fails the probe.

mod facts;
mod isa;
#[cfg(test)]
pub(crate) mod made;
mod sensors;

pub use crate::tree::Tree;

pub(crate) use facts::battery_folder;
pub(crate) use sensors::{hottest_by_type, read as read_sensor};

use crate::cores;
use crate::protocol::Fingerprint;
use crate::tree::{self, kilobytes};

/// The Rust target this binary was built for.
pub const TARGET: &str = env!("FARMHAND_TARGET");

/// Asks the device whose files lie below `tree`'s root.
pub fn probe(tree: &Tree) -> Fingerprint {
    let cpuinfo = tree.lines("proc/cpuinfo").unwrap_or_default();
    let clusters = cores::clusters(tree);
    let mut numbers: Vec<u32> = clusters.iter().flat_map(|c| c.cores.iter().copied()).collect();
    numbers.sort_unstable();
    Fingerprint {
        target: TARGET.to_owned(),
        soc: facts::soc(tree, &cpuinfo),
        product: facts::product(tree),
        os_build: facts::os_build(tree),
        kernel: facts::kernel(tree),
        page_size_bytes: page_size_bytes(),
        memory_bytes: kilobytes(&tree.lines("proc/meminfo").unwrap_or_default(), "MemTotal").unwrap_or(0),
        isa: isa::extensions(tree),
        caches: facts::caches(tree, numbers.iter().copied()),
        sensors: sensors::sensors(tree),
        power_modes: facts::power_modes(tree, &numbers),
        battery_percent: facts::battery_percent(tree),
        virtualisation: facts::virtualisation(tree, &cpuinfo),
        clusters,
    }
}

/// Page size of the running kernel, bytes: no file says it.
fn page_size_bytes() -> u64 {
    // SAFETY: sysconf takes a number and touches no memory of ours
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(0)
}

#[cfg(test)]
mod tests;
