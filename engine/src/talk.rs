//! What is said to people, on stderr.

use crate::error::EngineError;
use crate::text;
use std::fmt::Arguments;
use std::io::Write;

/// Most bytes that are said at once.
const SAID_BYTES_MAX: usize = 1 << 20;

/// Says some lines. What could rewrite a terminal is escaped, since names out of files are among the words. Where nobody can
/// hear it (stderr is closed, or its disk is full) the work goes on, while `eprintln!` would panic.
pub fn say(words: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{}", text::escaped_tail(words.to_string().as_bytes(), SAID_BYTES_MAX));
}

/// Says an error, with its hint. Names among its words begin no line of their own.
pub fn say_error(error: &EngineError) {
    let place = error.place().map_or_else(String::new, |place| format!(" ({})", text::one_line(place)));
    let hint = error.hint_text().map_or_else(String::new, |hint| format!("\n\nhint: {hint}"));
    say(format_args!("error: {}{place}{hint}", text::one_line(error.what())));
}

/// [`say`] with the words of `format!`.
macro_rules! talk {
    ($($words:tt)*) => {
        crate::talk::say(format_args!($($words)*))
    };
}

pub(crate) use talk;
