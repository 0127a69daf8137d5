//! The only place besides `main` that prints: progress on stderr, and the table of a finished run for stdout.
//!
//! On a terminal every device has a line that moves; elsewhere there is a line at each change, and at most one every
//! few seconds in between. `NO_COLOR` is honoured.

mod hashing;
mod progress;
mod summary;
mod tables;

pub use hashing::hashing;
pub use summary::summary;
pub use tables::{advice, fingerprint, table};

use super::text;
use crate::event::Event;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use progress::{Progress, Said};
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Devices with a line of their own on a terminal; the others share one.
const LINES_MAX: usize = 16;
/// Shortest time between two lines of one device that say nothing new, when lines do not move.
const QUIET: Duration = Duration::from_secs(5);
/// Characters of a device's name in its line.
const NAME_CHARS: usize = 18;

/// The lines that move now, so that a note appears above them instead of through them.
static MOVING: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// Says one line on stderr.
pub fn note(words: &str) {
    let line = text::clean_sentence(words);
    let moving = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
    // stderr may be closed; that is no reason to fail
    let _ = match moving.as_ref() {
        Some(all) => all.println(line),
        None => writeln!(std::io::stderr(), "{line}"),
    };
}

/// Shows what a run does while it runs.
pub struct Terminal {
    progress: Progress,
    start: Instant,
    view: View,
}

enum View {
    Moving { all: MultiProgress, lines: Vec<ProgressBar>, rest: Option<ProgressBar> },
    Plain { out: Box<dyn Write + Send>, last_said: Vec<Option<Duration>> },
}

impl Terminal {
    /// On stderr, for these devices: moving lines when it is a terminal, plain ones else.
    pub fn new(devices: &[String]) -> Self {
        if can_move() {
            let view = moving(devices);
            if let View::Moving { all, .. } = &view {
                *MOVING.lock().unwrap_or_else(PoisonError::into_inner) = Some(all.clone());
            }
            return Self::with(devices, view);
        }
        Self::plain(devices, Box::new(std::io::stderr()))
    }

    /// Plain lines on any writer.
    pub fn plain(devices: &[String], out: Box<dyn Write + Send>) -> Self {
        Self::with(devices, View::Plain { out, last_said: vec![None; devices.len()] })
    }

    fn with(devices: &[String], view: View) -> Self {
        Self { progress: Progress::new(devices), start: Instant::now(), view }
    }

    /// Shows an event.
    pub fn show(&mut self, event: &Event) {
        self.show_at(event, self.start.elapsed());
    }

    /// The same at a given time since the start.
    fn show_at(&mut self, event: &Event, now: Duration) {
        let said = self.progress.apply(event, now);
        match &mut self.view {
            View::Plain { out, last_said } => say_plainly(out, last_said, said, now),
            View::Moving { all, lines, rest } => {
                if let Said::Note(text) = &said {
                    // a line that cannot be printed is no reason to end a run
                    let _ = all.println(text);
                }
                for (position, line) in lines.iter().enumerate() {
                    let device = self.progress.device(position);
                    line.set_length(device.total().max(1));
                    line.set_position(device.done());
                    line.set_message(device.words(now));
                }
                if let Some(rest) = rest {
                    rest.set_message(self.progress.rest_in_words(LINES_MAX));
                }
            }
        }
    }

    /// Leaves the lines as they are; nothing moves afterwards.
    pub fn finish(&mut self) {
        match &mut self.view {
            View::Moving { lines, rest, .. } => {
                lines.iter().chain(rest.iter()).for_each(ProgressBar::abandon);
                *MOVING.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            // as with every line: stderr that is closed is no reason to fail
            View::Plain { out, .. } => drop(out.flush()),
        }
    }
}

/// Whether lines on stderr can move.
fn can_move() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
    std::io::stderr().is_terminal() && !dumb
}

/// The look of a moving line, without colour when `NO_COLOR` asks for that.
fn bar_style() -> ProgressStyle {
    let template = match std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) {
        true => "{prefix:.bold} {bar:16.cyan/dim} {wide_msg}",
        false => "{prefix} {bar:16} {wide_msg}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn moving(devices: &[String]) -> View {
    let style = bar_style();
    let all = MultiProgress::new();
    let line = |name: &str| {
        let bar = all.add(ProgressBar::new(1).with_style(style.clone()));
        bar.set_prefix(progress::padded(name, NAME_CHARS));
        bar
    };
    let lines = devices.iter().take(LINES_MAX).map(|name| line(name)).collect();
    let rest = (devices.len() > LINES_MAX).then(|| {
        let bar = all.add(ProgressBar::new_spinner());
        bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar
    });
    View::Moving { all, lines, rest }
}

fn say_plainly(out: &mut dyn Write, last_said: &mut [Option<Duration>], said: Said, now: Duration) {
    let text = match said {
        Said::Nothing => return,
        Said::Note(text) => text,
        Said::Change(device, text) => {
            last_said[device] = Some(now);
            text
        }
        Said::Step(device, text) => {
            if last_said[device].is_some_and(|at| now.saturating_sub(at) < QUIET) {
                return;
            }
            last_said[device] = Some(now);
            text
        }
    };
    // stderr may be closed; that is no reason to end a run
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests;
