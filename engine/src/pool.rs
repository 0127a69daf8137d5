//! Worker threads for the parallel parts of a forward pass.
//!
//! A parallel part is a *region*: items `0..n`, handed out in chunks by an atomic counter, so that unequal or disturbed
//! cores take what they can. The calling thread is worker 0 and works too. A worker that did not get to run before the
//! chunks were gone is **not waited for**: the region closes, and only those who joined it are. That is what keeps an
//! oversubscribed machine at the speed of the threads that do run. Idle workers spin for some microseconds, then yield,
//! then park.
//!
//! A decode may want fewer workers than a prefill: a region is served by the first [`Pool::active`] of them. Each worker is
//! pinned to a core of its own, and what the kernel made of that is read back whenever somebody asks.

mod affinity;
mod topology;

pub(crate) use affinity::set_mask as pin_to;

use crate::error::{EngineError, Result};
use crate::profile::{Cost, Operator, Recorder};
use crate::protocol::EngineConfig;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use topology::{Placement, Topology};

/// More workers than this are refused.
pub const THREADS_MAX: usize = 256;
/// Busy looks at the state before the first yield; a few microseconds.
const SPINS: u32 = 200;
/// How long an idle worker yields before it parks.
const YIELD_FOR: Duration = Duration::from_micros(300);

/// Bits of [`Shared::state`]: the region's number above, the open bit, the count of helpers inside below.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

