//! The supervisor: carries out a device plan, each cell in a fresh child process, and journals what happens.
//!
//! It measures nothing itself. It decides what a child cannot say of itself: whether the model is the plan's, whether
//! the proof fits the request, how the child ended, whether the attempt is INVALID and is to be tried again.

mod bandwidth;
mod budget;
mod cause;
mod child;
mod conditions;
mod detach;
mod files;
mod listener;
mod pid_file;
mod ready;
mod resume;
mod sentinel;
mod signal;

pub use detach::{Detached, detach};
pub use pid_file::{PidFile, Stopped, stop};

use crate::clock;
use crate::error::{EngineError, ErrorKind, Result};
use crate::execute::read_plan;
use crate::hash::sha256_file;
use crate::journal::Journal;
use crate::lease::{LeaseFolder, folder_above};
use crate::probe::{Tree, probe};
use crate::proof::build;
use crate::protocol::{CellPlan, DevicePlan, ExitCause, PROTOCOL_VERSION, ReasonCode, Record, SelfProof, Step};
use crate::telemetry::Observer;
use bandwidth::Bandwidths;
use child::{Attempt, Ended};
use files::{Hashes, Verdict};
use ready::Readiness;
use resume::Progress;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the lease is looked at while a cell runs.
const LEASE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a wait is journalled again while nothing changes.
const SAY_WAITING_EVERY: Duration = Duration::from_secs(30);
/// The longest pause of a wait before it is asked again whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What `farmhand run` is asked.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The device plan.
    pub plan: PathBuf,
    /// The journal; one that an earlier `run` of the same plan left unfinished is continued.
    pub journal: PathBuf,
    /// Where to leave the process number while running.
    pub pid_file: Option<PathBuf>,
    /// Root below which the device's `/sys` and `/proc` are read.
    pub root: PathBuf,
    /// Folder that holds the lease; by default the journal's folder, or the nearest above it that has one.
    pub workdir: Option<PathBuf>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All cells have run.
    Complete,
    /// It was asked to stop before.
    Interrupted,
}

/// Carries out the plan. Errors before the first record leave no trace in the journal; a lost lease and a journal that
/// cannot be written end the run with an error. `on_started` is called once the first record is on the medium.
pub fn run(orders: &Orders, on_started: &mut dyn FnMut()) -> Result<Ending> {
    signal::listen();
    let plan = read_plan(&orders.plan)?;
    let lease = plan.lease_token.map(|token| Lease {
        folder: orders.workdir.as_ref().map_or_else(|| folder_above(&orders.journal), LeaseFolder::new),
        token,
        looked: Instant::now(),
        lost: None,
    });
    if let Some(lease) = &lease {
        lease.folder.check(lease.token)?;
    }
    let pid_file = orders.pid_file.as_deref().map(|path| PidFile::take(path, &orders.journal)).transpose()?;
    let (journal, found) = Journal::open(&orders.journal)?;
    let progress = Progress::of(&found.records, &plan).map_err(|e| e.at(orders.journal.display().to_string()))?;
    let device = Tree::new(&orders.root);
    let observer = Observer::new(device.clone(), Tree::new("/"), &probe(&device));
    let agent_sha256 = sha256_file(Path::new("/proc/self/exe"))?;
    let mut supervisor = Supervisor {
        orders,
        plan: &plan,
        journal,
        observer,
        readiness: None,
        hashes: Hashes::default(),
        bandwidths: Bandwidths::default(),
        lease,
        agent_sha256,
    };
    let ending = supervisor.run(&progress, on_started);
    drop(pid_file);
    ending
}

struct Lease {
    folder: LeaseFolder,
    token: u64,
    looked: Instant,
    /// Why it is lost, once it is.
    lost: Option<EngineError>,
}

impl Lease {
    /// Looks at the lease, at most once a second; `true` when it is lost. A file that cannot be read just now is no
    /// proof that somebody else was granted the device.
    fn is_lost(&mut self) -> bool {
        if self.lost.is_none() && self.looked.elapsed() >= LEASE_LOOK_EVERY {
            self.look();
        }
        self.lost.is_some()
    }

