//! `farmgate device add`: reach a device, ask what it is, and write its file.

use super::{Done, device};
use crate::cli::{AddVerb, NewDevice};
use crate::config::Folders;
use crate::device::{AdbConfig, Device, Inventory, SshConfig, TransportConfig};
use crate::error::{Error, ExitCode, Result};
use crate::report::terminal;
use crate::target::Architecture;
use farmgate_engine::protocol::Fingerprint;
use std::fmt::Write as _;
use std::io::Write as _;

/// Characters of a name that is made from a host or serial.
const NAME_CHARS_MAX: usize = 40;

/// `farmgate device add`.
pub fn add(folders: &Folders, how: &AddVerb) -> Result<Done> {
    let (transport, new, own_name) = match how {
        AddVerb::Ssh { host, port, identity_file, known_hosts_file, new } => {
            let (user, host) = match host.split_once('@') {
                Some((user, host)) => (Some(user.to_owned()), host.to_owned()),
                None => (None, host.clone()),
            };
            let ssh = SshConfig {
                host: host.clone(),
                port: *port,
                user,
                identity_file: identity_file.clone(),
                known_hosts_file: known_hosts_file.clone(),
                ..SshConfig::to("")
            };
            (TransportConfig::Ssh(ssh), new, host)
        }
        AddVerb::Adb { serial, program, server_port, new } => {
            let standard = AdbConfig::to(serial);
            let program = program.clone().unwrap_or(standard.program.clone());
            (TransportConfig::Adb(AdbConfig { program, server_port: *server_port, ..standard }), new, serial.clone())
        }
    };
    let name = new.name.clone().unwrap_or_else(|| name_from(&own_name));
    let file = folders.devices.join(format!("{name}.toml"));
    let is_new = !folders.devices.exists();
    if !is_new {
        refuse_a_second(&Inventory::load(folders)?, &name, &transport)?;
    }
    let mut device = Device::new(&name, transport, &file.display().to_string());
    device.workdir.clone_from(&new.workdir);
    // what is typed is checked as what is in a file, before anything is reached
    check(&device)?;
    let session = device::open(folders, &device, new.artefacts.as_deref(), "device add")?;
    let fingerprint = session.fingerprint().clone();
    session.close()?;
    describe(&mut device, &fingerprint, new);
    let text = check(&device)?;
    write(folders, &file, &text)?;
    if is_new {
        terminal::note(&format!(
            "{} is new: only devices that have a file in it are registered now; this machine needs one with \
             `[transport.local]`",
            folders.devices.display()
        ));
    }
    terminal::note(&format!("`farmgate device doctor {name}` says what will spoil measurements there"));
    Ok(Done::ok(format!("{}\n", file.display())))
}

fn refuse_a_second(inventory: &Inventory, name: &str, transport: &TransportConfig) -> Result<()> {
    for other in inventory.devices() {
        let what = match (other.name == name, other.transport == *transport) {
            (true, _) => format!("device `{name}` is registered already"),
            (_, true) => format!("this device is registered already, as `{}`", other.name),
            _ => continue,
        };
        return Err(Error::usage(what)
            .in_file(std::path::Path::new(&other.file))
            .hint("edit its file, or give another --name"));
    }
    Ok(())
}

