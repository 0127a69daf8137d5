//! `farmgate run --resume`: goes on with a run that was interrupted, or whose farmgate died.

use super::names;
use super::run::{Campaign, Finished, finish, measure, open_model, open_sessions};
use crate::cli::RunArgs;
use crate::config::Folders;
use crate::error::{Error, ExitCode, Result};
use crate::event::{Course, Event};
use crate::model::ModelFile;
use crate::run::{ModelFacts, RunId, Typed};
use crate::store::Store;
use farmgate_engine::protocol::{Arm, CellPlan};
use std::path::Path;

/// Measures what is missing of the run, and judges the whole.
pub fn resume(folders: &Folders, args: &RunArgs, name: &str) -> Result<Finished> {
    let mut store = Store::open(&folders.results)?;
    let run = store.find(Some(name))?;
    let (mut writer, course) = store.resume(&run)?;
    let policy = args.policy.clone().or_else(|| course.manifest.policy.clone());
    let campaign = campaign(folders, args, policy.clone(), course)?;
    let built = campaign.engines(folders, args.artefacts.as_deref())?;
    let order = campaign.order(&run, &built);
    let (mut terminal, sessions) = open_sessions(&order)?;
    writer.append_all(&[Event::RunResumed { at: names::now() }])?;
    measure(writer, &order, sessions, &mut terminal)?;
    finish(folders, &store, &run, policy.as_deref())
}

/// The campaign as it was decided when the run began.
fn campaign(folders: &Folders, args: &RunArgs, policy: Option<String>, course: Course) -> Result<Campaign> {
    let manifest = &course.manifest;
    let typed = manifest.typed.clone().ok_or_else(|| {
        Error::usage(format!("run `{}` was begun by an older farmgate, which kept too little to go on", manifest.run))
            .hint("`farmgate report` shows what was measured; start a new run")
    })?;
    let candidate = the_same_model(args.model.as_deref().unwrap_or(&typed.model), &manifest.candidate, "--model")?;
    let baseline = match (&manifest.baseline, &typed.baseline_model) {
        (Some(facts), Some(path)) => {
            Some(the_same_model(args.baseline_model.as_deref().unwrap_or(path), facts, "--baseline-model")?)
        }
        _ => None,
    };
    let request = RunArgs {
        scenarios: manifest.scenarios.clone(),
        device: manifest.devices.iter().map(|facts| facts.device.clone()).collect(),
        labels: None,
        policy,
        ..as_typed(typed, args)
    };
    let mut campaign = Campaign::prepare(folders, &request, candidate, baseline)?;
    has_the_same_plan(&campaign, &course, &manifest.run)?;
    campaign.course = course.devices;
    Ok(campaign)
}

fn as_typed(typed: Typed, args: &RunArgs) -> RunArgs {
    RunArgs {
        pairs: typed.pairs,
        repetitions: typed.repetitions,
        threads: typed.threads,
        context_tokens: typed.context_tokens,
        ..args.clone()
    }
}

fn the_same_model(path: &Path, facts: &ModelFacts, option: &str) -> Result<ModelFile> {
    let hint = format!("`{option} FILE` names the place of {}", facts.name);
    let model = open_model(path).map_err(|e| if path.exists() { e } else { e.hint(hint.clone()) })?;
    if model.facts.sha256 != facts.sha256 {
        return Err(Error::usage("the model is another one than the run began with").in_file(path).hint(hint));
    }
    Ok(model)
}

/// Scenarios may have been edited since: a run whose devices measure different things is worth nothing.
fn has_the_same_plan(campaign: &Campaign, course: &Course, run: &RunId) -> Result<()> {
    for (index, part) in campaign.plan.devices.iter().enumerate() {
        let Some(plan) = course.devices.get(&part.device.name).and_then(|course| course.plan.as_ref()) else {
            continue;
        };
        let of = |arm: Arm| plan.cells.iter().find(|cell| cell.arm == arm).map(|cell| cell.model.clone());
        let Some(candidate) = of(Arm::Candidate) else { continue };
        let again = campaign.plan.device_plan(index, run, &candidate, of(Arm::Baseline).as_ref(), plan.lease_token)?;
        if let Some(cell) = first_difference(&plan.cells, &again.cells) {
            return Err(Error::usage(format!(
                "the run cannot be gone on with: from cell {cell} on it would measure something else than it was to"
            ))
            .on_device(&part.device.name)
            .with_exit(ExitCode::Usage)
            .hint("bring scenarios/ and devices/ back to what they were when it began, or start a new run"));
        }
    }
    Ok(())
}

fn first_difference(before: &[CellPlan], now: &[CellPlan]) -> Option<usize> {
    let differs = before.iter().zip(now).position(|(a, b)| a != b);
    differs.or_else(|| (before.len() != now.len()).then(|| before.len().min(now.len())))
}
