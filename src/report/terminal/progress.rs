//! What each device is doing, from events and the time since the start. Pure.

use crate::event::{Event, Phase};
use crate::report::text;
use crate::run::RunState;
use farmgate_engine::protocol::{ExitCause, Record};
use std::collections::HashMap;
use std::time::Duration;

/// The progress of all devices.
pub struct Progress {
    devices: Vec<DeviceProgress>,
    positions: HashMap<String, usize>,
}

/// What an event gives to say.
#[derive(Debug, PartialEq)]
pub enum Said {
    /// Nothing for the eye.
    Nothing,
    /// Something that must be seen.
    Note(String),
    /// A device does something else now.
    Change(usize, String),
    /// A device does the same, further on.
    Step(usize, String),
}

/// One device's progress.
pub struct DeviceProgress {
    name: String,
    state: State,
    /// When the push that goes on was first seen, and the bytes done then.
    push_start: (Duration, u64),
    last_cells: (u64, u64),
}

enum State {
    Waiting,
    In(Phase),
    Finished,
    Failed,
}

impl Progress {
    /// All devices waiting.
    pub fn new(devices: &[String]) -> Self {
        let one = |name: &String| DeviceProgress {
            name: text::clean(name),
            state: State::Waiting,
            push_start: (Duration::ZERO, 0),
            last_cells: (0, 0),
        };
        Self {
            devices: devices.iter().map(one).collect(),
            positions: devices.iter().enumerate().map(|(i, d)| (d.clone(), i)).collect(),
        }
    }

    /// One device, by its position.
    pub fn device(&self, position: usize) -> &DeviceProgress {
        &self.devices[position]
    }

    /// Takes in an event.
    pub fn apply(&mut self, event: &Event, now: Duration) -> Said {
        match event {
            Event::RunStarted { manifest } => {
                let devices = text::counted(self.devices.len(), "device");
                Said::Note(format!("run {} on {devices}", text::clean(manifest.run.as_str())))
            }
            Event::RunResumed { .. } => Said::Note("going on with what is missing".to_owned()),
            Event::DeviceOpened { device, fingerprint, .. } => {
                Said::Note(format!("{}: reached, {}", text::clean(device), text::clean(&fingerprint.soc)))
            }
            Event::DevicePlanned { .. } => Said::Nothing,
            Event::DeviceRecord { device, framed } => record(device, &framed.record),
            Event::DeviceFinished { device } => self.end(device, State::Finished, now),
            Event::DeviceFailed { device, reason } => {
                self.end(device, State::Failed, now);
                Said::Note(format!("{}: INFRA: {}", text::clean(device), text::joined_sentence(reason)))
            }
            Event::RunEnded { state: RunState::Complete } => Said::Nothing,
            Event::RunEnded { state } => Said::Note(format!("run {}: what was measured is kept", state.as_str())),
            Event::Progress { device, phase } => match self.positions.get(device) {
                Some(position) => self.step(*position, phase, now),
                None => Said::Nothing,
            },
        }
    }

    fn end(&mut self, device: &str, state: State, now: Duration) -> Said {
        let Some(position) = self.positions.get(device).copied() else { return Said::Nothing };
        self.devices[position].state = state;
        Said::Change(position, self.line(position, now))
    }

    fn step(&mut self, position: usize, phase: &Phase, now: Duration) -> Said {
        let device = &mut self.devices[position];
        let same = device.is_same_phase(phase);
        if let (false, Phase::Pushing { done_bytes, .. }) = (same, phase) {
            device.push_start = (now, *done_bytes);
        }
        if let Phase::Measuring { done_cells, total_cells, .. } = phase {
            device.last_cells = (u64::from(*done_cells), u64::from(*total_cells));
        }
        device.state = State::In(phase.clone());
        let line = self.line(position, now);
        if same { Said::Step(position, line) } else { Said::Change(position, line) }
    }

    fn line(&self, position: usize, now: Duration) -> String {
        let device = &self.devices[position];
        format!("{}: {}", device.name, device.words(now))
    }

    /// What the devices from a position on are doing, together.
    pub fn rest_in_words(&self, from: usize) -> String {
        let rest = &self.devices[from.min(self.devices.len())..];
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for word in rest.iter().map(DeviceProgress::word) {
            match counts.iter_mut().find(|(w, _)| *w == word) {
                Some((_, count)) => *count += 1,
                None => counts.push((word, 1)),
            }
        }
        let words: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
        format!("{} more devices: {}", rest.len(), words.join(", "))
    }
}

