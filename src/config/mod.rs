//! The TOML files that users edit: where they lie, how they are read, and errors that point at path:line:column.
//!
//! Every file that ships is also built into the binary (see [`shipped`]), so that an installed farmgate works without
//! a checkout. This module knows text and places, and nothing of what the files mean.

mod check;
mod document;
mod message;
pub mod shipped;

pub use check::Checker;
pub use document::{Document, FILE_BYTES_MAX};
pub(crate) use message::{KEYS_SHOWN_MAX, printable};

use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use shipped::Shipped;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Most files that one folder may hold.
pub const FOLDER_FILES_MAX: usize = 4096;

/// Longest name of a device, scenario, policy or rule, in characters.
pub const NAME_CHARS_MAX: usize = 64;

/// Where a project keeps what users edit, and where output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// The inventory, one TOML a device.
    pub devices: PathBuf,
    /// Scenarios; gate policies in its `policies/`, recorded answers in its `golden/`.
    pub scenarios: PathBuf,
    /// Report templates.
    pub reports: PathBuf,
    /// A folder a run, and the index.
    pub results: PathBuf,
}

impl Folders {
    /// The folders of the project at `root`; an empty path or `.` is the current folder.
    pub fn under(root: &Path) -> Self {
        let root = if root == Path::new(".") { Path::new("") } else { root };
        Self {
            devices: root.join("devices"),
            scenarios: root.join("scenarios"),
            reports: root.join("reports"),
            results: root.join("results"),
        }
    }
    /// Where gate policies lie.
    pub fn policies(&self) -> PathBuf {
        self.scenarios.join("policies")
    }
    /// Where recorded answers lie.
    pub fn golden(&self) -> PathBuf {
        self.scenarios.join("golden")
    }
}

/// Reads TOML from text. `path_shown` is what errors call it.
///
/// # Errors
/// Usage error at path:line:column with a hint.
pub fn parse_toml<T: DeserializeOwned>(path_shown: &str, text: &str) -> Result<T> {
    Document::new(path_shown, text).parse()
}

/// Reads a TOML file of at most [`FILE_BYTES_MAX`] bytes.
///
/// # Errors
/// Usage error: the file cannot be read, is too large, is no UTF-8, or does not have the expected keys and types.
pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T> {
    Document::read(path)?.parse()
}

/// Whether `text` is 1 to [`NAME_CHARS_MAX`] characters of `[a-z0-9-]`, neither beginning nor ending with `-`.
pub fn is_name(text: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// What a folder of TOML files holds: what could be read, and what could not.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Documents by file name, sorted; the built-in ones fill the gaps.
    pub documents: Vec<Document>,
    /// What is wrong with the others.
    pub faults: Vec<Error>,
}

/// Reads every `*.toml` of `folder` (hidden files left out), in the order of their names, then every shipped file
/// whose name the folder does not have. A folder that does not exist holds nothing.
pub fn gather(folder: &Path, shipped: &[Shipped]) -> Gathered {
    let mut out = Gathered::default();
    let mut taken = BTreeSet::new();
    match toml_files(folder) {
        Ok(paths) => {
            for path in paths {
                taken.extend(path.file_name().map(|n| n.to_string_lossy().into_owned()));
                match Document::read(&path) {
                    Ok(document) => out.documents.push(document),
                    Err(fault) => out.faults.push(fault),
                }
            }
        }
        Err(fault) => out.faults.push(fault),
    }
    out.documents.extend(shipped.iter().filter(|s| !taken.contains(s.file_name())).map(Shipped::document));
    out
}

fn toml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let cannot = |e: &std::io::Error| {
        Error::usage(format!("cannot read folder: {e}"))
            .in_file(folder)
            .hint("check that it is a folder that you may read")
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && folder.symlink_metadata().is_err() => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(cannot(&e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| cannot(&e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') && path.extension().is_some_and(|e| e == "toml") {
            paths.push(path);
        }
        if paths.len() > FOLDER_FILES_MAX {
            return Err(Error::usage(format!("more than {FOLDER_FILES_MAX} TOML files in one folder"))
                .in_file(folder)
                .hint("keep only the files that are in use here"));
        }
    }
    paths.sort();
    Ok(paths)
}

/// All faults as one error: the first in full, the others as lines of its hint.
///
/// # Errors
/// When there is at least one fault.
pub fn refuse_faults(faults: Vec<Error>) -> Result<()> {
    const SHOWN_MAX: usize = 20;
    let mut faults = faults.into_iter();
    let Some(first) = faults.next() else { return Ok(()) };
    let others: Vec<String> = faults
        .map(|fault| match fault.place() {
            Some(place) => format!("{place}: {}", fault.what()),
            None => fault.what().to_owned(),
        })
        .collect();
    if others.is_empty() {
        return Err(first);
    }
    let mut hint = first.hint_text().map(|hint| format!("{hint}\n\n")).unwrap_or_default();
    hint.push_str(&format!("{} more to correct:", others.len()));
    for other in others.iter().take(SHOWN_MAX) {
        hint.push_str("\n  ");
        hint.push_str(other);
    }
    if others.len() > SHOWN_MAX {
        hint.push_str(&format!("\n  and {} more", others.len() - SHOWN_MAX));
    }
    Err(first.hint(hint))
}

#[cfg(test)]
mod tests;
