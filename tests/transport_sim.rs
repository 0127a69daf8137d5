//! Simulated devices: every fault that their files can script, as a transport shows it.

use farmgate::device::{SimConfig, SimFault};
use farmgate::error::ExitCode;
use farmgate::transport::{SimTransport, Transport};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

fn with(faults: Vec<SimFault>) -> SimTransport {
    SimTransport::connect("phone", &SimConfig { faults, ..SimConfig::default() })
}

fn said(transport: &mut SimTransport, words: &[&str]) -> Vec<u8> {
    transport.exec(words, MINUTE).unwrap().stdout
}

/// A folder with a file of so many bytes.
fn file(bytes: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; bytes]).unwrap();
    (folder, path)
}

#[test]
fn a_link_that_is_lost_in_a_push_leaves_nothing_under_the_name() {
    let (folder, path) = file(10_000);
    let mut sim = with(vec![SimFault::LinkLost { matching: "push".into(), at_call: 1, after_bytes: 4_096 }]);
    let to = folder.path().join("to");
    let mut seen = Vec::new();
    assert_eq!(said(&mut sim, &["echo", "there"]), b"there\n");
    let error = sim.push(&path, to.to_str().unwrap(), 0o600, MINUTE, &mut |done| seen.push(done)).unwrap_err();
    assert_eq!((error.exit(), seen), (ExitCode::Infra, vec![4_096]));
    assert!(error.what().contains("sim phone") && error.what().contains("4096 of 10000"), "{error}");
    assert!(!to.exists());
    sim.push(&path, to.to_str().unwrap(), 0o600, MINUTE, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(to).unwrap().len(), 10_000);
}

#[test]
fn a_device_is_offline_for_a_while_and_back() {
    let mut sim = with(vec![SimFault::Offline { matching: String::new(), from_call: 2, calls: 3 }]);
    let answers: Vec<bool> = (0..6).map(|_| sim.exec(&["true"], MINUTE).is_ok()).collect();
    assert_eq!(answers, [true, false, false, false, true, true]);
}

#[test]
fn a_call_that_hangs_costs_its_deadline_in_virtual_time_alone() {
    let mut sim = with(vec![SimFault::Hang { matching: "sleep".into(), at_call: 1 }]);
    let begun = Instant::now();
    let error = sim.exec(&["sleep", "1000"], 10 * MINUTE).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(20) && sim.elapsed() == 10 * MINUTE, "{:?}", sim.elapsed());
    assert!(error.what().contains("600000 ms") && error.exit() == ExitCode::Infra, "{error}");
}

#[test]
fn a_slow_link_passes_its_deadline_without_anybody_waiting() {
    let (folder, path) = file(1_000_000);
    let mut sim = SimTransport::connect("slow", &SimConfig { link_bytes_per_s: 10_000, ..SimConfig::default() });
    let to = folder.path().join("to");
    let begun = Instant::now();
    let error = sim.push(&path, to.to_str().unwrap(), 0o600, MINUTE, &mut |_| {}).unwrap_err();
    assert!(error.what().contains("60000 ms") && !to.exists(), "{error}");
    sim.push(&path, to.to_str().unwrap(), 0o600, 2 * MINUTE, &mut |_| {}).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(sim.elapsed(), MINUTE + Duration::from_secs(100));
}

#[test]
fn a_full_medium_is_full_for_every_push_that_does_not_fit() {
    let (folder, path) = file(600);
    let mut sim = with(vec![SimFault::DiskFull { after_bytes: 1_000 }]);
    let mut push = |name: &str| {
        let to = folder.path().join(name);
        sim.push(&path, to.to_str().unwrap(), 0o600, MINUTE, &mut |_| {})
    };
    push("one").unwrap();
    for name in ["two", "three"] {
        let error = push(name).unwrap_err();
        assert!(error.what().contains("No space left on device") && error.what().contains(name), "{error}");
    }
    assert!(!folder.path().join("two").exists());
}

#[test]
fn a_clock_jumps_and_stays_there() {
    let mut sim = with(vec![SimFault::ClockJump { matching: "date".into(), at_call: 2, jump_ms: -3_600_000 }]);
    let mut seconds = || {
        let said = said(&mut sim, &["date", "+%s.%N"]);
        String::from_utf8(said).unwrap().trim().parse::<f64>().unwrap()
    };
    let (first, second, third) = (seconds(), seconds(), seconds());
    assert!((3_500.0..3_700.0).contains(&(first - second)), "{first} {second}");
    assert!((0.0..100.0).contains(&(third - second)), "{second} {third}");
}

#[test]
fn a_device_lies_about_a_status_and_talks_garbage() {
    let mut sim = with(vec![
        SimFault::LyingStatus { matching: "false".into(), at_call: 1, status: 0 },
        SimFault::Garbage { matching: "echo".into(), at_call: 1 },
    ]);
    assert_eq!(sim.exec(&["false"], MINUTE).unwrap().status, 0);
    assert_eq!(sim.exec(&["false"], MINUTE).unwrap().status, 1);
    assert!(said(&mut sim, &["echo", "x"]).starts_with(b"\x1b[2J"));
    assert_eq!(said(&mut sim, &["echo", "x"]), b"x\n");
}
