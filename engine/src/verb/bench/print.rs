//! Rows of `farmhand bench` and how they are printed: llama-bench's names and formats.

use super::memory::MemoryFigures;
use super::sweep::Sweep;
use crate::error::Result;
use crate::proof;
use crate::protocol::{KvPolicy, ReasonCode, SelfProof};
use crate::talk::talk;
use crate::text::one_line;
use crate::verb::draft::DraftReport;
use crate::verb::stdout;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Markdown,
    Csv,
    Json,
    JsonLines,
}

/// One test's figures. Field names are llama-bench's, but for the last ones.
#[derive(Serialize)]
pub struct Row {
    pub build_commit: &'static str,
    pub build_number: u32,
    pub cpu_info: String,
    pub gpu_info: &'static str,
    pub backends: &'static str,
    pub model_filename: String,
    pub model_type: String,
    pub model_size: u64,
    pub model_n_params: u64,
    pub n_batch: usize,
    pub n_ubatch: usize,
    pub n_threads: u32,
    pub type_k: &'static str,
    pub type_v: &'static str,
    /// What of the past was kept.
    pub kv_policy: KvPolicy,
    pub use_mmap: bool,
    pub n_prompt: u32,
    pub n_gen: u32,
    pub n_depth: u32,
    /// Positions that were in the cache at the end of the last repetition.
    pub n_positions: usize,
    pub test_time: String,
    pub avg_ns: u64,
    pub stddev_ns: u64,
    pub avg_ts: f64,
    pub stddev_ts: f64,
    pub samples_ns: Vec<u64>,
    pub samples_ts: Vec<f64>,
    /// Speed / that of the first row of the same test, whatever its depth and threads; 1 in that row.
    pub ratio_to_first: f64,
    /// Why the figures are not to be believed; empty when nothing speaks against them.
    pub invalid: Vec<ReasonCode>,
    /// What memory the test held.
    pub memory: MemoryFigures,
    /// What the engine proves about itself: the object that a run's journal has.
    pub proof: SelfProof,
    /// Bytes that a decode read a second / what the roofline reads at best; absent without a roofline, and in rows that no
    /// point of it is the ceiling of: prompts, drafts, other cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbu: Option<f64>,
    /// What a draft model was worth; llama-bench has no such field, so it is absent without one and in CSV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftReport>,
}

impl Row {
    /// What a sweep over depths and threads keeps as it is.
    pub fn series(&self) -> String {
        format!(
            "{} {}/{} {} {} {} {}",
            self.model_filename,
            self.n_prompt,
            self.n_gen,
            self.type_k,
            self.type_v,
            self.kv_policy,
            self.draft.is_some()
        )
    }

    /// `pp512`, `tg128 @ d4096`, `tg128 + draft`.
    pub fn test(&self) -> String {
        let test = super::test_name(self.n_prompt, self.n_gen, self.n_depth);
        if self.draft.is_some() { format!("{test} + draft") } else { test }
    }

    /// `f16`, `q8_0/f16` (keys/values), `q8_0 sink:4+64`.
    fn cache(&self) -> String {
        let types = if self.type_k == self.type_v {
            self.type_k.to_owned()
        } else {
            format!("{}/{}", self.type_k, self.type_v)
        };
        match self.kv_policy {
            KvPolicy::Full => types,
            policy => format!("{types} {policy}"),
        }
    }

    fn invalid(&self) -> String {
        self.invalid.iter().map(|reason| reason.as_str()).collect::<Vec<_>>().join(" ")
    }
}

/// Columns that a table has only where they tell something.
#[derive(Clone, Copy, Default)]
pub struct Columns {
    /// How keys and values are cached: where that is not f16 with nothing forgotten in every row.
    pub cache: bool,
    /// The sweep's ratios.
    pub ratios: bool,
    /// Utilisation of memory: where a roofline was given.
    pub mbu: bool,
}

/// Prints rows as they are measured.
pub struct Printer {
    format: Format,
    sweep: Sweep,
    columns: Columns,
    /// Rows printed so far.
    pub rows: usize,
    /// Those of them that are not to be believed.
    pub invalid_rows: usize,
    /// What formats without room for it tell at the end: the memory of each test, and each different proof.
    notes: Vec<String>,
    proofs: Vec<Vec<String>>,
}

