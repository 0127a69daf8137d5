//! What a list of steps must be like.

use crate::config::{Checker, is_name, printable};
use farmgate_engine::protocol::{GoldenCase, Step};
use std::collections::BTreeSet;
use toml::Spanned;

/// Most steps of a scenario.
const STEPS_MAX: usize = 64;
/// Most repetitions of a step within its cell.
const STEP_REPETITIONS_MAX: u32 = 1000;
/// Most tokens that one step generates; the journal keeps so many token times.
const DECODE_TOKENS_MAX: u32 = 65_536;

/// Room in the KV cache that a step needs, in tokens. Golden steps need what their longest case needs.
pub fn tokens_needed(step: &Step) -> u64 {
    // the last generated token is not put into the cache
    let room = |prompt: u64, answer: u64| (prompt + answer).saturating_sub(1);
    match step {
        Step::Load { .. } => 0,
        Step::Prefill { prompt_tokens, .. } => u64::from(*prompt_tokens),
        Step::WarmUp { prompt_tokens, decode_tokens } | Step::Answer { prompt_tokens, decode_tokens, .. } => {
            room(u64::from(*prompt_tokens), u64::from(*decode_tokens))
        }
        // at depth 0 a prompt of one token still has to be there
        Step::Decode { decode_tokens, at_depth, .. } => room(u64::from((*at_depth).max(1)), u64::from(*decode_tokens)),
        Step::Golden { cases } => cases.iter().map(tokens_of_case).max().unwrap_or(0),
    }
}

/// Room in the KV cache that a recorded answer needs, in tokens.
pub fn tokens_of_case(case: &GoldenCase) -> u64 {
    (case.prompt_ids.len() as u64 + case.generated_ids.len() as u64).saturating_sub(1)
}

/// Checks the steps of one scenario file.
pub(super) fn check(check: &mut Checker<'_>, steps: &[Spanned<Step>], context_tokens: u32) {
    let Some(first) = steps.first() else {
        check.fault(0..0, "this scenario has no steps", "begin with `[[step]]` and `load = {}`");
        return;
    };
    if !matches!(first.get_ref(), Step::Load { .. }) {
        let what = format!("the first step is `{}`, not `load`", first.get_ref().name());
        check.fault(first.span(), what, "put `[[step]]` with `load = {}` before it");
    }
    if let Some(beyond) = steps.get(STEPS_MAX) {
        check.fault(beyond.span(), format!("more than {STEPS_MAX} steps"), "make two scenarios of it");
    }
    let mut yielded = BTreeSet::new();
    for (i, step) in steps.iter().enumerate() {
        numbers(check, step);
        if i > 0 && matches!(step.get_ref(), Step::Load { .. }) {
            check.fault(step.span(), "a second `load` step", "each cell is a fresh process and loads once");
        }
        if tokens_needed(step.get_ref()) > u64::from(context_tokens) {
            let (name, needed) = (step.get_ref().name(), tokens_needed(step.get_ref()));
            check.fault(
                step.span(),
                format!("this `{name}` step needs {needed} tokens, `context-tokens` is {context_tokens}"),
                format!("raise `context-tokens` to {needed}, or ask for fewer tokens here"),
            );
        }
        if let Some(key) = series_of(step.get_ref())
            && !yielded.insert(key.clone())
        {
            check.fault(
                step.span(),
                format!("two steps would fill the series `{key}`"),
                "raise `repetitions` of the first one, or measure something else here",
            );
        }
    }
}

/// The series that a step fills, by its leading metric.
fn series_of(step: &Step) -> Option<String> {
    match step {
        Step::Prefill { prompt_tokens, .. } => Some(format!("prefill-tps@{prompt_tokens}")),
        Step::Decode { at_depth, .. } => Some(format!("decode-tps@{at_depth}")),
        Step::Answer { label, .. } => Some(format!("ttft-ms@{label}")),
        Step::Golden { .. } => Some("golden-match-ratio".into()),
        Step::Load { .. } | Step::WarmUp { .. } => None,
    }
}

fn numbers(check: &mut Checker<'_>, step: &Spanned<Step>) {
    let span = step.span();
    let prompt_max = super::CONTEXT_TOKENS_MAX;
    match step.get_ref() {
        Step::Load { .. } => {}
        Step::WarmUp { prompt_tokens, decode_tokens } => {
            check.within(span.clone(), "prompt-tokens", prompt_tokens, 1..=prompt_max);
            check.within(span, "decode-tokens", decode_tokens, 1..=DECODE_TOKENS_MAX);
        }
        Step::Prefill { prompt_tokens, repetitions } => {
            check.within(span.clone(), "prompt-tokens", prompt_tokens, 1..=prompt_max);
            check.within(span, "repetitions", repetitions, 1..=STEP_REPETITIONS_MAX);
        }
        Step::Decode { decode_tokens, at_depth, repetitions } => {
            // a speed needs the time between two tokens
            check.within(span.clone(), "decode-tokens", decode_tokens, 2..=DECODE_TOKENS_MAX);
            check.within(span.clone(), "at-depth", at_depth, 0..=prompt_max);
            check.within(span, "repetitions", repetitions, 1..=STEP_REPETITIONS_MAX);
        }
        Step::Answer { label, prompt_tokens, decode_tokens } => {
            if !is_name(label) || !label.starts_with(|c: char| c.is_ascii_lowercase()) {
                check.fault(
                    span.clone(),
                    format!("`{}` is not a label for an answer", printable(label)),
                    "use a-z, 0-9 and -, beginning with a letter, so that it is not taken for a number of tokens",
                );
            }
            check.within(span.clone(), "prompt-tokens", prompt_tokens, 1..=prompt_max);
            check.within(span, "decode-tokens", decode_tokens, 2..=DECODE_TOKENS_MAX);
        }
        Step::Golden { cases } => {
            if !cases.is_empty() {
                check.fault(
                    span,
                    "recorded answers do not belong into a scenario",
                    "write `golden = {}` here and put the cases into scenarios/golden/, by the model's sha256",
                );
            }
        }
    }
}
