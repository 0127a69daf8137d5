//! `farmgate device doctor`: what will spoil a measurement on a device, and what mends it.

use super::{Done, device, to_json};
use crate::config::Folders;
use crate::device::{Device, Inventory, TransportConfig};
use crate::error::Result;
use crate::report::terminal;
use farmgate_engine::protocol::{CoreCluster, Fingerprint};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Prints `key value` lines of what the fingerprint does not hold, since it changes by the minute.
const LOOK: &str = r#"set -- $(cat /proc/loadavg 2>/dev/null); echo "load $1"
while read -r key value unit; do case $key in MemAvailable:|SwapTotal:|SwapFree:) echo "${key%:} $value";; esac
done < /proc/meminfo 2>/dev/null
set -- $(df -Pk . 2>/dev/null | tail -n 1); echo "free_kb $4"
if command -v dumpsys >/dev/null 2>&1; then
  dumpsys battery 2>/dev/null | while read -r key value; do case $key in
    AC|USB|Wireless) echo "charging_$key ${value##* }";; UPDATES) echo "battery_faked 1";; esac; done
  case $(dumpsys power 2>/dev/null | grep -m 1 mWakefulness=) in *Awake*) echo "screen on";; *=*) echo "screen off";; esac
fi
exit 0"#;

/// Load average above which something else is at work.
const LOAD_MAX: f64 = 0.5;
/// Share of the memory that should be free.
const AVAILABLE_SHARE_MIN: f64 = 0.3;
/// Space that models need, bytes.
const FREE_BYTES_MIN: u64 = 4 << 30;
/// A device that rests is cooler than this, degrees Celsius.
const IDLE_C_MAX: f64 = 45.0;
/// A battery below this may make the device save power, per cent.
const BATTERY_PERCENT_MIN: u32 = 30;
/// Clocks that differ by more confuse whoever reads logs of both, milliseconds.
const CLOCK_OFFSET_MS_MAX: i64 = 5_000;

/// One thing that will spoil a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Finding {
    /// What is wrong.
    what: String,
    /// What it does to figures.
    why: String,
    /// What mends it; a command where there is one.
    mend: String,
}

/// `farmgate device doctor`. Saying what is wrong succeeds, whatever it is.
pub fn doctor(folders: &Folders, name: &str, json: bool, artefacts: Option<&Path>) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    let device = inventory.find(name)?;
    let mut session = device::open(folders, device, artefacts, "doctor")?;
    let said = session.look_around(LOOK)?;
    let (fingerprint, offset_ms) = (session.fingerprint().clone(), session.clock_offset_ms());
    session.close()?;
    let findings = Patient { device, fingerprint: &fingerprint, facts: facts(&said), offset_ms }.findings();
    if json {
        return Ok(Done::ok(to_json(&findings)?));
    }
    if findings.is_empty() {
        return Ok(Done::ok(format!("{name}: nothing found that would spoil a measurement\n")));
    }
    let advice: Vec<[&str; 3]> = findings.iter().map(|f| [f.what.as_str(), &f.why, &f.mend]).collect();
    Ok(Done::ok(terminal::advice(name, &advice)))
}

/// `key value` lines; whatever else a device prints is ignored.
fn facts(said: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (key, value) = line.trim().split_once(' ')?;
        Some((key.to_owned(), value.trim().to_owned()))
    };
    said.lines().take(100).filter_map(pair).collect()
}

/// All that is known of a device.
struct Patient<'a> {
    device: &'a Device,
    fingerprint: &'a Fingerprint,
    facts: BTreeMap<String, String>,
    offset_ms: i64,
}

