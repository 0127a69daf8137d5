//! One open device: exclusive use of it, farmhand and models on it, a plan at work there.
//!
//! The only module that speaks the protocol with a device. A session that is dropped stops what it started and gives the
//! lease back as well as it can; what it cannot reach ends by itself when the lease has run out.

mod architecture;
mod journal;
mod release;
mod resume;
mod workdir;

pub use architecture::architecture;
pub use release::break_lease;
pub use resume::Known;

use crate::agent::{Farmhand, refusal};
use crate::device::Device;
use crate::error::{Error, ExitCode, Result};
use crate::event::Phase;
use crate::lease::{Claim, Lease, TIME_TO_LIVE};
use crate::model::ModelFile;
use crate::push::{self, Doing, Hasher, Item, Room};
use crate::run::RunId;
use crate::toolchain::Artefact;
use crate::transport::{Transport, connect};
use farmgate_engine::hash::sha256_hex;
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{DevicePlan, Fingerprint, ModelRef};
use journal::Following;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const ASK: Duration = Duration::from_secs(30);
/// Budget of a probe: some sensors answer slowly.
const PROBE: Duration = Duration::from_secs(60);
/// Budget of starting a plan: farmhand itself waits up to 30 s for its first record, and 5 s more for its refusal.
const START: Duration = Duration::from_secs(45);
/// How long farmhand may take to end in good order, and how long that is waited for.
const STOP_MS: &str = "20000";
const STOP: Duration = Duration::from_secs(30);
/// Budget of what a dropped session still does.
const DROP: Duration = Duration::from_secs(5);

/// Makes the run's folder `$1`, which must not be there yet.
const MAKE_RUN: &str = r#"umask 077
mkdir -p -- "${1%/*}" || exit 1
if [ -e "$1" ]; then exit 44; fi
mkdir -- "$1""#;

/// Exclusive use of one device.
pub struct Session {
    transport: Box<dyn Transport>,
    device: String,
    workdir: String,
    farmhand: Farmhand,
    /// `None` only after [`close`](Self::close).
    lease: Option<Lease>,
    /// Files of the store that this session needs: none of them gives way to another.
    held: Vec<String>,
    /// Most bytes of the store.
    quota_bytes: Option<u64>,
    /// Folder whose `sys` and `proc` farmhand reads; the device's own without.
    root: Option<String>,
    fingerprint: Fingerprint,
    engine_sha256: String,
    clock_offset_ms: i64,
    run: Option<Following>,
    link_failed: bool,
}

impl Session {
    /// Connects, makes the workdir, brings farmhand there, takes the lease, and probes. `say` is told what is being done.
    ///
    /// # Errors
    /// Usage: the workdir cannot be used, farmhand does not run there, somebody else holds the device. INFRA: the device
    /// or the link failed. The device is the place.
    pub fn open(device: &Device, artefact: &Artefact, claim: &Claim<'_>, say: &mut dyn FnMut(Phase)) -> Result<Self> {
        Self::try_open(device, artefact, claim, say).map_err(|e| e.on_device(&device.name))
    }

    fn try_open(device: &Device, artefact: &Artefact, claim: &Claim<'_>, say: &mut dyn FnMut(Phase)) -> Result<Self> {
        say(Phase::Connecting);
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
        let mut tell = |doing| say(phase(doing, "engine", artefact.bytes));
        push::ensure(transport, Hasher::Itself, &item, &Room::default(), &mut tell)?;
        farmhand.prove_runs(transport)?;
        let lease =
            Lease::acquire(transport, &farmhand, &workdir, claim, &mut |owner, left| say(waiting(owner, left)))?;
        let engine_path = farmhand.path().to_owned();
        // from here on the session gives the lease back when something fails
        let mut session = Self {
            transport: boxed,
            device: device.name.clone(),
            workdir,
            farmhand,
            lease: Some(lease),
            held: vec![engine_path],
            quota_bytes: device.store_quota_mb.map(|mb| mb << 20),
            root: device.root(),
            fingerprint: Fingerprint::default(),
            engine_sha256: artefact.sha256.clone(),
            clock_offset_ms: 0,
            run: None,
            link_failed: false,
        };
        let mut probe = vec!["probe"];
        probe.extend(session.root.iter().flat_map(|root| ["--root", root.as_str()]));
        session.fingerprint = session.farmhand.ask(&mut *session.transport, &probe, PROBE)?;
        session.clock_offset_ms = clock_offset_ms(&mut *session.transport)?;
        Ok(session)
    }