    fn look(&mut self) {
        self.looked = Instant::now();
        self.lost = self.folder.check(self.token).err().filter(|e| e.kind() == ErrorKind::Lease);
    }
}

struct Supervisor<'a> {
    orders: &'a Orders,
    plan: &'a DevicePlan,
    journal: Journal,
    observer: Observer,
    /// `None` where the plan has no criteria.
    readiness: Option<Readiness>,
    hashes: Hashes,
    bandwidths: Bandwidths,
    lease: Option<Lease>,
    agent_sha256: String,
}

impl Supervisor<'_> {
    fn run(&mut self, progress: &Progress, on_started: &mut dyn FnMut()) -> Result<Ending> {
        self.journal.append(Record::JournalStart {
            protocol_version: PROTOCOL_VERSION,
            run: self.plan.run.clone(),
            device: self.plan.device.clone(),
            agent_build: build(),
            agent_sha256: self.agent_sha256.clone(),
            wall_clock: clock::wall_clock(),
        })?;
        on_started();
        self.begin_readiness(progress.idle_c())?;
        let mut interrupted = false;
        for cell in &self.plan.cells {
            if self.run_cell(cell, progress)? == Ending::Interrupted {
                interrupted = true;
                break;
            }
        }
        self.journal.append(Record::JournalEnd { interrupted })?;
        if let Some(lost) = self.lease.as_mut().and_then(|lease| lease.lost.take()) {
            return Err(lost);
        }
        Ok(if interrupted { Ending::Interrupted } else { Ending::Complete })
    }

    /// Whether to end now, and if so, because of whom.
    fn must_stop(&mut self) -> bool {
        signal::asked_to_stop() || self.lease.as_mut().is_some_and(Lease::is_lost)
    }

    /// One cell with its retries.
    fn run_cell(&mut self, cell: &CellPlan, progress: &Progress) -> Result<Ending> {
        let (mut attempt, mut tries_left) = progress.of_cell(cell.cell, self.plan.retries_max);
        while tries_left > 0 {
            if let Some(lease) = &mut self.lease {
                lease.look();
            }
            if self.must_stop() {
                return Ok(Ending::Interrupted);
            }
            crate::talk::talk!("cell {} ({}, {}), attempt {attempt}", cell.cell, cell.scenario, cell.arm.as_str());
            match self.run_attempt(cell, attempt)? {
                After::Stop => return Ok(Ending::Interrupted),
                After::Next => return Ok(Ending::Complete),
                After::Again => {}
            }
            attempt += 1;
            tries_left -= 1;
        }
        Ok(Ending::Complete)
    }

    fn run_attempt(&mut self, cell: &CellPlan, attempt: u32) -> Result<After> {
        let verdict = self.hashes.verify(&cell.model, &signal::asked_to_stop);
        let identities = match verdict {
            Ok(Verdict::Same(identities)) => identities,
            Ok(Verdict::Stopped) => return Ok(After::Stop),
            Ok(Verdict::Differs(what)) => {
                let exit = ExitCause::Failed { status: 2, what: crate::text::escaped(what.as_bytes(), 500) };
                return self.never_started(cell, attempt, exit, ReasonCode::ModelHashDiffers);
            }
            Err(error) => return self.never_started(cell, attempt, cause::refused(&error), ReasonCode::CellDied),
        };
        // before the wait, since measuring warms the device
        let bandwidth = self.bandwidths.of(cell);
        match self.wait_until_ready(cell, attempt)? {
            Waited::Ready => {}
            Waited::Stopped => return Ok(After::Stop),
            Waited::InVain { why, waited_ms } => return self.not_ready(cell, attempt, waited_ms, why),
        }
        let is_cold = matches!(cell.steps.first(), Some(Step::Load { cold: true }));
        let eviction = if is_cold {
            files::evict(&identities)
        } else {
            files::warm(&identities, &signal::asked_to_stop);
            "none"
        };
        self.journal.append(cell_start(cell, attempt))?;
        let model = self.hashes.reading(&identities);
        let Self { orders, plan, journal, observer, lease, agent_sha256, .. } = self;
        let mut must_stop = || signal::asked_to_stop() || lease.as_mut().is_some_and(Lease::is_lost);
        let mut order = Attempt {
            plan,
            plan_path: &orders.plan,
            cell,
            attempt,
            eviction,
            verified: &identities,
            model,
            bandwidth,
            load_timeout_ms: budget::load_timeout_ms(cell.load_timeout_ms, model),
            telemetry_period: (plan.telemetry_period_ms > 0).then(|| Duration::from_millis(plan.telemetry_period_ms)),
            must_stop: &mut must_stop,
        };
        let ended = child::run(&mut order, journal, observer)?;
        let invalid = invalid_reasons(cell, &ended, agent_sha256);
        let after = after(&ended, &invalid);
        self.journal.append(cell_end(cell, attempt, ended, invalid))?;
        Ok(after)
    }

    /// A cell whose child was never spawned, since its model is missing or another one.
    fn never_started(&mut self, cell: &CellPlan, attempt: u32, exit: ExitCause, reason: ReasonCode) -> Result<After> {
        self.journal.append(cell_start(cell, attempt))?;
        self.journal.append(cell_end(cell, attempt, Ended::without_child(exit), vec![reason]))?;
        Ok(After::Next)
    }

    /// A cell that could not begin in time. It is not tried again: it has waited as long as it may.
    fn not_ready(&mut self, cell: &CellPlan, attempt: u32, waited_ms: u64, why: Vec<ReasonCode>) -> Result<After> {
        self.journal.append(cell_start(cell, attempt))?;
        let ended = Ended::without_child(ExitCause::NotReady { waited_ms });
        self.journal.append(cell_end(cell, attempt, ended, why))?;
        Ok(After::Next)
    }

    /// Writes down what readiness is judged by, where the plan has criteria.
    fn begin_readiness(&mut self, idle_c: Option<f64>) -> Result<()> {
        if self.plan.ready.is_off() {
            return Ok(());
        }
        let first = self.observer.read(0, std::process::id());
        let mut readiness = Readiness::new(&self.plan.ready, &self.observer, idle_c);
        let basis = readiness.basis(&first, &self.observer);
        if let Record::ReadyBasis { not_judged, .. } = &basis {
            for what in not_judged {
                crate::talk::talk!("warning: readiness is not judged by {what}");
            }
        }
        self.readiness = Some(readiness);
        self.journal.append(basis)
    }

    /// Waits until the device is fit for the attempt, for as long as the plan allows.
    fn wait_until_ready(&mut self, cell: &CellPlan, attempt: u32) -> Result<Waited> {
        let Some(mut readiness) = self.readiness.take() else { return Ok(Waited::Ready) };
        let waited = self.wait_with(&mut readiness, cell, attempt);
        self.readiness = Some(readiness);
        waited
    }

    fn wait_with(&mut self, readiness: &mut Readiness, cell: &CellPlan, attempt: u32) -> Result<Waited> {
        let begun = Instant::now();
        let poll_period = Duration::from_millis(self.plan.ready.poll_period_ms);
        let timeout = Duration::from_millis(self.plan.ready.cool_down_timeout_ms);
        if self.plan.ready.foreign_cpu_percent_max.is_some() {
            // what others take is known from the second reading on
            self.observer.read(cell.cell, std::process::id());
            if self.pause(poll_period) {
                return Ok(Waited::Stopped);
            }
        }
        let mut said: Option<(Vec<ReasonCode>, Instant)> = None;
        loop {
            let reading = self.observer.read(cell.cell, std::process::id());
            let objections = readiness.objections(&reading);
            if objections.is_empty() {
                return Ok(Waited::Ready);
            }
            let (why, waited) = (ready::reasons(&objections), begun.elapsed());
            let waited_ms = waited.as_millis() as u64;
            if said.as_ref().is_none_or(|(before, when)| *before != why || when.elapsed() >= SAY_WAITING_EVERY) {
                let phase = ready::phase(&objections).to_owned();
                crate::talk::talk!("cell {} waits ({phase}): {}", cell.cell, ready::words(&objections));
                self.journal.append(Record::Waiting { cell: cell.cell, attempt, phase, objections, waited_ms })?;
                said = Some((why.clone(), Instant::now()));
            }
            if waited >= timeout {
                return Ok(Waited::InVain { why, waited_ms });
            }
            if self.pause(poll_period.min(timeout - waited)) {
                return Ok(Waited::Stopped);
            }
        }
    }

    /// Lets time pass; `true` when it is time to stop instead.
    fn pause(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        while !self.must_stop() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
        true
    }
}

