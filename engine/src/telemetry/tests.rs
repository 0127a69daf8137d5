//! What telemetry finds on made devices, and what it costs.

use super::*;
use crate::probe::made::Made;
use crate::protocol::{ClusterClock, Cooling};
use std::time::Duration;

/// More than this many files is no small reading.
const FILES_A_READING_MAX: u64 = 64;

/// The first reading and the one after `change`, of a process that is not there.
fn two_readings(made: Made, change: impl FnOnce(Made) -> Made) -> (Telemetry, Telemetry) {
    let tree = made.tree();
    let mut observer = Observer::new(tree.clone(), tree, &made.probe());
    let first = observer.read(0, 1);
    let _changed = change(made);
    let second = observer.read(0, 1);
    (first, second)
}

fn reading(made: Made) -> Telemetry {
    two_readings(made, |made| made).0
}

fn celsius(reading: &Telemetry) -> Vec<(&str, f64)> {
    reading.temperatures.iter().map(|t| (t.sensor.as_str(), t.celsius.get())).collect()
}

fn pairs(clocks: &[ClusterClock]) -> Vec<(u32, u64)> {
    clocks.iter().map(|c| (c.core, c.clock_khz)).collect()
}

#[test]
fn a_pixel_tells_its_heat_clocks_battery_and_what_it_draws() {
    let made = Made::pixel_like();
    let cores: Vec<Vec<u32>> = made.probe().clusters.into_iter().map(|c| c.cores).collect();
    assert_eq!(cores, [vec![8], vec![4, 5, 6, 7], vec![0, 1, 2, 3]]);
    let (first, second) = two_readings(made, |made| {
        made.times(8, &[(500_000, 900), (2_914_000, 200)]).times(0, &[(300_000, 150), (1_704_000, 150)])
    });
    let expected = [("BIG", 48.2), ("LITTLE", 44.0), ("MID", 46.1), ("battery", 30.1), ("neutral_therm", 33.0)];
    assert_eq!(celsius(&first), expected);
    assert_eq!(first.hottest_c().unwrap().get(), 48.2, "a stuck sensor and a state of charge are not the hottest");
    assert_eq!(pairs(&first.clocks), [(8, 2_914_000), (5, 2_367_000), (0, 1_704_000)]);
    assert_eq!(pairs(&first.clocks_mean), []);
    assert_eq!(pairs(&second.clocks_mean), [(8, 2_914_000), (0, 1_002_000)], "no time has passed on cluster 5");
    let battery = first.battery.as_ref().unwrap();
    assert_eq!((battery.percent, battery.status.as_deref()), (Some(87), Some("discharging")), "not that of the pen");
    assert_eq!((battery.celsius.unwrap().get(), battery.voltage_uv), (30.1, Some(3_950_000)));
    let power = first.power.as_ref().unwrap();
    assert_eq!((power.source.as_str(), power.sensor.as_str()), ("fuel-gauge", "ua-by-size"));
    assert!((power.power_w.get() - 1.6274).abs() < 1e-9);
    let at_work: Vec<&str> = first.cooling.iter().map(|c| c.device.as_str()).collect();
    assert_eq!(at_work, ["panel0-backlight", "fcc"]);
    assert_eq!(first.slowed_by(), None, "a dimmed display and slow charging slow no processor");
    assert_eq!(first.pressure.unwrap().memory_some_percent.unwrap().get(), 1.5);
    assert_eq!(first.swap_used_bytes, Some(1500 * 1024));
}

#[test]
fn a_snapdragon_tells_currents_in_ma_of_the_other_sign_and_a_cluster_that_is_held_back() {
    let reading = reading(Made::snapdragon_like());
    assert_eq!(celsius(&reading), [("cpu-0-0-usr", 51.5), ("cpuss-0-usr", 52.1)]);
    let battery = reading.battery.as_ref().unwrap();
    assert_eq!((battery.current_raw, battery.current_ma.map(|ma| ma.get())), (Some(412), Some(412.0)));
    assert_eq!(reading.power.as_ref().unwrap().sensor, "ma-assumed");
    assert_eq!(reading.cooling, [Cooling { device: "cpu-cluster2".into(), state: 2, state_max: Some(20) }]);
    assert_eq!(reading.slowed_by().as_deref(), Some("cpu-cluster2"));
}

