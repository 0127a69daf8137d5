//! `farmhand bench`: prefill and decode speed, with llama-bench's flags and field names where it has them.

use super::args::{Args, Flag, Verb};
use crate::error::{EngineError, Result};
use crate::model::{BATCH_TOKENS_MAX, LoadOptions, Logits, Model, Session};
use crate::protocol::{EngineConfig, KvType};
use crate::sampler::SplitMix64;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

mod draft;
mod print;

use super::draft::Draft;
use print::{Format, Printer, Row, utc_now};

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
            help: "worker threads; 0 takes the performance cores (0)",
        },
        Flag { names: &["-r", "--repetitions"], value: Some("N"), help: "repetitions of each test (5)" },
        Flag { names: &["-ctk", "--cache-type-k"], value: Some("TYPE"), help: "type of cached keys: f16 (f16)" },
        Flag { names: &["-ctv", "--cache-type-v"], value: Some("TYPE"), help: "type of cached values: f16 (f16)" },
        Flag { names: &["-mmp", "--mmap"], value: Some("0|1"), help: "map the model instead of reading it (1)" },
        Flag { names: &["-o", "--output"], value: Some("FORMAT"), help: "md, csv, json or jsonl (md)" },
        Flag {
            names: &["--draft-model"],
            value: Some("FILE"),
            help: "also decode with this draft model (a row of its own, after a built-in prompt)",
        },
        Flag { names: &["--draft-max"], value: Some("N"), help: "tokens that the draft proposes at most (8)" },
        Flag {
            names: &["--draft-min"],
            value: Some("N"),
            help: "and at least; 0 leaves it alone while it does not pay (0)",
        },
        Flag { names: &["--no-warmup"], value: None, help: "no unmeasured repetition before each test" },
    ],
    run,
};

/// What was asked for.
struct Request {
    prompts: Vec<u32>,
    decodes: Vec<u32>,
    depths: Vec<u32>,
    threads: Vec<u32>,
    repetitions: u32,
    mmap: bool,
    warm_up: bool,
    format: Format,
}

fn run(args: &Args) -> Result<u8> {
    args.require("--model")?;
    let request = Request::from_args(args)?;
    let mut printer = Printer { format: request.format, rows: 0 };
    for path in args.all("--model") {
        let options = LoadOptions { mmap: request.mmap, isa: None };
        let model = Arc::new(Model::load(Path::new(path), &options)?);
        let draft = Draft::from_args(args, &model, request.mmap)?;
        for &threads in &request.threads {
            for &depth in &request.depths {
                let prompts = request.prompts.iter().map(|&n| (n, 0));
                for (prompt, decode) in prompts.chain(request.decodes.iter().map(|&n| (0, n))) {
                    if prompt > 0 || decode > 0 {
                        printer.print(&measure(&model, path, &request, threads, depth, prompt, decode)?);
                    }
                    if let Some(draft) = draft.as_ref().filter(|_| decode > 0) {
                        printer.print(&draft::measure(&model, draft, path, &request, threads, depth, decode)?);
                    }
                }
            }
        }
    }
    printer.finish();
    match printer.rows {
        0 => Err(EngineError::usage("nothing to measure").hint("give -p or -n a number above 0")),
        _ => Ok(0),
    }
}

impl Request {
    fn from_args(args: &Args) -> Result<Self> {
        for flag in ["-ctk", "-ctv"] {
            if let Some(other) = args.get(flag).filter(|&t| t != "f16") {
                return Err(EngineError::usage(format!("flag `{flag}`: cache type `{other}` is not supported"))
                    .hint("known: f16"));
            }
        }
        let mmap = match args.get("-mmp").unwrap_or("1") {
            "1" => true,
            "0" => false,
            other => return Err(EngineError::usage(format!("flag `-mmp`: `{other}` is neither 0 nor 1"))),
        };
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
            repetitions,
            mmap,
            warm_up: !args.has("--no-warmup"),
            format,
        })
    }
}

/// One test: `prompt` tokens at once or `decode` tokens one by one, after `depth` tokens in the cache.
fn measure(
    model: &Arc<Model>,
    path: &str,
    request: &Request,
    threads: u32,
    depth: u32,
    prompt: u32,
    decode: u32,
) -> Result<Row> {
    let context_tokens = depth
        .checked_add(prompt.max(decode))
        .ok_or_else(|| EngineError::usage(format!("{depth} tokens and {} more are too many", prompt.max(decode))))?;
    let config = EngineConfig { threads, context_tokens, kv_type: KvType::F16, mmap: request.mmap };
    let mut session = Session::new(Arc::clone(model), &config)?;
    let mut ids = Ids { random: SplitMix64::new(1), vocab: model.vocab() as u64 };
    let test_time = utc_now();

    if request.warm_up {
        session.forward(&ids.take(prompt.clamp(1, BATCH_TOKENS_MAX as u32)), Logits::Last)?;
    }
    session.clear();
    if depth > 0 {
        session.forward(&ids.take(depth), Logits::None)?;
    }
    let samples_ns = (0..request.repetitions)
        .map(|_| {
            session.truncate(depth as usize);
            time_once(&mut session, &ids.take(prompt.max(decode)), prompt > 0)
        })
        .collect::<Result<Vec<u64>>>()?;
    if !session.logits_finite() {
        return Err(EngineError::model("logits are not finite numbers").at(path.to_owned()));
    }
    let test = Test { prompt, decode, depth, test_time };
    Ok(row(&session, path, request, test, samples_ns))
}

/// What was measured, and when it began.
struct Test {
    prompt: u32,
    decode: u32,
    depth: u32,
    test_time: String,
}

fn row(session: &Session, path: &str, request: &Request, test: Test, samples_ns: Vec<u64>) -> Row {
    let model = session.model();
    let Test { prompt, decode, depth, test_time } = test;
    let tokens = f64::from(prompt.max(decode));
    let samples_ts: Vec<f64> = samples_ns.iter().map(|&ns| tokens * 1e9 / ns as f64).collect();
    let (avg_ns, stddev_ns) = mean_and_deviation(&samples_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>());
    let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
    Row {
        build_commit: option_env!("FARMGATE_BUILD_COMMIT").unwrap_or("unknown"),
        build_number: 0,
        cpu_info: cpu_info(),
        gpu_info: "",
        backends: "CPU",
        model_filename: path.to_owned(),
        model_type: model_type(model),
        model_size: model.weight_bytes(),
        model_n_params: model.parameters(),
        n_batch: BATCH_TOKENS_MAX,
        n_ubatch: BATCH_TOKENS_MAX,
        n_threads: session.threads_effective(),
        type_k: "f16",
        type_v: "f16",
        use_mmap: request.mmap,
        n_prompt: prompt,
        n_gen: decode,
        n_depth: depth,
        test_time,
        avg_ns: avg_ns as u64,
        stddev_ns: stddev_ns as u64,
        avg_ts,
        stddev_ts,
        samples_ns,
        samples_ts,
        draft: None,
    }
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
