//! The plan as people read it (`--dry-run`).

use super::{Artefact, Plan, PlannedCell, PlannedDevice, PlannedScenario, order_text};
use farmgate_engine::protocol::{Repack, Step};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scenarios, devices) = (self.scenarios.len(), self.devices.len());
        let cells: usize = self.devices.iter().map(|d| d.cells.len()).sum();
        writeln!(
            f,
            "plan: {} on {}, {}, about {}",
            counted(scenarios, "scenario"),
            counted(devices, "device"),
            counted(cells, "cell"),
            // devices work side by side
            duration_text(self.devices.iter().map(|d| d.estimate_s).max().unwrap_or(0))
        )?;
        writeln!(f, "\nartefacts")?;
        self.artefact_rows(f)?;
        for device in &self.devices {
            self.device_block(f, device)?;
        }
        for scenario in &self.scenarios {
            self.scenario_block(f, scenario)?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "\nnotes")?;
            for note in &self.notes {
                writeln!(f, "  {note}")?;
            }
        }
        writeln!(f)?;
        if self.comparison {
            writeln!(f, "A is the baseline, B the candidate; each cell is a fresh process")?;
        }
        writeln!(f, "estimate: {}", self.assumption)
    }
}

impl Plan {
    fn artefact_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |part: fn(&Artefact) -> &str| self.artefacts.iter().map(|a| part(a).chars().count()).max().unwrap_or(0);
        let (names, kinds) = (width(|a| &a.name), width(|a| &a.kind));
        for a in &self.artefacts {
            let sha256 = a.sha256.first().map_or("", |s| s.get(..12).unwrap_or(s));
            let files =
                if a.sha256.len() > 1 { format!(" and {} more files", a.sha256.len() - 1) } else { String::new() };
            let bytes = bytes_text(a.bytes);
            writeln!(f, "  {:<9}  {:names$}  {:kinds$}  {bytes:>9}  sha256 {sha256}{files}", a.role, a.name, a.kind)?;
        }
        if self.artefacts.iter().all(|a| a.role != "engine") {
            writeln!(f, "  engine     built for each device's target when the run begins")?;
        }
        Ok(())
    }

    fn device_block(&self, f: &mut fmt::Formatter<'_>, device: &PlannedDevice) -> fmt::Result {
        writeln!(
            f,
            "\ndevice {} ({}): {}, about {}",
            device.device.name,
            device.device.transport,
            counted(device.cells.len(), "cell"),
            duration_text(device.estimate_s)
        )?;
        let names = self.scenarios.iter().map(|s| s.name.len()).max().unwrap_or(0);
        for scenario in &self.scenarios {
            let n = scenario.pairs as usize;
            if self.comparison {
                writeln!(f, "  {:names$}  {}  {}", scenario.name, order_text(scenario.pairs), counted(n, "pair"))?;
            } else {
                writeln!(f, "  {:names$}  {}", scenario.name, counted(n, "repetition"))?;
            }
        }
        Ok(())
    }

    fn scenario_block(&self, f: &mut fmt::Formatter<'_>, scenario: &PlannedScenario) -> fmt::Result {
        writeln!(f, "\nscenario {}: {}", scenario.name, scenario.summary)?;
        let config = &scenario.config;
        let threads = match config.threads {
            0 => "threads chosen by the engine".to_owned(),
            n => counted(n as usize, "thread"),
        };
        let batch = match config.threads_batch {
            0 => String::new(),
            n => format!(", {n} for prompts"),
        };
        let cores = match config.cpu_clusters {
            Some(which) => format!(", on the {} cores", which.as_str()),
            None if config.cpus.is_empty() => String::new(),
            None => format!(", on cores {}", config.cpus),
        };
        let mmap = if config.mmap { "mapped" } else { "read into memory" };
        let mlock = if config.mlock { " and locked" } else { "" };
        let repack = match config.repack {
            Repack::Auto => "",
            Repack::On => ", weights rearranged",
            Repack::Off => ", weights as in the file",
        };
        writeln!(
            f,
            "  context {} tokens, {threads}{batch}{cores}, model {mmap}{mlock}{repack}",
            config.context_tokens
        )?;
        let cells = || self.devices.iter().flat_map(|d| &d.cells).filter(|c| c.scenario == scenario.name);
        let longest = |ms: fn(&PlannedCell) -> u64| cells().map(ms).max().unwrap_or(0).div_ceil(1000);
        writeln!(
            f,
            "  a cell is stopped when its load takes {} or the rest of it {}",
            duration_text(longest(|c| c.load_timeout_ms)),
            duration_text(longest(|c| c.cell_timeout_ms))
        )?;
        for (i, step) in scenario.steps.iter().enumerate() {
            writeln!(f, "  {:>2}  {}", i + 1, step_text(step))?;
        }
        Ok(())
    }
}

/// A step in one line.
pub(super) fn step_text(step: &Step) -> String {
    let name = step.name();
    let times = |n: u32| if n == 1 { String::new() } else { format!(", {n} times") };
    match step {
        Step::Load { cold: true } => format!("{name} cold"),
        Step::Load { cold: false } => name.to_owned(),
        Step::WarmUp { prompt_tokens, decode_tokens } => {
            format!("{name}: prompt of {prompt_tokens}, answer of {decode_tokens} tokens")
        }
        Step::Prefill { prompt_tokens, repetitions } => format!("{name} {prompt_tokens} tokens{}", times(*repetitions)),
        Step::Decode { decode_tokens, at_depth, repetitions } => {
            format!("{name} {decode_tokens} tokens at depth {at_depth}{}", times(*repetitions))
        }
        Step::Answer { label, prompt_tokens, decode_tokens } => {
            format!("{name} {label}: prompt of {prompt_tokens}, answer of {decode_tokens} tokens")
        }
        Step::Golden { cases } => match cases.len() {
            0 => format!("{name}: no recorded answers"),
            n => format!("{name}: {}", counted(n, "recorded answer")),
        },
    }
}

fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// For instance `135M`, with three digits that count.
pub(super) fn count(n: u64) -> String {
    scaled(n, [("", 1.0), ("k", 1e3), ("M", 1e6), ("B", 1e9)])
}

fn bytes_text(n: u64) -> String {
    scaled(n, [(" B", 1.0), (" kB", 1e3), (" MB", 1e6), (" GB", 1e9)])
}

fn scaled(n: u64, units: [(&str, f64); 4]) -> String {
    let n = n as f64;
    let (unit, scale) = units.into_iter().rev().find(|(_, scale)| n >= *scale).unwrap_or(units[0]);
    let value = n / scale;
    if scale == 1.0 || value >= 100.0 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
}

fn duration_text(seconds: u64) -> String {
    match seconds {
        0..=90 => format!("{seconds} s"),
        91..=5400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}
