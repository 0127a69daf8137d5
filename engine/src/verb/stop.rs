//! `farmhand stop`: end a run in good order.

use super::args::{Args, Flag, Verb};
use super::json;
use crate::error::Result;
use crate::supervise::stop;
use std::path::Path;
use std::time::Duration;

/// `farmhand stop`.
pub const VERB: Verb = Verb {
    name: "stop",
    summary: "end the run that a pid file names, and wait until its journal is closed",
    positional: "",
    flags: &[
        Flag {
            names: &["--pid-file"],
            value: Some("FILE"),
            help: "the pid file that `farmhand run` was given (required)",
        },
        Flag { names: &["--timeout-ms"], value: Some("N"), help: "how long to wait for its end (default 10000)" },
    ],
    shared: &[],
    run,
};

fn run(args: &Args) -> Result<u8> {
    let patience = Duration::from_millis(args.number("--timeout-ms", 10_000)?);
    json::print(&stop(Path::new(args.require("--pid-file")?), patience)?, false)?;
    Ok(0)
}
