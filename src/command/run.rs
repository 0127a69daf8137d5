//! `farmgate run`: from a model and devices to a verdict and a report.

use super::report::{judge, write_all};
use super::{Done, engine, names, to_json};
use crate::cli::RunArgs;
use crate::config::Folders;
use crate::device::Inventory;
use crate::error::{Error, ExitCode, Result};
use crate::event::Event;
use crate::gate::Judgement;
use crate::model::ModelFile;
use crate::plan::{Overrides, Plan, Request};
use crate::report::terminal::{self, Terminal};
use crate::run::{Manifest, RunData, RunId, RunState};
use crate::runner::{self, Order};
use crate::scenario::Catalogue;
use crate::session::Session;
use crate::store::Store;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by Ctrl-C; every loop of a run looks at it.
static STOP: AtomicBool = AtomicBool::new(false);

/// `farmgate run`.
pub fn run(folders: &Folders, args: &RunArgs) -> Result<Done> {
    let candidate = open_model(&args.model)?;
    let baseline = args.baseline_model.as_deref().map(open_model).transpose()?;
    let campaign = Campaign::prepare(folders, args, candidate, baseline)?;
    if args.dry_run {
        return Ok(Done::ok(if args.json { to_json(&campaign.plan)? } else { campaign.plan.to_string() }));
    }
    let finished = campaign.carry_out(folders, args.artefacts.as_deref(), args.policy.as_deref())?;
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

/// A run that is decided but not begun.
pub struct Campaign {
    plan: Plan,
    candidate: ModelFile,
    baseline: Option<ModelFile>,
}

/// A run that has ended, with its judgement.
pub struct Finished {
    /// What was measured.
    pub run: RunData,
    /// What it means.
    pub judgement: Judgement,
}

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
        let plan = Plan::resolve(&Request {
            inventory: &inventory,
            catalogue: &catalogue,
            devices: &args.device,
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
        Ok(Self { plan, candidate, baseline })
    }

    /// Runs it, keeps it, judges it and writes its reports.
    pub fn carry_out(self, folders: &Folders, artefacts: Option<&Path>, policy: Option<&str>) -> Result<Finished> {
        let mut store = Store::open(&folders.results)?;
        let devices = || self.plan.devices.iter().map(|part| &part.device);
        let built = engine::for_devices(folders, artefacts, devices())?;
        let (run, created) = names::new_run(&folders.results)?;
        listen_for_ctrl_c()?;
        let mut terminal = Terminal::new(&devices().map(|d| d.name.clone()).collect::<Vec<_>>());
        let order = Order {
            plan: &self.plan,
            run: &run,
            candidate: &self.candidate,
            baseline: self.baseline.as_ref(),
            artefacts: &built,
            stop: &STOP,
        };
        let sessions = runner::open_devices(&order, &mut |event| terminal.show(event));
        let sessions = at_least_one(sessions)?;
        if STOP.load(Ordering::SeqCst) {
            sessions.into_iter().flatten().for_each(|session| drop(session.close()));
            return Err(Error::usage("stopped before anything was measured").hint("nothing was kept"));
        }
        let manifest = self.manifest(&run, created, policy);
        let state = self.measure(&mut store, &order, &manifest, sessions, &mut terminal)?;
        terminal.finish();
        let data = store.load(&run)?;
        debug_assert_eq!(data.state, state);
        let judgement = judge(folders, policy, &data)?;
        write_all(folders, &store.run_folder(&run), &data, &judgement)?;
        Ok(Finished { run: data, judgement })
    }

    fn measure(
        &self,
        store: &mut Store,
        order: &Order<'_>,
        manifest: &Manifest,
        sessions: Vec<Result<Session>>,
        terminal: &mut Terminal,
    ) -> Result<RunState> {
        let mut writer = store.begin(manifest)?;
        let mut keep = |events: &[Event]| -> Result<()> {
            events.iter().for_each(|event| terminal.show(event));
            writer.append_all(events)
        };
        runner::carry_out(order, sessions, &mut keep)
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
        }
    }
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
fn at_least_one(sessions: Vec<Result<Session>>) -> Result<Vec<Result<Session>>> {
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
