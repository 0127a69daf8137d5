//! Ratios of candidate to baseline by device: the pairs as dots, the estimate with its interval, and the limit.

use super::axis::Axis;
use super::canvas::{self, Canvas, Edge, Key, Margins, Sign};
use super::ink::Ink;
use crate::error::Result;
use crate::report::{order, text};

/// Height of a row, pixels.
const ROW_PX: u32 = 48;

/// Changes of one metric on several devices.
#[derive(Debug, Clone)]
pub struct ForestPlot {
    /// The limit as a ratio, when the policy has one.
    pub limit: Option<f64>,
    /// What the better side is called, for instance `lower is better`; may be empty.
    pub better: &'static str,
    /// One a device.
    pub rows: Vec<ForestRow>,
}

/// One device's change.
#[derive(Debug, Clone)]
pub struct ForestRow {
    /// The device.
    pub label: String,
    /// Ratio of each pair.
    pub pairs: Vec<f64>,
    /// Estimate with lower and upper bound, as ratios; bounds may be infinite.
    pub estimate: Option<(f64, f64, f64)>,
    /// Median of the pairs, shown when no rule made an estimate.
    pub median: Option<f64>,
    /// What stands at the right of the row, for instance `-5.1 % FAIL`.
    pub note: String,
    /// Ink of the estimate.
    pub ink: Ink,
}

impl ForestPlot {
    /// How many marks are drawn.
    pub fn points(&self) -> usize {
        self.rows.iter().map(|r| r.pairs.len() + 8).sum()
    }

    /// Height in pixels, and the SVG body.
    pub(super) fn draw(&self) -> Result<(u32, String)> {
        let mut legend = vec![Key::new("a pair", Ink::Faint.plain(), Sign::Dot)];
        let estimated = |row: &ForestRow| row.estimate.is_some();
        if self.rows.iter().any(estimated) {
            let inks: Vec<Ink> = self.rows.iter().filter(|r| estimated(r)).map(|r| r.ink).collect();
            let ink = if inks.iter().all(|i| *i == inks[0]) { inks[0] } else { Ink::Text };
            legend.push(Key::new("interval", ink.plain(), Sign::Interval));
        }
        if self.rows.iter().any(|r| !estimated(r) && r.median.is_some()) {
            legend.push(Key::new("median", Ink::Text.plain(), Sign::Bar));
        }
        if let Some(limit) = self.limit {
            legend.push(Key::new(format!("limit {}", text::change(limit)), Ink::Limit.square(), Sign::Line));
        }
        let top = canvas::legend_px(&legend) + 6;
        let height = top + self.rows.len() as u32 * ROW_PX + 44;
        let margins = Margins { top, bottom: 44, left: 14, right: 14 };
        let rows = self.rows.len() as f64;
        let y = Axis::linear(0.0, rows.max(1.0));
        let name = match self.better {
            "" => "candidate against baseline, %".to_owned(),
            better => format!("candidate against baseline, %; {better}"),
        };
        let body = canvas::figure(height, margins, self.axis(), y, &legend, |canvas| {
            canvas.x_axis(&name)?;
            canvas.line(&[(0.0, 0.0), (0.0, rows)], Ink::Axis.plain(), 1.0)?;
            if let Some(limit) = self.limit {
                canvas.line(&[(percent(limit), 0.0), (percent(limit), rows)], Ink::Limit.square(), 1.6)?;
            }
            for (position, row) in self.rows.iter().enumerate() {
                Self::row(canvas, row, rows - position as f64)?;
            }
            Ok(())
        })?;
        Ok((height, body))
    }

    /// Covers estimates, limit, no change, and the middle of the pairs; a stray pair lies at the edge.
    fn axis(&self) -> Axis {
        let mut values = vec![0.0];
        values.extend(self.limit.map(percent));
        for row in &self.rows {
            let pairs = order::sorted(row.pairs.iter().map(|r| percent(*r)));
            values.extend([order::quantile(&pairs, 0.05), order::quantile(&pairs, 0.95)].into_iter().flatten());
            values.extend(row.estimate.map(|(point, ..)| percent(point)));
            values.extend(row.median.map(percent));
        }
        // neither an interval without a bound nor a stray pair must press everything else into a corner
        let reach = values.iter().fold(1.0_f64, |reach, v| reach.max(v.abs())).min(400.0) * 4.0;
        let pairs = self.rows.iter().flat_map(|r| r.pairs.iter().map(|p| percent(*p).clamp(-reach / 2.0, reach / 2.0)));
        let bounds = self.rows.iter().filter_map(|r| r.estimate).flat_map(|(_, low, high)| [low, high]);
        let bounds: Vec<f64> = bounds.map(|bound| percent(bound).clamp(-reach, reach)).collect();
        // what matters most stays on the axis however far off it lies
        let centres = self.rows.iter().filter_map(|r| r.estimate.map_or(r.median, |(point, ..)| Some(point)));
        let most = centres.map(percent).fold(400.0_f64, f64::max).min(1e6);
        // with 0 among the values the axis is never logarithmic
        Axis::covering(values.iter().copied().chain(bounds).chain(pairs).map(|v| v.clamp(-100.0, most)), false)
    }

    /// Whether a pair or a bound lies beyond the axis.
    pub fn is_cut(&self) -> bool {
        let axis = self.axis();
        self.rows.iter().any(|row| {
            let bounds = row.estimate.iter().flat_map(|(_, low, high)| [*low, *high]);
            row.pairs.iter().copied().chain(bounds).any(|r| !axis.shows(percent(r)))
        })
    }

    /// Draws a row whose upper edge lies at `top`.
    fn row(canvas: &mut Canvas, row: &ForestRow, top: f64) -> Result<()> {
        canvas.line_across(top, Ink::Grid.plain())?;
        canvas.text_at_edge(Edge::Left, top - 0.2, &text::shortened(&row.label, 30), Ink::Text)?;
        canvas.text_at_edge(Edge::Right, top - 0.2, &row.note, row.ink)?;
        let at = top - 0.66;
        canvas.dots(row.pairs.iter().map(|r| (percent(*r), at - 0.17)), Ink::Faint.plain(), 1.8)?;
        if let Some((point, low, high)) = row.estimate {
            let (low, high) = (percent(low), percent(high));
            canvas.line(&[(low, at), (high, at)], row.ink.plain(), 2.4)?;
            for bound in [low, high] {
                if !canvas.shows_x(bound) {
                    continue;
                }
                canvas.line(&[(bound, at - 0.12), (bound, at + 0.12)], row.ink.plain(), 1.6)?;
            }
            canvas.dots([(percent(point), at)].into_iter(), row.ink.plain(), 4.2)?;
        } else if let Some(median) = row.median {
            canvas.line(&[(percent(median), at - 0.28), (percent(median), at + 0.08)], Ink::Text.plain(), 2.0)?;
        }
        Ok(())
    }
}

fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}
