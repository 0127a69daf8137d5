//! The steps of a cell, and how their samples are made.

use super::bandwidth::{mbu_of, objection};
use super::prompt::Prompt;
use super::{Engine, Errand};
use crate::error::Result;
use crate::protocol::{Finite, GoldenCase, ReasonCode, Record, SampleRecord, Step, TokenTimes, Validity};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What a token was chosen from: the id with the highest logit, the lowest such id when several are equal.
#[derive(Debug, Clone, Copy)]
struct Choice {
    id: u32,
    finite: bool,
}

/// One measured decode.
#[derive(Debug, Default)]
struct Decoded {
    /// When each token was chosen.
    emitted: Vec<Instant>,
    ids: Vec<u32>,
    finite: bool,
    first_eog_index: Option<u32>,
}

pub(super) struct Steps<'a, E> {
    errand: &'a Errand<'a>,
    engine: E,
    tell: &'a mut dyn FnMut(Record) -> Result<()>,
    step: u32,
    /// Samples that wait for the verdict of the golden cases.
    held: Vec<SampleRecord>,
    /// Golden steps that are still to come; while there are any, samples are held.
    golden_steps_left: usize,
    golden_failed: bool,
    /// A worker that had been moved was told of.
    moved: Cell<bool>,
}

impl<'a, E: Engine> Steps<'a, E> {
    pub(super) fn new(errand: &'a Errand<'a>, engine: E, tell: &'a mut dyn FnMut(Record) -> Result<()>) -> Self {
        let is_golden = |s: &&Step| matches!(s, Step::Golden { cases } if !cases.is_empty());
        let golden_steps_left = errand.cell.steps.iter().filter(is_golden).count();
        Self {
            errand,
            engine,
            tell,
            step: 0,
            held: Vec::new(),
            golden_steps_left,
            golden_failed: false,
            moved: Cell::new(false),
        }
    }

    /// All steps in order; `peak_rss_mb` is asked at the end.
    pub(super) fn run(&mut self, load_ms: f64, peak_rss_mb: &dyn Fn() -> Option<f64>) -> Result<()> {
        let errand = self.errand;
        for (index, step) in errand.cell.steps.iter().enumerate() {
            self.step = index as u32;
            match step {
                Step::Load { cold } => self.load(*cold, load_ms)?,
                Step::WarmUp { prompt_tokens, decode_tokens } => {
                    let prompt = self.prompt(*prompt_tokens)?;
                    self.engine.clear();
                    self.decode(&prompt.ids, *decode_tokens)?;
                }
                Step::Prefill { prompt_tokens, repetitions } => self.prefill(*prompt_tokens, *repetitions)?,
                Step::Decode { decode_tokens, at_depth, repetitions } => {
                    self.decode_at_depth(*decode_tokens, *at_depth, *repetitions)?;
                }
                Step::Answer { label, prompt_tokens, decode_tokens } => {
                    self.answer(label, *prompt_tokens, *decode_tokens)?;
                }
                Step::Golden { cases } => self.golden(cases)?,
            }
        }
        match peak_rss_mb() {
            Some(peak) => self.sample(0, "peak-rss-mb", peak, None),
            None => Ok(()),
        }
    }

    fn prompt(&self, tokens: u32) -> Result<Prompt> {
        Prompt::make(&self.engine, self.errand.cell.seed, tokens)
    }

    fn load(&mut self, cold: bool, load_ms: f64) -> Result<()> {
        let spoiled = (cold && self.errand.eviction == "none").then_some(ReasonCode::CacheNotEvicted);
        self.sample(0, if cold { "load-cold-ms" } else { "load-warm-ms" }, load_ms, spoiled)
    }

    fn prefill(&mut self, prompt_tokens: u32, repetitions: u32) -> Result<()> {
        let prompt = self.prompt(prompt_tokens)?;
        for repetition in 0..repetitions {
            let (ttft, batches, choice) = self.first_token(&prompt)?;
            let spoiled = (!choice.finite).then_some(ReasonCode::LogitsNotFinite);
            let tps = f64::from(prompt_tokens) / batches.as_secs_f64();
            self.sample(repetition, &format!("prefill-tps@{prompt_tokens}"), tps, spoiled)?;
            self.sample(repetition, &format!("ttft-ms@{prompt_tokens}"), milliseconds(ttft), spoiled)?;
        }
        Ok(())
    }

    /// From the text to the first token, into an emptied cache: the whole time, and that of the batches alone.
    fn first_token(&mut self, prompt: &Prompt) -> Result<(Duration, Duration, Choice)> {
        self.engine.clear();
        let begun = Instant::now();
        let mut ids = self.engine.tokenise(&prompt.text, true, false);
        ids.truncate(prompt.ids.len());
        let batches_begun = Instant::now();
        let logits = self.engine.forward(&ids)?;
        let batches = batches_begun.elapsed();
        let choice = choose(logits);
        Ok((begun.elapsed(), batches, choice))
    }

