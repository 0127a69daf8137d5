//! Pinning threads to cores, and reading back what the kernel made of it.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::mem;

    /// Core numbers the calling thread may run on, ascending.
    pub fn current_mask() -> Vec<usize> {
        // SAFETY: cpu_set_t is a plain bit array for which all zeroes is a value; the kernel writes at most its size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            if libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut set) != 0 {
                return Vec::new();
            }
            set
        };
        // SAFETY: the index stays below CPU_SETSIZE, the number of bits of the set.
        (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
    }

    /// Asks that the calling thread run on `cores` only. Best effort: what came of it is read back with [`of_thread`].
    pub fn set_mask(cores: &[usize]) {
        // SAFETY: as above; indices are checked against the size of the set, and the call reads the set only.
        unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            for &core in cores.iter().filter(|&&core| core < libc::CPU_SETSIZE as usize) {
                libc::CPU_SET(core, &mut set);
            }
            libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &set);
        }
    }

    /// The kernel's number of the calling thread.
    pub fn thread_id() -> i32 {
        // SAFETY: gettid takes nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_gettid) as i32 }
    }

    /// What the kernel says of a thread of this process.
    pub fn of_thread(thread: i32) -> super::ThreadAffinity {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
        let allowed = read("status").and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(line.trim().to_owned())
        });
        // the 39th field; the second one, a name in brackets, may hold blanks and brackets
        let ran_on =
            read("stat").and_then(|stat| stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok());
        super::ThreadAffinity { allowed: allowed.unwrap_or_else(|| super::UNKNOWN.to_owned()), ran_on }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod linux {
    /// Core numbers of the machine: this system has no affinity masks.
    pub fn current_mask() -> Vec<usize> {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    }
    /// Nothing: this system does not pin threads.
    pub fn set_mask(_cores: &[usize]) {}
    /// Threads have no numbers here.
    pub fn thread_id() -> i32 {
        0
    }
    /// Always unknown here.
    pub fn of_thread(_thread: i32) -> super::ThreadAffinity {
        super::ThreadAffinity { allowed: super::UNKNOWN.to_owned(), ran_on: None }
    }
}

/// What stands for a mask that cannot be read.
const UNKNOWN: &str = "unknown";

/// Where a thread may run, and where it last did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadAffinity {
    /// `Cpus_allowed_list`, for instance `0-3`; `unknown` when it cannot be read.
    pub allowed: String,
    /// The core that it ran on last, when that can be read.
    pub ran_on: Option<usize>,
}

/// Why a worker that was to be pinned to `core` is not; `None` when it is.
pub fn fault(worker: usize, core: usize, found: &ThreadAffinity) -> Option<String> {
    let ThreadAffinity { allowed, ran_on } = found;
    if allowed == UNKNOWN {
        return Some(format!("worker {worker} was pinned to core {core}, which cannot be read back"));
    }
    if *allowed != core.to_string() {
        return Some(format!("worker {worker} was pinned to core {core}, the kernel lets it run on {allowed}"));
    }
    let elsewhere = ran_on.filter(|&ran_on| ran_on != core)?;
    Some(format!("worker {worker} is pinned to core {core} and ran on core {elsewhere} all the same"))
}

pub use linux::{current_mask, of_thread, set_mask, thread_id};