/// What a region runs: worker number and range of items.
type Work<'a> = &'a (dyn Fn(usize, Range<usize>) + Sync + 'a);

#[derive(Clone, Copy)]
struct Region {
    work: *const (dyn Fn(usize, Range<usize>) + Sync + 'static),
    items: usize,
    chunk: usize,
}

/// Keeps what several threads write on cache lines of their own.
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    state: Padded<AtomicU64>,
    next: Padded<AtomicUsize>,
    /// Workers that the next region is for; changed only while none is open.
    active: AtomicUsize,
    region: UnsafeCell<Option<Region>>,
    parked: Vec<AtomicBool>,
    quit: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `region` is written only by the thread that owns the `Pool`, while no region is open and nobody is inside; it
// is read only by workers that have joined an open region, after an acquire of the state that published it.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `region` is to a `Sync` closure that outlives its region (see `Pool::scatter`).
unsafe impl Send for Shared {}

/// A set of worker threads. Belongs to one thread at a time (it is `Send`, not `Sync`), so regions cannot nest.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    wakers: Vec<Thread>,
    thread_ids: Vec<i32>,
    placement: Placement,
    mask_before: Vec<usize>,
    recorder: Option<Box<Recorder>>,
    _one_owner: PhantomData<Cell<()>>,
}

impl Pool {
    /// Starts `threads` workers on cores of the default choice; see [`Self::for_config`].
    pub fn new(threads: usize) -> Result<Self> {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        Self::for_config(&EngineConfig { threads, ..EngineConfig::default() })
    }

    /// Starts the workers that `config` asks for, the calling thread being the first. Worker i is pinned to the i-th core
    /// of `cpus`, or of `cpu_clusters`, else of those that the process may use, fastest first; there, more workers than
    /// cores are not pinned. Without a number of threads it takes the cores that are named, else the performance cores.
    ///
    /// # Errors
    /// Usage errors above [`THREADS_MAX`], for more workers than named cores, for cores named in two ways, for clusters
    /// that the device lacks; a system error when a thread cannot be started. That a core cannot be had is no error here:
    /// [`Self::affinity_faults`] tells.
    pub fn for_config(config: &EngineConfig) -> Result<Self> {
        let placement = placement(config)?;
        let threads = placement.cores.len();
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next: Padded(AtomicUsize::new(0)),
            active: AtomicUsize::new(threads),
            region: UnsafeCell::new(None),
            parked: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            quit: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mask_before = affinity::current_mask();
        let mut pool = Self {
            shared,
            handles: Vec::new(),
            wakers: Vec::new(),
            thread_ids: vec![affinity::thread_id()],
            placement,
            mask_before,
            recorder: None,
            _one_owner: PhantomData,
        };
        for worker in 1..threads {
            pool.start_worker(worker)?;
        }
        if let Some(core) = pool.placement.cores[0] {
            affinity::set_mask(&[core]);
        }
        Ok(pool)
    }

    /// How many workers [`Self::for_config`] would let decode; its usage errors, and nothing is started.
    pub fn decode_threads_of(config: &EngineConfig) -> Result<usize> {
        placement(config).map(|placement| placement.decode)
    }

    fn start_worker(&mut self, worker: usize) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let core = self.placement.cores[worker];
        let (send, receive) = mpsc::channel();
        let body = move || {
            // an unpinned worker must not inherit the caller's single core
            affinity::set_mask(core.as_ref().map_or(Topology::device().cores(), std::slice::from_ref));
            let _ = send.send(affinity::thread_id());
            serve(&shared, worker);
        };
        let handle = thread::Builder::new().name(format!("worker-{worker}")).spawn(body).map_err(|e| {
            EngineError::io(format!("cannot start worker thread {worker}"), &e)
                .hint("ask for fewer threads, or raise the limits of this process (`ulimit -u`, `ulimit -v`)")
        })?;
        self.wakers.push(handle.thread().clone());
        self.handles.push(handle);
        let id = receive.recv().map_err(|_| EngineError::system(format!("worker thread {worker} did not start")))?;
        self.thread_ids.push(id);
        Ok(())
    }

    /// Number of workers, the calling thread included.
    pub fn threads(&self) -> usize {
        self.thread_ids.len()
    }

    /// Number of workers that serve one token at a time.
    pub fn decode_threads(&self) -> usize {
        self.placement.decode
    }

    /// Number of workers that serve a prompt.
    pub fn prefill_threads(&self) -> usize {
        self.placement.prefill
    }

    /// Number of workers that the next regions are for.
    pub fn active(&self) -> usize {
        self.shared.active.load(Ordering::Relaxed)
    }

    /// Lets the first `workers` serve the regions to come, at least one and at most all.
    pub fn set_active(&self, workers: usize) {
        // published by the store that opens the next region
        self.shared.active.store(workers.clamp(1, self.threads()), Ordering::Relaxed);
    }

    /// `Cpus_allowed_list` of each worker as the kernel has it now, worker 0 first.
    pub fn affinity(&self) -> Vec<String> {
        self.thread_ids.iter().map(|&id| affinity::of_thread(id).allowed).collect()
    }

    /// The core that each worker was to be pinned to, worker 0 first; empty texts when none was pinned.
    pub fn affinity_wanted(&self) -> Vec<String> {
        self.placement.cores.iter().map(|core| core.map_or_else(String::new, |core| core.to_string())).collect()
    }

    /// Where the kernel does not do what was asked for, now: workers that may run elsewhere, or that do. A core that is
    /// offline, taken away later, or not the process's to use shows here, and so does a system that accepts a mask and
    /// ignores it. Empty when all is as it should be, and where nothing was pinned.
    pub fn affinity_faults(&self) -> Vec<String> {
        let found = self.placement.cores.iter().zip(&self.thread_ids).enumerate();
        found.filter_map(|(worker, (core, &id))| affinity::fault(worker, (*core)?, &affinity::of_thread(id))).collect()
    }

    /// From now on regions are recorded, and what [`Self::mark`] says is no longer ignored. The recorder must be one for
    /// this many threads.
    pub fn start_recording(&mut self, recorder: Recorder) {
        assert_eq!(recorder.threads(), self.threads(), "a recorder for another number of threads");
        self.recorder = Some(Box::new(recorder));
    }

    /// Ends the recording and hands it over; `None` when there was none.
    pub fn stop_recording(&mut self) -> Option<Recorder> {
        self.recorder.take().map(|recorder| *recorder)
    }

    /// Where the recording goes, if there is one.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Says which operator runs from now on; `cost` is asked for only when that is recorded.
    #[inline]
    pub fn mark(&self, operator: Operator, layer: Option<usize>, cost: impl FnOnce() -> Cost) {
        if let Some(recorder) = &self.recorder {
            recorder.mark(operator, layer, cost());
        }
    }

    /// Runs `work(worker, range)` over all of `0..items`, in ranges of at most `chunk`, and returns when all is done.
    /// Ranges never overlap; `worker` is below [`Self::active`] and no two calls run at once with the same number.
    /// Panics when `work` panicked in a worker.
    pub fn scatter(&self, items: usize, chunk: usize, work: Work<'_>) {
        let chunk = chunk.max(1);
        let active = self.active();
        if active == 1 || items <= chunk {
            if items > 0 {
                work(0, 0..items);
            }
            return;
        }
        let Some(recorder) = &self.recorder else { return self.open_region(items, chunk, work) };
        let stopwatch = recorder.open_region();
        self.open_region(items, chunk, &|worker, range| {
            stopwatch.chunk(worker, range.len(), || work(worker, range));
        });
        recorder.close_region();
    }

    /// As [`Self::scatter`], for at least two workers and two chunks.
    fn open_region(&self, items: usize, chunk: usize, work: Work<'_>) {
        // SAFETY: only the lifetime is erased; `Closing` keeps this frame alive until nobody is inside the region.
        let work: Work<'static> = unsafe { std::mem::transmute(work) };
        let region = Region { work, items, chunk };
        // SAFETY: the previous region is closed and empty (its `Closing` waited for that), so nobody reads the cell.
        unsafe { *self.shared.region.get() = Some(region) };
        self.shared.next.0.store(0, Ordering::Relaxed);
        let number = (self.shared.state.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // Sequentially consistent with the worker's "mark parked, look again": one of the two sees the other.
        self.shared.state.0.store(number << 32 | OPEN, Ordering::SeqCst);
        for (parked, waker) in self.shared.parked[1..self.active()].iter().zip(&self.wakers) {
            if parked.load(Ordering::SeqCst) {
                waker.unpark();
            }
        }
        let closing = Closing(&self.shared);
        work_through(&self.shared, region, 0);
        drop(closing);
        assert!(!self.shared.panicked.load(Ordering::Relaxed), "a worker thread panicked");
    }
}

/// Where the workers of `config` run. Usage errors as for [`Pool::for_config`].
fn placement(config: &EngineConfig) -> Result<Placement> {
    let asked = config.threads.max(config.threads_batch);
    if asked as usize > THREADS_MAX {
        return Err(EngineError::usage(format!("{asked} threads are more than the {THREADS_MAX} allowed"))
            .hint("0 chooses from the device's topology"));
    }
    let placement = Topology::device().place(config)?;
    let threads = placement.cores.len();
    if threads > THREADS_MAX {
        return Err(EngineError::usage(format!("{threads} cores are more than the {THREADS_MAX} workers allowed"))
            .hint("name fewer cores"));
    }
    Ok(placement)
}

/// Closes the region and waits for those inside, also when the owner's own share panics.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.0.state.0;
        state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        for waker in &self.wakers {
            waker.unpark();
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
        // give the owner its cores back, unless the pool has moved to another thread meanwhile
        if affinity::thread_id() == self.thread_ids[0] {
            affinity::set_mask(&self.mask_before);
        }
    }
}

