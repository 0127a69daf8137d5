//! Whole runs over simulated devices whose links and sensors misbehave: what each trouble costs, and how it is named.

mod lab;

use lab::project::{Project, said, text};
use serde_json::Value;

/// A device with this fault of its link.
fn with_fault(name: &str, fault: &str) -> String {
    Project::sim(name, "", &format!("[[transport.sim.fault]]\n{fault}"))
}

/// A device with a thermal zone, whose temperature is in the file that `zone` names, and these criteria.
fn with_sensor(project: &Project, name: &str, millicelsius: &str, ready: &str) {
    project.write(&format!("trees/{name}/sys/class/thermal/thermal_zone0/type"), "cpu-thermal\n");
    project.write(&zone(name), millicelsius);
    let device = Project::sim(name, "", &format!("root = \"WORKDIR/trees/{name}\""));
    project.write(&format!("devices/{name}.toml"), &format!("{device}[ready]\n{ready}\n"));
}

fn zone(name: &str) -> String {
    format!("trees/{name}/sys/class/thermal/thermal_zone0/temp")
}

/// Whether the device's journal comes to hold `word` within a minute.
fn is_told(project: &Project, device: &str, word: &str) -> bool {
    let is_there = || {
        let runs = std::fs::read_dir(project.path().join(device).join("runs")).into_iter().flatten().flatten();
        let journals = runs.map(|run| run.path().join(device).join("journal.jsonl"));
        journals.filter_map(|journal| std::fs::read_to_string(journal).ok()).any(|text| text.contains(word))
    };
    (0..12).any(|_| lab::eventually(is_there))
}

/// What the report has of a device, by name.
fn of(report: &Value, device: &str) -> Value {
    let devices = report["run"]["devices"].as_array().unwrap();
    devices.iter().find(|d| d["facts"]["device"] == device).unwrap_or_else(|| panic!("no {device}: {report}")).clone()
}

#[test]
fn a_device_that_stays_hot_gives_invalid_cells_and_never_a_number() {
    let project = Project::empty();
    with_sensor(&project, "hot", "71000\n", "temperature-max-c = 42\ncool-down-timeout-s = 1\npoll-period-ms = 100");
    let out = project.smoke(&[]);
    assert_eq!(out.status.code(), Some(4), "{}", said(&out));
    let told = said(&out);
    assert!(told.contains("not-cool x 2") && told.contains("0 of 2 cells valid"), "{told}");
    let hot = of(&project.report(), "hot");
    for cell in hot["cells"].as_array().unwrap() {
        assert!(cell["exit"]["not-ready"]["waited-ms"].as_u64().unwrap() >= 1000, "{cell}");
        assert!(cell["samples"].as_array().unwrap().is_empty() && cell["attempts"] == 1, "{cell}");
    }
}

#[test]
fn a_device_that_cools_down_is_waited_for_and_the_screen_says_so() {
    let project = Project::empty();
    with_sensor(&project, "warm", "55000\n", "temperature-max-c = 42\ncool-down-timeout-s = 120\npoll-period-ms = 100");
    let out = std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(is_told(&project, "warm", "\"waiting\""), "it was never waited for");
            project.write(&zone("warm"), "40000\n");
        });
        project.smoke(&[])
    });
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    assert!(text(&out.stderr).contains("warm: measuring cooling, 0 of 2 cells"), "{}", said(&out));
}

#[test]
fn every_trouble_costs_its_own_device_and_is_named() {
    let project = Project::with(&[
        ("calm", &Project::sim("calm", "", "")),
        ("cut", &with_fault("cut", "kind = \"link-lost\"\nmatching = \"push\"\nat-call = 1\nafter-bytes = 4096")),
        ("away", &with_fault("away", "kind = \"offline\"\nfrom-call = 1\ncalls = 1000000")),
        ("full", &with_fault("full", "kind = \"disk-full\"\nafter-bytes = 100000")),
        ("clock", &with_fault("clock", "kind = \"clock-jump\"\nat-call = 12\njump-ms = 3600000")),
    ]);
    let out = project.smoke(&[]);
    assert_eq!(out.status.code(), Some(3), "{}", said(&out));
    let report = project.report();
    let failure = |device: &str| of(&report, device)["failure"].as_str().unwrap_or_default().to_owned();
    assert!(failure("cut").contains("4096 of"), "{}", failure("cut"));
    assert!(failure("away").contains("offline"), "{}", failure("away"));
    assert!(failure("full").contains("No space left"), "{}", failure("full"));
    for device in ["calm", "clock"] {
        assert!(of(&report, device)["failure"].is_null(), "one device's trouble costs nobody else");
        let cells = of(&report, device)["cells"].clone();
        assert!(cells.as_array().unwrap().iter().all(|cell| cell["invalid"] == serde_json::json!([])), "{cells}");
    }
    // each once, whatever number of devices the engine goes to
    assert!(text(&out.stderr).matches("not static").count() <= 1, "{}", said(&out));
}
