//! `farmhand bench`: prefill and decode speed, with llama-bench's flags and field names where it has them.

use super::args::{Args, Flag, Verb};
use super::profile::{self, Profiling};
use super::setup;
use super::stdout;
use crate::error::{EngineError, Result};
use crate::memory::give_back_freed;
use crate::model::{BATCH_TOKENS_MAX, Logits, Model, Session};
use crate::proof::{self, Facts, ModelHashes};
use crate::protocol::{EngineConfig, KvPolicy, KvType, ReasonCode};
use crate::sampler::SplitMix64;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

mod ahead;
mod draft;
mod mbu;
mod memory;
mod print;
mod sweep;

use super::draft::{self as draft_model, Draft};
use memory::MemoryFigures;
use print::{Columns, Format, Printer, Row, utc_now};

/// `farmhand bench`.
pub const VERB: Verb = Verb {
    name: "bench",
    summary: "prefill and decode speed of a model",
    positional: "",
    flags: &[
        Flag { names: &["-m", "--model"], value: Some("FILE"), help: "model (GGUF); may be repeated" },
        Flag { names: &["-p", "--n-prompt"], value: Some("N,..."), help: "prompt lengths; 0 is none (512)" },
        Flag { names: &["-n", "--n-gen"], value: Some("N,..."), help: "tokens to generate; 0 is none (128)" },
        Flag { names: &["-d", "--n-depth"], value: Some("N,..."), help: "tokens in the cache before (0)" },
        Flag {
            names: &["-t", "--threads"],
            value: Some("N,..."),
            help: "worker threads; 0 takes the cores named, else the performance cores (0)",
        },
        Flag { names: &["-r", "--repetitions"], value: Some("N"), help: "repetitions of each test (5)" },
        Flag {
            names: &["-ctk", "--cache-type-k"],
            value: Some("TYPE,..."),
            help: "cached keys: f16, q8_0, q4_0 (f16)",
        },
        Flag {
            names: &["-ctv", "--cache-type-v"],
            value: Some("TYPE,..."),
            help: "cached values: f16, q8_0, q4_0 (f16)",
        },
        Flag { names: &["-mmp", "--mmap"], value: Some("0|1"), help: "map the model instead of reading it (1)" },
        setup::NO_MODEL_HASH,
        Flag { names: &["-o", "--output"], value: Some("FORMAT"), help: "md, csv, json or jsonl (md)" },
        Flag {
            names: &["--paced"],
            value: None,
            help: "a repetition for each line on stdin, its nanoseconds on stdout: for turns with another engine",
        },
        Flag { names: &["--no-warmup"], value: None, help: "no unmeasured repetition before each test" },
    ],
    shared: &[setup::ENGINE, draft_model::FLAGS, profile::FLAGS],
    run,
};

/// Exit code when something was measured that is not to be believed; rows and stderr say why.
const INVALID: u8 = 3;

/// What was asked for.
struct Request {
    prompts: Vec<u32>,
    decodes: Vec<u32>,
    depths: Vec<u32>,
    threads: Vec<u32>,
    key_types: Vec<KvType>,
    value_types: Vec<KvType>,
    repetitions: u32,
    /// All but threads and context.
    config: EngineConfig,
    hash_model: bool,
    warm_up: bool,
    paced: bool,
    format: Format,
    profiling: Profiling,
}

/// One test: `prompt` tokens at once or `decode` tokens one by one, after `depth` tokens in the cache.
#[derive(Clone, Copy)]
struct Test {
    threads: u32,
    key_type: KvType,
    value_type: KvType,
    depth: u32,
    prompt: u32,
    decode: u32,
}

impl Test {
    /// Tokens in the cache at its end.
    fn tokens(&self) -> u64 {
        u64::from(self.depth) + u64::from(self.prompt.max(self.decode))
    }

    /// As llama-bench names it: `pp512`, `tg128 @ d4096`.
    fn name(&self) -> String {
        test_name(self.prompt, self.decode, self.depth)
    }
}

