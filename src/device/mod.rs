//! The inventory: every device that is registered under `devices/`, how it is reached, and what is promised on it.

mod constraints;
mod ready;
mod transport;

pub use transport::{AdbConfig, LocalConfig, SimConfig, SimFault, SshConfig, TransportConfig};

use crate::config::{self, Checker, Document, Folders, shipped};
use crate::error::{Error, Place, Result, nearest};
use crate::run::Constraints;
use crate::target::Architecture;
use farmgate_engine::protocol::ReadyCriteria;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Spanned;

/// How often telemetry is read unless a device's file says otherwise, milliseconds.
const TELEMETRY_PERIOD_MS: u64 = 1000;
/// How long a link may be gone while the device measures on, unless its file says otherwise, seconds.
const LINK_LOSS_MAX_S: u64 = 300;
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
    /// Most space that farmgate's store on the device may take, MiB.
    pub store_quota_mb: Option<u64>,
    /// Rust target, or the short name of an architecture; `None` means that the device is asked.
    pub target: Option<String>,
    /// One line for the people of the lab.
    pub remarks: Option<String>,
    /// Period of the telemetry, milliseconds; 0 turns it off.
    pub telemetry_period_ms: u64,
    /// How long its link may be gone in a run while it measures on, seconds.
    pub link_loss_max_s: u64,
    /// What the product promises on it.
    pub constraints: Constraints,
    /// When it is fit to be measured.
    pub ready: ReadyCriteria,
    /// File that registers it, as errors show it.
    pub file: String,
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
    store_quota_mb: Option<Spanned<u64>>,
    target: Option<Spanned<String>>,
    remarks: Option<Spanned<String>>,
    #[serde(default)]
    constraints: constraints::ConstraintsToml,
    #[serde(default)]
    ready: ready::ReadyToml,
    telemetry_period_ms: Option<Spanned<u64>>,
    link_loss_max_s: Option<Spanned<u64>>,
    transport: Spanned<TransportConfig>,
}

impl Device {
    /// A device of which nothing is said but how it is reached.
    pub fn new(name: &str, transport: TransportConfig, file: &str) -> Self {
        Self {
            name: name.to_owned(),
            transport,
            labels: Vec::new(),
            tier: None,
            share_percent: None,
            memory_mb: None,
            workdir: None,
            store_quota_mb: None,
            target: None,
            remarks: None,
            telemetry_period_ms: TELEMETRY_PERIOD_MS,
            link_loss_max_s: LINK_LOSS_MAX_S,
            constraints: Constraints::default(),
            ready: ReadyCriteria::default(),
            file: file.to_owned(),
        }
    }

    /// Folder whose `sys` and `proc` are those of a simulated device.
    pub fn root(&self) -> Option<String> {
        match &self.transport {
            TransportConfig::Sim(sim) => sim.root.clone(),
            _ => None,
        }
    }

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
    check.within_if_there("store-quota-mb", typed.store_quota_mb.as_ref(), 16..=1 << 30);
    check.within_if_there("memory-mb", typed.memory_mb.as_ref(), 1..=1 << 30);
    if typed.telemetry_period_ms.as_ref().is_some_and(|period| *period.get_ref() != 0) {
        check.within_if_there("telemetry-period-ms", typed.telemetry_period_ms.as_ref(), 100..=60_000);
    }
    check.within_if_there("link-loss-max-s", typed.link_loss_max_s.as_ref(), 1..=86_400);
    check_paths(&mut check, &typed);
    if let Some(remarks) = &typed.remarks {
        check.line("remarks", remarks);
    }
    let constraints = constraints::read(&mut check, &typed.constraints);
    let ready = ready::read(&mut check, &typed.ready);
    if let Some(period) = typed.telemetry_period_ms.as_ref().filter(|p| *p.get_ref() == 0 && !ready.is_off()) {
        let what = "what is asked under `[ready]` is seen by telemetry, which is turned off";
        check.fault(period.span(), what, "give `telemetry-period-ms` a period, 1000 for instance");
    }
    transport::check(&mut check, &typed.transport);
    let bare = |value: Option<Spanned<String>>| value.map(Spanned::into_inner);
    let device = Device {
        name,
        transport: typed.transport.into_inner(),
        labels: typed.labels.into_iter().map(Spanned::into_inner).collect(),
        tier: bare(typed.tier),
        share_percent: typed.share_percent.map(Spanned::into_inner),
        memory_mb: typed.memory_mb.map(Spanned::into_inner),
        workdir: bare(typed.workdir),
        store_quota_mb: typed.store_quota_mb.map(Spanned::into_inner),
        target: bare(typed.target),
        remarks: bare(typed.remarks),
        constraints,
        ready,
        telemetry_period_ms: typed.telemetry_period_ms.map_or(TELEMETRY_PERIOD_MS, Spanned::into_inner),
        link_loss_max_s: typed.link_loss_max_s.map_or(LINK_LOSS_MAX_S, Spanned::into_inner),
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