    /// The device's name in the inventory.
    pub fn device(&self) -> &str {
        &self.device
    }
    /// What the probe found.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
    /// sha256 of the engine binary on the device.
    pub fn engine_sha256(&self) -> &str {
        &self.engine_sha256
    }
    /// Host wall clock minus device wall clock, milliseconds; known to half a second where the device only tells seconds.
    pub fn clock_offset_ms(&self) -> i64 {
        self.clock_offset_ms
    }
    /// The fencing token of the lease, for the plan.
    pub fn lease_token(&self) -> u64 {
        self.lease.as_ref().map_or(0, Lease::token)
    }
    /// farmgate's folder on the device.
    pub fn workdir(&self) -> &str {
        &self.workdir
    }
    /// Whether the last failure was one of the link, so that farmhand may still be at work and the next
    /// [`poll`](Self::poll) may reach it.
    pub fn link_may_return(&self) -> bool {
        self.link_failed
    }

    /// What a script prints that looks around in farmgate's folder on the device.
    ///
    /// # Errors
    /// INFRA: device or link failed. The device is the place.
    pub fn look_around(&mut self, script: &str) -> Result<String> {
        let script = format!("cd \"$1\" && {{ {script}\n}}");
        let output = self.transport.exec(&["sh", "-c", &script, "sh", &self.workdir], ASK);
        let output = output.map_err(|e| e.on_device(&self.device))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Brings a model to the device unless it is there; split sets keep their names in a folder named by their content.
    ///
    /// # Errors
    /// INFRA: no space, the link fails, or what arrived is damaged. The device is the place.
    pub fn push_model(&mut self, model: &ModelFile, say: &mut dyn FnMut(Phase)) -> Result<ModelRef> {
        self.try_push_model(model, say).map_err(|e| e.on_device(&self.device))
    }

    fn try_push_model(&mut self, model: &ModelFile, say: &mut dyn FnMut(Phase)) -> Result<ModelRef> {
        let remotes = store_names(&self.workdir, model)?;
        let total_bytes = model.facts.file_bytes;
        // nobody can renew the lease while a copy has the link
        self.lease_for(TIME_TO_LIVE + push::budget(total_bytes))?;
        self.held.extend(remotes.iter().cloned());
        let store = format!("{}/store", self.workdir);
        let room = Room { store: Some(&store), quota_bytes: self.quota_bytes, held: &self.held };
        let mut before_bytes = 0;
        for ((local, sha256), remote) in model.files.iter().zip(&model.facts.sha256).zip(&remotes) {
            let facts = std::fs::metadata(local).map_err(|e| Error::io("cannot read the model", local, &e))?;
            let item = Item { local, sha256, bytes: facts.len(), remote, mode: 0o600 };
            let mut tell = |doing| {
                let doing = match doing {
                    Doing::Copying(done) => Doing::Copying(before_bytes + done),
                    Doing::Verifying => Doing::Verifying,
                };
                say(phase(doing, &model.facts.name, total_bytes));
            };
            push::ensure(&mut *self.transport, Hasher::Farmhand(&self.farmhand), &item, &room, &mut tell)?;
            before_bytes += facts.len();
        }
        self.lease_for(TIME_TO_LIVE)?;
        Ok(ModelRef { path: remotes.into_iter().next().unwrap_or_default(), sha256: model.facts.sha256.clone() })
    }

    fn lease_for(&mut self, time_to_live: Duration) -> Result<()> {
        let day = Duration::from_millis(farmgate_engine::lease::TTL_MS_MAX);
        match &mut self.lease {
            Some(lease) => lease.renew_for(&mut *self.transport, time_to_live.min(day)),
            None => Err(Error::bug("a session without a lease")),
        }
    }

    /// Starts farmhand on a plan. It goes on by itself, also when the link is lost.
    ///
    /// # Errors
    /// Usage: the run has been started on this device before, or farmhand refuses the plan. INFRA: device or link failed.
    pub fn start(&mut self, plan: &DevicePlan) -> Result<()> {
        self.try_start(plan).map_err(|e| e.on_device(&self.device))
    }

    fn try_start(&mut self, plan: &DevicePlan) -> Result<()> {
        if self.run.is_some() {
            return Err(Error::bug("a session carries out one plan"));
        }
        // both become parts of a path
        let (run, device) = (RunId::parse(&plan.run)?, RunId::parse(&plan.device)?);
        let folder = format!("{}/runs/{run}/{device}", self.workdir);
        let made = self.transport.exec(&["sh", "-c", MAKE_RUN, "sh", &folder], ASK)?;
        match made.status {
            0 => {}
            44 => {
                return Err(Error::usage(format!("run `{run}` has been started on this device before"))
                    .hint("start a new run; its folder on the device is kept"));
            }
            _ => return Err(Error::infra(format!("cannot make the folder of the run: {}", made.ending()))),
        }
        self.launch(&folder, plan, Following::new(&folder, 0))
    }

    /// Brings the plan into the run's folder and starts farmhand on it.
    fn launch(&mut self, folder: &str, plan: &DevicePlan, run: Following) -> Result<()> {
        let plan_file = format!("{folder}/plan.json");
        let local = plan_as_file(plan)?;
        self.transport.push(local.path(), &plan_file, 0o600, ASK, &mut |_| {})?;
        let mut args = vec![
            "run",
            "--plan",
            &plan_file,
            "--journal",
            &run.journal,
            "--pid-file",
            &run.pid_file,
            "--workdir",
            &self.workdir,
            "--detach",
        ];
        args.extend(self.root.iter().flat_map(|root| ["--root", root.as_str()]));
        let outcome = self.farmhand.call(&mut *self.transport, &args, START);
        // from here on something may be at work there, even when the answer was lost
        self.run = Some(run);
        let output = outcome?;
        if output.is_success() { Ok(()) } else { Err(refusal(&["run"], &output)) }
    }

    /// The records that were written since the last call; none is told twice. Bounded: a call reads at most 4 MiB.
    ///
    /// # Errors
    /// INFRA: the link failed ([`link_may_return`](Self::link_may_return) says so, and nothing is lost), farmhand died
    /// (with the end of its log), or the journal is damaged.
    pub fn poll(&mut self) -> Result<Vec<Framed>> {
        let run = self.run.as_mut().ok_or_else(|| Error::bug("nothing was started"))?;
        let outcome = run.poll(&mut *self.transport);
        // a device that answers has a link
        self.link_failed = outcome.is_err() && self.transport.exec(&["true"], DROP).is_err();
        outcome.map_err(|e| e.on_device(&self.device))
    }

    /// Whether the last record of the plan has been polled.
    pub fn has_ended(&self) -> bool {
        self.run.as_ref().is_some_and(Following::has_ended)
    }

    /// Asks farmhand to end in good order and waits for it; its last records can be polled afterwards.
    ///
    /// # Errors
    /// INFRA: it did not end, or device or link failed.
    pub fn stop(&mut self) -> Result<()> {
        let Some(run) = &self.run else { return Ok(()) };
        let args = ["stop", "--pid-file", &run.pid_file, "--timeout-ms", STOP_MS];
        let output = self.farmhand.call(&mut *self.transport, &args, STOP);
        let output = output.map_err(|e| e.on_device(&self.device))?;
        if output.is_success() { Ok(()) } else { Err(refusal(&args, &output).on_device(&self.device)) }
    }

    /// Renews the lease when a third of its time has passed; call it now and then.
    ///
    /// # Errors
    /// INFRA: somebody else was granted the device meanwhile, or device or link failed.
    pub fn renew(&mut self) -> Result<()> {
        let Some(lease) = &mut self.lease else { return Ok(()) };
        lease.renew_if_due(&mut *self.transport).map_err(|e| e.on_device(&self.device))
    }

    /// Ends what is still at work and gives the device back.
    ///
    /// # Errors
    /// INFRA when device or link fail; the lease then ends by itself.
    pub fn close(mut self) -> Result<()> {
        let stopped = if self.is_at_work() { self.stop() } else { Ok(()) };
        let released = match self.lease.take() {
            Some(lease) => lease.release(&mut *self.transport, ASK).map_err(|e| e.on_device(&self.device)),
            None => Ok(()),
        };
        stopped.and(released)
    }

    fn is_at_work(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.has_ended())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        // without a link each attempt would only cost its deadline
        if self.link_failed {
            return;
        }
        if let Some(run) = self.run.as_ref().filter(|run| !run.has_ended()) {
            let args = ["stop", "--pid-file", &run.pid_file, "--timeout-ms", "4000"];
            if let Err(error) = self.farmhand.call(&mut *self.transport, &args, DROP) {
                log::warn!("device {}: {error}", self.device);
            }
        }
        if let Err(error) = lease.release(&mut *self.transport, DROP) {
            log::warn!("device {}: {error}", self.device);
        }
    }
}

