//! From a request to a plan.

use super::{
    ASSUMPTION, Artefact, CELLS_MAX, GOLDEN_IDS_MAX, Overrides, PAIRS_FOR_A_VERDICT, Plan, PlannedCell, PlannedDevice,
    PlannedScenario, Request, arms_of_pair, cost,
};
use crate::config;
use crate::device::Device;
use crate::error::{Error, Place, Result};
use crate::model::ModelFile;
use crate::run::ModelFacts;
use crate::scenario::{CONTEXT_TOKENS_MAX, PAIRS_MAX, Scenario, THREADS_MAX, tokens_needed, tokens_of_case};
use farmgate_engine::protocol::{Arm, EngineConfig, Step};
use std::collections::BTreeSet;

/// A scenario with what the models make of it.
struct Fitted<'a> {
    scenario: &'a Scenario,
    pairs: u32,
    config: EngineConfig,
    candidate_steps: Vec<Step>,
    baseline_steps: Vec<Step>,
}

pub(super) fn resolve(request: &Request<'_>) -> Result<Plan> {
    let mut faults = Vec::new();
    let mut notes = Vec::new();
    check_overrides(request, &mut faults);
    let devices = find_devices(request, &mut faults);
    let scenarios = find_each(request.scenarios, "scenario", &mut faults, |name| request.catalogue.find(name));
    for device in &devices {
        check_memory(request, device, &mut faults);
    }
    let fitted: Vec<Fitted<'_>> =
        scenarios.iter().filter_map(|s| fit(request, s, &mut notes).map_err(|fault| faults.push(fault)).ok()).collect();
    check_size(request, &fitted, &mut faults);
    config::refuse_faults(faults)?;
    note_what_matters(request, &fitted, &mut notes);
    let (cells, estimate_s) = cells(request, &fitted);
    Ok(Plan {
        comparison: request.baseline.is_some(),
        devices: devices
            .iter()
            .map(|device| PlannedDevice { device: (*device).clone(), cells: cells.clone(), estimate_s })
            .collect(),
        scenarios: fitted
            .into_iter()
            .map(|f| PlannedScenario {
                name: f.scenario.name.clone(),
                summary: f.scenario.summary.clone(),
                pairs: f.pairs,
                config: f.config,
                steps: f.candidate_steps,
            })
            .collect(),
        artefacts: artefacts(request),
        notes,
        assumption: ASSUMPTION.to_owned(),
    })
}

fn find_devices<'a>(request: &Request<'a>, faults: &mut Vec<Error>) -> Vec<&'a Device> {
    if !request.devices.is_empty() {
        return find_each(request.devices, "device", faults, |name| request.inventory.find(name));
    }
    if request.inventory.devices().is_empty() {
        faults
            .push(Error::usage("no device is registered").hint("write devices/NAME.toml; devices/README.md shows one"));
    }
    request.inventory.devices().iter().collect()
}

/// Looks up every name; nothing, or a name twice, is a fault as well.
fn find_each<'a, T>(
    names: &[String],
    noun: &str,
    faults: &mut Vec<Error>,
    find: impl Fn(&str) -> Result<&'a T>,
) -> Vec<&'a T> {
    if names.is_empty() {
        faults.push(Error::usage(format!("no {noun} is asked for")).hint(format!("name at least one {noun}")));
    }
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for name in names {
        if !seen.insert(name) {
            faults.push(
                Error::usage(format!("{noun} `{}` is asked for twice", config::printable(name)))
                    .hint("name it once; more evidence comes from more pairs or repetitions"),
            );
            continue;
        }
        match find(name) {
            Ok(item) => found.push(item),
            Err(fault) => faults.push(fault),
        }
    }
    found
}

fn check_overrides(request: &Request<'_>, faults: &mut Vec<Error>) {
    let Overrides { pairs, repetitions, threads, context_tokens } = request.overrides;
    let ranges = [
        ("pairs", pairs, 1, PAIRS_MAX),
        ("repetitions", repetitions, 1, PAIRS_MAX),
        ("threads", threads, 0, THREADS_MAX),
        ("context tokens", context_tokens, 1, CONTEXT_TOKENS_MAX),
    ];
    for (noun, value, least, most) in ranges {
        if let Some(value) = value.filter(|v| !(least..=most).contains(v)) {
            faults.push(
                Error::usage(format!("{value} {noun} are asked for, outside {least} to {most}"))
                    .hint(format!("ask for {least} to {most} {noun}")),
            );
        }
    }
    if pairs.is_some() && request.baseline.is_none() {
        faults.push(
            Error::usage("pairs are asked for without a baseline")
                .hint("name the model to compare with, or ask for repetitions"),
        );
    }
    if repetitions.is_some() && request.baseline.is_some() {
        faults.push(Error::usage("repetitions are asked for in a comparison").hint("ask for pairs"));
    }
    for model in models(request) {
        if let (Some(asked), Some(most)) = (context_tokens, model.context_tokens)
            && asked > most
        {
            faults.push(
                Error::usage(format!("a context of {asked} tokens is beyond the {most} of model {}", model.facts.name))
                    .hint(format!("ask for at most {most} tokens")),
            );
        }
    }
}

