//! `farmhand warm`: page a model into the cache before it is measured.

use super::args::{Args, Flag, Verb};
use super::json;
use super::progress::Progress;
use crate::error::Result;
use crate::gguf::MappedFiles;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// `farmhand warm`.
pub const VERB: Verb = Verb {
    name: "warm",
    summary: "page a model into the cache; how fast that went and what is resident, as JSON",
    positional: "",
    flags: &[Flag { names: &["-m", "--model"], value: Some("FILE"), help: "model (GGUF); may be repeated" }],
    shared: &[],
    run,
};

/// What came of one model: a file, or a set of them as one.
#[derive(Serialize)]
struct Warmed<'a> {
    path: &'a str,
    bytes: u64,
    /// Share of it in the page cache before; null where the kernel does not say, as for files of others.
    resident_before_ratio: Option<f64>,
    resident_after_ratio: Option<f64>,
    /// What was not in the cache before, bytes.
    read_bytes: Option<u64>,
    duration_ms: f64,
    /// Speed of what was read; null when it was too little to say.
    read_mb_per_s: Option<f64>,
}

/// Less than this says nothing about the speed of a disk, bytes.
const READ_BYTES_MIN: u64 = 1 << 20;
/// A cache that keeps less than this share of a model cannot hold it.
const KEPT_RATIO_MIN: f64 = 0.99;

fn run(args: &Args) -> Result<u8> {
    args.require("--model")?;
    for path in args.all("--model") {
        let warmed = warm(Path::new(path), path)?;
        json::print(&warmed, false)?;
        if let Some(kept) = warmed.resident_after_ratio.filter(|kept| *kept < KEPT_RATIO_MIN) {
            crate::talk::talk!(
                "warning: only {:.1} % of {} stayed in the page cache: it will be read again while it is measured\n\n\
                 hint: free memory, or take a smaller model",
                kept * 100.0,
                crate::text::one_line(path)
            );
        }
    }
    Ok(0)
}

fn warm<'a>(file: &Path, path: &'a str) -> Result<Warmed<'a>> {
    let model = MappedFiles::open(file)?;
    let bytes = model.bytes();
    let before = model.resident_bytes();
    let progress = Progress::new("warming");
    let begun = Instant::now();
    model.page_in(&|done| progress.tell(done));
    let seconds = begun.elapsed().as_secs_f64();
    progress.end();
    let after = model.resident_bytes();
    let ratio = |resident: Option<u64>| resident.map(|resident| resident as f64 / bytes as f64);
    let read_bytes = before.map(|before| bytes - before);
    let read_long = read_bytes.filter(|read| *read >= READ_BYTES_MIN && seconds > 0.0);
    Ok(Warmed {
        path,
        bytes,
        resident_before_ratio: ratio(before),
        resident_after_ratio: ratio(after),
        read_bytes,
        duration_ms: seconds * 1e3,
        read_mb_per_s: read_long.map(|read| read as f64 / 1e6 / seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_model_is_resident_after_it_was_warmed_whatever_of_it_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, vec![7u8; 5 << 20]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice on an open descriptor, which touches no memory
        let evicted = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let first = warm(&path, "m.gguf").unwrap();
        assert_eq!((first.bytes, first.resident_after_ratio), (5 << 20, Some(1.0)));
        // a file system in memory keeps its files whatever it is asked
        if evicted == 0 && first.resident_before_ratio < Some(0.5) {
            assert!(first.read_bytes.unwrap() > 2 << 20 && first.read_mb_per_s.unwrap() > 0.0);
        }
        let again = warm(&path, "m.gguf").unwrap();
        assert_eq!((again.resident_before_ratio, again.read_bytes), (Some(1.0), Some(0)));
        assert_eq!(again.read_mb_per_s, None, "nothing was read");
        assert!(warm(&folder.path().join("absent.gguf"), "absent.gguf").is_err());
    }
}
