//! From events to rows. The same code serves a live run and `farmgate store rebuild`, so the two cannot differ.

use crate::event::Event;
use crate::run::{Manifest, RunState};
use farmgate_engine::protocol::{CellPlan, DevicePlan, Record, SampleRecord, Validity};
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

type Sql<T> = rusqlite::Result<T>;

/// Writes one run's events into the index.
pub struct Indexer {
    run_key: i64,
}

impl Indexer {
    /// Starts a run; an older entry of the same name is replaced.
    pub fn begin(db: &Connection, manifest: &Manifest) -> Sql<Self> {
        db.execute("DELETE FROM runs WHERE name = ?1", [manifest.run.as_str()])?;
        db.execute(
            "INSERT INTO runs (name, created, state, manifest_json) VALUES (?1, ?2, ?3, ?4)",
            params![manifest.run.as_str(), manifest.created, RunState::Unfinished.as_str(), json(manifest)?],
        )?;
        let run_key = db.last_insert_rowid();
        for facts in &manifest.devices {
            db.execute("INSERT INTO devices (run_key, device) VALUES (?1, ?2)", params![run_key, facts.device])?;
        }
        Ok(Self { run_key })
    }

    /// Applies one durable event. Events of devices that the manifest does not name are ignored.
    pub fn apply(&self, db: &Connection, event: &Event) -> Sql<()> {
        match event {
            Event::RunStarted { .. } | Event::Progress { .. } | Event::DeviceFinished { .. } => Ok(()),
            Event::RunResumed { at } => {
                db.execute("INSERT INTO resumes (run_key, at) VALUES (?1, ?2)", params![self.run_key, at])?;
                db.execute(
                    "UPDATE runs SET state = ?2 WHERE run_key = ?1",
                    params![self.run_key, RunState::Unfinished.as_str()],
                )?;
                Ok(())
            }
            // whatever failed before, the device is there again
            Event::DeviceOpened { device, fingerprint, engine_sha256, clock_offset_ms } => {
                db.execute(
                    "UPDATE devices SET fingerprint_json = ?3, engine_sha256 = ?4, clock_offset_ms = ?5, failure = NULL
                     WHERE run_key = ?1 AND device = ?2",
                    params![self.run_key, device, json(fingerprint)?, engine_sha256, clock_offset_ms],
                )?;
                Ok(())
            }
            Event::DevicePlanned { device, plan } => self.plan(db, device, plan),
            Event::DeviceRecord { device, framed } => self.record(db, device, framed.time_us, &framed.record),
            Event::DeviceFailed { device, reason } => {
                db.execute(
                    "UPDATE devices SET failure = ?3 WHERE run_key = ?1 AND device = ?2",
                    params![self.run_key, device, reason],
                )?;
                Ok(())
            }
            Event::RunEnded { state } => {
                db.execute("UPDATE runs SET state = ?2 WHERE run_key = ?1", params![self.run_key, state.as_str()])?;
                Ok(())
            }
        }
    }

    fn plan(&self, db: &Connection, device: &str, plan: &DevicePlan) -> Sql<()> {
        // a run that is gone on with plans its cells again, and those that were measured stay
        let mut insert = db.prepare_cached(
            "INSERT INTO cells (run_key, device, cell, plan_json) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (run_key, device, cell) DO UPDATE SET plan_json = excluded.plan_json",
        )?;
        for cell in &plan.cells {
            // the steps stay in the journal; the index needs what names the cell
            let slim = CellPlan { steps: Vec::new(), ..cell.clone() };
            insert.execute(params![self.run_key, device, cell.cell, json(&slim)?])?;
        }
        Ok(())
    }

