//! Reading a device plan: everything that can be wrong with it is said before anything runs.

use crate::error::{EngineError, Result};
use crate::protocol::{CellPlan, DevicePlan, EngineConfig, Finite, PROTOCOL_VERSION, Step};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const PLAN_BYTES_MAX: u64 = 64 << 20;
const CELLS_MAX: usize = 100_000;
const STEPS_MAX: usize = 1_000;
const REPETITIONS_MAX: u32 = 10_000;
const RETRIES_MAX: u32 = 10;
const NAME_BYTES_MAX: usize = 128;
const THREADS_MAX: u32 = 1_024;
const CONTEXT_TOKENS_MAX: u32 = 1 << 24;
const TIMEOUT_MS_MAX: u64 = 7 * 24 * 3_600_000;
const COOL_DOWN_TIMEOUT_MS_MAX: u64 = 24 * 3_600_000;
const TELEMETRY_PERIOD_MS: std::ops::RangeInclusive<u64> = 20..=3_600_000;
/// One more than the times that a `token-times` record may hold.
const DECODE_TOKENS_MAX: u32 = 65_537;
/// Their identities travel on the command line of the child.
const FILES_MAX: usize = 256;

/// Reads and checks a plan; `-` is stdin. Errors are protocol errors that name the cell and the step.
pub fn read_plan(path: &Path) -> Result<DevicePlan> {
    let place = path.display().to_string();
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().lock().take(PLAN_BYTES_MAX + 1).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(PLAN_BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|e| EngineError::usage(format!("cannot read the plan: {e}")).at(place.clone()))?;
    if bytes.len() as u64 > PLAN_BYTES_MAX {
        return Err(EngineError::protocol(format!("the plan is longer than {PLAN_BYTES_MAX} bytes")).at(place));
    }
    check_version(&bytes).map_err(|e| e.at(place.clone()))?;
    let plan: DevicePlan = serde_json::from_slice(&bytes)
        .map_err(|e| EngineError::protocol(format!("the plan is not understood: {e}")).at(place.clone()))?;
    check(&plan).map_err(|what| EngineError::protocol(what).at(place))?;
    Ok(plan)
}

/// The version first: a plan of another version would fail somewhere else with a message that leads astray.
fn check_version(bytes: &[u8]) -> Result<()> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Version {
        protocol_version: u32,
    }
    let stated = serde_json::from_slice::<Version>(bytes)
        .map_err(|e| EngineError::protocol(format!("the plan is not understood: {e}")))?
        .protocol_version;
    if stated == PROTOCOL_VERSION {
        return Ok(());
    }
    Err(EngineError::protocol(format!(
        "the plan has protocol version {stated}, this farmhand speaks {PROTOCOL_VERSION}"
    ))
    .hint("use farmgate and farmhand of the same version"))
}

type Checked = std::result::Result<(), String>;

fn check(plan: &DevicePlan) -> Checked {
    name("run", &plan.run)?;
    name("device", &plan.device)?;
    // none would end well with nothing measured
    within("number of cells", plan.cells.len(), 1..=CELLS_MAX)?;
    at_most("retries-max", plan.retries_max, RETRIES_MAX)?;
    if plan.telemetry_period_ms != 0 {
        within("telemetry-period-ms", plan.telemetry_period_ms, TELEMETRY_PERIOD_MS)?;
    }
    check_ready(plan).map_err(|what| format!("ready: {what}"))?;
    let mut seen = BTreeSet::new();
    for cell in &plan.cells {
        if !seen.insert(cell.cell) {
            return Err(format!("cell {} appears twice", cell.cell));
        }
        check_cell(cell).map_err(|what| format!("cell {}: {what}", cell.cell))?;
    }
    Ok(())
}

fn check_ready(plan: &DevicePlan) -> Checked {
    let ready = &plan.ready;
    let number = |what: &str, value: Option<Finite>, range| value.map_or(Ok(()), |v| within(what, v.get(), range));
    number("temperature-margin-c", ready.temperature_margin_c, 0.0..=100.0)?;
    number("idle-temperature-c", ready.idle_temperature_c, -40.0..=125.0)?;
    number("temperature-max-c", ready.temperature_max_c, -40.0..=125.0)?;
    number("foreign-cpu-percent-max", ready.foreign_cpu_percent_max, 0.0..=100_000.0)?;
    number("clock-ratio-min", ready.clock_ratio_min, 0.0..=1.0)?;
    number("sentinel-ratio-min", ready.sentinel_ratio_min, 0.0..=1.0)?;
    at_most("battery-percent-min", ready.battery_percent_min.unwrap_or(0), 100)?;
    at_most("cool-down-timeout-ms", ready.cool_down_timeout_ms, COOL_DOWN_TIMEOUT_MS_MAX)?;
    within("poll-period-ms", ready.poll_period_ms, TELEMETRY_PERIOD_MS)?;
    if !ready.is_off() && plan.telemetry_period_ms == 0 {
        return Err("what a device does during a cell is seen by telemetry, which is turned off".into());
    }
    Ok(())
}

