//! The inventory: every device that is registered under `devices/`, and how it is reached.

use crate::config::{self, Checker, Document, Folders, shipped};
use crate::error::{Error, Place, Result, nearest};
use crate::target::Architecture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Spanned;

/// Most labels of one device.
const LABELS_MAX: usize = 64;

/// A registered device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// Name, unique in the inventory, `[a-z0-9-]`.
    pub name: String,
    /// How it is reached.
    pub transport: TransportConfig,
    /// Words that rules choose devices by.
    pub labels: Vec<String>,
    /// Class of devices that a release decision is made for.
    pub tier: Option<String>,
    /// Share of the installed base that it stands for, per cent.
    pub share_percent: Option<f64>,
    /// Physical memory, MiB, when the inventory states it.
    pub memory_mb: Option<u64>,
    /// Folder on the device that farmgate may use; `None` leaves the choice to the transport.
    pub workdir: Option<String>,
    /// Rust target, or the short name of an architecture; `None` means that the device is asked.
    pub target: Option<String>,
    /// One line for the people of the lab.
    pub remarks: Option<String>,
    /// File that registers it, as errors show it.
    pub file: String,
}

/// How a device is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportConfig {
    /// The machine that farmgate runs on.
    Local(LocalConfig),
    /// A machine with an ssh server.
    Ssh(SshConfig),
    /// A phone or tablet behind adb.
    Adb(AdbConfig),
}

impl TransportConfig {
    /// `local`, `ssh` or `adb`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Ssh(_) => "ssh",
            Self::Adb(_) => "adb",
        }
    }
}

impl std::fmt::Display for TransportConfig {
    /// `local`, `ssh HOST` or `adb SERIAL`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(_) => f.write_str(self.kind()),
            Self::Ssh(ssh) => write!(f, "{} {}", self.kind(), ssh.host),
            Self::Adb(adb) => write!(f, "{} {}", self.kind(), adb.serial),
        }
    }
}

/// Keys of `[transport.local]`: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LocalConfig {}

/// Keys of `[transport.ssh]`. What is absent is taken from `~/.ssh/config`, then from ssh's own defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SshConfig {
    /// Host name, address or alias of `~/.ssh/config`.
    pub host: String,
    /// TCP port.
    #[serde(default)]
    pub port: Option<u16>,
    /// Login.
    #[serde(default)]
    pub user: Option<String>,
    /// Private key, as typed; `~/` is not expanded here.
    #[serde(default)]
    pub identity_file: Option<String>,
    /// Host keys that are trusted, as typed; `~/` is not expanded here.
    #[serde(default)]
    pub known_hosts_file: Option<String>,
    /// Budget for connecting and logging in, milliseconds.
    #[serde(default = "connect_timeout_ms_default")]
    pub connect_timeout_ms: u64,
}

/// Keys of `[transport.adb]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AdbConfig {
    /// Serial as `adb devices` shows it, or `HOST:PORT` of a device on the network.
    pub serial: String,
    /// The adb client; found through `PATH` when it has no slash.
    #[serde(default = "adb_program_default")]
    pub program: String,
    /// TCP port of the adb server on this machine; `None` means `ANDROID_ADB_SERVER_PORT`, then 5037.
    #[serde(default)]
    pub server_port: Option<u16>,
    /// Budget for reaching the device, milliseconds.
    #[serde(default = "connect_timeout_ms_default")]
    pub connect_timeout_ms: u64,
}

fn adb_program_default() -> String {
    "adb".to_owned()
}

fn connect_timeout_ms_default() -> u64 {
    10_000
}

/// A device file as typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DeviceToml {
    name: Option<Spanned<String>>,
    #[serde(default)]
    labels: Vec<Spanned<String>>,
    tier: Option<Spanned<String>>,
    share_percent: Option<Spanned<f64>>,
    memory_mb: Option<Spanned<u64>>,
    workdir: Option<Spanned<String>>,
    target: Option<Spanned<String>>,
    remarks: Option<Spanned<String>>,
    transport: Spanned<TransportConfig>,
}

