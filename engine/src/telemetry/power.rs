//! Power rails that the board or the processor measures by itself: hwmon (INA chips), RAPL.

use crate::protocol::{Finite, Power, Rail};
use crate::text;
use crate::tree::{Tree, WORD_BYTES_MAX};

/// Rails beyond this number are not read.
const RAILS_MAX: usize = 16;
const PLAUSIBLE_W: std::ops::RangeInclusive<f64> = 0.0..=10_000.0;

/// What measures power on this device.
#[derive(Debug)]
pub(super) struct Meters {
    rails: Vec<FoundRail>,
    packages: Vec<Package>,
    /// When the packages were last read, monotonic.
    before_us: Option<u64>,
}

#[derive(Debug)]
struct FoundRail {
    name: String,
    figures: Figures,
    /// Whether everything that the device draws flows through it.
    is_input: bool,
}

#[derive(Debug)]
enum Figures {
    /// One file, uW.
    Power(String),
    /// Two files, mV and mA.
    VoltageAndCurrent(String, String),
}

/// One processor package with its energy counter, uJ, which begins anew beyond its range.
#[derive(Debug)]
struct Package {
    name: String,
    path: String,
    range_uj: u64,
    before_uj: Option<u64>,
}

impl Meters {
    pub(super) fn find(tree: &Tree) -> Self {
        let chips = tree.names("sys/class/hwmon");
        let mut rails: Vec<FoundRail> = chips.iter().flat_map(|chip| rails_of(tree, chip)).take(RAILS_MAX).collect();
        // a board with one shunt has it at its input
        if let [only] = &mut rails[..] {
            only.is_input |= only.name.starts_with("ina") || only.name.starts_with("power_meter");
        }
        Self { rails, packages: packages(tree), before_us: None }
    }

    /// Every rail, and what the device draws: the input rail, else the processor packages; `None` when nobody tells.
    pub(super) fn read(&mut self, tree: &Tree, now_us: u64) -> (Vec<Rail>, Option<Power>) {
        let mut input = None;
        let mut rails = Vec::new();
        for rail in &self.rails {
            let Some(power_w) = rail.power_w(tree) else { continue };
            if rail.is_input && input.is_none() {
                input = Some(Power { power_w, source: "rail".into(), sensor: rail.name.clone() });
            }
            rails.push(Rail { rail: rail.name.clone(), power_w });
        }
        let packages = self.packages_power(tree, now_us);
        (rails, input.or(packages))
    }

    /// Energy of all packages since the last reading, over the time since.
    fn packages_power(&mut self, tree: &Tree, now_us: u64) -> Option<Power> {
        let elapsed_us = self.before_us.replace(now_us).and_then(|before| now_us.checked_sub(before));
        let mut energy_uj = Some(0u64);
        for package in &mut self.packages {
            // every counter is read, even when another one failed
            let spent = package.spent_uj(tree);
            energy_uj = energy_uj.zip(spent).and_then(|(sum, spent)| sum.checked_add(spent));
        }
        let names: Vec<&str> = self.packages.iter().map(|p| p.name.as_str()).collect();
        let elapsed_us = elapsed_us.filter(|us| *us > 0 && !names.is_empty())?;
        let power_w = plausible(energy_uj? as f64 / elapsed_us as f64)?;
        Some(Power { power_w, source: "rail".into(), sensor: format!("rapl {}", names.join(" ")) })
    }
}

impl FoundRail {
    fn power_w(&self, tree: &Tree) -> Option<Finite> {
        match &self.figures {
            Figures::Power(path) => plausible(tree.number::<i64>(path)? as f64 / 1e6),
            Figures::VoltageAndCurrent(voltage, current) => {
                plausible(tree.number::<i64>(voltage)? as f64 / 1e3 * tree.number::<i64>(current)? as f64 / 1e3)
            }
        }
    }
}

fn plausible(power_w: f64) -> Option<Finite> {
    Finite::new(power_w).filter(|w| PLAUSIBLE_W.contains(&w.get()))
}

