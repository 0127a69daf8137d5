//! Whether the device is fit for a cell to begin, by the plan's criteria and the device's own idle temperature.

use super::sentinel::Sentinel;
use crate::protocol::{Finite, Objection, ReadyCriteria, ReasonCode, Record, Telemetry};
use crate::telemetry::Observer;

/// What readiness is judged by.
#[derive(Debug)]
pub(super) struct Readiness {
    criteria: ReadyCriteria,
    /// The device has at least one trusted sensor.
    has_sensors: bool,
    /// The lowest reading of the hottest trusted sensor while no cell ran, C.
    idle_c: Option<f64>,
    /// `None` where the plan asks for none.
    sentinel: Option<Sentinel>,
}

impl Readiness {
    /// `idle_c` is what an earlier part of the same run has found.
    pub(super) fn new(criteria: &ReadyCriteria, observer: &Observer, idle_c: Option<f64>) -> Self {
        let fastest = observer.clusters().first().and_then(|c| c.cores.iter().find(|core| !c.offline.contains(core)));
        let sentinel = criteria.sentinel_ratio_min.map(|_| Sentinel::new(fastest.map(|core| *core as usize)));
        Self { criteria: criteria.clone(), has_sensors: observer.has_sensors(), idle_c, sentinel }
    }

    /// The record that says once what is judged and what cannot be, from the first reading of the run.
    pub(super) fn basis(&mut self, first: &Telemetry, observer: &Observer) -> Record {
        self.learn(first);
        if let Some(sentinel) = &mut self.sentinel {
            // its own speed is that of the start of the run
            sentinel.ratio();
        }
        let criteria = &self.criteria;
        let mut not_judged = Vec::new();
        let mut note = |asked: bool, has: bool, what: &str| {
            if asked && !has {
                not_judged.push(what.to_owned());
            }
        };
        note(criteria.asks_for_temperature(), self.has_sensors, "temperature: no trusted sensor");
        let charge = first.battery.as_ref().and_then(|b| b.percent);
        note(criteria.battery_percent_min.is_some(), charge.is_some(), "battery: none that tells its charge");
        let status = first.battery.as_ref().and_then(|b| b.status.as_ref());
        note(criteria.charging_steady, status.is_some(), "charging: no battery that tells its status");
        let has_ratio = !first.clocks.is_empty() && observer.clusters().iter().any(|c| c.clock_max_khz.is_some());
        note(criteria.clock_ratio_min.is_some(), has_ratio, "clock: no cluster tells its clock and its highest one");
        let has_status = observer.has_cooling_devices() || first.throttle_flags.is_some();
        note(criteria.thermal_status, has_status, "thermal status: no cooling device");
        Record::ReadyBasis { idle_temperature_c: self.idle_c.and_then(Finite::new), not_judged }
    }

    /// The lowest reading counts, so that a run that began on a warm device gets stricter, never laxer.
    fn learn(&mut self, reading: &Telemetry) {
        if let Some(hottest) = reading.hottest_c() {
            let idle = self.idle_c.map_or(hottest.get(), |idle| idle.min(hottest.get()));
            self.idle_c = Some(idle);
        }
    }