impl Patient<'_> {
    fn findings(&self) -> Vec<Finding> {
        let mut out = Vec::new();
        self.clocks(&mut out);
        self.heat(&mut out);
        self.power(&mut out);
        self.load_and_memory(&mut out);
        self.surroundings(&mut out);
        out
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.facts.get(key)?.parse().ok().filter(|n: &f64| n.is_finite())
    }

    fn is_phone(&self) -> bool {
        matches!(self.device.transport, TransportConfig::Adb(_))
    }

    fn clocks(&self, out: &mut Vec<Finding>) {
        for cluster in &self.fingerprint.clusters {
            let Some(governor) = cluster.governor.as_deref().filter(|g| *g != "performance") else { continue };
            let mend = match self.is_phone() {
                true => "phones cannot be told without root; measure in pairs, which share it".to_owned(),
                false => format!(
                    "for c in {}; do echo performance | sudo tee /sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done",
                    numbers(cluster)
                ),
            };
            out.push(finding(
                &format!("governor `{governor}` on cores {}", numbers(cluster)),
                "clocks follow the load, so that short measurements begin slow",
                &mend,
            ));
        }
        let offline: Vec<String> =
            self.fingerprint.clusters.iter().flat_map(|c| &c.offline).map(u32::to_string).collect();
        if !offline.is_empty() {
            out.push(finding(
                &format!("cores {} are offline", offline.join(" ")),
                "threads that were to run there share other cores",
                &format!(
                    "for c in {}; do echo 1 | sudo tee /sys/devices/system/cpu/cpu$c/online; done",
                    offline.join(" ")
                ),
            ));
        }
        for (name, value) in self.fingerprint.power_modes.iter().filter(|(name, value)| is_throttled(name, value)) {
            out.push(finding(
                &format!("{name} says {value}"),
                "the board has lowered its clocks for want of power or for heat",
                "a stronger power supply and a fan; the flags are kept until the next restart",
            ));
        }
    }

    fn heat(&self, out: &mut Vec<Finding>) {
        let trusted = || self.fingerprint.sensors.iter().filter(|s| s.distrust.is_none());
        if trusted().next().is_none() {
            out.push(finding(
                "no temperature sensor that can be trusted",
                "nobody can tell whether a measurement began cool, or was throttled",
                "allow its sensors to be read, or keep pauses between cells; comparisons in pairs still hold",
            ));
        }
        let hottest = trusted().filter_map(|s| Some((s.celsius?.get(), &s.sensor))).max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((celsius, sensor)) = hottest.filter(|(celsius, _)| *celsius > IDLE_C_MAX) {
            out.push(finding(
                &format!("{sensor} is at {celsius:.1} °C although nothing is measured"),
                "less heat can be taken before clocks are lowered",
                "let it cool; look for what is at work on it, for sunlight, and for a case that keeps heat in",
            ));
        }
    }

    fn power(&self, out: &mut Vec<Finding>) {
        if let Some(percent) = self.fingerprint.battery_percent.filter(|p| *p < BATTERY_PERCENT_MIN) {
            out.push(finding(
                &format!("the battery is at {percent} %"),
                "devices save power when it runs low",
                "charge it before the run",
            ));
        }
        if ["charging_AC", "charging_USB", "charging_Wireless"]
            .iter()
            .any(|k| self.facts.get(*k).is_some_and(|v| v == "true"))
            && self.fingerprint.battery_percent.is_some_and(|p| p < 95)
        {
            out.push(finding(
                "the battery is being charged",
                "charging heats the device, and ends in the middle of a run",
                "charge it to the end first, or keep its level with a charge limit",
            ));
        }
        if self.facts.contains_key("battery_faked") {
            out.push(finding(
                "`dumpsys battery` says UPDATES STOPPED",
                "level and temperature of the battery are made up",
                "adb shell dumpsys battery reset",
            ));
        }
        if self.facts.get("screen").is_some_and(|s| s == "on") {
            out.push(finding(
                "the screen is on",
                "it takes power and time of the processor, and goes off in the middle of a run",
                "adb shell input keyevent KEYCODE_SLEEP",
            ));
        }
    }

    fn load_and_memory(&self, out: &mut Vec<Finding>) {
        if let Some(load) = self.number("load").filter(|load| *load > LOAD_MAX) {
            out.push(finding(
                &format!("the load average is {load:.2} although nothing is measured"),
                "other processes take time of the processor and memory bandwidth",
                "`top` on the device names them; stop what need not run",
            ));
        }
        let total_kb = self.fingerprint.memory_bytes as f64 / 1024.0;
        if let Some(share) = self.number("MemAvailable").filter(|_| total_kb > 0.0).map(|kb| kb / total_kb)
            && share < AVAILABLE_SHARE_MIN
        {
            out.push(finding(
                &format!("{:.0} % of the memory is available", share * 100.0),
                "pages of the model are evicted and read again, and processes are killed without a log",
                "stop what need not run, or restart the device",
            ));
        }
        let swapped_kb =
            self.number("SwapTotal").zip(self.number("SwapFree")).map_or(0.0, |(total, free)| total - free);
        if swapped_kb > 100e3 {
            out.push(finding(
                &format!("{:.0} MB are swapped out", swapped_kb / 1000.0),
                "memory was short, and will be again",
                if self.is_phone() { "restart the device" } else { "sudo swapoff -a && sudo swapon -a" },
            ));
        }
        if let Some(kb) = self.number("free_kb").filter(|kb| kb * 1024.0 < FREE_BYTES_MIN as f64) {
            out.push(finding(
                &format!("{:.1} GB are free in its workdir", kb * 1024.0 / 1e9),
                "models may not fit, and flash that is nearly full is slow",
                "free space there, or name a folder on a larger filesystem with `workdir`",
            ));
        }
    }

    fn surroundings(&self, out: &mut Vec<Finding>) {
        if let Some(kind) = &self.fingerprint.virtualisation {
            out.push(finding(
                &format!("it is a virtual machine ({kind})"),
                "neighbours take time that nothing here shows",
                "measure on the metal, or take more pairs",
            ));
        }
        if self.offset_ms.abs() > CLOCK_OFFSET_MS_MAX {
            out.push(finding(
                &format!("its clock is {:.0} s off this machine's", self.offset_ms as f64 / 1e3),
                "logs of both cannot be laid side by side",
                if self.is_phone() {
                    "adb shell settings put global auto_time 1"
                } else {
                    "sudo timedatectl set-ntp true"
                },
            ));
        }
    }
}

