//! Where the time of a forward pass goes: by operator and worker, with the bytes and operations of each.
//!
//! A pass is a row of operators, one after the other on the thread that owns the pool: [`Recorder::mark`] ends one and
//! begins the next, so that no time is lost between them. Inside an operator, the pool's regions note when each worker
//! took its first chunk and ended its last one; whoever works then writes only to a slot of its own, and the owner
//! books it after the region. All buffers are made beforehand: when they are full, events are counted instead of kept,
//! and the totals go on.

mod table;
mod trace;

pub use table::{Ceilings, Row, rows, table};
pub use trace::write_trace;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Operators that are kept one by one; later ones are in the totals only.
pub const OPERATOR_SPANS_MAX: usize = 1 << 17;
/// Spans of all workers together that are kept one by one.
pub const WORKER_SPANS_MAX: usize = 1 << 19;

/// A step of the forward pass, as it shows in a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Rows of the embedding, widened.
    Embedding,
    /// Norm before attention.
    AttentionNorm,
    /// Queries, keys and values, their input's rounding included.
    Qkv,
    /// Biases, head norms and rotation of queries, keys and values.
    Rope,
    /// Keys and values into the cache.
    KvStore,
    /// Scores, softmax and weighted values.
    Attention,
    /// Attention's output into the hidden width.
    OutputProjection,
    /// Adding attention to the residual stream, its bias and norm included.
    AttentionResidual,
    /// Norm before the feed-forward part.
    FfnNorm,
    /// Gate and up projections.
    GateUp,
    /// Activation of the gate, times up.
    Activation,
    /// Down projection.
    Down,
    /// Adding the feed-forward part to the residual stream, its norm included.
    FfnResidual,
    /// Norm before the head.
    HeadNorm,
    /// Logits, their cap and the check that they are finite.
    Head,
    /// Choosing a token.
    Sampling,
}

impl Operator {
    /// All of them, in the order of a pass.
    pub const ALL: [Self; 16] = [
        Self::Embedding,
        Self::AttentionNorm,
        Self::Qkv,
        Self::Rope,
        Self::KvStore,
        Self::Attention,
        Self::OutputProjection,
        Self::AttentionResidual,
        Self::FfnNorm,
        Self::GateUp,
        Self::Activation,
        Self::Down,
        Self::FfnResidual,
        Self::HeadNorm,
        Self::Head,
        Self::Sampling,
    ];

    /// As tables and traces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::AttentionNorm => "attention norm",
            Self::Qkv => "qkv",
            Self::Rope => "rope",
            Self::KvStore => "kv store",
            Self::Attention => "attention",
            Self::OutputProjection => "output projection",
            Self::AttentionResidual => "attention residual",
            Self::FfnNorm => "ffn norm",
            Self::GateUp => "gate + up",
            Self::Activation => "activation",
            Self::Down => "down",
            Self::FfnResidual => "ffn residual",
            Self::HeadNorm => "head norm",
            Self::Head => "head",
            Self::Sampling => "sampling",
        }
    }
}

/// What kind of pass an operator belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Several tokens at once.
    Prefill,
    /// One token.
    Decode,
}

impl Phase {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// As tables and traces name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What an operator reads, writes and computes. Every byte counts once a call, however often caches serve it again;
/// operations are those of matrix products and of attention, a multiply-add being two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Rows of weight matrices.
    pub rows: u64,
    /// Weights read, as stored.
    pub weight_bytes: u64,
    /// Keys and values read or written, as cached.
    pub kv_bytes: u64,
    /// Other vectors read or written.
    pub activation_bytes: u64,
    /// On floats.
    pub f32_operations: u64,
    /// On int8 codes.
    pub int8_operations: u64,
}

