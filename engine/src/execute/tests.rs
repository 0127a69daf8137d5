//! The steps on an engine that counts instead of computing.

use super::*;
use crate::hash::sha256_file;
use crate::protocol::{Arm, EngineConfig, GoldenCase, ModelRef, ReasonCode, SampleRecord, Step, TokenTimes, Validity};
use std::cell::RefCell;
use std::path::Path;

const VOCAB: usize = 300;
const WEIGHT_BYTES: u64 = 100_000_000;

/// Says the number after the last one it heard. Words are tokens; id 7 ends a generation.
#[derive(Default)]
struct Counting {
    file: PathBuf,
    cache: Vec<u32>,
    logits: Vec<f32>,
    /// Depth from which on logits are not numbers.
    nan_from_depth: Option<usize>,
    fails_from_depth: Option<usize>,
    /// Depth from which on the kernel has moved the worker elsewhere.
    moved_from_depth: Option<usize>,
    bandwidth: Option<ReadBandwidth>,
    /// Prompt lengths and depths as they were asked for.
    depths: Vec<usize>,
}

impl Engine for Counting {
    fn facts(&self) -> Facts {
        Facts { files: vec![self.file.clone()], threads_effective: 1, weight_bytes: WEIGHT_BYTES, ..Facts::default() }
    }
    fn model_sha256(&self) -> Vec<String> {
        vec![sha256_file(&self.file).unwrap()]
    }
    fn affinity_faults(&self) -> Vec<String> {
        let moved = self.moved_from_depth.is_some_and(|from| self.cache.len() >= from);
        moved.then(|| "worker 0 was pinned to core 5, the kernel lets it run on 0-3".to_owned()).into_iter().collect()
    }
    fn tokenise(&self, text: &str, add_special: bool, _parse_special: bool) -> Vec<u32> {
        let words = text.split(' ').filter(|w| !w.is_empty()).map(|w| w.len() as u32 + 100);
        add_special.then_some(1).into_iter().chain(words).collect()
    }
    fn clear(&mut self) {
        self.cache.clear();
    }
    fn truncate(&mut self, depth: usize) -> usize {
        self.cache.truncate(depth);
        self.cache.len()
    }
    fn forward(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.cache.extend(ids);
        let depth = self.cache.len();
        self.depths.push(depth);
        if self.fails_from_depth.is_some_and(|from| depth >= from) {
            return Err(EngineError::model("out of context"));
        }
        self.logits = vec![0.0; VOCAB];
        self.logits[(*self.cache.last().unwrap() as usize + 1) % VOCAB] = 1.0;
        if self.nan_from_depth.is_some_and(|from| depth >= from) {
            self.logits[0] = f32::NAN;
        }
        Ok(&self.logits)
    }
    fn bytes_per_token(&self, position: usize) -> u64 {
        WEIGHT_BYTES + 1_000 * position as u64
    }
    fn is_end_of_generation(&self, id: u32) -> bool {
        id == 7
    }
}

struct Outcome {
    records: Vec<Record>,
    ended: Result<()>,
}

impl Outcome {
    fn samples(&self) -> Vec<&SampleRecord> {
        self.records.iter().filter_map(|r| if let Record::Sample(s) = r { Some(s) } else { None }).collect()
    }
    fn sample(&self, metric: &str) -> &SampleRecord {
        self.samples().into_iter().find(|s| s.metric == metric).unwrap_or_else(|| panic!("no {metric}"))
    }
    fn times(&self) -> Vec<&TokenTimes> {
        self.records.iter().filter_map(|r| if let Record::TokenTimes(t) = r { Some(t) } else { None }).collect()
    }
}

fn cell(steps: Vec<Step>, sha256: String, path: &Path) -> CellPlan {
    CellPlan {
        cell: 5,
        scenario: "s".into(),
        arm: Arm::Candidate,
        pair: 0,
        slot: 0,
        model: ModelRef { path: path.display().to_string(), sha256: vec![sha256] },
        config: EngineConfig::default(),
        steps,
        seed: 3,
        load_timeout_ms: 1,
        cell_timeout_ms: 1,
        about_heat: false,
    }
}

fn run_with(steps: Vec<Step>, eviction: &str, engine: Counting) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m");
    std::fs::write(&file, b"abc").unwrap();
    let cell = cell(steps, crate::hash::sha256_hex(b"abc"), &file);
    let errand = Errand {
        cell: &cell,
        attempt: 2,
        started_us: clock::monotonic_us(),
        eviction: eviction.into(),
        verified: vec![FileIdentity::of(&file).unwrap()],
        bandwidth: engine.bandwidth,
    };
    let records = RefCell::new(Vec::new());
    let ended = execute_with(&errand, |_| Ok(Counting { file: file.clone(), ..engine }), &mut |record| {
        records.borrow_mut().push(record);
        Ok(())
    });
    Outcome { records: records.into_inner(), ended }
}

