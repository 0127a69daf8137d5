//! Greedy decoding with a draft model: the draft proposes some tokens, the target checks them together and keeps those
//! that it would have chosen itself.
//!
//! The tokens are those of decoding without a draft. That does not rest on margins between logits: the target checks
//! with [`Session::forward_exact`], whose logits and cache have the bits of single steps; a proposal is kept only where
//! it is the choice from these logits, and what the cache holds of rejected ones is forgotten. So after every pass the
//! target is in the state that single steps would have left. What the draft does decides about speed alone.

mod draft_length;
mod vocabulary;

pub use draft_length::{DraftCost, DraftLength, DraftOptions, PassTimes};
pub use vocabulary::{VocabularyDifference, compare_vocabularies};

use crate::error::{EngineError, Result};
use crate::generate::{Continue, GenerateOptions, Generation, check_room};
use crate::model::{EXACT_TOKENS_MAX, Logits, Session};
use crate::sampler::Sampler;
use serde::Serialize;
use std::time::Instant;

/// Most tokens that a draft may propose at once: with the one before them they go through the target together.
pub const DRAFT_TOKENS_MAX: usize = EXACT_TOKENS_MAX - 1;

/// Tokens that the draft reads as exactly as the target does, so that a draft that is the target proposes what the target
/// chooses; more of them, after a sleep, are read faster.
const NEWS_EXACT_MAX: usize = 4;

/// What the draft was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Acceptance {
    /// Tokens that the draft proposed.
    pub drafted_tokens: u64,
    /// Those of them that the target would have chosen too, and that were put out.
    pub accepted_tokens: u64,
    /// Tokens put out by passes of the target: all but the first, which the prompt's pass yields.
    pub decoded_tokens: u64,
    /// Passes of the target after the prompt's.
    pub passes: u64,
    /// Passes in which the draft was not asked, since it did not pay or nothing was left to propose.
    pub passes_undrafted: u64,
}

impl Acceptance {
    /// Accepted tokens of those proposed, 0 to 1; `None` when nothing was proposed.
    pub fn ratio(&self) -> Option<f64> {
        (self.drafted_tokens > 0).then(|| self.accepted_tokens as f64 / self.drafted_tokens as f64)
    }

    /// Adds another generation's counts.
    pub fn add(&mut self, other: Self) {
        self.drafted_tokens += other.drafted_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.decoded_tokens += other.decoded_tokens;
        self.passes += other.passes;
        self.passes_undrafted += other.passes_undrafted;
    }

    /// Tokens put out per pass of the target, 1 without a draft; `None` when there was no pass.
    pub fn tokens_per_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.decoded_tokens as f64 / self.passes as f64)
    }
}

/// A target and its draft, and the buffers that they need together.
pub struct Speculation<'a> {
    target: &'a mut Session,
    draft: &'a mut Session,
    length: DraftLength,
    /// What goes through the target next: the last token put out, then the proposals.
    batch: Vec<u32>,
    /// Tokens that the draft has to be told before it can propose.
    news: Vec<u32>,
    /// Logits of the draft.
    draft_vocab: usize,
    /// Ids below this have logits in both; what lies beyond pads an embedding.
    vocab: usize,
}

impl<'a> Speculation<'a> {
    /// Checks that the two belong together and takes the memory. Usage errors when their vocabularies differ (see
    /// [`compare_vocabularies`]), when the sessions hold different numbers of tokens, or when the lengths asked for make
    /// no sense; system errors when memory cannot be had.
    pub fn new(target: &'a mut Session, draft: &'a mut Session, options: DraftOptions) -> Result<Self> {
        compare_vocabularies(target.model().tokenizer(), draft.model().tokenizer())?;
        if target.depth() != draft.depth() {
            return Err(EngineError::usage(format!(
                "the target's cache holds {} tokens, the draft's {}",
                target.depth(),
                draft.depth()
            ))
            .hint("clear both, or give both the same tokens"));
        }
        let length = DraftLength::new(options)?;
        target.reserve_exact(options.tokens_max + 1)?;
        draft.reserve_exact(NEWS_EXACT_MAX)?;
        let draft_vocab = draft.model().vocab();
        let vocab = target.model().vocab().min(draft_vocab);
        let batch = Vec::with_capacity(options.tokens_max + 1);
        Ok(Self { target, draft, length, batch, news: Vec::new(), draft_vocab, vocab })
    }

