//! What `generate` and `bench` share of a draft model: opening it, and saying what it was worth.

use super::args::{Args, Flag};
use super::setup;
use crate::error::{EngineError, Result};
use crate::model::{Model, Session};
use crate::protocol::EngineConfig;
use crate::speculative::{Acceptance, DRAFT_TOKENS_MAX, DraftCost, DraftOptions, compare_vocabularies};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// Tokens that a draft proposes at most, unless told otherwise.
const TOKENS_MAX: usize = 8;

/// Asks for a draft.
pub const FLAGS: &[Flag] = &[
    Flag {
        names: &["--draft-model"],
        value: Some("FILE"),
        help: "smaller model of the same vocabulary, to decode with; bench prints a row of its own for it",
    },
    Flag { names: &["--draft-max"], value: Some("N"), help: "tokens that the draft proposes at most (8)" },
    Flag {
        names: &["--draft-min"],
        value: Some("N"),
        help: "and at least; 0 leaves it alone while it does not pay (0)",
    },
];

/// A draft model for one target.
pub struct Draft {
    /// As typed.
    pub path: String,
    /// The model, whose vocabulary is the target's.
    pub model: Arc<Model>,
    /// How it is to be asked.
    pub options: DraftOptions,
}

impl Draft {
    /// The draft that `--draft-model` names, `None` without that flag. Usage errors that name the file when the
    /// vocabulary is another than the target's.
    pub fn from_args(args: &Args, target: &Model, config: &EngineConfig) -> Result<Option<Self>> {
        let Some(path) = args.get("--draft-model") else {
            let flag = ["--draft-max", "--draft-min"].into_iter().find(|flag| args.get(flag).is_some());
            return match flag {
                Some(flag) => Err(EngineError::usage(format!("flag `{flag}` needs `--draft-model`"))),
                None => Ok(None),
            };
        };
        let tokens_max = args.number("--draft-max", TOKENS_MAX)?;
        let tokens_min = args.number("--draft-min", 0)?;
        if tokens_max == 0 || tokens_max > DRAFT_TOKENS_MAX || tokens_min > tokens_max {
            return Err(EngineError::usage(format!("a draft of {tokens_min} to {tokens_max} tokens makes no sense"))
                .hint(format!("`--draft-max` is 1 to {DRAFT_TOKENS_MAX}, `--draft-min` 0 to `--draft-max`")));
        }
        let model = setup::open(Path::new(path), config)?;
        compare_vocabularies(target.tokenizer(), model.tokenizer())
            .map_err(|difference| EngineError::from(difference).at(path.to_owned()))?;
        let options = DraftOptions { tokens_min, tokens_max, cost: DraftCost::Measured };
        Ok(Some(Self { path: path.to_owned(), model, options }))
    }

    /// A session with the draft, set up as the target's.
    pub fn session(&self, config: &EngineConfig) -> Result<Session> {
        Session::new(Arc::clone(&self.model), config)
    }
}

/// What a draft was worth, as JSON has it.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DraftReport {
    draft_model: String,
    draft_tokens_max: usize,
    #[serde(flatten)]
    acceptance: Acceptance,
    acceptance_ratio: Option<f64>,
    tokens_per_pass: Option<f64>,
}

impl DraftReport {
    /// The report of one generation, or of several whose counts were added.
    pub fn new(draft: &Draft, acceptance: Acceptance) -> Self {
        Self {
            draft_model: draft.path.clone(),
            draft_tokens_max: draft.options.tokens_max,
            acceptance,
            acceptance_ratio: acceptance.ratio(),
            tokens_per_pass: acceptance.tokens_per_pass(),
        }
    }
}

/// One line for people.
pub fn describe(acceptance: &Acceptance) -> String {
    let Acceptance { drafted_tokens, accepted_tokens, passes, passes_undrafted, .. } = acceptance;
    let ratio = acceptance.ratio().map_or_else(|| "none".to_owned(), |r| format!("{:.1} %", 100.0 * r));
    let per_pass = acceptance.tokens_per_pass().map_or_else(|| "no".to_owned(), |t| format!("{t:.2}"));
    format!(
        "draft:   {accepted_tokens} of {drafted_tokens} tokens accepted ({ratio}), {per_pass} tokens per pass, {passes} \
         passes ({passes_undrafted} without the draft)"
    )
}
