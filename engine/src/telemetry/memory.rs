//! Memory of a process and swap of the device.

use crate::protocol::MemoryParts;
use crate::tree::{Tree, kilobytes};

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

/// Swap in use on the device, zram included; `None` where there is no swap.
pub(super) fn swap_used_bytes(meminfo: &str) -> Option<u64> {
    let total = kilobytes(meminfo, "SwapTotal").filter(|bytes| *bytes > 0)?;
    total.checked_sub(kilobytes(meminfo, "SwapFree")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::made::Made;

    const STATUS: &str = "Name:\tx\nVmHWM:\t  9000 kB\nVmRSS:\t  8000 kB\nRssAnon:\t 5000 kB\nRssFile:\t 2900 kB\nRssShmem:\t 100 kB\nVmSwap:\t 7 kB\n";

    #[test]
    fn memory_names_its_source_and_keeps_the_peak() {
        let rollup =
            "5581-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 8100 kB\nPss: 6000 kB\nAnonymous: 5100 kB\nSwap: 3 kB\n";
        let both = Made::new().file("proc/7/status", STATUS).file("proc/7/smaps_rollup", rollup);
        let parts = memory_parts(&both.tree(), 7, true);
        assert_eq!(parts.source, "smaps_rollup");
        assert_eq!(parts.pss_bytes, Some(6000 * 1024));
        assert_eq!(parts.file_bytes, Some(3000 * 1024));
        assert_eq!(parts.peak_rss_bytes, Some(9000 * 1024));
        let status_only = Made::new().file("proc/7/status", STATUS);
        let parts = memory_parts(&status_only.tree(), 7, true);
        assert_eq!((parts.source.as_str(), parts.pss_bytes), ("status", None));
        assert_eq!(parts.file_bytes, Some(3000 * 1024));
        assert_eq!(memory_parts(&status_only.tree(), 8, true).rss_bytes, None, "a process that is gone");
    }

    #[test]
    fn swap_in_use_is_what_is_not_free_and_no_swap_is_no_figure() {
        assert_eq!(swap_used_bytes("SwapTotal: 4000 kB\nSwapFree: 1000 kB\n"), Some(3000 * 1024));
        assert_eq!(swap_used_bytes("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), None);
        assert_eq!(swap_used_bytes(""), None);
    }
}
