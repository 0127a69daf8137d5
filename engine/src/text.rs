//! Text from outside is data: bounded and escaped before it is stored, printed or journalled.

/// `bytes` as one line of at most `bytes_max` bytes. Bytes that are not UTF-8 become U+FFFD; control characters (line
/// feeds too) and invisible formatting characters, which could rewrite a terminal or reorder a line, become `\u{…}`.
pub fn escaped(bytes: &[u8], bytes_max: usize) -> String {
    escape(bytes, bytes_max, |c| !is_treacherous(c))
}

/// Most bytes of a name among other words.
const NAME_BYTES_MAX: usize = 4096;

/// A name, of a file for instance, as [`escaped`]: for lines in which it must not begin another.
pub fn one_line(name: &str) -> String {
    escaped(name.as_bytes(), NAME_BYTES_MAX)
}

/// As [`escaped`], but keeps line feeds, and keeps the *last* `bytes_max` bytes rather than the first.
pub fn escaped_tail(bytes: &[u8], bytes_max: usize) -> String {
    let tail = &bytes[bytes.len().saturating_sub(bytes_max)..];
    // every escape grows the text, so the whole tail is escaped first and cut from the front afterwards
    let text = escape(tail, usize::MAX, |c| c == '\n' || !is_treacherous(c));
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

fn escape(bytes: &[u8], bytes_max: usize, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::new();
    // no character of the output is shorter than its bytes in the input, so more input could not fit either
    for c in String::from_utf8_lossy(&bytes[..bytes.len().min(bytes_max)]).chars() {
        let before = out.len();
        if keep(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
        if out.len() > bytes_max {
            out.truncate(before);
            break;
        }
    }
    out
}

/// Control characters, line and paragraph separators, zero-width and bidirectional formatting.
fn is_treacherous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_and_direction_marks_are_spelled_out() {
        assert_eq!(escaped(b"a\x1b[2Jb\r\n", 100), "a\\u{1b}[2Jb\\u{d}\\u{a}");
        assert_eq!(escaped("x\u{202e}y".as_bytes(), 100), "x\\u{202e}y");
        assert_eq!(escaped("größe 48 °C".as_bytes(), 100), "größe 48 °C");
    }

    #[test]
    fn the_bound_holds_whatever_the_bytes_are() {
        for input in [vec![0u8; 500], vec![0xff; 500], "ä\u{1b}".repeat(200).into_bytes()] {
            for max in [0, 1, 2, 3, 7, 64] {
                assert!(escaped(&input, max).len() <= max);
                assert!(escaped_tail(&input, max).len() <= max);
            }
        }
    }

    #[test]
    fn a_tail_keeps_the_end_and_its_line_feeds() {
        assert_eq!(escaped_tail(b"first\nlast", 6), "t\nlast");
        assert_eq!(escaped_tail(b"first\nlast", 5), "\nlast");
        assert_eq!(escaped_tail(b"a\x07\nb", 100), "a\\u{7}\nb");
    }
}
