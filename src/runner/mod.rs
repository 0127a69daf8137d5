//! Carries out a plan: one thread a device, and nothing but events comes out. The caller keeps and shows them, on one
//! thread, in the order in which they arrive.

mod measure;

use crate::error::{Error, Result};
use crate::event::{Event, Phase};
use crate::model::ModelFile;
use crate::plan::Plan;
use crate::run::{RunId, RunState};
use crate::session::Session;
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
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
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

/// Opens a session on every device of the plan, in parallel. One answer a device, in plan order.
pub fn open_devices(order: &Order<'_>, show: &mut dyn FnMut(&Event)) -> Vec<Result<Session>> {
    let work = order.plan.devices.iter().map(|part| (part.device.name.clone(), part)).collect();
    let owner = format!("{}@{}", order.run, host_name());
    let opened = on_each(
        work,
        |part, speaker| {
            speaker.phase(Phase::Connecting);
            let name = &part.device.name;
            let artefact = match order.artefacts.get(name) {
                Some(Ok(artefact)) => artefact,
                Some(Err(error)) => return Err(error.clone().on_device(name)),
                None => return Err(Error::bug("a device of the plan has no engine").on_device(name)),
            };
            Session::open(&part.device, artefact, &owner, &mut |phase| speaker.phase(phase))
                .map_err(|e| e.on_device(&part.device.name))
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
    sessions: Vec<Result<Session>>,
    keep: &mut dyn FnMut(&[Event]) -> Result<()>,
) -> Result<RunState> {
    let work = order.plan.devices.iter().map(|part| part.device.name.clone()).zip(sessions.into_iter().enumerate());
    on_each(
        work.collect(),
        |(index, session), speaker| match session {
            Ok(session) => measure::measure(session, order, index, speaker),
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
fn host_name() -> String {
    let name = sysinfo::System::host_name().unwrap_or_else(|_| "unknown-host".to_owned());
    name.chars().filter(|c| c.is_ascii_alphanumeric() || ".-".contains(*c)).take(64).collect()
}
