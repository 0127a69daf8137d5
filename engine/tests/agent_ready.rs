//! Waiting until a device is fit to be measured, and what it does meanwhile: the real binary on made device files.

mod agent;

use agent::*;
use farmgate_engine::protocol::{CellPlan, ExitCause, Finite, ReadyCriteria, ReasonCode, Record, Step, Telemetry};
use std::path::Path;

/// Files of a device with one sensor, one processor throttle and a battery.
struct Device {
    folder: tempfile::TempDir,
}

impl Device {
    fn at(celsius: u32) -> Self {
        let device = Self { folder: tempfile::tempdir().unwrap() };
        device.put("sys/class/thermal/thermal_zone0/type", "cpu-thermal");
        device.put("sys/class/thermal/cooling_device0/type", "thermal-cpufreq-0");
        device.put("sys/class/thermal/cooling_device0/max_state", "10");
        device.put("sys/class/power_supply/battery/type", "Battery");
        device.put("sys/class/power_supply/battery/capacity", "80");
        device.heat(celsius);
        device.throttle(0);
        device.power("Discharging");
        device
    }

    /// Whole files at once, so that farmhand never meets an empty one.
    fn put(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let half = path.with_extension("new");
        std::fs::write(&half, text).unwrap();
        std::fs::rename(half, path).unwrap();
    }

    fn heat(&self, celsius: u32) {
        self.put("sys/class/thermal/thermal_zone0/temp", &format!("{celsius}000"));
    }

    fn throttle(&self, state: u32) {
        self.put("sys/class/thermal/cooling_device0/cur_state", &state.to_string());
    }

    fn power(&self, status: &str) {
        self.put("sys/class/power_supply/battery/status", status);
    }
}

/// A farmhand at work that sees `device`.
fn start(desk: &Desk, device: &Path) -> Running {
    let mut command = desk.command();
    command.arg("--root").arg(device).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    Running { process: command.spawn().unwrap() }
}

fn desk(cells: Vec<CellPlan>, retries_max: u32, ready: ReadyCriteria) -> Desk {
    let mut plan = plan(cells);
    (plan.retries_max, plan.ready) = (retries_max, ready);
    Desk::new(&plan)
}

fn patient() -> ReadyCriteria {
    ReadyCriteria { poll_period_ms: 20, ..ReadyCriteria::default() }
}

fn hasty() -> ReadyCriteria {
    ReadyCriteria { cool_down_timeout_ms: 60, ..patient() }
}

/// Long enough for a test to change the device meanwhile.
fn long(number: u32) -> CellPlan {
    cell(number, vec![LOAD, Step::Decode { decode_tokens: 64, at_depth: 0, repetitions: 16 }])
}

fn waits(desk: &Desk) -> Vec<(u32, u32, String)> {
    let wait = |record| match record {
        Record::Waiting { cell, attempt, phase, .. } => Some((cell, attempt, phase)),
        _ => None,
    };
    desk.records().into_iter().filter_map(wait).collect()
}

#[test]
fn a_cell_waits_for_a_hot_device_and_begins_once_it_is_cool() {
    let device = Device::at(60);
    let desk = desk(vec![short(0)], 0, ReadyCriteria { temperature_max_c: Finite::new(45.0), ..patient() });
    let mut running = start(&desk, device.folder.path());
    desk.wait_for("wait", |r| matches!(r, Record::Waiting { cell: 0, attempt: 0, .. }));
    assert!(!desk.records().iter().any(|r| matches!(r, Record::CellStart { .. })), "nothing runs while it is hot");
    device.heat(44);
    assert_eq!(running.wait().code(), Some(0));
    assert_eq!(desk.ends(), [(0, 0, ExitCause::Done, vec![])]);
    assert_eq!(waits(&desk), [(0, 0, "cooling".to_owned())], "a wait is told once as long as nothing changes");
    let basis = desk.records().into_iter().find_map(|r| match r {
        Record::ReadyBasis { idle_temperature_c, not_judged } => Some((idle_temperature_c, not_judged)),
        _ => None,
    });
    assert_eq!(basis, Some((Finite::new(60.0), vec![])));
}

#[test]
fn a_wait_in_vain_makes_the_attempt_invalid_and_counts_among_the_tries() {
    let device = Device::at(60);
    let hot = ReadyCriteria { temperature_max_c: Finite::new(45.0), battery_percent_min: Some(90), ..hasty() };
    let desk = desk(vec![short(0), short(1)], 1, hot);
    assert_eq!(start(&desk, device.folder.path()).wait().code(), Some(0), "a finding, not a failure of the run");
    let ends = desk.ends();
    let tried: Vec<(u32, u32)> = ends.iter().map(|end| (end.0, end.1)).collect();
    assert_eq!(tried, [(0, 0), (1, 0)], "what has waited in vain is not tried again");
    for (_, _, exit, invalid) in &ends {
        assert!(matches!(exit, ExitCause::NotReady { waited_ms } if *waited_ms >= 60), "{exit:?}");
        assert_eq!(invalid[..], [ReasonCode::NotCool, ReasonCode::BatteryLow]);
    }
    assert!(desk.samples().is_empty(), "it never goes on anyway");
    assert_eq!(desk.interrupted(), Some(false));
}

