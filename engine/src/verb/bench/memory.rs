//! What memory a test held, by our own account and by the kernel's.

use crate::model::Session;
use crate::proof::Facts;
use crate::protocol::{EngineConfig, HeldMemory};
use crate::tree::{Tree, kilobytes};
use serde::Serialize;

/// Anonymous memory beyond what is accounted for that raises no question: the program's own data, stacks, buffers of
/// input and output, small tensors, and what the allocator keeps for later.
pub const UNEXPLAINED_BYTES_MAX: u64 = 16 << 20;

/// Figures in bytes; those of the kernel are absent where it does not give them.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryFigures {
    pub weights_mapped_bytes: u64,
    pub weights_anonymous_bytes: u64,
    pub weights_locked_bytes: u64,
    /// Weights once more, in another layout. With mapped weights both may be resident: compare `rss_file_bytes`.
    pub repack_bytes: u64,
    pub kv_bytes: u64,
    pub scratch_bytes: u64,
    /// Metadata and tokenizer, about.
    pub heap_bytes: u64,
    /// `VmRSS`.
    pub rss_bytes: Option<u64>,
    /// `RssAnon`.
    pub rss_anon_bytes: Option<u64>,
    /// `RssFile`.
    pub rss_file_bytes: Option<u64>,
    /// `VmHWM`: of the process so far, tests before this one included.
    pub rss_peak_bytes: Option<u64>,
    /// `VmSwap`.
    pub swap_bytes: Option<u64>,
    /// `VmLck`.
    pub locked_bytes: Option<u64>,
    /// Anonymous memory, swapped or not, that no part above explains; may be up to [`UNEXPLAINED_BYTES_MAX`].
    pub unexplained_bytes: Option<u64>,
    /// [`UNEXPLAINED_BYTES_MAX`].
    pub unexplained_bytes_max: u64,
}

impl MemoryFigures {
    /// Of this process now, which holds this session and no other one.
    pub fn of_session(session: &Session, config: &EngineConfig) -> Self {
        let status = Tree::new("/").lines("proc/self/status").unwrap_or_default();
        Self::new(&Facts::of_session(session, config).held, &status)
    }

    /// From our account and the text of `/proc/PID/status`.
    pub fn new(held: &HeldMemory, status: &str) -> Self {
        let kernel = |name: &str| kilobytes(status, name);
        let (anon, swap) = (kernel("RssAnon"), kernel("VmSwap"));
        let explained = held.anonymous_total_bytes();
        Self {
            weights_mapped_bytes: held.mapped_bytes,
            weights_anonymous_bytes: held.anonymous_bytes,
            weights_locked_bytes: held.locked_bytes,
            repack_bytes: held.repack_bytes,
            kv_bytes: held.kv_bytes,
            scratch_bytes: held.scratch_bytes,
            heap_bytes: held.heap_bytes,
            rss_bytes: kernel("VmRSS"),
            rss_anon_bytes: anon,
            rss_file_bytes: kernel("RssFile"),
            rss_peak_bytes: kernel("VmHWM"),
            swap_bytes: swap,
            locked_bytes: kernel("VmLck"),
            unexplained_bytes: anon.map(|anon| (anon + swap.unwrap_or(0)).saturating_sub(explained)),
            unexplained_bytes_max: UNEXPLAINED_BYTES_MAX,
        }
    }

    /// Why the account does not hold; `None` when it does, or when the kernel gives no figures.
    pub fn warning(&self) -> Option<String> {
        let unexplained = self.unexplained_bytes.filter(|bytes| *bytes > UNEXPLAINED_BYTES_MAX)?;
        Some(format!(
            "{unexplained} bytes of anonymous memory are not accounted for, more than {UNEXPLAINED_BYTES_MAX} should be"
        ))
    }

    /// For people: names and figures as one line.
    pub fn line(&self) -> String {
        let kernel = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        format!(
            "weights {} mapped, {} anonymous, {} locked; repack {}; kv {}; scratch {}; heap {}; \
             VmRSS {}, RssAnon {} ({} unexplained), RssFile {}, VmHWM {}, VmSwap {}",
            self.weights_mapped_bytes,
            self.weights_anonymous_bytes,
            self.weights_locked_bytes,
            self.repack_bytes,
            self.kv_bytes,
            self.scratch_bytes,
            self.heap_bytes,
            kernel(self.rss_bytes),
            kernel(self.rss_anon_bytes),
            kernel(self.unexplained_bytes),
            kernel(self.rss_file_bytes),
            kernel(self.rss_peak_bytes),
            kernel(self.swap_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "VmLck:\t 0 kB\nVmHWM:\t 190000 kB\nVmRSS:\t 180000 kB\nRssAnon:\t 92000 kB\n\
                          RssFile:\t 88000 kB\nRssShmem:\t 0 kB\nVmSwap:\t 1000 kB\n";

    #[test]
    fn weights_that_are_mapped_and_repacked_show_twice_and_are_explained() {
        let mb = |n: u64| n << 20;
        let held =
            HeldMemory { mapped_bytes: mb(85), repack_bytes: mb(85), scratch_bytes: mb(2), ..HeldMemory::default() };
        let figures = MemoryFigures::new(&held, STATUS);
        // both copies are resident: the mapped one in RssFile, the other one in RssAnon
        assert_eq!(figures.weights_mapped_bytes, figures.repack_bytes);
        assert!(figures.rss_file_bytes.unwrap() >= mb(85) && figures.rss_anon_bytes.unwrap() >= mb(85));
        assert_eq!(figures.unexplained_bytes, Some(93_000 * 1024 - mb(87)));
        assert_eq!(figures.warning(), None);
        for part in [&*format!("repack {}", mb(85)), "VmSwap 1024000", "RssFile 90112000"] {
            assert!(figures.line().contains(part), "{}", figures.line());
        }
    }

    #[test]
    fn anonymous_memory_that_nothing_explains_is_told_of() {
        // the same process without the copy in its account
        let held = HeldMemory { mapped_bytes: 85 << 20, scratch_bytes: 2 << 20, ..HeldMemory::default() };
        let figures = MemoryFigures::new(&held, STATUS);
        assert!(figures.warning().unwrap().contains("bytes of anonymous memory are not accounted for"));
        let silent = MemoryFigures::new(&held, "Name:\tx\n");
        assert_eq!((silent.unexplained_bytes, silent.warning()), (None, None));
    }
}