fn models<'a>(request: &Request<'a>) -> impl Iterator<Item = &'a ModelFile> {
    std::iter::once(request.candidate).chain(request.baseline)
}

fn check_memory(request: &Request<'_>, device: &Device, faults: &mut Vec<Error>) {
    let Some(memory_mb) = device.memory_mb else { return };
    for model in models(request) {
        if model.facts.file_bytes > memory_mb.saturating_mul(1 << 20) {
            let what = format!(
                "model {} has {} MiB, device `{}` has {memory_mb} MiB of memory",
                model.facts.name,
                model.facts.file_bytes >> 20,
                device.name
            );
            faults.push(
                Error::usage(what)
                    .at(Place::File { path: device.file.clone(), line: 0, column: 0 })
                    .hint("take a smaller model or weight type, or leave this device out"),
            );
        }
    }
}

/// A device's plan is one message; it must not outgrow what the device reads.
fn check_size(request: &Request<'_>, fitted: &[Fitted<'_>], faults: &mut Vec<Error>) {
    let arms = if request.baseline.is_some() { 2 } else { 1 };
    let cells: u64 = fitted.iter().map(|f| u64::from(f.pairs) * arms).sum();
    if cells > CELLS_MAX {
        faults.push(
            Error::usage(format!("the plan has {cells} cells for each device, more than {CELLS_MAX}"))
                .hint("ask for fewer scenarios or fewer pairs"),
        );
    }
    let ids_of = |steps: &[Step]| -> u64 {
        steps
            .iter()
            .map(|s| if let Step::Golden { cases } = s { cases.iter().map(tokens_of_case).sum() } else { 0 })
            .sum()
    };
    let ids: u64 =
        fitted.iter().map(|f| u64::from(f.pairs) * (ids_of(&f.candidate_steps) + ids_of(&f.baseline_steps))).sum();
    if ids > GOLDEN_IDS_MAX {
        faults.push(
            Error::usage(format!("the plan carries {ids} ids of recorded answers, more than {GOLDEN_IDS_MAX}"))
                .hint("record fewer or shorter answers, or ask for fewer pairs"),
        );
    }
}

/// Fits a scenario to the models: context, steps that have room, recorded answers.
fn fit<'a>(request: &Request<'_>, scenario: &'a Scenario, notes: &mut Vec<String>) -> Result<Fitted<'a>> {
    let overrides = request.overrides;
    let mut config = scenario.config.clone();
    config.threads = overrides.threads.unwrap_or(config.threads);
    config.context_tokens = overrides.context_tokens.unwrap_or(config.context_tokens);
    // both arms get the same room, that of the model with less
    let shortest = models(request).filter(|m| m.context_tokens.is_some()).min_by_key(|m| m.context_tokens);
    if let Some((model, most)) = shortest.and_then(|m| Some((m, m.context_tokens?)))
        && most < config.context_tokens
    {
        notes.push(format!(
            "{}: context of {} tokens lowered to {most}, the context length of {}",
            scenario.name, config.context_tokens, model.facts.name
        ));
        config.context_tokens = most;
    }
    let mut steps = Vec::new();
    for step in &scenario.steps {
        let needed = tokens_needed(step);
        if needed > u64::from(config.context_tokens) {
            notes.push(format!(
                "{}: `{}` left out, it needs {needed} tokens of context and has {}",
                scenario.name,
                super::text::step_text(step),
                config.context_tokens
            ));
        } else {
            steps.push(step.clone());
        }
    }
    let measures = |steps: &[Step]| steps.iter().any(|s| !matches!(s, Step::Load { .. } | Step::WarmUp { .. }));
    if measures(&scenario.steps) && !measures(&steps) {
        return Err(Error::usage(format!(
            "no step of scenario `{}` fits into a context of {} tokens",
            scenario.name, config.context_tokens
        ))
        .at(Place::File { path: scenario.file.clone(), line: 0, column: 0 })
        .hint("take a model with a longer context, or a scenario with shorter prompts"));
    }
    let pairs = match request.baseline {
        Some(_) => overrides.pairs.unwrap_or(scenario.pairs),
        None => overrides.repetitions.unwrap_or(scenario.repetitions),
    };
    let candidate_steps = with_golden(request, request.candidate, scenario, &config, &steps, notes);
    let baseline_steps = match request.baseline {
        Some(baseline) if baseline.facts.sha256 == request.candidate.facts.sha256 => candidate_steps.clone(),
        Some(baseline) => with_golden(request, baseline, scenario, &config, &steps, notes),
        None => Vec::new(),
    };
    Ok(Fitted { scenario, pairs, config, candidate_steps, baseline_steps })
}