    /// As [`crate::generate::generate`] with a greedy sampler, and with the same tokens; also says what the draft was
    /// worth. Afterwards the target holds the prompt and all generated tokens but the last, the draft the same or fewer
    /// of the last ones.
    ///
    /// A usage error, before anything runs, when prompt and tokens do not fit the target's context. A draft whose own
    /// context is too short is not asked beyond it.
    pub fn generate(
        &mut self,
        prompt_ids: &[u32],
        options: GenerateOptions,
        on_token: &mut dyn FnMut(u32, Instant) -> Continue,
    ) -> Result<(Generation, Acceptance)> {
        check_room(self.target, prompt_ids.len(), options.tokens_max)?;
        let mut acceptance = Acceptance::default();
        let mut out = Generation::with_room(options.tokens_max);
        self.news.clear();
        self.news.reserve(options.tokens_max);
        let model = self.target.model().clone();
        let base = self.target.depth();
        let begun = Instant::now();
        let logits = self.target.forward(prompt_ids, Logits::Last)?;
        out.prefill = begun.elapsed();
        let mut take = |out: &mut Generation, id| out.put(id, model.tokenizer().is_eog(id), options, on_token);
        let mut going = options.tokens_max > 0 && take(&mut out, greedy(logits));
        while going {
            let most = options.tokens_max - out.ids.len() - 1;
            let draft_token_s = self.propose(base, prompt_ids, &out.ids, most)?;
            let (before, drafted) = (out.ids.len(), self.batch.len() - 1);
            let checking = Instant::now();
            let rows = match drafted {
                0 => self.target.forward(&self.batch, Logits::Last)?,
                _ => self.target.forward_exact(&self.batch)?,
            };
            let times = PassTimes { draft_token_s, target_s: checking.elapsed().as_secs_f64() };
            let mut accepted = 0;
            for (i, row) in rows.chunks_exact(model.vocab()).enumerate() {
                let id = greedy(row);
                going = take(&mut out, id);
                let as_proposed = self.batch.get(i + 1) == Some(&id);
                accepted += usize::from(as_proposed);
                if !as_proposed || !going {
                    break;
                }
            }
            acceptance.passes += 1;
            acceptance.passes_undrafted += u64::from(drafted == 0);
            acceptance.drafted_tokens += drafted as u64;
            acceptance.accepted_tokens += accepted as u64;
            acceptance.decoded_tokens += (out.ids.len() - before) as u64;
            self.length.learn(drafted, accepted, times);
            // all but the last token are in the cache; what was rejected is forgotten
            let depth = base + prompt_ids.len() + out.ids.len() - 1;
            self.target.truncate(depth);
            self.draft.truncate(depth);
        }
        out.logits_finite = self.target.logits_finite();
        Ok((out, acceptance))
    }

    /// Fills the batch: the last of `ids`, and what the draft makes of it, at most `most` tokens. Returns the seconds that
    /// a proposal took, without what had to be read first after a sleep.
    fn propose(&mut self, base: usize, prompt_ids: &[u32], ids: &[u32], most: usize) -> Result<Option<f64>> {
        self.batch.clear();
        self.batch.extend(ids.last());
        let length = if most == 0 { 0 } else { self.length.choose() };
        let held = self.draft.depth() - base;
        // the last proposal is not run through the draft
        let room = (self.draft.context_tokens() + 1).saturating_sub(base + prompt_ids.len() + ids.len());
        let length = length.min(most).min(room);
        if length == 0 {
            return Ok(None);
        }
        self.news.clear();
        self.news.extend_from_slice(&ids[held.saturating_sub(prompt_ids.len())..]);
        let unread = &prompt_ids[held.min(prompt_ids.len())..];
        if unread.iter().chain(&self.news).any(|&id| id as usize >= self.vocab) {
            // a token that pads the target's embedding and that the draft cannot read
            return Ok(None);
        }
        if !unread.is_empty() {
            self.draft.forward(unread, Logits::None)?;
        }
        let mut begun = Instant::now();
        let exactly = self.news.len() <= NEWS_EXACT_MAX;
        let rows = if exactly {
            self.draft.forward_exact(&self.news)?
        } else {
            self.draft.forward(&self.news, Logits::Last)?
        };
        let last = &rows[rows.len() - self.draft_vocab..];
        let mut id = greedy(&last[..self.vocab]);
        self.batch.push(id);
        let mut timed = length;
        if !exactly {
            (begun, timed) = (Instant::now(), length - 1);
        }
        for _ in 1..length {
            id = greedy(&self.draft.forward(&[id], Logits::Last)?[..self.vocab]);
            self.batch.push(id);
        }
        Ok((timed > 0).then(|| begun.elapsed().as_secs_f64() / timed as f64))
    }
}

/// The likeliest token, the lowest of equals: what decoding without a draft takes.
fn greedy(logits: &[f32]) -> u32 {
    Sampler::greedy().sample(logits)
}
