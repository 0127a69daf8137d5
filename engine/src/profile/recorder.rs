//! The recording itself: what workers note, and how the pool's owner books it.

use super::{Cost, Operator, OperatorSpan, Phase, Profile, WorkerSpan};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Operators that are kept one by one; later ones are in the totals only.
pub const OPERATOR_SPANS_MAX: usize = 1 << 17;
/// Spans of all workers together that are kept one by one.
pub const WORKER_SPANS_MAX: usize = 1 << 19;

/// Records a profile. Belongs to the thread that owns the pool.
pub struct Recorder {
    stopwatch: Stopwatch,
    book: RefCell<Book>,
}

/// What workers note during a region.
pub struct Stopwatch {
    origin: Instant,
    slots: Box<[Slot]>,
}

/// One worker's notes, on cache lines of its own.
#[repr(align(128))]
struct Slot {
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    items: AtomicU64,
}

/// In [`Slot::first_ns`]: the worker has taken no chunk yet.
const NOT_YET: u64 = u64::MAX;

impl Stopwatch {
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Runs a chunk of `items` items as `worker` and notes when.
    pub fn chunk(&self, worker: usize, items: usize, work: impl FnOnce()) {
        // one writer a slot; the pool's closing of the region orders it before the owner's reading
        let slot = &self.slots[worker];
        if slot.first_ns.load(Ordering::Relaxed) == NOT_YET {
            slot.first_ns.store(self.now_ns(), Ordering::Relaxed);
        }
        work();
        slot.items.store(slot.items.load(Ordering::Relaxed) + items as u64, Ordering::Relaxed);
        slot.last_ns.store(self.now_ns(), Ordering::Relaxed);
    }
}

/// What the owner keeps.
struct Book {
    phase: Phase,
    tokens: u32,
    current: Option<Current>,
    region_start_ns: u64,
    profile: Profile,
    operator_spans_max: usize,
    worker_spans_max: usize,
}

/// The operator that runs.
struct Current {
    operator: Operator,
    layer: Option<u16>,
    cost: Cost,
    start_ns: u64,
    regions: u64,
    regions_ns: u64,
    regions_busy_ns: u64,
}

impl Recorder {
    /// Takes the buffers for a pool of `threads` workers and begins.
    pub fn new(threads: usize) -> Self {
        Self::with_room(threads, OPERATOR_SPANS_MAX, WORKER_SPANS_MAX / threads)
    }

    pub(super) fn with_room(threads: usize, operator_spans_max: usize, worker_spans_max: usize) -> Self {
        let origin = Instant::now();
        let slot = || Slot { first_ns: NOT_YET.into(), last_ns: 0.into(), items: 0.into() };
        let blank = WorkerSpan { operator: Operator::Sampling, layer: None, start_ns: 0, duration_ns: 0, items: None };
        let profile = Profile {
            threads,
            origin,
            operators: touched(OperatorSpan::BLANK, operator_spans_max),
            workers: (0..threads).map(|_| touched(blank, worker_spans_max)).collect(),
            dropped_events: 0,
            totals: Default::default(),
            passes: Default::default(),
            worker_busy_ns: vec![[0; 2]; threads],
        };
        let book = Book {
            phase: Phase::Prefill,
            tokens: 0,
            current: None,
            region_start_ns: 0,
            profile,
            operator_spans_max,
            worker_spans_max,
        };
        Self {
            stopwatch: Stopwatch { origin, slots: (0..threads).map(|_| slot()).collect() },
            book: RefCell::new(book),
        }
    }

    /// Workers that it is for.
    pub fn threads(&self) -> usize {
        self.stopwatch.slots.len()
    }

    /// Ends the recording.
    pub fn finish(self) -> Profile {
        self.rest();
        let mut profile = self.book.into_inner().profile;
        profile.operators.shrink_to_fit();
        profile.workers.iter_mut().for_each(Vec::shrink_to_fit);
        profile
    }

    /// A pass of that many tokens begins; operators marked from now on belong to it.
    pub fn begin_pass(&self, tokens: usize) {
        self.rest();
        let book = &mut *self.book.borrow_mut();
        book.phase = if tokens > 1 { Phase::Prefill } else { Phase::Decode };
        book.tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let passes = &mut book.profile.passes[book.phase as usize];
        *passes = (passes.0 + 1, passes.1 + tokens as u64);
    }