fn check_cell(cell: &CellPlan) -> Checked {
    name("scenario", &cell.scenario)?;
    at_most("threads", cell.config.threads, THREADS_MAX)?;
    at_most("threads-batch", cell.config.threads_batch, THREADS_MAX)?;
    if !cell.config.cpus.is_empty() && cell.config.cpu_clusters.is_some() {
        return Err("cpus and cpu-clusters both name cores".into());
    }
    within("context-tokens", cell.config.context_tokens, 1..=CONTEXT_TOKENS_MAX)?;
    within("load-timeout-ms", cell.load_timeout_ms, 1..=TIMEOUT_MS_MAX)?;
    within("cell-timeout-ms", cell.cell_timeout_ms, 1..=TIMEOUT_MS_MAX)?;
    within("number of model hashes", cell.model.sha256.len(), 1..=FILES_MAX)?;
    let is_hash = |h: &String| h.len() == 64 && h.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !cell.model.sha256.iter().all(is_hash) {
        return Err("a model's sha256 is 64 lower-case hex digits".into());
    }
    within("number of steps", cell.steps.len(), 1..=STEPS_MAX)?;
    for (index, step) in cell.steps.iter().enumerate() {
        let is_load = matches!(step, Step::Load { .. });
        if is_load != (index == 0) {
            return Err("a cell begins with its only `load` step".into());
        }
        check_step(step, &cell.config).map_err(|what| format!("step {index} (`{}`): {what}", step.name()))?;
    }
    Ok(())
}

fn check_step(step: &Step, config: &EngineConfig) -> Checked {
    match step {
        Step::Load { .. } => Ok(()),
        Step::WarmUp { prompt_tokens, decode_tokens } => {
            within("decode-tokens", *decode_tokens, 1..=DECODE_TOKENS_MAX)?;
            fits(*prompt_tokens, *decode_tokens, config)
        }
        Step::Prefill { prompt_tokens, repetitions } => {
            within("repetitions", *repetitions, 1..=REPETITIONS_MAX)?;
            fits(*prompt_tokens, 1, config)
        }
        Step::Decode { decode_tokens, at_depth, repetitions } => {
            within("repetitions", *repetitions, 1..=REPETITIONS_MAX)?;
            within("decode-tokens", *decode_tokens, 2..=DECODE_TOKENS_MAX)?;
            fits((*at_depth).max(1), *decode_tokens, config)
        }
        Step::Answer { label, prompt_tokens, decode_tokens } => {
            name("label", label)?;
            within("decode-tokens", *decode_tokens, 2..=DECODE_TOKENS_MAX)?;
            fits(*prompt_tokens, *decode_tokens, config)
        }
        Step::Golden { cases } => cases.iter().try_for_each(|case| {
            let length = |ids: &[u32]| u32::try_from(ids.len()).unwrap_or(u32::MAX);
            within("number of generated-ids", case.generated_ids.len(), 1..=DECODE_TOKENS_MAX as usize)?;
            fits(length(&case.prompt_ids), length(&case.generated_ids), config)
        }),
    }
}

/// The last generated token is not put into the cache.
fn fits(prompt_tokens: u32, decode_tokens: u32, config: &EngineConfig) -> Checked {
    if prompt_tokens == 0 {
        return Err("a prompt has at least one token".into());
    }
    let needed = u64::from(prompt_tokens) + u64::from(decode_tokens) - 1;
    if needed <= u64::from(config.context_tokens) {
        return Ok(());
    }
    Err(format!("it needs {needed} tokens of context, the cell's configuration has {}", config.context_tokens))
}

fn within<T: PartialOrd + std::fmt::Display>(what: &str, value: T, range: std::ops::RangeInclusive<T>) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{what} is {value}, it must be {} to {}", range.start(), range.end()))
}

fn at_most<T: PartialOrd + std::fmt::Display>(what: &str, value: T, limit: T) -> Checked {
    if value <= limit { Ok(()) } else { Err(format!("{what} is {value}, it must be at most {limit}")) }
}

