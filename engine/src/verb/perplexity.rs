//! `farmhand perplexity`: one JSON object on stdout.

use super::args::{Args, Flag, Verb};
use super::setup;
use super::stdout;
use crate::error::{EngineError, ErrorKind, Result};
use crate::proof::{self, Facts};
use crate::protocol::EngineConfig;
use crate::quality::{Window, perplexity, read_ids};
use std::path::Path;

/// `farmhand perplexity`.
pub const VERB: Verb = Verb {
    name: "perplexity",
    summary: "how well a model predicts the given ids, as JSON",
    positional: "",
    flags: &[
        setup::MODEL,
        Flag {
            names: &["--ids"],
            value: Some("FILE"),
            help: "token ids: a JSON array, or numbers between blanks or commas",
        },
        Flag {
            names: &["-c", "--ctx-size"],
            value: Some("N"),
            help: "chunks of N tokens, second halves scored; 0 is one window over all (512)",
        },
        setup::THREADS,
        setup::NO_MODEL_HASH,
    ],
    shared: &[setup::CACHE_TYPES, setup::ENGINE],
    run,
};

fn run(args: &Args) -> Result<u8> {
    let path = Path::new(args.require("--model")?);
    let ids = read_ids(Path::new(args.require("--ids")?))?;
    let window = match args.number("--ctx-size", 512)? {
        0 => Window::Whole,
        size => Window::Chunks(size),
    };
    let context = match window {
        Window::Whole => ids.len(),
        Window::Chunks(size) => size.min(ids.len()),
    };
    let context_tokens = u32::try_from(context).unwrap_or(u32::MAX);
    let config = EngineConfig { context_tokens, ..setup::one_config(args)? };
    let model = setup::open(path, &config)?;
    let hashes = (!args.has("--no-model-hash")).then(|| proof::hash_model(&model));
    let mut session = setup::session(&model, &config)?;
    let found = perplexity(&mut session, &ids, window).map_err(|e| match e.kind() {
        ErrorKind::Model => e.at(path.display().to_string()),
        _ => e,
    })?;
    if !found.ppl().is_finite() {
        return Err(EngineError::model("perplexity is beyond what a number holds").at(path.display().to_string()));
    }
    stdout::put(format_args!(
        "{}\n",
        serde_json::json!({
            "ppl": found.ppl(),
            "ppl_error": found.ppl_error(),
            "nll_mean": found.nll_mean,
            "scored_tokens": found.nll.len(),
            "window_tokens": context,
            "proof": Facts::of_session(&session, &config).prove(hashes, "none")?,
        })
    ))?;
    Ok(0)
}
