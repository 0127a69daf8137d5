//! Telemetry of a device over its whole run: temperature, clocks, memory.

use super::Context;
use crate::report::plot::{Ink, Line, LinePlot, Plot};
use crate::report::text;
use crate::report::view::FigureView;
use crate::run::DeviceData;
use farmgate_engine::protocol::{Arm, Telemetry};
use std::collections::BTreeMap;

/// Lines in one figure, at most.
const LINES_MAX: usize = 4;
/// Points of one figure, at most.
const POINTS_MAX: usize = 480;

/// Points of a line, in seconds and the line's unit.
type Points = Vec<(f64, f64)>;

/// Which value stands for several that are drawn as one.
#[derive(Clone, Copy)]
enum Keep {
    Highest,
    Lowest,
}

/// Adds a figure for each kind of telemetry there is, and a remark for each there is not.
pub fn figures(
    context: &mut Context,
    id: &str,
    device: &DeviceData,
    figures: &mut Vec<FigureView>,
    remarks: &mut Vec<String>,
) {
    let mut records: Vec<(u64, &Telemetry)> =
        device.cells.iter().flat_map(|c| c.telemetry.iter().map(|(at, t)| (*at, t))).collect();
    if records.is_empty() {
        if device.fingerprint.is_some() {
            remarks.push("no telemetry was recorded on this device".into());
        }
        return;
    }
    records.sort_by_key(|(at, _)| *at);
    let start = records[0].0;
    let seconds = |at: u64| (at - start) as f64 / 1e6;
    match temperature(id, &records, seconds) {
        Some(figure) => context.admit(figures, figure),
        None => remarks.push("no temperature sensor on this device".into()),
    }
    match clocks(id, &records, seconds) {
        Some(figure) => context.admit(figures, figure),
        None => remarks.push("no clock frequencies can be read on this device".into()),
    }
    match memory(id, device, seconds) {
        Some(figure) => context.admit(figures, figure),
        None => remarks.push("no course of memory: fewer than two records in any process".into()),
    }
}

fn temperature(id: &str, records: &[(u64, &Telemetry)], seconds: impl Fn(u64) -> f64) -> Option<FigureView> {
    let mut sensors: BTreeMap<&str, Points> = BTreeMap::new();
    for (at, record) in records {
        for reading in &record.temperatures {
            sensors.entry(&reading.sensor).or_default().push((seconds(*at), reading.celsius.get()));
        }
    }
    let hottest = |points: &Points| points.iter().fold(f64::NEG_INFINITY, |hot, p| hot.max(p.1));
    let mut sensors: Vec<(&str, Points)> = sensors.into_iter().collect();
    sensors.sort_by(|a, b| hottest(&b.1).total_cmp(&hottest(&a.1)));
    let found = sensors.len();
    let first = sensors
        .first()
        .map(|(name, points)| format!("{} up to {}", text::clean(name), text::quantity(hottest(points), "°C")))?;
    let lines = named_lines(sensors.into_iter().map(|(name, points)| (text::clean(name), points)), Keep::Highest);
    let more = if found > LINES_MAX {
        format!(" The {LINES_MAX} hottest of {found} sensors are drawn.")
    } else {
        String::new()
    };
    Some(FigureView {
        id: format!("{id}-heat"),
        title: "Temperature over time".into(),
        description: format!("Hottest: {first}."),
        caption: format!("Hottest: {first}.{more}"),
        plot: plot("°C", false, lines),
    })
}

fn clocks(id: &str, records: &[(u64, &Telemetry)], seconds: impl Fn(u64) -> f64) -> Option<FigureView> {
    let mut clusters: BTreeMap<u32, Points> = BTreeMap::new();
    for (at, record) in records {
        for clock in &record.clocks {
            clusters.entry(clock.core).or_default().push((seconds(*at), clock.clock_khz as f64 / 1e6));
        }
    }
    if clusters.is_empty() {
        return None;
    }
    let found = clusters.len();
    let words: Vec<String> = clusters
        .iter()
        .take(LINES_MAX)
        .map(|(core, points)| {
            let (low, high) = points.iter().fold((f64::INFINITY, 0.0_f64), |(l, h), p| (l.min(p.1), h.max(p.1)));
            match low == high {
                true => format!("core {core}: steady at {}", text::quantity(high, "GHz")),
                false => format!("core {core}: {} to {}", text::number(low), text::quantity(high, "GHz")),
            }
        })
        .collect();
    let more = if found > LINES_MAX { format!(" {LINES_MAX} of {found} clusters are drawn.") } else { String::new() };
    let lines =
        named_lines(clusters.into_iter().map(|(core, p)| (format!("core {core} and its cluster"), p)), Keep::Lowest);
    Some(FigureView {
        id: format!("{id}-clock"),
        title: "Clock over time".into(),
        description: format!("{}.", words.join("; ")),
        caption: format!("{}.{more}", words.join("; ")),
        plot: plot("GHz", true, lines),
    })
}

