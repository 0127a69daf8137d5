//! What a device does while a cell runs that speaks against what the cell measured.

use crate::protocol::{CoreCluster, ReadyCriteria, ReasonCode, SelfProof, Telemetry};
use crate::tree::core_list;
use std::collections::BTreeMap;

/// The load by others is judged over at least this long: ticks of 10 ms say little of less.
const FOREIGN_WINDOW_US: u64 = 1_000_000;
/// What a cell lasts at least for the load by others to be judged at its end.
const FOREIGN_REST_US: u64 = 100_000;

/// A mean over time.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    weighted: f64,
    us: u64,
}

impl Mean {
    fn add(&mut self, value: f64, us: u64) {
        self.weighted += value * us as f64;
        self.us += us;
    }

    fn get(self) -> Option<f64> {
        (self.us > 0).then(|| self.weighted / self.us as f64)
    }
}

/// Watches one attempt.
#[derive(Debug)]
pub(super) struct Conditions {
    criteria: ReadyCriteria,
    about_heat: bool,
    before_us: Option<u64>,
    went_backwards: bool,
    was_slowed: bool,
    is_discharging: Option<bool>,
    was_plugged: bool,
    foreign: Mean,
    was_foreign: bool,
    /// Mean clock by the core that names the cluster, kHz.
    clocks: BTreeMap<u32, Mean>,
}

impl Conditions {
    pub(super) fn new(criteria: &ReadyCriteria, about_heat: bool) -> Self {
        Self {
            criteria: criteria.clone(),
            about_heat,
            before_us: None,
            went_backwards: false,
            was_slowed: false,
            is_discharging: None,
            was_plugged: false,
            foreign: Mean::default(),
            was_foreign: false,
            clocks: BTreeMap::new(),
        }
    }

    /// Takes a reading made at `at_us` of the monotonic clock. `is_measuring`: all the time since the one before counts,
    /// since the model was loaded by then.
    pub(super) fn take(&mut self, reading: &Telemetry, at_us: u64, is_measuring: bool) {
        let before_us = self.before_us.replace(at_us);
        self.went_backwards |= before_us.is_some_and(|before| at_us < before);
        self.was_slowed |= reading.slowed_by().is_some();
        if let Some(status) = reading.battery.as_ref().and_then(|b| b.status.as_deref()) {
            // a full battery that is topped up now and then is plugged in all the time
            let is_discharging = status == "discharging";
            let known = status != "unknown";
            self.was_plugged |= known && self.is_discharging.is_some_and(|before| before != is_discharging);
            self.is_discharging = if known { Some(is_discharging) } else { self.is_discharging };
        }
        let elapsed_us = before_us.and_then(|before| at_us.checked_sub(before)).unwrap_or(0);
        if !is_measuring || elapsed_us == 0 {
            return;
        }
        if let Some(percent) = reading.foreign_cpu_percent {
            self.foreign.add(percent.get(), elapsed_us);
            if self.foreign.us >= FOREIGN_WINDOW_US {
                self.judge_foreign();
            }
        }
        // where the kernel adds nothing up, what the clock was at each reading stands for the time before
        let clocks = if reading.clocks_mean.is_empty() { &reading.clocks } else { &reading.clocks_mean };
        for clock in clocks {
            self.clocks.entry(clock.core).or_default().add(clock.clock_khz as f64, elapsed_us);
        }
    }

    fn judge_foreign(&mut self) {
        let mean = std::mem::take(&mut self.foreign).get();
        let limit = self.criteria.foreign_cpu_percent_max.map(|limit| limit.get());
        self.was_foreign |= mean.zip(limit).is_some_and(|(mean, limit)| mean > limit);
    }

