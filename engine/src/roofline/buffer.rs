//! The buffer that is read: how large it must be, and on which pages it lies.

use crate::error::{EngineError, Result};
use memmap2::MmapMut;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A buffer is at least this large where memory allows.
const BYTES_MIN: u64 = 256 << 20;
/// No larger, however large the cache: a read must end.
const BYTES_MAX: u64 = 4 << 30;
/// A buffer is this many times the last-level cache, so that little of a round is served from the round before.
const TIMES_CACHE: u64 = 8;
/// Neither of the two buffers takes more than this part of the memory that is available.
const MEMORY_PART: u64 = 8;
/// Sizes are whole numbers of this: huge pages are at least as large on all machines with 4 KiB pages.
const STEP_BYTES: u64 = 2 << 20;

/// Which pages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Transparent huge pages.
    Huge,
    /// The system's ordinary pages.
    Base,
}

/// Anonymous memory, every page of it written once.
pub struct Buffer {
    map: MmapMut,
}

impl Buffer {
    /// A system error with the size when the memory cannot be had.
    pub fn new(len: usize, pages: Pages) -> Result<Self> {
        let mut map = MmapMut::map_anon(len).map_err(|e| {
            EngineError::io(format!("no memory for a buffer of {len} bytes"), &e).hint("ask for a smaller --buffer-mib")
        })?;
        advise(&mut map, pages);
        // pages that were never written are all the one page of zeroes, which the cache holds
        map.fill(1);
        Ok(Self { map })
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// How much of it the kernel put on huge pages; `None` where it does not say.
    pub fn huge_page_backed_bytes(&self) -> Option<u64> {
        let start = self.map.as_ptr() as u64;
        let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
        huge_bytes(&smaps, start, start + self.map.len() as u64)
    }
}

/// Best effort: what came of it is read back.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn advise(map: &mut MmapMut, pages: Pages) {
    let advice = if pages == Pages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: start and length are those of a mapping that we own; neither advice changes what it holds.
    unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), advice) };
}

/// This system takes no such advice.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn advise(_map: &mut MmapMut, _pages: Pages) {}

/// `AnonHugePages` of the mappings inside `start..end`, bytes.
fn huge_bytes(smaps: &str, start: u64, end: u64) -> Option<u64> {
    let mut inside = false;
    let mut found = None;
    for line in smaps.lines() {
        if let Some(at) = line.split(' ').next().and_then(mapping) {
            inside = at.0 < end && start < at.1;
        } else if let Some(kib) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            let bytes = kib.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024;
            found = Some(found.unwrap_or(0) + bytes);
        }
    }
    // neighbours that the kernel joined to our mapping are not ours
    found.map(|bytes| bytes.min(end - start))
}