fn run(args: &Args) -> Result<u8> {
    args.require("--model")?;
    let request = Request::from_args(args)?;
    let columns = Columns {
        cache: request.cache_differs_from_default(),
        ratios: request.depths.len().max(request.threads.len()) > 1,
        mbu: request.profiling.roofline().is_some(),
    };
    let mut printer = Printer::new(request.format, columns);
    let measured = measure_all(args, &request, &mut printer);
    // a table that was begun is ended, whatever became of the last test
    printer.finish()?;
    measured?;
    request.profiling.finish()?;
    Ok(if printer.invalid_rows == 0 { 0 } else { INVALID })
}

fn measure_all(args: &Args, request: &Request, printer: &mut Printer) -> Result<()> {
    ahead::check(&args.all("--model"), request)?;
    for path in args.all("--model") {
        let model = setup::open(Path::new(path), &request.config)?;
        let draft = Draft::from_args(args, &model, &request.config)?;
        let hashes = request.hash_model.then(|| proof::hash_model(&model));
        let subject = Subject { path, model, hashes };
        for test in request.tests() {
            printer.print(measure(&subject, request, test)?)?;
            if let Some(draft) = draft.as_ref().filter(|_| test.decode > 0) {
                printer.print(draft::measure(&subject, draft, request, test)?)?;
            }
        }
    }
    Ok(())
}

impl Request {
    fn from_args(args: &Args) -> Result<Self> {
        let mmap = match args.get("-mmp").unwrap_or("1") {
            "1" => true,
            "0" => false,
            other => return Err(EngineError::usage(format!("flag `-mmp`: `{other}` is neither 0 nor 1"))),
        };
        let config = setup::config(args)?;
        let format = match args.get("-o").unwrap_or("md") {
            "md" => Format::Markdown,
            "csv" => Format::Csv,
            "json" => Format::Json,
            "jsonl" => Format::JsonLines,
            other => {
                return Err(EngineError::usage(format!("flag `-o`: unknown format `{other}`"))
                    .hint("known: md, csv, json, jsonl"));
            }
        };
        let repetitions = args.number("-r", 5)?;
        if repetitions == 0 {
            return Err(EngineError::usage("flag `-r`: at least one repetition is needed"));
        }
        Ok(Self {
            prompts: args.numbers("-p", &[512])?,
            decodes: args.numbers("-n", &[128])?,
            depths: args.numbers("-d", &[0])?,
            threads: args.numbers("-t", &[0])?,
            key_types: args.words("-ctk", &[KvType::F16])?,
            value_types: args.words("-ctv", &[KvType::F16])?,
            repetitions,
            config: EngineConfig { mmap: config.mmap && mmap, ..config },
            hash_model: !args.has("--no-model-hash"),
            warm_up: !args.has("--no-warmup"),
            paced: args.has("--paced"),
            format,
            profiling: Profiling::from_args(args)?,
        })
    }

    /// Whether any row caches otherwise than in f16 with nothing forgotten.
    fn cache_differs_from_default(&self) -> bool {
        let f16 = [KvType::F16];
        self.key_types != f16 || self.value_types != f16 || self.config.kv_policy != KvPolicy::Full
    }

    /// How the engine is set up for a test with so many tokens in the cache.
    fn config_of(&self, test: &Test, tokens: u64) -> Result<EngineConfig> {
        // a policy that keeps more than the test has is no fault of the test
        let context = tokens.max(self.config.kv_policy.kept_tokens() as u64);
        let context_tokens = u32::try_from(context)
            .map_err(|_| EngineError::usage(format!("a context of {context} tokens is too long")))?;
        let config = EngineConfig { threads: test.threads, context_tokens, ..self.config.clone() };
        Ok(config.with_kv_types(test.key_type, test.value_type))
    }

