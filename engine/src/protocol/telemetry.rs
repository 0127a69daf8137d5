//! Telemetry records: the state of a device while a cell runs. What a device does not tell is left out, never invented.

use super::Finite;
use serde::{Deserialize, Serialize};

/// State of the device at one moment of a cell. Fields that came later are written only where there is something to say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Telemetry {
    /// Position in the plan of the cell that was running.
    pub cell: u32,
    /// The reading at the end of a cell: its process had done all its steps and still held its memory.
    #[serde(default, skip_serializing_if = "is_default")]
    pub at_end: bool,
    /// Temperatures by sensor.
    pub temperatures: Vec<Reading>,
    /// Current clock of each cluster.
    pub clocks: Vec<ClusterClock>,
    /// Mean clock of each cluster since the reading before, from what the kernel adds up in `time_in_state`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clocks_mean: Vec<ClusterClock>,
    /// Cooling devices that are at work: `cur_state` above 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cooling: Vec<Cooling>,
    /// What a Raspberry Pi's firmware says of itself: bits, of which the lowest four mean now and others since the boot.
    #[serde(default, skip_serializing_if = "is_default")]
    pub throttle_flags: Option<u32>,
    /// Memory of the cell's process.
    pub memory: MemoryParts,
    /// `MemAvailable`, bytes.
    pub mem_available_bytes: Option<u64>,
    /// `SwapTotal` less `SwapFree`, bytes; `None` where there is no swap.
    #[serde(default, skip_serializing_if = "is_default")]
    pub swap_used_bytes: Option<u64>,
    /// Share of time in which somebody was stalled, where the kernel keeps pressure.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pressure: Option<Pressure>,
    /// CPU share taken by everything but the cell's process, in per cent of one core.
    pub foreign_cpu_percent: Option<Finite>,
    /// How often the threads that the cell's process has now were taken off their cores against their will, so far.
    #[serde(default, skip_serializing_if = "is_default")]
    pub involuntary_switches: Option<u64>,
    /// The device's own battery.
    #[serde(default, skip_serializing_if = "is_default")]
    pub battery: Option<Battery>,
    /// Power drawn now, where anything measures it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub power: Option<Power>,
    /// Every power rail that tells, W. Rails feed each other, so that their sum means nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rails: Vec<Rail>,
    /// CPU time that this reading itself took, microseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub observer_cpu_us: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Telemetry {
    /// The hottest of the temperatures, degrees Celsius.
    pub fn hottest_c(&self) -> Option<Finite> {
        let hotter = |a: Finite, b: Finite| if b > a { b } else { a };
        self.temperatures.iter().map(|t| t.celsius).reduce(hotter)
    }

    /// Who slows processors or memory against heat or a weak supply now, in the kernel's words; `None` when nobody says so.
    pub fn slowed_by(&self) -> Option<String> {
        let flags = self.throttle_flags.filter(|flags| flags & 0xf != 0);
        let slows = || self.cooling.iter().find(|c| c.slows());
        flags.map(|f| format!("throttle flags {f:#x}")).or_else(|| slows().map(|c| c.device.clone()))
    }
}

/// One temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reading {
    /// The sensor's type as the kernel names it, for instance `x86_pkg_temp`.
    pub sensor: String,
    /// Degrees Celsius.
    pub celsius: Finite,
}

/// Clock of one cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterClock {
    /// First core of the cluster.
    pub core: u32,
    /// Clock, kHz.
    pub clock_khz: u64,
}

/// A cooling device at work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cooling {
    /// Its type as the kernel names it, for instance `thermal-cpufreq-0`.
    pub device: String,
    /// `cur_state`; what a step means is the driver's to know.
    pub state: u64,
    /// `max_state`.
    pub state_max: Option<u64>,
}

impl Cooling {
    /// Whether it slows processors or memory, by its type: fans do not, nor do dimmed displays and slower charging.
    pub fn slows(&self) -> bool {
        let kind = self.device.to_ascii_lowercase();
        let processor = ["cpu", "cluster", "processor", "powerclamp"];
        let memory = ["ddr", "dmc", "mif", "llcc", "emc"];
        processor.iter().chain(&memory).any(|part| kind.contains(part)) && !kind.contains("fan")
    }
}