#[test]
fn a_board_of_two_equal_big_clusters_has_its_hidden_memory_clock_in_the_fingerprint() {
    let made = Made::rk3588_like();
    let fingerprint = made.probe();
    assert_eq!(fingerprint.soc, "rockchip,rk3588");
    assert!(fingerprint.power_modes.contains(&("devfreq dmc max_freq".into(), "2112000000".into())));
    let reading = reading(made);
    assert_eq!(celsius(&reading), [("bigcore0-thermal", 43.461), ("soc-thermal", 42.538)]);
    assert_eq!(reading.slowed_by(), None, "a fan slows nothing");
    assert_eq!((reading.battery, reading.power, reading.pressure), (None, None, None));
}

#[test]
fn a_jetson_tells_its_rails_of_which_the_input_counts_and_its_power_mode() {
    let made = Made::jetson_like();
    assert!(made.probe().power_modes.contains(&("jetson power mode".into(), "pmode:0002".into())));
    let reading = reading(made);
    let power = reading.power.as_ref().unwrap();
    assert_eq!((power.source.as_str(), power.sensor.as_str()), ("rail", "ina3221 VDD_IN"));
    assert!((power.power_w.get() - 6.0576).abs() < 1e-9, "not the sum of rails that feed each other");
    let rails: Vec<&str> = reading.rails.iter().map(|r| r.rail.as_str()).collect();
    assert_eq!(rails, ["ina3221 VDD_IN", "ina3221 VDD_CPU_GPU_CV", "ina3221 VDD_SOC"]);
}

#[test]
fn a_pi_that_lacks_voltage_says_so_and_one_that_lacked_it_earlier_is_not_slow_now() {
    let made = Made::pi_like();
    assert!(made.probe().power_modes.contains(&("pi throttled".into(), "50005".into())));
    let (now, later) =
        two_readings(made, |made| made.file("sys/devices/platform/soc/soc:firmware/get_throttled", "0x50000\n"));
    assert_eq!(now.throttle_flags, Some(0x50005));
    assert_eq!(now.slowed_by().as_deref(), Some("throttle flags 0x50005"));
    assert_eq!((later.throttle_flags, later.slowed_by()), (Some(0x50000), None));
}

#[test]
fn a_virtual_machine_that_tells_nothing_has_no_figures_and_none_are_invented() {
    let made = Made::bare_vm();
    let tree = made.tree();
    let mut observer = Observer::new(tree.clone(), tree, &made.probe());
    assert!(!observer.has_sensors());
    let mut reading = observer.read(7, 1);
    assert!(reading.observer_cpu_us.take().is_some());
    let told = Telemetry {
        cell: 7,
        memory: MemoryParts { source: "status".into(), ..MemoryParts::default() },
        mem_available_bytes: Some(2_000_000 * 1024),
        swap_used_bytes: Some(1500 * 1024),
        ..Telemetry::default()
    };
    assert_eq!(reading, told);
}

// field reports S5, S6: the number of a zone means nothing, and the first one is not the hottest
#[test]
fn the_same_phone_with_its_zones_in_another_order_tells_the_same() {
    let zones = [("BIG\n", "48200\n"), ("stuck\n", "138000\n"), ("LITTLE\n", "44000\n")];
    let order = |order: [usize; 3]| {
        let zone = |made: Made, (number, at): (usize, &usize)| made.zone(number as u32, zones[*at].0, zones[*at].1);
        reading(order.iter().enumerate().fold(Made::new(), zone))
    };
    let one = order([0, 1, 2]);
    assert_eq!(celsius(&one), [("BIG", 48.2), ("LITTLE", 44.0)]);
    assert_eq!(one.temperatures, order([2, 0, 1]).temperatures);
}

// field report S11
#[test]
fn a_zone_that_answers_with_an_error_is_left_out_and_the_others_are_read() {
    let made = Made::new().dead_zone(0, "modem\n").zone(1, "cpu\n", "40000\n");
    assert_eq!(celsius(&reading(made)), [("cpu", 40.0)]);
}

