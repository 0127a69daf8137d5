//! The tables of the index, and how it is opened.

use crate::error::{Error, Result};
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

/// Rises with every change of the tables; an index of another version is made again from the journals.
pub const SCHEMA_VERSION: i64 = 2;

/// `samples.value` is NULL exactly when `samples.reason` is not: a value or the reason why there is none.
/// Example, all decode speeds of one device over time:
/// `SELECT r.name, s.value FROM samples s JOIN cells c USING (cell_key) JOIN runs r USING (run_key)
///  JOIN metrics m USING (metric_key) WHERE c.device = 'pixel-8' AND m.name = 'decode-tps@0' AND s.reason IS NULL`.
const TABLES: &str = "
CREATE TABLE runs (
    run_key INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    state TEXT NOT NULL,
    manifest_json TEXT NOT NULL
);
CREATE TABLE resumes (
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    at TEXT NOT NULL
);
CREATE TABLE devices (
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    device TEXT NOT NULL,
    fingerprint_json TEXT,
    engine_sha256 TEXT,
    clock_offset_ms INTEGER,
    failure TEXT,
    PRIMARY KEY (run_key, device)
) WITHOUT ROWID;
CREATE TABLE cells (
    cell_key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    device TEXT NOT NULL,
    cell INTEGER NOT NULL,
    plan_json TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    exit_json TEXT,
    duration_ms INTEGER,
    invalid_json TEXT NOT NULL DEFAULT '[]',
    proof_json TEXT,
    stderr_tail TEXT NOT NULL DEFAULT '',
    UNIQUE (run_key, device, cell)
);
CREATE TABLE metrics (
    metric_key INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
CREATE TABLE samples (
    cell_key INTEGER NOT NULL REFERENCES cells ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    repetition INTEGER NOT NULL,
    metric_key INTEGER NOT NULL REFERENCES metrics,
    value REAL,
    reason TEXT,
    CHECK ((value IS NULL) OR (value BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308)),
    CHECK (value IS NOT NULL OR reason IS NOT NULL)
);
CREATE INDEX samples_by_cell ON samples (cell_key);
CREATE TABLE token_times (
    cell_key INTEGER NOT NULL REFERENCES cells ON DELETE CASCADE,
    times_json TEXT NOT NULL
);
CREATE INDEX token_times_by_cell ON token_times (cell_key);
CREATE TABLE telemetry (
    cell_key INTEGER NOT NULL REFERENCES cells ON DELETE CASCADE,
    time_us INTEGER NOT NULL,
    reading_json TEXT NOT NULL
);
CREATE INDEX telemetry_by_cell ON telemetry (cell_key);
";

/// Opens the index, making its tables when it is new.
pub fn open(path: &Path) -> Result<Connection> {
    let db = Connection::open(path).map_err(|e| fault("cannot open the index", path, &e))?;
    db.busy_timeout(Duration::from_secs(10)).map_err(|e| fault("cannot set up the index", path, &e))?;
    let set_up = |db: &Connection| -> rusqlite::Result<i64> {
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        db.pragma_update(None, "foreign_keys", true)?;
        db.execute_batch("BEGIN IMMEDIATE")?;
        let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            db.execute_batch(TABLES)?;
            db.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        db.execute_batch("COMMIT")?;
        Ok(if version == 0 { SCHEMA_VERSION } else { version })
    };
    let version = set_up(&db).map_err(|e| fault("cannot set up the index", path, &e))?;
    if version != SCHEMA_VERSION {
        return Err(Error::usage(format!(
            "the index has schema version {version}, this farmgate needs {SCHEMA_VERSION}"
        ))
        .in_file(path)
        .hint("`farmgate store rebuild` makes it again from the journals"));
    }
    Ok(db)
}

/// An index fault: the journals are untouched by it, so the hint says how to make a new index.
pub fn fault(doing: &str, path: &Path, error: &rusqlite::Error) -> Error {
    Error::infra(format!("{doing}: {error}"))
        .in_file(path)
        .hint("check free space and rights of the folder; the journals are safe, and `farmgate store rebuild` makes the index again from them")
}