    fn record(&self, db: &Connection, device: &str, time_us: u64, record: &Record) -> Sql<()> {
        let cell = match record {
            Record::JournalStart { .. } | Record::JournalEnd { .. } => return Ok(()),
            // they stay in the journal: how a wait ended is told by the attempt that follows
            Record::ReadyBasis { .. } | Record::Waiting { .. } => return Ok(()),
            Record::CellStart { cell, .. } | Record::Proof { cell, .. } | Record::CellEnd { cell, .. } => *cell,
            Record::Sample(sample) => sample.cell,
            Record::TokenTimes(times) => times.cell,
            Record::Telemetry(telemetry) => telemetry.cell,
        };
        let Some(cell_key) = self.cell_key(db, device, cell)? else {
            log::warn!("device {device} speaks of cell {cell}, which is not in its plan");
            return Ok(());
        };
        match record {
            Record::JournalStart { .. }
            | Record::JournalEnd { .. }
            | Record::ReadyBasis { .. }
            | Record::Waiting { .. } => {}
            Record::CellStart { attempt, .. } => {
                db.execute(
                    "UPDATE cells SET attempts = ?2, exit_json = NULL, duration_ms = NULL, invalid_json = '[]',
                     proof_json = NULL, stderr_tail = '' WHERE cell_key = ?1",
                    params![cell_key, attempt + 1],
                )?;
            }
            Record::Proof { proof, .. } => {
                db.execute("UPDATE cells SET proof_json = ?2 WHERE cell_key = ?1", params![cell_key, json(proof)?])?;
            }
            Record::CellEnd { exit, duration_ms, invalid, stderr_tail, .. } => {
                db.execute(
                    "UPDATE cells SET exit_json = ?2, duration_ms = ?3, invalid_json = ?4, stderr_tail = ?5
                     WHERE cell_key = ?1",
                    params![cell_key, json(exit)?, *duration_ms as i64, json(invalid)?, stderr_tail],
                )?;
            }
            Record::Sample(sample) => insert_sample(db, cell_key, sample)?,
            Record::TokenTimes(times) => {
                db.prepare_cached("INSERT INTO token_times (cell_key, times_json) VALUES (?1, ?2)")?
                    .execute(params![cell_key, json(times)?])?;
            }
            Record::Telemetry(telemetry) => {
                db.prepare_cached("INSERT INTO telemetry (cell_key, time_us, reading_json) VALUES (?1, ?2, ?3)")?
                    .execute(params![cell_key, time_us as i64, json(telemetry)?])?;
            }
        }
        Ok(())
    }

    fn cell_key(&self, db: &Connection, device: &str, cell: u32) -> Sql<Option<i64>> {
        db.prepare_cached("SELECT cell_key FROM cells WHERE run_key = ?1 AND device = ?2 AND cell = ?3")?
            .query_row(params![self.run_key, device, cell], |row| row.get(0))
            .optional()
    }
}

fn insert_sample(db: &Connection, cell_key: i64, sample: &SampleRecord) -> Sql<()> {
    db.prepare_cached("INSERT OR IGNORE INTO metrics (name) VALUES (?1)")?.execute([&sample.metric])?;
    let reason = match (&sample.validity, sample.value) {
        (Validity::Invalid(reason), _) => Some(json(reason)?),
        // a device that calls a missing value valid contradicts itself
        (Validity::Valid, None) => Some(json(&farmgate_engine::protocol::ReasonCode::NotFinite)?),
        (Validity::Valid, Some(_)) => None,
    };
    db.prepare_cached(
        "INSERT INTO samples (cell_key, attempt, step, repetition, metric_key, value, reason)
         SELECT ?1, ?2, ?3, ?4, metric_key, ?6, ?7 FROM metrics WHERE name = ?5",
    )?
    .execute(params![
        cell_key,
        sample.attempt,
        sample.step,
        sample.repetition,
        sample.metric,
        sample.value.map(|v| v.get()),
        reason
    ])?;
    Ok(())
}

/// JSON for a column. A type of this crate that cannot be JSON is a bug, passed on as SQLite's own error.
fn json<T: Serialize>(value: &T) -> Sql<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}
