//! A run that did not come to its end, opened so that it can be gone on with.

use super::index::Indexer;
use super::journal::JournalWriter;
use super::{INDEX_FILE, RunWriter, Store, schema};
use crate::error::{Error, Result};
use crate::event::{Course, Event};
use crate::run::{RunId, RunState};

impl Store {
    /// Opens a run that did not come to its end, so that more can be appended. Its entry in the index is made again from
    /// the journal, which may know more.
    ///
    /// # Errors
    /// Usage: the run is complete, another farmgate carries it out, or its journal is damaged.
    pub fn resume(&mut self, run: &RunId) -> Result<(RunWriter<'_>, Course)> {
        let folder = self.run_folder(run);
        let path = self.results.join(INDEX_FILE);
        let fault = |e: &rusqlite::Error| schema::fault("cannot enter the run into the index", &path, e);
        let tx = self.db.transaction().map_err(|e| fault(&e))?;
        let mut indexer: Option<Indexer> = None;
        let mut course: Option<Course> = None;
        let journal = JournalWriter::reopen(&folder, &mut |event| {
            let applied = match (&indexer, &event) {
                (_, Event::RunStarted { manifest }) => Indexer::begin(&tx, manifest).map(|new| indexer = Some(new)),
                (Some(indexer), event) => indexer.apply(&tx, event),
                (None, _) => Ok(()),
            };
            applied.map_err(|e| fault(&e))?;
            match (&mut course, event) {
                (_, Event::RunStarted { manifest }) => course = Some(Course::new(*manifest)),
                (Some(course), event) => course.take(event),
                (None, _) => {}
            }
            Ok(())
        })?;
        let (Some(indexer), Some(course)) = (indexer, course) else {
            return Err(Error::usage(format!("the journal of run `{run}` does not begin with a run's start"))
                .in_file(&folder)
                .hint("start a new run"));
        };
        if course.state == RunState::Complete {
            return Err(Error::usage(format!("run `{run}` is complete: there is nothing to go on with"))
                .hint("`farmgate report` and `farmgate gate` show it; start a new run to measure again"));
        }
        tx.commit().map_err(|e| fault(&e))?;
        Ok((RunWriter { journal, indexer, db: &mut self.db, path }, course))
    }
}
