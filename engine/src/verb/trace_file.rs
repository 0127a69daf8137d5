//! The file of `--profile`: whole or not there at all.

use crate::error::{EngineError, Result};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const HINT: &str = "name a file in a folder that you may write to, on a disk with room";

/// Where a trace goes. A regular file is written beside its place and renamed, so that what has the name is whole; devices and
/// pipes are written as they are.
pub struct TraceFile {
    shown: String,
    path: PathBuf,
    is_regular: bool,
}

impl TraceFile {
    /// Checks that a trace can be written there, so that a run does not end with what is known at its begin. Usage errors for
    /// stdout, which has the verb's own data; system errors that name the file.
    pub fn new(given: &str) -> Result<Self> {
        if given == "-" || is_stdout(Path::new(given)) {
            return Err(EngineError::usage("`--profile` cannot write to stdout, which has the rows or the text")
                .hint("name a file; one that is called `-` is `./-`"));
        }
        // a link stays one: its target is what is written
        let path = fs::canonicalize(given).unwrap_or_else(|_| PathBuf::from(given));
        let is_regular = fs::metadata(&path).map_or(true, |about| about.is_file() || about.is_dir());
        let file = Self { shown: given.to_owned(), path, is_regular };
        let fault = |e: &io::Error| EngineError::io("cannot create the trace", e).at(given).hint(HINT);
        if file.path.is_dir() {
            return Err(fault(&io::ErrorKind::IsADirectory.into()));
        }
        if is_regular {
            let part = file.part();
            File::create(&part).and_then(|_| fs::remove_file(&part)).map_err(|e| fault(&e))?;
        }
        Ok(file)
    }

    /// As it was given.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Writes all of it. After an error a regular file is what it was before.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let to = |path: &Path| -> io::Result<()> {
            let mut out = BufWriter::new(File::create(path)?);
            content(&mut out)?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            // a full disk may show only here
            if self.is_regular { file.sync_all() } else { Ok(()) }
        };
        let written = if self.is_regular {
            let part = self.part();
            let renamed = to(&part).and_then(|()| fs::rename(&part, &self.path));
            renamed.inspect_err(|_| drop(fs::remove_file(&part)))
        } else {
            to(&self.path)
        };
        let kept = if self.is_regular { ", and nothing is left of it" } else { "" };
        written
            .map_err(|e| EngineError::io(format!("cannot write the trace{kept}"), &e).at(self.shown.clone()).hint(HINT))
    }

    /// Beside the file, hidden, and of this process alone.
    fn part(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}.part", std::process::id()))
    }
}

/// Whether that is the regular file which stdout goes to.
fn is_stdout(path: &Path) -> bool {
    let stdout = io::stdout().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    match (stdout, fs::metadata(path)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
