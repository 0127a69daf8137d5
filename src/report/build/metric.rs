//! One section a scenario and metric: a table of devices, the samples, the pair ratios.

use super::cells::{counts, reason_words};
use super::rules::{self, is_comparison};
use super::{Context, worst};
use crate::gate::{Outcome, RuleOutcome};
use crate::metric::{self, Direction};
use crate::report::plot::{ForestPlot, ForestRow, Ink, Plot, StripPlot, StripRow};
use crate::report::view::{FigureView, MetricView, SeriesView};
use crate::report::{order, text};
use crate::run::{DeviceData, Observation, Series};
use farmgate_engine::protocol::{Arm, ReasonCode};
use std::collections::{BTreeMap, HashMap};

/// Devices drawn in one figure, at most.
const FIGURE_ROWS_MAX: usize = 24;
/// Dots drawn for one arm of one device, at most.
const DOTS_MAX: usize = 120;
/// Devices in one table, at most.
const TABLE_ROWS_MAX: usize = 1_000;

/// One series with what the view needs of it.
struct Measured<'a> {
    series: &'a Series,
    device: &'a DeviceData,
    outcomes: Vec<&'a RuleOutcome>,
    baseline: Vec<f64>,
    candidate: Vec<f64>,
    pairs: Vec<f64>,
}

/// All sections, those with rules first.
pub fn metrics(context: &mut Context) -> Vec<MetricView> {
    let all = context.run.series();
    let devices: HashMap<&str, (usize, &DeviceData)> =
        context.run.devices.iter().enumerate().map(|(i, d)| (d.facts.device.as_str(), (i, d))).collect();
    let mut sections: BTreeMap<(&str, &str), Vec<(usize, Measured)>> = BTreeMap::new();
    for series in &all {
        let key = &series.key;
        let Some((position, device)) = devices.get(key.device.as_str()) else { continue };
        let outcomes = context
            .outcomes
            .get(&(key.device.as_str(), key.scenario.as_str(), key.metric.as_str()))
            .cloned()
            .unwrap_or_default();
        let measured = Measured::new(series, device, outcomes);
        sections.entry((&key.scenario, &key.metric)).or_default().push((*position, measured));
    }
    let mut sections: Vec<_> = sections.into_iter().collect();
    // stable: by name within those with rules and within those without
    sections.sort_by_key(|(_, rows)| rows.iter().all(|(_, m)| m.outcomes.is_empty()));
    sections
        .into_iter()
        .enumerate()
        .map(|(position, ((scenario, metric), mut rows))| {
            rows.sort_by_key(|(device, m)| (m.rank(), *device));
            let rows: Vec<Measured> = rows.into_iter().map(|(_, m)| m).collect();
            section(context, position, scenario, metric, &rows)
        })
        .collect()
}

fn section(context: &mut Context, position: usize, scenario: &str, metric: &str, rows: &[Measured]) -> MetricView {
    let facts = Facts::of(metric);
    let id = format!("m{position}");
    if rows.len() > TABLE_ROWS_MAX {
        context.cuts.push(format!(
            "{} of {} devices are listed under {} {}, worst first",
            TABLE_ROWS_MAX,
            rows.len(),
            text::clean(scenario),
            text::clean(metric)
        ));
    }
    let mut figures = Vec::new();
    let strip = strip(&id, scenario, metric, facts, rows);
    context.admit(&mut figures, strip);
    if rows.iter().any(|m| !m.pairs.is_empty()) {
        let forest = forest(&id, scenario, metric, facts, rows);
        context.admit(&mut figures, forest);
    }
    MetricView {
        id,
        scenario: text::clean(scenario),
        metric: text::clean(metric),
        unit: facts.unit.to_owned(),
        better: facts.better,
        summary: facts.summary.to_owned(),
        ruled: rows.iter().any(|m| !m.outcomes.is_empty()),
        rows: rows.iter().take(TABLE_ROWS_MAX).map(|m| m.view(context, facts.unit)).collect(),
        figures,
    }
}

/// What is known of a metric.
#[derive(Clone, Copy)]
struct Facts {
    unit: &'static str,
    better: &'static str,
    summary: &'static str,
}

impl Facts {
    fn of(metric: &str) -> Self {
        let unit = text::unit_of(metric);
        let Some(kind) = metric::find(metric) else { return Self { unit, better: "", summary: "" } };
        let better = match kind.direction {
            Direction::HigherIsBetter => "higher is better",
            Direction::LowerIsBetter => "lower is better",
            Direction::Neutral => "",
        };
        Self { unit, better, summary: kind.summary }
    }
}

