//! Which engine a device needs: its file says so, or its kernel is asked before anything is brought there.

use crate::device::{Device, TransportConfig};
use crate::error::{Error, Result};
use crate::target::Architecture;
use crate::toolchain::{architecture_of, host_architecture};
use crate::transport::{Transport, connect};
use std::time::Duration;

const ASK: Duration = Duration::from_secs(30);

/// The architecture of a device. Without a target in its file, a device that is not this machine is connected to and
/// asked `uname -m`, which changes nothing there.
///
/// # Errors
/// Usage: there is no engine for it. INFRA: device or link failed. The device is the place.
pub fn architecture(device: &Device) -> Result<Architecture> {
    let found = match (&device.target, &device.transport) {
        (Some(target), _) => architecture_of(target),
        (None, TransportConfig::Local(_) | TransportConfig::Sim(_)) => host_architecture(),
        (None, _) => connect(device).and_then(|mut transport| ask(&mut *transport)),
    };
    found.map_err(|e| e.on_device(&device.name))
}

fn ask(transport: &mut dyn Transport) -> Result<Architecture> {
    let output = transport.exec(&["uname", "-m"], ASK)?;
    if !output.is_success() {
        return Err(Error::infra(format!("the device does not say what machine it is: {}", output.ending()))
            .hint("name its `target` in the device's file"));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Architecture::of_kernel(said.trim()).ok_or_else(|| {
        let shown = farmgate_engine::text::escaped(said.trim().as_bytes(), 60);
        Error::usage(format!("there is no engine for a machine that `uname -m` calls `{shown}`")).hint(format!(
            "engines are for {}; if it is one of these, name its `target` in the device's file",
            Architecture::names()
        ))
    })
}
