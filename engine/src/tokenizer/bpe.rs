//! Byte-level byte-pair encoding, as GPT-2 introduced it: bytes are the letters, and the best-ranked neighbours merge until
//! no merge is left.

use super::split::PreTokenizer;
use super::vocabulary::{Vocabulary, VocabularyData, ids_by_text, malformed, missing};
use crate::error::Result;
use crate::memory::heap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The byte that a character stands for in a byte-level token text.
pub fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        // the bytes left out above, in order, from U+0100 on: 00 to 20, 7F to A0, AD
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// A symbol whose bytes have no token, and one that has merged into its left neighbour.
const NO_TOKEN: u32 = u32::MAX;
const NO_SYMBOL: usize = usize::MAX;

/// Merge rules of a vocabulary.
#[derive(Debug, Clone)]
pub struct Bpe {
    pre: PreTokenizer,
    byte_ids: Box<[u32; 256]>,
    /// Neighbours to (rank, merged token); a lower rank merges first.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Bytes to token, for pre-tokenizers that take a piece whole where they can.
    whole: HashMap<Box<[u8]>, u32>,
}

/// Buffers of one encoding, used again for every piece.
#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    /// (rank, left symbol).
    queue: BinaryHeap<Reverse<(u32, usize)>>,
}

struct Symbol {
    id: u32,
    before: usize,
    after: usize,
}

impl Bpe {
    /// About what it takes on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        let texts: u64 = self.whole.keys().map(|key| heap::block(key.len())).sum();
        size_of_val(&*self.byte_ids) as u64 + heap::map(&self.merges) + heap::map(&self.whole) + texts
    }

    /// Checks the merges: both parts and what they merge to must be tokens.
    pub fn new(
        data: &VocabularyData<'_>,
        tokens: &[String],
        vocabulary: &Vocabulary,
        pre: PreTokenizer,
    ) -> Result<Self> {
        let rules = data.merges.ok_or_else(|| missing("merges"))?;
        let by_text = ids_by_text(tokens);
        let mut merges = HashMap::with_capacity(rules.len());
        let mut joined = String::new();
        for (rank, rule) in (0u32..).zip(rules) {
            let split = rule.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(i, _)| rule.split_at(i));
            let Some((left, right)) = split.map(|(left, right)| (left, &right[1..])) else {
                return Err(malformed("merges", format!("entry {rank} is `{rule}`, expected two tokens and a space")));
            };
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let find = |text: &str| {
                by_text.get(text).copied().ok_or_else(|| {
                    malformed("merges", format!("entry {rank} `{rule}` needs the token `{text}`, which does not exist"))
                })
            };
            merges.entry((find(left)?, find(right)?)).or_insert((rank, find(&joined)?));
        }
        let mut byte_ids = Box::new([NO_TOKEN; 256]);
        for (text, id) in &by_text {
            let mut chars = text.chars();
            if let (Some(byte), None) = (chars.next().and_then(byte_of_char), chars.next()) {
                byte_ids[usize::from(byte)] = *id;
            }
        }
        let mut whole = HashMap::new();
        if pre.ignores_merges() {
            let normal = by_text.values().filter(|id| vocabulary.kind(**id).is_some_and(|kind| !kind.is_verbatim()));
            whole = normal.filter_map(|id| Some((vocabulary.bytes(*id)?.into(), *id))).collect();
        }
        Ok(Self { pre, byte_ids, merges, whole })
    }

    /// Appends the tokens of a text. A byte that has no token is dropped, as llama.cpp does; a complete byte-level
    /// vocabulary has a token for every byte that UTF-8 can hold.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        self.pre.split(text, &mut |piece| self.encode_piece(piece.as_bytes(), &mut scratch, out));
    }

    /// Merges one piece; O(n log n) in its length.
    fn encode_piece(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if let Some(id) = self.whole.get(piece) {
            return out.push(*id);
        }
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        symbols.extend(piece.iter().enumerate().map(|(i, byte)| Symbol {
            id: self.byte_ids[usize::from(*byte)],
            before: i.checked_sub(1).unwrap_or(NO_SYMBOL),
            after: if i + 1 < piece.len() { i + 1 } else { NO_SYMBOL },
        }));
        for left in 0..symbols.len() {
            queue.extend(self.merge_at(symbols, left).map(|(rank, _)| Reverse((rank, left))));
        }
        while let Some(Reverse((rank, left))) = queue.pop() {
            // a rank names its pair, so another rank means that one of the two has merged elsewhere
            let Some((_, merged)) = self.merge_at(symbols, left).filter(|(now, _)| *now == rank) else { continue };
            let right = symbols[left].after;
            let after = symbols[right].after;
            symbols[left].id = merged;
            symbols[left].after = after;
            symbols[right].id = NO_TOKEN;
            if after != NO_SYMBOL {
                symbols[after].before = left;
            }
            let before = symbols[left].before;
            for at in [before, left] {
                queue.extend(self.merge_at(symbols, at).map(|(rank, _)| Reverse((rank, at))));
            }
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
            }
            at = symbol.after;
        }
    }

    /// The merge of the symbol at `left` with its right neighbour: rank and merged token.
    fn merge_at(&self, symbols: &[Symbol], left: usize) -> Option<(u32, u32)> {
        let first = symbols.get(left)?;
        let second = symbols.get(first.after)?;
        if first.id == NO_TOKEN || second.id == NO_TOKEN {
            return None;
        }
        self.merges.get(&(first.id, second.id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let pairs: Vec<(u8, char)> = ('\0'..='\u{2ff}').filter_map(|c| byte_of_char(c).map(|byte| (byte, c))).collect();
        assert_eq!(pairs.len(), 256);
        assert_eq!(pairs.iter().map(|(byte, _)| byte).collect::<HashSet<_>>().len(), 256);
        // as the published vocabularies have them
        for (byte, c) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (b'a', 'a'), (0x7f, 'ġ'), (0xad, 'Ń')] {
            assert_eq!(byte_of_char(c), Some(byte), "{c}");
        }
    }
}