/// How a wait ended.
enum Waited {
    Ready,
    Stopped,
    InVain { why: Vec<ReasonCode>, waited_ms: u64 },
}

/// What follows an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Next,
    Again,
    Stop,
}

/// An INVALID attempt is tried again, unless nothing would be different: a refusal is no accident.
fn after(ended: &Ended, invalid: &[ReasonCode]) -> After {
    let lasting = [ReasonCode::ModelHashDiffers, ReasonCode::EngineHashDiffers];
    match &ended.exit {
        ExitCause::Interrupted => After::Stop,
        ExitCause::Failed { status: 2, .. } => After::Next,
        _ if invalid.iter().any(|reason| lasting.contains(reason)) => After::Next,
        _ if !invalid.is_empty() || ended.has_spoiled_samples => After::Again,
        _ => After::Next,
    }
}

fn cell_start(cell: &CellPlan, attempt: u32) -> Record {
    Record::CellStart {
        cell: cell.cell,
        attempt,
        scenario: cell.scenario.clone(),
        arm: cell.arm,
        pair: cell.pair,
        slot: cell.slot,
    }
}

fn cell_end(cell: &CellPlan, attempt: u32, ended: Ended, invalid: Vec<ReasonCode>) -> Record {
    Record::CellEnd {
        cell: cell.cell,
        attempt,
        exit: ended.exit,
        duration_ms: ended.duration_ms,
        invalid,
        stderr_tail: ended.stderr_tail,
    }
}