impl Printer {
    pub fn new(format: Format, columns: Columns) -> Self {
        Self {
            format,
            sweep: Sweep::default(),
            columns,
            rows: 0,
            invalid_rows: 0,
            notes: Vec::new(),
            proofs: Vec::new(),
        }
    }

    pub fn print(&mut self, mut row: Row) -> Result<()> {
        row.ratio_to_first = self.sweep.take(&row);
        let row = &row;
        const INFALLIBLE: &str = "a row has string keys and finite numbers only";
        match self.format {
            Format::JsonLines => stdout::put(format_args!("{}\n", serde_json::to_string(row).expect(INFALLIBLE)))?,
            Format::Json => {
                let before = if self.rows == 0 { "[\n" } else { ",\n" };
                stdout::put(format_args!("{before}{}", serde_json::to_string_pretty(row).expect(INFALLIBLE)))?;
            }
            Format::Csv => {
                if self.rows == 0 {
                    let names: Vec<&str> = csv_columns(self.columns).collect();
                    stdout::put(format_args!("{}\n", names.join(",")))?;
                }
                let row = serde_json::to_value(row).expect(INFALLIBLE);
                stdout::put(format_args!("{}\n", csv(&row, self.columns)))?;
            }
            Format::Markdown => {
                if self.rows == 0 {
                    stdout::put(format_args!("{}\n", markdown_head(self.columns)))?;
                }
                stdout::put(format_args!("{}\n", markdown(row, self.columns)))?;
            }
        }
        self.rows += 1;
        self.invalid_rows += usize::from(!row.invalid.is_empty());
        for fault in &row.proof.affinity_faults {
            talk!("warning: {}: INVALID ({}): {fault}", row.test(), row.invalid());
        }
        if let Some(warning) = row.memory.warning() {
            talk!("warning: {}: {warning}", row.test());
        }
        self.notes.push(format!("{}, {}: {}", cell(&row.model_filename), row.test(), row.memory.line()));
        let lines = proof::lines(&row.proof);
        if !self.proofs.contains(&lines) {
            self.proofs.push(lines);
        }
        Ok(())
    }

    pub fn finish(&self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        self.sweep.cliffs().iter().for_each(|cliff| talk!("warning: {cliff}"));
        match self.format {
            Format::Json => stdout::put(format_args!("\n]\n")),
            Format::JsonLines => Ok(()),
            // below the table, as paragraphs of their own
            Format::Markdown => stdout::put(format_args!("{}\n", self.told())),
            // the columns are llama-bench's and their reader may count them
            Format::Csv => {
                talk!("{}", self.told());
                Ok(())
            }
        }
    }

    fn told(&self) -> String {
        let mut lines = vec!["\nmemory, bytes:\n".to_string()];
        lines.extend(self.notes.iter().map(|note| format!("- {note}")));
        for proof in &self.proofs {
            lines.push("\nproof:\n".into());
            lines.extend(proof.iter().map(|line| format!("- {line}")));
        }
        lines.join("\n")
    }
}

/// Columns of the CSV form: all of a row but its samples, as in llama-bench, what of the past was kept, and why it is not to
/// be believed.
const CSV_COLUMNS: [&str; 25] = [
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
    "kv_policy",
    "use_mmap",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
    "invalid",
];

/// Fields that the CSV form leaves out: lists and objects, and what llama-bench has no column for.
#[cfg(test)]
const LEFT_OUT: [&str; 6] = ["samples_ns", "samples_ts", "memory", "proof", "n_positions", "ratio_to_first"];

fn csv_columns(columns: Columns) -> impl Iterator<Item = &'static str> {
    CSV_COLUMNS.into_iter().chain(columns.mbu.then_some("mbu"))
}