    /// Every combination of what was asked for, prompts before decodes.
    fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for &threads in &self.threads {
            for (&key_type, &value_type) in
                self.key_types.iter().flat_map(|k| self.value_types.iter().map(move |v| (k, v)))
            {
                for &depth in &self.depths {
                    let one = |prompt, decode| Test { threads, key_type, value_type, depth, prompt, decode };
                    tests.extend(self.prompts.iter().filter(|n| **n > 0).map(|&n| one(n, 0)));
                    tests.extend(self.decodes.iter().filter(|n| **n > 0).map(|&n| one(0, n)));
                }
            }
        }
        tests
    }
}

/// The model under test.
struct Subject<'a> {
    path: &'a str,
    model: Arc<Model>,
    hashes: Option<ModelHashes>,
}

fn measure(subject: &Subject<'_>, request: &Request, test: Test) -> Result<Row> {
    let Subject { path, model, .. } = subject;
    // freed buffers of the test before must not show in this one's memory
    give_back_freed();
    let config = request.config_of(&test, test.tokens())?;
    let mut session = setup::session(model, &config)?;
    let faults_before = session.affinity_faults();
    let test_time = utc_now();
    let samples_ns = repeat(&mut session, request, test)?;
    request.profiling.keep(&mut session, &format!("{path} {}", test.name()));
    if !session.logits_finite() {
        return Err(EngineError::model("logits are not finite numbers").at((*path).to_owned()));
    }
    let mut row = row(&session, &config, subject, test, Measured { test_time, samples_ns, faults_before })?;
    if let Some((mbu, objection)) = mbu::of(&session, test, row.avg_ts, request.profiling.roofline()) {
        row.mbu = Some(mbu);
        row.invalid.extend(objection);
    }
    Ok(row)
}

/// What was measured, when it began, and which workers were elsewhere then.
struct Measured {
    test_time: String,
    samples_ns: Vec<u64>,
    faults_before: Vec<String>,
}

fn row(session: &Session, config: &EngineConfig, subject: &Subject<'_>, test: Test, measured: Measured) -> Result<Row> {
    let Subject { path, model, hashes } = subject;
    let Test { key_type, value_type, depth, prompt, decode, .. } = test;
    let Measured { test_time, samples_ns, faults_before } = measured;
    let mut proof = Facts::of_session(session, config).prove(hashes.clone(), "none")?;
    if proof.affinity_faults.is_empty() {
        // back in place does not undo that it was elsewhere
        proof.affinity_faults = faults_before;
    }
    let tokens = f64::from(prompt.max(decode));
    let samples_ts: Vec<f64> = samples_ns.iter().map(|&ns| tokens * 1e9 / ns as f64).collect();
    let (avg_ns, stddev_ns) = mean_and_deviation(&samples_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>());
    let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
    Ok(Row {
        build_commit: option_env!("FARMGATE_BUILD_COMMIT").unwrap_or("unknown"),
        build_number: 0,
        cpu_info: cpu_info(),
        gpu_info: "",
        backends: "CPU",
        model_filename: (*path).to_owned(),
        model_type: model_type(model),
        model_size: model.weight_bytes(),
        model_n_params: model.parameters(),
        n_batch: BATCH_TOKENS_MAX,
        n_ubatch: BATCH_TOKENS_MAX,
        n_threads: if prompt > 0 { session.threads_batch_effective() } else { session.threads_effective() },
        type_k: key_type.as_str(),
        type_v: value_type.as_str(),
        kv_policy: config.kv_policy,
        use_mmap: config.mmap,
        n_prompt: prompt,
        n_gen: decode,
        n_depth: depth,
        n_positions: session.depth(),
        test_time,
        avg_ns: avg_ns as u64,
        stddev_ns: stddev_ns as u64,
        avg_ts,
        stddev_ts,
        samples_ns,
        samples_ts,
        ratio_to_first: 1.0,
        invalid: (!proof.affinity_faults.is_empty()).then_some(ReasonCode::AffinityDiffers).into_iter().collect(),
        memory: MemoryFigures::of_session(session, config),
        proof,
        mbu: None,
        draft: None,
    })
}