/// What speaks against all samples of an attempt.
fn invalid_reasons(cell: &CellPlan, ended: &Ended, agent_sha256: &str) -> Vec<ReasonCode> {
    let mut reasons = Vec::new();
    match &ended.exit {
        // what it waited for in vain is the reason, and the caller knows it
        ExitCause::Done | ExitCause::NotReady { .. } => {}
        ExitCause::Timeout { .. } => reasons.push(ReasonCode::Timeout),
        ExitCause::Interrupted => reasons.push(ReasonCode::Interrupted),
        ExitCause::Failed { .. } | ExitCause::Crash { .. } | ExitCause::Killed { .. } => {
            reasons.push(ReasonCode::CellDied);
        }
    }
    reasons.extend(&ended.conditions);
    match &ended.proof {
        Some(proof) => reasons.extend(differences(cell, proof, agent_sha256)),
        // an engine that ended well and proved nothing has measured nothing
        None if ended.exit == ExitCause::Done && !reasons.contains(&ReasonCode::CellDied) => {
            reasons.push(ReasonCode::CellDied)
        }
        None => {}
    }
    reasons
}

/// Where the proof is not what the plan asked for.
fn differences(cell: &CellPlan, proof: &SelfProof, agent_sha256: &str) -> Vec<ReasonCode> {
    let mut reasons = Vec::new();
    if proof.model_sha256 != cell.model.sha256 {
        reasons.push(ReasonCode::ModelHashDiffers);
    }
    if proof.engine_sha256 != agent_sha256 {
        reasons.push(ReasonCode::EngineHashDiffers);
    }
    // what the cores themselves say counts, whatever the engine makes of it
    let listed = cell.config.cpus.cpus();
    let elsewhere = listed.iter().zip(&proof.affinity_effective).any(|(core, found)| *found != core.to_string());
    let other = |asked: u32, found: u32| asked != 0 && found != asked;
    if other(cell.config.threads, proof.threads_effective)
        || other(cell.config.threads_batch, proof.threads_batch_effective)
        || elsewhere
        || !proof.affinity_faults.is_empty()
    {
        reasons.push(ReasonCode::AffinityDiffers);
    }
    reasons
}

#[cfg(test)]
mod tests;
