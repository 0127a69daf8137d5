//! One device's part of a run, from the pushed model to the end of its journal.

use super::{Order, Speaker};
use crate::error::{Error, Result};
use crate::event::{Event, Phase};
use crate::session::{Known, Session};
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{CellPlan, DevicePlan, Record};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks at the device's journal.
const POLL_PAUSE: Duration = Duration::from_millis(200);
/// How long farmhand may take to end in good order after it was asked to stop.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Slack on top of all budgets of a device's plan: process starts, hashing, cool-down polls.
const PLAN_SLACK: Duration = Duration::from_secs(120);

/// Measures on one device; every outcome is told as an event.
pub(super) fn measure(session: Session, order: &Order<'_>, index: usize, speaker: &Speaker) {
    match try_measure(session, order, index, speaker) {
        Ok(()) => {
            speaker.say(Event::DeviceFinished { device: speaker.device.clone() });
            speaker.phase(Phase::Done);
        }
        Err(error) => failed(speaker, &error),
    }
}

/// Tells that the device failed.
pub(super) fn failed(speaker: &Speaker, error: &Error) {
    let reason = match error.hint_text() {
        Some(hint) => format!("{}; hint: {hint}", error.what()),
        None => error.what().to_owned(),
    };
    speaker.say(Event::DeviceFailed { device: speaker.device.clone(), reason });
}

fn try_measure(mut session: Session, order: &Order<'_>, index: usize, speaker: &Speaker) -> Result<()> {
    speaker.say(Event::DeviceOpened {
        device: speaker.device.clone(),
        fingerprint: Box::new(session.fingerprint().clone()),
        engine_sha256: session.engine_sha256().to_owned(),
        clock_offset_ms: session.clock_offset_ms(),
    });
    if let Some(known) = order.known(&speaker.device) {
        return go_on(session, order, &known, index, speaker);
    }
    let mut say = |phase| speaker.phase(phase);
    let candidate = session.push_model(order.candidate, &mut say)?;
    let baseline = order.baseline.map(|model| session.push_model(model, &mut say)).transpose()?;
    let token = session.lease_token();
    let plan = order.plan.device_plan(index, order.run, &candidate, baseline.as_ref(), Some(token))?;
    speaker.say(Event::DevicePlanned { device: speaker.device.clone(), plan: Box::new(plan.clone()) });
    if !order.stop.load(Ordering::SeqCst) {
        session.start(&plan)?;
        let estimate_ms = order.plan.devices[index].estimate_s * 1000;
        follow(&mut session, order, &plan, Course::new(0, estimate_ms), order.link_loss_max(index), speaker)?;
    }
    session.close()
}

/// Goes on with a device that was given its plan before.
fn go_on(mut session: Session, order: &Order<'_>, known: &Known<'_>, index: usize, speaker: &Speaker) -> Result<()> {
    if !order.stop.load(Ordering::SeqCst) {
        let plan = session.go_on(known)?;
        speaker.say(Event::DevicePlanned { device: speaker.device.clone(), plan: Box::new(plan.clone()) });
        let done_cells = order.course.get(&speaker.device).map_or(0, |course| course.cells_ended);
        let estimate_ms = order.plan.devices[index].estimate_s * 1000;
        follow(&mut session, order, &plan, Course::new(done_cells, estimate_ms), order.link_loss_max(index), speaker)?;
    }
    session.close()
}

/// Reads the device's journal until its end, across failures of the link, and tells each record.
fn follow(
    session: &mut Session,
    order: &Order<'_>,
    plan: &DevicePlan,
    mut course: Course,
    link_loss_max: Duration,
    speaker: &Speaker,
) -> Result<()> {
    let started = Instant::now();
    let budget = budget(plan);
    let mut link_lost: Option<Instant> = None;
    let mut stopped: Option<Instant> = None;
    loop {
        match session.poll() {
            Ok(records) => {
                link_lost = None;
                records.into_iter().for_each(|framed| course.tell(framed, plan, speaker));
                if session.has_ended() {
                    return Ok(());
                }
                session.renew()?;
            }
            Err(error) if link_lost.get_or_insert_with(Instant::now).elapsed() > link_loss_max => return Err(error),
            Err(error) if !session.link_may_return() => return Err(error),
            Err(error) => log::info!("device {}: {error}", speaker.device),
        }
        if order.stop.load(Ordering::SeqCst) && stopped.is_none() {
            stopped = Some(Instant::now());
            session.stop()?;
        }
        if stopped.is_some_and(|at| at.elapsed() > STOP_MAX) {
            return Err(Error::infra(format!("farmhand did not end within {} s of being stopped", STOP_MAX.as_secs())));
        }
        if started.elapsed() > budget {
            let _ = session.stop();
            return Err(Error::infra(format!("the plan ran past all its budgets ({} s)", budget.as_secs()))
                .hint("the agent hangs; its log is in the device's run folder"));
        }
        thread::sleep(POLL_PAUSE);
    }
}

/// The longest that a plan can take when every cell uses up its budget in every attempt.
fn budget(plan: &DevicePlan) -> Duration {
    let attempts = u64::from(plan.retries_max) + 1;
    let wait_ms = if plan.ready.is_off() { 0 } else { plan.ready.cool_down_timeout_ms };
    let of_cell = |c: &CellPlan| c.load_timeout_ms.saturating_add(c.cell_timeout_ms).saturating_add(wait_ms);
    let cells = plan.cells.iter().map(of_cell).fold(0, u64::saturating_add);
    Duration::from_millis(cells.saturating_mul(attempts)) + PLAN_SLACK
}

/// How far a device has come.
struct Course {
    /// Cells that had ended before.
    before_cells: u32,
    done_cells: u32,
    what: String,
    started: Instant,
    /// What the plan thought the whole would take, milliseconds.
    estimate_ms: u64,
}

impl Course {
    fn new(done_cells: u32, estimate_ms: u64) -> Self {
        Self { before_cells: done_cells, done_cells, what: String::new(), started: Instant::now(), estimate_ms }
    }

    fn tell(&mut self, framed: Framed, plan: &DevicePlan, speaker: &Speaker) {
        let total_cells = plan.cells.len() as u32;
        match &framed.record {
            Record::CellStart { scenario, arm, .. } => self.what = format!("{scenario} {}", arm.as_str()),
            // cells run in plan order; one that is tried again ends twice
            // a device that cools down for minutes must not look like one that hangs
            Record::Waiting { phase, .. } => self.what.clone_from(phase),
            Record::CellEnd { cell, .. } => self.done_cells = (cell + 1).min(total_cells),
            _ => return speaker.say(Event::DeviceRecord { device: speaker.device.clone(), framed: Box::new(framed) }),
        }
        let left_ms = self.left_ms(total_cells);
        let (done_cells, what) = (self.done_cells, self.what.clone());
        speaker.say(Event::DeviceRecord { device: speaker.device.clone(), framed: Box::new(framed) });
        speaker.phase(Phase::Measuring { done_cells, total_cells, what, left_ms });
    }

    /// Mean time of the cells so far, times the cells left; before the first cell has ended, the plan's estimate.
    fn left_ms(&self, total_cells: u32) -> u64 {
        let elapsed_ms = self.started.elapsed().as_millis() as u64;
        let here_cells = self.done_cells.saturating_sub(self.before_cells);
        if here_cells == 0 {
            return self.estimate_ms.saturating_sub(elapsed_ms);
        }
        elapsed_ms / u64::from(here_cells) * u64::from(total_cells.saturating_sub(self.done_cells))
    }
}
