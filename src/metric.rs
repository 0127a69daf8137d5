//! Metrics: one meaning each. A name ends in its unit; after `@` stands a qualifier, for instance the depth.

use crate::error::{Error, Result, nearest};

/// Which way is better. Data, so that no rule has to guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// More is better, for instance token/s.
    HigherIsBetter,
    /// Less is better, for instance milliseconds.
    LowerIsBetter,
    /// Neither; it explains other metrics.
    Neutral,
}

/// A metric's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricKind {
    /// Name without qualifier.
    pub name: &'static str,
    /// Unit as shown to people.
    pub unit: &'static str,
    /// Which way is better.
    pub direction: Direction,
    /// What it is.
    pub summary: &'static str,
    /// Whether one bad observation condemns: a share that must hold every time is judged by its worst value, not its median.
    pub worst_counts: bool,
}

use Direction::{HigherIsBetter, LowerIsBetter, Neutral};

const fn kind(name: &'static str, unit: &'static str, direction: Direction, summary: &'static str) -> MetricKind {
    MetricKind { name, unit, direction, summary, worst_counts: false }
}

/// All metrics.
pub const METRICS: &[MetricKind] = &[
    kind("load-cold-ms", "ms", LowerIsBetter, "process start to ready, model evicted from the page cache"),
    kind("load-warm-ms", "ms", LowerIsBetter, "process start to ready, model in the page cache"),
    kind("ttft-ms", "ms", LowerIsBetter, "time from the request text to the first token"),
    kind("prefill-tps", "token/s", HigherIsBetter, "prompt tokens / time from first batch to its logits"),
    kind("decode-tps", "token/s", HigherIsBetter, "tokens after the first / time from the first to the last token"),
    kind("itl-p50-ms", "ms", LowerIsBetter, "time between tokens, median"),
    kind("itl-p95-ms", "ms", LowerIsBetter, "time between tokens, 95th percentile"),
    kind("itl-p99-ms", "ms", LowerIsBetter, "time between tokens, 99th percentile"),
    kind("itl-max-ms", "ms", LowerIsBetter, "time between tokens, longest"),
    kind("tail-ratio", "ratio", HigherIsBetter, "decode speed at the longest context / at depth 0"),
    kind("mbu", "ratio", HigherIsBetter, "bytes read for decoding / this device's own read bandwidth"),
    kind("peak-rss-mb", "MB", LowerIsBetter, "highest resident memory of the cell's process"),
    kind("peak-pss-mb", "MB", LowerIsBetter, "highest proportional memory of the cell's process"),
    kind("memory-growth-mb-per-h", "MB/h", LowerIsBetter, "slope of memory over a soak"),
    kind("temperature-max-c", "°C", LowerIsBetter, "hottest trusted sensor"),
    kind("time-to-throttle-s", "s", HigherIsBetter, "until decode stays below 90 % of its cool start"),
    kind("throttle-ratio", "ratio", HigherIsBetter, "decode speed of the last 5 min / the first cool minute"),
    kind("clock-residency", "ratio", Neutral, "mean clock / highest clock, by cluster"),
    kind("energy-j-per-token", "J/token", LowerIsBetter, "energy of the interval / tokens"),
    kind("power-w", "W", LowerIsBetter, "mean power of the interval"),
    kind("restart-ms", "ms", LowerIsBetter, "kill to first token after a fresh start"),
    kind("agent-loop-ms", "ms", LowerIsBetter, "a whole loop of short rounds that share a prefix"),
    kind("ppl", "perplexity", LowerIsBetter, "perplexity"),
    kind("kld-mean", "nat", LowerIsBetter, "mean Kullback-Leibler divergence from the reference"),
    kind("kld-p99", "nat", LowerIsBetter, "99th percentile of the Kullback-Leibler divergence from the reference"),
    kind("top1-agreement", "ratio", HigherIsBetter, "share of positions with the reference's most likely token"),
    kind("repetition-rate", "ratio", LowerIsBetter, "share of outputs that fall into a loop"),
    kind("format-pass-rate", "ratio", HigherIsBetter, "share of outputs that satisfy their checked instruction"),
    kind("length-stability", "ratio", HigherIsBetter, "spread of answer length against the baseline"),
    MetricKind {
        worst_counts: true,
        ..kind("golden-match-ratio", "ratio", HigherIsBetter, "share of recorded answers that were given again")
    },
];

/// The name without its qualifier.
pub fn base(metric: &str) -> &str {
    metric.split('@').next().unwrap_or(metric)
}

/// What stands after `@`.
pub fn qualifier(metric: &str) -> Option<&str> {
    metric.split_once('@').map(|(_, qualifier)| qualifier)
}

/// The definition of a metric, named with or without qualifier.
pub fn find(metric: &str) -> Option<&'static MetricKind> {
    METRICS.iter().find(|kind| kind.name == base(metric))
}

/// As [`find`].
///
/// # Errors
/// An unknown metric, with the nearest known one.
pub fn require(metric: &str) -> Result<&'static MetricKind> {
    find(metric).ok_or_else(|| {
        let error = Error::usage(format!("unknown metric `{}`", metric.escape_debug()));
        match nearest(base(metric), METRICS.iter().map(|k| k.name)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("ARCHITECTURE.md and scenarios/README.md list the metrics"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_end_in_their_unit() {
        for (i, kind) in METRICS.iter().enumerate() {
            assert!(METRICS[..i].iter().all(|other| other.name != kind.name), "{} stands twice", kind.name);
            let suffix = match kind.unit {
                "ms" => "-ms",
                "s" => "-s",
                "token/s" => "-tps",
                "MB" => "-mb",
                "MB/h" => "-mb-per-h",
                "°C" => "-c",
                "W" => "-w",
                "J/token" => "-j-per-token",
                _ => "",
            };
            assert!(kind.name.ends_with(suffix), "{} has the unit {}", kind.name, kind.unit);
        }
    }

    #[test]
    fn a_qualifier_does_not_change_the_metric() {
        assert_eq!(find("decode-tps@2048"), find("decode-tps"));
        assert_eq!((base("ttft-ms@cold"), qualifier("ttft-ms@cold")), ("ttft-ms", Some("cold")));
        assert!(require("decode-tbs").unwrap_err().to_string().contains("did you mean `decode-tps`?"));
    }
}
