//! The system's allocator, which says so when there is no memory. Rust's own answer is SIGABRT, which looks like a bug.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;

/// Exit code of an error of the system.
const EXIT_CODE: i32 = 5;

/// For `#[global_allocator]` of a program: every refused request ends it with words and the exit code of a system error.
/// `try_reserve` never sees a refusal then.
pub struct Allocator;

// SAFETY: every call goes to the system's allocator as it came, which keeps the contract; what differs is that a refusal does
// not return
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise
        had(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise
        had(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise
        had(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn had(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() { give_up(bytes) } else { memory }
}

/// Allocates nothing, and runs nothing that could: no destructor, no handler of the exit.
#[cold]
fn give_up(bytes: usize) -> ! {
    let mut words = [0u8; 256];
    let mut rest = &mut words[..];
    // the words fit
    let _ = write!(
        rest,
        "error: no memory: {bytes} bytes more were refused\n\nhint: ask for fewer tokens or threads, try --repack off, or raise \
         the limit (`ulimit -v`, the container's, the device's)\n"
    );
    let left = rest.len();
    let said = &words[..words.len() - left];
    // SAFETY: writes a live buffer to a descriptor, and ends the process
    unsafe {
        libc::write(libc::STDERR_FILENO, said.as_ptr().cast(), said.len());
        libc::_exit(EXIT_CODE)
    }
}
