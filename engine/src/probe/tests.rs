//! Made device trees, each with an oddity that real phones and boards have.

use super::made::Made;
use super::*;
use std::path::Path;

fn phone() -> Made {
    let mut made = Made::new()
        .file("sys/devices/system/cpu/present", "0-7\n")
        .file("sys/devices/system/cpu/online", "0-2,4-7\n")
        .file("proc/meminfo", "MemTotal:       11534336 kB\nMemAvailable:    7340032 kB\n")
        .file("proc/sys/kernel/osrelease", "6.1.68-android14-11\n")
        .file(
            "system/build.prop",
            "# made\nro.build.fingerprint=maker/name/dev:15/AP1A/1:user/release-keys\nro.product.model=Phone 9\n",
        )
        .file("sys/firmware/devicetree/base/compatible", "maker,phone9\0maker,soc-9\0")
        .file("sys/class/power_supply/battery/type", "Battery\n")
        .file("sys/class/power_supply/battery/capacity", "87\n");
    for core in 0..3 {
        made = made.core(core, Some(325), Some(1_803_000), "0-3");
    }
    made = made.core(3, Some(325), None, "");
    for core in 4..7 {
        made = made.core(core, Some(768), Some(2_348_000), "4-6");
    }
    made.core(7, Some(1024), Some(2_850_000), "7")
}

#[test]
fn a_phone_of_three_clusters_is_seen_fastest_first_with_its_offline_core() {
    let fingerprint = phone().probe();
    let cores: Vec<&[u32]> = fingerprint.clusters.iter().map(|c| &c.cores[..]).collect();
    assert_eq!(cores, [&[7][..], &[4, 5, 6], &[0, 1, 2, 3]]);
    assert_eq!(fingerprint.clusters[2].offline, [3]);
    assert_eq!(fingerprint.clusters[2].clock_max_khz, Some(1_803_000));
    assert_eq!(fingerprint.clusters[0].governor.as_deref(), Some("schedutil"));
    assert_eq!(fingerprint.soc, "maker,soc-9");
    assert_eq!(fingerprint.product.as_deref(), Some("Phone 9"));
    assert!(fingerprint.os_build.starts_with("maker/name"));
    assert_eq!(fingerprint.memory_bytes, 11_534_336 * 1024);
    assert_eq!(fingerprint.battery_percent, Some(87));
    assert_eq!(fingerprint.virtualisation, None);
}

#[test]
fn without_capacities_clusters_follow_the_highest_clock() {
    let mut made =
        Made::new().file("sys/devices/system/cpu/present", "0-3").file("sys/devices/system/cpu/online", "0-3");
    for core in 0..4 {
        made = made.core(core, None, Some(if core < 2 { 1_400_000 } else { 2_000_000 }), "");
    }
    let cores: Vec<Vec<u32>> = made.probe().clusters.into_iter().map(|c| c.cores).collect();
    assert_eq!(cores, [vec![2, 3], vec![0, 1]]);
}

#[test]
fn without_cpufreq_clusters_follow_the_kind_of_core() {
    let cpuinfo: String = [(0, "0xd05"), (1, "0xd05"), (2, "0xd0a")]
        .iter()
        .map(|(n, part)| format!("processor : {n}\nCPU implementer : 0x41\nCPU part : {part}\n\n"))
        .collect();
    let fingerprint = Made::new().file("proc/cpuinfo", cpuinfo).probe();
    let cores: Vec<Vec<u32>> = fingerprint.clusters.into_iter().map(|c| c.cores).collect();
    assert_eq!(cores, [vec![0, 1], vec![2]]);
    assert_eq!(fingerprint.soc, "implementer 0x41 part 0xd05");
}

#[test]
fn an_offline_core_that_says_nothing_forms_a_cluster_of_its_own() {
    let made = Made::new()
        .file("sys/devices/system/cpu/present", "0-1")
        .file("sys/devices/system/cpu/online", "0")
        .core(0, None, Some(1_000_000), "0")
        .core(1, None, None, "");
    let clusters = made.probe().clusters;
    assert_eq!(clusters.len(), 2);
    assert_eq!((&clusters[1].cores[..], &clusters[1].offline[..]), (&[1][..], &[1][..]));
}

