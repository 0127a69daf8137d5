//! Numbers and counts in sentences.

use farmgate_engine::protocol::ReasonCode;
use std::collections::BTreeMap;

/// A number with about four significant digits.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size == 0.0 || size >= 1000.0 => 0,
        _ if size >= 100.0 => 1,
        _ if size >= 10.0 => 2,
        _ if size >= 0.1 => 3,
        _ if size >= 0.001 => 5,
        _ => return format!("{value:.2e}"),
    };
    if size >= 1e15 { format!("{value:.3e}") } else { format!("{value:.decimals$}") }
}

/// A limit as it was typed: no digits added, none lost.
pub fn typed(value: f64) -> String {
    value.to_string()
}

/// A number with its unit; ratios have none.
pub fn with_unit(text: &str, unit: &str) -> String {
    if matches!(unit, "ratio" | "perplexity") { text.to_owned() } else { format!("{text} {unit}") }
}

/// `1 pair`, `3 pairs`.
pub fn count(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// `timeout x 2, not-cool x 1`: the most frequent first.
pub fn reasons(counts: &BTreeMap<ReasonCode, usize>) -> String {
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by_key(|(code, n)| (std::cmp::Reverse(**n), **code));
    sorted.iter().map(|(code, n)| format!("{} x {n}", code.as_str())).collect::<Vec<_>>().join(", ")
}

/// A factor given as a natural logarithm, as a change in per cent or, when large, as a factor.
pub fn factor(log: f64) -> String {
    match log.exp() {
        f if f.is_infinite() => "beyond any number".to_owned(),
        f if f >= 3.0 => format!("{} times", number(f)),
        f => format!("{:+.1} %", (f - 1.0) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits_and_stay_short_at_any_size() {
        for (value, shown) in [
            (0.0, "0"),
            (1234.56, "1235"),
            (123.456, "123.5"),
            (12.3456, "12.35"),
            (0.98765, "0.988"),
            (0.012345, "0.01235"),
            (1e-9, "1.00e-9"),
            (-2.5, "-2.500"),
            (1e300, "1.000e300"),
        ] {
            assert_eq!(number(value), shown);
        }
        assert_eq!(with_unit(&typed(12.0), "token/s"), "12 token/s");
        assert_eq!(with_unit("1", "ratio"), "1");
        assert_eq!(factor(0.02), "+2.0 %");
        assert_eq!(factor(100f64.ln()), "100.0 times");
    }

    #[test]
    fn reasons_are_counted_the_most_frequent_first() {
        let counts = BTreeMap::from([(ReasonCode::NotCool, 1), (ReasonCode::Timeout, 2)]);
        assert_eq!(reasons(&counts), "timeout x 2, not-cool x 1");
    }
}
