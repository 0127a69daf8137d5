//! `farmhand probe`: what is this device? How fast it is, `farmhand roofline` measures.

use super::args::{Args, Flag, Verb};
use super::json;
use crate::error::{EngineError, Result};
use crate::probe::{Tree, probe};
use std::io::IsTerminal;
use std::path::Path;

/// `farmhand probe`.
pub const VERB: Verb = Verb {
    name: "probe",
    summary: "ask what this device is and print its fingerprint as JSON; changes nothing (speeds: roofline, bench --profile)",
    positional: "",
    flags: &[
        Flag { names: &["--root"], value: Some("DIR"), help: "read /sys, /proc and /etc below DIR (default /)" },
        Flag { names: &["--pretty"], value: None, help: "one field a line (default on a terminal)" },
    ],
    shared: &[],
    run,
};

fn run(args: &Args) -> Result<u8> {
    let root = args.get("--root").unwrap_or("/");
    if !Path::new(root).is_dir() {
        return Err(EngineError::usage("the root to probe is no folder").at(root));
    }
    json::print(&probe(&Tree::new(root)), args.has("--pretty") || std::io::stdout().is_terminal())?;
    Ok(0)
}
