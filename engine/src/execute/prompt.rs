//! Prompts of an exact number of tokens: real text, the same for the same seed.

use super::Engine;
use crate::error::{EngineError, Result};

/// Plain prose, written for this purpose.
const PASSAGE: &str = include_str!("passage.txt");
/// The most words that are tried for one token of prompt, before the tokenizer is called useless.
const WORDS_PER_TOKEN_MAX: usize = 64;

/// A text and what it is cut to.
#[derive(Debug, Clone)]
pub(super) struct Prompt {
    /// Text that tokenises to at least the wanted number of tokens, and hardly more.
    pub text: String,
    /// Exactly the wanted number of ids.
    pub ids: Vec<u32>,
}

impl Prompt {
    /// A prompt of exactly `tokens` tokens. The passage is repeated as often as needed and begins at a word that the
    /// seed chooses.
    pub fn make(engine: &impl Engine, seed: u64, tokens: u32) -> Result<Self> {
        let wanted = tokens as usize;
        let count = |words: usize| engine.tokenise(&text(seed, words), true, false).len();
        let mut enough = wanted.max(1);
        while count(enough) < wanted {
            if enough > wanted.saturating_mul(WORDS_PER_TOKEN_MAX) {
                return Err(EngineError::model(format!(
                    "the model's tokenizer makes fewer than {wanted} tokens of {enough} words of English text"
                )));
            }
            enough *= 2;
        }
        let mut few = 0;
        while few + 1 < enough {
            let middle = few + (enough - few) / 2;
            if count(middle) < wanted {
                few = middle;
            } else {
                enough = middle;
            }
        }
        let text = text(seed, enough);
        let mut ids = engine.tokenise(&text, true, false);
        ids.truncate(wanted);
        Ok(Self { text, ids })
    }
}

/// `words` words of the endless repetition of the passage.
fn text(seed: u64, words: usize) -> String {
    let passage: Vec<&str> = PASSAGE.split_ascii_whitespace().collect();
    // a multiplicative hash, so that neighbouring seeds begin at places far apart
    let start = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % passage.len();
    let mut out = String::new();
    for word in passage.iter().cycle().skip(start).take(words) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}
