//! Exclusive use of a device: a lease with a time to live and a fencing token, kept on the device itself.

use crate::agent::{Farmhand, LEASE_REFUSED, answer, refusal};
use crate::error::{Error, Result};
use crate::transport::Transport;
use farmgate_engine::lease::Lease as Said;
use std::time::{Duration, Instant};

/// How long a lease lives when it is not renewed: long enough for a reboot of a switch, short enough that a crashed
/// owner blocks nobody for long.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(120);

/// Budget of one question about the lease.
const ASK: Duration = Duration::from_secs(30);

/// A lease that is ours. It has to be renewed, and given back with [`release`](Self::release).
#[derive(Debug)]
pub struct Lease {
    farmhand: Farmhand,
    workdir: String,
    token: u64,
    time_to_live: Duration,
    /// When the lease has to be renewed at the latest for a third of its time to be the most that was used.
    due: Instant,
}

impl Lease {
    /// Asks the device for it.
    ///
    /// # Errors
    /// Usage when somebody else holds it, with the holder's name and the time that is left; else those of the link.
    pub fn acquire(
        transport: &mut dyn Transport,
        farmhand: &Farmhand,
        workdir: &str,
        owner: &str,
        time_to_live: Duration,
    ) -> Result<Self> {
        let ttl_ms = time_to_live.as_millis().to_string();
        let args = ["lease", "acquire", "--workdir", workdir, "--owner", owner, "--ttl-ms", &ttl_ms];
        let asked = Instant::now();
        let output = farmhand.call(transport, &args, ASK)?;
        match output.status {
            0 => {
                let said: Said = answer(&args, &output)?;
                Ok(Self {
                    farmhand: farmhand.clone(),
                    workdir: workdir.to_owned(),
                    token: said.token,
                    time_to_live,
                    due: asked + time_to_live / 3,
                })
            }
            LEASE_REFUSED => Err(held(&answer(&args, &output)?)),
            _ => Err(refusal(&args, &output)),
        }
    }

    /// The fencing token: higher than that of every lease before.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Renews it when a third of its time has passed.
    ///
    /// # Errors
    /// INFRA when it was lost to somebody else; those of the link.
    pub fn renew_if_due(&mut self, transport: &mut dyn Transport) -> Result<()> {
        if Instant::now() < self.due { Ok(()) } else { self.renew_for(transport, self.time_to_live) }
    }

    /// Renews it for `time_to_live` from now, for instance before a copy during which nobody can renew it.
    ///
    /// # Errors
    /// As [`renew_if_due`](Self::renew_if_due).
    pub fn renew_for(&mut self, transport: &mut dyn Transport, time_to_live: Duration) -> Result<()> {
        let (token, ttl_ms) = (self.token.to_string(), time_to_live.as_millis().to_string());
        let args = ["lease", "renew", "--workdir", &self.workdir, "--token", &token, "--ttl-ms", &ttl_ms];
        let asked = Instant::now();
        let output = self.farmhand.call(transport, &args, ASK)?;
        match output.status {
            0 => {
                let _: Said = answer(&args, &output)?;
                self.due = asked + time_to_live / 3;
                Ok(())
            }
            LEASE_REFUSED => Err(Error::infra(format!("the lease was lost: {}", refusal(&args, &output).what()))
                .hint("another run took the device after this one had been out of reach; run again")),
            _ => Err(refusal(&args, &output)),
        }
    }

    /// Gives it back. One that was lost meanwhile is no error: there is nothing left to give.
    ///
    /// # Errors
    /// Those of the link; the lease then ends by itself.
    pub fn release(self, transport: &mut dyn Transport, deadline: Duration) -> Result<()> {
        let token = self.token.to_string();
        let args = ["lease", "release", "--workdir", &self.workdir, "--token", &token];
        let output = self.farmhand.call(transport, &args, deadline)?;
        if output.is_success() || output.status == LEASE_REFUSED { Ok(()) } else { Err(refusal(&args, &output)) }
    }
}

fn held(holder: &Said) -> Error {
    let owner = farmgate_engine::text::escaped(holder.owner.as_bytes(), farmgate_engine::lease::OWNER_BYTES_MAX);
    let left_s = holder.expires_in_ms.div_ceil(1_000);
    Error::usage(format!("the device is in use by `{owner}`; unless renewed, its lease ends in {left_s} s"))
        .hint("wait until that run has ended, or choose another device; a run that crashed loses its lease by itself")
}