/// One line, every field quoted. What could rewrite a terminal or begin another line is escaped; JSON has names as they are.
fn csv(row: &serde_json::Value, columns: Columns) -> String {
    let quoted = csv_columns(columns).map(|column| {
        let value = &row[column];
        let text = match value {
            serde_json::Value::String(text) => one_line(text),
            serde_json::Value::Null => String::new(),
            serde_json::Value::Array(words) => words.iter().filter_map(|w| w.as_str()).collect::<Vec<_>>().join(" "),
            other => other.to_string(),
        };
        format!("\"{}\"", text.replace('"', "\"\""))
    });
    quoted.collect::<Vec<_>>().join(",")
}

/// A name as a cell of a table or part of a list.
fn cell(name: &str) -> String {
    one_line(name).replace('|', "\\|")
}

fn markdown_head(columns: Columns) -> String {
    let (cache, cache_rule) = if columns.cache { (" cache |", " --- |") } else { ("", "") };
    let (ratio, ratio_rule) = if columns.ratios { (" ratio |", " ---: |") } else { ("", "") };
    let (mbu, mbu_rule) = if columns.mbu { (" mbu |", " ---: |") } else { ("", "") };
    format!(
        "| model | size | params | threads | mmap |{cache} test | t/s |{ratio}{mbu}\n\
         | --- | ---: | ---: | ---: | ---: |{cache_rule} ---: | ---: |{ratio_rule}{mbu_rule}"
    )
}

fn markdown(row: &Row, columns: Columns) -> String {
    let invalid = if row.invalid.is_empty() { String::new() } else { format!(" INVALID {}", row.invalid()) };
    let cache = if columns.cache { format!(" {} |", row.cache()) } else { String::new() };
    let ratio = if columns.ratios { format!(" {:.2} |", row.ratio_to_first) } else { String::new() };
    let mbu = match row.mbu {
        _ if !columns.mbu => String::new(),
        Some(mbu) => format!(" {mbu:.2} |"),
        None => " |".to_owned(),
    };
    format!(
        "| {} | {:.2} MiB | {:.2} M | {} | {} |{cache} {} | {:.2} ± {:.2}{invalid} |{ratio}{mbu}",
        cell(&row.model_type),
        row.model_size as f64 / f64::from(1 << 20),
        row.model_n_params as f64 / 1e6,
        row.n_threads,
        u8::from(row.use_mmap),
        row.test(),
        row.avg_ts,
        row.stddev_ts,
    )
}

pub fn utc_now() -> String {
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

#[cfg(test)]
mod tests {
    use super::super::mean_and_deviation;
    use super::*;
    use crate::protocol::HeldMemory;

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
            kv_policy: KvPolicy::Full,
            use_mmap: true,
            n_prompt: 1,
            n_gen: 0,
            n_depth: 0,
            n_positions: 1,
            test_time: utc(0),
            avg_ns: 1,
            stddev_ns: 0,
            avg_ts: 1.0,
            stddev_ts: 0.0,
            samples_ns: vec![1],
            samples_ts: vec![1.0],
            ratio_to_first: 1.0,
            invalid: vec![ReasonCode::AffinityDiffers, ReasonCode::NotFinite],
            memory: MemoryFigures::new(&HeldMemory::default(), ""),
            proof: SelfProof::default(),
            mbu: None,
            draft: None,
        };
        assert!(
            csv(&serde_json::to_value(&row).unwrap(), Columns { mbu: true, ..Columns::default() }).ends_with(",\"\"")
        );
        let value = serde_json::to_value(&row).unwrap();
        let mut columns: Vec<&str> = CSV_COLUMNS.into_iter().chain(LEFT_OUT).collect();
        columns.sort_unstable();
        let mut fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(columns, fields);
        assert!(csv(&value, Columns::default()).contains("\"f16\",\"f16\",\"full\""));
        assert!(csv(&value, Columns::default()).contains("\"a \"\"fast\"\" one, really\""));
        assert!(csv(&value, Columns::default()).ends_with(",\"affinity-differs not-finite\""));
        assert!(markdown(&row, Columns::default()).ends_with(" INVALID affinity-differs not-finite |"));
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[2.0]), (2.0, 0.0));
        let (mean, deviation) = mean_and_deviation(&[1.0, 3.0]);
        assert_eq!(mean, 2.0);
        assert!((deviation - 2f64.sqrt()).abs() < 1e-12);
    }
}
