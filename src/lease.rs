//! Exclusive use of a device: a lease with a time to live and a fencing token, kept on the device itself.

use crate::agent::{Farmhand, LEASE_REFUSED, answer, refusal};
use crate::error::{Error, Result};
use crate::transport::Transport;
use farmgate_engine::lease::Lease as Said;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a lease lives when it is not renewed: long enough for a reboot of a switch, short enough that a crashed
/// owner blocks nobody for long.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(120);

/// Budget of one question about the lease.
const ASK: Duration = Duration::from_secs(30);
/// Pause between two questions for a device that somebody else holds.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Who wants a device, and how long that is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The name that others see.
    pub owner: &'a str,
    /// How long to wait for a device that somebody else holds.
    pub patience: Duration,
    /// Ends the waiting when it becomes true.
    pub stop: Option<&'a AtomicBool>,
}

impl<'a> Claim<'a> {
    /// One that does not wait.
    pub fn at_once(owner: &'a str) -> Self {
        Self { owner, patience: Duration::ZERO, stop: None }
    }

    fn is_given_up(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::SeqCst))
    }
}

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
    /// Asks the device for it, again and again for as long as the claim has patience. `say` is told who holds it
    /// meanwhile, and for how much longer that is waited for.
    ///
    /// # Errors
    /// Usage when somebody else holds it, with the holder's name and the time that is left; else those of the link.
    pub fn acquire(
        transport: &mut dyn Transport,
        farmhand: &Farmhand,
        workdir: &str,
        claim: &Claim<'_>,
        say: &mut dyn FnMut(&str, Duration),
    ) -> Result<Self> {
        // nobody renews it while other devices of the run are waited for
        let day = Duration::from_millis(farmgate_engine::lease::TTL_MS_MAX);
        let ttl_ms = (TIME_TO_LIVE + claim.patience).min(day).as_millis().to_string();
        let args = ["lease", "acquire", "--workdir", workdir, "--owner", claim.owner, "--ttl-ms", &ttl_ms];
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            let output = farmhand.call(transport, &args, ASK)?;
            match output.status {
                0 => {
                    let said: Said = answer(&args, &output)?;
                    return Ok(Self {
                        farmhand: farmhand.clone(),
                        workdir: workdir.to_owned(),
                        token: said.token,
                        time_to_live: TIME_TO_LIVE,
                        due: asked + TIME_TO_LIVE / 3,
                    });
                }
                LEASE_REFUSED => {
                    let holder: Said = answer(&args, &output)?;
                    let left = claim.patience.saturating_sub(begun.elapsed());
                    if left.is_zero() || claim.is_given_up() {
                        return Err(held(&holder, claim.patience));
                    }
                    say(&holder.owner, left);
                    std::thread::sleep(ASK_AGAIN.min(left));
                }
                _ => return Err(refusal(&args, &output)),
            }
        }
    }

    /// Takes a lease up again after its owner has died: the same one, unless it was given back or to somebody else since;
    /// then a new one, whose token differs.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn take_up(
        transport: &mut dyn Transport,
        farmhand: &Farmhand,
        workdir: &str,
        claim: &Claim<'_>,
        token: Option<u64>,
        say: &mut dyn FnMut(&str, Duration),
    ) -> Result<Self> {
        if let Some(token) = token {
            let mut lease = Self {
                farmhand: farmhand.clone(),
                workdir: workdir.to_owned(),
                token,
                time_to_live: TIME_TO_LIVE,
                due: Instant::now(),
            };
            match lease.try_renew(transport, TIME_TO_LIVE)? {
                Renewal::Done => return Ok(lease),
                Renewal::Refused(why) => log::info!("{why}"),
            }
        }
        Self::acquire(transport, farmhand, workdir, claim, say)
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
        match self.try_renew(transport, time_to_live)? {
            Renewal::Done => Ok(()),
            Renewal::Refused(why) => Err(Error::infra(format!("the lease was lost: {why}"))
                .hint("another run took the device after this one had been out of reach; run again")),
        }
    }

    fn try_renew(&mut self, transport: &mut dyn Transport, time_to_live: Duration) -> Result<Renewal> {
        let (token, ttl_ms) = (self.token.to_string(), time_to_live.as_millis().to_string());
        let args = ["lease", "renew", "--workdir", &self.workdir, "--token", &token, "--ttl-ms", &ttl_ms];
        let asked = Instant::now();
        let output = self.farmhand.call(transport, &args, ASK)?;
        match output.status {
            0 => {
                let _: Said = answer(&args, &output)?;
                self.due = asked + time_to_live / 3;
                Ok(Renewal::Done)
            }
            LEASE_REFUSED => Ok(Renewal::Refused(refusal(&args, &output).what().to_owned())),
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

/// What a device says to a renewal.
enum Renewal {
    Done,
    /// The lease was given back, or to somebody else.
    Refused(String),
}

/// Words of a refusal that is no fault of the device.
const IN_USE: &str = "the device is in use by";

/// Whether a device failed a run only since somebody else held it.
pub fn is_in_use(reason: Option<&str>) -> bool {
    reason.is_some_and(|text| text.contains(IN_USE))
}

fn held(holder: &Said, patience: Duration) -> Error {
    let owner = farmgate_engine::text::escaped(holder.owner.as_bytes(), farmgate_engine::lease::OWNER_BYTES_MAX);
    let left_s = holder.expires_in_ms.div_ceil(1_000);
    let waited = if patience.is_zero() { String::new() } else { format!(" still, after {} s", patience.as_secs()) };
    Error::usage(format!("{IN_USE} `{owner}`{waited}; unless renewed, its lease ends in {left_s} s"))
        .hint("`--wait 30m` waits for it; a run that crashed loses its lease by itself; `farmgate device release --force` takes it")
}
