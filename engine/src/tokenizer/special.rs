//! Tokens that are found in the text before anything else: control tokens when the caller asks for them, user-defined
//! tokens always.

use crate::memory::heap;
use std::collections::HashMap;

/// A stretch of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragment<'a> {
    /// Text to tokenise.
    Text(&'a str),
    /// A token named in the text.
    Token(u32),
}

/// The tokens of one length in bytes.
#[derive(Debug, Clone)]
struct OfLength {
    bytes: usize,
    ids: HashMap<Box<str>, u32>,
    first_bytes: Box<[bool; 256]>,
}

/// Token texts to look for, longest first.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    by_length: Vec<OfLength>,
}

impl SpecialTokens {
    /// About what it takes on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        let of_length = |one: &OfLength| {
            let texts: u64 = one.ids.keys().map(|key| heap::block(key.len())).sum();
            size_of_val(&*one.first_bytes) as u64 + heap::map(&one.ids) + texts
        };
        heap::vec(&self.by_length) + self.by_length.iter().map(of_length).sum::<u64>()
    }

    /// The set of these tokens; of two with the same text the later one counts, empty texts are left out.
    pub fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Self {
        let mut by_length: Vec<OfLength> = Vec::new();
        for (id, text) in tokens.filter(|(_, text)| !text.is_empty()) {
            // descending, so the comparison is turned round
            let place = by_length.binary_search_by(|group| text.len().cmp(&group.bytes));
            let index = place.unwrap_or_else(|index| {
                let ids = HashMap::new();
                by_length.insert(index, OfLength { bytes: text.len(), ids, first_bytes: Box::new([false; 256]) });
                index
            });
            by_length[index].first_bytes[usize::from(text.as_bytes()[0])] = true;
            by_length[index].ids.insert(text.into(), id);
        }
        Self { by_length }
    }

    /// Cuts a text at the tokens in it. Longer tokens are looked for first, over the whole text, as llama.cpp does; among
    /// tokens of one length the leftmost counts. No fragment of text is empty.
    ///
    /// Takes time of text length times number of different token lengths.
    pub fn partition<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(text));
        }
        for group in &self.by_length {
            let mut next = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(text) => group.cut(text, &mut next),
                    token @ Fragment::Token(_) => next.push(token),
                }
            }
            fragments = next;
        }
        fragments
    }
}

impl OfLength {
    fn cut<'a>(&self, text: &'a str, out: &mut Vec<Fragment<'a>>) {
        let bytes = text.as_bytes();
        let (mut done, mut at) = (0, 0);
        while at + self.bytes <= bytes.len() {
            let hit = self.first_bytes[usize::from(bytes[at])].then(|| text.get(at..at + self.bytes)).flatten();
            let Some(id) = hit.and_then(|candidate| self.ids.get(candidate)) else {
                at += 1;
                continue;
            };
            if done < at {
                out.push(Fragment::Text(&text[done..at]));
            }
            out.push(Fragment::Token(*id));
            at += self.bytes;
            done = at;
        }
        if done < text.len() {
            out.push(Fragment::Text(&text[done..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> SpecialTokens {
        SpecialTokens::new(texts.iter().enumerate().map(|(i, t)| (i as u32, *t)))
    }

    #[test]
    fn a_text_without_tokens_is_one_fragment_and_an_empty_text_none() {
        assert_eq!(set(&["<s>"]).partition("a <s b"), [Fragment::Text("a <s b")]);
        assert_eq!(set(&["<s>", ""]).partition(""), []);
    }

    #[test]
    fn the_longest_token_wins_even_where_a_shorter_one_starts_earlier() {
        let tokens = set(&["ax", "xxab", "xx"]);
        let expected = [Fragment::Text("a"), Fragment::Token(1), Fragment::Token(2), Fragment::Text("é")];
        assert_eq!(tokens.partition("axxabxxé"), expected);
    }

    #[test]
    fn neighbouring_tokens_leave_no_empty_text_between_them() {
        let tokens = set(&["<|a|>", "\n\n", "\n"]);
        let expected = [Fragment::Token(0), Fragment::Token(0), Fragment::Token(1), Fragment::Token(2)];
        assert_eq!(tokens.partition("<|a|><|a|>\n\n\n"), expected);
    }
}
