//! One TOML text with the name under which errors show it.

use super::message;
use crate::error::{Error, Place, Result};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// Largest TOML file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A TOML text and its path.
#[derive(Debug, Clone)]
pub struct Document {
    path: String,
    text: String,
}

impl Document {
    /// A text that is in memory already; `path_shown` is what errors call it.
    pub fn new(path_shown: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path_shown.into(), text: text.into() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Usage error when it is no ordinary file, cannot be read, exceeds [`FILE_BYTES_MAX`] or is no UTF-8 (with the
    /// line and column of the first bad byte).
    pub fn read(path: &Path) -> Result<Self> {
        let cannot = |e: &std::io::Error| {
            Error::usage(format!("cannot read file: {e}"))
                .in_file(path)
                .hint("check that the file exists, that you may read it, and that no symbolic link leads in a circle")
        };
        let kind = std::fs::metadata(path).map_err(|e| cannot(&e))?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "this is a folder, not a TOML file" } else { "this is not an ordinary file" };
            return Err(Error::usage(what)
                .in_file(path)
                .hint("move it away, or give it a name that does not end with .toml"));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(|e| cannot(&e))?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::usage(format!("file is larger than {FILE_BYTES_MAX} bytes"))
                .in_file(path)
                .hint("these files are a few kilobytes; is this the right one?"));
        }
        let path_shown = path.display().to_string();
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { path: path_shown, text }),
            Err(e) => {
                let valid = e.utf8_error().valid_up_to();
                let good = String::from_utf8_lossy(&e.as_bytes()[..valid]).into_owned();
                let place = place_in(&path_shown, &good, valid);
                Err(Error::usage("file is not UTF-8 text").at(place).hint("save it as UTF-8"))
            }
        }
    }

    /// The path as errors show it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The file's name without its folder and `.toml`.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit(['/', '\\']).next().unwrap_or_default();
        name.strip_suffix(".toml").unwrap_or(name)
    }

    /// Reads the keys into `T`.
    ///
    /// # Errors
    /// Usage error at path:line:column with a hint.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(&self.text).map_err(|error| {
            let (what, hint) = message::in_our_words(error.message());
            let fault = Error::usage(what).at(match error.span() {
                Some(span) => self.place(span.start),
                None => self.place(0),
            });
            match hint {
                Some(hint) => fault.hint(hint),
                None => fault,
            }
        })
    }

    /// An error at a span of this text.
    pub fn fault(&self, span: Range<usize>, what: impl Into<String>) -> Error {
        Error::usage(what).at(self.place(span.start))
    }

    /// Line and column of a byte of this text.
    pub fn place(&self, byte: usize) -> Place {
        place_in(&self.path, &self.text, byte)
    }
}

fn place_in(path: &str, text: &str, byte: usize) -> Place {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    let before = &text[..byte];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Place::File {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}
