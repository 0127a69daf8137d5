//! What will happen, decided before anything is touched: which cells, on which device, in which order, with which
//! budgets. Pure: no I/O, no clock, no randomness.

mod cost;
mod order;
mod resolve;
mod text;

pub use cost::ASSUMPTION;
pub use order::{arms_of_pair, order_text};

use crate::device::{Device, Inventory};
use crate::error::{Error, Result};
use crate::model::ModelFile;
use crate::run::{DeviceFacts, RunId};
use crate::scenario::Catalogue;
use farmgate_engine::protocol::{Arm, CellPlan, DevicePlan, EngineConfig, ModelRef, PROTOCOL_VERSION, Step};
use serde::Serialize;
use std::collections::BTreeMap;

/// How often a cell that came out INVALID is tried again.
pub const RETRIES_MAX: u32 = 2;
/// Most cells of one device in one run.
pub const CELLS_MAX: u64 = 20_000;
/// Most ids of recorded answers in one device's plan, so that the plan stays below what the device reads (64 MiB).
pub const GOLDEN_IDS_MAX: u64 = 4 << 20;
/// Fewest pairs, or repetitions, from which an interval at 95 % (one-sided, exact) can be made at all: 1/2^5 < 0.05.
pub const PAIRS_FOR_A_VERDICT: u32 = 5;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Registered devices.
    pub inventory: &'a Inventory,
    /// Scenarios and recorded answers.
    pub catalogue: &'a Catalogue,
    /// Names of the devices, in the order in which they are to be shown; none stands for every registered one.
    pub devices: &'a [String],
    /// Names of the scenarios, in the order in which they are to run.
    pub scenarios: &'a [String],
    /// The model that asks to be released.
    pub candidate: &'a ModelFile,
    /// The model that it is compared with; without it there are repetitions and no pairs.
    pub baseline: Option<&'a ModelFile>,
    /// What was typed to differ from the scenarios.
    pub overrides: Overrides,
    /// Engines that are built already, for display; empty when they are built after the plan.
    pub engines: &'a [Artefact],
}

/// Numbers that replace those of every scenario asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Pairs; only with a baseline.
    pub pairs: Option<u32>,
    /// Repetitions; only without a baseline.
    pub repetitions: Option<u32>,
    /// Worker threads; 0 lets the engine choose.
    pub threads: Option<u32>,
    /// Room in the KV cache, in tokens; steps that need more are left out with a note.
    pub context_tokens: Option<u32>,
}

/// A file that is pushed, named by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Artefact {
    /// `candidate`, `baseline` or `engine`.
    pub role: String,
    /// File name, or the target an engine was built for.
    pub name: String,
    /// What it is, for people, for instance `llama, 135M parameters, Q4_0`.
    pub kind: String,
    /// sha256 of each file, in order.
    pub sha256: Vec<String>,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Everything that will happen.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// Whether baseline and candidate are compared in pairs.
    pub comparison: bool,
    /// Devices with their cells, in the order asked for.
    pub devices: Vec<PlannedDevice>,
    /// Scenarios as they will run, in order.
    pub scenarios: Vec<PlannedScenario>,
    /// What is pushed.
    pub artefacts: Vec<Artefact>,
    /// What the reader should know: steps left out, numbers changed, demands that cannot be judged.
    pub notes: Vec<String>,
    /// What the estimates assume.
    pub assumption: String,
}

/// One device's part of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedDevice {
    /// What the inventory says of it.
    pub device: Device,
    /// Its cells, in order.
    pub cells: Vec<PlannedCell>,
    /// Estimate of the time they take, seconds; see [`ASSUMPTION`].
    pub estimate_s: u64,
}

/// A scenario as it will run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedScenario {
    /// Its name.
    pub name: String,
    /// What it does.
    pub summary: String,
    /// Pairs, or repetitions without a baseline.
    pub pairs: u32,
    /// How the engine is set up.
    pub config: EngineConfig,
    /// The candidate's steps; the baseline's differ at most in the recorded answers.
    pub steps: Vec<Step>,
}

