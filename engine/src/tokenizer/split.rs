//! Pre-tokenizers: where byte-level BPE may not merge across. Hand-written equivalents of the regular expressions that
//! the names in `tokenizer.ggml.pre` stand for, in the reading llama.cpp gives them.
//!
//! A pre-tokenizer is a list of passes; every pass cuts each piece of the one before. What an expression leaves
//! unmatched between two matches is a piece as well, so nothing is ever lost.

use super::unicode::{Class, class};

/// A pre-tokenizer by the family of its regular expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreTokenizer {
    /// `gpt-2`: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
    Gpt2,
    /// `smollm`, `starcoder`, ...: every `\p{N}` on its own, then as `gpt-2`.
    Smollm,
    /// `llama-bpe`: contractions in any case, words with one leading non-letter, digits in groups of three, line ends.
    Llama3,
    /// `qwen2`: as `llama-bpe` with every `\p{N}` on its own.
    Qwen2,
    /// `qwen35`: as `qwen2` with `\p{M}` counted into words.
    Qwen35,
    /// `tekken` (Mistral): words also end where lower case turns to upper, digits singly, `/` after punctuation.
    Tekken,
    /// `default`: runs of `[\p{P}$+<=>^~|]`, then as `gpt-2`, then `\p{N}+`, then ASCII digits in threes.
    Default,
}

/// One pass: given a text and a position inside it (on a character boundary, before the end), where the piece that
/// starts there ends. Always greater than the position.
type Pass = fn(&str, usize) -> usize;

impl PreTokenizer {
    /// The pre-tokenizer for a value of `tokenizer.ggml.pre`; `None` for a name this engine does not know.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "gigachat" | "roberta-bpe" | "jina-es" | "jina-de" => {
                Self::Gpt2
            }
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => Self::Smollm,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2" | "midm-2.0" => {
                Self::Llama3
            }
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" => Self::Qwen2,
            "qwen35" => Self::Qwen35,
            "tekken" => Self::Tekken,
            "default" => Self::Default,
            _ => return None,
        })
    }

    /// Whether a piece that is a token as a whole is taken before any merge is tried.
    pub fn ignores_merges(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    /// Whether a text starts with the BOS token when the metadata do not say.
    pub fn adds_bos(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    fn passes(self) -> &'static [Pass] {
        match self {
            Self::Gpt2 => &[gpt2],
            Self::Smollm => &[single_numbers, gpt2],
            Self::Llama3 => &[llama3],
            Self::Qwen2 => &[qwen2],
            Self::Qwen35 => &[qwen35],
            Self::Tekken => &[tekken],
            Self::Default => &[punctuation_runs, gpt2, number_runs, digit_triples],
        }
    }

    /// Cuts `text` into pieces, in order; the pieces joined are the text.
    pub fn split(self, text: &str, emit: &mut dyn FnMut(&str)) {
        cut(text, self.passes(), emit);
    }
}

fn cut(text: &str, passes: &[Pass], emit: &mut dyn FnMut(&str)) {
    let Some((pass, rest)) = passes.split_first() else {
        return emit(text);
    };
    let mut at = 0;
    while at < text.len() {
        let end = pass(text, at);
        cut(&text[at..end], rest, emit);
        at = end;
    }
}

/// The character at a byte position and its class; `None` at the end.
fn peek(text: &str, at: usize) -> Option<(char, Class)> {
    text[at..].chars().next().map(|c| (c, class(c)))
}

/// The end of the longest run of characters from `at` on for which `test` holds.
fn run(text: &str, at: usize, test: impl Fn(char, Class) -> bool) -> usize {
    text[at..].char_indices().find(|(_, c)| !test(*c, class(*c))).map_or(text.len(), |(i, _)| at + i)
}

/// The end of the character at `at`.
fn after(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(0, char::len_utf8)
}

fn is_letter(_: char, class: Class) -> bool {
    class == Class::Letter
}

fn is_number(_: char, class: Class) -> bool {
    class == Class::Number
}

fn is_symbol(_: char, class: Class) -> bool {
    !matches!(class, Class::Space | Class::Letter | Class::Number)
}

fn is_line_end(c: char) -> bool {
    c == '\r' || c == '\n'
}

