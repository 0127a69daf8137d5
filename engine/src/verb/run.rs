//! `farmhand run`: carry out a device plan.

use super::args::{Args, Flag, Verb};
use super::json;
use crate::error::Result;
use crate::supervise::{Ending, Orders, detach, run as supervise};
use std::path::PathBuf;

/// `farmhand run`.
pub const VERB: Verb = Verb {
    name: "run",
    summary: "carry out a device plan, each cell in a process of its own, and journal what happens",
    positional: "",
    flags: &[
        Flag { names: &["--plan"], value: Some("FILE"), help: "the device plan (required)" },
        Flag {
            names: &["--journal"],
            value: Some("FILE"),
            help: "the journal; an unfinished one is continued (required)",
        },
        Flag {
            names: &["--detach"],
            value: None,
            help: "go on alone, print the process number, log beside the journal",
        },
        Flag { names: &["--pid-file"], value: Some("FILE"), help: "leave the process number here while running" },
        Flag { names: &["--announce"], value: None, help: "print a line once the first record is in the journal" },
        Flag { names: &["--root"], value: Some("DIR"), help: "read the device's /sys and /proc below DIR (default /)" },
        Flag {
            names: &["--workdir"],
            value: Some("DIR"),
            help: "folder of the lease (default: the journal's, or above it)",
        },
    ],
    shared: &[],
    run,
};

/// Exit code of a run that was asked to stop: what a shell shows for SIGINT.
const INTERRUPTED: u8 = 130;

fn run(args: &Args) -> Result<u8> {
    let orders = Orders {
        plan: args.require("--plan")?.into(),
        journal: args.require("--journal")?.into(),
        pid_file: args.get("--pid-file").map(PathBuf::from),
        root: args.get("--root").unwrap_or("/").into(),
        workdir: args.get("--workdir").map(PathBuf::from),
    };
    if args.has("--detach") {
        json::print(&detach(&orders)?, false)?;
        return Ok(0);
    }
    let announce = args.has("--announce");
    let mut on_started = || {
        if announce {
            // whoever wanted to know may be gone: the run goes on
            let _ = json::print(&serde_json::json!({ "started": orders.journal.display().to_string() }), false);
        }
    };
    Ok(match supervise(&orders, &mut on_started)? {
        Ending::Complete => 0,
        Ending::Interrupted => INTERRUPTED,
    })
}
