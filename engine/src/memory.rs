//! Memory of a model: large pages, paging in, locking, and what of it is resident.

mod allocator;
mod blocks;
pub mod heap;
mod region;

pub use allocator::Allocator;
pub use blocks::{BLOCK_BYTES, in_blocks};
pub use region::Region;

use crate::tree::{Tree, kilobytes};
use std::convert::Infallible;
use std::ops::Range;

/// `MADV_POPULATE_READ`, Linux 5.14: maps pages, reading them where they are not in memory yet.
const MADV_POPULATE_READ: libc::c_int = 22;
/// Large pages of x86-64 and of Arm with 4 KiB pages, bytes.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What became of a request to lock memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locked {
    /// Bytes that are locked.
    pub bytes: u64,
    /// Why that is not all, with a hint on how it would be.
    pub warning: Option<String>,
}

impl Locked {
    /// Both together; the first refusal counts.
    pub fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, warning: self.warning.or(other.warning) }
    }
}

/// Page size of the running kernel, bytes.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf takes a number and touches no memory of ours
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Gives back to the system what the allocator keeps of freed memory, where it can be asked to.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator's own function, safe from any thread; no memory in use is touched
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory that can be had without swapping, bytes: the kernel's estimate, `None` where it has none.
pub fn available_bytes() -> Option<u64> {
    kilobytes(&Tree::new("/").lines("proc/meminfo")?, "MemAvailable")
}

/// Tells the kernel something about the pages of `bytes`; it may not care.
fn advise(bytes: &[u8], advice: libc::c_int) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let pages = pages_of(bytes);
    // SAFETY: the range is mapped, since it holds the pages of a live slice; the advice used here never drops content
    let done = unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), advice) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Addresses of the pages that `bytes` touch.
fn pages_of(bytes: &[u8]) -> Range<usize> {
    let page = page_bytes();
    let start = bytes.as_ptr() as usize;
    start & !(page - 1)..(start + bytes.len()).next_multiple_of(page)
}

/// Brings `bytes`, a mapped file, into memory and into this process's page tables: read ahead block by block, by several
/// threads. `progress` hears how many bytes are done so far, in steps of a block, on any of the threads.
///
/// Not `MAP_POPULATE`, which reads page by page with little readahead and gives no sign of life for a large file.
pub fn page_in(bytes: &[u8], progress: &(dyn Fn(u64) + Sync)) {
    // where the file system has large pages in its cache, this asks for them; elsewhere it does nothing
    let _ = advise(bytes, libc::MADV_HUGEPAGE);
    let Ok(()) = in_blocks(bytes.len(), progress, &|block| {
        let block = &bytes[block];
        fetch(block);
        bring_in(block);
        Ok::<(), Infallible>(())
    });
}

/// Has the system read `bytes`, a mapped file, into its page cache, and does not wait for that.
pub fn fetch(bytes: &[u8]) {
    let _ = advise(bytes, libc::MADV_WILLNEED);
}

/// Maps all pages of `bytes`, a mapped file, at once, reading what is not in memory yet.
pub fn bring_in(bytes: &[u8]) {
    if !bytes.is_empty() && advise(bytes, MADV_POPULATE_READ).is_err() {
        touch(bytes);
    }
}

/// Drops the whole pages of `bytes`, a mapped file, from this process; they stay in the page cache, and come back when they
/// are touched. Anonymous memory is left alone: it would lose its content.
pub fn let_go(bytes: &[u8], mapped: bool) {
    let page = page_bytes();
    let start = (bytes.as_ptr() as usize).next_multiple_of(page);
    let end = (bytes.as_ptr() as usize + bytes.len()) & !(page - 1);
    if mapped && start < end {
        // SAFETY: the pages lie within a live slice of a read-only file mapping, which the caller vouches for: dropped pages
        // are read from the file again
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// Reads a byte of every page.
fn touch(bytes: &[u8]) {
    for byte in bytes.iter().step_by(page_bytes()) {
        // SAFETY: a reference is valid to read from; volatile, so that the read is not optimised away
        unsafe { std::ptr::read_volatile(byte) };
    }
}

/// Keeps the pages of `bytes` in memory.
pub fn lock(bytes: &[u8]) -> Locked {
    if bytes.is_empty() {
        return Locked { bytes: 0, warning: None };
    }
    // SAFETY: the range is mapped, since it belongs to a live slice; locking changes no content
    let done = unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) };
    if done == 0 {
        return Locked { bytes: bytes.len() as u64, warning: None };
    }
    let cause = std::io::Error::last_os_error();
    Locked { bytes: 0, warning: Some(refusal(bytes.len() as u64, lock_limit_bytes(), &cause)) }
}

/// Soft `RLIMIT_MEMLOCK`, bytes; `None` when there is no limit or it cannot be read.
fn lock_limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit into a live local
    let done = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    // the type differs between systems
    #[allow(clippy::unnecessary_cast)]
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

fn refusal(wanted_bytes: u64, limit_bytes: Option<u64>, cause: &std::io::Error) -> String {
    match limit_bytes {
        Some(limit) if limit < wanted_bytes => format!(
            "the model is not locked in memory: it takes {wanted_bytes} bytes, this process may lock {limit}\n\n\
             hint: raise the limit (`ulimit -l`, RLIMIT_MEMLOCK, LimitMEMLOCK of a service) or leave out --mlock"
        ),
        _ => format!("the model of {wanted_bytes} bytes is not locked in memory: {cause}"),
    }
}

/// How many of `bytes`, a mapped file, are in the page cache: whole pages, so a little more than there is at most.
/// `None` where the kernel does not say.
pub fn resident_bytes(bytes: &[u8]) -> Option<u64> {
    let (page, mut resident) = (page_bytes(), 0u64);
    // a vector of a byte a page; block by block, so that it stays small
    let mut pages = vec![0u8; BLOCK_BYTES / page + 2];
    for block in bytes.chunks(BLOCK_BYTES) {
        let range = pages_of(block);
        let count = range.len() / page;
        // SAFETY: the range is mapped, and the vector has a byte for each of its pages
        let done = unsafe { libc::mincore(range.start as *mut libc::c_void, range.len(), pages.as_mut_ptr().cast()) };
        if done != 0 {
            return None;
        }
        resident += (pages[..count].iter().filter(|&&p| p & 1 != 0).count() * page) as u64;
    }
    Some(resident.min(bytes.len() as u64))
}

#[cfg(test)]
mod tests;