#[test]
fn sensors_are_named_by_type_and_bad_ones_say_why() {
    let made = Made::new()
        .zone(0, "cpu-big\n", "48200\n")
        .zone(1, "soc_thermal\n", "51\n")
        .zone(2, "stuck-high\n", "135000\n")
        .zone(3, "stuck-low\n", "-274000\n")
        .zone(4, "never-wired\n", "0\n")
        .zone(5, "pm-bcl-lvl0\n", "100\n")
        .zone(6, "odd \x1b[31mname\u{202e}\n", "40000\n")
        .zone(7, "words\n", "hot\n")
        .zone(10, "battery\n", "30100\n")
        .file("sys/class/thermal/cooling_device0/type", "fan\n")
        .file("sys/class/hwmon/hwmon0/name", "coretemp\n")
        .file("sys/class/hwmon/hwmon0/temp1_input", "45000\n")
        .file("sys/class/hwmon/hwmon0/temp1_label", "Package id 0\n");
    // a zone whose `temp` answers with an error, as EINVAL does
    let dead = made.root().join("sys/class/thermal/thermal_zone8");
    std::fs::create_dir_all(dead.join("temp")).unwrap();
    std::fs::write(dead.join("type"), "modem\n").unwrap();
    std::fs::create_dir_all(made.root().join("sys/class/thermal/thermal_zone9")).unwrap();

    let sensors = made.probe().sensors;
    let trusted: Vec<(&str, f64)> = sensors
        .iter()
        .filter(|s| s.distrust.is_none())
        .map(|s| (s.sensor.as_str(), s.celsius.unwrap().get()))
        .collect();
    assert_eq!(
        trusted,
        [
            ("cpu-big", 48.2),
            ("soc_thermal", 51.0),
            ("odd \\u{1b}[31mname\\u{202e}", 40.0),
            ("battery", 30.1),
            ("coretemp Package id 0", 45.0)
        ]
    );
    let why = |kind: &str| sensors.iter().find(|s| s.sensor == kind).unwrap().distrust.clone().unwrap();
    assert!(why("stuck-high").contains("135 C"));
    assert!(why("stuck-low").contains("-274 C"));
    assert!(why("never-wired").contains("exactly 0"));
    assert!(why("pm-bcl-lvl0").contains("battery"));
    assert!(why("words").contains("no number"));
    assert!(why("modem").contains("cannot be read"));
    assert!(why("unnamed").contains("no type"));
    assert!(sensors.iter().all(|s| s.distrust.is_none() || s.celsius.is_none()));
}

#[test]
fn hidden_power_modes_are_part_of_what_a_device_is() {
    let made = Made::new()
        .file("sys/class/devfreq/dmc/governor", "dmc_ondemand\n")
        .file("sys/class/devfreq/dmc/max_freq", "2112000000\n")
        .file("var/lib/nvpmodel/status", "pmode:0002\n")
        .file("sys/devices/system/cpu/present", "0")
        .core(0, None, Some(2_000_000), "0")
        .file("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "1200000\n");
    let modes = made.probe().power_modes;
    let has = |name: &str, value: &str| modes.iter().any(|(n, v)| n == name && v == value);
    assert!(has("devfreq dmc governor", "dmc_ondemand"), "{modes:?}");
    assert!(has("devfreq dmc max_freq", "2112000000"));
    assert!(has("jetson power mode", "pmode:0002"));
    assert!(has("cpu0 clock capped at khz", "1200000"));
}

#[test]
fn caches_are_listed_once_and_largest_last() {
    let mut made = Made::new().file("sys/devices/system/cpu/present", "0-1");
    for core in 0..2 {
        for (index, level, kind, size) in [
            (0, "1", "Data", "48K"),
            (1, "1", "Instruction", "32K"),
            (2, "2", "Unified", "2048K"),
            (3, "3", "Unified", "32M"),
        ] {
            let folder = format!("sys/devices/system/cpu/cpu{core}/cache/index{index}");
            made = made
                .file(&format!("{folder}/level"), level)
                .file(&format!("{folder}/type"), kind)
                .file(&format!("{folder}/size"), size);
        }
    }
    assert_eq!(made.probe().caches, ["L1i 32768", "L1d 49152", "L2 2097152", "L3 33554432"]);
}

#[test]
fn a_machine_that_tells_nothing_has_an_empty_fingerprint() {
    let fingerprint = Made::new().probe();
    assert!(fingerprint.clusters.is_empty() && fingerprint.sensors.is_empty() && fingerprint.isa.is_empty());
    assert_eq!((fingerprint.soc.as_str(), fingerprint.kernel.as_str()), ("unknown", "unknown"));
    assert_eq!((fingerprint.memory_bytes, fingerprint.battery_percent), (0, None));
}

#[test]
fn garbage_in_every_file_never_stops_the_probe() {
    let garbage: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut made = phone().zone(0, "x", "y");
    for path in [
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/version",
        "sys/devices/system/cpu/present",
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/cpu0/cpu_capacity",
        "sys/class/thermal/thermal_zone0/type",
        "sys/class/thermal/thermal_zone0/temp",
        "sys/class/power_supply/battery/capacity",
        "system/build.prop",
    ] {
        made = made.file(path, &garbage);
    }
    made = made.file("sys/devices/system/cpu/present", "0-4294967295,9999999999,7-3,-,a-b");
    let fingerprint = made.probe();
    let cores: usize = fingerprint.clusters.iter().map(|c| c.cores.len()).sum();
    assert!(cores <= 4096);
    serde_json::to_string(&fingerprint).unwrap();
}

#[test]
fn the_quad_a53_fixture_is_one_cluster_of_four() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/sys/quad-a53");
    let fingerprint = probe(&Tree::new(root));
    assert_eq!(fingerprint.clusters.len(), 1);
    assert_eq!(fingerprint.clusters[0].cores, [0, 1, 2, 3]);
    assert_eq!(fingerprint.isa, ["neon"]);
    assert!(fingerprint.product.is_some());
    assert_eq!(fingerprint.sensors.iter().filter(|s| s.distrust.is_none()).count(), 1);
}

#[test]
fn this_machine_can_be_probed() {
    let fingerprint = probe(&Tree::new("/"));
    assert!(fingerprint.page_size_bytes >= 4096);
    assert!(fingerprint.memory_bytes > 0);
    assert!(!fingerprint.clusters.is_empty());
    assert!(fingerprint.target.contains(std::env::consts::ARCH));
}
