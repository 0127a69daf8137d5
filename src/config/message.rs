//! The TOML library's messages in farmgate's words, with a hint.

use crate::error::nearest;

/// Most known keys that a hint lists.
pub(crate) const KEYS_SHOWN_MAX: usize = 24;

/// What went wrong, and what to try.
pub(super) fn in_our_words(message: &str) -> (String, Option<String>) {
    let message = printable(&message.replace('\n', ", "));
    for (prefix, noun) in [("unknown field ", "key"), ("unknown variant ", "word")] {
        if let Some(rest) = message.strip_prefix(prefix) {
            return unknown(noun, rest, &message);
        }
    }
    if let Some(rest) = message.strip_prefix("unexpected keys in table: ") {
        // the library lists all unknown keys here, without quotes
        let (words, known) = rest.split_once(", available keys: ").unwrap_or((rest, ""));
        let first = words.split(", ").next().unwrap_or_default();
        return unknown_word("key", &format!("`{first}`"), &known.split(", ").collect::<Vec<_>>());
    }
    if let Some(word) = message.strip_prefix("missing field ") {
        return (format!("missing key {word}"), Some(format!("add {word} to this table")));
    }
    if let Some(word) = message.strip_prefix("duplicate field ") {
        return (format!("key {word} is there twice"), Some("keep one of them".into()));
    }
    if message.starts_with("wanted exactly 1 element") || message.contains("expected table with exactly 1 entry") {
        return ("this table must hold exactly one kind".into(), Some("split it, or keep one of them".into()));
    }
    if let Some(rest) = message.strip_prefix("invalid type: ") {
        let rest = plain_types(rest);
        // a whole number beyond 64 bits
        return match rest.split_once(" as i128").or_else(|| rest.split_once(" as u128")) {
            Some((number, expected)) => (format!("value out of range: {number}{expected}"), type_hint()),
            None => (format!("wrong type: {rest}"), type_hint()),
        };
    }
    if let Some(rest) = message.strip_prefix("invalid value: ") {
        return (format!("value out of range: {}", plain_types(rest)), type_hint());
    }
    (plain_types(&message), Some("a line reads `key = value`; texts stand in \"quotes\", lists in [ ]".into()))
}

fn type_hint() -> Option<String> {
    Some("the README.md of devices/ and of scenarios/ lists every key with its type".into())
}

/// `rest` reads "`word`, expected one of `a`, `b`".
fn unknown(noun: &str, rest: &str, whole: &str) -> (String, Option<String>) {
    let (word, expected) = match rest.rsplit_once(", expected ") {
        Some((word, expected)) => (word, expected),
        None => match rest.strip_suffix(", there are no fields") {
            Some(word) => (word, ""),
            None => return (whole.to_owned(), None),
        },
    };
    unknown_word(noun, word, &expected.split('`').skip(1).step_by(2).collect::<Vec<_>>())
}

fn unknown_word(noun: &str, word: &str, known: &[&str]) -> (String, Option<String>) {
    let hint = match nearest(word.trim_matches('`'), known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("no {noun}s are known here; remove it"),
        None => {
            let shown: Vec<&str> = known.iter().copied().take(KEYS_SHOWN_MAX).collect();
            format!("known here: {}", shown.join(", "))
        }
    };
    (format!("unknown {noun} {word}"), Some(hint))
}

/// Rust's names of types in words that a reader of TOML knows.
fn plain_types(text: &str) -> String {
    let mut out = text.to_owned();
    for (rust, plain) in [
        ("a borrowed string", "a text in quotes"),
        ("a string", "a text in quotes"),
        ("string \"", "text \""),
        ("floating point `", "number `"),
        ("u64", "a whole number that is not negative"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u16", "a whole number from 0 to 65535"),
        ("f64", "a number"),
        ("a boolean", "true or false"),
        ("a sequence", "a list in [ ]"),
        ("sequence", "a list"),
        ("a map", "a table"),
        ("invalid type: map", "wrong type: a table"),
    ] {
        out = replace_word(&out, rust, plain);
    }
    match out.find("struct variant ").or_else(|| out.find("struct ")) {
        Some(at) if out[..at].ends_with("expected ") => format!("{}a table", &out[..at]),
        _ => out,
    }
}

/// Replaces `word` only after "expected " or at the beginning, so that text quoted from the file stays as it is.
fn replace_word(text: &str, word: &str, plain: &str) -> String {
    if let Some(rest) = text.strip_prefix(word) {
        return format!("{plain}{rest}");
    }
    match text.rsplit_once(", expected ") {
        Some((before, expected)) if expected == word => format!("{before}, expected {plain}"),
        _ => text.to_owned(),
    }
}

/// Control characters escaped, so that a file cannot write to the terminal.
pub(crate) fn printable(text: &str) -> String {
    let escape = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().flat_map(|c| if escape(c) { c.escape_unicode().collect::<Vec<_>>() } else { vec![c] }).collect()
}