/// A cell before the paths on the device are known.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedCell {
    /// Position in the device's plan, from 0.
    pub cell: u32,
    /// Scenario.
    pub scenario: String,
    /// Arm.
    pub arm: Arm,
    /// Pair, or repetition without a baseline, from 0.
    pub pair: u32,
    /// Position within the pair.
    pub slot: u32,
    /// Seed of prompts and sampling: equal for both arms of a pair.
    pub seed: u64,
    /// How the engine is set up.
    pub config: EngineConfig,
    /// What is done, in order.
    #[serde(skip)]
    pub steps: Vec<Step>,
    /// Budget for opening the model, milliseconds.
    pub load_timeout_ms: u64,
    /// Budget for the rest of the cell, milliseconds.
    pub cell_timeout_ms: u64,
}

impl Plan {
    /// Decides everything.
    ///
    /// # Errors
    /// Usage error that names every fault of the request: unknown or repeated names, numbers out of range, a context
    /// beyond a model's, a model beyond a device's memory, nothing to do.
    pub fn resolve(request: &Request<'_>) -> Result<Self> {
        resolve::resolve(request)
    }

    /// The plan that the device at `index` is given, with the models where the session put them.
    ///
    /// # Errors
    /// A bug: there is no such device, or no `baseline` although the plan is a comparison.
    pub fn device_plan(
        &self,
        index: usize,
        run: &RunId,
        candidate: &ModelRef,
        baseline: Option<&ModelRef>,
        lease_token: Option<u64>,
    ) -> Result<DevicePlan> {
        let device = self.devices.get(index).ok_or_else(|| Error::bug(format!("the plan has no device {index}")))?;
        let cells = device.cells.iter().map(|cell| match (cell.arm, baseline) {
            (Arm::Candidate, _) => Ok(cell.with_model(candidate)),
            (Arm::Baseline, Some(baseline)) => Ok(cell.with_model(baseline)),
            (Arm::Baseline, None) => Err(Error::bug("a comparison was given no baseline model")),
        });
        Ok(DevicePlan {
            protocol_version: PROTOCOL_VERSION,
            run: run.as_str().to_owned(),
            device: device.device.name.clone(),
            telemetry_period_ms: device.device.telemetry_period_ms,
            retries_max: RETRIES_MAX,
            lease_token,
            ready: device.device.ready.clone(),
            cells: cells.collect::<Result<Vec<CellPlan>>>()?,
        })
    }

    /// Planned pairs (or repetitions without a baseline) by scenario, for the manifest.
    pub fn pairs(&self) -> BTreeMap<String, u32> {
        self.scenarios.iter().map(|s| (s.name.clone(), s.pairs)).collect()
    }

    /// Names of the scenarios, in order, for the manifest.
    pub fn scenario_names(&self) -> Vec<String> {
        self.scenarios.iter().map(|s| s.name.clone()).collect()
    }

    /// What the inventory says of the devices, in order, for the manifest.
    pub fn device_facts(&self) -> Vec<DeviceFacts> {
        self.devices.iter().map(|d| facts_of(&d.device)).collect()
    }
}

fn facts_of(device: &Device) -> DeviceFacts {
    DeviceFacts {
        device: device.name.clone(),
        labels: device.labels.clone(),
        tier: device.tier.clone(),
        transport: device.transport.kind().to_owned(),
        constraints: device.constraints,
    }
}

impl PlannedCell {
    fn with_model(&self, model: &ModelRef) -> CellPlan {
        CellPlan {
            cell: self.cell,
            scenario: self.scenario.clone(),
            arm: self.arm,
            pair: self.pair,
            slot: self.slot,
            model: model.clone(),
            config: self.config.clone(),
            steps: self.steps.clone(),
            seed: self.seed,
            load_timeout_ms: self.load_timeout_ms,
            cell_timeout_ms: self.cell_timeout_ms,
            about_heat: false,
        }
    }
}

#[cfg(test)]
mod tests;
