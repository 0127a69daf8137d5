//! The decode loop: prompt in, tokens out, with the time of each.

use crate::error::{EngineError, Result};
use crate::model::{Logits, Session};
use crate::sampler::Sampler;
use std::time::{Duration, Instant};

/// What a listener says after each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continue {
    /// Go on.
    Yes,
    /// Stop after this token.
    No,
}

/// How far to generate.
#[derive(Debug, Clone, Copy)]
pub struct GenerateOptions {
    /// Tokens to generate at most.
    pub tokens_max: usize,
    /// Stop after an end-of-generation token. Otherwise such tokens are recorded and generation goes on.
    pub obey_eog: bool,
}

/// What was generated.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The tokens, an end-of-generation token included.
    pub ids: Vec<u32>,
    /// When each was chosen, by the monotonic clock.
    pub instants: Vec<Instant>,
    /// Position in `ids` of the first end-of-generation token.
    pub first_eog_index: Option<usize>,
    /// From the first batch of the prompt to its last logits.
    pub prefill: Duration,
    /// Whether all logits of the session so far were finite numbers.
    pub logits_finite: bool,
}

/// Most tokens that memory is taken for beforehand.
const ROOM_TOKENS_MAX: usize = 1 << 16;

impl Generation {
    /// Nothing yet, with room for `tokens_max` tokens: up to [`ROOM_TOKENS_MAX`], nothing is allocated for them later.
    pub(crate) fn with_room(tokens_max: usize) -> Self {
        // whoever asks for a thousand million means "go on"
        let tokens_max = tokens_max.min(ROOM_TOKENS_MAX);
        Self {
            ids: Vec::with_capacity(tokens_max),
            instants: Vec::with_capacity(tokens_max),
            first_eog_index: None,
            prefill: Duration::ZERO,
            logits_finite: true,
        }
    }

    /// Takes one more token and tells the listener; whether another one is wanted.
    pub(crate) fn put(
        &mut self,
        id: u32,
        eog: bool,
        options: GenerateOptions,
        on_token: &mut dyn FnMut(u32, Instant) -> Continue,
    ) -> bool {
        let now = Instant::now();
        if eog && self.first_eog_index.is_none() {
            self.first_eog_index = Some(self.ids.len());
        }
        self.ids.push(id);
        self.instants.push(now);
        let stop = on_token(id, now) == Continue::No || (eog && options.obey_eog);
        !stop && self.ids.len() < options.tokens_max
    }

    /// Tokens a second after the first: (n - 1) / (time of the last - time of the first); `None` below two tokens.
    pub fn decode_tps(&self) -> Option<f64> {
        let (first, last) = (self.instants.first()?, self.instants.last()?);
        let seconds = last.duration_since(*first).as_secs_f64();
        (self.instants.len() > 1 && seconds > 0.0).then(|| (self.instants.len() - 1) as f64 / seconds)
    }
}

/// A usage error when a prompt of `prompt_tokens` and `tokens_max` generated tokens do not fit what is left of the context.
pub(crate) fn check_room(session: &Session, prompt_tokens: usize, tokens_max: usize) -> Result<()> {
    if prompt_tokens.saturating_add(tokens_max.saturating_sub(1)) <= session.room_tokens() {
        return Ok(());
    }
    let (depth, room) = (session.depth(), session.context_tokens());
    Err(EngineError::usage(format!(
        "a prompt of {prompt_tokens} tokens and {tokens_max} generated ones after {depth} in the cache do not fit a \
         context of {room}"
    ))
    .hint("ask for a larger context, or for fewer tokens"))
}

/// Runs the prompt after what the session holds, then generates. `on_token` hears of each token as it is chosen, an
/// end-of-generation token included. The last token is not run through the network: afterwards the session holds the
/// prompt and all tokens but that one.
///
/// A usage error, before anything runs, when prompt and tokens do not fit the context.
pub fn generate(
    session: &mut Session,
    prompt_ids: &[u32],
    options: GenerateOptions,
    sampler: &mut Sampler,
    on_token: &mut dyn FnMut(u32, Instant) -> Continue,
) -> Result<Generation> {
    check_room(session, prompt_ids.len(), options.tokens_max)?;
    let model = session.model().clone();
    let mut out = Generation::with_room(options.tokens_max);
    let begun = Instant::now();
    session.forward(prompt_ids, Logits::Last)?;
    out.prefill = begun.elapsed();
    while out.ids.len() < options.tokens_max {
        session.mark_sampling();
        let id = sampler.sample(session.last_logits());
        session.rest();
        if !out.put(id, model.tokenizer().is_eog(id), options, on_token) {
            break;
        }
        session.forward(&[id], Logits::Last)?;
    }
    out.logits_finite = session.logits_finite();
    Ok(out)
}
