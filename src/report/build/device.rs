//! One section a device: what it is, what its engine proved, how its cells went.

use super::cells::{CellState, state_of};
use super::{Context, latency, rules, telemetry};
use crate::gate::{RuleOutcome, Severity};
use crate::report::text;
use crate::report::view::{DeviceView, FactView};
use crate::run::DeviceData;
use farmgate_engine::protocol::{Fingerprint, SelfProof};
use std::collections::BTreeMap;

/// Different proofs shown of one device, at most.
const PROOFS_MAX: usize = 4;

/// All devices, in plan order.
pub fn devices(context: &mut Context) -> Vec<DeviceView> {
    let run = context.run;
    let mut critical: BTreeMap<&str, Vec<&RuleOutcome>> = BTreeMap::new();
    for outcome in context.outcomes.values().flatten().filter(|o| o.severity == Severity::Critical) {
        critical.entry(&outcome.device).or_default().push(outcome);
    }
    run.devices
        .iter()
        .map(|device| {
            let outcomes = critical.get(device.facts.device.as_str()).map_or(&[][..], Vec::as_slice);
            view(context, device, outcomes)
        })
        .collect()
}

fn view(context: &mut Context, device: &DeviceData, outcomes: &[&RuleOutcome]) -> DeviceView {
    let facts = &device.facts;
    let id = context.device_id(&facts.device);
    let fingerprint = device.fingerprint.as_ref();
    let mut figures = Vec::new();
    let mut remarks = Vec::new();
    latency::figures(context, &id, device, &mut figures, &mut remarks);
    telemetry::figures(context, &id, device, &mut figures, &mut remarks);
    let mut kind: Vec<String> = vec![text::clean(&facts.transport)];
    kind.extend(facts.tier.iter().map(|t| format!("tier {}", text::clean(t))));
    kind.extend(facts.labels.iter().take(8).map(|l| text::clean(l)));
    let worst = super::worst(outcomes.iter().copied());
    let states: Vec<CellState> = device.cells.iter().map(state_of).collect();
    let unreached = || "never reached".to_owned();
    DeviceView {
        id,
        name: text::clean(&facts.device),
        kind: kind.join(", "),
        soc: fingerprint.map_or_else(unreached, |f| text::clean(&f.soc)),
        system: fingerprint
            .map(|f| format!("{}, kernel {}", text::clean(&f.os_build), text::clean(&f.kernel)))
            .unwrap_or_default(),
        facts: fingerprint.map(|f| fingerprint_facts(f, device)).unwrap_or_default(),
        proofs: proofs(device),
        failure: device.failure.as_deref().map(text::joined_sentence).unwrap_or_default(),
        cells: cells_in_words(&states),
        troubled: device.failure.is_some() || states.iter().any(|s| *s != CellState::Valid),
        outcome: worst.map_or("", rules::word),
        class: worst.map_or("none", rules::class),
        remarks,
        figures,
    }
}

fn cells_in_words(states: &[CellState]) -> String {
    let count = |state| states.iter().filter(|s| **s == state).count();
    let mut words = vec![format!("{} of {} valid", count(CellState::Valid), states.len())];
    let others = [
        (CellState::Invalid, "INVALID"),
        (CellState::Died, "died"),
        (CellState::CutShort, "cut short"),
        (CellState::NotStarted, "never started"),
    ];
    words.extend(others.iter().filter(|(s, _)| count(*s) > 0).map(|(s, word)| format!("{} {word}", count(*s))));
    words.join(", ")
}

fn fact(name: &str, value: String) -> FactView {
    FactView { name: name.to_owned(), value, note: String::new() }
}

fn fingerprint_facts(print: &Fingerprint, device: &DeviceData) -> Vec<FactView> {
    let mut facts = Vec::new();
    facts.extend(print.product.as_ref().map(|p| fact("Product", text::clean(p))));
    facts.push(fact("Target", text::clean(&print.target)));
    let clusters: Vec<String> = print.clusters.iter().take(8).map(text::cluster).collect();
    if !clusters.is_empty() {
        facts.push(fact("Cores", clusters.join("; ")));
    }
    facts.push(fact("Memory", format!("{}, pages of {} B", text::bytes(print.memory_bytes), print.page_size_bytes)));
    if !print.isa.is_empty() {
        let isa: Vec<String> = print.isa.iter().take(16).map(|i| text::clean(i)).collect();
        facts.push(fact("Instruction sets", isa.join(", ")));
    }
    if !print.power_modes.is_empty() {
        let one = |(name, value): &(String, String)| format!("{} = {}", text::clean(name), text::clean(value));
        facts.push(fact("Modes", print.power_modes.iter().take(16).map(one).collect::<Vec<_>>().join(", ")));
    }
    facts.extend(print.battery_percent.map(|p| fact("Battery", format!("{p} %"))));
    facts.extend(print.virtualisation.as_ref().map(|v| fact("Virtualised by", text::clean(v))));
    facts.extend(device.engine_sha256.as_ref().map(|h| fact("Engine sha256", text::hash_prefix(h))));
    facts
}

/// Distinct proofs with the number of cells that gave them.
fn proofs(device: &DeviceData) -> Vec<String> {
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    let mut proved = 0;
    for proof in device.cells.iter().filter_map(|c| c.proof.as_ref()) {
        *counted.entry(proof_in_words(proof)).or_default() += 1;
        proved += 1;
    }
    let mut counted: Vec<(String, usize)> = counted.into_iter().collect();
    counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = counted.len().saturating_sub(PROOFS_MAX);
    let mut shown: Vec<String> = counted
        .into_iter()
        .take(PROOFS_MAX)
        .map(|(words, count)| format!("{words} (in {count} of {proved} cells)"))
        .collect();
    if more > 0 {
        shown.push(format!("and {more} other combinations, all in report.json"));
    }
    shown
}

fn proof_in_words(proof: &SelfProof) -> String {
    let mut affinity: Vec<String> = proof.affinity_effective.iter().take(64).map(|a| text::clean(a)).collect();
    let same = affinity.windows(2).all(|w| w[0] == w[1]);
    let affinity = match (affinity.len(), same) {
        (0, _) => "affinity not read back".to_owned(),
        (_, true) => format!("each on CPUs {}", affinity.swap_remove(0)),
        (_, false) => format!("thread by thread on CPUs {}", affinity.join(" | ")),
    };
    let asked = match proof.config.threads {
        0 => "chosen by the engine".to_owned(),
        threads => format!("{threads} asked for"),
    };
    let batch = match proof.threads_batch_effective {
        0 => String::new(),
        threads if threads == proof.threads_effective => String::new(),
        threads => format!(", {threads} for prompts"),
    };
    let unlocked = if proof.config.mlock && proof.held.locked_bytes == 0 { ", NOT locked in memory" } else { "" };
    let fault = proof.affinity_faults.first().map(|fault| format!(" ({})", text::clean(fault))).unwrap_or_default();
    format!(
        "{} kernels, {} threads running ({asked}){batch}, {affinity}{fault}{unlocked}, engine {}",
        text::clean(&proof.isa),
        proof.threads_effective,
        text::clean(&proof.build)
    )
}
