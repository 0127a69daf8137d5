//! Large pieces of work on memory, by several threads, with a sign of life after each piece.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a thread takes at a time, bytes: long enough for a disk to run at its speed.
pub const BLOCK_BYTES: usize = 16 << 20;
/// More threads than this do not make a disk faster.
const THREADS_MAX: usize = 4;

/// Does `work` for each block of `0..len`, in rising order, by up to four threads. `progress` hears how many bytes are done
/// so far. The first error ends it and is returned.
pub fn in_blocks<E: Send>(
    len: usize,
    progress: &(dyn Fn(u64) + Sync),
    work: &(dyn Fn(Range<usize>) -> Result<(), E> + Sync),
) -> Result<(), E> {
    let (next, done, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(None));
    let serve = || {
        loop {
            let start = next.fetch_add(BLOCK_BYTES, Ordering::Relaxed);
            if start >= len {
                return;
            }
            let block = start..len.min(start + BLOCK_BYTES);
            let bytes = block.len() as u64;
            if let Err(error) = work(block) {
                // nobody need take another block
                next.fetch_max(len, Ordering::Relaxed);
                failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                return;
            }
            progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = len.div_ceil(BLOCK_BYTES).min(cores).clamp(1, THREADS_MAX);
    std::thread::scope(|scope| {
        for i in 1..threads {
            // fewer threads than wanted are enough
            let _ = std::thread::Builder::new().name(format!("memory-{i}")).spawn_scoped(scope, serve);
        }
        serve();
    });
    failed.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}
