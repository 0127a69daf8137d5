//! Markdown that fits a comment on a pull request, and the escapes that keep device text from becoming markup.

use super::Templates;
use crate::error::Result;
use crate::report::Report;
use minijinja::value::Serde;
use minijinja::{Value, context};

/// Largest Markdown file, bytes: GitHub takes 65,536 characters in a comment.
pub const MARKDOWN_BYTES_MAX: usize = 60_000;

/// Rows of each table that are tried, in turn, until the file fits.
const ROWS: [usize; 6] = [200, 100, 50, 25, 10, 3];
/// What a file ends with that fits not even with the fewest rows.
const CUT: &str = "\n\n_Cut here to fit a comment; the whole is in report.html._\n";

/// Renders the Markdown file; what was cut is said in it.
pub fn markdown(templates: &Templates, report: &Report) -> Result<String> {
    let value = Value::from(Serde(report));
    let mut text = String::new();
    for rows_max in ROWS {
        text = templates.render("report.md.j2", context! { report => value.clone(), rows_max })?;
        if text.len() <= MARKDOWN_BYTES_MAX {
            return Ok(text);
        }
    }
    let mut end = MARKDOWN_BYTES_MAX - CUT.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // a whole line, so that no table row and no escape is torn
    text.truncate(text[..end].rfind('\n').unwrap_or(end));
    text.push_str(CUT);
    Ok(text)
}

/// Text with every character escaped that Markdown, tables or HTML would take for markup; no link and no mention can
/// come of it.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match c {
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '#' | '|' | '~' | '$' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\n' | '\r' => out.push(' '),
            // an invisible joint keeps GitHub from seeing a name or an address
            '@' => out.push_str("@\u{2060}"),
            ':' if rest.starts_with("://") => out.push_str(":\u{2060}"),
            'w' | 'W' if rest.get(..4).is_some_and(|w| w.eq_ignore_ascii_case("www.")) => {
                out.push_str("www\u{2060}.");
                rest = &rest[4..];
                continue;
            }
            _ => out.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// A code span that holds inside a table: as many backticks around it as it needs, pipes escaped.
pub(super) fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ").replace('|', "\\|");
    if text.trim().is_empty() {
        return String::new();
    }
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_links_and_mentions_from_a_device_stay_text() {
        assert_eq!(escaped("a|b `c` <b>"), "a\\|b \\`c\\` &lt;b&gt;");
        assert_eq!(escaped("@all https://x www.y"), "@\u{2060}all https:\u{2060}//x www\u{2060}.y");
        assert_eq!(escaped("![x](y)"), "!\\[x\\](y)");
    }

    #[test]
    fn a_code_span_outlasts_the_backticks_in_it() {
        assert_eq!(code("a|b"), "`a\\|b`");
        assert_eq!(code("x``y"), "```x``y```");
        assert_eq!(code("`"), "`` ` ``");
        assert_eq!(code(""), "");
    }
}
