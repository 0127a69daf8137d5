//! `farmgate run`: from a model and devices to a verdict and a report.

use super::report::{judge, write_all};
use super::{Done, engine, names, to_json};
use crate::cli::RunArgs;
use crate::config::Folders;
use crate::device::{Device, Inventory};
use crate::error::{Error, ExitCode, Result};
use crate::event::{DeviceCourse, Event};
use crate::gate::Judgement;
use crate::lease::is_in_use;
use crate::model::ModelFile;
use crate::plan::{Overrides, Plan, Request};
use crate::quarantine::{FAILURES_MAX, Quarantine};
use crate::report::terminal::{self, Terminal};
use crate::run::{Manifest, RunData, RunId, Typed};
use crate::runner::{self, Order};
use crate::scenario::Catalogue;
use crate::session::Session;
use crate::store::{RunWriter, Store};
use crate::toolchain::Artefact;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set by Ctrl-C; every loop of a run looks at it.
static STOP: AtomicBool = AtomicBool::new(false);

/// `farmgate run`.
pub fn run(folders: &Folders, args: &RunArgs) -> Result<Done> {
    let finished = match &args.resume {
        Some(name) => super::resume::resume(folders, args, name)?,
        None => {
            let model = args.model.as_deref().ok_or_else(|| Error::bug("a run without a model was let pass"))?;
            let candidate = open_model(model)?;
            let baseline = args.baseline_model.as_deref().map(open_model).transpose()?;
            let campaign = Campaign::prepare(folders, args, candidate, baseline)?;
            if args.dry_run {
                return Ok(Done::ok(if args.json { to_json(&campaign.plan)? } else { campaign.plan.to_string() }));
            }
            campaign.carry_out(folders, args.artefacts.as_deref(), args.policy.as_deref())?
        }
    };
    let stdout = if args.json {
        crate::report::render::json(&finished.run, Some(&finished.judgement))?
    } else {
        finished.text(folders)
    };
    Ok(Done { stdout, exit: finished.judgement.exit })
}

/// Checks and hashes a model file, showing how far it is.
pub fn open_model(path: &Path) -> Result<ModelFile> {
    terminal::hashing(path, &mut |progress| ModelFile::open(path, progress))
}

/// A run that is decided but not begun, or not ended.
pub struct Campaign {
    pub(super) plan: Plan,
    candidate: ModelFile,
    baseline: Option<ModelFile>,
    typed: Typed,
    /// How long to wait for devices that others hold.
    patience: Duration,
    /// Where each device stands, in a run that is gone on with.
    pub(super) course: BTreeMap<String, DeviceCourse>,
}

/// A run that has ended, with its judgement.
pub struct Finished {
    /// What was measured.
    pub run: RunData,
    /// What it means.
    pub judgement: Judgement,
}

/// Devices as they could be opened, in plan order; `None` where nothing is left to do.
type Sessions = Vec<Result<Option<Session>>>;

impl Campaign {
    /// Reads everything that users edit and decides the plan. Whatever is wrong comes out here, before any device is
    /// touched.
    pub fn prepare(
        folders: &Folders,
        args: &RunArgs,
        candidate: ModelFile,
        baseline: Option<ModelFile>,
    ) -> Result<Self> {
        let inventory = Inventory::load(folders)?;
        let catalogue = Catalogue::load(folders)?;
        crate::policy::Policy::load(folders, args.policy.as_deref().unwrap_or("default"))?;
        let devices = match &args.labels {
            Some(labels) => labelled(&inventory, labels)?,
            None => args.device.clone(),
        };
        let plan = Plan::resolve(&Request {
            inventory: &inventory,
            catalogue: &catalogue,
            devices: &devices,
            scenarios: &args.scenarios,
            candidate: &candidate,
            baseline: baseline.as_ref(),
            overrides: Overrides {
                pairs: args.pairs,
                repetitions: args.repetitions,
                threads: args.threads,
                context_tokens: args.context_tokens,
            },
            engines: &[],
        })?;
        let absolute = |model: &ModelFile| std::path::absolute(&model.path).unwrap_or_else(|_| model.path.clone());
        let typed = Typed {
            model: absolute(&candidate),
            baseline_model: baseline.as_ref().map(absolute),
            pairs: args.pairs,
            repetitions: args.repetitions,
            threads: args.threads,
            context_tokens: args.context_tokens,
        };
        let patience = args.wait.unwrap_or_default();
        Ok(Self { plan, candidate, baseline, typed, patience, course: BTreeMap::new() })
    }