fn mapping(word: &str) -> Option<(u64, u64)> {
    let (start, end) = word.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Bytes of an ordinary page.
pub fn base_page_bytes() -> u64 {
    // SAFETY: sysconf reads a constant of the system.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The size asked for, in whole steps; a usage error when nothing could be told from it.
pub fn checked(bytes: u64) -> Result<usize> {
    if !(STEP_BYTES..=BYTES_MAX).contains(&bytes) {
        let (least, most) = (STEP_BYTES >> 20, BYTES_MAX >> 20);
        return Err(EngineError::usage(format!("a buffer of {bytes} bytes is outside {least}..={most} MiB"))
            .hint("it should be several times the last-level cache; without the flag it is"));
    }
    Ok((bytes / STEP_BYTES * STEP_BYTES) as usize)
}

/// Well larger than the cache, and at least 256 MiB, as far as memory allows.
pub fn default_bytes(cache_bytes: Option<u64>, available_bytes: Option<u64>) -> usize {
    let wanted = cache_bytes.unwrap_or(0).saturating_mul(TIMES_CACHE).clamp(BYTES_MIN, BYTES_MAX);
    let allowed = available_bytes.map_or(BYTES_MIN, |bytes| bytes / MEMORY_PART).max(STEP_BYTES);
    (wanted.min(allowed) / STEP_BYTES * STEP_BYTES) as usize
}

/// `MemAvailable` below `root`, or what the control group has left when that is less.
pub fn available_bytes(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024;
    let group = |file: &str| -> Option<u64> {
        fs::read_to_string(root.join("sys/fs/cgroup").join(file)).ok()?.trim().parse().ok()
    };
    let left = group("memory.max").map(|most| most.saturating_sub(group("memory.current").unwrap_or(0)));
    Some(left.map_or(free, |left| left.min(free)))
}

/// Size of the largest cache level below `root`, summed over its instances; `None` where sysfs has none.
pub fn last_level_cache_bytes(root: &Path) -> Option<u64> {
    let mut caches = BTreeMap::new(); // (level, cores that share it) -> bytes
    for core in entries(&root.join("sys/devices/system/cpu"), "cpu") {
        for index in entries(&core.join("cache"), "index") {
            let word = |file: &str| Some(fs::read_to_string(index.join(file)).ok()?.trim().to_owned());
            let described = || Some((word("level")?.parse::<u32>().ok()?, size(&word("size")?)?));
            let Some((level, bytes)) = described() else { continue };
            if word("type").as_deref() != Some("Instruction") {
                let shared = word("shared_cpu_list").unwrap_or_else(|| core.display().to_string());
                caches.insert((level, shared), bytes);
            }
        }
    }
    let last = caches.keys().next_back()?.0;
    Some(caches.iter().filter(|((level, _), _)| *level == last).map(|(_, bytes)| bytes).sum())
}

/// `32768K` as bytes.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Folders in `folder` named `stem` and a number.
fn entries(folder: &Path, stem: &str) -> Vec<std::path::PathBuf> {
    let numbered = |name: &str| name.strip_prefix(stem).is_some_and(|rest| rest.parse::<u32>().is_ok());
    let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
    found
        .flatten()
        .map(|entry| entry.path())
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(numbered))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(root: &Path, core: usize, index: usize, fields: [&str; 4]) {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{core}/cache/index{index}"));
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in ["level", "type", "size", "shared_cpu_list"].iter().zip(fields) {
            fs::write(folder.join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn the_last_level_is_summed_over_its_instances_and_counted_once_each() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(last_level_cache_bytes(root.path()), None);
        for core in 0..4 {
            cache(root.path(), core, 0, ["1", "Data", "32K", &core.to_string()]);
            cache(root.path(), core, 1, ["1", "Instruction", "64K", &core.to_string()]);
            cache(root.path(), core, 3, ["3", "Unified", "16M", if core < 2 { "0-1" } else { "2-3" }]);
        }
        assert_eq!(last_level_cache_bytes(root.path()), Some(32 << 20));
    }

    #[test]
    fn the_buffer_outgrows_the_cache_and_spares_the_memory() {
        let gib = 1u64 << 30;
        assert_eq!(default_bytes(Some(1 << 20), Some(16 * gib)), 256 << 20);
        assert_eq!(default_bytes(Some(64 << 20), Some(16 * gib)), 512 << 20);
        assert_eq!(default_bytes(Some(gib), Some(16 * gib)), 2 * gib as usize);
        assert_eq!(default_bytes(Some(2 << 20), Some(gib)), 128 << 20);
        assert_eq!(default_bytes(None, None), 256 << 20);
        assert_eq!(default_bytes(Some(2 << 20), Some(0)), 2 << 20);
    }

    #[test]
    fn a_control_group_may_leave_less_than_the_machine_has() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(available_bytes(root.path()), None);
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 9 kB\nMemAvailable:    1024 kB\n").unwrap();
        assert_eq!(available_bytes(root.path()), Some(1 << 20));
        fs::create_dir_all(root.path().join("sys/fs/cgroup")).unwrap();
        fs::write(root.path().join("sys/fs/cgroup/memory.max"), "max\n").unwrap();
        assert_eq!(available_bytes(root.path()), Some(1 << 20));
        fs::write(root.path().join("sys/fs/cgroup/memory.max"), "4096\n").unwrap();
        fs::write(root.path().join("sys/fs/cgroup/memory.current"), "1096\n").unwrap();
        assert_eq!(available_bytes(root.path()), Some(3000));
    }

    #[test]
    fn huge_pages_are_read_back_for_our_own_mapping_only() {
        let smaps = "1000-3000 rw-p 0 00:00 0\nSize: 8 kB\nAnonHugePages:   2048 kB\n\
                     400000-c00000 rw-p 0 00:00 0\nAnonHugePages:      4096 kB\nVmFlags: rd\n\
                     c00000-d00000 rw-p 0 00:00 0\nAnonHugePages:      1024 kB\n";
        assert_eq!(huge_bytes(smaps, 0x40_0000, 0xc0_0000), Some(4 << 20));
        assert_eq!(huge_bytes(smaps, 0x40_0000, 0xd0_0000), Some(5 << 20));
        assert_eq!(huge_bytes(smaps, 0xf0_0000, 0xff_0000), None);
    }

    #[test]
    fn a_buffer_on_base_pages_has_no_huge_ones() {
        let buffer = Buffer::new(8 << 20, Pages::Base).unwrap();
        assert!(buffer.bytes().iter().all(|b| *b == 1));
        assert_eq!(buffer.huge_page_backed_bytes().unwrap_or(0), 0);
    }
}