    /// What speaks against beginning a cell now. The reading is one of farmhand's own process.
    pub(super) fn objections(&mut self, reading: &Telemetry) -> Vec<Objection> {
        self.learn(reading);
        let mut objections = Vec::new();
        let mut object = |reason, what: String| objections.push(Objection { reason, what });
        let criteria = &self.criteria;
        match reading.hottest_c().map(Finite::get) {
            Some(hottest) => {
                let idle = criteria.idle_temperature_c.map(Finite::get).or(self.idle_c);
                let relative = criteria.temperature_margin_c.zip(idle).map(|(margin, idle)| idle + margin.get());
                let limits = [(relative, "idle and margin"), (criteria.temperature_max_c.map(Finite::get), "limit")];
                for (limit, name) in limits {
                    if let Some(limit) = limit.filter(|limit| hottest > *limit) {
                        object(ReasonCode::NotCool, format!("{hottest:.1} C, above {name} of {limit:.1} C"));
                    }
                }
            }
            // sensors that have all gone silent are no sign of a cool device
            None if self.has_sensors && criteria.asks_for_temperature() => {
                object(ReasonCode::NotCool, "no temperature sensor answers any more".into());
            }
            None => {}
        }
        if let Some(by) = reading.slowed_by().filter(|_| criteria.thermal_status) {
            object(ReasonCode::NotCool, format!("slowed down by {by}"));
        }
        let foreign = reading.foreign_cpu_percent.map(Finite::get);
        match (criteria.foreign_cpu_percent_max.map(Finite::get), foreign) {
            (Some(limit), Some(percent)) if percent > limit => {
                object(ReasonCode::ForeignLoad, format!("others take {percent:.0} % of a core, limit {limit:.0} %"));
            }
            _ => {}
        }
        let charge = reading.battery.as_ref().and_then(|b| b.percent);
        if let Some((limit, percent)) = criteria.battery_percent_min.zip(charge).filter(|(limit, now)| now < limit) {
            object(ReasonCode::BatteryLow, format!("the battery has {percent} %, needed {limit} %"));
        }
        // last, and only then: work would warm a device that is to cool down
        if objections.is_empty() {
            objections.extend(self.sentinel_objection());
        }
        objections
    }

    fn sentinel_objection(&mut self) -> Option<Objection> {
        let limit = self.criteria.sentinel_ratio_min?.get();
        let ratio = self.sentinel.as_mut()?.ratio().filter(|ratio| *ratio < limit)?;
        let (now, needed) = (ratio * 100.0, limit * 100.0);
        let what = format!("a fixed kernel runs at {now:.0} % of its own speed, needed {needed:.0} %");
        Some(Objection { reason: ReasonCode::SentinelSlow, what })
    }
}

/// The phase of a wait, as shown: heat is what most waits are about.
pub(super) fn phase(objections: &[Objection]) -> &'static str {
    if objections.iter().any(|o| matches!(o.reason, ReasonCode::NotCool | ReasonCode::SentinelSlow)) {
        "cooling"
    } else {
        "busy"
    }
}

