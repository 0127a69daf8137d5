//! What a series has to say before any limit is applied: its valid values, and why others are missing.

use crate::run::{DeviceData, Observation};
use farmgate_engine::protocol::{Arm, ExitCause, ReasonCode};
use std::collections::BTreeMap;

/// The observations of one arm, sorted into valid ones and reasons.
pub(super) struct Observed {
    /// Valid values, in order of measuring.
    pub values: Vec<f64>,
    /// How many were planned.
    pub planned: usize,
    reasons: BTreeMap<ReasonCode, usize>,
}

impl Observed {
    pub fn of(observations: &[Observation]) -> Self {
        let mut out = Self { values: Vec::new(), planned: observations.len(), reasons: BTreeMap::new() };
        for observation in observations {
            match &observation.value {
                Ok(value) => out.values.push(value.get()),
                Err(reasons) => reasons.iter().for_each(|r| *out.reasons.entry(*r).or_default() += 1),
            }
        }
        out
    }

    pub fn missing(&self) -> usize {
        self.planned - self.values.len()
    }

    /// Whether so little is valid that the environment, not the sample size, is the reason.
    pub fn is_spoiled(&self) -> bool {
        self.missing() > 0 && self.values.len() <= self.missing()
    }

    /// ` (2 of 8 invalid: cell-died 1, timeout 1)`, or nothing.
    pub fn missing_words(&self) -> String {
        if self.missing() == 0 {
            return String::new();
        }
        let reasons: Vec<String> = self.reasons.iter().map(|(r, n)| format!("{} {n}", r.as_str())).collect();
        format!(" ({} of {} invalid: {})", self.missing(), self.planned, reasons.join(", "))
    }
}

/// How the cells of an arm in a scenario crashed, when any did: the signal and in how many of how many cells. A crash is
/// the product's fault, not the environment's.
pub(super) fn crashes(device: &DeviceData, scenario: Option<&str>, arm: Arm) -> Option<String> {
    let cells: Vec<_> =
        device.cells.iter().filter(|c| c.arm == arm && scenario.is_none_or(|s| c.scenario == s)).collect();
    let signals: Vec<&str> = cells
        .iter()
        .filter_map(|c| match &c.exit {
            Some(ExitCause::Crash { signal }) => Some(signal.as_str()),
            _ => None,
        })
        .collect();
    let first = signals.first()?;
    let isa = device.fingerprint.as_ref().map(|f| f.isa.join(" ")).unwrap_or_default();
    Some(format!(
        "the {}'s engine crashed with {} in {} of {} cells; this device has: {isa}",
        arm.as_str(),
        first.escape_debug(),
        signals.len(),
        cells.len()
    ))
}

/// A number as sentences show it: four significant digits.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Observations or pairs that would be needed for the interval to clear the limit: widths shrink with the square root.
pub(super) fn needed(n: usize, half_width: f64, distance: f64) -> Option<usize> {
    let factor = half_width / distance;
    (factor.is_finite() && factor < 30.0).then(|| ((n as f64 * factor * factor).ceil() as usize).max(n + 1))
}
