//! What is said to people, on stderr.

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

/// [`say`] with the words of `format!`.
macro_rules! talk {
    ($($words:tt)*) => {
        crate::talk::say(format_args!($($words)*))
    };
}

pub(crate) use talk;