#[test]
fn a_sensor_that_goes_bad_during_a_run_is_left_out_from_then_on() {
    let made = Made::new().zone(0, "cpu\n", "40000\n").zone(1, "skin\n", "33000\n");
    let (first, second) = two_readings(made, |made| made.zone(1, "skin\n", "137000\n"));
    assert_eq!((celsius(&first).len(), celsius(&second)), (2, vec![("cpu", 40.0)]));
}

// field report S14
#[test]
fn a_core_that_goes_offline_takes_no_clock_of_its_cluster_with_it() {
    let made = Made::new().file("sys/devices/system/cpu/present", "0-1").cluster((0, 1), Some(500), 1_000_000);
    let made = made.clock(1, 900_000).times(0, &[(1_000_000, 5)]).times(1, &[(1_000_000, 9)]);
    let (_, second) = two_readings(made, |made| {
        std::fs::remove_dir_all(made.root().join("sys/devices/system/cpu/cpu0/cpufreq")).unwrap();
        made
    });
    assert_eq!(pairs(&second.clocks), [(0, 900_000)]);
    assert_eq!(pairs(&second.clocks_mean), [(0, 1_000_000)]);
}

// field report S15: only monotonic time is read, so that a wall clock that jumps makes no negative share
#[test]
fn a_wall_clock_that_jumps_leaves_no_trace_in_what_others_take() {
    let stat = |ticks: u32| format!("cpu {ticks} 0 0 0 0 0 0 0\nbtime 1\n");
    let made = Made::new().file("proc/1/stat", "1 (x) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20");
    let (first, second) = two_readings(made.file("proc/stat", stat(0)), |made| {
        std::thread::sleep(Duration::from_millis(2));
        made.file("proc/stat", stat(1).replace("btime 1", "btime 4102444800"))
    });
    assert_eq!(first.foreign_cpu_percent, None);
    assert!(second.foreign_cpu_percent.unwrap().get() > 0.0);
}

#[test]
fn clocks_come_from_cpufreq_else_from_cpuinfo() {
    let cpuinfo = "processor : 0\ncpu MHz : 2300.000\n\nprocessor : 4\ncpu MHz : 1800.5\n";
    let made = Made::new().clock(0, 1_416_000).file("proc/cpuinfo", cpuinfo);
    let mut fingerprint = Fingerprint::default();
    for (cores, offline) in [(vec![0, 1], vec![]), (vec![3, 4], vec![3]), (vec![7], vec![7])] {
        fingerprint.clusters.push(CoreCluster { cores, offline, ..Default::default() });
    }
    let clocks = Observer::new(made.tree(), made.tree(), &fingerprint).read(0, 1).clocks;
    assert_eq!(pairs(&clocks), [(0, 1_416_000), (4, 1_800_500)]);
}

#[test]
fn only_trusted_sensors_are_read_and_the_hottest_of_a_type_counts() {
    let made = Made::new().zone(0, "cpu-thermal\n", "48000\n").zone(1, "cpu-thermal\n", "51\n");
    assert_eq!(celsius(&reading(made.zone(2, "stuck\n", "135000\n"))), [("cpu-thermal", 51.0)]);
}

#[test]
fn a_reading_opens_only_what_is_there_and_few_of_it() {
    for made in [Made::pixel_like(), Made::snapdragon_like(), Made::jetson_like(), Made::pi_like(), Made::bare_vm()] {
        let tree = made.tree();
        let mut observer = Observer::new(tree.clone(), tree.clone(), &made.probe());
        observer.read(0, 1);
        let before = tree.opened();
        observer.read(0, 1);
        let opened = tree.opened() - before;
        assert!((1..=FILES_A_READING_MAX).contains(&opened), "{opened} files");
    }
}

#[test]
fn a_reading_of_this_very_process_has_memory_and_foreign_load() {
    let mut observer = Observer::new(Tree::new("/"), Tree::new("/"), &Fingerprint::default());
    let pid = std::process::id();
    let first = observer.read(3, pid);
    assert_eq!(first.cell, 3);
    assert!(first.memory.rss_bytes.unwrap() > 0 && first.mem_available_bytes.unwrap() > 0);
    assert!(first.foreign_cpu_percent.is_none());
    assert!(first.involuntary_switches.is_some());
    std::thread::sleep(Duration::from_millis(20));
    assert!(observer.read(3, pid).foreign_cpu_percent.is_some());
}
