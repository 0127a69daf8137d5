//! adb to emulated devices with a real adbd: cables that are cut, servers that restart, devices that reboot.

mod lab;

use farmgate::error::ExitCode;
use farmgate::transport::Transport;
use lab::device::{AdbServer, Device};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

/// A device and a server, or a loud skip.
macro_rules! device_and_server {
    ($test:literal) => {
        match Device::start("arm64", "cortex-a76", None).and_then(|device| Ok((device, AdbServer::start()?))) {
            Ok(both) => both,
            Err(why) => return lab::skip($test, &why),
        }
    };
}

/// Processes of the device whose command line holds this word.
fn at_work(transport: &mut dyn Transport, word: &str) -> usize {
    // a pattern that does not find itself
    let (head, last) = word.split_at(word.len() - 1);
    let script = "grep -l \"$1\" /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
    let said = transport.exec(&["sh", "-c", script, "sh", &format!("{head}[{last}]")], SOON).unwrap().stdout;
    String::from_utf8(said).unwrap().trim().parse().unwrap()
}

#[test]
fn a_cable_that_is_cut_ends_a_call_at_its_deadline_and_never_as_success() {
    let (device, server) = device_and_server!("a_cable_that_is_cut");
    let mut transport = server.connect(&device);
    let budget = Duration::from_secs(4);
    let started = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            device.cut();
        });
        transport.exec(&["sh", "-c", "echo begun; sleep 987"], budget).unwrap_err()
    });
    assert!(started.elapsed() < budget + Duration::from_secs(5), "took {:?}", started.elapsed());
    assert_eq!(error.exit(), ExitCode::Infra);
    assert!(error.what().contains("4000 ms") || error.what().contains("was lost"), "{error}");
    assert!(error.hint_text().is_some(), "{error}");
    let started = Instant::now();
    let error = transport.exec(&["true"], Duration::from_secs(3)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(7), "took {:?}", started.elapsed());
    assert_eq!(error.exit(), ExitCode::Infra);

    device.mend();
    let answer = transport.exec(&["echo", "back"], SOON).unwrap();
    assert_eq!((answer.status, &answer.stdout[..]), (0, &b"back\n"[..]));
    assert_eq!(at_work(&mut transport, "sleep 987"), 0, "what the lost link left at work was ended");
}

#[test]
fn a_link_that_dies_under_a_call_without_a_deadline_in_sight_is_no_success_either() {
    let (device, server) = device_and_server!("a_link_that_dies");
    let mut transport = server.connect(&device);
    let started = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            device.cut();
        });
        transport.exec(&["sh", "-c", "sleep 300"], Duration::from_secs(60)).unwrap_err()
    });
    assert!(started.elapsed() < Duration::from_secs(66), "took {:?}", started.elapsed());
    assert_eq!(error.exit(), ExitCode::Infra);
}

#[test]
fn a_push_goes_on_where_a_cut_cable_ended_it() {
    let (device, server) = device_and_server!("a_push_goes_on");
    let mut transport = server.connect(&device);
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("large");
    let content: Vec<u8> = (0..60_000_000u32).map(|i| (i / 3 + i / 50_000) as u8).collect();
    std::fs::write(&local, &content).unwrap();
    let remote = "/data/local/tmp/large";
    let mut pulled = false;
    let mut progress = |done: u64| {
        if done > 20 << 20 && !std::mem::replace(&mut pulled, true) {
            device.cut();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // adb takes ten seconds to notice
            std::thread::sleep(Duration::from_secs(16));
            device.mend();
        });
        transport.push(&local, remote, 0o640, Duration::from_secs(120), &mut progress).unwrap();
    });
    let arrived = std::fs::read(device.root().join(remote.trim_start_matches('/'))).unwrap();
    assert!(arrived == content, "{} bytes of {}", arrived.len(), content.len());
    assert!(pulled, "the cable was not cut");
}

#[test]
fn a_server_that_was_restarted_in_between_is_no_trouble() {
    let (device, mut server) = device_and_server!("a_server_that_was_restarted");
    let mut transport = server.connect(&device);
    assert_eq!(transport.exec(&["echo", "one"], SOON).unwrap().stdout, b"one\n");
    server.restart();
    assert_eq!(transport.exec(&["echo", "two"], SOON).unwrap().stdout, b"two\n");
}

