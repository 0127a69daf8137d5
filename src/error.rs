//! The harness's one error type, and the exit codes that it and the verdict share.

use std::fmt;
use std::path::Path;

/// Process exit codes; the table in the README quotes these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The release may go out.
    Go = 0,
    /// The release must not go out.
    NoGo = 1,
    /// Usage or configuration error; nothing was touched.
    Usage = 2,
    /// Not enough evidence.
    Inconclusive = 3,
    /// Measured, but nothing that may be believed.
    Invalid = 4,
    /// Devices or links failed.
    Infra = 5,
    /// A bug in farmgate.
    Bug = 70,
}

/// Where an error happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file; line and column count from 1, 0 means unknown.
    File {
        /// Path as the user knows it.
        path: String,
        /// Line.
        line: usize,
        /// Column, in characters.
        column: usize,
    },
    /// A device, and the cell when there is one.
    Device {
        /// Name in the inventory.
        device: String,
        /// Cell in the device's plan.
        cell: Option<u32>,
    },
    /// Anything else, for instance a flag.
    Other(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: 0, .. } => f.write_str(path),
            Self::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Self::Device { device, cell: None } => write!(f, "device {device}"),
            Self::Device { device, cell: Some(cell) } => write!(f, "device {device}, cell {cell}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// An error: what, where, and what to try. `Display` gives
/// `what`, then `  --> place` on the next line, then a blank line and `hint: …`.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    exit: ExitCode,
    what: String,
    place: Option<Place>,
    hint: Option<String>,
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn new(exit: ExitCode, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), place: None, hint: None }
    }
    /// The request or a file is wrong; nothing was touched.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, what)
    }
    /// A device, a link or the lab host failed.
    pub fn infra(what: impl Into<String>) -> Self {
        Self::new(ExitCode::Infra, what)
    }
    /// farmgate contradicts itself.
    pub fn bug(what: impl Into<String>) -> Self {
        Self::new(ExitCode::Bug, what)
    }
    /// An operating-system error on the lab host, with what was being done and to which file.
    pub fn io(doing: impl Into<String>, path: &Path, source: &std::io::Error) -> Self {
        Self::infra(format!("{}: {source}", doing.into())).in_file(path)
    }
    /// Adds a file as the place.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        self.place = Some(Place::File { path: path.display().to_string(), line: 0, column: 0 });
        self
    }
    /// Adds the place.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }
    /// Adds a device as the place, unless a place is known already.
    #[must_use]
    pub fn on_device(mut self, device: &str) -> Self {
        self.place.get_or_insert(Place::Device { device: device.to_owned(), cell: None });
        self
    }
    /// Adds what to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// The same error under another exit code, for instance INFRA before anything was touched becomes usage.
    #[must_use]
    pub fn with_exit(mut self, exit: ExitCode) -> Self {
        self.exit = exit;
        self
    }
    /// The exit code it leads to.
    pub fn exit(&self) -> ExitCode {
        self.exit
    }
    /// What went wrong, in one line.
    pub fn what(&self) -> &str {
        &self.what
    }
    /// Where.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }
    /// What to try.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(place) = &self.place {
            write!(f, "\n  --> {place}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl From<farmgate_engine::error::EngineError> for Error {
    fn from(error: farmgate_engine::error::EngineError) -> Self {
        use farmgate_engine::error::ErrorKind;
        let exit = match error.kind() {
            ErrorKind::Usage | ErrorKind::Model | ErrorKind::Protocol | ErrorKind::Lease => ExitCode::Usage,
            ErrorKind::System => ExitCode::Infra,
            ErrorKind::Bug => ExitCode::Bug,
        };
        Self {
            exit,
            what: error.what().to_owned(),
            place: error.place().map(|p| Place::Other(p.to_owned())),
            hint: error.hint_text().map(str::to_owned),
        }
    }
}

/// The candidate nearest to `word`, when one is near enough to be meant: at most a third of its letters differ.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = word.chars().count().max(3) / 3;
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance, in characters: insertions, deletions, replacements and swaps of two neighbours.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_what_where_and_hint() {
        let error = Error::usage("unknown key `thread`")
            .at(Place::File { path: "devices/phone.toml".into(), line: 4, column: 1 })
            .hint("did you mean `threads`?");
        assert_eq!(
            error.to_string(),
            "unknown key `thread`\n  --> devices/phone.toml:4:1\n\nhint: did you mean `threads`?"
        );
    }

    #[test]
    fn nearest_finds_a_typing_slip_and_nothing_far_away() {
        assert_eq!(nearest("latancy", ["smoke", "latency"]), Some("latency"));
        assert_eq!(nearest("soak", ["latency"]), None);
        assert_eq!(nearest("abd", ["ssh", "adb"]), Some("adb"), "two letters that changed places are one slip");
    }
}
