//! `--profile FILE` of the verbs that run a model: a trace goes into the file, tables go to stderr.

use super::args::{Args, Flag};
use super::trace_file::TraceFile;
use crate::error::{EngineError, Result};
use crate::model::Session;
use crate::profile::{Ceilings, Profile, table, write_trace};
use crate::roofline::{ROUNDS_QUICK, Request, Roofline};
use crate::text::one_line;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Asks for a profile.
const PROFILE: Flag = Flag {
    names: &["--profile"],
    value: Some("FILE"),
    help: "record every operator: trace for Perfetto into FILE (not stdout), tables on stderr",
};
/// Says what to hold a profile against.
const ROOFLINE: Flag = Flag {
    names: &["--roofline"],
    value: Some("FILE"),
    help: "ceilings for --profile (measured after the run) and for bench's mbu, from `farmhand roofline -o json`",
};

/// Both.
pub const FLAGS: &[Flag] = &[PROFILE, ROOFLINE];

/// What was asked for, and what has been recorded.
pub struct Profiling {
    trace: Option<TraceFile>,
    ceilings: Option<(PathBuf, Roofline)>,
    recordings: RefCell<Vec<(String, Profile)>>,
}

impl Profiling {
    /// Reads the ceilings and tries the trace's place, so that a run does not end with what is known at its begin. Errors of
    /// both files.
    pub fn from_args(args: &Args) -> Result<Self> {
        let read = |path| Roofline::read(Path::new(path)).map(|roofline| (PathBuf::from(path), roofline));
        let ceilings = args.get("--roofline").map(read).transpose()?;
        let trace = args.get("--profile").map(TraceFile::new).transpose()?;
        Ok(Self { trace, ceilings, recordings: RefCell::new(Vec::new()) })
    }

    /// A usage error for ceilings without a profile: for verbs that have no other use for them.
    pub fn refuse_ceilings_alone(args: &Args) -> Result<()> {
        if args.get("--roofline").is_some() && args.get("--profile").is_none() {
            return Err(EngineError::usage("`--roofline` says what to hold a profile against, but there is none")
                .hint("add --profile FILE"));
        }
        Ok(())
    }

    /// The ceilings that were given.
    pub fn roofline(&self) -> Option<&Roofline> {
        self.ceilings.as_ref().map(|(_, roofline)| roofline)
    }

    /// Begins to record, if that was asked for.
    pub fn start(&self, session: &mut Session) {
        if self.trace.is_some() {
            session.start_profile();
        }
    }

    /// Ends the session's recording and keeps it under `name`.
    pub fn keep(&self, session: &mut Session, name: &str) {
        if let Some(profile) = session.take_profile() {
            self.recordings.borrow_mut().push((name.to_owned(), profile));
        }
    }

    /// Writes the trace and prints the tables, which are told even where the trace has no room. Measures the ceilings where
    /// they were not given, so nothing else should run any more. System errors of writing and of measuring.
    pub fn finish(self) -> Result<()> {
        let Some(trace) = self.trace else { return Ok(()) };
        let recordings = self.recordings.into_inner();
        let written = trace.write(|out| write_trace(out, &recordings));
        let (source, roofline) = match self.ceilings {
            Some((path, roofline)) => (one_line(&path.to_string_lossy()), roofline),
            None => {
                let threads: BTreeSet<usize> = recordings.iter().map(|(_, profile)| profile.threads).collect();
                let threads = threads.into_iter().collect();
                let request = Request { threads, rounds: ROUNDS_QUICK, buffer_bytes: None };
                ("measured after the run".to_owned(), Roofline::measure(&request)?)
            }
        };
        for (name, profile) in &recordings {
            let ceilings = ceilings(&roofline, profile.threads);
            crate::talk::talk!("\n{}", table(&one_line(name), profile, ceilings.as_ref()).trim_end_matches('\n'));
            crate::talk::talk!("{}", about(&source, profile.threads, ceilings.as_ref()));
        }
        written?;
        let shown = one_line(trace.shown());
        crate::talk::talk!("trace: {shown}; the cost of recording is part of all figures of this run");
        Ok(())
    }
}

fn ceilings(roofline: &Roofline, threads: usize) -> Option<Ceilings> {
    let point = roofline.point(u32::try_from(threads).ok()?)?;
    Some(Ceilings {
        read_gb_per_s: point.read_gb_per_s(),
        f32_gflop_per_s: point.f32_gflop_per_s.median,
        int8_gop_per_s: point.int8_gop_per_s.median,
    })
}

fn about(source: &str, threads: usize, ceilings: Option<&Ceilings>) -> String {
    match ceilings {
        Some(c) => format!(
            "roofline of {threads} threads ({source}): read {:.1} GB/s, f32 {:.1} GFLOP/s, int8 {:.1} GOP/s",
            c.read_gb_per_s, c.f32_gflop_per_s, c.int8_gop_per_s
        ),
        None => format!(
            "no roofline of {threads} threads in {source}\n\nhint: `farmhand roofline -t {threads} -o json` makes one"
        ),
    }
}
