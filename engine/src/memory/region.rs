//! Anonymous memory for weights that are read instead of mapped.

use super::{HUGE_PAGE_BYTES, page_bytes};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed memory of its own, on large pages where the system has them: it begins at a multiple of 2 MiB, and only what
/// has been written is resident.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, which hands it out by the rules of borrowing
unsafe impl Send for Region {}
// SAFETY: as above
unsafe impl Sync for Region {}

impl Region {
    /// Takes `len` bytes, at least one. An error of the system when it has none.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let no_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let page = page_bytes();
        let held = len.max(1).checked_next_multiple_of(page).ok_or_else(no_memory)?;
        // a little more, so that a multiple of 2 MiB is inside; what is too much is given back
        let taken = held.checked_add(HUGE_PAGE_BYTES).ok_or_else(no_memory)?;
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses touches no memory in use
        let base = unsafe { libc::mmap(std::ptr::null_mut(), taken, rights, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base as usize;
        let start = base.next_multiple_of(HUGE_PAGE_BYTES);
        give_back(base, start - base);
        give_back(start + held, base + taken - (start + held));
        let start = NonNull::new(start as *mut u8).ok_or_else(no_memory)?;
        // SAFETY: the range was just mapped and is ours; the advice concerns the size of pages only
        unsafe { libc::madvise(start.as_ptr().cast(), held, libc::MADV_HUGEPAGE) };
        Ok(Self { start, len })
    }
}

/// Unmaps part of a mapping that nothing refers to.
fn give_back(start: usize, len: usize) {
    if len > 0 {
        // SAFETY: only called on parts of a mapping of ours that no reference points into
        unsafe { libc::munmap(start as *mut libc::c_void, len) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        give_back(self.start.as_ptr() as usize, self.len.max(1).next_multiple_of(page_bytes()));
    }
}

impl Deref for Region {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and zeroed for `len` bytes, and borrowed with `self`
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