#[test]
fn a_device_that_reboots_leaves_no_stale_connection() {
    let (mut device, server) = device_and_server!("a_device_that_reboots");
    let mut transport = server.connect(&device);
    device.reboot();
    let answer = transport.exec(&["sh", "-c", "echo up"], SOON);
    // the first call after it may be the one that finds out; the next works in any case
    assert!(answer.is_ok_and(|a| a.stdout == b"up\n") || transport.exec(&["true"], SOON).unwrap().status == 0);
    assert_eq!(server.connect(&device).exec(&["echo", "new"], SOON).unwrap().stdout, b"new\n");
}

#[test]
fn trouble_with_one_device_leaves_another_of_the_same_server_alone() {
    let (device, mut server) = device_and_server!("trouble_with_one_device");
    let other = Device::start("arm64", "cortex-a53", Some("sysfix-quad-a53")).unwrap();
    let mut transport = server.connect(&device);
    let mut calm = server.connect(&other);
    let answer = std::thread::scope(|scope| {
        let busy = scope.spawn(move || calm.exec(&["sh", "-c", "sleep 6; echo undisturbed"], SOON));
        std::thread::sleep(Duration::from_secs(1));
        device.cut();
        assert!(transport.exec(&["sleep", "654"], Duration::from_secs(1)).is_err());
        assert!(transport.exec(&["true"], Duration::from_secs(2)).is_err());
        device.mend();
        assert_eq!(transport.exec(&["true"], SOON).unwrap().status, 0);
        busy.join().unwrap()
    });
    assert_eq!(answer.unwrap().stdout, b"undisturbed\n");
    assert!(server.is_running(), "the server is the one that was started");
}

#[test]
fn a_device_shows_the_sys_that_it_was_given_and_sees_it_change() {
    let device = match Device::start("arm64", "cortex-a53", Some("sysfix-quad-a53")) {
        Ok(device) => device,
        Err(why) => return lab::skip("a_device_shows_the_sys", &why),
    };
    let mut transport = device.connect_ssh();
    let temperature = "/sys/class/thermal/thermal_zone0/temp";
    assert_eq!(transport.read_from(temperature, 0, 100, SOON).unwrap(), b"41250\n");
    std::fs::write(device.sys().join("class/thermal/thermal_zone0/temp"), "88000\n").unwrap();
    assert_eq!(transport.read_from(temperature, 0, 100, SOON).unwrap(), b"88000\n");
    let written = transport.exec(&["sh", "-c", "echo 1 > \"$1\"", "sh", temperature], SOON).unwrap();
    assert_ne!(written.status, 0, "the device cannot change it");
    assert_eq!(transport.exec(&["uname", "-m"], SOON).unwrap().stdout, b"aarch64\n");
    let cpus = transport.exec(&["grep", "-c", "^processor", "/proc/cpuinfo"], SOON).unwrap();
    assert_eq!(cpus.stdout, b"4\n");
}

#[test]
fn an_address_where_no_adbd_listens_is_refused_with_its_reason() {
    let (device, server) = device_and_server!("an_address_where_no_adbd_listens");
    let mut config = server.config(&format!("{}:5556", device.ip()));
    config.connect_timeout_ms = 1_000;
    let error = farmgate::transport::AdbTransport::connect(&config).err().unwrap();
    assert!(error.what().contains("Connection refused"), "{error}");
    assert!(error.hint_text().is_some(), "{error}");
}

#[test]
fn devices_of_a_dead_process_are_removed_and_a_live_one_is_not() {
    let device = match Device::start("arm64", "-", None) {
        Ok(device) => device,
        Err(why) => return lab::skip("devices_of_a_dead_process", &why),
    };
    let mut transport = device.connect_ssh();
    let second = Device::start("armhf", "-", None).unwrap();
    let root = second.root();
    assert_eq!(second.connect_ssh().exec(&["uname", "-m"], SOON).unwrap().stdout, b"armv7l\n");
    assert_ne!(device.ip(), second.ip());
    drop(second);
    assert!(!root.exists(), "nothing is left of it");
    assert_eq!(transport.exec(&["true"], SOON).unwrap().status, 0);
}
