//! The model's files before a cell: are they the plan's, and are they in the page cache or out of it?

use super::budget::{ModelReading, TELLING_BYTES};
use crate::error::{EngineError, Result};
use crate::execute::FileIdentity;
use crate::gguf::split_set;
use crate::hash::sha256_file_while;
use crate::protocol::ModelRef;
use memmap2::MmapOptions;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// A file counts as evicted when at most this share of its pages is still in the page cache.
const RESIDENT_SHARE_MAX: f64 = 0.02;

/// Hashes that were computed in this run, by file identity: a model of a gigabyte is read once, not once a cell.
#[derive(Debug, Default)]
pub(super) struct Hashes {
    known: HashMap<FileIdentity, String>,
    /// Bytes that were read for it, and how long that took.
    read: (u64, Duration),
}

/// What the look at a model's files came to.
#[derive(Debug)]
pub(super) enum Verdict {
    /// All are as the plan says.
    Same(Vec<FileIdentity>),
    /// One has another content, or the set another number of files.
    Differs(String),
    /// Asked to stop while hashing.
    Stopped,
}

impl Hashes {
    /// Compares the model's files with the plan. A file that changes while it is read is read again by the next call.
    pub(super) fn verify(&mut self, model: &ModelRef, asked_to_stop: &dyn Fn() -> bool) -> Result<Verdict> {
        let files = split_set(Path::new(&model.path))?;
        if files.len() != model.sha256.len() {
            let (there, planned) = (files.len(), model.sha256.len());
            return Ok(Verdict::Differs(format!("the model has {there} files, the plan says {planned}")));
        }
        let mut identities = Vec::with_capacity(files.len());
        for (file, planned) in files.iter().zip(&model.sha256) {
            let place = file.display().to_string();
            let look =
                || FileIdentity::of(file).map_err(|e| EngineError::io("cannot look at the model", &e).at(&*place));
            if std::fs::metadata(file).is_ok_and(|about| !about.is_file()) {
                return Err(EngineError::model("the model is not a regular file")
                    .at(place)
                    .hint("push the model again"));
            }
            let identity = look()?;
            if !self.known.contains_key(&identity) {
                let begun = Instant::now();
                let Some(sha256) = sha256_file_while(file, &mut |_| !asked_to_stop())? else {
                    return Ok(Verdict::Stopped);
                };
                if look()? != identity {
                    return Err(EngineError::system("the model changed while it was being hashed").at(place));
                }
                self.read = (self.read.0 + identity.bytes, self.read.1 + begun.elapsed());
                self.known.insert(identity.clone(), sha256);
            }
            let found = &self.known[&identity];
            if found != planned {
                return Ok(Verdict::Differs(format!("{place} has sha256 {found}, the plan says {planned}")));
            }
            identities.push(identity);
        }
        Ok(Verdict::Same(identities))
    }

    /// How large these files are, and how fast files were read in this run.
    pub(super) fn reading(&self, files: &[FileIdentity]) -> ModelReading {
        let (bytes, took) = self.read;
        let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
        ModelReading {
            bytes: files.iter().map(|f| f.bytes).sum(),
            bytes_per_s: Some(rate).filter(|_| bytes >= TELLING_BYTES),
        }
    }
}

/// Puts the files out of the page cache and says by which means; `none` when they could not be put out.
pub(super) fn evict(files: &[FileIdentity]) -> &'static str {
    let advise_all = || files.iter().for_each(|file| advise_not_needed(&file.path));
    let is_out = || files.iter().all(|file| resident_share(&file.path).is_none_or(|share| share <= RESIDENT_SHARE_MAX));
    advise_all();
    if is_out() {
        return "posix_fadvise";
    }
    // pages that somebody else maps or that the advice passed over; only root may do this
    if std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok() {
        advise_all();
        if is_out() {
            return "drop_caches";
        }
    }
    "none"
}

