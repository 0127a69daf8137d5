//! Temperature sensors: all of them, by type, with the reason why one is not to be trusted.
//!
//! A zone's number means nothing, so sensors are named by what the kernel says they measure. Their values come in
//! degrees or thousandths, some are stuck, some are no temperatures at all, and a zone that answers EINVAL is normal.

use super::tree::{Tree, WORD_BYTES_MAX};
use crate::protocol::{Finite, Sensor};
use crate::text;

/// Sensors beyond this number are left out; phones have up to about a hundred.
const SENSORS_MAX: usize = 256;
/// Between these a value can be the temperature of a working device, degrees Celsius.
const PLAUSIBLE_C: std::ops::RangeInclusive<f64> = -40.0..=125.0;

/// Every thermal zone and every hwmon temperature, in the kernel's order.
pub(super) fn sensors(tree: &Tree) -> Vec<Sensor> {
    let mut sensors = Vec::new();
    for zone in tree.names("sys/class/thermal").iter().filter(|n| n.starts_with("thermal_zone")) {
        let folder = format!("sys/class/thermal/{zone}");
        sensors.push(sensor(tree, tree.word(&format!("{folder}/type")), format!("{folder}/temp")));
    }
    for chip in tree.names("sys/class/hwmon") {
        let folder = format!("sys/class/hwmon/{chip}");
        let name = tree.word(&format!("{folder}/name"));
        for file in tree.names(&folder) {
            let Some(stem) = file.strip_suffix("_input").filter(|s| s.starts_with("temp")) else { continue };
            let label = tree.word(&format!("{folder}/{stem}_label"));
            let kind = match (&name, label) {
                (Some(name), Some(label)) => Some(text::escaped(format!("{name} {label}").as_bytes(), WORD_BYTES_MAX)),
                (Some(name), None) => Some(text::escaped(format!("{name} {stem}").as_bytes(), WORD_BYTES_MAX)),
                (None, label) => label,
            };
            sensors.push(sensor(tree, kind, format!("{folder}/{file}")));
        }
    }
    sensors.truncate(SENSORS_MAX);
    sensors
}

fn sensor(tree: &Tree, kind: Option<String>, path: String) -> Sensor {
    let path = text::escaped(path.as_bytes(), WORD_BYTES_MAX);
    let Some(kind) = kind else {
        return Sensor { sensor: "unnamed".into(), path, celsius: None, distrust: Some("it has no type".into()) };
    };
    match read(tree, &path, &kind) {
        Ok(celsius) => Sensor { sensor: kind, path, celsius: Some(celsius), distrust: None },
        Err(why) => Sensor { sensor: kind, path, celsius: None, distrust: Some(why) },
    }
}

/// The temperature at `path` in degrees Celsius, or why there is none to be believed.
pub(crate) fn read(tree: &Tree, path: &str, kind: &str) -> Result<Finite, String> {
    let bytes = tree.bytes(path).map_err(|e| format!("it cannot be read: {e}"))?;
    let word = super::tree::word(&bytes).ok_or("it is empty")?;
    let raw: i64 = word.parse().map_err(|_| format!("it reads `{}`, no number", text::escaped(word.as_bytes(), 40)))?;
    if let Some(why) = no_temperature(kind, raw) {
        return Err(why.into());
    }
    celsius(raw)
}

/// Zones that Qualcomm kernels list among the temperatures although they measure battery current, voltage or charge.
fn no_temperature(kind: &str, raw: i64) -> Option<&'static str> {
    let lower = kind.to_ascii_lowercase();
    if ["ibat", "vbat", "vph"].iter().any(|s| lower.starts_with(s)) || lower.contains("bcl") {
        return Some("it measures battery current or voltage, not temperature");
    }
    (lower == "soc" && (0..=100).contains(&raw)).then_some("it is the state of charge, not a temperature")
}

/// Thousandths of a degree from 1,000 up, whole degrees up to 150; what lies between is neither.
fn celsius(raw: i64) -> Result<Finite, String> {
    let value = match raw.unsigned_abs() {
        0 => return Err("it reads exactly 0".into()),
        1..=150 => raw as f64,
        151..=999 => return Err(format!("it reads {raw}: neither degrees nor thousandths")),
        1_000..=1_000_000 => raw as f64 / 1_000.0,
        _ => return Err(format!("it reads {raw}, which is implausible")),
    };
    match Finite::new(value).filter(|v| PLAUSIBLE_C.contains(&v.get())) {
        Some(celsius) => Ok(celsius),
        None => Err(format!("it reads {value} C, which is implausible")),
    }
}

/// The hottest reading of each type, by type: several sensors may share one.
pub(crate) fn hottest_by_type(readings: impl Iterator<Item = (String, Finite)>) -> Vec<(String, Finite)> {
    let mut hottest = std::collections::BTreeMap::<String, Finite>::new();
    for (kind, celsius) in readings {
        let entry = hottest.entry(kind).or_insert(celsius);
        if celsius > *entry {
            *entry = celsius;
        }
    }
    hottest.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_and_thousandths_come_out_alike() {
        assert_eq!(celsius(48).unwrap().get(), 48.0);
        assert_eq!(celsius(48_200).unwrap().get(), 48.2);
        assert_eq!(celsius(-5_000).unwrap().get(), -5.0);
    }

    #[test]
    fn stuck_and_impossible_values_are_refused() {
        for raw in [0, 135, 135_000, -274, -274_000, 285, 2_147_483_647, -2_147_483_648, i64::MIN, i64::MAX] {
            assert!(celsius(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn what_is_no_temperature_is_told_by_its_type() {
        assert!(no_temperature("pm8550-bcl-lvl0", 0).is_some());
        assert!(no_temperature("ibat-lvl1", 4_000).is_some());
        assert!(no_temperature("soc", 87).is_some());
        assert!(no_temperature("soc", 48_000).is_none());
        assert!(no_temperature("soc-thermal", 48).is_none());
    }
}
