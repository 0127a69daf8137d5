//! Words and numbers as people read them. Everything that came from a device goes through [`clean`] or
//! [`clean_lines`] first: it is data, and it must not move a cursor, turn a line around or break an XML reader.

use farmgate_engine::protocol::{CoreCluster, ExitCause};

/// Most characters of a name that reports show.
pub const NAME_CHARS_MAX: usize = 96;
/// Most characters of a sentence that reports show.
pub const SENTENCE_CHARS_MAX: usize = 1000;
/// Most characters of an engine's reason that reports show.
const REASON_CHARS_MAX: usize = 200;
/// Most characters of a stderr tail that reports show.
pub const TAIL_CHARS_MAX: usize = 2000;

/// A name from a device or a file: one line, no control or direction characters, bounded.
pub fn clean(text: &str) -> String {
    cleaned(text, NAME_CHARS_MAX, false)
}

/// A sentence, as [`clean`] but longer.
pub fn clean_sentence(text: &str) -> String {
    cleaned(text, SENTENCE_CHARS_MAX, false)
}

/// Several lines of our own messages as one sentence: parts joined by semicolons, the place left out since the reader
/// knows the device.
pub fn joined_sentence(text: &str) -> String {
    let parts = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("--> "));
    clean_sentence(&parts.collect::<Vec<_>>().join("; "))
}

/// A sentence as it stands alone: its first letter large, and a full stop at its end.
pub fn as_sentence(text: &str) -> String {
    let mut chars = text.trim_end().chars();
    let mut out: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    out.push_str(chars.as_str());
    if !out.is_empty() && !out.ends_with(['.', '!', '?', '…']) {
        out.push('.');
    }
    out
}

/// A number of things, for instance `1 cell` or `2 cells`.
pub fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// Several lines of text from a device, for instance the tail of stderr: line ends stay.
pub fn clean_lines(text: &str) -> String {
    cleaned(text, TAIL_CHARS_MAX, true)
}

fn cleaned(text: &str, chars_max: usize, keep_lines: bool) -> String {
    let mut out = String::with_capacity(text.len().min(chars_max));
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            out.push('…');
            break;
        }
        match c {
            '\n' if keep_lines => out.push('\n'),
            '\t' | '\u{a0}' => out.push(' '),
            _ if is_harmful(c) => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    out
}

/// Control characters, invisible and direction-changing ones, and those that XML 1.0 forbids.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// At most `chars_max` characters, the last one an ellipsis when something was cut.
pub fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    out.push('…');
    out
}

/// A number with four significant digits; whole numbers below ten million as they are.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "unbounded".to_owned();
    }
    if size < 1e7 && value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    if !(1e-3..1e7).contains(&size) {
        return format!("{value:.3e}");
    }
    // log10 of a value in [1e-3, 1e7) fits, so the digits lie between 0 and 6
    let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

/// A number with its unit; a ratio has none.
pub fn quantity(value: f64, unit: &str) -> String {
    if is_unitless(unit) { number(value) } else { format!("{} {unit}", number(value)) }
}

/// Whether a unit is not worth a word after a number.
pub fn is_unitless(unit: &str) -> bool {
    unit.is_empty() || unit == "ratio"
}

/// The unit of a metric; of one that is not in the table (an imported one) by the rule that it comes last in the name.
pub fn unit_of(metric: &str) -> &'static str {
    if let Some(kind) = crate::metric::find(metric) {
        return kind.unit;
    }
    const UNITS: &[(&str, &str)] = &[
        ("-mb-per-h", "MB/h"),
        ("-j-per-token", "J/token"),
        ("-tps", "token/s"),
        ("-ms", "ms"),
        ("-mb", "MB"),
        ("-c", "°C"),
        ("-s", "s"),
        ("-w", "W"),
    ];
    let base = metric.split('@').next().unwrap_or(metric);
    UNITS.iter().find(|(suffix, _)| base.ends_with(suffix)).map_or("ratio", |(_, unit)| unit)
}

/// A change given as a ratio, in per cent with its sign: 0.95 is `-5.0 %`.
pub fn change(ratio: f64) -> String {
    if !ratio.is_finite() {
        return "unbounded".to_owned();
    }
    let percent = (ratio - 1.0) * 100.0;
    match percent.abs() {
        size if size < 0.05 => "0.0 %".to_owned(),
        size if size < 1000.0 => format!("{percent:+.1} %"),
        size if size < 1e6 => format!("{percent:+.0} %"),
        _ => format!("{percent:+.2e} %"),
    }
}