    /// What speaks against the attempt now that it is over.
    pub(super) fn reasons(mut self, clusters: &[CoreCluster], proof: Option<&SelfProof>) -> Vec<ReasonCode> {
        if self.foreign.us >= FOREIGN_REST_US {
            self.judge_foreign();
        }
        let heat_matters = !self.about_heat;
        let is_slow = heat_matters && self.clock_is_low(clusters, proof);
        let all = [
            (ReasonCode::ThermalBand, heat_matters && self.criteria.thermal_status && self.was_slowed),
            (ReasonCode::ClockLow, is_slow),
            (ReasonCode::ChargingChanged, self.criteria.charging_steady && self.was_plugged),
            (ReasonCode::ForeignLoad, self.was_foreign),
            // no criterion: a time that was measured across it is wrong
            (ReasonCode::ClockBackwards, self.went_backwards),
        ];
        all.into_iter().filter_map(|(reason, holds)| holds.then_some(reason)).collect()
    }

    /// Whether a worker had no cluster to run on whose mean clock reached the ratio. Clusters that tell no clock, or no
    /// highest one, are not judged.
    fn clock_is_low(&self, clusters: &[CoreCluster], proof: Option<&SelfProof>) -> bool {
        let (Some(limit), Some(proof)) = (self.criteria.clock_ratio_min, proof) else { return false };
        let ratios: Vec<(&CoreCluster, f64)> = self
            .clocks
            .iter()
            .filter_map(|(core, mean)| {
                let cluster = clusters.iter().find(|c| c.cores.contains(core))?;
                Some((cluster, mean.get()? / cluster.clock_max_khz.filter(|khz| *khz > 0)? as f64))
            })
            .collect();
        let is_slow = |cores: Option<Vec<u32>>| {
            let may_use = |cluster: &CoreCluster| {
                cores.as_ref().is_none_or(|list| cluster.cores.iter().any(|c| list.contains(c)))
            };
            let best = ratios.iter().filter(|(cluster, _)| may_use(cluster)).map(|(_, r)| *r).reduce(f64::max);
            best.is_some_and(|ratio| ratio < limit.get())
        };
        if proof.affinity_effective.is_empty() {
            return is_slow(None);
        }
        proof.affinity_effective.iter().any(|list| is_slow(Some(core_list(list))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Battery, ClusterClock, Cooling, Finite};

    const SECOND: u64 = 1_000_000;

    fn strict() -> ReadyCriteria {
        ReadyCriteria {
            thermal_status: true,
            charging_steady: true,
            foreign_cpu_percent_max: Finite::new(20.0),
            clock_ratio_min: Finite::new(0.8),
            ..ReadyCriteria::default()
        }
    }

    fn clusters() -> Vec<CoreCluster> {
        let cluster = |cores: &[u32], khz| CoreCluster {
            cores: cores.to_vec(),
            clock_max_khz: Some(khz),
            ..CoreCluster::default()
        };
        vec![cluster(&[4, 5], 2_000_000), cluster(&[0, 1], 1_000_000)]
    }

    fn on(affinity: &[&str]) -> SelfProof {
        let affinity_effective = affinity.iter().map(|&list| list.to_owned()).collect();
        SelfProof { affinity_effective, ..SelfProof::default() }
    }

    /// The verdict on readings one second apart, all after the proof.
    fn verdict(criteria: &ReadyCriteria, about_heat: bool, readings: &[Telemetry]) -> Vec<ReasonCode> {
        let mut conditions = Conditions::new(criteria, about_heat);
        for (at, reading) in (1..).zip(readings) {
            conditions.take(reading, at * SECOND, true);
        }
        conditions.reasons(&clusters(), Some(&on(&["4", "5"])))
    }

    fn slowed() -> Telemetry {
        let cooling = vec![Cooling { device: "thermal-cpufreq-0".into(), state: 1, state_max: None }];
        Telemetry { cooling, ..Telemetry::default() }
    }

    fn clocks(big_khz: u64, little_khz: u64) -> Telemetry {
        let clock = |core, clock_khz| ClusterClock { core, clock_khz };
        Telemetry { clocks_mean: vec![clock(4, big_khz), clock(0, little_khz)], ..Telemetry::default() }
    }

    fn foreign(percent: f64) -> Telemetry {
        Telemetry { foreign_cpu_percent: Finite::new(percent), ..Telemetry::default() }
    }

    fn status(status: &str) -> Telemetry {
        let battery = Some(Battery { status: Some(status.into()), ..Battery::default() });
        Telemetry { battery, ..Telemetry::default() }
    }

    #[test]
    fn a_device_that_slows_itself_spoils_a_cell_unless_heat_is_what_it_measures() {
        let readings = [Telemetry::default(), slowed(), Telemetry::default()];
        assert_eq!(verdict(&strict(), false, &readings), [ReasonCode::ThermalBand]);
        assert_eq!(verdict(&strict(), true, &readings), []);
        assert_eq!(verdict(&ReadyCriteria::default(), false, &readings), [], "nothing was asked");
    }

    #[test]
    fn a_clock_that_stays_low_on_the_workers_cores_spoils_a_cell() {
        let start = Telemetry::default;
        assert_eq!(verdict(&strict(), false, &[start(), clocks(1_500_000, 1_000_000)]), [ReasonCode::ClockLow]);
        assert_eq!(verdict(&strict(), true, &[start(), clocks(1_500_000, 1_000_000)]), []);
        let others_idle = [start(), clocks(1_700_000, 300_000)];
        assert_eq!(verdict(&strict(), false, &others_idle), [], "no worker is on the slow cluster");
        let mostly_fast = [start(), clocks(1_000_000, 0), clocks(2_000_000, 0), clocks(2_000_000, 0)];
        assert_eq!(verdict(&strict(), false, &mostly_fast), [], "the mean counts");
        let mut free = Conditions::new(&strict(), false);
        free.take(&start(), 0, true);
        free.take(&clocks(1_900_000, 300_000), SECOND, true);
        assert_eq!(
            free.reasons(&clusters(), Some(&on(&["0-5"]))),
            [],
            "a worker that may go anywhere may be on either"
        );
    }

    #[test]
    fn the_time_of_loading_says_nothing_of_clocks_and_load() {
        let mut conditions = Conditions::new(&strict(), false);
        conditions.take(&Telemetry::default(), 0, false);
        conditions.take(&Telemetry { foreign_cpu_percent: Finite::new(400.0), ..clocks(1, 1) }, SECOND, false);
        assert_eq!(conditions.reasons(&clusters(), Some(&on(&["4"]))), []);
    }

    // field report S18
    #[test]
    fn others_at_work_for_a_second_spoil_a_cell() {
        let quiet = || foreign(3.0);
        assert_eq!(verdict(&strict(), false, &[quiet(), quiet(), foreign(150.0), quiet()]), [ReasonCode::ForeignLoad]);
        assert_eq!(verdict(&strict(), false, &[quiet(), foreign(19.0), foreign(19.0)]), []);
        let mut short = Conditions::new(&strict(), false);
        short.take(&quiet(), 0, true);
        short.take(&foreign(100.0), 20_000, true);
        assert_eq!(short.reasons(&[], None), [], "two ticks of the kernel's clock are no evidence");
    }

    #[test]
    fn plugging_in_or_out_spoils_a_cell_and_topping_up_does_not() {
        let changed =
            |states: &[&str]| verdict(&strict(), false, &states.iter().map(|s| status(s)).collect::<Vec<_>>());
        assert_eq!(changed(&["discharging", "charging"]), [ReasonCode::ChargingChanged]);
        assert_eq!(changed(&["full", "unknown", "discharging"]), [ReasonCode::ChargingChanged]);
        assert_eq!(changed(&["charging", "full", "not-charging", "charging", "unknown"]), []);
    }

    // field report S15
    #[test]
    fn a_monotonic_clock_that_goes_backwards_spoils_a_cell_without_being_asked() {
        let mut conditions = Conditions::new(&ReadyCriteria::default(), false);
        conditions.take(&Telemetry::default(), 2 * SECOND, true);
        conditions.take(&Telemetry::default(), SECOND, true);
        assert_eq!(conditions.reasons(&[], None), [ReasonCode::ClockBackwards]);
    }
}
