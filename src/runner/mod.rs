//! Carries out a plan: one thread a device, and nothing but events comes out. The caller keeps and shows them, on one
//! thread, in the order in which they arrive.

mod measure;

use crate::error::{Error, Result};
use crate::event::{DeviceCourse, Event, Phase};
use crate::lease::Claim;
use crate::model::ModelFile;
use crate::plan::Plan;
use crate::run::{RunId, RunState};
use crate::session::{Known, Session};
use crate::toolchain::Artefact;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Events that may wait for the caller; a device thread blocks beyond that.
const EVENTS_QUEUED_MAX: usize = 4096;

/// What a run needs besides its devices.
pub struct Order<'a> {
    /// What is to happen.
    pub plan: &'a Plan,
    /// The run's name.
    pub run: &'a RunId,
    /// The candidate model.
    pub candidate: &'a ModelFile,
    /// The baseline model, in a comparison.
    pub baseline: Option<&'a ModelFile>,
    /// Engines by device; a device that could not be asked which one it needs has its fault instead.
    pub artefacts: &'a BTreeMap<String, Result<Artefact>>,
    /// Where each device stands, in a run that is gone on with.
    pub course: &'a BTreeMap<String, DeviceCourse>,
    /// How long to wait for a device that somebody else holds.
    pub patience: Duration,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
}

impl Order<'_> {
    /// What is known of a device that was given its plan before.
    fn known(&self, device: &str) -> Option<Known<'_>> {
        let course = self.course.get(device)?;
        let (fingerprint, engine_sha256) = course.opened.as_ref()?;
        Some(Known { fingerprint, engine_sha256, plan: course.plan.as_ref()?, seq_next: course.seq_next })
    }

    /// How long the link to the device at `index` may be gone while it measures on.
    fn link_loss_max(&self, index: usize) -> Duration {
        Duration::from_secs(self.plan.devices[index].device.link_loss_max_s)
    }

    fn is_finished(&self, device: &str) -> bool {
        self.course.get(device).is_some_and(|course| course.is_finished)
    }
}

/// Where a device's thread speaks.
pub(crate) struct Speaker {
    device: String,
    events: SyncSender<Event>,
}

impl Speaker {
    /// Hands an event to the caller's thread. When nobody listens any more there is nobody to tell.
    fn say(&self, event: Event) {
        let _ = self.events.send(event);
    }

    fn phase(&self, phase: Phase) {
        self.say(Event::Progress { device: self.device.clone(), phase });
    }
}

/// Opens a session on every device of the plan, in parallel; `None` where a run that is gone on with has nothing left to
/// do. One answer a device, in plan order.
pub fn open_devices(order: &Order<'_>, show: &mut dyn FnMut(&Event)) -> Vec<Result<Option<Session>>> {
    let work = order.plan.devices.iter().map(|part| (part.device.name.clone(), part)).collect();
    let owner = format!("{}@{}", order.run, host_name());
    let claim = Claim { owner: &owner, patience: order.patience, stop: Some(order.stop) };
    let opened = on_each(
        work,
        |part, speaker| {
            let name = &part.device.name;
            if order.is_finished(name) {
                speaker.phase(Phase::Done);
                return Ok(None);
            }
            if let Some(Err(error)) = order.artefacts.get(name) {
                return Err(error.clone().on_device(name));
            }
            if let Some(known) = order.known(name) {
                return Session::attach(&part.device, &known, &claim, &mut |phase| speaker.phase(phase)).map(Some);
            }
            speaker.phase(Phase::Connecting);
            let Some(Ok(artefact)) = order.artefacts.get(name) else {
                return Err(Error::bug("a device of the plan has no engine").on_device(name));
            };
            Session::open(&part.device, artefact, &claim, &mut |phase| speaker.phase(phase)).map(Some)
        },
        &mut |events| {
            events.iter().for_each(&mut *show);
            Ok(())
        },
        order.stop,
    );
    match opened {
        Ok(sessions) => sessions,
        Err(error) => vec![Err(error)],
    }
}

/// Measures on every opened device, in parallel, and tells everything through `keep`, which gets events in batches.
/// When `keep` fails (a full disk), the devices are stopped in good order and the fault is returned.
pub fn carry_out(
    order: &Order<'_>,
    sessions: Vec<Result<Option<Session>>>,
    keep: &mut dyn FnMut(&[Event]) -> Result<()>,
) -> Result<RunState> {
    let work = order.plan.devices.iter().map(|part| part.device.name.clone()).zip(sessions.into_iter().enumerate());
    on_each(
        work.collect(),
        |(index, session), speaker| match session {
            Ok(Some(session)) => measure::measure(session, order, index, speaker),
            Ok(None) => {}
            Err(error) => measure::failed(speaker, &error),
        },
        keep,
        order.stop,
    )?;
    let state = if order.stop.load(Ordering::SeqCst) { RunState::Interrupted } else { RunState::Complete };
    keep(&[Event::RunEnded { state }])?;
    Ok(state)
}

/// Runs `work` on a thread for each item, feeds their events to `keep` on this thread, and returns the answers in order.
fn on_each<T: Send, R: Send>(
    items: Vec<(String, T)>,
    work: impl Fn(T, &Speaker) -> R + Sync,
    keep: &mut dyn FnMut(&[Event]) -> Result<()>,
    stop: &AtomicBool,
) -> Result<Vec<R>> {
    let (events, inbox) = sync_channel(EVENTS_QUEUED_MAX);
    thread::scope(|scope| {
        let threads: Vec<_> = items
            .into_iter()
            .map(|(device, item)| {
                let speaker = Speaker { device, events: events.clone() };
                let work = &work;
                scope.spawn(move || work(item, &speaker))
            })
            .collect();
        drop(events);
        let kept = listen(&inbox, keep, stop);
        let answers = threads
            .into_iter()
            .map(|t| t.join().map_err(|_| Error::bug("a device's thread panicked")))
            .collect::<Result<Vec<R>>>();
        kept.and(answers)
    })
}

/// Takes events until every speaker is gone. After a fault of `keep` it only drains, so that no device thread blocks.
fn listen(inbox: &Receiver<Event>, keep: &mut dyn FnMut(&[Event]) -> Result<()>, stop: &AtomicBool) -> Result<()> {
    let mut fault = None;
    loop {
        let first = match inbox.recv_timeout(Duration::from_millis(500)) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return fault.map_or(Ok(()), Err),
        };
        let batch: Vec<Event> = std::iter::once(first).chain(inbox.try_iter().take(255)).collect();
        if fault.is_some() {
            continue;
        }
        if let Err(error) = keep(&batch) {
            stop.store(true, Ordering::SeqCst);
            fault = Some(error);
        }
    }
}

/// Name of this machine, for the lease; only letters, digits, `.` and `-`.
pub fn host_name() -> String {
    let name = sysinfo::System::host_name().unwrap_or_else(|_| "unknown-host".to_owned());
    name.chars().filter(|c| c.is_ascii_alphanumeric() || ".-".contains(*c)).take(64).collect()
}
