//! How a device is reached: run a command there, copy a file there and back, read on from an offset.
//!
//! Every call has a deadline and ends at it, whatever the other side does. What a device says is bounded here and
//! escaped wherever it enters a message. Failures of device or link are INFRA; whoever has not touched anything yet may
//! turn them into usage errors.

mod adb;
mod local;
pub mod shell;
mod sim;
mod ssh;
mod ssh_config;

pub use crate::process::Output;
pub use adb::AdbTransport;
pub use local::LocalTransport;
pub use sim::SimTransport;
pub use ssh::{SshTransport, Surroundings};

use crate::device::{Device, TransportConfig};
use crate::error::{Error, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// One way to one device. Not concurrent: one call at a time.
pub trait Transport: Send {
    /// The other end in a few words, for messages, for instance `ssh pi@10.0.0.7:22`.
    fn describe(&self) -> String;

    /// Runs a command and waits for its end. `argv` reaches the program unchanged; a program that is missing gives
    /// status 127, a death by signal `128 + n`. At most [`crate::process::OUTPUT_BYTES_MAX`] bytes of each stream are
    /// kept.
    ///
    /// # Errors
    /// INFRA when the link fails, or when the deadline passes; the command is killed then, on the device too.
    fn exec(&mut self, argv: &[&str], deadline: Duration) -> Result<Output>;

    /// Copies a local file to `remote`, which gets `mode`. The file appears whole or not at all: it is written beside
    /// its place, checked for its size and renamed; what an earlier attempt left there is replaced. `progress` is told the
    /// bytes done so far.
    ///
    /// # Errors
    /// INFRA when the link fails, the folder cannot be written, the space ends or the deadline passes.
    fn push(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        deadline: Duration,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()>;

    /// The same for a file that is named by its content: what an earlier push of it has left beside its place is gone on
    /// with, where the transport can. The far side cannot know whether it is the same file; the caller checks its hash.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn push_on(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        deadline: Duration,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.push(local, remote, mode, deadline, progress)
    }

    /// Copies a file of at most `bytes_max` bytes from the device; `local` appears whole or not at all. Gives its size.
    ///
    /// # Errors
    /// INFRA when there is no such file, it is too large, the link fails or the deadline passes.
    fn pull(&mut self, remote: &str, local: &Path, bytes_max: u64, deadline: Duration) -> Result<u64>;

    /// Reads at most `bytes_max` bytes of a file from `offset_bytes`; nothing when the file ends there or before.
    ///
    /// # Errors
    /// INFRA when there is no such file, the link fails or the deadline passes.
    fn read_from(&mut self, remote: &str, offset_bytes: u64, bytes_max: usize, deadline: Duration) -> Result<Vec<u8>>;

    /// Makes `remote` another name of the local file, where both lie on one filesystem: no byte is copied. `false` when
    /// that cannot be, and nothing has happened then.
    ///
    /// # Errors
    /// None so far; a transport that has such a way may report INFRA.
    fn link(&mut self, _local: &Path, _remote: &str) -> Result<bool> {
        Ok(false)
    }
}

/// Connects to a device, as its file says.
///
/// # Errors
/// INFRA with a message and hint of its own for each way in which it cannot be reached; the device is the place.
pub fn connect(device: &Device) -> Result<Box<dyn Transport>> {
    match &device.transport {
        TransportConfig::Local(_) => Ok(Box::new(LocalTransport::new())),
        TransportConfig::Ssh(ssh) => SshTransport::connect(ssh, &Surroundings::of_process())
            .map(|t| Box::new(t) as Box<dyn Transport>)
            .map_err(|e| e.on_device(&device.name)),
        TransportConfig::Adb(adb) => {
            AdbTransport::connect(adb).map(|t| Box::new(t) as Box<dyn Transport>).map_err(|e| e.on_device(&device.name))
        }
        TransportConfig::Sim(sim) => Ok(Box::new(SimTransport::connect(&device.name, sim))),
    }
}

/// The moment at which a call gives up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    budget: Duration,
}

impl Deadline {
    /// Counts from now.
    pub(crate) fn after(budget: Duration) -> Self {
        Self { started: Instant::now(), budget }
    }
    /// What is left of it; `None` when it has passed.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.budget.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero())
    }
    /// The error of a call that did not end in time.
    pub(crate) fn passed(&self, doing: &str) -> Error {
        Error::infra(format!("{doing}: no end within {} ms", self.budget_ms()))
    }
    /// The same, as a check.
    pub(crate) fn check(&self, doing: &str) -> Result<()> {
        self.left().map(|_| ()).ok_or_else(|| self.passed(doing))
    }
    /// The budget as it was given, milliseconds; what is left of another one differs by less than one.
    pub(crate) fn budget_ms(&self) -> u64 {
        (self.budget.as_secs_f64() * 1e3).round() as u64
    }
}