    fn decode_at_depth(&mut self, decode_tokens: u32, at_depth: u32, repetitions: u32) -> Result<()> {
        let prompt = self.prompt(at_depth.max(1))?;
        let qualifier = at_depth.to_string();
        let (before, last) = prompt.ids.split_at(prompt.ids.len() - 1);
        self.engine.clear();
        if !before.is_empty() {
            self.engine.forward(before)?;
        }
        for repetition in 0..repetitions {
            // back to the prompt but for its last token, whose logits start the next repetition
            if self.engine.truncate(before.len()) < before.len() {
                self.engine.forward(before)?;
            }
            let decoded = self.decode(last, decode_tokens)?;
            self.tell_decode(repetition, &qualifier, (prompt.ids.len(), decode_tokens), decoded, true)?;
        }
        Ok(())
    }

    fn answer(&mut self, label: &str, prompt_tokens: u32, decode_tokens: u32) -> Result<()> {
        let prompt = self.prompt(prompt_tokens)?;
        let begun = Instant::now();
        let (ttft, _, first) = self.first_token(&prompt)?;
        let emitted = begun + ttft;
        let decoded = self.continue_from(first, emitted, decode_tokens)?;
        let spoiled = (!first.finite).then_some(ReasonCode::LogitsNotFinite);
        self.sample(0, &format!("ttft-ms@{label}"), milliseconds(ttft), spoiled)?;
        self.tell_decode(0, label, (prompt.ids.len(), decode_tokens), decoded, false)
    }

    /// Runs `ids`, then generates `tokens` tokens greedily. An end-of-generation token is noted and not obeyed.
    fn decode(&mut self, ids: &[u32], tokens: u32) -> Result<Decoded> {
        let first = choose(self.engine.forward(ids)?);
        self.continue_from(first, Instant::now(), tokens)
    }

    fn continue_from(&mut self, first: Choice, first_emitted: Instant, tokens: u32) -> Result<Decoded> {
        // grows with what is generated, not with what a plan says
        let room = (tokens as usize).min(1 << 16);
        let mut decoded = Decoded { finite: first.finite, ..Decoded::default() };
        decoded.emitted.reserve(room);
        decoded.ids.reserve(room);
        decoded.emitted.push(first_emitted);
        decoded.ids.push(first.id);
        let mut id = first.id;
        for _ in 1..tokens {
            let choice = choose(self.engine.forward(&[id])?);
            decoded.emitted.push(Instant::now());
            decoded.ids.push(choice.id);
            decoded.finite &= choice.finite;
            id = choice.id;
        }
        let is_end = |id: &u32| self.engine.is_end_of_generation(*id);
        decoded.first_eog_index = decoded.ids.iter().position(is_end).map(|index| index as u32);
        Ok(decoded)
    }

