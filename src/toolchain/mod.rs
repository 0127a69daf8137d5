//! The engine binary for an architecture: built from the bundled source, or taken from a folder; checked before it is used.

mod elf;
mod make;
mod prebuilt;
mod source;
#[cfg(test)]
mod testing;
mod way;

pub use prebuilt::from_folder;
pub use source::Source;
pub use way::Surroundings;

use crate::error::{Error, Result};
use crate::target::Architecture;
use farmgate_engine::hash::sha256_file;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The largest binary that is taken for an engine, in bytes.
const ARTEFACT_BYTES_MAX: u64 = 512 << 20;

/// An engine binary that can be pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artefact {
    /// Where it is on the lab host.
    pub path: PathBuf,
    /// The Rust target it is for.
    pub target: String,
    /// Its sha256, lower-case hex.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
    /// Why it may not run on other machines of its architecture than this one; only engines for this machine's own
    /// architecture are taken with such a warning.
    pub warning: Option<String>,
}

/// The Rust target of this machine: the one that farmgate itself was built for.
pub fn host_target() -> &'static str {
    farmgate_engine::probe::TARGET
}

/// The architecture of this machine.
///
/// # Errors
/// Usage when the engine is built for no such machine.
pub fn host_architecture() -> Result<Architecture> {
    architecture_of(host_target())
}

/// The architecture that a target or a short name means.
///
/// # Errors
/// Usage when the engine is not built for it.
pub fn architecture_of(target: &str) -> Result<Architecture> {
    Architecture::of_target(target).ok_or_else(|| {
        Error::usage(format!("there is no engine for the target `{}`", crate::config::printable(target)))
            .hint(format!("engines are for Linux and Android on {}", Architecture::names()))
    })
}

/// Builds the engine for an architecture and keeps it as `results/artefacts/farmhand-TARGET-SHA12`. When neither source,
/// compiler nor flags have changed since, nothing is built. `progress` gets what there is to say, line by line.
///
/// # Errors
/// Usage when there is no toolchain for it, with the commands that install one; INFRA when the build fails, with the
/// compiler's last words.
pub fn build(architecture: Architecture, results: &Path, progress: &mut dyn FnMut(&str)) -> Result<Artefact> {
    build_from(&Source::find()?, architecture, &Surroundings::of_process(), results, progress)
}

/// The same from a given source and with what is found in given surroundings.
///
/// # Errors
/// As [`build`].
pub fn build_from(
    source: &Source,
    architecture: Architecture,
    around: &Surroundings,
    results: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Artefact> {
    make::make(source, architecture, around, results, &mut |line| {
        progress(&format!("engine for {architecture}: {line}"));
    })
}

/// The artefact at `path`, once it proves to be an executable that devices of the architecture can run. For this
/// machine's own architecture, what would stop it elsewhere only makes a warning: it may be meant for this machine.
fn checked(path: &Path, target: &str, architecture: Architecture) -> Result<Artefact> {
    let needed =
        format!("an engine for {architecture} is needed; `farmgate engine build --target {architecture}` makes one");
    let refuse = |what: String| Error::usage(what).in_file(path).hint(needed.clone());
    let unreadable = |e: std::io::Error| refuse(format!("cannot read the engine: {e}"));
    // a pipe would be waited for
    let facts = std::fs::metadata(path).map_err(unreadable)?;
    let bytes = facts.len();
    if !facts.is_file() || bytes > ARTEFACT_BYTES_MAX {
        let what = if facts.is_file() { format!("a file of {bytes} bytes") } else { "what is no file".to_owned() };
        return Err(refuse(format!("{what} is no engine")));
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let read_at = |at: u64, buffer: &mut [u8]| file.read_exact_at(buffer, at).is_ok();
    let found = elf::read(&elf::Content { bytes, read_at: &read_at }, architecture).map_err(refuse)?;
    let warning = match found.fault(architecture) {
        Some((what, hint)) if Architecture::of_target(host_target()) != Some(architecture) => {
            return Err(Error::usage(what).in_file(path).hint(format!("{hint}; {needed}")));
        }
        fault => fault.map(|(what, _)| what),
    };
    let sha256 = sha256_file(path).map_err(Error::from)?;
    Ok(Artefact { path: path.to_owned(), target: target.to_owned(), sha256, bytes, warning })
}

#[cfg(test)]
mod tests;