fn advise_not_needed(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // pages that are not written back yet would stay
    let _ = file.sync_data();
    // SAFETY: the descriptor is open for as long as `file` lives; the call touches no memory of ours
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Share of a file's pages that are in the page cache; `None` when it cannot be told.
fn resident_share(path: &Path) -> Option<f64> {
    const WINDOW: u64 = 64 << 20;
    let file = File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    // SAFETY: sysconf takes a number and touches no memory of ours
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|p| *p > 0)?;
    let (mut pages, mut resident, mut offset) = (0usize, 0usize, 0u64);
    while offset < bytes {
        let length = WINDOW.min(bytes - offset) as usize;
        // SAFETY: the mapping is never read, only asked about, so a file that shrinks cannot fault it
        let map = unsafe { MmapOptions::new().offset(offset).len(length).map(&file) }.ok()?;
        let mut states = vec![0u8; length.div_ceil(page)];
        // SAFETY: the mapping covers `length` bytes from a page boundary, and `states` has a byte for each of its pages
        if unsafe { libc::mincore(map.as_ptr() as *mut libc::c_void, length, states.as_mut_ptr()) } != 0 {
            return None;
        }
        pages += states.len();
        resident += states.iter().filter(|state| **state & 1 == 1).count();
        offset += length as u64;
    }
    Some(if pages == 0 { 0.0 } else { resident as f64 / pages as f64 })
}

/// Reads the files once, so that a warm load finds them in the page cache whatever ran before.
pub(super) fn warm(files: &[FileIdentity], asked_to_stop: &dyn Fn() -> bool) {
    let mut piece = vec![0u8; 1 << 20];
    for file in files {
        if resident_share(&file.path).is_some_and(|share| share >= 1.0) {
            continue;
        }
        let Ok(mut file) = File::open(&file.path) else { continue };
        while !asked_to_stop() && matches!(file.read(&mut piece), Ok(n) if n > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(path: &Path, sha256: &str) -> ModelRef {
        ModelRef { path: path.display().to_string(), sha256: vec![sha256.into()] }
    }

    #[test]
    fn a_model_is_hashed_again_only_when_its_file_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, b"abc").unwrap();
        let abc = crate::hash::sha256_hex(b"abc");
        let mut hashes = Hashes::default();
        let Verdict::Same(files) = hashes.verify(&model(&path, &abc), &|| false).unwrap() else { panic!() };
        assert_eq!(files[0].bytes, 3);
        let reading = hashes.reading(&files);
        assert_eq!(reading, ModelReading { bytes: 3, bytes_per_s: None }, "three bytes say nothing of storage");
        hashes.read.0 = TELLING_BYTES;
        assert!(hashes.reading(&files).bytes_per_s.is_some_and(|rate| rate > 0.0));
        // a hash that is known needs no reading: nobody is asked whether to go on
        let never = || -> bool { panic!("read again") };
        assert!(matches!(hashes.verify(&model(&path, &abc), &never).unwrap(), Verdict::Same(_)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, b"xyz").unwrap();
        let Verdict::Differs(what) = hashes.verify(&model(&path, &abc), &|| false).unwrap() else { panic!() };
        assert!(what.contains(&crate::hash::sha256_hex(b"xyz")), "{what}");
    }

    #[test]
    fn another_number_of_files_differs_and_a_stop_is_heard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, b"abc").unwrap();
        let two = ModelRef { sha256: vec![String::new(); 2], ..model(&path, "") };
        assert!(matches!(Hashes::default().verify(&two, &|| false).unwrap(), Verdict::Differs(_)));
        assert!(matches!(Hashes::default().verify(&model(&path, ""), &|| true).unwrap(), Verdict::Stopped));
        assert!(Hashes::default().verify(&model(&folder.path().join("none"), ""), &|| false).is_err());
    }

    #[test]
    fn a_file_that_was_written_is_resident_until_it_is_evicted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, vec![7u8; 4 << 20]).unwrap();
        let files = [FileIdentity::of(&path).unwrap()];
        assert!(resident_share(&path).unwrap() > 0.9);
        let how = evict(&files);
        if how == "none" {
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!(
                    "SKIP a_file_that_was_written_is_resident_until_it_is_evicted: no page cache to evict from here\n"
                ),
            );
            return;
        }
        assert!(resident_share(&path).unwrap() <= RESIDENT_SHARE_MAX, "{how}");
        warm(&files, &|| false);
        assert!(resident_share(&path).unwrap() > 0.9);
    }
}
