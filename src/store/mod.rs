//! What is remembered: a folder and a journal a run, and one SQLite index over all runs that can be made again from the
//! journals. Only this module knows SQL.

mod index;
mod journal;
mod load;
mod resume;
mod schema;

use crate::error::{Error, ExitCode, Result, nearest};
use crate::event::Event;
use crate::run::{Manifest, RunData, RunId, RunState};
use index::Indexer;
use journal::JournalWriter;
use rusqlite::Connection;
use std::fs;
use std::path::{Path, PathBuf};

/// File name of the index within the results folder.
const INDEX_FILE: &str = "index.sqlite";

/// The results folder, opened.
pub struct Store {
    results: PathBuf,
    db: Connection,
}

/// One line of the list of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunLine {
    /// The run's name.
    pub run: RunId,
    /// Wall clock at its start, RFC 3339.
    pub created: String,
    /// How far it came.
    pub state: RunState,
}

/// What a rebuild found.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rebuilt {
    /// Runs that are in the new index.
    pub runs: usize,
    /// Durable events that were read.
    pub events: u64,
    /// For each damaged journal: its path, and what is wrong with it.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Store {
    /// Opens the results folder, making it and the index when they are new.
    pub fn open(results: &Path) -> Result<Self> {
        fs::create_dir_all(results).map_err(|e| {
            Error::io("cannot make the results folder", results, &e)
                .with_exit(ExitCode::Usage)
                .hint("choose another one with --results DIR")
        })?;
        let index = results.join(INDEX_FILE);
        // an index that was lost must not hide the runs that it knew
        if fs::metadata(&index).map_or(true, |m| m.len() == 0) && !journals_under(results)?.is_empty() {
            log::info!("the index is gone; it is made again from the journals");
            rebuild(results, &mut |_| {})?;
        }
        let db = schema::open(&index)?;
        Ok(Self { results: results.to_owned(), db })
    }

    /// Folder of a run.
    pub fn run_folder(&self, run: &RunId) -> PathBuf {
        self.results.join(run.as_str())
    }

    /// Starts a run: its folder, its journal and its entry in the index. A folder of that name must not exist.
    pub fn begin(&mut self, manifest: &Manifest) -> Result<RunWriter<'_>> {
        let folder = self.run_folder(&manifest.run);
        fs::create_dir(&folder).map_err(|e| Error::io("cannot make the run's folder", &folder, &e))?;
        let mut journal = JournalWriter::create(&folder)?;
        journal.append(&Event::RunStarted { manifest: Box::new(manifest.clone()) })?;
        let path = self.results.join(INDEX_FILE);
        let indexer = Indexer::begin(&self.db, manifest)
            .map_err(|e| schema::fault("cannot enter the run into the index", &path, &e))?;
        Ok(RunWriter { journal, indexer, db: &mut self.db, path })
    }

    /// All runs, newest first.
    pub fn runs(&self) -> Result<Vec<RunLine>> {
        let read = || -> rusqlite::Result<Vec<(String, String, String)>> {
            self.db
                .prepare("SELECT name, created, state FROM runs ORDER BY run_key DESC")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect()
        };
        let rows = read().map_err(|e| self.fault("cannot list the runs", &e))?;
        rows.into_iter()
            .map(|(name, created, state)| {
                Ok(RunLine { run: RunId::parse(&name)?, created, state: load::state_of(&state) })
            })
            .collect()
    }

    /// The run of that name; without a name the newest one.
    pub fn find(&self, name: Option<&str>) -> Result<RunId> {
        let runs = self.runs()?;
        let Some(name) = name else {
            return runs.into_iter().next().map(|line| line.run).ok_or_else(|| {
                Error::usage("there is no run yet")
                    .in_file(&self.results)
                    .hint("`farmgate run SCENARIO --model FILE` makes one; `farmgate demo` needs no model")
            });
        };
        let wanted = RunId::parse(name)?;
        if runs.iter().any(|line| line.run == wanted) {
            return Ok(wanted);
        }
        let names: Vec<&str> = runs.iter().map(|line| line.run.as_str()).collect();
        let hint = match nearest(name, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`farmgate report --list` shows the runs".to_owned(),
        };
        Err(Error::usage(format!("unknown run `{name}`")).in_file(&self.results).hint(hint))
    }

    /// Everything of one run.
    pub fn load(&self, run: &RunId) -> Result<RunData> {
        load::run(&self.db, run.as_str())
            .map_err(|e| self.fault("cannot read the run from the index", &e))?
            .ok_or_else(|| Error::usage(format!("unknown run `{run}`")).hint("`farmgate report --list` shows the runs"))
    }

    /// Why a device failed in each of its last runs, newest first; `None` for a run in which it did not.
    pub fn last_failures(&self, device: &str, runs_max: usize) -> Result<Vec<Option<String>>> {
        let read = || -> rusqlite::Result<Vec<Option<String>>> {
            self.db
                .prepare("SELECT failure FROM devices WHERE device = ?1 ORDER BY run_key DESC LIMIT ?2")?
                .query_map(rusqlite::params![device, runs_max as i64], |row| row.get(0))?
                .collect()
        };
        read().map_err(|e| self.fault("cannot read how the device fared", &e))
    }

    fn fault(&self, doing: &str, error: &rusqlite::Error) -> Error {
        schema::fault(doing, &self.results.join(INDEX_FILE), error)
    }
}

