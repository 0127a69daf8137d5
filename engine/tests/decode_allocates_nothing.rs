//! After the first token, a decode step asks the system for no memory, on any thread, also while it is profiled.

use farmgate_engine::generate::{Continue, GenerateOptions};
use farmgate_engine::kernels::Isa;
use farmgate_engine::model::{LoadOptions, Logits, Model, Session};
use farmgate_engine::protocol::EngineConfig;
use farmgate_engine::speculative::{DraftCost, DraftOptions, Speculation};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator; only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(data, layout) }
    }
    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(data, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Whether some stretch of 16 tokens after `depth` of them is free of allocations: a worker makes its buffers when it first
/// gets a turn, which on a busy machine may be late, and an allocation made for every token would be in all stretches.
fn quiet(session: &mut Session, depth: usize) -> bool {
    (0..10).any(|_| {
        session.truncate(depth);
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for id in 0..16 {
            session.forward(&[id], Logits::Last).unwrap();
        }
        ALLOCATIONS.load(Ordering::SeqCst) == before
    })
}

// one test only: another one's allocations would be counted too
#[test]
fn decode_allocates_nothing_after_the_first_token() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models");
    for file in ["tiny-pd-1.3m-Q4_K_M.gguf", "tiny-pd-1.3m-f16.gguf", "tiny-gemma3-Q8_0.gguf"] {
        for isa in [Isa::Scalar, Isa::detect()] {
            let model = Model::load(&models.join(file), &LoadOptions { mmap: true, isa: Some(isa) }).unwrap();
            let config = EngineConfig { threads: 2, context_tokens: 256, ..EngineConfig::default() };
            let mut session = Session::new(Arc::new(model), &config).unwrap();
            // a session that has only ever decoded needs no more than one token's room, and has it from the first one on
            let decoding_bytes = session.scratch_bytes();
            session.forward(&[1], Logits::Last).unwrap();
            assert!(quiet(&mut session, 1), "{file} {}: every stretch of 16 tokens allocated", isa.name());
            assert_eq!(session.scratch_bytes(), decoding_bytes);

            session.clear();
            let prompt: Vec<u32> = (0..64).collect();
            session.forward(&prompt, Logits::Last).unwrap();
            assert!(session.scratch_bytes() > decoding_bytes, "a prompt makes the buffers grow");
            assert!(quiet(&mut session, 64), "{file} {}: every stretch of 16 tokens allocated", isa.name());
            session.start_profile();
            assert!(quiet(&mut session, 64), "{file} {}, profiled: every stretch of 16 tokens allocated", isa.name());
            assert!(session.take_profile().is_some_and(|p| !p.operators.is_empty()));
        }
    }
    a_draft_allocates_nothing_either(&models);
}

/// Between two tokens that are put out lie proposals, checks, and going back after rejections.
fn a_draft_allocates_nothing_either(models: &Path) {
    let open = |file: &str| {
        let model = Model::load(&models.join(file), &LoadOptions::default()).unwrap();
        let config = EngineConfig { threads: 2, context_tokens: 256, ..EngineConfig::default() };
        Session::new(Arc::new(model), &config).unwrap()
    };
    let (mut target, mut draft) = (open("tiny-pd-1.3m-f16.gguf"), open("tiny-pd-1.3m-Q4_0.gguf"));
    let options = DraftOptions { tokens_min: 3, tokens_max: 6, cost: DraftCost::Given { draft: 0.1, check: 0.1 } };
    let mut speculation = Speculation::new(&mut target, &mut draft, options).unwrap();
    let prompt: Vec<u32> = (0..40).collect();
    let mut counts = Vec::with_capacity(200);
    let wanted = GenerateOptions { tokens_max: 200, obey_eog: false };
    let (_, acceptance) = speculation
        .generate(&prompt, wanted, &mut |_, _| {
            counts.push(ALLOCATIONS.load(Ordering::SeqCst));
            Continue::Yes
        })
        .unwrap();
    assert!(acceptance.accepted_tokens > 0 && acceptance.accepted_tokens < acceptance.drafted_tokens);
    let quiet = counts.windows(40).any(|w| w[0] == w[39]);
    assert!(quiet, "every stretch of 40 tokens allocated: {counts:?}");
}
