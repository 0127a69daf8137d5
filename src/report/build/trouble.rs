//! What went wrong: INVALID cells and samples, dead cells, and the farm's own figures.

use super::Context;
use super::cells::{CellState, counts, invalid_reasons, last_samples, reason_words, state_of};
use crate::report::text;
use crate::report::view::{DiedView, FactView, InvalidCellView, InvalidView, ReasonView};
use crate::run::{CellData, RunData};
use farmgate_engine::protocol::{ReasonCode, Validity};
use std::collections::{BTreeMap, BTreeSet};

/// Cells listed one by one, at most.
const CELLS_MAX: usize = 100;

#[derive(Default)]
struct Tally<'a> {
    cells: usize,
    samples: usize,
    devices: BTreeSet<&'a str>,
}

/// Reasons and cells.
pub fn invalid(run: &RunData) -> InvalidView {
    let mut tallies: BTreeMap<ReasonCode, Tally> = BTreeMap::new();
    let mut view = InvalidView::default();
    for device in &run.devices {
        for cell in device.cells.iter().filter(|c| c.attempts > 0) {
            let reasons = invalid_reasons(cell);
            for reason in &reasons {
                let tally = tallies.entry(*reason).or_default();
                tally.cells += 1;
                tally.samples += spoiled(cell, *reason);
                tally.devices.insert(&device.facts.device);
            }
            if reasons.is_empty() {
                continue;
            }
            if view.cells.len() == CELLS_MAX {
                view.cells_cut += 1;
                continue;
            }
            view.cells.push(InvalidCellView {
                device: text::clean(&device.facts.device),
                cell: cell.cell,
                scenario: text::clean(&cell.scenario),
                arm: cell.arm.as_str(),
                pair: cell.pair,
                attempts: cell.attempts,
                reasons: reason_words(&reasons),
            });
        }
    }
    let reason = |(code, tally): (ReasonCode, Tally)| ReasonView {
        code: code.as_str(),
        meaning: meaning(code),
        cells: tally.cells,
        samples: tally.samples,
        devices: tally.devices.len(),
    };
    view.reasons = tallies.into_iter().map(reason).collect();
    view.reasons.sort_by_key(|r| std::cmp::Reverse(r.cells));
    view
}

/// Samples of the attempt that counts which a reason spoiled.
fn spoiled(cell: &CellData, reason: ReasonCode) -> usize {
    let whole = cell.invalid.contains(&reason);
    last_samples(cell).filter(|s| whole || s.validity == Validity::Invalid(reason)).count()
}

fn meaning(code: ReasonCode) -> &'static str {
    match code {
        ReasonCode::NotCool => "cool-down did not reach its criterion within its limit",
        ReasonCode::ThermalBand => "the device slowed itself down against heat",
        ReasonCode::ClockLow => "the mean clock stayed too far below the highest",
        ReasonCode::SentinelSlow => "a short fixed kernel did not come back to its own speed",
        ReasonCode::BatteryLow => "the battery had too little charge to begin",
        ReasonCode::ChargingChanged => "the charging state changed during the sample",
        ReasonCode::ForeignLoad => "another process took more than its share of CPU",
        ReasonCode::AffinityDiffers => "threads or affinity in force differ from the request",
        ReasonCode::IsaDiffers => "the instruction set used differs from the request",
        ReasonCode::ModelHashDiffers => "the model as opened has another sha256 than planned",
        ReasonCode::EngineHashDiffers => "the engine has another sha256 than planned",
        ReasonCode::TokenCountDiffers => "another number of tokens than requested was generated",
        ReasonCode::LogitsNotFinite => "NaN or infinity among the logits",
        ReasonCode::GoldenTokensDiffer => "greedy output differs from the recorded tokens",
        ReasonCode::MbuAboveOne => "more memory bandwidth used than the device has",
        ReasonCode::ClockBackwards => "the monotonic clock went backwards",
        ReasonCode::JournalGap => "a record is missing from the journal",
        ReasonCode::NotMeasured => "the cell ended well and gave no value of this metric",
        ReasonCode::CacheNotEvicted => "the page cache could not be emptied before a cold load",
        ReasonCode::CellDied => "the cell's process did not end in good order",
        ReasonCode::Timeout => "the cell or its load ran past its budget",
        ReasonCode::Interrupted => "the run was interrupted while the cell ran",
        ReasonCode::NotFinite => "the value is not a finite number",
    }
}