/// Throttle flags of boards, where any but zero speaks of trouble.
fn is_throttled(name: &str, value: &str) -> bool {
    name.contains("throttled") && !matches!(value.trim(), "0" | "0x0" | "")
}

fn numbers(cluster: &CoreCluster) -> String {
    cluster.cores.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn finding(what: &str, why: &str, mend: &str) -> Finding {
    Finding { what: what.to_owned(), why: why.to_owned(), mend: mend.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AdbConfig;
    use farmgate_engine::protocol::{Finite, Sensor};

    fn device(transport: TransportConfig) -> Device {
        Device::new("x", transport, "devices/x.toml")
    }

    fn calm() -> Fingerprint {
        Fingerprint {
            memory_bytes: 8 << 30,
            sensors: vec![Sensor {
                sensor: "cpu-thermal".into(),
                path: String::new(),
                celsius: Finite::new(31.0),
                distrust: None,
            }],
            clusters: vec![CoreCluster {
                cores: vec![0, 1],
                governor: Some("performance".into()),
                ..CoreCluster::default()
            }],
            ..Fingerprint::default()
        }
    }

    fn told(device: &Device, fingerprint: &Fingerprint, said: &str, offset_ms: i64) -> Vec<Finding> {
        Patient { device, fingerprint, facts: facts(said), offset_ms }.findings()
    }

    const QUIET: &str = "load 0.02\nMemAvailable 6000000\nSwapTotal 1000\nSwapFree 1000\nfree_kb 90000000\n";

    #[test]
    fn a_calm_device_has_nothing() {
        let local = device(TransportConfig::Local(crate::device::LocalConfig::default()));
        assert_eq!(told(&local, &calm(), QUIET, 20), []);
        // whatever it prints besides is no fact
        assert_eq!(told(&local, &calm(), &format!("{QUIET}load\n\u{1b}[2J\nload_of x\n"), 20), []);
    }

    #[test]
    fn each_thing_is_named_with_what_mends_it() {
        let phone = device(TransportConfig::Adb(AdbConfig::to("x")));
        let mut ill = calm();
        ill.clusters[0].governor = Some("schedutil".into());
        ill.clusters.push(CoreCluster { cores: vec![6, 7], offline: vec![7], ..CoreCluster::default() });
        ill.sensors[0].celsius = Finite::new(58.5);
        ill.battery_percent = Some(12);
        ill.virtualisation = Some("kvm".into());
        ill.power_modes.push(("throttled".into(), "0x50005".into()));
        let said = "load 3.50\nMemAvailable 900000\nSwapTotal 4000000\nSwapFree 1000000\nfree_kb 1000000\ncharging_USB true\n\
                    battery_faked 1\nscreen on\n";
        let found = told(&phone, &ill, said, -90_000);
        for words in [
            "governor `schedutil`",
            "cores 7 are offline",
            "throttled says 0x50005",
            "58.5 °C",
            "battery is at 12 %",
            "being charged",
            "UPDATES STOPPED",
            "screen is on",
            "load average is 3.50",
            "% of the memory",
            "swapped out",
            "GB are free",
            "virtual machine (kvm)",
            "clock is -90 s off",
        ] {
            assert!(found.iter().any(|f| f.what.contains(words)), "{words}: {found:#?}");
        }
        assert!(found.iter().all(|f| !f.mend.is_empty() && !f.why.is_empty()));
        ill.sensors[0].distrust = Some("stuck".into());
        assert!(told(&phone, &ill, said, 0).iter().any(|f| f.what.contains("no temperature sensor")));
    }
}
