//! `farmhand exec`: the child of a cell. Started by `farmhand run`; can be started by hand to see one cell's records.

use super::args::{Args, Flag, Verb};
use crate::clock;
use crate::error::{EngineError, Result};
use crate::execute::{Errand, execute, read_plan};
use std::io::Write;
use std::path::Path;

/// `farmhand exec`.
pub const VERB: Verb = Verb {
    name: "exec",
    summary: "carry out one cell of a plan in this process and print its records as JSON lines",
    positional: "",
    flags: &[
        Flag { names: &["--plan"], value: Some("FILE"), help: "the device plan, - for stdin (required)" },
        Flag { names: &["--cell"], value: Some("N"), help: "number of the cell in the plan (required)" },
        Flag { names: &["--attempt"], value: Some("N"), help: "which attempt this is, from 0 (default 0)" },
        Flag { names: &["--started-us"], value: Some("T"), help: "monotonic clock at the spawn (default now)" },
        Flag { names: &["--eviction"], value: Some("HOW"), help: "none, posix_fadvise or drop_caches (default none)" },
        Flag { names: &["--bandwidth"], value: Some("JSON"), help: "what the workers read from memory at best" },
        Flag { names: &["--verified"], value: Some("JSON"), help: "files whose hashes were compared with the plan" },
    ],
    shared: &[],
    run,
};

fn run(args: &Args) -> Result<u8> {
    let started_us = args.number("--started-us", clock::monotonic_us())?;
    let plan = read_plan(Path::new(args.require("--plan")?))?;
    args.require("--cell")?;
    let number: u32 = args.number("--cell", 0)?;
    let cell = plan
        .cells
        .iter()
        .find(|c| c.cell == number)
        .ok_or_else(|| EngineError::usage(format!("the plan has no cell {number}")))?;
    let eviction = args.get("--eviction").unwrap_or("none");
    if !["none", "posix_fadvise", "drop_caches"].contains(&eviction) {
        return Err(EngineError::usage("`--eviction` is one of none, posix_fadvise, drop_caches"));
    }
    let verified = match args.get("--verified") {
        Some(json) => serde_json::from_str(json)
            .map_err(|e| EngineError::usage(format!("`--verified` is not understood: {e}")))?,
        None => Vec::new(),
    };
    let bandwidth = match args.get("--bandwidth") {
        Some(json) => Some(
            serde_json::from_str(json)
                .map_err(|e| EngineError::usage(format!("`--bandwidth` is not understood: {e}")))?,
        ),
        None => None,
    };
    let attempt = args.number("--attempt", 0)?;
    let errand = Errand { cell, attempt, started_us, eviction: eviction.to_owned(), verified, bandwidth };
    execute(&errand, &mut |record| {
        let mut line =
            serde_json::to_vec(&record).map_err(|e| EngineError::system(format!("cannot encode a record: {e}")))?;
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        out.write_all(&line).and_then(|()| out.flush()).map_err(|e| EngineError::io("cannot tell the supervisor", &e))
    })?;
    Ok(0)
}
