//! By what a file is known to be the one that was hashed.

use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file's place and the marks that change when its content is replaced or written to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileIdentity {
    /// Where it lies.
    pub path: PathBuf,
    /// Device number of its filesystem.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub bytes: u64,
    /// Last change of its content, nanoseconds.
    pub mtime_ns: i128,
    /// Last change of content or inode, nanoseconds; cannot be set by a program.
    pub ctime_ns: i128,
}

impl FileIdentity {
    /// The identity of the file that lies at `path` now.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Ok(Self {
            path: path.to_owned(),
            dev: meta.dev(),
            ino: meta.ino(),
            bytes: meta.size(),
            mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// What lies now at the places of `known`; `None` when one is gone.
    pub(super) fn of_all(known: &[Self]) -> Option<Vec<Self>> {
        known.iter().map(|identity| Self::of(&identity.path).ok()).collect()
    }
}
