//! SentencePiece in its BPE form (model `llama`): characters are the letters, and the neighbours whose joined text is the
//! best-scored token merge until no joined text is a token. Characters without a token become byte tokens.

use super::vocabulary::{VocabularyData, malformed, missing};
use crate::error::Result;
use crate::memory::heap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Stands for the space in token texts.
pub const SPACE: &str = "\u{2581}";

const NO_SYMBOL: usize = usize::MAX;

/// Token texts and priorities of a vocabulary.
#[derive(Debug, Clone)]
pub struct SentencePiece {
    /// Text to (token, priority); a higher priority merges first.
    tokens: HashMap<Box<str>, (u32, u32)>,
    token_bytes_max: usize,
    byte_ids: Box<[Option<u32>; 256]>,
}

/// A stretch of the text; empty once it has merged into its left neighbour.
struct Symbol {
    start: usize,
    end: usize,
    before: usize,
    after: usize,
}

/// (priority, left symbol, joined length): what merges next is the highest priority, then the leftmost.
type Candidate = (u32, Reverse<usize>, usize);

impl SentencePiece {
    /// About what it takes on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        let texts: u64 = self.tokens.keys().map(|key| heap::block(key.len())).sum();
        size_of_val(&*self.byte_ids) as u64 + heap::map(&self.tokens) + texts
    }

    /// Checks the scores. `unknown` stands in for byte tokens that do not exist.
    pub fn new(data: &VocabularyData<'_>, tokens: &[String], unknown: Option<u32>) -> Result<Self> {
        let scores = data.scores.ok_or_else(|| missing("scores"))?;
        if scores.len() != tokens.len() {
            return Err(malformed("scores", format!("{} entries for {} tokens", scores.len(), tokens.len())));
        }
        let mut by_text: HashMap<Box<str>, (u32, u32)> = HashMap::with_capacity(tokens.len());
        for ((id, text), score) in (0u32..).zip(tokens).zip(scores) {
            if score.is_nan() {
                return Err(malformed("scores", format!("entry {id} is not a number")));
            }
            if !text.is_empty() {
                by_text.insert(text.as_str().into(), (id, priority(*score)));
            }
        }
        let mut byte_ids = Box::new([unknown; 256]);
        for (byte, slot) in byte_ids.iter_mut().enumerate() {
            if let Some((id, _)) = by_text.get(format!("<0x{byte:02X}>").as_str()) {
                *slot = Some(*id);
            }
        }
        let token_bytes_max = tokens.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { tokens: by_text, token_bytes_max, byte_ids })
    }

    /// Appends the tokens of a text, with a space before it when `prefix_space`; O(n log n) in its length. A character
    /// that has neither token nor byte tokens becomes the unknown token, one for each byte.
    pub fn encode(&self, text: &str, prefix_space: bool, out: &mut Vec<u32>) {
        let mut escaped = text.replace(' ', SPACE);
        if prefix_space {
            escaped.insert_str(0, SPACE);
        }
        let count = escaped.chars().count();
        let mut symbols: Vec<Symbol> = Vec::with_capacity(count);
        for (i, (start, c)) in escaped.char_indices().enumerate() {
            let before = i.checked_sub(1).unwrap_or(NO_SYMBOL);
            let after = if i + 1 < count { i + 1 } else { NO_SYMBOL };
            symbols.push(Symbol { start, end: start + c.len_utf8(), before, after });
        }
        let mut queue = BinaryHeap::new();
        for left in 0..symbols.len() {
            queue.extend(self.candidate(&escaped, &symbols, left));
        }
        while let Some((_, Reverse(left), length)) = queue.pop() {
            self.merge(&escaped, &mut symbols, left, length, &mut queue);
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            let piece = &escaped[symbol.start..symbol.end];
            match self.tokens.get(piece) {
                Some((id, _)) => out.push(*id),
                None => out.extend(piece.bytes().filter_map(|byte| self.byte_ids[usize::from(byte)])),
            }
            at = symbol.after;
        }
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol], left: usize, length: usize, queue: &mut BinaryHeap<Candidate>) {
        let right = symbols[left].after;
        // boundaries only ever vanish: the same start and length, still cut in two, is the same pair
        let is_current = symbols[left].start < symbols[left].end
            && symbols.get(right).is_some_and(|s| s.end - symbols[left].start == length);
        if !is_current {
            return;
        }
        let after = symbols[right].after;
        symbols[left].end = symbols[right].end;
        symbols[left].after = after;
        symbols[right].start = symbols[right].end;
        if let Some(next) = symbols.get_mut(after) {
            next.before = left;
        }
        for at in [symbols[left].before, left] {
            queue.extend(self.candidate(text, symbols, at));
        }
    }

    /// The merge of the symbol at `left` with its right neighbour, if their joined text is a token.
    fn candidate(&self, text: &str, symbols: &[Symbol], left: usize) -> Option<Candidate> {
        let first = symbols.get(left)?;
        let second = symbols.get(first.after)?;
        let length = second.end - first.start;
        if length > self.token_bytes_max {
            return None;
        }
        let (_, priority) = self.tokens.get(&text[first.start..second.end])?;
        Some((*priority, Reverse(left), length))
    }
}

/// A whole number that orders as the score does.
fn priority(score: f32) -> u32 {
    // adding 0 makes both zeros the same
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_order_as_scores_do() {
        let scores = [f32::NEG_INFINITY, -1000.0, -2.5, -2.4, -0.0, 0.0, 1e-9, 3.0, f32::INFINITY];
        for pair in scores.windows(2) {
            assert_eq!(pair[0].partial_cmp(&pair[1]), Some(priority(pair[0]).cmp(&priority(pair[1]))), "{pair:?}");
        }
    }

    #[test]
    fn the_best_score_merges_first_and_the_leftmost_of_equals() {
        let tokens: Vec<String> = ["a", "b", "ab", "ba", "aba", "<0xC3>", "<0xA9>"].map(String::from).to_vec();
        let encode = |scores: [f32; 7], text: &str| {
            let data = VocabularyData { scores: Some(&scores), ..VocabularyData::default() };
            let mut out = Vec::new();
            SentencePiece::new(&data, &tokens, None).expect("valid").encode(text, false, &mut out);
            out
        };
        assert_eq!(encode([0.0, 0.0, -1.0, -2.0, -9.0, 0.0, 0.0], "abab"), [2, 2]);
        assert_eq!(encode([0.0, 0.0, -2.0, -1.0, -9.0, 0.0, 0.0], "abab"), [4, 1]);
        assert_eq!(encode([0.0, 0.0, -2.0, -1.0, -9.0, 0.0, 0.0], "babb"), [3, 1, 1]);
        assert_eq!(encode([0.0, 0.0, -1.0, -1.0, -1.0, 0.0, 0.0], "aba"), [4]);
        assert_eq!(encode([0.0; 7], "aé"), [0, 5, 6]);
    }
}