impl Device {
    /// Reads one device file.
    ///
    /// # Errors
    /// Usage error that names every fault of the file, the first with path:line:column.
    pub fn from_document(document: &Document) -> Result<Self> {
        let (device, _, faults) = read_device(document)?;
        config::refuse_faults(faults)?;
        Ok(device)
    }
}

fn read_device(document: &Document) -> Result<(Device, Place, Vec<Error>)> {
    let typed: DeviceToml = document.parse()?;
    let mut check = Checker::new(document);
    let (name, name_span) = check.name(typed.name.as_ref(), "device");
    check_labels(&mut check, &typed.labels);
    if let Some(tier) = &typed.tier {
        check.name_fits(tier.get_ref(), tier.span(), "tier");
    }
    check.within_if_there("share-percent", typed.share_percent.as_ref(), 0.0..=100.0);
    check.within_if_there("memory-mb", typed.memory_mb.as_ref(), 1..=1 << 30);
    check_paths(&mut check, &typed);
    if let Some(remarks) = &typed.remarks {
        check.line("remarks", remarks);
    }
    check_transport(&mut check, &typed.transport);
    let bare = |value: Option<Spanned<String>>| value.map(Spanned::into_inner);
    let device = Device {
        name,
        transport: typed.transport.into_inner(),
        labels: typed.labels.into_iter().map(Spanned::into_inner).collect(),
        tier: bare(typed.tier),
        share_percent: typed.share_percent.map(Spanned::into_inner),
        memory_mb: typed.memory_mb.map(Spanned::into_inner),
        workdir: bare(typed.workdir),
        target: bare(typed.target),
        remarks: bare(typed.remarks),
        file: document.path().to_owned(),
    };
    Ok((device, document.place(name_span.start), check.into_faults()))
}

fn check_labels(check: &mut Checker<'_>, labels: &[Spanned<String>]) {
    if let Some(beyond) = labels.get(LABELS_MAX) {
        check.fault(beyond.span(), format!("more than {LABELS_MAX} labels"), "keep the labels that rules use");
    }
    for (i, label) in labels.iter().enumerate() {
        let text = label.get_ref();
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > config::NAME_CHARS_MAX || !text.chars().all(word) {
            check.fault(
                label.span(),
                format!("`{}` is not a label", config::printable(text)),
                "labels are words of a-z, 0-9, -, _ and .",
            );
        }
        if labels[..i].iter().any(|l| l.get_ref() == text) {
            check.fault(label.span(), format!("label `{}` is there twice", config::printable(text)), "keep one");
        }
    }
}

fn check_paths(check: &mut Checker<'_>, typed: &DeviceToml) {
    if let Some(workdir) = &typed.workdir {
        check.line("workdir", workdir);
        if workdir.get_ref().split('/').any(|part| part == "..") {
            check.fault(workdir.span(), "`workdir` leads upwards with `..`", "give the folder's own path");
        }
        // a relative one would mean another folder for each user and transport
        if !workdir.get_ref().starts_with(['/', '~']) {
            check.fault(workdir.span(), "`workdir` is a relative path", "begin it with `/`, or with `~/` for the home");
        }
        if workdir.get_ref().trim() == "/" {
            check.fault(workdir.span(), "`workdir` is the root folder", "give a folder of farmgate's own");
        }
    }
    if let Some(target) = &typed.target {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        let text = target.get_ref();
        let is_short = Architecture::ALL.iter().any(|a| a.name() == text);
        let is_target = is_short || text.split('-').count() >= 3;
        if !is_target || text.len() > config::NAME_CHARS_MAX || !text.chars().all(fits) {
            check.fault(
                target.span(),
                format!("`{}` is not a Rust target", config::printable(text)),
                "for instance \"aarch64-unknown-linux-musl\", or in short \"aarch64\"; `rustc --print target-list` shows all",
            );
        }
    }
}

