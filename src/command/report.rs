//! `farmgate gate` and `farmgate report`: judge and show runs that are stored.

use super::{Done, to_json};
use crate::cli::{Format, GateArgs, ReportArgs};
use crate::config::Folders;
use crate::error::Result;
use crate::gate::{self, Judgement};
use crate::policy::Policy;
use crate::report::{Report, render, terminal};
use crate::run::RunData;
use crate::store::Store;
use std::path::{Path, PathBuf};

/// `farmgate gate`.
pub fn gate(folders: &Folders, args: &GateArgs) -> Result<Done> {
    let policy = args.policy.as_deref();
    let store = Store::open(&folders.results)?;
    let run = store.load(&store.find(args.run.as_deref())?)?;
    let judgement = judge(folders, policy, &run)?;
    let stdout = if args.json { to_json(&judgement)? } else { terminal::summary(&run, &judgement) };
    Ok(Done { stdout, exit: judgement.exit })
}

/// `farmgate report`. Judges nothing anew for the exit code: showing a report succeeds whatever it says.
pub fn report(folders: &Folders, args: &ReportArgs) -> Result<Done> {
    let store = Store::open(&folders.results)?;
    if args.list {
        let rows: Vec<Vec<String>> = store
            .runs()?
            .into_iter()
            .map(|line| vec![line.run.to_string(), line.created, line.state.as_str().to_owned()])
            .collect();
        return Ok(Done::ok(terminal::table(&["run", "created", "state"], &rows)));
    }
    let id = store.find(args.run.as_deref())?;
    let run = store.load(&id)?;
    let judgement = judge(folders, args.policy.as_deref(), &run)?;
    if let Some(format) = args.format {
        return Ok(Done::ok(render_as(folders, format, &run, &judgement)?));
    }
    let folder = args.output.clone().unwrap_or_else(|| store.run_folder(&id));
    let written = write_all(folders, &folder, &run, &judgement)?;
    Ok(Done::ok(written.iter().map(|path| format!("{}\n", path.display())).collect::<String>()))
}

/// Judges a run by the policy named now, else by the one named when it ran. A policy that was named is applied whole;
/// without any, the rules of `default` for the scenarios of this run, so that a single scenario can be tried without the
/// others counting as missing.
pub fn judge(folders: &Folders, policy: Option<&str>, run: &RunData) -> Result<Judgement> {
    let policy = policy.or(run.manifest.policy.as_deref());
    let mut loaded = Policy::load(folders, policy.unwrap_or("default"))?;
    if policy.is_none() {
        let ran = |scenario: &String| run.manifest.scenarios.contains(scenario);
        loaded.rules.retain(|rule| rule.scenario.as_ref().is_none_or(ran));
        loaded.name = format!("{} (rules for {})", loaded.name, run.manifest.scenarios.join(", "));
    }
    Ok(gate::judge(&loaded.name, &loaded.rules, run))
}

/// Writes every format into a folder; each file appears whole or not at all.
pub fn write_all(folders: &Folders, folder: &Path, run: &RunData, judgement: &Judgement) -> Result<Vec<PathBuf>> {
    crate::report::write_all(folder, run, Some(judgement), &render::Templates::load(&folders.reports)?)
}

fn render_as(folders: &Folders, format: Format, run: &RunData, judgement: &Judgement) -> Result<String> {
    let report = Report::build(run, Some(judgement));
    let templates = render::Templates::load(&folders.reports)?;
    match format {
        Format::Html => render::html(&templates, &report),
        Format::Md => render::markdown(&templates, &report),
        Format::Junit => render::junit(&templates, &report),
        Format::Csv => render::csv(run),
        Format::Json => render::json(run, Some(judgement)),
    }
}