fn run(steps: Vec<Step>) -> Outcome {
    run_with(steps, "none", Counting::default())
}

const LOAD: Step = Step::Load { cold: false };

#[test]
fn the_proof_comes_first_and_the_peak_last() {
    let outcome = run(vec![LOAD]);
    outcome.ended.as_ref().unwrap();
    let Record::Proof { cell: 5, proof } = &outcome.records[0] else { panic!("{:?}", outcome.records[0]) };
    assert_eq!(proof.engine_sha256, sha256_file(Path::new("/proc/self/exe")).unwrap());
    assert_eq!(proof.model_sha256, [crate::hash::sha256_hex(b"abc")]);
    let metrics: Vec<&str> = outcome.samples().iter().map(|s| s.metric.as_str()).collect();
    assert_eq!(metrics, ["load-warm-ms", "peak-rss-mb"]);
    assert!(outcome.sample("peak-rss-mb").value.unwrap().get() > 0.5);
    assert!(outcome.samples().iter().all(|s| s.attempt == 2 && s.validity == Validity::Valid));
}

#[test]
fn a_cold_load_without_eviction_is_invalid() {
    let cold = vec![Step::Load { cold: true }];
    let kept = run(cold.clone());
    assert_eq!(kept.sample("load-cold-ms").validity, Validity::Invalid(ReasonCode::CacheNotEvicted));
    let evicted = run_with(cold, "posix_fadvise", Counting::default());
    assert_eq!(evicted.sample("load-cold-ms").validity, Validity::Valid);
}

#[test]
fn each_step_yields_the_metrics_it_promises() {
    let outcome = run(vec![
        LOAD,
        Step::WarmUp { prompt_tokens: 4, decode_tokens: 2 },
        Step::Prefill { prompt_tokens: 32, repetitions: 2 },
        Step::Decode { decode_tokens: 9, at_depth: 16, repetitions: 1 },
        Step::Answer { label: "cold".into(), prompt_tokens: 8, decode_tokens: 3 },
    ]);
    outcome.ended.as_ref().unwrap();
    let metrics: Vec<(u32, u32, &str)> =
        outcome.samples().iter().map(|s| (s.step, s.repetition, s.metric.as_str())).collect();
    let expected = [
        (0, 0, "load-warm-ms"),
        (2, 0, "prefill-tps@32"),
        (2, 0, "ttft-ms@32"),
        (2, 1, "prefill-tps@32"),
        (2, 1, "ttft-ms@32"),
        (3, 0, "decode-tps@16"),
        (3, 0, "itl-p50-ms@16"),
        (3, 0, "itl-p95-ms@16"),
        (3, 0, "itl-p99-ms@16"),
        (3, 0, "itl-max-ms@16"),
        (4, 0, "ttft-ms@cold"),
        (4, 0, "decode-tps@cold"),
        (4, 0, "peak-rss-mb"),
    ];
    assert_eq!(metrics, expected);
    assert!(outcome.samples().iter().all(|s| s.validity == Validity::Valid));
    let times = outcome.times();
    assert_eq!((times[0].qualifier.as_str(), times[0].itl_us.len()), ("16", 8));
    assert_eq!((times[1].qualifier.as_str(), times[1].itl_us.len()), ("cold", 2));
}

/// Depth after each forward of a decode step alone.
fn depths(at_depth: u32, decode_tokens: u32, repetitions: u32) -> Vec<usize> {
    let cell = cell(vec![LOAD], String::new(), Path::new("m"));
    let errand =
        Errand { cell: &cell, attempt: 0, started_us: 0, eviction: "none".into(), verified: vec![], bandwidth: None };
    let seen = RefCell::new(Vec::new());
    struct Watched<'a>(Counting, &'a RefCell<Vec<usize>>);
    impl Engine for Watched<'_> {
        fn facts(&self) -> Facts {
            self.0.facts()
        }
        fn model_sha256(&self) -> Vec<String> {
            self.0.model_sha256()
        }
        fn affinity_faults(&self) -> Vec<String> {
            self.0.affinity_faults()
        }
        fn tokenise(&self, text: &str, a: bool, p: bool) -> Vec<u32> {
            self.0.tokenise(text, a, p)
        }
        fn clear(&mut self) {
            self.0.clear();
        }
        fn truncate(&mut self, depth: usize) -> usize {
            self.0.truncate(depth)
        }
        fn forward(&mut self, ids: &[u32]) -> Result<&[f32]> {
            self.1.borrow_mut().push(self.0.cache.len() + ids.len());
            self.0.forward(ids)
        }
        fn bytes_per_token(&self, position: usize) -> u64 {
            self.0.bytes_per_token(position)
        }
        fn is_end_of_generation(&self, id: u32) -> bool {
            self.0.is_end_of_generation(id)
        }
    }
    let cell_steps = vec![LOAD, Step::Decode { decode_tokens, at_depth, repetitions }];
    let cell = CellPlan { steps: cell_steps, ..cell.clone() };
    let errand = Errand { cell: &cell, ..errand };
    let mut tell = |_| Ok(());
    Steps::new(&errand, Watched(Counting::default(), &seen), &mut tell).run(1.0, &|| None).unwrap();
    seen.into_inner()
}

