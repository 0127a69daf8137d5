//! When a device is fit to be measured: before a cell, and while it runs.

use super::Finite;
use serde::{Deserialize, Serialize};

/// Criteria of a device plan. Each is off unless it is given, so that a plan without them runs as ever.
///
/// Before each attempt farmhand waits until all hold, at most `cool-down-timeout-ms`; an attempt that cannot begin by then
/// is INVALID. Some are watched while the cell runs, too. What a device gives no sign of is not judged, and the journal
/// says so once ([`super::Record::ReadyBasis`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ReadyCriteria {
    /// How far the hottest trusted sensor may be above the device's own idle temperature when a cell begins, C.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_margin_c: Option<Finite>,
    /// The idle temperature, C. Without it, the lowest reading of the hottest trusted sensor from the start of the run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_temperature_c: Option<Finite>,
    /// How hot the hottest trusted sensor may be when a cell begins, C.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_max_c: Option<Finite>,
    /// No cooling device that slows processors or memory may be at work when a cell begins, nor during a cell that is not
    /// about heat.
    #[serde(skip_serializing_if = "is_off")]
    pub thermal_status: bool,
    /// What everything but the cell may take of the processors, in per cent of one core, before a cell and during it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_cpu_percent_max: Option<Finite>,
    /// Mean clock over highest clock of the workers' clusters below which a cell that is not about heat is INVALID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ratio_min: Option<Finite>,
    /// Charge below which no cell begins, per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery_percent_min: Option<u32>,
    /// Whether a cell is INVALID during which the device was plugged in or out.
    #[serde(skip_serializing_if = "is_off")]
    pub charging_steady: bool,
    /// How fast a short fixed kernel has to be when a cell begins, as a share of its speed at the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel_ratio_min: Option<Finite>,
    /// How long an attempt waits for all of this, in milliseconds.
    pub cool_down_timeout_ms: u64,
    /// How often the device is looked at meanwhile, in milliseconds.
    pub poll_period_ms: u64,
}

fn is_off(flag: &bool) -> bool {
    !flag
}

impl Default for ReadyCriteria {
    fn default() -> Self {
        Self {
            temperature_margin_c: None,
            idle_temperature_c: None,
            temperature_max_c: None,
            thermal_status: false,
            foreign_cpu_percent_max: None,
            clock_ratio_min: None,
            battery_percent_min: None,
            charging_steady: false,
            sentinel_ratio_min: None,
            cool_down_timeout_ms: 600_000,
            poll_period_ms: 1_000,
        }
    }
}

impl ReadyCriteria {
    /// Whether nothing is asked: neither periods nor an idle temperature alone ask anything.
    pub fn is_off(&self) -> bool {
        let Self { idle_temperature_c, cool_down_timeout_ms, poll_period_ms, .. } = *self;
        *self == Self { idle_temperature_c, cool_down_timeout_ms, poll_period_ms, ..Self::default() }
    }

    /// Whether heat is among the criteria.
    pub fn asks_for_temperature(&self) -> bool {
        self.temperature_margin_c.is_some() || self.temperature_max_c.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_unless_it_is_given() {
        let read = |json: &str| serde_json::from_str::<ReadyCriteria>(json);
        assert!(read("{}").unwrap().is_off());
        assert!(read(r#"{"cool-down-timeout-ms": 5, "idle-temperature-c": 30.0}"#).unwrap().is_off());
        assert!(!read(r#"{"thermal-status": true}"#).unwrap().is_off());
        assert!(read(r#"{"temperature-margin": 5}"#).is_err(), "a slip of the pen is no criterion that is off");
        assert!(ReadyCriteria { temperature_max_c: Finite::new(40.0), ..Default::default() }.asks_for_temperature());
    }
}
