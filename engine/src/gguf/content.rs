//! The bytes of one model file: mapped, or read.

use super::{LoadMode, in_file, split_set};
use crate::error::{EngineError, Result};
use crate::hash::{sha256_hex, sha256_opened};
use crate::memory::{self, Region, in_blocks};
use memmap2::Mmap;
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

/// By what an opened file is known to be the same one, unchanged, when it is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenedFile {
    /// Device number of its file system.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub bytes: u64,
    /// Last change of its content, nanoseconds since 1970.
    pub mtime_ns: i128,
}

impl OpenedFile {
    fn of(about: &Metadata) -> Self {
        let mtime_ns = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
        Self { dev: about.dev(), ino: about.ino(), bytes: about.size(), mtime_ns }
    }
}

/// A file's bytes, and what the file was when its descriptor was open.
pub(super) struct Content {
    held: Held,
    opened: Option<OpenedFile>,
    /// Whether the kernel tells the truth about what of it is in the page cache.
    may_ask: bool,
}

enum Held {
    /// With the descriptor that it was mapped from.
    Mapped(Mmap, File),
    Read(Region),
    /// From the start in memory, or nothing.
    Given(Vec<u8>),
}

impl Content {
    /// Opens a regular file; `progress` hears how many bytes of it have been read so far, if it is read. Model errors that
    /// name it.
    pub fn open(path: &Path, mode: LoadMode, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        let fault = |e: &io::Error| {
            let hint = match e.kind() {
                io::ErrorKind::NotFound => "check the path; a relative one starts at the current folder",
                io::ErrorKind::PermissionDenied => "the file is there but may not be read; check its rights",
                io::ErrorKind::OutOfMemory if mode == LoadMode::Read => {
                    "the model does not fit into memory; map it instead of reading it"
                }
                io::ErrorKind::OutOfMemory => "this process may not have as much address space (`ulimit -v`)",
                _ => "check that the path names a regular file",
            };
            in_file(EngineError::model(format!("cannot open the model: {e}")), path).hint(hint)
        };
        // a pipe without a writer would be waited for before it can be refused; for regular files the flag says nothing
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(|e| fault(&e))?;
        let about = file.metadata().map_err(|e| fault(&e))?;
        if !about.is_file() {
            return Err(in_file(EngineError::model("the model is not a regular file"), path).hint("name a .gguf file"));
        }
        let opened = Some(OpenedFile::of(&about));
        let held = match mode {
            _ if about.len() == 0 => Held::Given(Vec::new()),
            // SAFETY: the map is read-only. A file that another process shortens while it is mapped ends this process
            // with SIGBUS; models are opened from content-addressed stores, whose files never change.
            LoadMode::Map => Held::Mapped(unsafe { Mmap::map(&file) }.map_err(|e| fault(&e))?, file),
            LoadMode::Read => Held::Read(read(&file, about.len(), progress).map_err(|e| fault(&e))?),
        };
        Ok(Self { held, opened, may_ask: may_ask(path, &about) })
    }

    /// A file's bytes that are in memory already.
    pub fn given(bytes: Vec<u8>) -> Self {
        Self { held: Held::Given(bytes), opened: None, may_ask: false }
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Mapped(map, _) => map,
            Held::Read(region) => region,
            Held::Given(bytes) => bytes,
        }
    }

    pub fn is_mapped(&self) -> bool {
        matches!(self.held, Held::Mapped(..))
    }

    /// Bytes of a mapped file in the page cache. The kernel answers "all of it" for files that this process neither owns
    /// nor may write: that is no answer.
    pub fn resident_bytes(&self) -> Option<u64> {
        if self.may_ask { memory::resident_bytes(self.bytes()) } else { None }
    }

    pub fn opened(&self) -> Option<OpenedFile> {
        self.opened
    }

    /// sha256 of the bytes in use, remembered for as long as the process lives.
    pub fn sha256(&self) -> String {
        static KNOWN: OnceLock<Mutex<HashMap<OpenedFile, String>>> = OnceLock::new();
        let known = || KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
        let Some(opened) = self.opened else { return sha256_hex(self.bytes()) };
        if let Some(sha256) = known().get(&opened) {
            return sha256.clone();
        }
        // the lock is not held meanwhile: at worst two threads hash the same file
        let sha256 = match &self.held {
            // by reading: through the map, pages that were let go would come back
            Held::Mapped(map, file) => sha256_opened(file).unwrap_or_else(|_| sha256_hex(map)),
            _ => sha256_hex(self.bytes()),
        };
        known().insert(opened, sha256.clone());
        sha256
    }
}

/// Brings what is mapped into memory; `progress` hears how many bytes are done so far.
pub(super) fn page_in(contents: &[Content], progress: &(dyn Fn(u64) + Sync)) {
    let mut before = 0;
    for content in contents.iter().filter(|c| c.is_mapped()) {
        memory::page_in(content.bytes(), &|done| progress(before + done));
        before += content.bytes().len() as u64;
    }
}

/// The files of a model, mapped and not looked into: for those who ask how much of them is in memory, which reading a
/// header would change.
pub struct MappedFiles(Vec<Content>);

impl MappedFiles {
    /// Maps the file, or the set that it is one of. Model errors that name the file.
    pub fn open(path: &Path) -> Result<Self> {
        let files = split_set(path)?;
        files.iter().map(|file| Content::open(file, LoadMode::Map, &|_| {})).collect::<Result<_>>().map(Self)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|c| c.bytes().len() as u64).sum()
    }

    /// How many of them are in the page cache; `None` where the kernel does not say, as it may not for files of others.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.0.iter().map(Content::resident_bytes).sum()
    }

    /// Brings all of them into the page cache; `progress` hears how many bytes are done so far.
    pub fn page_in(&self, progress: &(dyn Fn(u64) + Sync)) {
        page_in(&self.0, progress);
    }
}

/// The rule of `mincore` since Linux 5.2.
fn may_ask(path: &Path, about: &Metadata) -> bool {
    // SAFETY: takes nothing and cannot fail
    let user = unsafe { libc::geteuid() };
    user == 0 || user == about.uid() || std::fs::OpenOptions::new().append(true).open(path).is_ok()
}

/// Reads a file in large blocks by several threads, which also take the page faults of new memory between them.
fn read(file: &File, bytes: u64, progress: &(dyn Fn(u64) + Sync)) -> io::Result<Region> {
    let len = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut region = Region::zeroed(len)?;
    let shared = SharedBytes(region.as_mut_ptr());
    in_blocks(len, progress, &|block| {
        // SAFETY: the block lies within the region, and no two calls get overlapping ones
        let part = unsafe { std::slice::from_raw_parts_mut(shared.at(block.start), block.len()) };
        file.read_exact_at(part, block.start as u64)
    })?;
    Ok(region)
}

/// The start of a region that several threads fill at disjoint places.
struct SharedBytes(*mut u8);

// SAFETY: `read` gives every thread a part of its own
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// The place `offset` bytes on, which must lie within the region.
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}
