//! `farmgate device …` with the real binary, and what registered devices mean for a run.

mod lab;

use assert_cmd::Command;
use lab::project::{Project, model, said, text};
use serde_json::Value;

#[test]
fn the_list_shows_what_labels_choose() {
    let project = Project::with(&[
        ("pixel", &Project::sim("pixel", "\"phone\"", "")),
        ("nexus", &Project::sim("nexus", "\"phone\", \"old\"", "")),
        ("pi", &Project::sim("pi", "\"board\"", "")),
    ]);
    let names = |args: &[&str]| -> Vec<String> {
        let out = project.farmgate(&[&["device", "list", "--json"], args].concat());
        assert!(out.status.success(), "{}", said(&out));
        let listed: Value = serde_json::from_slice(&out.stdout).unwrap();
        listed.as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["nexus", "pi", "pixel"]);
    assert_eq!(names(&["phone & !old"]), ["pixel"]);
    assert_eq!(names(&["old | board"]), ["nexus", "pi"]);
    let wrong = project.farmgate(&["device", "list", "phone &"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("column 8") && text(&wrong.stderr).contains("hint: "), "{}", said(&wrong));
    let chosen = project.farmgate(&["run", "smoke", "--model", &model(), "--labels", "!phone", "--dry-run"]);
    assert!(text(&chosen.stdout).contains("on 1 device"), "{}", said(&chosen));
    let none = project.farmgate(&["run", "smoke", "--model", &model(), "--labels", "tablet", "--dry-run"]);
    assert!(none.status.code() == Some(2) && text(&none.stderr).contains("no device has labels"), "{}", said(&none));
}

#[test]
fn a_device_in_quarantine_costs_its_cells_and_nobody_touches_it() {
    let project = Project::with(&[("good", &Project::sim("good", "", "")), ("bad", &Project::sim("bad", "", ""))]);
    let put = project.farmgate(&["device", "quarantine", "bad", "--reason", "screen cracked"]);
    assert!(put.status.success(), "{}", said(&put));
    let list = text(&project.farmgate(&["device", "list"]).stdout);
    assert!(list.contains("quarantined: screen cracked"), "{list}");
    let out = project.smoke(&[]);
    assert_eq!(out.status.code(), Some(3), "{}", said(&out));
    assert!(said(&out).contains("screen cracked") && said(&out).contains("2 of 2 cells valid"), "{}", said(&out));
    assert!(!project.path().join("bad").exists(), "nothing was sent to it");
    let back = project.farmgate(&["device", "return", "bad"]);
    assert!(text(&back.stdout).contains("takes part in runs again"), "{}", said(&back));
    assert_eq!(project.smoke(&[]).status.code(), Some(0));
}

#[test]
fn a_device_that_fails_three_runs_in_a_row_is_put_aside_by_itself() {
    let offline = "[[transport.sim.fault]]\nkind = \"offline\"\nfrom-call = 1\ncalls = 1000000";
    let project = Project::with(&[("good", &Project::sim("good", "", "")), ("bad", &Project::sim("bad", "", offline))]);
    for run in 1..=3 {
        let out = project.smoke(&[]);
        assert_eq!(out.status.code(), Some(3), "{}", said(&out));
        assert_eq!(text(&out.stderr).contains("put in quarantine"), run == 3, "run {run}: {}", said(&out));
        let devices = project.report()["run"]["devices"].clone();
        assert!(devices[0]["failure"].as_str().unwrap().contains("offline"), "{}", devices[0]);
        assert!(devices[1]["failure"].is_null(), "one device's trouble costs nobody else");
    }
    let list = text(&project.farmgate(&["device", "list"]).stdout);
    assert!(list.contains("failed in 3 runs in a row"), "{list}");
}

#[test]
fn the_constraint_sheet_of_a_device_is_held_against_every_run() {
    let sheet = |limits: &str| format!("{}\n[constraints]\n{limits}\n", Project::sim("phone", "", ""));
    let project = Project::with(&[("phone", &sheet("memory-mb-max = 500\ndecode-tps-min = 1\npower-w-max = 4"))]);
    let run = || project.with_engine(&["run", "smoke", "--repetitions", "5", "--model", &model()]);
    let out = run();
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    let told = said(&out);
    assert!(told.contains("promised-peak") && told.contains("promised-deco"), "{told}");
    assert!(!told.contains("promised-power"), "what was not measured is not judged: {told}");
    // the sheet is part of the run: judged again, it says the same
    assert_eq!(project.farmgate(&["gate"]).status.code(), Some(0));
    project.write("devices/phone.toml", &sheet("memory-mb-max = 2"));
    let out = run();
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains("peak-rss-mb"), "{}", said(&out));
}