/// One line an arm, with a gap between processes.
fn memory(id: &str, device: &DeviceData, seconds: impl Fn(u64) -> f64) -> Option<FigureView> {
    let mut arms: BTreeMap<Arm, Vec<Points>> = BTreeMap::new();
    for cell in &device.cells {
        let points: Points = cell
            .telemetry
            .iter()
            .filter_map(|(at, t)| Some((seconds(*at), t.memory.rss_bytes? as f64 / 1e6)))
            .collect();
        if !cell.telemetry.is_empty() {
            let processes = arms.entry(cell.arm).or_default();
            // a single record is that of the start, before the model is read
            processes.extend((points.len() > 1).then_some(points));
        }
    }
    let parts: usize = arms.values().map(Vec::len).sum();
    let each = (POINTS_MAX / parts.max(1)).max(2);
    let mut words = Vec::new();
    let lines: Vec<Line> = arms
        .into_iter()
        .filter_map(|(arm, cells)| {
            if cells.is_empty() {
                words.push(format!("{} not drawn, its processes ended before a second record", arm.as_str()));
                return None;
            }
            let peak = cells.iter().flatten().fold(0.0_f64, |high, p| high.max(p.1));
            words.push(format!("{} up to {}", arm.as_str(), text::quantity(peak, "MB")));
            let pen = match arm {
                Arm::Baseline => Ink::Baseline.plain(),
                Arm::Candidate => Ink::Candidate.square(),
            };
            let parts = cells.into_iter().map(|points| bucketed(points, each, Keep::Highest)).collect();
            Some(Line { label: arm.as_str().to_owned(), pen, parts, band: None })
        })
        .collect();
    if lines.is_empty() {
        return None;
    }
    Some(FigureView {
        id: format!("{id}-memory"),
        title: "Resident memory over time".into(),
        description: format!("{}.", words.join("; ")),
        caption: format!("{}. Each piece of a line is one process.", words.join("; ")),
        plot: plot("MB", true, lines),
    })
}

fn named_lines(lines: impl Iterator<Item = (String, Points)>, keep: Keep) -> Vec<Line> {
    lines
        .take(LINES_MAX)
        .enumerate()
        .map(|(position, (label, points))| Line {
            label,
            pen: Ink::line(position),
            parts: vec![bucketed(points, POINTS_MAX / LINES_MAX, keep)],
            band: None,
        })
        .collect()
}

/// At most `count` points; of each bucket the highest or lowest is kept, so that no extreme is lost.
fn bucketed(points: Points, count: usize, keep: Keep) -> Points {
    if points.len() <= count {
        return points;
    }
    let size = points.len().div_ceil(count);
    let extreme = |bucket: &[(f64, f64)]| {
        bucket.iter().copied().reduce(|kept, point| {
            let better = match keep {
                Keep::Highest => point.1 > kept.1,
                Keep::Lowest => point.1 < kept.1,
            };
            if better { point } else { kept }
        })
    };
    points.chunks(size).filter_map(extreme).collect()
}

fn plot(y_name: &str, y_from_zero: bool, lines: Vec<Line>) -> Plot {
    Plot::Lines(LinePlot {
        x_name: "time since the first record, s".into(),
        y_name: y_name.into(),
        y_from_zero,
        y_linear: true,
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_one_hot_moment() {
        let mut points: Points = (0..10_000).map(|i| (f64::from(i), 40.0)).collect();
        points[7_777].1 = 93.0;
        let thin = bucketed(points, 100, Keep::Highest);
        assert!(thin.len() <= 100);
        assert!(thin.contains(&(7_777.0, 93.0)));
    }
}
