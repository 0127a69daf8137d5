//! Axes with round ticks, linear or logarithmic. plotters places everything; the ticks are ours, since labels must fit
//! a phone.

use crate::report::text;

/// A scale from `low` to `high`; on a logarithmic one positions are decimal logarithms.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// An axis that shows all finite `values`, with a margin; logarithmic when they are positive and span a factor
    /// of 30 or more. `zero` makes it begin at 0 unless it is logarithmic.
    pub fn covering(values: impl Iterator<Item = f64>, zero: bool) -> Self {
        let (low, high) = ends(values);
        if low > 0.0 && high / low >= 30.0 {
            return Self { low: low.log10() - 0.05, high: high.log10() + 0.05, log: true };
        }
        Self::with_margin(low, high, zero)
    }

    /// The same, but never logarithmic.
    pub fn covering_linearly(values: impl Iterator<Item = f64>, zero: bool) -> Self {
        let (low, high) = ends(values);
        Self::with_margin(low, high, zero)
    }

    fn with_margin(mut low: f64, mut high: f64, zero: bool) -> Self {
        if zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        // halves, so that the difference of two huge numbers stays finite
        let half = (high / 2.0 - low / 2.0).max(f64::MIN_POSITIVE);
        let floor = low.abs().max(high.abs()) * 0.005;
        let margin = (half * 0.1).max(floor).max(1e-9);
        let low = if zero && low == 0.0 { 0.0 } else { low - margin };
        let high = if zero && high == 0.0 { 0.0 } else { high + margin };
        Self { low: low.max(f64::MIN / 4.0), high: high.min(f64::MAX / 4.0), log: false }
    }

    /// A linear axis with these ends.
    pub fn linear(low: f64, high: f64) -> Self {
        Self { low, high, log: false }
    }

    /// Ends, as positions.
    pub fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }

    /// Where a value lies; values beyond the ends lie at the ends.
    pub fn position(&self, value: f64) -> f64 {
        let position = match self.log {
            true => value.max(f64::MIN_POSITIVE).log10(),
            false => value,
        };
        position.clamp(self.low, self.high)
    }

    /// Whether a value lies between the ends.
    pub fn shows(&self, value: f64) -> bool {
        let position = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        (self.low..=self.high).contains(&position)
    }

    /// Whether it is logarithmic.
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// At most `count` round values with their labels, by position.
    pub fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        if self.log { self.decades(count) } else { self.steps(count) }
    }

    fn steps(&self, count: usize) -> Vec<(f64, String)> {
        let span = self.high - self.low;
        let raw = span / count.max(1) as f64;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(10.0 * power);
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let first = (self.low / step).ceil();
        (0..=count)
            .map(|i| (first + i as f64) * step)
            .filter(|v| v.is_finite() && *v <= self.high + step * 1e-6)
            .map(|v| (v, tick_label(v, decimals)))
            .collect()
    }

    fn decades(&self, count: usize) -> Vec<(f64, String)> {
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        for factors in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
            let ticks: Vec<(f64, String)> = decades
                .clone()
                .flat_map(|d| factors.iter().map(move |f| f * 10f64.powi(d)))
                .filter(|v| self.shows(*v))
                .map(|v| (v.log10(), round_label(v)))
                .collect();
            if ticks.len() <= count {
                return ticks;
            }
        }
        let all: Vec<i32> = decades.collect();
        let every = all.len().div_ceil(count.max(1));
        all.iter()
            .step_by(every)
            .map(|d| 10f64.powi(*d))
            .filter(|v| self.shows(*v))
            .map(|v| (v.log10(), round_label(v)))
            .collect()
    }
}

/// The lowest and the highest finite value, 0 and 1 without any.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low > high { (0.0, 1.0) } else { (low, high) }
}

/// A value of one digit without zeros that say nothing.
fn round_label(value: f64) -> String {
    let shown = text::number(value);
    match shown.contains('.') && !shown.contains('e') {
        true => shown.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => shown,
    }
}

fn tick_label(value: f64, decimals: usize) -> String {
    if value.abs() >= 1e6 { text::number(value) } else { format!("{:.decimals$}", value + 0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_inside_the_axis_and_few() {
        for (low, high) in [(0.0, 1.0), (9.7, 10.3), (-6.0, 4.0), (0.0, 12_345.0), (1e-6, 3e-6)] {
            let axis = Axis::covering([low, high].into_iter(), false);
            let ticks = axis.ticks(5);
            assert!((2..=6).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
            assert!(ticks.iter().all(|(at, _)| axis.range().contains(at)), "{low}..{high}: {ticks:?}");
        }
    }

    #[test]
    fn a_wide_span_becomes_logarithmic() {
        let axis = Axis::covering([0.5, 700.0].into_iter(), true);
        assert!(axis.is_log());
        let labels: Vec<String> = axis.ticks(5).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["1", "10", "100"]);
    }

    #[test]
    fn no_value_one_value_and_huge_values_still_make_an_axis() {
        for values in [vec![], vec![7.0], vec![0.0], vec![f64::MIN, f64::MAX], vec![f64::NAN, f64::INFINITY]] {
            let axis = Axis::covering(values.iter().copied(), false);
            let range = axis.range();
            assert!(range.start < range.end && (range.end - range.start).is_finite(), "{values:?}: {axis:?}");
            let _ = axis.ticks(5);
        }
    }
}
