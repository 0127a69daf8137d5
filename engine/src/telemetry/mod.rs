//! State of the device while a cell runs: temperatures, clocks, memory, load by others, heat protection, battery, power.
//!
//! One reading costs some dozens of small files, and says how much processor time it took, so that observing does not
//! disturb what is observed: at one reading a second it has to stay below 0.5 % of a little core. What a device has is
//! looked up once, at the start; a reading opens only files that are known to be there.

mod battery;
mod clocks;
mod cooling;
mod load;
mod memory;
mod power;
mod pressure;

pub use load::involuntary_switches;
pub use memory::memory_parts;

use crate::clock;
use crate::probe::{Tree, hottest_by_type, read_sensor};
use crate::protocol::{CoreCluster, Fingerprint, MemoryParts, Reading, Telemetry};
use crate::tree::kilobytes;
use battery::BatteryGauge;
use clocks::Clocks;
use cooling::CoolingDevices;
use load::ForeignLoad;
use power::Meters;
use std::time::Instant;

/// Sensors beyond this number are not read; the rest of the fingerprint's trusted ones are left out.
const SENSORS_MAX: usize = 64;
/// Reading `smaps_rollup` walks the page tables of the cell's process, which takes long for a large model. It is read
/// again only after this many times what it last cost: at most 0.5 % of one core.
const ROLLUP_REST_FACTOR: u32 = 200;

/// Reads the state of one device, again and again.
#[derive(Debug)]
pub struct Observer {
    device: Tree,
    processes: Tree,
    sensors: Vec<(String, String)>,
    clusters: Vec<CoreCluster>,
    clocks: Clocks,
    cooling: CoolingDevices,
    battery: Option<BatteryGauge>,
    meters: Meters,
    load: ForeignLoad,
    rollup_not_before: Option<Instant>,
}

impl Observer {
    /// `device` holds temperatures, clocks, power and `meminfo`; `processes` holds `/proc` with the cell's process, which
    /// is the running system's even when the device's files are made ones. Only sensors that the fingerprint trusts are
    /// read.
    pub fn new(device: Tree, processes: Tree, fingerprint: &Fingerprint) -> Self {
        let trusted = fingerprint.sensors.iter().filter(|s| s.distrust.is_none()).take(SENSORS_MAX);
        Self {
            sensors: trusted.map(|s| (s.sensor.clone(), s.path.clone())).collect(),
            clusters: fingerprint.clusters.clone(),
            clocks: Clocks::new(&device, &fingerprint.clusters),
            cooling: CoolingDevices::find(&device),
            battery: BatteryGauge::find(&device),
            meters: Meters::find(&device),
            load: ForeignLoad::default(),
            rollup_not_before: None,
            device,
            processes,
        }
    }

    /// Whether any sensor is trusted: without one, heat cannot be judged here.
    pub fn has_sensors(&self) -> bool {
        !self.sensors.is_empty()
    }

    /// Whether anything on the device could tell that it is slowed down.
    pub fn has_cooling_devices(&self) -> bool {
        self.cooling.any_slows()
    }

    /// The clusters as the probe found them.
    pub fn clusters(&self) -> &[CoreCluster] {
        &self.clusters
    }

    /// One reading while process `pid` works on `cell`.
    pub fn read(&mut self, cell: u32, pid: u32) -> Telemetry {
        let begun_us = clock::thread_cpu_us();
        let meminfo = self.device.lines("proc/meminfo").unwrap_or_default();
        let battery = self.battery.as_mut().map(|gauge| gauge.read(&self.device));
        let (rails, of_meters) = self.meters.read(&self.device, clock::monotonic_us());
        let mut reading = Telemetry {
            cell,
            at_end: false,
            temperatures: self.temperatures(),
            clocks: self.clocks.now(&self.device),
            clocks_mean: self.clocks.means(&self.device),
            cooling: self.cooling.at_work(&self.device),
            throttle_flags: cooling::throttle_flags(&self.device),
            memory: self.memory(pid),
            mem_available_bytes: kilobytes(&meminfo, "MemAvailable"),
            swap_used_bytes: memory::swap_used_bytes(&meminfo),
            pressure: pressure::read(&self.device),
            foreign_cpu_percent: self.load.read(&self.processes, pid),
            involuntary_switches: involuntary_switches(&self.processes, pid),
            power: of_meters.or_else(|| battery.as_ref().and_then(battery::power)),
            battery,
            rails,
            observer_cpu_us: None,
        };
        reading.observer_cpu_us = Some(clock::thread_cpu_us().saturating_sub(begun_us));
        reading
    }

    /// The hottest sensor of each type; a sensor that goes bad later is left out of that reading.
    fn temperatures(&self) -> Vec<Reading> {
        let good = self.sensors.iter().filter_map(|(kind, path)| {
            read_sensor(&self.device, path, kind).ok().map(|celsius| (kind.clone(), celsius))
        });
        hottest_by_type(good).into_iter().map(|(sensor, celsius)| Reading { sensor, celsius }).collect()
    }

    fn memory(&mut self, pid: u32) -> MemoryParts {
        let begun = Instant::now();
        if self.rollup_not_before.is_some_and(|moment| begun < moment) {
            return memory_parts(&self.processes, pid, false);
        }
        let parts = memory_parts(&self.processes, pid, true);
        self.rollup_not_before = Some(Instant::now() + begun.elapsed() * ROLLUP_REST_FACTOR);
        parts
    }
}

#[cfg(test)]
mod tests;