#[test]
fn a_lease_is_waited_for_and_can_be_taken_with_a_trace() {
    let project = Project::with(&[("phone", &Project::sim("phone", "", ""))]);
    project.smoke(&[]);
    let farmhand = lab::farmhand().path;
    let workdir = project.path().join("phone");
    let hold = |ttl_ms: &str| {
        let mut command = Command::new(&farmhand);
        command.args(["lease", "acquire", "--owner", "night-run@lab-2", "--ttl-ms", ttl_ms, "--workdir"]).arg(&workdir);
        assert!(command.output().unwrap().status.success());
    };
    hold("600000");
    let refused = project.smoke(&[]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(text(&refused.stderr).contains("in use by `night-run@lab-2`"), "{}", said(&refused));
    let impatient = project.smoke(&["--wait", "1s"]);
    assert_eq!(impatient.status.code(), Some(2), "{}", said(&impatient));
    assert!(text(&impatient.stderr).contains("still, after 1 s"), "{}", said(&impatient));
    let told = project.with_engine(&["device", "release", "phone"]);
    assert!(told.status.code() == Some(2) && text(&told.stderr).contains("night-run@lab-2"), "{}", said(&told));
    let taken = project.with_engine(&["device", "release", "phone", "--force"]);
    assert!(text(&taken.stdout).contains("the lease of `night-run@lab-2` was ended"), "{}", said(&taken));
    let state = std::fs::read_to_string(workdir.join("lease.json")).unwrap();
    assert!(state.contains("night-run@lab-2") && state.contains("release --force at "), "the trace: {state}");
    assert_eq!(project.smoke(&[]).status.code(), Some(0));
    // one that runs out while it is waited for
    hold("4000");
    let patient = project.smoke(&["--wait", "60s"]);
    assert_eq!(patient.status.code(), Some(0), "{}", said(&patient));
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_mends_it() {
    let project = Project::with(&[("here", &Project::sim("here", "", "root = \"WORKDIR/tree\""))]);
    let tree = |name: &str, content: &str| {
        project.write(&format!("tree/{name}"), content);
    };
    let cpu = "sys/devices/system/cpu/cpu0/cpufreq";
    tree(&format!("{cpu}/scaling_governor"), "powersave\n");
    tree(&format!("{cpu}/cpuinfo_max_freq"), "1800000\n");
    tree("sys/devices/system/cpu/cpu0/cpu_capacity", "1024\n");
    tree("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n");
    tree("sys/class/thermal/thermal_zone0/temp", "61000\n");
    tree("proc/meminfo", "MemTotal: 100000000 kB\n");
    let out = project.with_engine(&["device", "doctor", "here"]);
    assert!(out.status.success(), "{}", said(&out));
    let told = text(&out.stdout);
    assert!(told.contains("governor `powersave` on cores 0") && told.contains("echo performance"), "{told}");
    assert!(told.contains("cpu-thermal is at 61.0 °C"), "{told}");
    let json = project.with_engine(&["device", "doctor", "here", "--json"]);
    let found: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(found.as_array().unwrap().iter().all(|f| f["mend"].is_string()), "{found}");
}

#[test]
fn a_device_is_added_over_ssh_and_serves_at_once() {
    let Some(sshd) = lab::Sshd::start() else { return lab::skip("a_device_is_added_over_ssh", "no sshd is installed") };
    let project = Project::empty();
    let config = sshd.config();
    let (port, workdir) = (sshd.port.to_string(), project.path().join("remote"));
    let host = format!("{}@127.0.0.1", lab::login());
    let (key, known) = (config.identity_file.unwrap(), config.known_hosts_file.unwrap());
    let mut args =
        vec!["device", "add", "ssh", &host, "--port", &port, "--identity-file", &key, "--known-hosts-file", &known];
    args.extend(["--name", "board", "--label", "shelf-3", "--workdir", workdir.to_str().unwrap()]);
    let out = project.with_engine(&args);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(text(&out.stdout), "devices/board.toml\n");
    let list = text(&project.farmgate(&["device", "list", "shelf-3"]).stdout);
    assert!(list.contains("board") && list.contains("ssh 127.0.0.1"), "{list}");
    let again = project.with_engine(&args);
    assert!(again.status.code() == Some(2) && text(&again.stderr).contains("registered already"), "{}", said(&again));
    assert_eq!(project.smoke(&[]).status.code(), Some(0));
    // one that cannot be reached leaves no file
    let unreachable =
        project.with_engine(&["device", "add", "ssh", "nobody@127.0.0.1", "--port", "1", "--name", "gone"]);
    assert_eq!(unreachable.status.code(), Some(2), "{}", said(&unreachable));
    assert!(!project.path().join("devices/gone.toml").exists());
}
