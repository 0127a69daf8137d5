//! How well a model predicts a text: perplexity, by the conventions that the usual tools follow.

use crate::error::{EngineError, Result};
use crate::kernels::{Isa, vector};
use crate::model::{Logits, Session};

/// Tokens whose logits are held at once.
const LOGITS_TOKENS: usize = 64;
/// Larger files of ids are refused, in bytes.
const IDS_BYTES_MAX: u64 = 64 << 20;

/// Which positions are scored, and after what context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The whole text in one window; every token but the first is scored.
    Whole,
    /// Chunks of that many tokens, each from an empty cache; of each, the tokens from `size / 2 + 1` on are scored. A
    /// rest that does not fill a chunk is left out.
    Chunks(usize),
}

/// Perplexity of a text.
#[derive(Debug, Clone)]
pub struct Perplexity {
    /// Negative log-likelihood of each scored token, in nats, in order.
    pub nll: Vec<f32>,
    /// Their mean.
    pub nll_mean: f64,
    /// Standard error of the mean, taking tokens as independent.
    pub nll_mean_error: f64,
}

impl Perplexity {
    /// exp of the mean.
    pub fn ppl(&self) -> f64 {
        self.nll_mean.exp()
    }

    /// Standard error of [`Self::ppl`].
    pub fn ppl_error(&self) -> f64 {
        self.ppl() * self.nll_mean_error
    }

    fn of(nll: Vec<f32>) -> Self {
        let n = nll.len() as f64;
        let nll_mean = nll.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let squares = nll.iter().map(|&v| (f64::from(v) - nll_mean).powi(2)).sum::<f64>();
        let nll_mean_error = if n > 1.0 { (squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        Self { nll, nll_mean, nll_mean_error }
    }
}

/// Scores `ids`, as they are: no token is put before them. Leaves the session's cache empty. Usage errors when the text
/// is too short for its window or the window does not fit the context; a model error when logits are not finite.
pub fn perplexity(session: &mut Session, ids: &[u32], window: Window) -> Result<Perplexity> {
    let (size, scored_from) = match window {
        Window::Whole => (ids.len(), 1),
        Window::Chunks(size) => (size, size / 2 + 1),
    };
    if size < 2 || scored_from >= size || ids.len() < size {
        return Err(EngineError::usage(format!("{} tokens cannot be scored in windows of {size}", ids.len()))
            .hint("a window needs at least 3 tokens, and the text at least one window"));
    }
    let mut nll = Vec::with_capacity(ids.len());
    for chunk in ids.chunks_exact(size) {
        session.clear();
        score_chunk(session, chunk, scored_from, &mut nll)?;
    }
    session.clear();
    Ok(Perplexity::of(nll))
}

fn score_chunk(session: &mut Session, chunk: &[u32], scored_from: usize, nll: &mut Vec<f32>) -> Result<()> {
    let vocab = session.model().vocab();
    let isa = session.isa();
    // the logits at position i score token i + 1; those before need no logits, and the last token predicts nothing
    let silent = scored_from - 1;
    if silent > 0 {
        session.forward(&chunk[..silent], Logits::None)?;
    }
    let inputs = &chunk[silent..chunk.len() - 1];
    let targets = &chunk[scored_from..];
    for (inputs, targets) in inputs.chunks(LOGITS_TOKENS).zip(targets.chunks(LOGITS_TOKENS)) {
        let logits = session.forward(inputs, Logits::All)?;
        let mut scratch = vec![0.0; vocab];
        for (row, &target) in logits.chunks_exact(vocab).zip(targets) {
            nll.push(negative_log_likelihood(isa, row, target, &mut scratch)?);
        }
    }
    match session.logits_finite() {
        true => Ok(()),
        false => Err(EngineError::model("logits are not finite numbers")
            .hint("the weights are damaged, or overflow in half precision")),
    }
}

fn negative_log_likelihood(isa: Isa, logits: &[f32], target: u32, scratch: &mut [f32]) -> Result<f32> {
    let Some(&of_target) = logits.get(target as usize) else {
        return Err(EngineError::usage(format!("token {target} is outside the vocabulary of {}", logits.len())));
    };
    let largest = vector::max(isa, logits);
    scratch.copy_from_slice(logits);
    let sum = vector::exp_and_sum(isa, scratch, largest);
    Ok(largest + sum.ln() - of_target)
}

/// Reads token ids from a file: a JSON array, or numbers between blanks, line ends and commas. Errors name the file and
/// the first thing that is no id.
pub fn read_ids(path: &std::path::Path) -> Result<Vec<u32>> {
    let shown = path.display();
    let io = |e: std::io::Error| EngineError::io(format!("cannot read `{shown}`"), &e);
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > IDS_BYTES_MAX {
        return Err(
            EngineError::usage(format!("{bytes} bytes of ids are more than {IDS_BYTES_MAX}")).at(shown.to_string())
        );
    }
    let text = String::from_utf8(std::fs::read(path).map_err(io)?)
        .map_err(|_| EngineError::usage("not a text file").at(shown.to_string()))?;
    parse_ids(&text).map_err(|e| e.at(shown.to_string()))
}

/// Token ids of a text as [`read_ids`] takes it.
pub fn parse_ids(text: &str) -> Result<Vec<u32>> {
    let text = text.trim();
    let inner = match (text.strip_prefix('['), text.strip_suffix(']')) {
        (Some(_), Some(_)) => &text[1..text.len() - 1],
        (None, None) => text,
        _ => return Err(EngineError::usage("a JSON array of ids opens with `[` and ends with `]`")),
    };
    let ids = inner
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|word| !word.is_empty())
        .map(|word| {
            word.parse().map_err(|_| {
                let word: String = word.chars().take(40).flat_map(char::escape_debug).collect();
                EngineError::usage(format!("`{word}` is no token id"))
                    .hint("give a JSON array of ids, or numbers between blanks or commas")
            })
        })
        .collect::<Result<Vec<u32>>>()?;
    if ids.is_empty() {
        return Err(EngineError::usage("no token ids").hint("give a JSON array of ids"));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_json_and_from_plain_lists() {
        for text in ["[1, 2,3]", "1 2 3", "1,2,3\n", "1\n2\n3\n", " [1,2,3] \n"] {
            assert_eq!(parse_ids(text).unwrap(), [1, 2, 3], "{text:?}");
        }
    }

    #[test]
    fn what_is_no_list_of_ids_is_named() {
        for (text, named) in [("", "no token ids"), ("[]", "no token ids"), ("1 -2", "`-2`"), ("[1, x]", "`x`")] {
            assert!(parse_ids(text).unwrap_err().what().contains(named), "{text:?}");
        }
        for text in ["[1, 2", "1]", "4294967296", "1.5", "{\"a\":1}", "[[1]]"] {
            assert!(parse_ids(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn equal_logits_cost_the_logarithm_of_their_number() {
        let mut scratch = vec![0.0; 100];
        let nll = negative_log_likelihood(Isa::Scalar, &[3.0; 100], 7, &mut scratch).unwrap();
        assert!((nll - 100f32.ln()).abs() < 1e-5);
        assert!(negative_log_likelihood(Isa::Scalar, &[3.0; 100], 100, &mut scratch).is_err());
    }

    #[test]
    fn the_error_of_a_mean_shrinks_with_the_root_of_its_number() {
        let p = Perplexity::of(vec![1.0, 3.0, 1.0, 3.0]);
        assert_eq!(p.nll_mean, 2.0);
        assert!((p.nll_mean_error - (4.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert!((p.ppl() - 2f64.exp()).abs() < 1e-12);
    }
}
