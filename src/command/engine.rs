//! `farmgate engine`: the bundled engine for each architecture that the devices need.

use super::Done;
use crate::config::Folders;
use crate::device::{Device, Inventory, TransportConfig};
use crate::error::{Error, Result};
use crate::report::terminal;
use crate::session;
use crate::target::Architecture;
use crate::toolchain::{self, Artefact};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// `farmgate engine build`. A line on stdout for each engine.
pub fn build(folders: &Folders, targets: &[String], all: bool) -> Result<Done> {
    let (mut wanted, mut faults) = (Vec::new(), Vec::new());
    for target in targets {
        wanted.push(toolchain::architecture_of(target)?);
    }
    if all {
        let inventory = Inventory::load(folders)?;
        for (_, answer) in architectures(inventory.devices().iter()) {
            match answer {
                Ok(architecture) => wanted.push(architecture),
                Err(fault) => faults.push(fault),
            }
        }
    } else if targets.is_empty() {
        wanted.push(toolchain::host_architecture()?);
    }
    let mut out = String::new();
    for architecture in wanted.into_iter().collect::<BTreeSet<_>>() {
        let artefact = build_one(folders, architecture)?;
        out.push_str(&format!("{}\n", artefact.path.display()));
    }
    // the others were built; what could not be asked is still missing
    let exit = faults.first().map(Error::exit);
    faults.iter().for_each(|fault| terminal::note(&fault.to_string()));
    Ok(Done { exit: exit.unwrap_or(crate::error::ExitCode::Go), stdout: out })
}

fn build_one(folders: &Folders, architecture: Architecture) -> Result<Artefact> {
    let artefact = toolchain::build(architecture, &folders.results, &mut terminal::note)?;
    warn(&artefact);
    Ok(artefact)
}

fn warn(artefact: &Artefact) {
    if let Some(warning) = &artefact.warning {
        terminal::note(&format!("warning: {}: {warning}", artefact.path.display()));
    }
}

/// An engine for each of the devices, by their names: from the folder when one is given, else built here. A device that
/// has to be asked what it is and does not answer has its fault instead, which costs nobody else anything.
///
/// # Errors
/// When an engine cannot be had; no device has been changed then.
pub fn for_devices<'a>(
    folders: &Folders,
    artefacts: Option<&Path>,
    devices: impl Iterator<Item = &'a Device>,
) -> Result<BTreeMap<String, Result<Artefact>>> {
    // by what was asked for, so that each is looked at, and warned of, once
    let mut found: BTreeMap<String, Artefact> = BTreeMap::new();
    let mut out = BTreeMap::new();
    for (device, answer) in architectures(devices) {
        let architecture = match answer {
            Ok(architecture) => architecture,
            // what its file says is wrong for every run
            Err(fault) if device.target.is_some() => return Err(fault),
            Err(fault) => {
                out.insert(device.name.clone(), Err(fault));
                continue;
            }
        };
        let target = match artefacts {
            Some(_) => device.target.as_deref().unwrap_or(architecture.name()),
            None => architecture.name(),
        };
        let artefact = match (found.get(target), artefacts) {
            (Some(artefact), _) => artefact.clone(),
            (None, Some(folder)) => toolchain::from_folder(folder, target).inspect(warn)?,
            (None, None) => build_one(folders, architecture)?,
        };
        found.insert(target.to_owned(), artefact.clone());
        out.insert(device.name.clone(), Ok(artefact));
    }
    Ok(out)
}

/// What each device is, in their order. Those that have to be asked are asked at once, since each may take its time.
fn architectures<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<(&'a Device, Result<Architecture>)> {
    let devices: Vec<&Device> = devices.collect();
    let is_asked = |d: &&&Device| {
        d.target.is_none() && !matches!(d.transport, TransportConfig::Local(_) | TransportConfig::Sim(_))
    };
    let asked: Vec<&str> = devices.iter().filter(is_asked).map(|d| d.name.as_str()).collect();
    if !asked.is_empty() {
        terminal::note(&format!("asking what machine it is: {}", asked.join(", ")));
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = devices.iter().map(|device| scope.spawn(|| session::architecture(device))).collect();
        let answers = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::bug("a device's thread panicked"))));
        devices.iter().copied().zip(answers).collect()
    })
}