fn waiting(owner: &str, left: Duration) -> Phase {
    Phase::Waiting { owner: owner.to_owned(), left_ms: left.as_millis() as u64 }
}

fn phase(doing: Doing, what: &str, total_bytes: u64) -> Phase {
    match doing {
        Doing::Copying(done_bytes) => Phase::Pushing { what: what.to_owned(), done_bytes, total_bytes },
        Doing::Verifying => Phase::Verifying { what: what.to_owned() },
    }
}

/// Where the files of a model lie on a device. One file is named by its content; the files of a set need their own names
/// to find each other, so their folder is.
fn store_names(workdir: &str, model: &ModelFile) -> Result<Vec<String>> {
    let hashes = &model.facts.sha256;
    if hashes.len() != model.files.len() || hashes.is_empty() {
        return Err(Error::bug("a model with another number of hashes than files"));
    }
    if let [sha256] = &hashes[..] {
        return Ok(vec![format!("{workdir}/store/{sha256}.gguf")]);
    }
    let set = sha256_hex(hashes.join("\n").as_bytes());
    let mut names = Vec::new();
    for file in &model.files {
        let name = file.file_name().and_then(|n| n.to_str()).ok_or_else(|| {
            Error::usage("the name of a model file is not UTF-8").in_file(file).hint("rename the files of the set")
        })?;
        names.push(format!("{workdir}/store/{set}/{name}"));
    }
    Ok(names)
}