impl DeviceProgress {
    fn is_same_phase(&self, phase: &Phase) -> bool {
        let State::In(before) = &self.state else { return false };
        match (before, phase) {
            (Phase::Pushing { what: a, .. }, Phase::Pushing { what: b, .. }) => a == b,
            (Phase::Verifying { what: a }, Phase::Verifying { what: b }) => a == b,
            (Phase::Measuring { .. }, Phase::Measuring { .. }) => true,
            (Phase::Waiting { owner: a, .. }, Phase::Waiting { owner: b, .. }) => a == b,
            _ => before == phase,
        }
    }

    fn word(&self) -> &'static str {
        match &self.state {
            State::Waiting => "waiting",
            State::In(Phase::Connecting) => "connecting",
            State::In(Phase::Waiting { .. }) => "in use",
            State::In(Phase::Pushing { .. }) => "pushing",
            State::In(Phase::Verifying { .. }) => "verifying",
            State::In(Phase::Measuring { .. }) => "measuring",
            State::In(Phase::Done) | State::Finished => "done",
            State::Failed => "failed",
        }
    }

    /// How far the bar is.
    pub fn done(&self) -> u64 {
        match &self.state {
            State::In(Phase::Pushing { done_bytes, .. }) => *done_bytes,
            State::In(Phase::Done) | State::Finished => self.total().max(1),
            _ => self.last_cells.0,
        }
    }

    /// How far the bar goes.
    pub fn total(&self) -> u64 {
        match &self.state {
            State::In(Phase::Pushing { total_bytes, .. }) => *total_bytes,
            _ => self.last_cells.1,
        }
    }

    /// What the device is doing, with figures.
    pub fn words(&self, now: Duration) -> String {
        let word = self.word();
        match &self.state {
            State::In(Phase::Pushing { what, done_bytes, total_bytes }) => {
                let (since, at) = self.push_start;
                let seconds = now.saturating_sub(since).as_secs_f64();
                let bytes = done_bytes.saturating_sub(at);
                let speed = match seconds > 0.5 && bytes > 0 {
                    true => {
                        let left_ms = total_bytes.saturating_sub(*done_bytes) as f64 / bytes as f64 * seconds * 1000.0;
                        let rate = bytes as f64 / seconds / 1e6;
                        format!(", {rate:.1} MB/s, {} left", text::duration(left_ms as u64))
                    }
                    false => String::new(),
                };
                let (done, total) = (text::bytes(*done_bytes), text::bytes(*total_bytes));
                format!("{word} {}, {done} of {total}{speed}", text::clean(what))
            }
            State::In(Phase::Waiting { owner, left_ms }) => {
                format!("{word} by {}, waiting at most {} more", text::clean(owner), text::duration(*left_ms))
            }
            State::In(Phase::Verifying { what }) => format!("{word} {}", text::clean(what)),
            State::In(Phase::Measuring { done_cells, total_cells, what, left_ms }) => format!(
                "{word} {}, {done_cells} of {total_cells} cells, {} left",
                text::clean(what),
                text::duration(*left_ms)
            ),
            _ if self.last_cells.1 > 0 => format!("{word}, {} of {} cells", self.last_cells.0, self.last_cells.1),
            _ => word.to_owned(),
        }
    }
}

/// A cell that went wrong is worth a line at once.
fn record(device: &str, record: &Record) -> Said {
    let Record::CellEnd { cell, attempt, exit, invalid, .. } = record else { return Said::Nothing };
    let what = match exit {
        ExitCause::Done if invalid.is_empty() => return Said::Nothing,
        ExitCause::Done | ExitCause::NotReady { .. } => {
            let reasons: Vec<&str> = invalid.iter().map(|r| r.as_str()).collect();
            format!("INVALID, {}", reasons.join(", "))
        }
        exit => text::exit_cause(exit),
    };
    Said::Note(format!("{}: cell {cell}, attempt {}: {what}", text::clean(device), attempt + 1))
}

/// A name of exactly `chars` characters: cut or filled with spaces.
pub fn padded(name: &str, chars: usize) -> String {
    format!("{:<chars$}", text::shortened(&text::clean(name), chars))
}