    /// Tells of `wanted` tokens that were to be generated from `depth` tokens in the cache.
    fn tell_decode(
        &mut self,
        rep: u32,
        qualifier: &str,
        (depth, wanted): (usize, u32),
        decoded: Decoded,
        with_itl: bool,
    ) -> Result<()> {
        let spoiled = match () {
            () if decoded.emitted.len() != wanted as usize => Some(ReasonCode::TokenCountDiffers),
            () if !decoded.finite => Some(ReasonCode::LogitsNotFinite),
            () => None,
        };
        let gaps: Vec<Duration> = decoded.emitted.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let whole: Duration = gaps.iter().sum();
        let tokens_per_s = gaps.len() as f64 / whole.as_secs_f64();
        let mbu = self.errand.bandwidth.map(|bandwidth| {
            // the token in the middle stands for all: what is read grows evenly
            let bytes = self.engine.bytes_per_token(depth + gaps.len() / 2);
            (mbu_of(bytes, tokens_per_s, bandwidth), bandwidth)
        });
        let beyond = mbu.and_then(|(mbu, bandwidth)| objection(mbu, self.engine.facts().weight_bytes, bandwidth));
        let spoiled = spoiled.or(beyond);
        self.sample(rep, &format!("decode-tps@{qualifier}"), tokens_per_s, spoiled)?;
        if let Some((mbu, _)) = mbu {
            self.sample(rep, &format!("mbu@{qualifier}"), mbu, spoiled)?;
        }
        if with_itl {
            let mut sorted = gaps.clone();
            sorted.sort_unstable();
            for (name, percent) in [("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)] {
                let value = nearest_rank(&sorted, percent).map_or(f64::NAN, milliseconds);
                self.sample(rep, &format!("itl-{name}-ms@{qualifier}"), value, spoiled)?;
            }
        }
        let microseconds = |gap: &Duration| u32::try_from(gap.as_micros()).unwrap_or(u32::MAX);
        (self.tell)(Record::TokenTimes(TokenTimes {
            cell: self.errand.cell.cell,
            attempt: self.errand.attempt,
            step: self.step,
            repetition: rep,
            qualifier: qualifier.to_owned(),
            itl_us: gaps.iter().map(microseconds).collect(),
            first_eog_index: decoded.first_eog_index,
        }))
    }

    fn golden(&mut self, cases: &[GoldenCase]) -> Result<()> {
        if cases.is_empty() {
            return Ok(());
        }
        let mut equal = 0;
        for case in cases {
            if self.matches(case)? {
                equal += 1;
            } else {
                crate::talk::talk!("golden case `{}` differs", crate::text::escaped(case.name.as_bytes(), 100));
            }
        }
        self.golden_failed |= equal < cases.len();
        self.golden_steps_left -= 1;
        let record = self.record(0, "golden-match-ratio", equal as f64 / cases.len() as f64, None);
        if self.golden_steps_left == 0 {
            self.release(self.golden_failed.then_some(ReasonCode::GoldenTokensDiffer))?;
        }
        (self.tell)(Record::Sample(record))
    }

    /// Whether prompt and answer have the recorded ids. The recorder may or may not have asked for what the model wants
    /// at the start of a text, so either reading of the prompt counts.
    fn matches(&mut self, case: &GoldenCase) -> Result<bool> {
        let is_same = |add_special| self.engine.tokenise(&case.prompt, add_special, true) == case.prompt_ids;
        if case.prompt_ids.is_empty() || !(is_same(false) || is_same(true)) {
            return Ok(false);
        }
        self.engine.clear();
        let decoded = self.decode(&case.prompt_ids, case.generated_ids.len() as u32)?;
        Ok(decoded.finite && decoded.ids == case.generated_ids)
    }

    /// Cores come and go while a cell runs, and a kernel may move a worker without a word: asked anew for every sample.
    fn spoiled_by_affinity(&self) -> Option<ReasonCode> {
        let faults = self.engine.affinity_faults();
        let fault = faults.first()?;
        if !self.moved.replace(true) {
            crate::talk::talk!("{fault}");
        }
        Some(ReasonCode::AffinityDiffers)
    }

    fn record(&self, repetition: u32, metric: &str, value: f64, spoiled: Option<ReasonCode>) -> SampleRecord {
        let value = Finite::new(value);
        let validity = match (spoiled, value) {
            (Some(reason), _) => Validity::Invalid(reason),
            (None, None) => Validity::Invalid(ReasonCode::NotFinite),
            (None, Some(_)) => Validity::Valid,
        };
        SampleRecord {
            cell: self.errand.cell.cell,
            attempt: self.errand.attempt,
            step: self.step,
            repetition,
            metric: metric.to_owned(),
            value,
            validity,
        }
    }

    fn sample(&mut self, repetition: u32, metric: &str, value: f64, spoiled: Option<ReasonCode>) -> Result<()> {
        let spoiled = spoiled.or_else(|| self.spoiled_by_affinity());
        let mut record = self.record(repetition, metric, value, spoiled);
        if self.golden_steps_left > 0 {
            self.held.push(record);
            return Ok(());
        }
        if self.golden_failed {
            spoil(&mut record, ReasonCode::GoldenTokensDiffer);
        }
        (self.tell)(Record::Sample(record))
    }

    /// Tells the samples that were held, with `reason` against them when there is one.
    pub(super) fn release(&mut self, reason: Option<ReasonCode>) -> Result<()> {
        for mut record in std::mem::take(&mut self.held) {
            if let Some(reason) = reason {
                spoil(&mut record, reason);
            }
            (self.tell)(Record::Sample(record))?;
        }
        Ok(())
    }
}

/// A reason that is there already stays: it is nearer to the sample.
fn spoil(record: &mut SampleRecord, reason: ReasonCode) {
    if record.validity == Validity::Valid {
        record.validity = Validity::Invalid(reason);
    }
}

fn choose(logits: &[f32]) -> Choice {
    let mut best = (0, f32::NEG_INFINITY);
    let mut finite = !logits.is_empty();
    for (id, &logit) in logits.iter().enumerate() {
        finite &= logit.is_finite();
        if logit > best.1 {
            best = (id, logit);
        }
    }
    Choice { id: best.0 as u32, finite }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The percentile by nearest rank: the smallest value such that at least `percent` per cent of all are not above it.
/// It is always a value that was measured. `None` when there are none.
fn nearest_rank(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values_by_nearest_rank() {
        let times: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
        let at = |percent| nearest_rank(&times, percent).unwrap().as_millis();
        assert_eq!([at(50), at(95), at(99), at(100)], [10, 19, 20, 20]);
        assert_eq!(nearest_rank(&times[..1], 50), Some(times[0]));
        assert_eq!(nearest_rank(&[], 50), None);
    }

    #[test]
    fn equal_logits_go_to_the_lowest_id_and_nan_is_noticed() {
        assert_eq!(choose(&[0.0, 2.0, 2.0, 1.0]).id, 1);
        assert!(choose(&[0.0, 1.0]).finite);
        assert!(!choose(&[0.0, f32::NAN]).finite);
        assert!(!choose(&[f32::INFINITY, 0.0]).finite);
        assert!(!choose(&[]).finite);
    }
}
