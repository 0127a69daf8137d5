//! `farmgate device`: the inventory, and what a device is.

use super::{Done, engine, to_json};
use crate::config::Folders;
use crate::device::Inventory;
use crate::error::{ExitCode, Result};
use crate::report::terminal;
use crate::session::Session;
use crate::toolchain;
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
                device.target.clone().unwrap_or_else(|| "this machine's".to_owned()),
                device.labels.join(", "),
                device.tier.clone().unwrap_or_default(),
            ]
        })
        .collect();
    Ok(Done::ok(terminal::table(&["device", "transport", "target", "labels", "tier"], &rows)))
}

/// `farmgate device probe`. Nothing is measured, so a device that cannot be reached is a usage error.
pub fn probe(folders: &Folders, name: &str, json: bool, artefacts: Option<&Path>) -> Result<Done> {
    let inventory = Inventory::load(folders)?;
    let device = inventory.find(name)?;
    let built = engine::for_devices(folders, artefacts, std::iter::once(device))?;
    let target = device.target.as_deref().unwrap_or(toolchain::host_target());
    let session = Session::open(device, &built[target], "probe", &mut |_| {})
        .map_err(|e| e.on_device(name).with_exit(ExitCode::Usage))?;
    let fingerprint = session.fingerprint().clone();
    session.close()?;
    if json {
        return Ok(Done::ok(to_json(&fingerprint)?));
    }
    Ok(Done::ok(terminal::fingerprint(name, &fingerprint)))
}
