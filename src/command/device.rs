//! `farmgate device`: the inventory, what a device is, and who may use it.

use super::{Done, engine, names, to_json};
use crate::config::Folders;
use crate::device::{Device, Inventory, TransportConfig};
use crate::error::{Error, ExitCode, Result};
use crate::label::LabelExpression;
use crate::lease::Claim;
use crate::quarantine::Quarantine;
use crate::report::terminal;
use crate::runner::host_name;
use crate::session::{Session, break_lease};
use serde::Serialize;
use std::path::Path;

/// A device as `device list --json` shows it.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Listed<'a> {
    #[serde(flatten)]
    device: &'a Device,
    /// Why it is left out of runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine: Option<&'a crate::quarantine::Entry>,
}

/// `farmgate device list`.
pub fn list(folders: &Folders, labels: Option<&str>, json: bool) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    let quarantine = Quarantine::load(&folders.results)?;
    let chosen = choose(&inventory, labels)?;
    if json {
        let listed: Vec<Listed<'_>> =
            chosen.iter().map(|device| Listed { device, quarantine: quarantine.of(&device.name) }).collect();
        return Ok(Done::ok(to_json(&listed)?));
    }
    let rows: Vec<Vec<String>> = chosen
        .iter()
        .map(|device| {
            vec![
                device.name.clone(),
                device.transport.to_string(),
                target_shown(device),
                device.labels.join(", "),
                device.tier.clone().unwrap_or_default(),
                quarantine.of(&device.name).map_or_else(String::new, |entry| format!("quarantined: {}", entry.reason)),
            ]
        })
        .collect();
    Ok(Done::ok(terminal::table(&["device", "transport", "target", "labels", "tier", "state"], &rows)))
}

/// Devices whose labels fit an expression.
pub fn choose<'a>(inventory: &'a Inventory, labels: Option<&str>) -> Result<Vec<&'a Device>> {
    let Some(text) = labels else { return Ok(inventory.devices().iter().collect()) };
    let expression = LabelExpression::parse(text).map_err(|what| {
        Error::usage(what).hint("write labels with & for and, | for or, ! for not, for instance `phone & !old`")
    })?;
    Ok(inventory.devices().iter().filter(|device| expression.matches(&device.labels)).collect())
}

fn target_shown(device: &Device) -> String {
    match (&device.target, &device.transport) {
        (Some(target), _) => target.clone(),
        (None, TransportConfig::Local(_) | TransportConfig::Sim(_)) => "this machine's".to_owned(),
        (None, _) => "asked for".to_owned(),
    }
}

/// Opens a device for a question. Nothing is measured, so one that cannot be reached is a usage error.
pub(super) fn open(folders: &Folders, device: &Device, artefacts: Option<&Path>, owner: &str) -> Result<Session> {
    let unreachable = |e: Error| e.on_device(&device.name).with_exit(ExitCode::Usage);
    let mut built = engine::for_devices(folders, artefacts, std::iter::once(device))?;
    let artefact =
        built.remove(&device.name).ok_or_else(|| Error::bug("the device has no engine"))?.map_err(unreachable)?;
    Session::open(device, &artefact, &Claim::at_once(owner), &mut |_| {}).map_err(unreachable)
}

/// `farmgate device probe`.
pub fn probe(folders: &Folders, name: &str, json: bool, artefacts: Option<&Path>) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    let session = open(folders, inventory.find(name)?, artefacts, "probe")?;
    let fingerprint = session.fingerprint().clone();
    session.close()?;
    if json {
        return Ok(Done::ok(to_json(&fingerprint)?));
    }
    Ok(Done::ok(terminal::fingerprint(name, &fingerprint)))
}

/// `farmgate device release`.
pub fn release(folders: &Folders, name: &str, force: bool, artefacts: Option<&Path>) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    let device = inventory.find(name)?;
    if !force {
        // whoever opens it holds it, and gives it back; whoever can not is told who holds it
        open(folders, device, artefacts, "release")?.close()?;
        return Ok(Done::ok(format!("{name}: nobody holds it\n")));
    }
    let unreachable = |e: Error| e.on_device(name).with_exit(ExitCode::Usage);
    let mut built = engine::for_devices(folders, artefacts, std::iter::once(device))?;
    let artefact = built.remove(name).ok_or_else(|| Error::bug("the device has no engine"))?.map_err(unreachable)?;
    let by = format!("release --force at {}", host_name());
    Ok(Done::ok(match break_lease(device, &artefact, &by).map_err(unreachable)? {
        Some(broken) => format!("{name}: the lease of `{}` was ended; its run stops\n", broken.owner),
        None => format!("{name}: nobody held it\n"),
    }))
}

/// `farmgate device quarantine`.
pub fn quarantine(folders: &Folders, name: &str, reason: &str) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    inventory.find(name)?;
    let mut quarantine = Quarantine::load(&folders.results)?;
    quarantine.put(name, reason, &names::now(), &host_name())?;
    Ok(Done::ok(format!("{name}: left out of all runs until `farmgate device return {name}`\n")))
}

/// `farmgate device return`.
pub fn take_back(folders: &Folders, name: &str) -> Result<Done> {
    let mut quarantine = Quarantine::load(&folders.results)?;
    if quarantine.remove(name)? {
        return Ok(Done::ok(format!("{name}: takes part in runs again\n")));
    }
    Inventory::load(folders)?.find(name)?;
    Ok(Done::ok(format!("{name}: is not in quarantine\n")))
}
