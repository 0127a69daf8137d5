//! From a run and its judgement to the view.

mod cells;
mod device;
mod latency;
mod metric;
mod rules;
mod telemetry;
mod trouble;

use super::view::{FigureView, ModelView, Report, RunView};
use super::{SCHEMA_VERSION, text};
use crate::gate::{Judgement, RuleOutcome};
use crate::run::{Manifest, ModelFacts, RunData, RunState};
use cells::{CellState, state_of};
use farmgate_engine::protocol::ExitCause;

pub(super) use cells::counts;
use std::collections::HashMap;

/// Points drawn on one page, at most: some 2 MB of SVG.
const POINTS_MAX: usize = 150_000;

/// Rule outcomes by device, scenario and metric.
type OutcomeIndex<'a> = HashMap<(&'a str, &'a str, &'a str), Vec<&'a RuleOutcome>>;

/// What all parts of the view share.
struct Context<'a> {
    run: &'a RunData,
    outcomes: OutcomeIndex<'a>,
    device_ids: HashMap<&'a str, String>,
    points_left: usize,
    figures_left_out: usize,
    cuts: Vec<String>,
}

impl Context<'_> {
    fn device_id(&self, device: &str) -> String {
        self.device_ids.get(device).cloned().unwrap_or_default()
    }

    /// Keeps a figure while the page's budget of points lasts.
    fn admit(&mut self, figures: &mut Vec<FigureView>, figure: FigureView) {
        let points = figure.plot.points();
        if points > self.points_left {
            self.figures_left_out += 1;
            return;
        }
        self.points_left -= points;
        figures.push(figure);
    }
}

impl Report {
    /// Builds the view of a run; `judgement` is `None` when no policy was applied.
    pub fn build(run: &RunData, judgement: Option<&Judgement>) -> Self {
        let mut outcomes = OutcomeIndex::new();
        for outcome in judgement.iter().flat_map(|j| &j.outcomes) {
            outcomes.entry((&outcome.device, &outcome.scenario, &outcome.metric)).or_default().push(outcome);
        }
        let device_ids =
            run.devices.iter().enumerate().map(|(i, d)| (d.facts.device.as_str(), format!("d{i}"))).collect();
        let mut context =
            Context { run, outcomes, device_ids, points_left: POINTS_MAX, figures_left_out: 0, cuts: Vec::new() };
        let rules = rules::rules(&mut context, judgement);
        let metrics = metric::metrics(&mut context);
        let devices = device::devices(&mut context);
        let invalid = trouble::invalid(run);
        let died = trouble::died(&mut context);
        if context.figures_left_out > 0 {
            context.cuts.push(format!(
                "{} figures were left out to keep the page small; their samples are in samples.csv and report.json",
                context.figures_left_out
            ));
        }
        let baseline = run.manifest.baseline.as_ref();
        Self {
            schema_version: SCHEMA_VERSION,
            run: run_view(run),
            verdict: rules::verdict(judgement),
            models: std::iter::once(model("candidate", &run.manifest.candidate))
                .chain(baseline.map(|m| model("baseline", m)))
                .collect(),
            same_model: baseline.is_some_and(|b| b.sha256 == run.manifest.candidate.sha256),
            devices,
            rules,
            metrics,
            invalid,
            died,
            quality: trouble::quality(run),
            cuts: context.cuts,
        }
    }
}

fn run_view(run: &RunData) -> RunView {
    let manifest = &run.manifest;
    let cells = || run.devices.iter().flat_map(|d| &d.cells);
    let valid = cells().filter(|c| state_of(c) == CellState::Valid).count();
    let planned = cells().count();
    RunView {
        name: text::clean(manifest.run.as_str()),
        created: created(&manifest.created),
        state: run.state.as_str(),
        state_note: state_note(run, planned),
        resumed_note: resumed_note(&run.resumed),
        farmgate_version: text::clean(&manifest.farmgate_version),
        scenarios: scenarios(manifest),
        host: host(manifest),
        comparison: manifest.baseline.is_some(),
        cells_valid: valid,
        cells_planned: planned,
    }
}

fn state_note(run: &RunData, planned: usize) -> String {
    let ended = run
        .devices
        .iter()
        .flat_map(|d| &d.cells)
        .filter(|c| c.exit.as_ref().is_some_and(|e| *e != ExitCause::Interrupted))
        .count();
    match run.state {
        RunState::Complete => String::new(),
        RunState::Interrupted => format!(
            "This run was stopped after {ended} of {planned} cells had come to their end. What they measured is kept and \
             shown; the rest is missing"
        ),
        RunState::Unfinished => format!(
            "No end of this run was recorded: it is still going on, or farmgate was stopped. {ended} of {planned} \
             cells had ended"
        ),
    }
}

fn resumed_note(resumed: &[String]) -> String {
    if resumed.is_empty() {
        return String::new();
    }
    let moments: Vec<String> = resumed.iter().map(|moment| created(moment)).collect();
    format!(
        "This run was gone on with at {}, after farmgate had ended early. Cells that were at work then may be later \
         than their neighbours",
        moments.join(", ")
    )
}

/// `2026-11-30T10:01:35Z` as people read it; what looks otherwise stays as it is.
fn created(time: &str) -> String {
    let told = text::clean(time);
    match told.strip_suffix('Z').and_then(|t| t.split_once('T')) {
        Some((day, time)) => format!("{day} {time} UTC"),
        None => told,
    }
}

fn scenarios(manifest: &Manifest) -> Vec<String> {
    let what = if manifest.baseline.is_some() { "pairs" } else { "repetitions" };
    let one = |scenario: &String| match manifest.pairs.get(scenario) {
        Some(count) => format!("{} ({count} {what})", text::clean(scenario)),
        None => text::clean(scenario),
    };
    manifest.scenarios.iter().map(one).collect()
}

fn host(manifest: &Manifest) -> String {
    let host = &manifest.host;
    format!(
        "{}, kernel {}, {} CPUs, {} of memory",
        text::clean(&host.os),
        text::clean(&host.kernel),
        host.cpus,
        text::bytes(host.memory_bytes)
    )
}

fn model(arm: &'static str, facts: &ModelFacts) -> ModelView {
    const SHOWN: usize = 4;
    let mut sha256: Vec<String> = facts.sha256.iter().take(SHOWN).map(|h| text::hash_prefix(h)).collect();
    if facts.sha256.len() > SHOWN {
        sha256.push(format!("and {} more files", facts.sha256.len() - SHOWN));
    }
    ModelView {
        arm,
        name: text::clean(&facts.name),
        sha256: sha256.join(", "),
        architecture: text::clean(&facts.architecture),
        parameters: parameters(facts.parameters),
        weight_type: text::clean(&facts.weight_type),
        weights: text::bytes(facts.weight_bytes),
        file: text::bytes(facts.file_bytes),
    }
}

fn parameters(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{count}"),
        1_000_000..1_000_000_000 => format!("{:.1} million", count as f64 / 1e6),
        _ => format!("{:.2} billion", count as f64 / 1e9),
    }
}

/// The worst of several outcomes, critical or not.
fn worst<'a>(outcomes: impl IntoIterator<Item = &'a RuleOutcome>) -> Option<crate::gate::Outcome> {
    outcomes.into_iter().map(|o| o.outcome).min_by_key(|o| rules::rank(*o))
}