/// The steps with the answers recorded for this model filled in.
fn with_golden(
    request: &Request<'_>,
    model: &ModelFile,
    scenario: &Scenario,
    config: &EngineConfig,
    steps: &[Step],
    notes: &mut Vec<String>,
) -> Vec<Step> {
    let mut out = steps.to_vec();
    for step in &mut out {
        let Step::Golden { cases } = step else { continue };
        let recorded = request.catalogue.golden_cases(&model.facts.sha256);
        *cases =
            recorded.iter().filter(|case| tokens_of_case(case) <= u64::from(config.context_tokens)).cloned().collect();
        if recorded.is_empty() {
            notes.push(format!("{}: no golden tokens recorded for this model ({})", scenario.name, model.facts.name));
        } else if cases.len() < recorded.len() {
            notes.push(format!(
                "{}: {} of {} golden cases left out, they do not fit into a context of {} tokens",
                scenario.name,
                recorded.len() - cases.len(),
                recorded.len(),
                config.context_tokens
            ));
        }
    }
    out
}

fn note_what_matters(request: &Request<'_>, fitted: &[Fitted<'_>], notes: &mut Vec<String>) {
    if let Some(baseline) = request.baseline
        && baseline.facts.sha256 == request.candidate.facts.sha256
    {
        notes.push("baseline and candidate are the same model: what differs between them is noise".to_owned());
    }
    let noun = if request.baseline.is_some() { "pairs" } else { "repetitions" };
    for f in fitted.iter().filter(|f| f.pairs < PAIRS_FOR_A_VERDICT) {
        notes.push(format!(
            "{}: {} {noun} cannot support a verdict, a 95 % bound needs at least {PAIRS_FOR_A_VERDICT}",
            f.scenario.name, f.pairs
        ));
    }
}

fn cells(request: &Request<'_>, fitted: &[Fitted<'_>]) -> (Vec<PlannedCell>, u64) {
    let mut cells = Vec::new();
    let mut estimate_s = 0.0;
    for f in fitted {
        for pair in 0..f.pairs {
            let arms: &[Arm] = if request.baseline.is_some() { &arms_of_pair(pair) } else { &[Arm::Candidate] };
            for (slot, arm) in arms.iter().enumerate() {
                let (model, steps) = match (arm, request.baseline) {
                    (Arm::Baseline, Some(baseline)) => (&baseline.facts, &f.baseline_steps),
                    _ => (&request.candidate.facts, &f.candidate_steps),
                };
                estimate_s += cost::cell_estimate_s(model, steps);
                cells.push(PlannedCell {
                    cell: cells.len() as u32,
                    scenario: f.scenario.name.clone(),
                    arm: *arm,
                    pair,
                    slot: slot as u32,
                    seed: f.scenario.seed + u64::from(pair),
                    config: f.config.clone(),
                    steps: steps.clone(),
                    load_timeout_ms: cost::load_timeout_ms(model),
                    cell_timeout_ms: cost::cell_timeout_ms(f.scenario.timeout_s, model, steps),
                });
            }
        }
    }
    (cells, estimate_s.ceil() as u64)
}

fn artefacts(request: &Request<'_>) -> Vec<Artefact> {
    let model = |role: &str, facts: &ModelFacts| Artefact {
        role: role.to_owned(),
        name: facts.name.clone(),
        kind: format!(
            "{}, {} parameters, {}",
            facts.architecture,
            super::text::count(facts.parameters),
            facts.weight_type
        ),
        sha256: facts.sha256.clone(),
        bytes: facts.file_bytes,
    };
    let mut out: Vec<Artefact> = request.baseline.iter().map(|m| model("baseline", &m.facts)).collect();
    out.push(model("candidate", &request.candidate.facts));
    out.extend(request.engines.iter().cloned());
    out
}