/// Letters, digits and single dashes of a host or serial.
fn name_from(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().take(NAME_CHARS_MAX) {
        match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() => name.push(c),
            _ if !name.is_empty() && !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() { "device".to_owned() } else { name.to_owned() }
}

/// What the probe found, in the words of the inventory.
fn describe(device: &mut Device, found: &Fingerprint, new: &NewDevice) {
    let architecture = Architecture::of_target(&found.target);
    device.target = architecture.map(|a| a.name().to_owned());
    let mut labels: Vec<String> = architecture.iter().map(|a| a.name().replace('_', "-")).collect();
    labels.push(if matches!(device.transport, TransportConfig::Adb(_)) { "phone" } else { "board" }.to_owned());
    if found.clusters.len() > 1 {
        labels.push("big-little".to_owned());
    }
    labels.extend(found.virtualisation.iter().map(|_| "virtual".to_owned()));
    labels.extend(new.label.iter().cloned());
    labels.sort();
    labels.dedup();
    device.labels = labels;
    device.memory_mb = Some(found.memory_bytes >> 20).filter(|mb| *mb > 0);
    let words = [found.product.as_deref().unwrap_or_default(), &found.soc, &found.os_build];
    let words: Vec<String> = words.iter().filter(|w| !w.is_empty()).map(|w| one_line(w)).collect();
    device.remarks = Some(words.join(", ")).filter(|text| !text.is_empty());
}

/// Text of a device as one line of a file.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The file's text, read back as it will be read from now on.
fn check(device: &Device) -> Result<String> {
    let text = file_text(device)?;
    let document = crate::config::Document::new(&device.file, &text);
    Device::from_document(&document)?;
    Ok(text)
}

fn file_text(device: &Device) -> Result<String> {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut out = String::from("# Every key is explained in devices/README.md of farmgate.\n");
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(out, "{key} = {value}");
        }
    };
    let labels: Vec<String> = device.labels.iter().map(|l| quoted(l)).collect();
    line("labels", Some(format!("[{}]", labels.join(", "))));
    line("memory-mb", device.memory_mb.map(|mb| mb.to_string()));
    line("workdir", device.workdir.as_deref().map(quoted));
    line("target", device.target.as_deref().map(quoted));
    line("remarks", device.remarks.as_deref().map(quoted));
    let _ = writeln!(out, "\n[transport.{}]", device.transport.kind());
    let keys = match &device.transport {
        TransportConfig::Ssh(ssh) => toml::Table::try_from(ssh),
        TransportConfig::Adb(adb) => toml::Table::try_from(adb),
        TransportConfig::Local(_) | TransportConfig::Sim(_) => Ok(toml::Table::new()),
    };
    let keys = keys.map_err(|e| Error::bug(format!("cannot write the transport: {e}")))?;
    out.push_str(&keys.to_string());
    Ok(out)
}

/// The file appears whole, and never over another.
fn write(folders: &Folders, file: &std::path::Path, text: &str) -> Result<()> {
    let fault = |e: &std::io::Error| {
        Error::io("cannot write the device's file", file, e)
            .with_exit(ExitCode::Usage)
            .hint("check the rights of devices/, or give another --name")
    };
    std::fs::create_dir_all(&folders.devices).map_err(|e| fault(&e))?;
    let mut draft = tempfile::NamedTempFile::new_in(&folders.devices).map_err(|e| fault(&e))?;
    draft.write_all(text.as_bytes()).and_then(|()| draft.as_file().sync_all()).map_err(|e| fault(&e))?;
    draft.persist_noclobber(file).map_err(|e| fault(&e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_any_host_or_serial() {
        assert_eq!(name_from("pi@lab-3.example.org"), "pi-lab-3-example-org");
        assert_eq!(name_from("10.0.7.31:5555"), "10-0-7-31-5555");
        assert_eq!(name_from("R5CT10ABCDE"), "r5ct10abcde");
        assert_eq!(name_from("::/é"), "device");
    }

    #[test]
    fn what_a_device_says_of_itself_cannot_break_its_file() {
        let transport = TransportConfig::Adb(AdbConfig::to("R5\"CT"));
        let mut device = Device::new("phone", transport, "devices/phone.toml");
        let found = Fingerprint {
            target: "aarch64-unknown-linux-gnu".into(),
            soc: "\"]\n[transport.local]\nx = '''\u{1b}[2J".into(),
            memory_bytes: 8 << 30,
            ..Fingerprint::default()
        };
        let new = NewDevice { name: None, label: vec!["old".into()], workdir: None, artefacts: None };
        describe(&mut device, &found, &new);
        let text = check(&device).unwrap();
        let document = crate::config::Document::new("devices/phone.toml", &text);
        let read = Device::from_document(&document).unwrap();
        assert_eq!(read, device, "{text}");
        assert_eq!((read.memory_mb, read.target.as_deref()), (Some(8192), Some("aarch64")));
        assert_eq!(read.labels, ["aarch64", "old", "phone"]);
    }
}
