//! `farmhand generate`: text on stdout as it comes, timings on stderr.

use super::args::{Args, Flag, Verb};
use super::draft::{self, Draft, DraftReport, describe};
use super::json;
use super::profile::{self, Profiling};
use super::setup;
use super::stdout;
use crate::error::{EngineError, Result};
use crate::generate::{Continue, GenerateOptions, Generation, generate};
use crate::model::{Model, Session};
use crate::proof::{self, Facts};
use crate::protocol::{EngineConfig, KvPolicy};
use crate::sampler::Sampler;
use crate::speculative::Speculation;
use crate::tokenizer::StreamDecoder;
use serde::Serialize;
use std::path::Path;

/// `farmhand generate`.
pub const VERB: Verb = Verb {
    name: "generate",
    summary: "continue a prompt: text on stdout, timings on stderr",
    positional: "",
    flags: &[
        setup::MODEL,
        Flag { names: &["-p", "--prompt"], value: Some("TEXT"), help: "prompt; `-` reads stdin" },
        Flag { names: &["-n", "--n-predict"], value: Some("N"), help: "tokens to generate at most (128)" },
        Flag {
            names: &["-c", "--ctx-size"],
            value: Some("N"),
            help: "context, in tokens (prompt and -n, if longer than 4096)",
        },
        setup::THREADS,
        Flag { names: &["--temp"], value: Some("X"), help: "temperature; 0 is greedy (0)" },
        Flag { names: &["--top-k"], value: Some("N"), help: "sample among the N likeliest; 0 is all (40)" },
        Flag { names: &["--top-p"], value: Some("X"), help: "sample among the likeliest that sum up to X (0.95)" },
        Flag {
            names: &["--min-p"],
            value: Some("X"),
            help: "drop what is less likely than X times the likeliest (0.05)",
        },
        Flag { names: &["--seed"], value: Some("N"), help: "seed of sampling (0)" },
        Flag { names: &["--special"], value: None, help: "read special tokens in the prompt as such, and print them" },
        Flag { names: &["--ignore-eos"], value: None, help: "go on after an end-of-generation token" },
        Flag { names: &["--proof"], value: None, help: "hash the model too, about a second a gigabyte" },
        Flag {
            names: &["--json"],
            value: None,
            help: "tokens, text and timings as JSON on stdout, when all are there",
        },
    ],
    shared: &[setup::CACHE_TYPES, setup::ENGINE, draft::FLAGS, profile::FLAGS],
    run,
};

const CONTEXT_TOKENS: usize = 4096;

fn run(args: &Args) -> Result<u8> {
    let path = Path::new(args.require("--model")?);
    let prompt = read_prompt(args.require("--prompt")?)?;
    let options = GenerateOptions { tokens_max: args.number("--n-predict", 128)?, obey_eog: !args.has("--ignore-eos") };
    let mut sampler = sampler(args)?;
    let config = setup::one_config(args)?;
    let special = args.has("--special");
    Profiling::refuse_ceilings_alone(args)?;
    let profiling = Profiling::from_args(args)?;

    let model = setup::open(path, &config)?;
    let draft = Draft::from_args(args, &model, &config)?;
    if draft.is_some() && !sampler.is_greedy() {
        return Err(EngineError::usage("`--draft-model` needs greedy sampling, but `--temp` is above 0")
            .hint("leave out `--temp`, or the draft"));
    }
    let ids = model.tokenizer().encode(&prompt, true, special);
    let needed = ids.len().saturating_add(options.tokens_max);
    let wanted = if config.kv_policy == KvPolicy::Full { needed.max(CONTEXT_TOKENS) } else { CONTEXT_TOKENS };
    let context_tokens = args.number("--ctx-size", u32::try_from(wanted).unwrap_or(u32::MAX))?;
    let config = EngineConfig { context_tokens, ..config };
    let mut session = setup::session(&model, &config)?;
    let hashes = args.has("--proof").then(|| proof::hash_model(&model));
    for line in proof::lines(&Facts::of_session(&session, &config).prove(hashes, "none")?) {
        crate::talk::talk!("{line}");
    }

    let mut text = Text::new(&model, special, args.has("--json"));
    profiling.start(&mut session);
    let (generation, acceptance) = match &draft {
        None => (generate(&mut session, &ids, options, &mut sampler, &mut |id, _| text.take(id))?, None),
        Some(draft) => {
            let mut draft_session = draft.session(&config)?;
            let mut speculation = Speculation::new(&mut session, &mut draft_session, draft.options)?;
            let (generation, acceptance) = speculation.generate(&ids, options, &mut |id, _| text.take(id))?;
            (generation, Some(acceptance))
        }
    };
    profiling.keep(&mut session, args.require("--model")?);
    let text = text.finish()?;
    if !generation.logits_finite {
        return Err(EngineError::model("logits are not finite numbers").at(path.display().to_string()));
    }
    if args.has("--json") {
        let draft = draft.zip(acceptance).map(|(draft, acceptance)| DraftReport::new(&draft, acceptance));
        json::print(&answer(&session, &ids, &generation, text, draft), true)?;
        return Ok(0);
    }
    crate::talk::talk!("{}", timings(&session, ids.len(), &generation));
    if let Some(acceptance) = acceptance {
        crate::talk::talk!("{}", describe(&acceptance));
    }
    drop(session);
    profiling.finish()?;
    Ok(0)
}

