//! How far the check of a large file is.

use super::{NAME_CHARS, QUIET, bar_style, can_move, note};
use crate::error::Result;
use crate::report::terminal::progress::padded;
use crate::report::text;
use indicatif::ProgressBar;
use std::path::Path;
use std::time::{Duration, Instant};

/// Shorter work is not worth a line.
const WORTH_A_LINE: Duration = Duration::from_millis(500);

/// Work that calls what it is given with the bytes done and the bytes in all.
pub type Work<'a, T> = dyn FnMut(&mut dyn FnMut(u64, u64)) -> Result<T> + 'a;

/// Does `work` on a file and shows on stderr how far it is. Returns what the work returns.
pub fn hashing<T>(path: &Path, work: &mut Work<'_, T>) -> Result<T> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let start = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    let mut said = start;
    let outcome = work(&mut |done, total| {
        let elapsed = start.elapsed();
        if elapsed < WORTH_A_LINE {
            return;
        }
        let words = words(done, total, elapsed);
        if can_move() {
            let bar = bar.get_or_insert_with(|| {
                let bar = ProgressBar::new(total.max(1)).with_style(bar_style());
                bar.set_prefix(padded(&name, NAME_CHARS));
                bar
            });
            bar.set_position(done);
            bar.set_message(words);
        } else if said.elapsed() >= QUIET {
            said = Instant::now();
            note(&format!("{name}: {words}"));
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    outcome
}

fn words(done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3) / 1e6;
    format!("hashing, {} of {}, {rate:.0} MB/s", text::bytes(done), text::bytes(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_s_answer_comes_back_and_its_speed_is_in_words() {
        let answer = hashing(Path::new("models/a.gguf"), &mut |progress| {
            progress(1, 2);
            Ok(7)
        });
        assert_eq!(answer.unwrap(), 7);
        assert_eq!(words(500_000_000, 1_000_000_000, Duration::from_secs(2)), "hashing, 500.0 MB of 1.0 GB, 250 MB/s");
    }
}