/// A share in per cent, `none` when there is nothing to divide.
pub fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "none".to_owned(),
        _ => format!("{:.1} % ({part} of {whole})", part as f64 / whole as f64 * 100.0),
    }
}

/// A span of time with its share of another, both given in milliseconds.
pub fn share_of_time(part_ms: u64, whole_ms: u64) -> String {
    match whole_ms {
        0 => "none".to_owned(),
        _ => format!("{} ({:.1} %)", duration(part_ms), part_ms as f64 / whole_ms as f64 * 100.0),
    }
}

/// Bytes in decimal units.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A span of time given in milliseconds.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{:.1} s", ms as f64 / 1000.0),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// The first twelve digits of a hash.
pub fn hash_prefix(hash: &str) -> String {
    clean(hash).chars().take(12).collect()
}

/// Equal cores with their clock and governor.
pub fn cluster(cluster: &CoreCluster) -> String {
    let cores: Vec<String> = cluster.cores.iter().take(64).map(u32::to_string).collect();
    let mut words = cores.join(", ");
    if let Some(khz) = cluster.clock_max_khz {
        words.push_str(&format!(" at {:.2} GHz", khz as f64 / 1e6));
    }
    if let Some(governor) = &cluster.governor {
        words.push_str(&format!(" ({})", clean(governor)));
    }
    if !cluster.offline.is_empty() {
        words.push_str(&format!(", {} offline", cluster.offline.len()));
    }
    words
}

/// How a child process ended, as a phrase.
pub fn exit_cause(exit: &ExitCause) -> String {
    match exit {
        ExitCause::Done => "done".to_owned(),
        ExitCause::Failed { status, what } => {
            format!("the engine refused with status {status}: {}", cleaned(what, REASON_CHARS_MAX, false))
        }
        ExitCause::Crash { signal } => format!("crashed with {}", clean(signal)),
        ExitCause::Killed { by } if by == "unknown" => "killed; by whom is unknown".to_owned(),
        ExitCause::Killed { by } => format!("killed by {}", clean(by)),
        ExitCause::Timeout { phase, budget_ms } => {
            format!("timeout: the {} ran past its budget of {}", clean(phase), duration(*budget_ms))
        }
        ExitCause::Interrupted => "interrupted".to_owned(),
        ExitCause::NotReady { waited_ms } => format!("the device was not ready after {}", duration(*waited_ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_and_direction_marks_become_visible_text() {
        assert_eq!(clean("a\u{1b}[31mred\u{202e}x\u{0}"), "a\\u{1b}[31mred\\u{202e}x\\u{0}");
        assert_eq!(clean("two\nlines"), "two\\u{a}lines");
        assert_eq!(clean_lines("two\nlines\r"), "two\nlines\\u{d}");
    }

    #[test]
    fn a_name_of_ten_kilobytes_is_cut_and_says_so() {
        let shown = clean(&"x".repeat(10_000));
        assert_eq!(shown.chars().count(), NAME_CHARS_MAX + 1);
        assert!(shown.ends_with('…'));
    }

    #[test]
    fn numbers_carry_four_significant_digits_at_every_size() {
        let shown: Vec<String> =
            [0.0, 12.0, 12.3456, 1234.56, 0.012_344, -98.765, 1.5e9, 2e-7].iter().map(|v| number(*v)).collect();
        assert_eq!(shown, ["0", "12", "12.35", "1235", "0.01234", "-98.77", "1.500e9", "2.000e-7"]);
        assert_eq!(number(f64::INFINITY), "unbounded");
    }

    #[test]
    fn the_unit_is_that_of_the_table_else_read_off_the_end_of_the_name() {
        assert_eq!(unit_of("decode-tps@2048"), "token/s");
        assert_eq!(unit_of("ttft-ms@cold"), "ms");
        assert_eq!(unit_of("memory-growth-mb-per-h"), "MB/h");
        assert_eq!(unit_of("golden-match-ratio"), "ratio");
        assert_eq!(unit_of("imported-thing-tps"), "token/s");
    }

    #[test]
    fn changes_spans_and_sizes_read_naturally() {
        assert_eq!([change(0.95), change(1.0), change(75.0)], ["-5.0 %", "0.0 %", "+7400 %"]);
        assert_eq!(as_sentence("(n - 1) / Kullback"), "(n - 1) / Kullback.");
        assert_eq!([as_sentence("no end of it…"), as_sentence("")], ["No end of it…", ""]);
        assert_eq!([duration(850), duration(12_300), duration(250_000)], ["850 ms", "12.3 s", "4 min 10 s"]);
        assert_eq!([bytes(999), bytes(1_500_000)], ["999 B", "1.5 MB"]);
    }
}
