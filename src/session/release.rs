//! A device taken from whoever holds it.

use super::{ASK, workdir};
use crate::agent::Farmhand;
use crate::device::Device;
use crate::error::Result;
use crate::push::{self, Hasher, Item, Room};
use crate::toolchain::Artefact;
use crate::transport::connect;
use farmgate_engine::lease::Broken;

/// Ends the lease of a device in its owner's stead; `None` when nobody holds it. The owner's run ends by itself, and is
/// told who did it.
///
/// # Errors
/// Those of [`Session::open`](super::Session::open), but that the device is in use.
pub fn break_lease(device: &Device, artefact: &Artefact, by: &str) -> Result<Option<Broken>> {
    let mut boxed = connect(device)?;
    let transport = &mut *boxed;
    let workdir = workdir::open(transport, device)?;
    let farmhand = Farmhand::at(format!("{workdir}/store/{}", artefact.sha256));
    let item = Item {
        local: &artefact.path,
        sha256: &artefact.sha256,
        bytes: artefact.bytes,
        remote: farmhand.path(),
        mode: 0o700,
    };
    push::ensure(transport, Hasher::Itself, &item, &Room::default(), &mut |_| {})?;
    farmhand.ask(transport, &["lease", "break", "--workdir", &workdir, "--owner", by], ASK)
}
