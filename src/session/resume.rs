//! A run that somebody else began on the device: farmgate died, or was stopped, and the run is gone on with.

use super::journal::Following;
use super::{ASK, Session, clock_offset_ms, waiting, workdir};
use crate::agent::Farmhand;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::Phase;
use crate::lease::{Claim, Lease};
use crate::run::RunId;
use crate::transport::connect;
use farmgate_engine::protocol::{DevicePlan, Fingerprint};

/// Makes the run's folder `$1` if it is missing, and says whether there is a journal.
const LOOK: &str = r#"umask 077
mkdir -p -- "$1" || exit 1
if [ -s "$1/journal.jsonl" ]; then echo journal; fi"#;

/// A device's part of a run, as it is known on the lab host.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// What the probe found.
    pub fingerprint: &'a Fingerprint,
    /// sha256 of the engine that was brought there.
    pub engine_sha256: &'a str,
    /// The plan that it was given.
    pub plan: &'a DevicePlan,
    /// Number of the first record of its journal that is not known.
    pub seq_next: u64,
}

impl Session {
    /// Connects to a device that was given its plan before, and takes the lease up again. Nothing is probed: the device may
    /// be measuring.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn attach(device: &Device, known: &Known<'_>, claim: &Claim<'_>, say: &mut dyn FnMut(Phase)) -> Result<Self> {
        say(Phase::Connecting);
        let mut attach = || {
            let mut boxed = connect(device)?;
            let transport = &mut *boxed;
            let workdir = workdir::open(transport, device)?;
            let farmhand = Farmhand::at(format!("{workdir}/store/{}", known.engine_sha256));
            farmhand.prove_runs(transport)?;
            let lease =
                Lease::take_up(transport, &farmhand, &workdir, claim, known.plan.lease_token, &mut |owner, left| {
                    say(waiting(owner, left))
                })?;
            let mut session = Self {
                transport: boxed,
                device: device.name.clone(),
                workdir,
                farmhand,
                lease: Some(lease),
                held: Vec::new(),
                quota_bytes: None,
                root: device.root(),
                fingerprint: known.fingerprint.clone(),
                engine_sha256: known.engine_sha256.to_owned(),
                clock_offset_ms: 0,
                run: None,
                link_failed: false,
            };
            session.clock_offset_ms = clock_offset_ms(&mut *session.transport)?;
            Ok(session)
        };
        attach().map_err(|e: Error| e.on_device(&device.name))
    }

    /// Goes on with the plan: follows a farmhand that is still at work, starts one that is not, and does neither when the
    /// plan came to its end. Gives the plan as it stands now, whose lease may be a new one.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn go_on(&mut self, known: &Known<'_>) -> Result<DevicePlan> {
        self.try_go_on(known).map_err(|e| e.on_device(&self.device))
    }

    fn try_go_on(&mut self, known: &Known<'_>) -> Result<DevicePlan> {
        let plan = DevicePlan { lease_token: Some(self.lease_token()), ..known.plan.clone() };
        let (run, device) = (RunId::parse(&plan.run)?, RunId::parse(&plan.device)?);
        let folder = format!("{}/runs/{run}/{device}", self.workdir);
        let looked = self.transport.exec(&["sh", "-c", LOOK, "sh", &folder], ASK)?;
        if !looked.is_success() {
            return Err(Error::infra(format!("cannot make the folder of the run: {}", looked.ending())));
        }
        let mut run = Following::new(&folder, known.seq_next);
        if looked.stdout.is_empty() {
            self.launch(&folder, &plan, run)?;
            return Ok(plan);
        }
        let has_same_lease = plan.lease_token == known.plan.lease_token;
        if run.is_alive(&mut *self.transport)? {
            self.run = Some(run);
            if has_same_lease {
                return Ok(plan);
            }
            // it has lost its lease, and ends by itself; nothing else may be at work meanwhile
            self.stop()?;
            run = Following::new(&folder, known.seq_next);
        }
        if run.catch_up(&mut *self.transport)? {
            self.run = Some(run);
            return Ok(plan);
        }
        run.goes_on();
        self.launch(&folder, &plan, run)?;
        Ok(plan)
    }
}