impl<'a> Measured<'a> {
    fn new(series: &'a Series, device: &'a DeviceData, outcomes: Vec<&'a RuleOutcome>) -> Self {
        let values =
            |arm: &[Observation]| order::sorted(arm.iter().filter_map(|o| o.value.as_ref().ok()).map(|v| v.get()));
        let base: HashMap<u32, f64> =
            series.baseline.iter().filter_map(|o| Some((o.pair, o.value.as_ref().ok()?.get()))).collect();
        let ratio = |o: &Observation| {
            let ratio = o.value.as_ref().ok()?.get() / base.get(&o.pair)?;
            (ratio.is_finite() && ratio > 0.0).then_some(ratio)
        };
        let pairs = series.candidate.iter().filter_map(ratio).collect();
        let (baseline, candidate) = (values(&series.baseline), values(&series.candidate));
        Self { series, device, outcomes, baseline, candidate, pairs }
    }

    fn worst(&self) -> Option<Outcome> {
        worst(self.outcomes.iter().copied())
    }

    fn rank(&self) -> usize {
        self.worst().map_or(usize::MAX, rules::rank)
    }

    /// Point, low and high of the paired estimate, when a rule made one.
    fn estimate(&self) -> Option<(f64, f64, f64)> {
        let outcome = self.outcomes.iter().find(|o| is_comparison(o) && o.estimate.is_some())?;
        outcome.estimate.as_ref().map(|e| (e.point, e.low, e.high))
    }

    fn pair_median(&self) -> Option<f64> {
        order::median(&order::sorted(self.pairs.iter().copied()))
    }

    /// Values of the repetitions that count.
    fn samples(&self, arm: Arm) -> Vec<f64> {
        let key = &self.series.key;
        let cells = self.device.cells.iter().filter(|c| c.arm == arm && c.scenario == key.scenario);
        cells
            .flat_map(|c| c.samples.iter().filter(move |s| s.metric == key.metric && counts(c, s)))
            .filter_map(|s| s.value.map(|v| v.get()))
            .collect()
    }

    fn missing(&self) -> Vec<ReasonCode> {
        let arms = self.series.baseline.iter().chain(&self.series.candidate);
        let mut reasons: Vec<ReasonCode> = arms.filter_map(|o| o.value.as_ref().err()).flatten().copied().collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }

    fn missing_count(&self) -> usize {
        self.series.baseline.iter().chain(&self.series.candidate).filter(|o| o.value.is_err()).count()
    }

    fn view(&self, context: &Context, unit: &str) -> SeriesView {
        let median = |values: &[f64]| order::median(values).map(|v| text::quantity(v, unit)).unwrap_or_default();
        let estimate = self.estimate();
        let quartile = |q| order::quantile(&self.candidate, q);
        let spread = match (quartile(0.25), quartile(0.5), quartile(0.75)) {
            (Some(low), Some(middle), Some(high)) if middle != 0.0 && self.candidate.len() > 1 => {
                format!("{:.1} %", ((high - low) / middle * 100.0).abs())
            }
            _ => String::new(),
        };
        let worst = self.worst();
        SeriesView {
            device: text::clean(&self.series.key.device),
            device_id: context.device_id(&self.series.key.device),
            baseline: median(&self.baseline),
            candidate: median(&self.candidate),
            change: estimate.map(|e| e.0).or(self.pair_median()).map(text::change).unwrap_or_default(),
            interval: estimate
                .map(|(_, low, high)| format!("{} to {}", text::change(low), text::change(high)))
                .unwrap_or_default(),
            spread,
            n: format!("{} of {}", self.candidate.len(), self.series.candidate.len()),
            missing: reason_words(&self.missing()),
            outcome: worst.map_or("", rules::word),
            class: worst.map_or("none", rules::class),
        }
    }
}

fn shown_of(rows: &[Measured]) -> String {
    match rows.len() {
        count if count > FIGURE_ROWS_MAX => {
            format!("The {FIGURE_ROWS_MAX} devices with the worst outcome of {count} are drawn.")
        }
        _ => String::new(),
    }
}