impl Cost {
    /// Bytes of all kinds.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.kv_bytes + self.activation_bytes
    }

    /// Operations of both kinds.
    pub fn operations(&self) -> u64 {
        self.f32_operations + self.int8_operations
    }

    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.weight_bytes += other.weight_bytes;
        self.kv_bytes += other.kv_bytes;
        self.activation_bytes += other.activation_bytes;
        self.f32_operations += other.f32_operations;
        self.int8_operations += other.int8_operations;
    }
}

/// One call of an operator. Times are nanoseconds after the recording began.
#[derive(Debug, Clone, Copy)]
pub struct OperatorSpan {
    /// Which.
    pub operator: Operator,
    /// In which kind of pass.
    pub phase: Phase,
    /// Layer; `None` outside of the layers.
    pub layer: Option<u16>,
    /// Tokens of the pass.
    pub tokens: u32,
    /// Begin.
    pub start_ns: u64,
    /// Length.
    pub duration_ns: u64,
    /// What it took.
    pub cost: Cost,
}

/// What a worker did in a region of the pool.
#[derive(Debug, Clone, Copy)]
pub struct WorkerSpan {
    /// Of which operator.
    pub operator: Operator,
    /// Layer; `None` outside of the layers.
    pub layer: Option<u16>,
    /// Begin.
    pub start_ns: u64,
    /// Length.
    pub duration_ns: u64,
    /// Items of the region that it took; `None` while it waited for the others.
    pub items: Option<u32>,
}

/// Sums over the calls of an operator in one phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Total {
    /// Calls.
    pub calls: u64,
    /// Time from begin to end.
    pub wall_ns: u64,
    /// Time that workers worked, summed over them.
    pub busy_ns: u64,
    /// Time in regions that workers did not work, summed over them.
    pub synchronisation_ns: u64,
    /// Time outside of regions, when one worker works and the others have nothing to do, summed over the others.
    pub alone_ns: u64,
    /// What the calls took.
    pub cost: Cost,
}

/// What was recorded.
pub struct Profile {
    /// Workers.
    pub threads: usize,
    /// When it began.
    pub origin: Instant,
    /// Calls in the order of time.
    pub operators: Vec<OperatorSpan>,
    /// What each worker did in the regions, worker 0 first, in the order of time.
    pub workers: Vec<Vec<WorkerSpan>>,
    /// Events for which there was no room.
    pub dropped_events: u64,
    totals: [[Total; Operator::ALL.len()]; 2],
    passes: [(u64, u64); 2],
}

impl Profile {
    /// The sums of an operator in a phase, dropped events included.
    pub fn total(&self, phase: Phase, operator: Operator) -> &Total {
        &self.totals[phase as usize][operator as usize]
    }

    /// Passes of that kind, and tokens that went through them.
    pub fn passes(&self, phase: Phase) -> (u64, u64) {
        self.passes[phase as usize]
    }
}

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
    regions_ns: u64,
    regions_busy_ns: u64,
}

impl Recorder {
    /// Takes the buffers for a pool of `threads` workers and begins.
    pub fn new(threads: usize) -> Self {
        Self::with_room(threads, OPERATOR_SPANS_MAX, WORKER_SPANS_MAX / threads)
    }

    fn with_room(threads: usize, operator_spans_max: usize, worker_spans_max: usize) -> Self {
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
        let total = &mut profile.totals[phase as usize][operator as usize];
        total.calls += 1;
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
        current.regions_ns += end_ns.saturating_sub(start_ns);
        for (slot, spans) in slots.iter().zip(&mut self.profile.workers) {
            let joined = slot.first_ns.load(Ordering::Relaxed) != NOT_YET;
            // clocks of different cores may differ by some nanoseconds
            let at = |time: &AtomicU64| time.load(Ordering::Relaxed).clamp(start_ns, end_ns);
            let (first, last) = if joined { (at(&slot.first_ns), at(&slot.last_ns)) } else { (start_ns, start_ns) };
            current.regions_busy_ns += last - first;
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

#[cfg(test)]
mod tests;