/// The reasons of a wait that ended in vain, each once.
pub(super) fn reasons(objections: &[Objection]) -> Vec<ReasonCode> {
    let mut reasons: Vec<ReasonCode> = objections.iter().map(|o| o.reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

/// The objections as one line.
pub(super) fn words(objections: &[Objection]) -> String {
    objections.iter().map(|o| o.what.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::made::Made;

    fn observer(made: &Made) -> Observer {
        Observer::new(made.tree(), made.tree(), &made.probe())
    }

    fn basis(criteria: &ReadyCriteria, made: &Made) -> (Readiness, Option<f64>, Vec<String>) {
        let mut observer = observer(made);
        let mut readiness = Readiness::new(criteria, &observer, None);
        let first = observer.read(0, 1);
        let Record::ReadyBasis { idle_temperature_c, not_judged } = readiness.basis(&first, &observer) else {
            panic!("another record")
        };
        (readiness, idle_temperature_c.map(Finite::get), not_judged)
    }

    /// Reasons on a device whose only sensor reads this, C.
    fn at(readiness: &mut Readiness, celsius: f64) -> Vec<ReasonCode> {
        let made = Made::new().zone(0, "cpu\n", &format!("{}\n", (celsius * 1000.0) as i64));
        let reading = observer(&made).read(0, 1);
        reasons(&readiness.objections(&reading))
    }

    fn warm() -> Made {
        Made::new().zone(0, "cpu\n", "36000\n")
    }

    #[test]
    fn a_cell_waits_until_the_device_is_near_its_own_idle_temperature() {
        let criteria = ReadyCriteria { temperature_margin_c: Finite::new(4.0), ..Default::default() };
        let (mut readiness, idle, _) = basis(&criteria, &warm());
        assert_eq!(idle, Some(36.0));
        assert_eq!(at(&mut readiness, 41.0), [ReasonCode::NotCool]);
        assert_eq!(at(&mut readiness, 40.0), []);
        assert_eq!(at(&mut readiness, 33.0), [], "the run had begun on a warm device");
        assert_eq!(at(&mut readiness, 38.0), [ReasonCode::NotCool], "now its idle temperature is known better");
    }

    #[test]
    fn an_idle_temperature_that_is_given_counts_and_so_does_an_absolute_limit() {
        let given = ReadyCriteria { idle_temperature_c: Finite::new(30.0), ..Default::default() };
        let given = ReadyCriteria { temperature_margin_c: Finite::new(4.0), ..given };
        let (mut readiness, _, _) = basis(&given, &warm());
        assert_eq!(at(&mut readiness, 35.0), [ReasonCode::NotCool]);
        let absolute = ReadyCriteria { temperature_max_c: Finite::new(45.0), ..Default::default() };
        let (mut readiness, _, _) = basis(&absolute, &warm());
        assert_eq!((at(&mut readiness, 46.0), at(&mut readiness, 44.0)), (vec![ReasonCode::NotCool], vec![]));
    }

    #[test]
    fn sensors_that_have_gone_silent_are_no_sign_of_a_cool_device() {
        let criteria = ReadyCriteria { temperature_max_c: Finite::new(45.0), ..Default::default() };
        let (mut readiness, _, _) = basis(&criteria, &warm());
        assert_eq!(reasons(&readiness.objections(&Telemetry::default())), [ReasonCode::NotCool]);
    }

    #[test]
    fn what_a_device_gives_no_sign_of_is_named_once_and_not_judged() {
        let criteria = ReadyCriteria {
            temperature_margin_c: Finite::new(4.0),
            thermal_status: true,
            clock_ratio_min: Finite::new(0.5),
            battery_percent_min: Some(30),
            charging_steady: true,
            ..Default::default()
        };
        let (mut readiness, idle, not_judged) = basis(&criteria, &Made::new());
        let about: Vec<&str> = not_judged.iter().filter_map(|what| what.split(':').next()).collect();
        assert_eq!((idle, about), (None, vec!["temperature", "battery", "charging", "clock", "thermal status"]));
        assert_eq!(readiness.objections(&Telemetry::default()), []);
        let (_, idle, not_judged) = basis(&criteria, &Made::pixel_like());
        assert_eq!((idle, not_judged), (Some(48.2), vec![]));
    }

    #[test]
    fn every_objection_has_its_own_reason_and_heat_names_the_wait() {
        let criteria = ReadyCriteria {
            temperature_max_c: Finite::new(40.0),
            thermal_status: true,
            battery_percent_min: Some(90),
            foreign_cpu_percent_max: Finite::new(10.0),
            ..Default::default()
        };
        let made = Made::snapdragon_like();
        let mut observer = observer(&made);
        let mut readiness = Readiness::new(&criteria, &observer, None);
        let reading = Telemetry { foreign_cpu_percent: Finite::new(55.0), ..observer.read(0, 1) };
        let objections = readiness.objections(&reading);
        assert_eq!(reasons(&objections), [ReasonCode::NotCool, ReasonCode::BatteryLow, ReasonCode::ForeignLoad]);
        let words: Vec<&str> = objections.iter().map(|o| o.what.as_str()).collect();
        assert_eq!(
            words,
            [
                "52.1 C, above limit of 40.0 C",
                "slowed down by cpu-cluster2",
                "others take 55 % of a core, limit 10 %",
                "the battery has 87 %, needed 90 %"
            ]
        );
        assert_eq!((phase(&objections), phase(&objections[2..])), ("cooling", "busy"));
    }
}