/// Names end up in metrics, reports and file names.
fn name(what: &str, value: &str) -> Checked {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if (1..=NAME_BYTES_MAX).contains(&value.len()) && value.bytes().all(is_plain) {
        return Ok(());
    }
    Err(format!(
        "{what}: `{}` is no name of letters, digits, `-`, `_`, `.`",
        crate::text::escaped(value.as_bytes(), 80)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn plan() -> Value {
        json!({
            "protocol-version": PROTOCOL_VERSION, "run": "r-1", "device": "local", "telemetry-period-ms": 1000,
            "retries-max": 1, "lease-token": null, "ready": {},
            "cells": [{
                "cell": 0, "scenario": "smoke", "arm": "candidate", "pair": 0, "slot": 0, "seed": 1,
                "model": { "path": "/m.gguf", "sha256": ["0".repeat(64)] },
                "config": { "threads": 1, "context-tokens": 128, "kv-type": "f16", "mmap": true },
                "steps": [{ "load": {} }, { "decode": { "decode-tokens": 8, "at-depth": 16 } }],
                "load-timeout-ms": 1000, "cell-timeout-ms": 1000
            }]
        })
    }

    fn read(value: &Value) -> Result<DevicePlan> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        std::fs::write(&path, value.to_string()).unwrap();
        read_plan(&path)
    }

    #[test]
    fn a_good_plan_is_read_with_its_defaults() {
        let plan = read(&plan()).unwrap();
        assert_eq!(plan.cells[0].steps[1], Step::Decode { decode_tokens: 8, at_depth: 16, repetitions: 1 });
    }

    #[test]
    fn what_is_wrong_is_named_with_its_cell_and_step() {
        let cases: &[(&str, Value, &str)] = &[
            ("/protocol-version", json!(99), "protocol version 99"),
            ("/run", json!("../x"), "is no name"),
            ("/retries-max", json!(11), "retries-max is 11"),
            ("/telemetry-period-ms", json!(1), "telemetry-period-ms is 1"),
            ("/cells", json!([]), "number of cells is 0"),
            ("/cells/0/model/sha256", json!([]), "cell 0: number of model hashes is 0"),
            ("/cells/0/model/sha256", json!(["ABC"]), "64 lower-case hex digits"),
            ("/cells/0/config/context-tokens", json!(20), "step 1 (`decode`): it needs 23 tokens of context"),
            ("/cells/0/steps", json!([{ "decode": { "decode-tokens": 8 } }]), "begins with its only `load` step"),
            ("/cells/0/steps", json!([{ "load": {} }, { "load": {} }]), "begins with its only `load` step"),
            ("/cells/0/steps/1/decode/decode-tokens", json!(1), "decode-tokens is 1, it must be 2 to 65537"),
            ("/cells/0/steps/1", json!({ "prefill": { "prompt-tokens": 0 } }), "at least one token"),
            ("/cells/0/steps/1", json!({ "sing": {} }), "sing"),
            (
                "/cells/0/config",
                json!({ "threads": 1, "context-tokens": 128, "kv-type": "f16", "mmap": true, "cpus": "4-7,0",
                        "cpu-clusters": "big" }),
                "cell 0: cpus and cpu-clusters both name cores",
            ),
            ("/cells/0/load-timeout-ms", json!(0), "load-timeout-ms is 0"),
            ("/ready", json!({ "clock-ratio-min": 80 }), "ready: clock-ratio-min is 80, it must be 0 to 1"),
            ("/ready", json!({ "poll-period-ms": 0 }), "ready: poll-period-ms is 0"),
            ("/ready", json!({ "temperature-margin": 5 }), "unknown field `temperature-margin`"),
        ];
        for (pointer, value, expected) in cases {
            let mut plan = plan();
            *plan.pointer_mut(pointer).unwrap() = value.clone();
            let error = read(&plan).unwrap_err();
            assert!(error.to_string().contains(expected), "{pointer}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn criteria_need_telemetry() {
        let mut plan = plan();
        plan["telemetry-period-ms"] = json!(0);
        assert!(read(&plan).is_ok(), "no criteria, no need");
        plan["ready"] = json!({ "thermal-status": true });
        assert!(read(&plan).unwrap_err().to_string().contains("telemetry, which is turned off"));
    }

    #[test]
    fn the_same_cell_twice_is_refused() {
        let mut plan = plan();
        let cell = plan["cells"][0].clone();
        plan["cells"].as_array_mut().unwrap().push(cell);
        assert!(read(&plan).unwrap_err().to_string().contains("cell 0 appears twice"));
    }
}
