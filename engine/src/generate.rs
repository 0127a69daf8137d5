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

impl Generation {
    /// Tokens a second after the first: (n - 1) / (time of the last - time of the first); `None` below two tokens.
    pub fn decode_tps(&self) -> Option<f64> {
        let (first, last) = (self.instants.first()?, self.instants.last()?);
        let seconds = last.duration_since(*first).as_secs_f64();
        (self.instants.len() > 1 && seconds > 0.0).then(|| (self.instants.len() - 1) as f64 / seconds)
    }
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
    let (depth, room) = (session.depth(), session.context_tokens());
    let needed = prompt_ids.len().saturating_add(options.tokens_max.saturating_sub(1));
    if needed > room - depth {
        return Err(EngineError::usage(format!(
            "a prompt of {} tokens and {} generated ones after {depth} in the cache do not fit a context of {room}",
            prompt_ids.len(),
            options.tokens_max
        ))
        .hint("ask for a larger context, or for fewer tokens"));
    }
    let model = session.model().clone();
    let mut out = Generation {
        ids: Vec::with_capacity(options.tokens_max),
        instants: Vec::with_capacity(options.tokens_max),
        first_eog_index: None,
        prefill: Duration::ZERO,
        logits_finite: true,
    };
    let begun = Instant::now();
    session.forward(prompt_ids, Logits::Last)?;
    out.prefill = begun.elapsed();
    while out.ids.len() < options.tokens_max {
        session.mark_sampling();
        let id = sampler.sample(session.last_logits());
        session.rest();
        let now = Instant::now();
        let eog = model.tokenizer().is_eog(id);
        if eog && out.first_eog_index.is_none() {
            out.first_eog_index = Some(out.ids.len());
        }
        out.ids.push(id);
        out.instants.push(now);
        let stop = on_token(id, now) == Continue::No || (eog && options.obey_eog);
        if stop || out.ids.len() == options.tokens_max {
            break;
        }
        session.forward(&[id], Logits::Last)?;
    }
    out.logits_finite = session.logits_finite();
    Ok(out)
}