/// Cells whose process died, in plan order.
pub fn died(context: &mut Context) -> Vec<DiedView> {
    let mut views = Vec::new();
    let mut left_out = 0;
    for device in &context.run.devices {
        for cell in device.cells.iter().filter(|c| state_of(c) == CellState::Died) {
            if views.len() == CELLS_MAX {
                left_out += 1;
                continue;
            }
            views.push(DiedView {
                device: text::clean(&device.facts.device),
                cell: cell.cell,
                scenario: text::clean(&cell.scenario),
                arm: cell.arm.as_str(),
                pair: cell.pair,
                attempts: cell.attempts,
                cause: cell.exit.as_ref().map(text::exit_cause).unwrap_or_default(),
                memory: last_memory(cell),
                stderr_tail: text::clean_lines(&cell.stderr_tail),
            });
        }
    }
    if left_out > 0 {
        context.cuts.push(format!("{left_out} more dead cells are not listed; all are in report.json"));
    }
    views
}

fn last_memory(cell: &CellData) -> String {
    let Some((_, last)) = cell.telemetry.iter().max_by_key(|(at, _)| *at) else { return String::new() };
    let memory = &last.memory;
    let parts = [
        ("resident", memory.rss_bytes),
        ("anonymous", memory.anon_bytes),
        ("file", memory.file_bytes),
        ("swap", memory.swap_bytes),
        ("available on the device", last.mem_available_bytes),
    ];
    let shown: Vec<String> =
        parts.iter().filter_map(|(name, value)| value.map(|v| format!("{name} {}", text::bytes(v)))).collect();
    shown.join(", ")
}

/// The farm's own figures.
pub fn quality(run: &RunData) -> Vec<FactView> {
    let cells: Vec<&CellData> = run.devices.iter().flat_map(|d| &d.cells).collect();
    let of = |state| cells.iter().filter(|c| state_of(c) == state).count() as u64;
    let started = cells.iter().filter(|c| c.attempts > 0).count() as u64;
    let samples: u64 = cells.iter().map(|c| last_samples(c).count() as u64).sum();
    let good: u64 = cells.iter().map(|c| last_samples(c).filter(|s| counts(c, s)).count() as u64).sum();
    let discarded: u64 = cells.iter().map(|c| (c.samples.len() - last_samples(c).count()) as u64).sum();
    let retries: u64 = cells.iter().map(|c| u64::from(c.attempts.saturating_sub(1))).sum();
    let spent: u64 = cells.iter().filter_map(|c| c.duration_ms).fold(0, u64::saturating_add);
    let wasted = cells
        .iter()
        .filter(|c| state_of(c) != CellState::Valid)
        .filter_map(|c| c.duration_ms)
        .fold(0, u64::saturating_add);
    let failed = run.devices.iter().filter(|d| d.failure.is_some()).count() as u64;
    let fact = |name: &str, value: String, note: &str| FactView { name: name.into(), value, note: note.into() };
    vec![
        fact("Devices that failed", text::share(failed, run.devices.len() as u64), "device or link, INFRA"),
        fact("Cells INVALID", text::share(of(CellState::Invalid), started), "of those started"),
        fact("Cells that died", text::share(of(CellState::Died), started), "of those started"),
        fact(
            "Cells without an end",
            text::share(of(CellState::CutShort) + of(CellState::NotStarted), cells.len() as u64),
            "cut short or never started, of those planned",
        ),
        fact("Samples that do not count", text::share(samples - good, samples), "of the attempts that count"),
        fact("Retries", retries.to_string(), "attempts beyond the first"),
        fact("Samples of earlier attempts", discarded.to_string(), "kept in samples.csv, never counted"),
        fact("Time in cells", text::duration(spent), "last attempts, all devices together"),
        fact("Time lost", text::share_of_time(wasted, spent), "in cells that do not count"),
    ]
}
