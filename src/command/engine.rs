//! `farmgate engine`: the bundled engine for each target that the devices need.

use super::Done;
use crate::config::Folders;
use crate::device::Device;
use crate::error::Result;
use crate::report::terminal;
use crate::toolchain::{self, Artefact};
use std::collections::BTreeMap;
use std::path::Path;

/// `farmgate engine build`.
pub fn build(folders: &Folders) -> Result<Done> {
    let artefact = toolchain::build_native(&folders.results, &mut terminal::note)?;
    Ok(Done::ok(format!("{}\n", artefact.path.display())))
}

/// An engine for every target among the devices: from the folder when one is given, else built here.
pub fn for_devices<'a>(
    folders: &Folders,
    artefacts: Option<&Path>,
    devices: impl Iterator<Item = &'a Device>,
) -> Result<BTreeMap<String, Artefact>> {
    let mut out = BTreeMap::new();
    for device in devices {
        let target = device.target.as_deref().unwrap_or(toolchain::host_target());
        if out.contains_key(target) {
            continue;
        }
        let artefact = match artefacts {
            Some(folder) => toolchain::from_folder(folder, target)?,
            None if target == toolchain::host_target() => {
                toolchain::build_native(&folders.results, &mut terminal::note)?
            }
            None => {
                return Err(crate::error::Error::usage(format!("this farmgate cannot build the engine for {target}"))
                    .on_device(&device.name)
                    .hint(format!("build it elsewhere and pass `--artefacts DIR` with `farmhand-{target}` in it")));
            }
        };
        out.insert(target.to_owned(), artefact);
    }
    Ok(out)
}