/// Takes chunks until none is left.
fn work_through(shared: &Shared, region: Region, worker: usize) {
    // SAFETY: the closure lives until the region is closed and empty; the caller is inside it, or owns it.
    let work = unsafe { &*region.work };
    loop {
        let start = shared.next.0.fetch_add(region.chunk, Ordering::Relaxed);
        if start >= region.items {
            return;
        }
        work(worker, start..region.items.min(start + region.chunk));
    }
}

/// A worker's life.
fn serve(shared: &Shared, worker: usize) {
    let mut served = 0; // number of the last region that this worker was in
    while let Some(region) = join_next(shared, worker, &mut served) {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work_through(shared, region, worker)));
        if done.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
            // nobody else need go on, and nobody may wait for the lost chunk
            shared.next.0.fetch_max(region.items, Ordering::Relaxed);
        }
        shared.state.0.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for a region that is open and new to this worker, and joins it. `None` when the pool is going away.
fn join_next(shared: &Shared, worker: usize, served: &mut u64) -> Option<Region> {
    let mut spins = 0;
    let mut yielding_since = None;
    loop {
        let state = shared.state.0.load(Ordering::SeqCst);
        if is_for(shared, worker, state, *served) {
            if shared.state.0.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                *served = state >> 32;
                // SAFETY: the region was published by the store that opened it, and cannot change while we are inside.
                return unsafe { *shared.region.get() };
            }
            continue;
        }
        if shared.quit.load(Ordering::SeqCst) {
            return None;
        }
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else if yielding_since.get_or_insert_with(Instant::now).elapsed() < YIELD_FOR {
            thread::yield_now();
        } else {
            park_unless_needed(shared, worker, *served);
            (spins, yielding_since) = (0, None);
        }
    }
}

/// Whether `state`, which was just read, shows an open region that is new to this worker and wants it. When the number of
/// active workers has changed since, the region is closed, and joining it fails.
fn is_for(shared: &Shared, worker: usize, state: u64, served: u64) -> bool {
    state & OPEN != 0 && state >> 32 != served && worker < shared.active.load(Ordering::Relaxed)
}

fn park_unless_needed(shared: &Shared, worker: usize, served: u64) {
    shared.parked[worker].store(true, Ordering::SeqCst);
    let state = shared.state.0.load(Ordering::SeqCst);
    if !is_for(shared, worker, state, served) && !shared.quit.load(Ordering::SeqCst) {
        thread::park();
    }
    shared.parked[worker].store(false, Ordering::SeqCst);
}

/// A mutable slice that several workers write at disjoint places.
pub struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: access goes through `range`, whose contract forbids overlapping use; T itself may move between threads.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Borrows `slice` for as long as this lives.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// Where it begins.
    pub fn start(&self) -> *mut T {
        self.start
    }

    /// Elements of the whole slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of `range`; panics when it reaches past the end.
    ///
    /// # Safety
    /// While the returned slice is used, no other slice over any of its elements may be in use, on any thread.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn range(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: in bounds by the assertion, unique by the caller's promise, borrowed for 'a by construction.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

#[cfg(test)]
mod tests;