/// Memory of one process, in bytes, with the source of the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemoryParts {
    /// `smaps_rollup` or `status`.
    pub source: String,
    /// Resident set, bytes.
    pub rss_bytes: Option<u64>,
    /// Highest resident set so far (`VmHWM`), bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Proportional set size, bytes.
    pub pss_bytes: Option<u64>,
    /// Anonymous part, bytes.
    pub anon_bytes: Option<u64>,
    /// File-backed part, bytes.
    pub file_bytes: Option<u64>,
    /// Swapped part, bytes.
    pub swap_bytes: Option<u64>,
}

/// `some avg10` of `/proc/pressure`: per cent of the last ten seconds in which at least one task waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pressure {
    /// For memory.
    #[serde(skip_serializing_if = "is_default")]
    pub memory_some_percent: Option<Finite>,
    /// For a processor.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu_some_percent: Option<Finite>,
    /// For storage.
    #[serde(skip_serializing_if = "is_default")]
    pub io_some_percent: Option<Finite>,
}

/// State of a battery. Makers differ in units and sign of the current; the raw figure is kept beside what is made of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Battery {
    /// Charge, per cent.
    #[serde(skip_serializing_if = "is_default")]
    pub percent: Option<u32>,
    /// `charging`, `discharging`, `not-charging`, `full` or `unknown`.
    #[serde(skip_serializing_if = "is_default")]
    pub status: Option<String>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "is_default")]
    pub celsius: Option<Finite>,
    /// Voltage, uV.
    #[serde(skip_serializing_if = "is_default")]
    pub voltage_uv: Option<u64>,
    /// `current_now` as the driver gives it.
    #[serde(skip_serializing_if = "is_default")]
    pub current_raw: Option<i64>,
    /// Current in mA: above 0 leaves the battery, below 0 enters it. The sign is that of the status, not the driver's;
    /// where the status tells neither, there is none.
    #[serde(skip_serializing_if = "is_default")]
    pub current_ma: Option<Finite>,
    /// How the unit of the raw figure is known: `ua-by-size` is shown by a figure that no mA could have, `ma-assumed` is
    /// what small figures are taken for until such a one comes.
    #[serde(skip_serializing_if = "is_default")]
    pub current_unit: Option<String>,
}

/// Power drawn, with its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Power {
    /// W.
    pub power_w: Finite,
    /// `rail` (a sensor on the board or in the processor) or `fuel-gauge` (the battery's own, while it discharges).
    pub source: String,
    /// What was read, for instance `ina3221 VDD_IN` or `rapl package-0`; for a fuel gauge how its unit is known.
    pub sensor: String,
}

/// Power of one rail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rail {
    /// Chip and label.
    pub rail: String,
    /// W.
    pub power_w: Finite,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_slows_processors_or_memory_is_throttling() {
        let slows = |device: &str| Cooling { device: device.into(), state: 1, state_max: None }.slows();
        for device in ["thermal-cpufreq-0", "cpufreq-cpu4", "Processor", "cpu-cluster1", "devfreq-dmc", "ddr-bw"] {
            assert!(slows(device), "{device}");
        }
        for device in ["pwm-fan", "cpu-fan", "Fan", "panel0-backlight", "battery", "modem_pa", "TCC Offset"] {
            assert!(!slows(device), "{device}");
        }
    }

    #[test]
    fn a_record_of_an_older_agent_is_read_and_what_is_not_known_is_not_written() {
        let older = r#"{"cell":1,"temperatures":[],"clocks":[],"memory":{"source":"status","rss-bytes":1,
            "peak-rss-bytes":null,"pss-bytes":null,"anon-bytes":null,"file-bytes":null,"swap-bytes":null},
            "mem-available-bytes":2,"foreign-cpu-percent":null}"#;
        let read: Telemetry = serde_json::from_str(older).unwrap();
        assert_eq!((read.cell, read.at_end, read.power.is_none()), (1, false, true));
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written.as_object().unwrap().len(), 6, "{written}");
    }
}