    /// Runs it, keeps it, judges it and writes its reports.
    pub fn carry_out(self, folders: &Folders, artefacts: Option<&Path>, policy: Option<&str>) -> Result<Finished> {
        let mut store = Store::open(&folders.results)?;
        let built = self.engines(folders, artefacts)?;
        let (run, created) = names::new_run(&folders.results)?;
        let order = self.order(&run, &built);
        let (mut terminal, sessions) = open_sessions(&order)?;
        let manifest = self.manifest(&run, created, policy);
        measure(store.begin(&manifest)?, &order, sessions, &mut terminal)?;
        finish(folders, &store, &run, policy)
    }

    /// Engines for the devices that have none yet; what keeps a device out of the run stands in their place.
    pub(super) fn engines(
        &self,
        folders: &Folders,
        artefacts: Option<&Path>,
    ) -> Result<BTreeMap<String, Result<Artefact>>> {
        let quarantine = Quarantine::load(&folders.results)?;
        let has_none = |device: &&Device| self.course.get(&device.name).is_none_or(|course| course.plan.is_none());
        let devices = || self.plan.devices.iter().map(|part| &part.device);
        let free = devices().filter(has_none).filter(|device| quarantine.of(&device.name).is_none());
        let mut engines = engine::for_devices(folders, artefacts, free)?;
        for device in devices() {
            if let Some(entry) = quarantine.of(&device.name) {
                let what = format!("it is in quarantine since {}: {}", entry.since, entry.reason);
                let hint = format!("`farmgate device return {}` takes it back", device.name);
                engines.insert(device.name.clone(), Err(Error::infra(what).hint(hint)));
            }
        }
        Ok(engines)
    }

    pub(super) fn order<'a>(&'a self, run: &'a RunId, built: &'a BTreeMap<String, Result<Artefact>>) -> Order<'a> {
        Order {
            plan: &self.plan,
            run,
            candidate: &self.candidate,
            baseline: self.baseline.as_ref(),
            artefacts: built,
            course: &self.course,
            patience: self.patience,
            stop: &STOP,
        }
    }

    fn manifest(&self, run: &RunId, created: String, policy: Option<&str>) -> Manifest {
        Manifest {
            run: run.clone(),
            created,
            farmgate_version: env!("CARGO_PKG_VERSION").to_owned(),
            host: names::host_facts(),
            scenarios: self.plan.scenario_names(),
            candidate: self.candidate.facts.clone(),
            baseline: self.baseline.as_ref().map(|model| model.facts.clone()),
            pairs: self.plan.pairs(),
            devices: self.plan.device_facts(),
            policy: policy.map(str::to_owned),
            typed: Some(self.typed.clone()),
        }
    }
}

/// Opens every device that has something left to do.
///
/// # Errors
/// No device could be opened, or the user stopped meanwhile: nothing was measured.
pub(super) fn open_sessions(order: &Order<'_>) -> Result<(Terminal, Sessions)> {
    listen_for_ctrl_c()?;
    let names: Vec<String> = order.plan.devices.iter().map(|part| part.device.name.clone()).collect();
    let mut terminal = Terminal::new(&names);
    let sessions = runner::open_devices(order, &mut |event| terminal.show(event));
    let sessions = at_least_one(sessions)?;
    if STOP.load(Ordering::SeqCst) {
        sessions.into_iter().flatten().flatten().for_each(|session| drop(session.close()));
        return Err(Error::usage("stopped before anything was measured").hint("nothing was kept"));
    }
    Ok((terminal, sessions))
}

