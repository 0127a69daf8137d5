//! `farmgate device`: the inventory, and what a device is.

use super::{Done, engine, to_json};
use crate::config::Folders;
use crate::device::{Device, Inventory, TransportConfig};
use crate::error::{Error, ExitCode, Result};
use crate::report::terminal;
use crate::session::Session;
use std::path::Path;

/// `farmgate device list`.
pub fn list(folders: &Folders, json: bool) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    if json {
        return Ok(Done::ok(to_json(&inventory.devices())?));
    }
    let rows: Vec<Vec<String>> = inventory
        .devices()
        .iter()
        .map(|device| {
            vec![
                device.name.clone(),
                device.transport.to_string(),
                target_shown(device),
                device.labels.join(", "),
                device.tier.clone().unwrap_or_default(),
            ]
        })
        .collect();
    Ok(Done::ok(terminal::table(&["device", "transport", "target", "labels", "tier"], &rows)))
}

fn target_shown(device: &Device) -> String {
    match (&device.target, &device.transport) {
        (Some(target), _) => target.clone(),
        (None, TransportConfig::Local(_)) => "this machine's".to_owned(),
        (None, _) => "asked for".to_owned(),
    }
}

/// `farmgate device probe`. Nothing is measured, so a device that cannot be reached is a usage error.
pub fn probe(folders: &Folders, name: &str, json: bool, artefacts: Option<&Path>) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    let device = inventory.find(name)?;
    let unreachable = |e: Error| e.on_device(name).with_exit(ExitCode::Usage);
    let mut built = engine::for_devices(folders, artefacts, std::iter::once(device))?;
    let artefact = built.remove(name).ok_or_else(|| Error::bug("the device has no engine"))?.map_err(unreachable)?;
    let session = Session::open(device, &artefact, "probe", &mut |_| {}).map_err(unreachable)?;
    let fingerprint = session.fingerprint().clone();
    session.close()?;
    if json {
        return Ok(Done::ok(to_json(&fingerprint)?));
    }
    Ok(Done::ok(terminal::fingerprint(name, &fingerprint)))
}
