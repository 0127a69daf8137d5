//! A simulated device: commands and files are this machine's own, the link between is a script. Time on that link is
//! virtual: a slow copy or a call that hangs costs its deadline without anybody waiting for it.

use super::{Deadline, LocalTransport, Output, Transport};
use crate::device::{SimConfig, SimFault};
use crate::error::{Error, Result};
use crate::process::OUTPUT_BYTES_MAX;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a device under [`SimFault::Garbage`] says: terminal escapes, markup, a path, and bytes that are no text.
const GARBAGE: &[u8] =
    b"\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\n../../../etc/passwd\n\xff\xfe\x00{\"sha256\":\"0\"}\n";

/// One connection to a simulated device. Faults count its calls, from 1.
pub struct SimTransport {
    name: String,
    config: SimConfig,
    local: LocalTransport,
    /// Virtual time since the connection began.
    now: Duration,
    /// How many calls each fault's pattern has met.
    met: Vec<u32>,
    /// Bytes that have been written to the device.
    written_bytes: u64,
}

/// What one call has to suffer.
#[derive(Default)]
struct Fate {
    /// The link is lost after so many bytes.
    lost_after_bytes: Option<u64>,
    hangs: bool,
    status: Option<i32>,
    is_garbage: bool,
}

impl SimTransport {
    /// Connects, which always works: a device that cannot be reached fails its calls.
    pub fn connect(name: &str, config: &SimConfig) -> Self {
        Self {
            name: name.to_owned(),
            met: vec![0; config.faults.len()],
            config: config.clone(),
            local: LocalTransport::new(),
            now: Duration::ZERO,
            written_bytes: 0,
        }
    }

    /// Virtual time that calls have taken so far.
    pub fn elapsed(&self) -> Duration {
        self.now
    }

    /// Begins a call: what happens to it. `text` is what the patterns of faults are looked for in.
    fn begin(&mut self, text: &str, deadline: Duration) -> Result<Fate> {
        let latency = Duration::from_millis(self.config.latency_ms);
        let mut fate = Fate::default();
        let mut offline = None;
        for (fault, met) in self.config.faults.iter().zip(&mut self.met) {
            if !text.contains(fault.matching()) {
                continue;
            }
            *met += 1;
            match *fault {
                SimFault::LinkLost { at_call, after_bytes, .. } if at_call == *met => {
                    fate.lost_after_bytes = Some(after_bytes);
                }
                SimFault::Hang { at_call, .. } => fate.hangs |= at_call == *met,
                SimFault::LyingStatus { at_call, status, .. } if at_call == *met => fate.status = Some(status),
                SimFault::Garbage { at_call, .. } => fate.is_garbage |= at_call == *met,
                SimFault::Offline { from_call, calls, .. }
                    if (from_call..from_call.saturating_add(calls)).contains(met) =>
                {
                    offline = Some(*met);
                }
                _ => {}
            }
        }
        if let Some(call) = offline {
            self.now += latency.min(deadline);
            return Err(self.lost(&format!("its call {call} found it offline")));
        }
        if fate.hangs {
            self.now += deadline;
            return Err(Deadline::after(deadline)
                .passed(&format!("running on {}", self.describe()))
                .hint("the device or the link may hang"));
        }
        self.take(latency, deadline)?;
        Ok(fate)
    }

    /// Lets virtual time pass on a call that may take `deadline`.
    fn take(&mut self, time: Duration, deadline: Duration) -> Result<()> {
        self.now += time.min(deadline);
        if time > deadline {
            return Err(Deadline::after(deadline)
                .passed(&format!("a call to {}", self.describe()))
                .hint("the link is too slow for this"));
        }
        Ok(())
    }

    /// Moves so many bytes over the link.
    fn move_bytes(&mut self, bytes: u64, fate: &Fate, deadline: Duration) -> Result<()> {
        let crossed = fate.lost_after_bytes.map_or(bytes, |limit| limit.min(bytes));
        if self.config.link_bytes_per_s > 0 {
            self.take(Duration::from_secs_f64(crossed as f64 / self.config.link_bytes_per_s as f64), deadline)?;
        }
        if fate.lost_after_bytes.is_some_and(|limit| limit <= bytes) {
            return Err(self.lost(&format!("{crossed} of {bytes} bytes had crossed")));
        }
        Ok(())
    }

