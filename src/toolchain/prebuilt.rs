//! Engines that somebody built before, in a folder.

use super::{Artefact, architecture_of, checked};
use crate::error::{Error, Result};
use crate::target::Architecture;
use std::path::Path;

/// Takes a prebuilt engine for a target (or a short name) from a folder: `farmhand-TARGET`; else `farmhand-ARCHITECTURE`;
/// else the one engine whose name has a target of the same architecture, with or without the 12 digits of its hash; else
/// `farmhand`. What its C library is does not matter, since it is static.
///
/// # Errors
/// Usage when there is none, several might be meant, or it is no executable for the architecture.
pub fn from_folder(folder: &Path, target: &str) -> Result<Artefact> {
    let architecture = architecture_of(target)?;
    let entries = std::fs::read_dir(folder)
        .map_err(|e| Error::usage(format!("cannot read the folder of engines: {e}")).in_file(folder))?;
    let names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    let exact = [format!("farmhand-{target}"), format!("farmhand-{architecture}")];
    let named = exact.iter().map(String::as_str).find(|exact| names.iter().any(|name| name == exact));
    let that = |fits: &dyn Fn(&str) -> bool| -> Vec<&str> {
        names.iter().map(String::as_str).filter(|name| built_for(name).is_some_and(fits)).collect()
    };
    let of_target = that(&|built| built == target);
    let of_architecture = that(&|built| Architecture::of_target(built) == Some(architecture));
    let name = match (named, &of_target[..], &of_architecture[..]) {
        (Some(name), ..) => name,
        (None, [name], _) | (None, [], [name]) => *name,
        (None, [], []) if names.iter().any(|n| n == "farmhand") => "farmhand",
        (None, [], []) => {
            return Err(Error::usage(format!("no engine for {architecture} is in the folder")).in_file(folder).hint(
                format!(
                    "put a binary named `{}` there; `farmgate engine build --target {architecture}` makes one",
                    exact[0]
                ),
            ));
        }
        (None, several, all) => {
            let count = if several.is_empty() { all.len() } else { several.len() };
            return Err(Error::usage(format!("{count} engines for {architecture} are in the folder"))
                .in_file(folder)
                .hint(format!("rename the one that is meant to `{}`", exact[0])));
        }
    };
    checked(&folder.join(name), built_for(name).unwrap_or(target), architecture)
}

/// The target in a name `farmhand-TARGET` or `farmhand-TARGET-SHA12`.
fn built_for(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("farmhand-")?;
    let is_hash = |s: &str| s.len() == 12 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let target = rest.rsplit_once('-').filter(|(_, hash)| is_hash(hash)).map_or(rest, |(target, _)| target);
    let is_word = target.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'));
    is_word.then_some(target)
}