/// Text as tokens make it: at once on stdout, or kept for the end.
struct Text<'m> {
    model: &'m Model,
    decoder: StreamDecoder<'m>,
    special: bool,
    kept: Option<String>,
    failed: Option<EngineError>,
}

impl<'m> Text<'m> {
    fn new(model: &'m Model, special: bool, keep: bool) -> Self {
        let kept = keep.then(String::new);
        Self { model, decoder: StreamDecoder::new(model.tokenizer()), special, kept, failed: None }
    }

    fn take(&mut self, id: u32) -> Continue {
        if self.model.tokenizer().is_eog(id) && !self.special {
            return Continue::Yes;
        }
        let text = self.decoder.push(id);
        self.put(&text)
    }

    fn put(&mut self, text: &str) -> Continue {
        if let Some(kept) = &mut self.kept {
            kept.push_str(text);
            return Continue::Yes;
        }
        match stdout::put(format_args!("{text}")) {
            Ok(()) => Continue::Yes,
            Err(e) => {
                self.failed = Some(e);
                Continue::No
            }
        }
    }

    /// The text that was kept; empty when it went to stdout.
    fn finish(mut self) -> Result<String> {
        let rest = self.decoder.finish();
        self.put(&rest);
        if self.kept.is_none() {
            self.put("\n");
        }
        self.failed.map_or_else(|| Ok(self.kept.unwrap_or_default()), Err)
    }
}

/// The whole answer, for scripts.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Answer {
    text: String,
    ids: Vec<u32>,
    first_eog_index: Option<usize>,
    prompt_tokens: usize,
    prefill_ms: f64,
    decode_tps: Option<f64>,
    isa: &'static str,
    threads: u32,
    kv_bytes: u64,
    scratch_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft: Option<DraftReport>,
}

fn answer(
    session: &Session,
    prompt_ids: &[u32],
    generation: &Generation,
    text: String,
    draft: Option<DraftReport>,
) -> Answer {
    Answer {
        text,
        ids: generation.ids.clone(),
        first_eog_index: generation.first_eog_index,
        prompt_tokens: prompt_ids.len(),
        prefill_ms: generation.prefill.as_secs_f64() * 1e3,
        decode_tps: generation.decode_tps(),
        isa: session.isa().name(),
        threads: session.threads_effective(),
        kv_bytes: session.kv_bytes(),
        scratch_bytes: session.scratch_bytes(),
        draft,
    }
}

fn read_prompt(given: &str) -> Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    std::io::read_to_string(std::io::stdin()).map_err(|e| EngineError::io("cannot read the prompt from stdin", &e))
}

fn sampler(args: &Args) -> Result<Sampler> {
    let temperature: f32 = args.number("--temp", 0.0)?;
    if !temperature.is_finite() || temperature < 0.0 {
        let what = format!("a temperature of {temperature} makes no sense");
        return Err(EngineError::usage(what).hint("0 takes the likeliest token, 1 draws as the model says"));
    }
    let share = |name: &str, default: f32| match args.number(name, default)? {
        share if (0.0..=1.0).contains(&share) => Ok(share),
        other => Err(EngineError::usage(format!("`{name} {other}` is no share")).hint("a number from 0 to 1")),
    };
    let (top_k, top_p, min_p) = (args.number("--top-k", 40)?, share("--top-p", 0.95)?, share("--min-p", 0.05)?);
    let seed = args.number("--seed", 0)?;
    Ok(match temperature {
        0.0 => Sampler::greedy(),
        _ => Sampler::seeded(seed, temperature, top_k, top_p, min_p),
    })
}

fn timings(session: &Session, prompt_tokens: usize, generation: &Generation) -> String {
    let prefill_ms = generation.prefill.as_secs_f64() * 1e3;
    let decode = match generation.decode_tps() {
        Some(tps) => format!("{tps:.2} token/s"),
        None => "too short to time".to_owned(),
    };
    format!(
        "prefill: {prompt_tokens} tokens in {prefill_ms:.1} ms, {:.2} token/s\n\
         decode:  {} tokens, {decode}\n\
         kv cache {} bytes, scratch {} bytes",
        prompt_tokens as f64 / generation.prefill.as_secs_f64(),
        generation.ids.len(),
        session.kv_bytes(),
        session.scratch_bytes(),
    )
}