    /// Ends the operator that runs, if any, and begins the next.
    pub fn mark(&self, operator: Operator, layer: Option<usize>, cost: Cost) {
        let now = self.stopwatch.now_ns();
        let book = &mut *self.book.borrow_mut();
        book.end_current(now);
        book.current = Some(Current {
            operator,
            layer: layer.and_then(|layer| u16::try_from(layer).ok()),
            cost,
            start_ns: now,
            regions: 0,
            regions_ns: 0,
            regions_busy_ns: 0,
        });
    }

    /// Ends the operator that runs, if any: what follows is not part of the forward pass.
    pub fn rest(&self) {
        let now = self.stopwatch.now_ns();
        self.book.borrow_mut().end_current(now);
    }

    /// A region is about to be opened. The workers' notes go to what this returns.
    pub fn open_region(&self) -> &Stopwatch {
        for slot in &self.stopwatch.slots {
            slot.first_ns.store(NOT_YET, Ordering::Relaxed);
            slot.items.store(0, Ordering::Relaxed);
        }
        self.book.borrow_mut().region_start_ns = self.stopwatch.now_ns();
        &self.stopwatch
    }

    /// The region is closed, and nobody is inside.
    pub fn close_region(&self) {
        let now = self.stopwatch.now_ns();
        self.book.borrow_mut().end_region(&self.stopwatch.slots, now);
    }
}

impl OperatorSpan {
    const BLANK: Self = Self {
        operator: Operator::Sampling,
        phase: Phase::Decode,
        layer: None,
        tokens: 0,
        start_ns: 0,
        duration_ns: 0,
        cost: Cost {
            rows: 0,
            weight_bytes: 0,
            kv_bytes: 0,
            activation_bytes: 0,
            f32_operations: 0,
            int8_operations: 0,
        },
    };
}

/// An empty vector with room for `len`, all of which has been written once, so that recording meets no page fault.
fn touched<T: Clone>(blank: T, len: usize) -> Vec<T> {
    let mut out = vec![blank; len];
    out.clear();
    out
}

impl Book {
    fn end_current(&mut self, now_ns: u64) {
        let Some(current) = self.current.take() else { return };
        let Current { operator, layer, cost, start_ns, .. } = current;
        let (phase, tokens, profile) = (self.phase, self.tokens, &mut self.profile);
        let wall_ns = now_ns.saturating_sub(start_ns);
        let threads = profile.threads as u64;
        let outside_ns = wall_ns.saturating_sub(current.regions_ns);
        profile.worker_busy_ns[0][phase as usize] += outside_ns;
        let total = &mut profile.totals[phase as usize][operator as usize];
        total.calls += 1;
        total.regions += current.regions;
        total.wall_ns += wall_ns;
        total.busy_ns += outside_ns + current.regions_busy_ns;
        total.synchronisation_ns += (threads * current.regions_ns).saturating_sub(current.regions_busy_ns);
        total.alone_ns += (threads - 1) * outside_ns;
        total.cost.add(&cost);
        let span = OperatorSpan { operator, phase, layer, tokens, start_ns, duration_ns: wall_ns, cost };
        if profile.operators.len() < self.operator_spans_max {
            profile.operators.push(span);
        } else {
            profile.dropped_events += 1;
        }
    }

    fn end_region(&mut self, slots: &[Slot], end_ns: u64) {
        let Some(current) = &mut self.current else { return };
        let start_ns = self.region_start_ns;
        let (operator, layer) = (current.operator, current.layer);
        current.regions += 1;
        current.regions_ns += end_ns.saturating_sub(start_ns);
        let workers = self.profile.workers.iter_mut().zip(&mut self.profile.worker_busy_ns);
        for (slot, (spans, busy_ns)) in slots.iter().zip(workers) {
            let joined = slot.first_ns.load(Ordering::Relaxed) != NOT_YET;
            // clocks of different cores may differ by some nanoseconds
            let at = |time: &AtomicU64| time.load(Ordering::Relaxed).clamp(start_ns, end_ns);
            let (first, last) = if joined { (at(&slot.first_ns), at(&slot.last_ns)) } else { (start_ns, start_ns) };
            current.regions_busy_ns += last - first;
            busy_ns[self.phase as usize] += last - first;
            let items = u32::try_from(slot.items.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
            let work = WorkerSpan { operator, layer, start_ns: first, duration_ns: last - first, items: Some(items) };
            let wait = WorkerSpan { start_ns: last, duration_ns: end_ns - last, items: None, ..work };
            for span in [Some(work).filter(|_| joined), Some(wait).filter(|w| w.duration_ns > 0)].into_iter().flatten()
            {
                if spans.len() < self.worker_spans_max {
                    spans.push(span);
                } else {
                    self.profile.dropped_events += 1;
                }
            }
        }
    }
}