fn plan_as_file(plan: &DevicePlan) -> Result<tempfile::NamedTempFile> {
    let text = serde_json::to_vec(plan).map_err(|e| Error::bug(format!("cannot encode the plan: {e}")))?;
    let written = tempfile::NamedTempFile::new().and_then(|mut file| file.write_all(&text).map(|()| file));
    written.map_err(|e| Error::infra(format!("cannot write the plan on this machine: {e}")))
}

/// Compares wall clocks, in the middle of the question's time.
fn clock_offset_ms(transport: &mut dyn Transport) -> Result<i64> {
    let asked = Instant::now();
    let host_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
    let output = transport.exec(&["date", "+%s.%N"], ASK)?;
    let middle_ms = host_ms + asked.elapsed().as_millis() as i64 / 2;
    let device_ms = device_ms(String::from_utf8_lossy(&output.stdout).trim());
    device_ms.map(|device_ms| middle_ms.saturating_sub(device_ms)).ok_or_else(|| {
        Error::infra(format!("the device does not tell its time: {}", output.ending())).with_exit(ExitCode::Infra)
    })
}

/// `seconds.nanoseconds`; where `%N` is not known, the middle of the second.
fn device_ms(said: &str) -> Option<i64> {
    let (seconds, rest) = said.split_once('.').unwrap_or((said, ""));
    let seconds: i64 = seconds.parse().ok().filter(|s| (0..1 << 40).contains(s))?;
    let ms = match rest {
        digits if digits.len() == 9 => digits.parse::<i64>().map_or(500, |ns| ns / 1_000_000),
        _ => 500,
    };
    Some(seconds * 1_000 + ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ModelFacts;
    use std::path::PathBuf;

    fn model(files: &[&str], sha256: &[&str]) -> ModelFile {
        let facts = ModelFacts {
            name: "m".into(),
            sha256: sha256.iter().map(|s| (*s).to_owned()).collect(),
            file_bytes: 1,
            weight_bytes: 1,
            architecture: "llama".into(),
            parameters: 1,
            weight_type: "F16".into(),
        };
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        ModelFile { path: files[0].clone(), files, facts, context_tokens: None }
    }

    #[test]
    fn a_single_model_is_named_by_its_content_and_a_set_keeps_its_names() {
        assert_eq!(store_names("/w", &model(&["a/m.gguf"], &["ab"])).unwrap(), ["/w/store/ab.gguf"]);
        let files = ["x/m-00001-of-00002.gguf", "x/m-00002-of-00002.gguf"];
        let names = store_names("/w", &model(&files, &["ab", "cd"])).unwrap();
        let set = sha256_hex(b"ab\ncd");
        assert_eq!(names[1], format!("/w/store/{set}/m-00002-of-00002.gguf"));
        assert_ne!(names, store_names("/w", &model(&files, &["ab", "ce"])).unwrap());
    }

    #[test]
    fn the_time_of_a_device_is_read_with_and_without_nanoseconds() {
        assert_eq!(device_ms("1700000000.123456789"), Some(1_700_000_000_123));
        assert_eq!(device_ms("1700000000.N"), Some(1_700_000_000_500));
        assert_eq!(device_ms("1700000000"), Some(1_700_000_000_500));
        for junk in ["", "x", "99999999999999999999", "-5"] {
            assert_eq!(device_ms(junk), None, "{junk}");
        }
    }
}
