//! A sign of life on the terminal while something large is read.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is done sooner needs no sign of life.
const SILENT_FOR: Duration = Duration::from_millis(500);
/// Pause between two signs, milliseconds.
const EVERY_MS: u64 = 200;

/// Tells how many bytes are done, on stderr and only where that is a terminal.
pub struct Progress {
    what: &'static str,
    begun: Instant,
    is_terminal: bool,
    /// When it was last told, milliseconds since the beginning; 0 when it never was.
    told_ms: AtomicU64,
}

impl Progress {
    /// Of something that begins now.
    pub fn new(what: &'static str) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { what, begun: Instant::now(), is_terminal, told_ms: AtomicU64::new(0) }
    }

    /// `bytes` are done; may be called from any thread, and as often as it comes.
    pub fn tell(&self, bytes: u64) {
        let elapsed = self.begun.elapsed();
        let now_ms = elapsed.as_millis() as u64;
        if !self.is_terminal || elapsed < SILENT_FOR || now_ms < self.told_ms.load(Ordering::Relaxed) + EVERY_MS {
            return;
        }
        self.told_ms.store(now_ms, Ordering::Relaxed);
        let mb = bytes as f64 / 1e6;
        // a terminal that is gone is no reason to stop
        let _ = write!(std::io::stderr(), "\r{}: {mb:.0} MB, {:.0} MB/s ", self.what, mb / elapsed.as_secs_f64());
    }

    /// Clears the line, if there is one.
    pub fn end(&self) {
        if self.told_ms.load(Ordering::Relaxed) > 0 {
            let _ = write!(std::io::stderr(), "\r{:60}\r", "");
        }
    }
}