/// The end of `'s|'t|'re|'ve|'m|'ll|'d` at `at`.
fn contraction(text: &str, at: usize, any_case: bool) -> Option<usize> {
    let rest = text[at..].strip_prefix('\'')?.as_bytes();
    let byte = |i: usize| rest.get(i).map(|b| if any_case { b.to_ascii_lowercase() } else { *b });
    match (byte(0)?, byte(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that follows.
fn spaces(text: &str, at: usize) -> Option<usize> {
    let end = run(text, at, |_, class| class == Class::Space);
    let last = text[at..end].chars().next_back()?;
    let before_last = end - last.len_utf8();
    Some(if end < text.len() && before_last > at { before_last } else { end })
}

/// `\s*[\r\n]+`: white space up to and with the last line end of its run.
fn lines(text: &str, at: usize) -> Option<usize> {
    let end = run(text, at, |_, class| class == Class::Space);
    // both line ends are one byte long
    text[at..end].rfind(is_line_end).map(|i| at + i + 1)
}

fn gpt2(text: &str, at: usize) -> usize {
    if let Some(end) = contraction(text, at, false) {
        return end;
    }
    let word = if text[at..].starts_with(' ') { at + 1 } else { at };
    if let Some((c, class)) = peek(text, word) {
        for test in [is_letter, is_number, is_symbol] {
            if test(c, class) {
                return run(text, word, test);
            }
        }
    }
    spaces(text, at).unwrap_or_else(|| after(text, at))
}

/// What `llama-bpe` and its relatives share after contractions and words: numbers, symbols, lines, spaces.
fn after_words(
    text: &str,
    at: usize,
    digits_max: usize,
    is_tail: fn(char) -> bool,
    symbol: fn(char, Class) -> bool,
) -> usize {
    let Some((first, first_class)) = peek(text, at) else { return text.len() };
    if first_class == Class::Number {
        let digits = text[at..].char_indices().take(digits_max).take_while(|(_, c)| class(*c) == Class::Number);
        return digits.last().map_or_else(|| after(text, at), |(i, c)| at + i + c.len_utf8());
    }
    let word = if first == ' ' { at + 1 } else { at };
    if peek(text, word).is_some_and(|(c, class)| symbol(c, class)) {
        return run(text, run(text, word, symbol), |c, _| is_tail(c));
    }
    lines(text, at).or_else(|| spaces(text, at)).unwrap_or_else(|| after(text, at))
}

/// Where the letters of a word with an optional leading `[^\r\n\p{L}\p{N}]` start, if there may be one at `at`.
fn word_start(text: &str, at: usize, in_word: fn(char, Class) -> bool) -> Option<usize> {
    let (first, first_class) = peek(text, at)?;
    let prefix = !is_line_end(first) && !matches!(first_class, Class::Letter | Class::Number);
    let next = after(text, at);
    if prefix && peek(text, next).is_some_and(|(c, class)| in_word(c, class)) {
        return Some(next);
    }
    in_word(first, first_class).then_some(at)
}

fn llama3_like(text: &str, at: usize, digits_max: usize) -> usize {
    if let Some(end) = contraction(text, at, true) {
        return end;
    }
    match word_start(text, at, is_letter) {
        Some(start) => run(text, start, is_letter),
        None => after_words(text, at, digits_max, is_line_end, is_symbol),
    }
}

fn llama3(text: &str, at: usize) -> usize {
    llama3_like(text, at, 3)
}

fn qwen2(text: &str, at: usize) -> usize {
    llama3_like(text, at, 1)
}

fn qwen35(text: &str, at: usize) -> usize {
    fn in_word(_: char, class: Class) -> bool {
        matches!(class, Class::Letter | Class::Mark)
    }
    fn symbol(c: char, class: Class) -> bool {
        is_symbol(c, class) && class != Class::Mark
    }
    if let Some(end) = contraction(text, at, true) {
        return end;
    }
    match word_start(text, at, in_word) {
        Some(start) => run(text, start, in_word),
        None => after_words(text, at, 1, is_line_end, symbol),
    }
}

/// `[^\r\n\p{L}\p{N}]?U*L+|[^\r\n\p{L}\p{N}]?U+L*` with U the letters but a-z and L the letters but A-Z, then the rest.
fn tekken(text: &str, at: usize) -> usize {
    let Some(start) = word_start(text, at, is_letter) else {
        return after_words(text, at, 1, |c| is_line_end(c) || c == '/', is_symbol);
    };
    let is_upper = |c: char, class: Class| class == Class::Letter && !c.is_ascii_lowercase();
    let is_lower = |c: char, class: Class| class == Class::Letter && !c.is_ascii_uppercase();
    let upper_end = run(text, start, is_upper);
    if peek(text, upper_end).is_some_and(|(c, class)| is_lower(c, class)) {
        return run(text, upper_end, is_lower);
    }
    // L+ needs one letter: the last one of the run that is of both kinds, if there is one
    match text[start..upper_end].char_indices().rfind(|(_, c)| !c.is_ascii_uppercase()) {
        Some((i, c)) => start + i + c.len_utf8(),
        None => upper_end,
    }
}

fn single_numbers(text: &str, at: usize) -> usize {
    match peek(text, at) {
        Some((_, Class::Number)) => after(text, at),
        _ => run(text, at, |c, class| !is_number(c, class)),
    }
}

/// A run for which `test` holds, or one for which it does not.
fn alternate(text: &str, at: usize, test: fn(char, Class) -> bool) -> usize {
    let inside = peek(text, at).is_some_and(|(c, class)| test(c, class));
    run(text, at, |c, class| test(c, class) == inside)
}

fn punctuation_runs(text: &str, at: usize) -> usize {
    alternate(text, at, |c, class| class == Class::Punctuation || "$+<=>^~|".contains(c))
}

fn number_runs(text: &str, at: usize) -> usize {
    alternate(text, at, is_number)
}

fn digit_triples(text: &str, at: usize) -> usize {
    let is_triple = |i: usize| text.as_bytes().get(i..i + 3).is_some_and(|three| three.iter().all(u8::is_ascii_digit));
    if is_triple(at) {
        return at + 3;
    }
    (at + 1..text.len()).find(|i| is_triple(*i)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [PreTokenizer; 7] = [
        PreTokenizer::Gpt2,
        PreTokenizer::Smollm,
        PreTokenizer::Llama3,
        PreTokenizer::Qwen2,
        PreTokenizer::Qwen35,
        PreTokenizer::Tekken,
        PreTokenizer::Default,
    ];

    fn pieces(pre: PreTokenizer, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        pre.split(text, &mut |piece| out.push(piece.to_owned()));
        out
    }

    #[test]
    fn each_family_cuts_numbers_contractions_and_spaces_its_own_way() {
        let text = "I'LL pay  12345 €,\n\n x's";
        assert_eq!(
            pieces(PreTokenizer::Gpt2, text),
            ["I", "'", "LL", " pay", " ", " 12345", " €,", "\n\n", " x", "'s"]
        );
        assert_eq!(
            pieces(PreTokenizer::Smollm, text),
            ["I", "'", "LL", " pay", "  ", "1", "2", "3", "4", "5", " €,", "\n\n", " x", "'s"]
        );
        assert_eq!(
            pieces(PreTokenizer::Llama3, text),
            ["I", "'LL", " pay", " ", " ", "123", "45", " €,\n\n", " x", "'s"]
        );
        assert_eq!(
            pieces(PreTokenizer::Qwen2, text),
            ["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", "5", " €,\n\n", " x", "'s"]
        );
        assert_eq!(
            pieces(PreTokenizer::Default, text),
            ["I", "'", "LL", " pay", " ", " ", "123", "45", " €", ",", "\n\n", " x", "'", "s"]
        );
    }

    #[test]
    fn tekken_ends_a_word_where_lower_case_turns_to_upper() {
        assert_eq!(
            pieces(PreTokenizer::Tekken, "camelCase HTTPServer ABC éA"),
            ["camel", "Case", " HTTPServer", " ABC", " é", "A"]
        );
        assert_eq!(pieces(PreTokenizer::Tekken, "a//\n/b"), ["a", "//\n/", "b"]);
    }

    #[test]
    fn marks_belong_to_the_word_in_qwen35_only() {
        assert_eq!(pieces(PreTokenizer::Qwen35, "नमस्ते"), ["नमस्ते"]);
        assert!(pieces(PreTokenizer::Qwen2, "नमस्ते").len() > 1);
    }

    proptest! {
        #[test]
        fn the_pieces_joined_are_the_text(text in "(\\PC|[ \\n\\r\\t'sLl0-9a-zA-Z$!]){0,60}") {
            for pre in ALL {
                let parts = pieces(pre, &text);
                prop_assert!(parts.iter().all(|p| !p.is_empty()));
                prop_assert_eq!(parts.concat(), text.as_str());
            }
        }
    }
}
