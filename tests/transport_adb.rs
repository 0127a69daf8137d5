//! adb against servers that only look like one: how each failure is told, and that nothing of others is touched.

mod lab;

use farmgate::device::AdbConfig;
use farmgate::error::{Error, ExitCode};
use farmgate::transport::{AdbTransport, Transport};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// A server that answers from a table, and a client whose device is this machine.
struct Stage {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    folder: tempfile::TempDir,
}

/// What the server says to a service; it may differ from time to time.
type Answer = Box<dyn FnMut(&str) -> Option<String> + Send>;

fn okay(text: &str) -> Option<String> {
    Some(format!("OKAY{:04x}{text}", text.len()))
}

/// A client in a few lines of shell: `version` as of 34, and `shell` with the last argument as the command line.
const CLIENT: &str = r#"#!/bin/sh
if [ "$1" = version ]; then echo "Android Debug Bridge version 1.0.41"; exit 0; fi
echo "$*" >> "$0.calls"
for last; do :; done
"#;

impl Stage {
    /// `device` is what `shell` of the client does; `answer` is asked first, and what it leaves open is as of a good server
    /// with one phone.
    fn with(device: &str, mut answer: Answer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let client = folder.path().join("adb");
        std::fs::write(&client, format!("{CLIENT}{device}\n")).unwrap();
        std::fs::set_permissions(&client, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = asked.clone();
        std::thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                let mut digits = [0u8; 4];
                if socket.read_exact(&mut digits).is_err() {
                    continue;
                }
                let length = usize::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap();
                let mut service = vec![0u8; length];
                socket.read_exact(&mut service).unwrap();
                let service = String::from_utf8(service).unwrap();
                notes.lock().unwrap().push(service.clone());
                let usual = || match service.as_str() {
                    "host:version" => okay("0029"),
                    "host:devices" => okay("phone\tdevice\nother\tdevice\n"),
                    "host-serial:phone:features" => okay("cmd,shell_v2"),
                    _ => Some("FAIL0004what".to_owned()),
                };
                let said = answer(&service).or_else(usual).unwrap_or_default();
                let _ = socket.write_all(said.as_bytes());
            }
        });
        Self { port, asked, folder }
    }

    fn config(&self, serial: &str) -> AdbConfig {
        AdbConfig {
            serial: serial.into(),
            program: self.folder.path().join("adb").display().to_string(),
            server_port: Some(self.port),
            connect_timeout_ms: 1_500,
        }
    }

    fn refused(&self, serial: &str) -> Error {
        let started = Instant::now();
        let error = AdbTransport::connect(&self.config(serial)).err().expect("this is refused");
        assert!(started.elapsed() < Duration::from_secs(8), "took {:?}", started.elapsed());
        assert!(error.hint_text().is_some(), "{error}");
        assert_eq!(error.exit(), ExitCode::Infra);
        assert_eq!(self.shells(), 0, "no command was given to a device that is not ready");
        error
    }

    /// What was asked of the server.
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// How often the client was called for more than its version.
    fn shells(&self) -> usize {
        std::fs::read_to_string(self.folder.path().join("adb.calls")).unwrap_or_default().lines().count()
    }
}

/// A device that is this machine.
const HERE: &str = "exec sh -c \"$last\"";

fn seen_as(state: &'static str) -> Stage {
    Stage::with(
        HERE,
        Box::new(move |service| if service == "host:devices" { okay(&format!("phone\t{state}\n")) } else { None }),
    )
}

fn refused(config: AdbConfig) -> Error {
    AdbTransport::connect(&config).err().expect("this is refused")
}

#[test]
fn a_missing_client_says_what_to_install() {
    let config = |program: &str| AdbConfig {
        serial: "phone".into(),
        program: program.into(),
        server_port: Some(1),
        connect_timeout_ms: 1_000,
    };
    let error = refused(config("/no/such/adb"));
    assert!(error.what().contains("`/no/such/adb` was not found"), "{error}");
    assert!(error.hint_text().unwrap().contains("platform-tools"), "{error}");
    assert!(refused(config("true")).what().contains("does not speak as adb does"));
}

