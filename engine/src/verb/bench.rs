//! `farmhand bench`: prefill and decode speed, with llama-bench's flags and field names where it has them.

use super::args::{Args, Flag, Verb};
use crate::error::{EngineError, Result};
use crate::model::{BATCH_TOKENS_MAX, LoadOptions, Logits, Model, Session};
use crate::protocol::{EngineConfig, KvType};
use crate::sampler::SplitMix64;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Markdown,
    Csv,
    Json,
    JsonLines,
}

/// One test's figures. Field names are llama-bench's.
#[derive(Serialize)]
struct Row {
    build_commit: &'static str,
    build_number: u32,
    cpu_info: String,
    gpu_info: &'static str,
    backends: &'static str,
    model_filename: String,
    model_type: String,
    model_size: u64,
    model_n_params: u64,
    n_batch: usize,
    n_ubatch: usize,
    n_threads: u32,
    type_k: &'static str,
    type_v: &'static str,
    use_mmap: bool,
    n_prompt: u32,
    n_gen: u32,
    n_depth: u32,
    test_time: String,
    avg_ns: u64,
    stddev_ns: u64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
}

fn run(args: &Args) -> Result<u8> {
    args.require("--model")?;
    let request = Request::from_args(args)?;
    let mut printer = Printer { format: request.format, rows: 0 };
    for path in args.all("--model") {
        let options = LoadOptions { mmap: request.mmap, isa: None };
        let model = Arc::new(Model::load(Path::new(path), &options)?);
        for &threads in &request.threads {
            for &depth in &request.depths {
                let prompts = request.prompts.iter().map(|&n| (n, 0));
                for (prompt, decode) in prompts.chain(request.decodes.iter().map(|&n| (0, n))) {
                    if prompt > 0 || decode > 0 {
                        printer.print(&measure(&model, path, &request, threads, depth, prompt, decode)?);
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
    })
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

fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as `2026-01-31T23:59:59Z`.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // the calendar repeats every 400 years = 146,097 days; counting years from March puts the leap day last
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Prints rows as they are measured.
struct Printer {
    format: Format,
    rows: usize,
}

impl Printer {
    fn print(&mut self, row: &Row) {
        const INFALLIBLE: &str = "a row has string keys and finite numbers only";
        match self.format {
            Format::JsonLines => println!("{}", serde_json::to_string(row).expect(INFALLIBLE)),
            Format::Json => {
                let before = if self.rows == 0 { "[\n" } else { ",\n" };
                print!("{before}{}", serde_json::to_string_pretty(row).expect(INFALLIBLE));
            }
            Format::Csv => {
                if self.rows == 0 {
                    println!("{}", CSV_COLUMNS.join(","));
                }
                println!("{}", csv(&serde_json::to_value(row).expect(INFALLIBLE)));
            }
            Format::Markdown => {
                if self.rows == 0 {
                    println!("| model | size | params | threads | mmap | test | t/s |");
                    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
                }
                println!("{}", markdown(row));
            }
        }
        self.rows += 1;
    }

    fn finish(&self) {
        if self.format == Format::Json && self.rows > 0 {
            println!("\n]");
        }
    }
}

/// Columns of the CSV form: all of a row but its samples, as in llama-bench.
const CSV_COLUMNS: [&str; 23] = [
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "type_k",
    "type_v",
    "use_mmap",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
];

/// One line, every field quoted.
fn csv(row: &serde_json::Value) -> String {
    let quoted = CSV_COLUMNS.iter().map(|&column| {
        let value = &row[column];
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("\"{}\"", text.replace('"', "\"\""))
    });
    quoted.collect::<Vec<_>>().join(",")
}

fn markdown(row: &Row) -> String {
    let mut test = if row.n_prompt > 0 { format!("pp{}", row.n_prompt) } else { format!("tg{}", row.n_gen) };
    if row.n_depth > 0 {
        test.push_str(&format!(" @ d{}", row.n_depth));
    }
    format!(
        "| {} | {:.2} MiB | {:.2} M | {} | {} | {test} | {:.2} ± {:.2} |",
        row.model_type,
        row.model_size as f64 / f64::from(1 << 20),
        row.model_n_params as f64 / 1e6,
        row.n_threads,
        u8::from(row.use_mmap),
        row.avg_ts,
        row.stddev_ts,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(utc(4_102_444_800), "2100-01-01T00:00:00Z");
    }

    #[test]
    fn the_csv_form_has_every_column_but_the_samples_and_quotes_quotes() {
        let row = Row {
            build_commit: "c",
            build_number: 0,
            cpu_info: "a \"fast\" one, really".into(),
            gpu_info: "",
            backends: "CPU",
            model_filename: "m.gguf".into(),
            model_type: "llama".into(),
            model_size: 1,
            model_n_params: 1,
            n_batch: 1,
            n_ubatch: 1,
            n_threads: 1,
            type_k: "f16",
            type_v: "f16",
            use_mmap: true,
            n_prompt: 1,
            n_gen: 0,
            n_depth: 0,
            test_time: utc(0),
            avg_ns: 1,
            stddev_ns: 0,
            avg_ts: 1.0,
            stddev_ts: 0.0,
            samples_ns: vec![1],
            samples_ts: vec![1.0],
        };
        let value = serde_json::to_value(&row).unwrap();
        let mut columns: Vec<&str> = CSV_COLUMNS.into_iter().chain(["samples_ns", "samples_ts"]).collect();
        columns.sort_unstable();
        let mut fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(columns, fields);
        assert!(csv(&value).contains("\"a \"\"fast\"\" one, really\""));
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[2.0]), (2.0, 0.0));
        let (mean, deviation) = mean_and_deviation(&[1.0, 3.0]);
        assert_eq!(mean, 2.0);
        assert!((deviation - 2f64.sqrt()).abs() < 1e-12);
    }
}