/// Rails of one hwmon chip: those with a power file, and on INA chips those with voltage and current.
fn rails_of(tree: &Tree, chip: &str) -> Vec<FoundRail> {
    let folder = format!("sys/class/hwmon/{chip}");
    let files = tree.names(&folder);
    let name = tree.word(&format!("{folder}/name")).unwrap_or_else(|| chip.to_owned());
    let has = |file: &str| files.iter().any(|f| f == file);
    let mut rails = Vec::new();
    for channel in 1..=8 {
        let path = |kind: &str| format!("{folder}/{kind}");
        let files = [format!("power{channel}_input"), format!("power{channel}_average")];
        let (voltage, current) = (format!("in{channel}_input"), format!("curr{channel}_input"));
        let figures = if let Some(file) = files.iter().find(|f| has(f)) {
            Figures::Power(path(file))
        } else if name.starts_with("ina") && has(&voltage) && has(&current) {
            Figures::VoltageAndCurrent(path(&voltage), path(&current))
        } else {
            continue;
        };
        let labels = [format!("power{channel}_label"), format!("in{channel}_label"), format!("curr{channel}_label")];
        let label = labels.iter().filter(|f| has(f)).find_map(|f| tree.word(&path(f)));
        let label = label.unwrap_or_else(|| format!("channel {channel}"));
        let is_input = is_input(&label);
        let name = text::escaped(format!("{name} {label}").as_bytes(), WORD_BYTES_MAX);
        rails.push(FoundRail { name, figures, is_input });
    }
    rails
}

/// Boards call the rail that everything flows through `VDD_IN`, `POM_5V_IN`, `VIN_SYS_5V0`, `total`.
fn is_input(label: &str) -> bool {
    let label = label.to_ascii_lowercase();
    label.split([' ', '_', '-', '.']).any(|part| matches!(part, "in" | "vin" | "input" | "total"))
}

/// Processor packages whose counter may be read; since 2020 that takes root.
fn packages(tree: &Tree) -> Vec<Package> {
    let names = tree.names("sys/class/powercap");
    let zones = names.iter().filter(|n| n.strip_prefix("intel-rapl:").is_some_and(|rest| !rest.contains(':')));
    let package = |zone: &String| {
        let folder = format!("sys/class/powercap/{zone}");
        let name = tree.word(&format!("{folder}/name")).filter(|name| name.starts_with("package"))?;
        let path = format!("{folder}/energy_uj");
        tree.number::<u64>(&path)?;
        let range_uj = tree.number(&format!("{folder}/max_energy_range_uj")).unwrap_or(0);
        Some(Package { name, path, range_uj, before_uj: None })
    };
    zones.filter_map(package).take(RAILS_MAX).collect()
}

impl Package {
    fn spent_uj(&mut self, tree: &Tree) -> Option<u64> {
        let now = tree.number::<u64>(&self.path);
        let before = std::mem::replace(&mut self.before_uj, now)?;
        let now = now?;
        now.checked_sub(before).or_else(|| self.range_uj.checked_sub(before)?.checked_add(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::made::Made;

    fn packages(energy: &[(&str, &str)]) -> Made {
        energy.iter().fold(Made::new(), |made, (zone, uj)| {
            let folder = format!("sys/class/powercap/{zone}");
            made.file(&format!("{folder}/name"), format!("package-{}\n", &zone[11..]))
                .file(&format!("{folder}/max_energy_range_uj"), "1000000\n")
                .file(&format!("{folder}/energy_uj"), uj)
        })
    }

    #[test]
    fn energy_counters_of_all_packages_give_power_over_the_time_between_readings() {
        let made = packages(&[("intel-rapl:0", "100"), ("intel-rapl:1", "900000")]);
        let mut meters = Meters::find(&made.tree());
        assert_eq!(meters.read(&made.tree(), 1_000), (vec![], None), "the first reading has no time before it");
        // the second counter went past its range and began anew
        let made = made
            .file("sys/class/powercap/intel-rapl:0/energy_uj", "300100")
            .file("sys/class/powercap/intel-rapl:1/energy_uj", "100000");
        let power = meters.read(&made.tree(), 101_000).1.unwrap();
        assert_eq!((power.power_w.get(), power.source.as_str()), (5.0, "rail"));
        assert_eq!(power.sensor, "rapl package-0 package-1");
        assert!(meters.read(&made.tree(), 101_000).1.is_none(), "no time has passed");
        assert!(meters.read(&made.tree(), 100_000).1.is_none(), "nor less than none");
    }

    #[test]
    fn parts_of_a_package_and_counters_that_may_not_be_read_are_left_out() {
        let made = packages(&[("intel-rapl:0", "no number")]).file("sys/class/powercap/intel-rapl:0:0/name", "core");
        assert!(Meters::find(&made.tree()).packages.is_empty());
    }

    #[test]
    fn the_input_of_a_board_is_known_by_its_label() {
        for label in ["VDD_IN", "POM_5V_IN", "VIN_SYS_5V0", "total"] {
            assert!(is_input(label), "{label}");
        }
        for label in ["VDD_CPU_GPU_CV", "VDD_SOC", "VINYL", "channel 1"] {
            assert!(!is_input(label), "{label}");
        }
    }
}