#[test]
fn a_server_of_another_version_is_refused_and_never_touched() {
    let stage = Stage::with(HERE, Box::new(|service| if service == "host:version" { okay("0028") } else { None }));
    let error = stage.refused("phone");
    assert!(error.what().contains("version 40") && error.what().contains("version 41"), "{error}");
    assert!(error.hint_text().unwrap().contains("`server-port`"), "{error}");
    assert_eq!(stage.asked(), ["host:version"]);
}

#[test]
fn a_server_that_changes_its_version_in_between_is_not_ended_either() {
    let clash = Arc::new(Mutex::new(false));
    let now = clash.clone();
    let version =
        move |service: &str| if service == "host:version" && *now.lock().unwrap() { okay("0028") } else { None };
    let stage = Stage::with(HERE, Box::new(version));
    let mut transport = AdbTransport::connect(&stage.config("phone")).unwrap();
    let before = stage.shells();
    *clash.lock().unwrap() = true;
    assert!(transport.exec(&["true"], SOON).unwrap_err().what().contains("version 40"));
    assert_eq!(stage.shells(), before, "the client was not called");
}

#[test]
fn a_port_where_no_adb_server_listens_is_told_apart_from_one_that_is_silent() {
    let http = Stage::with(HERE, Box::new(|_| Some("HTTP/1.1 400 Bad Request\r\n\r\n".into())));
    assert!(http.refused("phone").what().contains("no working adb server: it answers `HTTP`"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = AdbConfig { server_port: Some(silent.local_addr().unwrap().port()), ..http.config("phone") };
    assert!(refused(config).what().contains("it says nothing"));
    let gone = AdbConfig { server_port: Some(lab::free_port()), ..http.config("phone") };
    let error = refused(gone);
    assert!(error.what().contains("no adb server"), "{error}");
    assert!(error.hint_text().unwrap().contains("adb start-server"), "{error}");
}

#[test]
fn each_state_of_a_device_has_a_message_and_a_hint_of_its_own() {
    let table = [
        ("unauthorized", "unauthorized", "allow USB debugging"),
        ("no permissions (missing udev rules?)", "no permissions", "udev"),
        ("recovery", "state `recovery`", "boot it into Android"),
        ("sideload", "state `sideload`", "boot it into Android"),
        ("offline", "is offline", "reconnect"),
        ("authorizing", "stays in the state `authorizing`", "unlock"),
        ("\x1b[2Jx", "\\u{1b}[2Jx", "boot it"),
    ];
    for (state, what, hint) in table {
        let error = seen_as(state).refused("phone");
        assert!(error.what().contains(what) && error.hint_text().unwrap().contains(hint), "{state}: {error}");
    }
}

#[test]
fn an_offline_device_is_told_to_reconnect_alone_and_not_without_end() {
    let stage = seen_as("offline");
    stage.refused("phone");
    let asked = stage.asked();
    let reconnects = asked.iter().filter(|s| *s == "host-serial:phone:reconnect").count();
    assert!((2..=8).contains(&reconnects), "{reconnects} in 1.5 s");
    let known = ["host:version", "host:devices", "host-serial:phone:reconnect"];
    assert!(asked.iter().all(|s| known.contains(&s.as_str())), "{asked:?}");
}

#[test]
fn a_device_that_comes_back_after_a_reconnect_is_used() {
    let mut looks = 0;
    let answer = move |service: &str| match service {
        "host:devices" => {
            looks += 1;
            okay(if looks < 3 { "phone\toffline\n" } else { "phone\tdevice\n" })
        }
        "host-serial:phone:reconnect" => okay("reconnecting phone [offline]\n"),
        _ => None,
    };
    let stage = Stage::with(HERE, Box::new(answer));
    let mut transport = AdbTransport::connect(&stage.config("phone")).unwrap();
    assert_eq!(transport.exec(&["echo", "hi"], SOON).unwrap().stdout, b"hi\n");
}

#[test]
fn a_serial_that_nobody_has_and_one_that_two_have_say_so() {
    let error = Stage::with(HERE, Box::new(|_| None)).refused("phne");
    assert!(error.what().contains("no device `phne`; it sees phone, other"), "{error}");
    let twice = |service: &str| if service == "host:devices" { okay("phone\tdevice\nphone\tdevice\n") } else { None };
    assert!(Stage::with(HERE, Box::new(twice)).refused("phone").what().contains("several devices"));
}

#[test]
fn a_failed_connect_is_read_from_its_text_as_it_looks_like_success() {
    let answer = |service: &str| match service {
        "host:devices" => okay(""),
        "host:connect:10.0.0.9:5555" => okay("failed to connect to '10.0.0.9:5555': Connection refused"),
        _ => None,
    };
    let stage = Stage::with(HERE, Box::new(answer));
    let error = stage.refused("10.0.0.9:5555");
    assert!(error.what().contains("Connection refused") && error.what().contains("10.0.0.9:5555"), "{error}");
    assert!(error.hint_text().unwrap().contains("network"), "{error}");
}

#[test]
fn a_connection_that_is_already_there_but_stale_is_made_anew_for_this_serial_alone() {
    // the device answers only once the server has dropped the old connection
    let folder = tempfile::tempdir().unwrap();
    let fresh = folder.path().join("fresh");
    let mark = fresh.clone();
    let answer = move |service: &str| match service {
        "host:devices" => okay("10.0.0.9:5555\tdevice\nother\tdevice\n"),
        "host:disconnect:10.0.0.9:5555" => {
            std::fs::write(&mark, "").unwrap();
            okay("disconnected 10.0.0.9:5555")
        }
        "host:connect:10.0.0.9:5555" => okay("connected to 10.0.0.9:5555"),
        "host-serial:10.0.0.9:5555:features" => okay("shell_v2"),
        _ => None,
    };
    let device = format!("if [ -e {} ]; then {HERE}; fi\nexit 0", fresh.display());
    let stage = Stage::with(&device, Box::new(answer));
    let mut transport = AdbTransport::connect(&stage.config("10.0.0.9:5555")).unwrap();
    assert_eq!(transport.exec(&["echo", "hi"], SOON).unwrap().stdout, b"hi\n");
    assert!(stage.asked().iter().all(|s| !s.contains("other") && !s.contains("kill")), "{:?}", stage.asked());
}

#[test]
fn a_client_that_ends_well_without_a_word_is_a_lost_link_and_never_success() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut");
    let device = format!("if [ -e {} ]; then exit 0; fi\n{HERE}", cut.display());
    let stage = Stage::with(&device, Box::new(|_| None));
    let mut transport = AdbTransport::connect(&stage.config("phone")).unwrap();
    std::fs::write(&cut, "").unwrap();
    let error = transport.exec(&["true"], SOON).unwrap_err();
    assert_eq!(error.exit(), ExitCode::Infra);
    assert!(error.what().contains("was lost") && error.what().contains("status 0"), "{error}");
    std::fs::remove_file(&cut).unwrap();
    assert_eq!(transport.exec(&["echo", "back"], SOON).unwrap().stdout, b"back\n");
}

#[test]
fn a_device_whose_shell_mixes_its_streams_is_too_old() {
    let old = |service: &str| if service.ends_with(":features") { okay("cmd,stat_v2") } else { None };
    let stage = Stage::with(HERE, Box::new(old));
    let error = AdbTransport::connect(&stage.config("phone")).err().unwrap();
    assert!(error.what().contains("too old") && error.hint_text().unwrap().contains("Android 7"), "{error}");
}