/// Nanoseconds of each repetition; a repetition that is not counted comes first.
fn repeat(session: &mut Session, request: &Request, test: Test) -> Result<Vec<u64>> {
    let Test { depth, prompt, decode, .. } = test;
    let mut ids = Ids { random: SplitMix64::new(1), vocab: session.model().vocab() as u64 };
    if request.warm_up {
        session.forward(&ids.take(prompt.clamp(1, BATCH_TOKENS_MAX as u32)), Logits::Last)?;
    }
    session.clear();
    let before = ids.take(depth);
    if depth > 0 {
        session.forward(&before, Logits::None)?;
    }
    request.profiling.start(session);
    let mut once = || {
        // a window may not reach back
        if session.truncate(before.len()) < before.len() {
            session.clear();
            session.forward(&before, Logits::None)?;
        }
        time_once(session, &ids.take(prompt.max(decode)), prompt > 0)
    };
    if request.paced {
        return at_the_callers_pace(&mut once);
    }
    (0..request.repetitions).map(|_| once()).collect()
}

/// A repetition for every line on stdin, until it ends.
fn at_the_callers_pace(once: &mut dyn FnMut() -> Result<u64>) -> Result<Vec<u64>> {
    let mut samples_ns = Vec::new();
    stdout::put(format_args!("ready\n"))?;
    for _ in std::io::stdin().lines().map_while(std::result::Result::ok) {
        let ns = once()?;
        stdout::put(format_args!("{ns}\n"))?;
        samples_ns.push(ns);
    }
    match samples_ns.is_empty() {
        true => Err(EngineError::usage("stdin ended before the first repetition")),
        false => Ok(samples_ns),
    }
}

/// As llama-bench names a test: `pp512`, `tg128 @ d4096`.
fn test_name(prompt: u32, decode: u32, depth: u32) -> String {
    let test = if prompt > 0 { format!("pp{prompt}") } else { format!("tg{decode}") };
    if depth > 0 { format!("{test} @ d{depth}") } else { test }
}

/// Nanoseconds that `tokens` take, at once or one by one; at least 1, so that speeds are finite.
fn time_once(session: &mut Session, tokens: &[u32], at_once: bool) -> Result<u64> {
    let begun = Instant::now();
    for part in tokens.chunks(if at_once { tokens.len() } else { 1 }) {
        session.forward(part, Logits::Last)?;
    }
    Ok(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1))
}

/// Random tokens: speed does not depend on which.
struct Ids {
    random: SplitMix64,
    vocab: u64,
}

impl Ids {
    fn take(&mut self, n: u32) -> Vec<u32> {
        (0..n).map(|_| (self.random.next_u64() % self.vocab) as u32).collect()
    }
}

fn model_type(model: &Model) -> String {
    let millions = model.parameters() as f64 / 1e6;
    let size = if millions < 1000.0 { format!("{millions:.0}M") } else { format!("{:.1}B", millions / 1000.0) };
    format!("{} {size} {}", model.hyperparameters().architecture.name(), model.dominant_type())
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    (mean, (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

/// The processor as the kernel names it; Arm kernels often have no name, but a hardware line.
fn cpu_info() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = info.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    field("model name").or_else(|| field("Hardware")).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_is_as_long_as_was_asked_for_even_when_the_tokens_end_a_generation() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/tiny-pd-1.3m-Q8_0.gguf");
        let config = EngineConfig { threads: 1, context_tokens: 64, ..EngineConfig::default() };
        let model = Arc::new(Model::for_config(Path::new(path), &config, &|_| {}).unwrap());
        let end = (0..model.vocab() as u32).find(|&id| model.tokenizer().is_eog(id)).unwrap();
        let mut session = Session::new(Arc::clone(&model), &config).unwrap();
        for (at_once, tokens) in [(false, 20), (true, 33)] {
            session.clear();
            assert!(time_once(&mut session, &vec![end; tokens], at_once).unwrap() > 0);
            assert_eq!(session.depth(), tokens, "every token is in the cache");
        }
    }
}