    fn lost(&self, how: &str) -> Error {
        Error::infra(format!("the link to {} was lost: {how}", self.describe()))
            .hint("it is a simulated device; the faults are those of its file")
    }

    /// The clock of the device, when a command asks for it and the script has set it to another time.
    fn answer_of_clock(&self, argv: &[&str]) -> Option<Output> {
        let jump_ms: i64 = self
            .config
            .faults
            .iter()
            .zip(&self.met)
            .filter_map(|(fault, met)| match *fault {
                SimFault::ClockJump { at_call, jump_ms, .. } if at_call <= *met => Some(jump_ms),
                _ => None,
            })
            .sum();
        if argv.first() != Some(&"date") || jump_ms == 0 {
            return None;
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
        let told_ms = i64::try_from(now.as_millis()).ok()?.saturating_add(jump_ms).max(0);
        let stdout = format!("{}.{:03}000000\n", told_ms / 1000, told_ms % 1000).into_bytes();
        Some(Output { stdout, ..Output::default() })
    }
}

impl Transport for SimTransport {
    fn describe(&self) -> String {
        format!("sim {}", self.name)
    }

    fn exec(&mut self, argv: &[&str], deadline: Duration) -> Result<Output> {
        let fate = self.begin(&format!("exec {}", argv.join(" ")), deadline)?;
        if fate.is_garbage {
            return Ok(Output { status: fate.status.unwrap_or(0), stdout: GARBAGE.to_vec(), ..Output::default() });
        }
        let output = match self.answer_of_clock(argv) {
            Some(output) => output,
            None => {
                let begun = Instant::now();
                let output = self.local.exec(argv, deadline)?;
                self.now += begun.elapsed();
                output
            }
        };
        self.move_bytes(output.stdout.len().min(OUTPUT_BYTES_MAX) as u64, &fate, deadline)?;
        Ok(Output { status: fate.status.unwrap_or(output.status), ..output })
    }

    fn push(
        &mut self,
        local: &Path,
        remote: &str,
        mode: u32,
        deadline: Duration,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let fate = self.begin(&format!("push {remote}"), deadline)?;
        let facts = std::fs::metadata(local).map_err(|e| Error::io("cannot read the file to push", local, &e))?;
        let bytes = facts.len();
        let full = self.config.faults.iter().find_map(|fault| match *fault {
            SimFault::DiskFull { after_bytes } if self.written_bytes.saturating_add(bytes) > after_bytes => {
                Some(after_bytes)
            }
            _ => None,
        });
        if let Some(after_bytes) = full {
            self.move_bytes(after_bytes.saturating_sub(self.written_bytes), &fate, deadline)?;
            let shown = farmgate_engine::text::escaped(remote.as_bytes(), 300);
            return Err(Error::infra(format!("cannot write {shown} at {}: No space left on device", self.describe()))
                .hint("free space there"));
        }
        let moved = self.move_bytes(bytes, &fate, deadline);
        if let (Err(_), Some(after_bytes)) = (&moved, fate.lost_after_bytes) {
            progress(after_bytes.min(bytes));
        }
        moved?;
        self.written_bytes = self.written_bytes.saturating_add(bytes);
        self.local.push(local, remote, mode, deadline, progress)
    }

    fn pull(&mut self, remote: &str, local: &Path, bytes_max: u64, deadline: Duration) -> Result<u64> {
        let fate = self.begin(&format!("pull {remote}"), deadline)?;
        let bytes = std::fs::metadata(remote).map_or(0, |facts| facts.len().min(bytes_max));
        self.move_bytes(bytes, &fate, deadline)?;
        self.local.pull(remote, local, bytes_max, deadline)
    }

    fn read_from(&mut self, remote: &str, offset_bytes: u64, bytes_max: usize, deadline: Duration) -> Result<Vec<u8>> {
        let fate = self.begin(&format!("read {remote}"), deadline)?;
        if fate.is_garbage {
            return Ok(GARBAGE[..GARBAGE.len().min(bytes_max)].to_vec());
        }
        let bytes = self.local.read_from(remote, offset_bytes, bytes_max, deadline)?;
        self.move_bytes(bytes.len() as u64, &fate, deadline)?;
        Ok(bytes)
    }
}
