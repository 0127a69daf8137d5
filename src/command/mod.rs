//! One function a subcommand: what was typed becomes what is done. What a command has to print on stdout it returns.

mod demo;
mod device;
mod device_add;
mod doctor;
mod engine;
mod model;
mod names;
mod report;
mod resume;
mod run;

use crate::cli::{Cli, DeviceVerb, EngineVerb, ModelVerb, StoreVerb, Verb};
use crate::config::Folders;
use crate::error::{ExitCode, Result};
use crate::store;
use std::fmt::Write;

/// What a command leaves: data for stdout, and the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// For stdout, as it is.
    pub stdout: String,
    /// What the process exits with.
    pub exit: ExitCode,
}

impl Done {
    /// Output of a command that judges nothing.
    fn ok(stdout: impl Into<String>) -> Self {
        Self { stdout: stdout.into(), exit: ExitCode::Go }
    }
}

/// Carries out a command line.
pub fn run(cli: &Cli) -> Result<Done> {
    let mut folders = Folders::under(&cli.project);
    if let Some(results) = &cli.results {
        folders.results = results.clone();
    }
    match &cli.verb {
        Verb::Run(args) => run::run(&folders, args),
        Verb::Gate(args) => report::gate(&folders, args),
        Verb::Report(args) => report::report(&folders, args),
        Verb::Device(verb) => device(&folders, verb),
        Verb::Model(ModelVerb::Inspect { file, json }) => model::inspect(file, *json),
        Verb::Model(ModelVerb::Synth { like, quant, seed, output }) => model::synth(like, quant, *seed, output),
        Verb::Engine(EngineVerb::Build { target, all }) => engine::build(&folders, target, *all),
        Verb::Store(StoreVerb::Rebuild) => rebuild(&folders),
        Verb::Demo(args) => demo::demo(&folders, args),
    }
}

fn device(folders: &Folders, verb: &DeviceVerb) -> Result<Done> {
    match verb {
        DeviceVerb::List { labels, json } => device::list(folders, labels.as_deref(), *json),
        DeviceVerb::Probe { device, json, artefacts } => device::probe(folders, device, *json, artefacts.as_deref()),
        DeviceVerb::Add { how } => device_add::add(folders, how),
        DeviceVerb::Doctor { device, json, artefacts } => doctor::doctor(folders, device, *json, artefacts.as_deref()),
        DeviceVerb::Release { device, force, artefacts } => {
            device::release(folders, device, *force, artefacts.as_deref())
        }
        DeviceVerb::Quarantine { device, reason } => device::quarantine(folders, device, reason),
        DeviceVerb::Return { device } => device::take_back(folders, device),
    }
}

fn rebuild(folders: &Folders) -> Result<Done> {
    let rebuilt = store::rebuild(&folders.results, &mut |journal| log::info!("reading {journal}"))?;
    let mut out = format!("{} runs, {} events\n", rebuilt.runs, rebuilt.events);
    for (path, what) in &rebuilt.damaged {
        let _ = writeln!(out, "damaged: {}: {what}; what stands before the damage was kept", path.display());
    }
    // a script that judges the newest run next must notice that a run is missing
    let exit = if rebuilt.damaged.is_empty() { ExitCode::Go } else { ExitCode::Infra };
    Ok(Done { stdout: out, exit })
}

/// Pretty JSON with a newline at its end.
fn to_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|e| crate::error::Error::bug(format!("cannot write json: {e}")))
}
