//! Token latency of a device: how it goes along an answer, and how it is distributed.

use super::Context;
use super::cells::{CellState, state_of};
use crate::report::plot::{Band, Ink, Line, LinePlot, Pen, Plot};
use crate::report::view::FigureView;
use crate::report::{order, text};
use crate::run::DeviceData;
use farmgate_engine::protocol::Arm;
use std::collections::BTreeMap;

/// Scenario and qualifier pairs drawn for one device, at most.
const GROUPS_MAX: usize = 4;
/// Points along an answer, at most.
const BUCKETS_MAX: usize = 100;
/// Points of a distribution.
const STEPS: usize = 100;

/// Latencies of one arm, milliseconds: one list an answer.
type Answers = Vec<Vec<f64>>;

/// Adds two figures for each scenario and qualifier with token times.
pub fn figures(
    context: &mut Context,
    id: &str,
    device: &DeviceData,
    figures: &mut Vec<FigureView>,
    remarks: &mut Vec<String>,
) {
    let mut groups: BTreeMap<(&str, &str), BTreeMap<Arm, Answers>> = BTreeMap::new();
    for cell in device.cells.iter().filter(|c| state_of(c) == CellState::Valid) {
        let last = cell.attempts.saturating_sub(1);
        for times in cell.token_times.iter().filter(|t| t.attempt == last && !t.itl_us.is_empty()) {
            let answer = times.itl_us.iter().map(|us| f64::from(*us) / 1000.0).collect();
            let arms = groups.entry((&cell.scenario, &times.qualifier)).or_default();
            arms.entry(cell.arm).or_default().push(answer);
        }
    }
    if groups.len() > GROUPS_MAX {
        remarks.push(format!(
            "token latency is drawn for {GROUPS_MAX} of {} steps; all token times are in report.json",
            groups.len()
        ));
    }
    for (position, ((scenario, qualifier), arms)) in groups.iter().take(GROUPS_MAX).enumerate() {
        let what = format!("itl-ms@{} in {}", text::clean(qualifier), text::clean(scenario));
        let id = format!("{id}-itl{position}");
        context.admit(figures, along(&id, &what, arms));
        context.admit(figures, distribution(&id, &what, arms));
    }
}

fn pen(arm: Arm) -> Pen {
    match arm {
        Arm::Baseline => Ink::Baseline.plain(),
        Arm::Candidate => Ink::Candidate.square(),
    }
}

fn along(id: &str, what: &str, arms: &BTreeMap<Arm, Answers>) -> FigureView {
    let mut words = Vec::new();
    let lines = arms
        .iter()
        .map(|(arm, answers)| {
            let length = answers.iter().map(Vec::len).max().unwrap_or(0);
            let buckets = length.min(BUCKETS_MAX);
            let (mut middle, mut lower, mut upper) = (Vec::new(), Vec::new(), Vec::new());
            for bucket in 0..buckets {
                let (from, to) = (bucket * length / buckets, (bucket + 1) * length / buckets);
                let values = order::sorted(answers.iter().flat_map(|a| a.iter().take(to).skip(from)).copied());
                // the second token of the answer is the first that has a latency
                let x = (from + to + 1) as f64 / 2.0 + 1.0;
                let add = |to: &mut Vec<(f64, f64)>, q| to.extend(order::quantile(&values, q).map(|v| (x, v)));
                add(&mut lower, 0.1);
                add(&mut middle, 0.5);
                add(&mut upper, 0.9);
            }
            if let (Some(first), Some(last)) = (middle.first(), middle.last()) {
                let (first, last) = (text::quantity(first.1, "ms"), text::quantity(last.1, "ms"));
                words.push(format!("{}: {first} at the start, {last} at the end", arm.as_str()));
            }
            let label = arm.as_str().to_owned();
            Line { label, pen: pen(*arm), parts: vec![middle], band: Some(Band { lower, upper }) }
        })
        .collect();
    FigureView {
        id: format!("{id}-along"),
        title: format!("Token latency along the answer: {what}"),
        description: format!("Median over answers. {}.", words.join("; ")),
        caption: "Line: median over all valid answers. Area: the middle 80 % of them.".to_owned(),
        plot: Plot::Lines(LinePlot {
            x_name: "token of the answer".into(),
            y_name: "time since the previous token, ms".into(),
            y_from_zero: true,
            y_linear: false,
            lines,
        }),
    }
}

fn distribution(id: &str, what: &str, arms: &BTreeMap<Arm, Answers>) -> FigureView {
    let mut words = Vec::new();
    let mut slowest = Vec::new();
    let lines = arms
        .iter()
        .map(|(arm, answers)| {
            let values = order::sorted(answers.iter().flatten().copied());
            let at = |q| order::quantile(&values, q).unwrap_or(0.0);
            let shown = |q| text::quantity(at(q), "ms");
            words.push(format!("{}: p50 {}, p95 {}, p99 {}", arm.as_str(), shown(0.5), shown(0.95), shown(0.99)));
            slowest.push(format!("{} {}", arm.as_str(), shown(1.0)));
            let part = (0..=STEPS).map(|step| step as f64 / STEPS as f64 * 0.99).map(|q| (at(q), q * 100.0)).collect();
            Line { label: arm.as_str().to_owned(), pen: pen(*arm), parts: vec![part], band: None }
        })
        .collect();
    FigureView {
        id: format!("{id}-spread"),
        title: format!("Distribution of token latency: {what}"),
        description: format!("{}.", words.join("; ")),
        caption: format!("{}. Drawn up to p99; slowest: {}.", words.join("; "), slowest.join(", ")),
        plot: Plot::Lines(LinePlot {
            x_name: "time since the previous token, ms".into(),
            y_name: "% of tokens at least this fast".into(),
            y_from_zero: true,
            y_linear: false,
            lines,
        }),
    }
}