/// Makes the index again from the journals under `results`. The old index stays in force until the new one is whole.
pub fn rebuild(results: &Path, say: &mut dyn FnMut(&str)) -> Result<Rebuilt> {
    let journals = journals_under(results)?;
    let fresh = tempfile::Builder::new()
        .prefix(".index-")
        .tempdir_in(results)
        .map_err(|e| Error::io("cannot make a folder for the new index", results, &e))?;
    let path = fresh.path().join(INDEX_FILE);
    let mut db = schema::open(&path)?;
    let mut out = Rebuilt::default();
    for folder in runs_without_journal(results)? {
        out.damaged.push((folder, "the run's journal is gone, and with it the run".to_owned()));
    }
    for journal_path in journals {
        say(&journal_path.display().to_string());
        let tx = db.transaction().map_err(|e| schema::fault("cannot write the new index", &path, &e))?;
        let mut indexer: Option<Indexer> = None;
        let damage = journal::read(&journal_path, &mut |event| {
            out.events += 1;
            let applied = match (&indexer, &event) {
                (_, Event::RunStarted { manifest }) => Indexer::begin(&tx, manifest).map(|new| indexer = Some(new)),
                (Some(indexer), event) => indexer.apply(&tx, event),
                (None, _) => Ok(()),
            };
            applied.map_err(|e| schema::fault("cannot write the new index", &path, &e))
        })?;
        if let Some((line, why)) = damage.broken_line {
            out.damaged.push((journal_path.clone(), format!("line {line}: {why}")));
        }
        if indexer.is_none() && out.damaged.last().is_none_or(|(path, _)| *path != journal_path) {
            out.damaged.push((journal_path.clone(), "it does not begin with a run's start".to_owned()));
        }
        out.runs += usize::from(indexer.is_some());
        tx.commit().map_err(|e| schema::fault("cannot write the new index", &path, &e))?;
    }
    // without this the newest rows would stay behind in the write-ahead log
    db.pragma_update(None, "journal_mode", "DELETE")
        .and_then(|()| db.close().map_err(|(_, e)| e))
        .map_err(|e| schema::fault("cannot close the new index", &path, &e))?;
    replace_index(results, &path)?;
    Ok(out)
}

/// Journals of all runs, oldest first by the name of the run's folder, which begins with the time.
fn journals_under(results: &Path) -> Result<Vec<PathBuf>> {
    let fault = |e: &std::io::Error| {
        Error::io("cannot read the results folder", results, e)
            .with_exit(ExitCode::Usage)
            .hint("--results DIR names it; it is made by the first run")
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(results).map_err(|e| fault(&e))? {
        let path = entry.map_err(|e| fault(&e))?.path().join(journal::FILE_NAME);
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Folders that are named like runs, by date and time, and have no journal.
fn runs_without_journal(results: &Path) -> Result<Vec<PathBuf>> {
    let like_a_run = |name: &str| {
        let (day, rest) = name.split_once('-').unwrap_or((name, ""));
        day.len() == 8 && rest.len() >= 6 && name.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    };
    let entries = fs::read_dir(results).map_err(|e| Error::io("cannot read the results folder", results, &e))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(like_a_run))
        .map(|e| e.path())
        .filter(|path| path.is_dir() && !path.join(journal::FILE_NAME).is_file())
        .collect();
    found.sort();
    Ok(found)
}

fn replace_index(results: &Path, fresh: &Path) -> Result<()> {
    let target = results.join(INDEX_FILE);
    for leftover in ["-wal", "-shm"] {
        let path = results.join(format!("{INDEX_FILE}{leftover}"));
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("cannot remove the old index", &path, &e)),
        }
    }
    fs::rename(fresh, &target).map_err(|e| Error::io("cannot put the new index in place", &target, &e))
}

/// Appends to one run: journal first, then index.
pub struct RunWriter<'a> {
    journal: JournalWriter,
    indexer: Indexer,
    db: &'a mut Connection,
    path: PathBuf,
}

impl RunWriter<'_> {
    /// Keeps the durable ones among the events, in one transaction of the index. The journal has them before the index does.
    pub fn append_all(&mut self, events: &[Event]) -> Result<()> {
        for event in events {
            self.journal.append(event)?;
        }
        let index = |db: &mut Connection| -> rusqlite::Result<()> {
            let tx = db.transaction()?;
            for event in events.iter().filter(|e| e.is_durable()) {
                self.indexer.apply(&tx, event)?;
            }
            tx.commit()
        };
        index(self.db).map_err(|e| schema::fault("cannot write the index", &self.path, &e))
    }
}

#[cfg(test)]
mod tests;