#[test]
fn a_run_that_is_stopped_while_it_waits_goes_on_with_the_idle_temperature_it_knew() {
    let device = Device::at(30);
    let near_idle = ReadyCriteria { temperature_margin_c: Finite::new(5.0), ..patient() };
    let desk = desk(vec![short(0)], 0, near_idle);
    let mut running = start(&desk, device.folder.path());
    desk.wait_for("basis", |r| matches!(r, Record::ReadyBasis { .. }));
    assert_eq!(running.wait().code(), Some(0));
    // the journal as if the run had been cut off after its basis, on a device that is warm by now
    let journal = std::fs::read(desk.path("journal")).unwrap();
    let two_lines = journal.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(1).unwrap().0 + 1;
    std::fs::write(desk.path("journal"), &journal[..two_lines]).unwrap();
    device.heat(50);
    let mut running = start(&desk, device.folder.path());
    desk.wait_for("wait", |r| matches!(r, Record::Waiting { .. }));
    signal(running.pid(), libc::SIGTERM);
    assert_eq!(running.wait().code(), Some(130));
    assert_eq!(
        (desk.ends().len(), desk.interrupted()),
        (0, Some(true)),
        "an attempt that did not begin does not count"
    );
}

#[test]
fn a_machine_without_sensors_says_once_that_heat_is_not_judged_and_goes_on() {
    let empty = tempfile::tempdir().unwrap();
    let cool = ReadyCriteria { temperature_margin_c: Finite::new(3.0), thermal_status: true, ..hasty() };
    let desk = desk(vec![short(0), short(1)], 0, cool);
    assert_eq!(start(&desk, empty.path()).wait().code(), Some(0));
    assert!(desk.ends().iter().all(|end| end.2 == ExitCause::Done && end.3.is_empty()), "{:?}", desk.ends());
    let said = desk.records().into_iter().filter_map(|r| match r {
        Record::ReadyBasis { idle_temperature_c, not_judged } => Some((idle_temperature_c, not_judged)),
        _ => None,
    });
    let not_judged = vec!["temperature: no trusted sensor".into(), "thermal status: no cooling device".into()];
    assert_eq!(said.collect::<Vec<_>>(), [(None, not_judged)]);
}

#[test]
fn a_device_that_slows_itself_during_a_cell_spoils_it_unless_heat_is_what_it_measures() {
    for about_heat in [false, true] {
        let device = Device::at(40);
        let cell = CellPlan { about_heat, ..long(0) };
        let desk = desk(vec![cell], 0, ReadyCriteria { thermal_status: true, ..patient() });
        let mut running = start(&desk, device.folder.path());
        desk.wait_for_proof();
        device.throttle(3);
        assert_eq!(running.wait().code(), Some(0));
        let expected = if about_heat { vec![] } else { vec![ReasonCode::ThermalBand] };
        assert_eq!(desk.ends(), [(0, 0, ExitCause::Done, expected)]);
    }
}

#[test]
fn plugging_in_during_a_cell_spoils_it_and_the_next_attempt_is_good() {
    let device = Device::at(40);
    let desk = desk(vec![long(0)], 1, ReadyCriteria { charging_steady: true, ..patient() });
    let mut running = start(&desk, device.folder.path());
    desk.wait_for_proof();
    device.power("Charging");
    assert_eq!(running.wait().code(), Some(0));
    let changed = vec![ReasonCode::ChargingChanged];
    assert_eq!(desk.ends(), [(0, 0, ExitCause::Done, changed), (0, 1, ExitCause::Done, vec![])]);
}

#[test]
fn every_cell_has_a_reading_at_its_end_however_short_it_is() {
    let device = Device::at(40);
    let mut plan = plan(vec![short(0), short(1)]);
    plan.telemetry_period_ms = 60_000;
    let desk = Desk::new(&plan);
    assert_eq!(start(&desk, device.folder.path()).wait().code(), Some(0));
    let readings: Vec<Telemetry> =
        desk.records().into_iter().filter_map(|r| if let Record::Telemetry(t) = r { Some(*t) } else { None }).collect();
    for cell in 0..2 {
        let mine: Vec<&Telemetry> = readings.iter().filter(|t| t.cell == cell).collect();
        let last = mine.last().unwrap();
        assert!(mine.len() >= 2 && last.at_end, "{mine:?}");
        assert!(mine.iter().filter(|t| t.at_end).count() == 1);
        assert!(last.memory.anon_bytes.unwrap() > 0 && last.memory.peak_rss_bytes.unwrap() > 0);
        assert_eq!(last.hottest_c(), Finite::new(40.0));
        assert_eq!(last.battery.as_ref().unwrap().status.as_deref(), Some("discharging"));
        assert!(last.involuntary_switches.is_some());
    }
}
