//! From rows to a run's data.

use crate::run::{CellData, DeviceData, DeviceFacts, Manifest, RunData, RunState, Sample};
use farmgate_engine::protocol::{CellPlan, Finite, Validity};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use std::collections::HashMap;

type Sql<T> = rusqlite::Result<T>;

/// Everything of one run; `None` when there is no such run.
pub fn run(db: &Connection, name: &str) -> Sql<Option<RunData>> {
    let found = db
        .query_row("SELECT run_key, state, manifest_json FROM runs WHERE name = ?1", [name], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, json_at::<Manifest>(row, 2)?))
        })
        .optional()?;
    let Some((run_key, state, manifest)) = found else {
        return Ok(None);
    };
    let resumed = db
        .prepare("SELECT at FROM resumes WHERE run_key = ?1 ORDER BY rowid")?
        .query_map([run_key], |row| row.get(0))?
        .collect::<Sql<Vec<String>>>()?;
    let devices = manifest.devices.iter().map(|facts| device(db, run_key, facts)).collect::<Sql<Vec<_>>>()?;
    Ok(Some(RunData { manifest, state: state_of(&state), resumed, devices }))
}

/// The state that a row names; anything unknown counts as unfinished, which can never be GO.
pub fn state_of(text: &str) -> RunState {
    [RunState::Complete, RunState::Interrupted]
        .into_iter()
        .find(|state| state.as_str() == text)
        .unwrap_or(RunState::Unfinished)
}

fn device(db: &Connection, run_key: i64, facts: &DeviceFacts) -> Sql<DeviceData> {
    let mut data = db.query_row(
        "SELECT fingerprint_json, engine_sha256, failure FROM devices WHERE run_key = ?1 AND device = ?2",
        params![run_key, facts.device],
        |row| {
            Ok(DeviceData {
                facts: facts.clone(),
                fingerprint: optional_json_at(row, 0)?,
                engine_sha256: row.get(1)?,
                failure: row.get(2)?,
                cells: Vec::new(),
            })
        },
    )?;
    let mut keys = HashMap::new();
    let mut query = db.prepare(
        "SELECT cell_key, plan_json, attempts, exit_json, duration_ms, invalid_json, proof_json, stderr_tail
         FROM cells WHERE run_key = ?1 AND device = ?2 ORDER BY cell",
    )?;
    let mut rows = query.query(params![run_key, facts.device])?;
    while let Some(row) = rows.next()? {
        keys.insert(row.get::<_, i64>(0)?, data.cells.len());
        data.cells.push(cell(row)?);
    }
    fill_samples(db, run_key, &facts.device, &keys, &mut data.cells)?;
    fill_json(db, "SELECT cell_key, times_json, 0 FROM token_times", &keys, |at, times, _| {
        data.cells[at].token_times.push(times);
    })?;
    fill_json(db, "SELECT cell_key, reading_json, time_us FROM telemetry", &keys, |at, reading, time_us| {
        data.cells[at].telemetry.push((time_us as u64, reading));
    })?;
    Ok(data)
}

fn cell(row: &Row<'_>) -> Sql<CellData> {
    let plan: CellPlan = json_at(row, 1)?;
    Ok(CellData {
        cell: plan.cell,
        scenario: plan.scenario,
        arm: plan.arm,
        pair: plan.pair,
        slot: plan.slot,
        model_sha256: plan.model.sha256,
        config: plan.config,
        attempts: row.get(2)?,
        exit: optional_json_at(row, 3)?,
        duration_ms: row.get::<_, Option<i64>>(4)?.map(|ms| ms as u64),
        invalid: json_at(row, 5)?,
        proof: optional_json_at(row, 6)?,
        samples: Vec::new(),
        token_times: Vec::new(),
        telemetry: Vec::new(),
        stderr_tail: row.get(7)?,
    })
}

fn fill_samples(
    db: &Connection,
    run_key: i64,
    device: &str,
    keys: &HashMap<i64, usize>,
    cells: &mut [CellData],
) -> Sql<()> {
    let mut query = db.prepare(
        "SELECT s.cell_key, s.attempt, s.step, s.repetition, m.name, s.value, s.reason
         FROM cells c JOIN samples s USING (cell_key) JOIN metrics m USING (metric_key)
         WHERE c.run_key = ?1 AND c.device = ?2 ORDER BY s.rowid",
    )?;
    let mut rows = query.query(params![run_key, device])?;
    while let Some(row) = rows.next()? {
        let Some(&at) = keys.get(&row.get::<_, i64>(0)?) else { continue };
        cells[at].samples.push(Sample {
            attempt: row.get(1)?,
            step: row.get(2)?,
            repetition: row.get(3)?,
            metric: row.get(4)?,
            value: row.get::<_, Option<f64>>(5)?.and_then(Finite::new),
            validity: optional_json_at(row, 6)?.map_or(Validity::Valid, Validity::Invalid),
        });
    }
    Ok(())
}

/// Runs `select … FROM table` restricted to the given cells and hands each row's JSON to `put`.
fn fill_json<T: DeserializeOwned>(
    db: &Connection,
    select: &str,
    keys: &HashMap<i64, usize>,
    mut put: impl FnMut(usize, T, i64),
) -> Sql<()> {
    let mut query = db.prepare(&format!("{select} WHERE cell_key = ?1 ORDER BY rowid"))?;
    let mut ordered: Vec<(i64, usize)> = keys.iter().map(|(key, at)| (*key, *at)).collect();
    ordered.sort_unstable();
    for (cell_key, at) in ordered {
        let mut rows = query.query([cell_key])?;
        while let Some(row) = rows.next()? {
            put(at, json_at(row, 1)?, row.get(2)?);
        }
    }
    Ok(())
}

fn json_at<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Sql<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|e| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(e)))
}

fn optional_json_at<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Sql<Option<T>> {
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => json_at(row, column).map(Some),
    }
}
