//! Devices that are left out of runs: put aside by hand, or since they failed again and again.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Runs in a row in which a device has to fail to be put aside.
pub const FAILURES_MAX: usize = 3;

const FILE_NAME: &str = "quarantine.json";
const FILE_BYTES_MAX: u64 = 4 << 20;
const REASON_CHARS_MAX: usize = 400;

/// Why a device is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Entry {
    /// What is wrong with it.
    pub reason: String,
    /// Wall clock, RFC 3339.
    pub since: String,
    /// Lab host that put it aside.
    pub by: String,
}

/// All devices that are left out, by name; one file in the results folder.
#[derive(Debug, Default)]
pub struct Quarantine {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

impl Quarantine {
    /// Reads the file; without one nobody is left out.
    ///
    /// # Errors
    /// Usage: the file cannot be read or is damaged. A device must not slip back because of that.
    pub fn load(results: &Path) -> Result<Self> {
        let path = results.join(FILE_NAME);
        let fault = |e: std::io::Error| Error::io("cannot read the list of quarantined devices", &path, &e);
        let text = match std::fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self { path, entries: BTreeMap::new() }),
            Err(e) => return Err(fault(e)),
            Ok(facts) if facts.len() > FILE_BYTES_MAX => Vec::new(),
            Ok(_) => std::fs::read(&path).map_err(fault)?,
        };
        match serde_json::from_slice(&text) {
            Ok(entries) => Ok(Self { path, entries }),
            Err(e) => Err(Error::usage(format!("the list of quarantined devices is damaged: {e}"))
                .in_file(&path)
                .hint("mend it, or delete it to take every device back")),
        }
    }

    /// Why a device is left out, if it is.
    pub fn of(&self, device: &str) -> Option<&Entry> {
        self.entries.get(device)
    }

    /// Puts a device aside; one that was put aside before keeps its older reason.
    ///
    /// # Errors
    /// Usage: no reason, or one of too many characters. INFRA: the file cannot be written.
    pub fn put(&mut self, device: &str, reason: &str, since: &str, by: &str) -> Result<()> {
        let reason = reason.trim();
        if reason.is_empty() || reason.chars().count() > REASON_CHARS_MAX || reason.chars().any(char::is_control) {
            return Err(Error::usage("this is no reason to put a device aside")
                .hint(format!("say in one line of at most {REASON_CHARS_MAX} characters what is wrong with it")));
        }
        let entry = Entry { reason: reason.to_owned(), since: since.to_owned(), by: by.to_owned() };
        self.entries.entry(device.to_owned()).or_insert(entry);
        self.write()
    }

    /// Takes a device back; `false` when it was not put aside.
    ///
    /// # Errors
    /// INFRA: the file cannot be written.
    pub fn remove(&mut self, device: &str) -> Result<bool> {
        let was_there = self.entries.remove(device).is_some();
        if was_there {
            self.write()?;
        }
        Ok(was_there)
    }

    fn write(&self) -> Result<()> {
        let fault = |e: &std::io::Error| Error::io("cannot write the list of quarantined devices", &self.path, e);
        let text = serde_json::to_vec_pretty(&self.entries).map_err(|e| Error::bug(format!("no json: {e}")))?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|e| fault(&e))?;
        let mut draft = tempfile::NamedTempFile::new_in(folder).map_err(|e| fault(&e))?;
        draft.write_all(&text).and_then(|()| draft.as_file().sync_all()).map_err(|e| fault(&e))?;
        draft.persist(&self.path).map_err(|e| fault(&e.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_put_aside_with_its_first_reason_and_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        let mut quarantine = Quarantine::load(&results).unwrap();
        quarantine.put("phone", " swollen battery ", "2026-01-01T00:00:00Z", "lab").unwrap();
        quarantine.put("phone", "again", "2026-01-02T00:00:00Z", "lab").unwrap();
        let mut again = Quarantine::load(&results).unwrap();
        assert_eq!(again.of("phone").unwrap().reason, "swollen battery");
        assert!(again.of("other").is_none());
        assert!(again.remove("phone").unwrap() && !again.remove("phone").unwrap());
        assert!(Quarantine::load(&results).unwrap().of("phone").is_none());
    }

    #[test]
    fn a_reason_is_one_line_and_a_damaged_list_takes_nobody_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut quarantine = Quarantine::load(folder.path()).unwrap();
        for reason in ["", "  ", "a\nb", "\u{1b}[2J", &"x".repeat(401)] {
            assert!(quarantine.put("phone", reason, "", "").is_err(), "{reason:?}");
        }
        std::fs::write(folder.path().join(FILE_NAME), "{\"phone\":").unwrap();
        assert!(Quarantine::load(folder.path()).unwrap_err().what().contains("damaged"));
    }
}
