//! The device's own battery. Makers differ in what `current_now` means: uA or mA, and above 0 either way of the flow.

use crate::probe::battery_folder;
use crate::protocol::{Battery, Finite, Power};
use crate::tree::Tree;

/// A driver that has no figure says so with this one.
const CURRENT_NONE: i64 = i32::MIN as i64;
/// Up to here a raw current is taken for mA: no phone or board with a battery moves more than 10 A, and one at work
/// moves more than 10 mA, which is the same figure in uA.
const MILLIAMPERE_MAX: u64 = 10_000;
/// From here on a raw current can only be uA.
const MICROAMPERE_MIN: u64 = 20_000;
/// 100 A: beyond is no current.
const MICROAMPERE_MAX: u64 = 100_000_000;
const PLAUSIBLE_C: std::ops::RangeInclusive<f64> = -40.0..=125.0;
/// No battery of a portable device gives more.
const PLAUSIBLE_W: std::ops::RangeInclusive<f64> = 0.001..=300.0;

/// Reads one battery, and learns its unit of current on the way.
#[derive(Debug)]
pub(super) struct BatteryGauge {
    folder: String,
    /// A figure came that only uA can explain; from then on all are uA.
    is_microampere: bool,
}

impl BatteryGauge {
    pub(super) fn find(tree: &Tree) -> Option<Self> {
        Some(Self { folder: battery_folder(tree)?, is_microampere: false })
    }

    pub(super) fn read(&mut self, tree: &Tree) -> Battery {
        let folder = self.folder.clone();
        let path = |file: &str| format!("{folder}/{file}");
        let status = tree.word(&path("status")).map(|word| word.to_ascii_lowercase().replace(' ', "-"));
        let raw = tree.number::<i64>(&path("current_now")).filter(|raw| *raw != CURRENT_NONE);
        let (milliampere, unit) = raw.and_then(|raw| self.magnitude_ma(raw)).unzip();
        let outward = match status.as_deref() {
            Some("discharging") => Some(1.0),
            Some("charging") => Some(-1.0),
            _ => None,
        };
        Battery {
            percent: tree.number::<u32>(&path("capacity")).filter(|percent| *percent <= 100),
            celsius: tree.number::<i64>(&path("temp")).and_then(tenths_c),
            voltage_uv: tree.number::<u64>(&path("voltage_now")).and_then(microvolt),
            current_raw: raw,
            current_ma: milliampere.zip(outward).and_then(|(ma, sign)| Finite::new(ma * sign)),
            current_unit: unit.map(str::to_owned),
            status,
        }
    }

    /// mA without the sign, and how the unit is known; `None` for what could be either unit or no current at all.
    fn magnitude_ma(&mut self, raw: i64) -> Option<(f64, &'static str)> {
        let size = raw.unsigned_abs();
        if size > MICROAMPERE_MAX {
            return None;
        }
        self.is_microampere |= size >= MICROAMPERE_MIN;
        match size {
            _ if self.is_microampere => Some((size as f64 / 1e3, "ua-by-size")),
            0..=MILLIAMPERE_MAX => Some((size as f64, "ma-assumed")),
            _ => None,
        }
    }
}

/// Battery temperatures come in tenths of a degree. Exactly 0 is what drivers without a sensor say.
fn tenths_c(raw: i64) -> Option<Finite> {
    Finite::new(raw as f64 / 10.0).filter(|c| raw != 0 && PLAUSIBLE_C.contains(&c.get()))
}

/// uV by the kernel's rule; some drivers say mV.
fn microvolt(raw: u64) -> Option<u64> {
    match raw {
        1_000..=100_000 => Some(raw * 1_000),
        1_000_000..=100_000_000 => Some(raw),
        _ => None,
    }
}

/// What the device draws, while nothing but the battery feeds it.
pub(super) fn power(battery: &Battery) -> Option<Power> {
    let outward_ma = battery.current_ma.filter(|ma| ma.get() > 0.0)?.get();
    let power_w = Finite::new(battery.voltage_uv? as f64 / 1e6 * outward_ma / 1e3)?;
    PLAUSIBLE_W.contains(&power_w.get()).then(|| Power {
        power_w,
        source: "fuel-gauge".into(),
        sensor: battery.current_unit.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::made::Made;

    fn read_all(status: &str, currents: &[&str]) -> Vec<Battery> {
        let mut made = Made::new().battery(&[("status", status), ("voltage_now", "4000000")]);
        let mut gauge = BatteryGauge::find(&made.tree()).unwrap();
        let mut all = Vec::new();
        for current in currents {
            made = made.battery(&[("current_now", current)]);
            all.push(gauge.read(&made.tree()));
        }
        all
    }

    // field report S12
    #[test]
    fn the_sign_of_a_current_is_that_of_the_status_whatever_the_maker_thinks() {
        for raw in ["-350000", "350000"] {
            let discharging = &read_all("Discharging\n", &[raw])[0];
            assert_eq!(discharging.current_ma, Finite::new(350.0));
            assert_eq!(power(discharging).unwrap().power_w.get(), 1.4);
            let charging = &read_all("Charging\n", &[raw])[0];
            assert_eq!(charging.current_ma, Finite::new(-350.0));
            assert_eq!(power(charging), None, "what flows into the battery is not what the device draws");
            let full = &read_all("Not charging\n", &[raw])[0];
            assert_eq!((full.status.as_deref(), full.current_ma), (Some("not-charging"), None));
            assert_eq!(full.current_raw, Some(raw.parse().unwrap()), "the raw figure is kept all the same");
        }
    }

    // field report S12
    #[test]
    fn small_currents_are_taken_for_ma_until_a_large_one_shows_the_unit() {
        let of = |b: &Battery| (b.current_ma.map(Finite::get), b.current_unit.clone());
        let all = read_all("Discharging", &["350", "15000", "350000", "350"]);
        assert_eq!(of(&all[0]), (Some(350.0), Some("ma-assumed".into())));
        assert_eq!(of(&all[1]), (None, None), "15 mA or 15 A: neither is shown");
        assert_eq!(of(&all[2]), (Some(350.0), Some("ua-by-size".into())));
        assert_eq!(of(&all[3]), (Some(0.35), Some("ua-by-size".into())), "the unit was learned");
    }

    // field report S12
    #[test]
    fn a_current_of_minus_2147483648_is_none() {
        let battery = &read_all("Discharging", &["-2147483648"])[0];
        assert_eq!((battery.current_raw, battery.current_ma, power(battery)), (None, None, None));
        assert_eq!(read_all("Discharging", &["0"])[0].current_ma, Finite::new(0.0));
        assert_eq!(power(&read_all("Discharging", &["0"])[0]), None, "no device at work draws nothing");
    }

    #[test]
    fn battery_temperature_is_in_tenths_and_voltage_in_uv_or_mv() {
        assert_eq!(tenths_c(305), Finite::new(30.5));
        assert_eq!(tenths_c(-52), Finite::new(-5.2));
        assert!([0, 30_500, -2_147_483_648].iter().all(|raw| tenths_c(*raw).is_none()));
        assert_eq!((microvolt(3_850_000), microvolt(3_850), microvolt(4)), (Some(3_850_000), Some(3_850_000), None));
    }
}