#[test]
fn a_decode_at_depth_d_generates_its_first_token_from_d_tokens_in_the_cache() {
    assert_eq!(depths(4, 3, 2), [3, 4, 5, 6, 4, 5, 6]);
    assert_eq!(depths(1, 3, 1), [1, 2, 3]);
    assert_eq!(depths(0, 3, 2), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn end_of_generation_is_recorded_and_not_obeyed() {
    let outcome = run(vec![LOAD, Step::Decode { decode_tokens: 12, at_depth: 0, repetitions: 1 }]);
    // a prompt of one token is the special one, id 1; the engine counts on from it: 2, 3, 4, 5, 6, 7
    assert_eq!(outcome.times()[0].first_eog_index, Some(5));
    assert_eq!(outcome.times()[0].itl_us.len(), 11);
}

#[test]
fn logits_that_are_no_numbers_spoil_their_samples_and_no_others() {
    let engine = Counting { nan_from_depth: Some(12), ..Counting::default() };
    let steps = vec![
        LOAD,
        Step::Prefill { prompt_tokens: 4, repetitions: 1 },
        Step::Decode { decode_tokens: 6, at_depth: 10, repetitions: 1 },
    ];
    let outcome = run_with(steps, "none", engine);
    let invalid = Validity::Invalid(ReasonCode::LogitsNotFinite);
    assert_eq!(outcome.sample("prefill-tps@4").validity, Validity::Valid);
    assert_eq!(outcome.sample("decode-tps@10").validity, invalid);
    assert_eq!(outcome.sample("itl-max-ms@10").validity, invalid);
}

#[test]
fn a_worker_that_the_kernel_moves_while_a_cell_runs_spoils_what_is_measured_from_then_on() {
    let engine = Counting { moved_from_depth: Some(12), ..Counting::default() };
    let steps = vec![
        LOAD,
        Step::Prefill { prompt_tokens: 4, repetitions: 1 },
        Step::Decode { decode_tokens: 6, at_depth: 10, repetitions: 1 },
    ];
    let outcome = run_with(steps, "none", engine);
    let invalid = Validity::Invalid(ReasonCode::AffinityDiffers);
    assert_eq!(outcome.sample("ttft-ms@4").validity, Validity::Valid);
    assert_eq!(outcome.sample("decode-tps@10").validity, invalid);
    assert_eq!(outcome.sample("itl-max-ms@10").validity, invalid);
}

// field report E23
#[test]
fn a_decode_that_claims_more_than_memory_gives_is_invalid_with_its_utilisation() {
    let decode = Step::Decode { decode_tokens: 5, at_depth: 10, repetitions: 1 };
    let of = |bandwidth| {
        let engine = Counting { bandwidth, ..Counting::default() };
        run_with(vec![LOAD, Step::Prefill { prompt_tokens: 4, repetitions: 1 }, decode.clone()], "none", engine)
    };
    // nothing is computed here, so that memory would have to be infinitely fast
    let cached = ReadBandwidth { read_gb_per_s: 1e-9, last_level_cache_bytes: Some(WEIGHT_BYTES) };
    let outcome = of(Some(cached));
    let value = |metric| outcome.sample(metric).value.unwrap().get();
    let bytes = (WEIGHT_BYTES + 1_000 * 12) as f64;
    assert!((value("mbu@10") / (bytes * value("decode-tps@10")) - 1.0).abs() < 1e-9, "1 byte/s is the ceiling");
    assert!(outcome.samples().iter().all(|s| s.validity == Validity::Valid), "it may all lie in the cache");
    let Record::Proof { proof, .. } = &outcome.records[0] else { panic!() };
    assert_eq!(proof.read_bandwidth_gb_per_s.map(|b| b.get()), Some(1e-9));

    let outcome = of(Some(ReadBandwidth { last_level_cache_bytes: Some(WEIGHT_BYTES - 1), ..cached }));
    for sample in outcome.samples() {
        let is_decode = sample.metric.ends_with("@10");
        let expected = if is_decode { Validity::Invalid(ReasonCode::MbuAboveOne) } else { Validity::Valid };
        assert_eq!(sample.validity, expected, "{}", sample.metric);
    }
    assert!(of(None).samples().iter().all(|s| !s.metric.starts_with("mbu")), "nobody measured what memory gives");
}

fn golden(name: &str, generated_ids: Vec<u32>) -> GoldenCase {
    GoldenCase { name: name.into(), prompt: "aa bbb".into(), prompt_ids: vec![102, 103], generated_ids }
}

#[test]
fn golden_tokens_that_match_leave_everything_valid() {
    let outcome = run(vec![LOAD, Step::Golden { cases: vec![golden("g", vec![104, 105, 106])] }]);
    assert_eq!(outcome.sample("golden-match-ratio").value.unwrap().get(), 1.0);
    assert!(outcome.samples().iter().all(|s| s.validity == Validity::Valid));
    assert_eq!(outcome.samples().len(), 3);
}

#[test]
fn golden_tokens_that_differ_spoil_samples_before_and_after_but_not_their_own() {
    let cases = vec![golden("good", vec![104]), golden("bad", vec![104, 9])];
    let prefill = Step::Prefill { prompt_tokens: 4, repetitions: 1 };
    let outcome = run(vec![LOAD, prefill.clone(), Step::Golden { cases }, prefill]);
    let ratio = outcome.sample("golden-match-ratio");
    assert_eq!((ratio.value.unwrap().get(), &ratio.validity), (0.5, &Validity::Valid));
    let others: Vec<_> = outcome.samples().into_iter().filter(|s| s.metric != "golden-match-ratio").collect();
    assert_eq!(others.len(), 6);
    assert!(others.iter().all(|s| s.validity == Validity::Invalid(ReasonCode::GoldenTokensDiffer)));
}

#[test]
fn a_golden_prompt_that_tokenises_differently_is_no_match() {
    let case = GoldenCase { prompt_ids: vec![102, 9], ..golden("g", vec![104]) };
    let outcome = run(vec![LOAD, Step::Golden { cases: vec![case] }]);
    assert_eq!(outcome.sample("golden-match-ratio").value.unwrap().get(), 0.0);
    let with_start = GoldenCase { prompt_ids: vec![1, 102, 103], ..golden("g", vec![104]) };
    let outcome = run(vec![LOAD, Step::Golden { cases: vec![with_start] }]);
    assert_eq!(outcome.sample("golden-match-ratio").value.unwrap().get(), 1.0);
}

#[test]
fn no_golden_cases_yield_no_sample() {
    let outcome = run(vec![LOAD, Step::Golden { cases: vec![] }]);
    assert!(outcome.samples().iter().all(|s| s.metric != "golden-match-ratio"));
}

#[test]
fn samples_held_for_golden_cases_are_told_when_a_later_step_fails() {
    let engine = Counting { fails_from_depth: Some(20), ..Counting::default() };
    let steps = vec![
        LOAD,
        Step::Prefill { prompt_tokens: 4, repetitions: 1 },
        Step::Prefill { prompt_tokens: 30, repetitions: 1 },
        Step::Golden { cases: vec![golden("g", vec![104])] },
    ];
    let outcome = run_with(steps, "none", engine);
    assert!(outcome.ended.is_err());
    assert_eq!(outcome.samples().len(), 3);
}

#[test]
fn another_model_than_the_plans_is_proved_and_then_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m");
    std::fs::write(&file, b"abc").unwrap();
    let stale = FileIdentity::of(&file).unwrap();
    std::fs::write(&file, b"xyz").unwrap();
    let cell = cell(vec![LOAD], crate::hash::sha256_hex(b"abc"), &file);
    let errand = Errand {
        cell: &cell,
        attempt: 0,
        started_us: 0,
        eviction: "none".into(),
        verified: vec![stale],
        bandwidth: None,
    };
    let mut records = Vec::new();
    let error = execute_with(&errand, |_| Ok(Counting { file: file.clone(), ..Counting::default() }), &mut |r| {
        records.push(r);
        Ok(())
    })
    .unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let [Record::Proof { proof, .. }] = &records[..] else { panic!("{records:?}") };
    assert_eq!(proof.model_sha256, [crate::hash::sha256_hex(b"xyz")]);
}

#[test]
fn a_prompt_has_exactly_its_length_and_follows_its_seed() {
    let engine = Counting::default();
    for tokens in [1, 2, 3, 17, 500, 4096] {
        let prompt = prompt::Prompt::make(&engine, 9, tokens).unwrap();
        assert_eq!(prompt.ids.len(), tokens as usize);
        let whole = engine.tokenise(&prompt.text, true, false);
        assert!(whole.len() <= tokens as usize + 1, "hardly more text than needed");
        assert_eq!(whole[..tokens as usize], prompt.ids);
    }
    let ids = |seed| prompt::Prompt::make(&engine, seed, 40).unwrap().ids;
    assert_eq!(ids(1), ids(1));
    assert_ne!(ids(1), ids(2));
}