fn strip(id: &str, scenario: &str, metric: &str, facts: Facts, rows: &[Measured]) -> FigureView {
    let mut thinned = false;
    let shown: Vec<StripRow> = rows
        .iter()
        .take(FIGURE_ROWS_MAX)
        .map(|m| {
            let (baseline, candidate) = (m.samples(Arm::Baseline), m.samples(Arm::Candidate));
            thinned |= baseline.len().max(candidate.len()) > DOTS_MAX;
            StripRow {
                label: text::clean(&m.series.key.device),
                baseline: order::thinned(&order::sorted(baseline), DOTS_MAX),
                candidate: order::thinned(&order::sorted(candidate), DOTS_MAX),
                baseline_median: order::median(&m.baseline),
                candidate_median: order::median(&m.candidate),
                note: strip_note(m, facts.unit),
            }
        })
        .collect();
    let comparison = shown.iter().any(|r| !r.baseline.is_empty() || r.baseline_median.is_some());
    let many = if thinned {
        format!("At most {DOTS_MAX} samples of each arm are drawn, evenly by rank.")
    } else {
        String::new()
    };
    let medians = |m: &Measured| {
        let of = |name: &str, values: &[f64]| {
            order::median(values).map(|v| format!("{name} {}", text::quantity(v, facts.unit)))
        };
        let parts: Vec<String> =
            [of("baseline", &m.baseline), of("candidate", &m.candidate)].into_iter().flatten().collect();
        format!(
            "{}: {}",
            text::clean(&m.series.key.device),
            if parts.is_empty() { "no value".into() } else { parts.join(", ") }
        )
    };
    let words: Vec<String> = rows.iter().take(FIGURE_ROWS_MAX).map(medians).collect();
    FigureView {
        id: format!("{id}-samples"),
        title: format!("Samples of {} in {}", text::clean(metric), text::clean(scenario)),
        description: format!("Medians. {}.", words.join("; ")),
        caption: format!("{} {many}", shown_of(rows)).trim().to_owned(),
        plot: Plot::Strip(StripPlot { unit: facts.unit.to_owned(), comparison, rows: shown }),
    }
}

/// The medians with their unit, and how many observations are missing.
fn strip_note(m: &Measured, unit: &str) -> String {
    let medians = [order::median(&m.baseline), order::median(&m.candidate)];
    let shown: Vec<String> = medians.into_iter().flatten().map(text::number).collect();
    let mut note = match (shown.is_empty(), unit) {
        (true, _) => "no value".to_owned(),
        (false, unit) if text::is_unitless(unit) => shown.join(" → "),
        (false, unit) => format!("{} {unit}", shown.join(" → ")),
    };
    if m.missing_count() > 0 {
        note.push_str(&format!(", {} missing", m.missing_count()));
    }
    note
}

fn forest(id: &str, scenario: &str, metric: &str, facts: Facts, rows: &[Measured]) -> FigureView {
    let limits: Vec<f64> =
        rows.iter().flat_map(|m| m.outcomes.iter().filter(|o| is_comparison(o)).filter_map(|o| o.limit)).collect();
    let limit = limits.first().copied().filter(|first| limits.iter().all(|l| l == first));
    let mut shown = Vec::new();
    let mut words = Vec::new();
    for m in rows.iter().take(FIGURE_ROWS_MAX) {
        let estimate = m.estimate();
        let outcome = worst(m.outcomes.iter().copied().filter(|o| is_comparison(o)));
        let point = estimate.map(|e| e.0).or(m.pair_median());
        let note = match (point, outcome) {
            (Some(point), Some(outcome)) => format!("{} {}", text::change(point), rules::word(outcome)),
            (Some(point), None) => text::change(point),
            (None, _) => "no pair".to_owned(),
        };
        let label = text::clean(&m.series.key.device);
        words.push(format!("{label}: {note}"));
        shown.push(ForestRow {
            label,
            pairs: order::thinned(&order::sorted(m.pairs.iter().copied()), DOTS_MAX),
            estimate,
            median: m.pair_median(),
            note,
            ink: match outcome {
                Some(Outcome::Pass) => Ink::Pass,
                Some(Outcome::Fail) => Ink::Fail,
                Some(_) => Ink::Open,
                None => Ink::Text,
            },
        });
    }
    let plot = ForestPlot { limit, better: facts.better, rows: shown };
    let cut = match plot.is_cut() {
        true => "What lies beyond the axis is drawn at its edge; an interval without an end cap goes on beyond it.",
        false => "",
    };
    FigureView {
        id: format!("{id}-ratios"),
        title: format!("Change of {} in {}", text::clean(metric), text::clean(scenario)),
        description: format!("Candidate against baseline. {}.", words.join("; ")),
        caption: format!("{} {cut}", shown_of(rows)).trim().to_owned(),
        plot: Plot::Forest(plot),
    }
}