/// Carries out the order; every event is kept before anything else is done.
pub(super) fn measure(
    mut writer: RunWriter<'_>,
    order: &Order<'_>,
    sessions: Sessions,
    terminal: &mut Terminal,
) -> Result<()> {
    let mut keep = |events: &[Event]| -> Result<()> {
        events.iter().for_each(|event| terminal.show(event));
        writer.append_all(events)
    };
    runner::carry_out(order, sessions, &mut keep)?;
    terminal.finish();
    Ok(())
}

/// Names of the devices whose labels fit.
fn labelled(inventory: &Inventory, labels: &str) -> Result<Vec<String>> {
    let chosen = super::device::choose(inventory, Some(labels))?;
    if chosen.is_empty() {
        return Err(Error::usage(format!("no device has labels that fit `{}`", crate::config::printable(labels)))
            .hint("`farmgate device list` shows the labels of all"));
    }
    Ok(chosen.iter().map(|device| device.name.clone()).collect())
}

/// Puts devices aside that failed in every one of the last runs.
fn put_aside(folders: &Folders, store: &Store, data: &RunData) -> Result<()> {
    for device in data.devices.iter().filter(|device| device.failure.is_some()) {
        let name = &device.facts.device;
        let failures = store.last_failures(name, FAILURES_MAX)?;
        if failures.len() < FAILURES_MAX || failures.iter().any(|why| why.is_none() || is_in_use(why.as_deref())) {
            continue;
        }
        let mut quarantine = Quarantine::load(&folders.results)?;
        if quarantine.of(name).is_none() {
            let why = format!("it failed in {FAILURES_MAX} runs in a row, the last one {}", data.manifest.run);
            quarantine.put(name, &why, &names::now(), &runner::host_name())?;
            terminal::note(&format!("{name}: put in quarantine: {why}; `farmgate device return {name}` takes it back"));
        }
    }
    Ok(())
}

/// Judges a run that has ended, and writes its reports.
pub(super) fn finish(folders: &Folders, store: &Store, run: &RunId, policy: Option<&str>) -> Result<Finished> {
    let data = store.load(run)?;
    put_aside(folders, store, &data)?;
    let judgement = judge(folders, policy, &data)?;
    write_all(folders, &store.run_folder(run), &data, &judgement)?;
    Ok(Finished { run: data, judgement })
}

impl Finished {
    /// The summary for stdout, with the place of the report.
    pub fn text(&self, folders: &Folders) -> String {
        let folder = folders.results.join(self.run.manifest.run.as_str());
        format!("{}report  {}\n", terminal::summary(&self.run, &self.judgement), folder.join("report.html").display())
    }
}

/// When no device at all could be opened, nothing was touched: the first fault is a usage error. Otherwise a device that
/// failed costs only its own cells.
fn at_least_one(sessions: Sessions) -> Result<Sessions> {
    if sessions.iter().any(Result::is_ok) {
        return Ok(sessions);
    }
    match sessions.into_iter().find_map(Result::err) {
        Some(error) if error.exit() == ExitCode::Bug => Err(error),
        Some(error) => Err(error.with_exit(ExitCode::Usage)),
        None => Err(Error::bug("a plan without devices was carried out")),
    }
}

/// The first Ctrl-C ends the run in good order, a second one ends farmgate at once.
fn listen_for_ctrl_c() -> Result<()> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let nohup = ignores_hangups();
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(ExitCode::Inconclusive as i32);
        }
        terminal::note("stopping in good order; what was measured is kept (Ctrl-C again leaves at once)");
    })
    .map_err(|e| Error::infra(format!("cannot listen for Ctrl-C: {e}")))?;
    if nohup {
        // the handler above takes hangups for Ctrl-C, but a run begun with nohup is to outlive its terminal
        // SAFETY: to ignore a signal touches no memory
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
    Ok(())
}

/// Whether this process was started with SIGHUP ignored, as `nohup` does.
fn ignores_hangups() -> bool {
    // SAFETY: the structure is plain data for which all-zero bytes are valid, and outlives the call that fills it
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}
