//! A bounded, never panicking reader of `/sys`, `/proc` and `/etc` under a root that tests can replace.

use crate::text;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most that is read of any one file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most that is kept of a one-line text, in bytes.
pub const WORD_BYTES_MAX: usize = 256;
/// The most entries of a folder that are looked at.
const ENTRIES_MAX: usize = 4096;

/// The device's file tree, or one made for a test.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
    /// Files opened through this tree and its copies.
    opened: Arc<AtomicU64>,
}

impl Tree {
    /// The tree below `root`; `/` is the device itself.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), opened: Arc::default() }
    }

    /// Whether this is the running device rather than a copy or a made tree.
    pub fn is_device(&self) -> bool {
        self.root.as_os_str() == "/"
    }

    /// How many files and folders were asked for so far through this tree and its copies: what observing costs.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// The bytes of a file, at most [`FILE_BYTES_MAX`] of them. `path` is relative to the root.
    pub fn bytes(&self, path: &str) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.opened.fetch_add(1, Ordering::Relaxed);
        // a pipe in the place of a file must not stop the probe
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.root.join(path))?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A file of many lines; bytes that are not UTF-8 are replaced. `None` when it cannot be read.
    pub fn lines(&self, path: &str) -> Option<String> {
        self.bytes(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file of one word or line: trimmed of white space and NUL, bounded, escaped. `None` when it cannot be read or
    /// is empty.
    pub fn word(&self, path: &str) -> Option<String> {
        word(&self.bytes(path).ok()?)
    }

    /// A file that holds one number, decimal or with `0x`.
    pub fn number<T: FromStr + TryFrom<u64>>(&self, path: &str) -> Option<T> {
        let word = self.word(path)?;
        match word.strip_prefix("0x") {
            Some(hex) => T::try_from(u64::from_str_radix(hex, 16).ok()?).ok(),
            None => word.parse().ok(),
        }
    }

    /// The names in a folder, sorted so that numbers count up (`zone2` before `zone10`); empty when it cannot be read.
    pub fn names(&self, path: &str) -> Vec<String> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let Ok(entries) = std::fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.take(ENTRIES_MAX).flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| {
            let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let (stem, number) = name.split_at(name.len() - digits);
            (stem.to_owned(), number.parse::<u64>().unwrap_or(0), name.clone())
        });
        names
    }
}

/// Bytes as one bounded, escaped word: trimmed of white space and NUL; `None` when nothing is left.
pub fn word(bytes: &[u8]) -> Option<String> {
    let is_blank = |b: &u8| b.is_ascii_whitespace() || *b == 0;
    let start = bytes.iter().position(|b| !is_blank(b))?;
    let end = bytes.iter().rposition(|b| !is_blank(b))? + 1;
    Some(text::escaped(&bytes[start..end], WORD_BYTES_MAX))
}

/// A list of core numbers as the kernel writes it (`0-3,6`); parts that make no sense are left out, and so is
/// everything beyond 4,096 cores.
pub fn core_list(list: &str) -> Vec<u32> {
    let mut cores = Vec::new();
    for part in list.split([',', ' ']).map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else { continue };
        cores.extend((first..=last).take(ENTRIES_MAX.saturating_sub(cores.len())));
    }
    cores.sort_unstable();
    cores.dedup();
    cores
}

/// `key : value` lines of `/proc/cpuinfo` and its like.
pub fn fields(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.trim(), value.trim()))
}

/// A figure of `/proc/meminfo` or `/proc/PID/status`, in bytes: `NAME:  1234 kB`.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let (_, value) = fields(text).find(|(key, _)| *key == name)?;
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