fn check_transport(check: &mut Checker<'_>, transport: &Spanned<TransportConfig>) {
    let span = transport.span();
    let (texts, port, connect_timeout_ms) = match transport.get_ref() {
        TransportConfig::Local(_) => return,
        TransportConfig::Ssh(ssh) => {
            let texts = vec![
                ("host", Some(&ssh.host)),
                ("user", ssh.user.as_ref()),
                ("identity-file", ssh.identity_file.as_ref()),
                ("known-hosts-file", ssh.known_hosts_file.as_ref()),
            ];
            (texts, ("port", ssh.port, "ssh servers listen on 22"), ssh.connect_timeout_ms)
        }
        TransportConfig::Adb(adb) => {
            let texts = vec![("serial", Some(&adb.serial)), ("program", Some(&adb.program))];
            (texts, ("server-port", adb.server_port, "adb servers listen on 5037"), adb.connect_timeout_ms)
        }
    };
    let kind = transport.get_ref().kind();
    for (key, text) in texts {
        let Some(text) = text else { continue };
        let spaced = matches!(key, "host" | "user" | "serial") && text.contains(char::is_whitespace);
        if text.trim().is_empty() || text.chars().any(char::is_control) || spaced || text.starts_with('-') {
            check.fault(
                span.clone(),
                format!("`{key}` of this {kind} transport cannot be `{}`", config::printable(text)),
                format!("give `{key}` a text that is not empty, does not begin with - and has no control characters"),
            );
        }
    }
    let (key, port, usual) = port;
    if port == Some(0) {
        check.fault(
            span.clone(),
            format!("`{key}` of this {kind} transport is 0"),
            format!("{usual} unless set otherwise"),
        );
    }
    check.within(span, "connect-timeout-ms", &connect_timeout_ms, 100..=600_000);
}

/// All registered devices, by name.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    devices: Vec<Device>,
    shown: String,
}

impl Inventory {
    /// Reads every device file; without a `devices/` folder the built-in `local` alone.
    ///
    /// # Errors
    /// Usage error that names every fault of every file, the first with path:line:column.
    pub fn load(folders: &Folders) -> Result<Self> {
        let own = folders.devices.symlink_metadata().is_ok();
        let gathered = config::gather(&folders.devices, if own { &[] } else { shipped::DEVICES });
        let mut faults = gathered.faults;
        let mut first_at: BTreeMap<String, Place> = BTreeMap::new();
        let mut devices = Vec::new();
        for document in &gathered.documents {
            match read_device(document) {
                Ok((device, place, found)) => {
                    faults.extend(found);
                    if let Some(other) = first_at.get(&device.name) {
                        faults.push(
                            Error::usage(format!("device `{}` is registered twice", device.name))
                                .at(place)
                                .hint(format!("the other one is at {other}; give one of them another `name`")),
                        );
                    } else {
                        first_at.insert(device.name.clone(), place);
                    }
                    devices.push(device);
                }
                Err(fault) => faults.push(fault),
            }
        }
        config::refuse_faults(faults)?;
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { devices, shown: folders.devices.display().to_string() })
    }

    /// All devices, sorted by name.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device of that name.
    ///
    /// # Errors
    /// Usage error with the nearest name.
    pub fn find(&self, name: &str) -> Result<&Device> {
        let names = || self.devices.iter().map(|d| d.name.as_str());
        self.devices.iter().find(|d| d.name == name).ok_or_else(|| {
            let hint = match nearest(name, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None if self.devices.is_empty() => {
                    format!("{}/ registers no device; see devices/README.md for a first one", self.shown)
                }
                None => {
                    let shown: Vec<&str> = names().take(config::KEYS_SHOWN_MAX).collect();
                    format!("registered are: {}; `farmgate device list` shows them", shown.join(", "))
                }
            };
            Error::usage(format!("unknown device `{}`", config::printable(name))).hint(hint)
        })
    }
}
