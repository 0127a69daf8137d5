//! Samples by device: every dot a sample, baseline above candidate, a bar at each median.

use super::axis::Axis;
use super::canvas::{self, Canvas, Edge, Key, Margins, Sign};
use super::ink::Ink;
use crate::error::Result;
use crate::report::text;

/// Height of a row, pixels.
const ROW_PX: u32 = 54;

/// Samples of one metric on several devices.
#[derive(Debug, Clone)]
pub struct StripPlot {
    /// Unit.
    pub unit: String,
    /// Whether there is a baseline.
    pub comparison: bool,
    /// One a device.
    pub rows: Vec<StripRow>,
}

/// One device's samples.
#[derive(Debug, Clone)]
pub struct StripRow {
    /// The device.
    pub label: String,
    /// Baseline samples.
    pub baseline: Vec<f64>,
    /// Candidate samples.
    pub candidate: Vec<f64>,
    /// Median of the baseline's observations.
    pub baseline_median: Option<f64>,
    /// Median of the candidate's observations.
    pub candidate_median: Option<f64>,
    /// What stands at the right of the row, for instance `2 INVALID`.
    pub note: String,
}

impl StripRow {
    /// What the row's values are relative to: the baseline where there is one.
    fn reference(&self) -> Option<f64> {
        self.baseline_median.or(self.candidate_median)
    }

    /// From a value to where it lies on the axis.
    fn scale(&self, relative: bool) -> impl Fn(f64) -> f64 + use<> {
        let reference = self.reference().filter(|_| relative);
        move |value| reference.map_or(value, |r| (value / r - 1.0) * 100.0)
    }
}

impl StripPlot {
    /// How many dots are drawn.
    pub fn points(&self) -> usize {
        self.rows.iter().map(|r| r.baseline.len() + r.candidate.len() + 4).sum()
    }

    /// Several devices are drawn relative to their own median: they differ from each other far more than within
    /// themselves. Only positive medians allow that.
    fn is_relative(&self) -> bool {
        self.rows.len() > 1 && self.rows.iter().filter_map(StripRow::reference).all(|r| r > 0.0)
    }

    /// Height in pixels, and the SVG body.
    pub(super) fn draw(&self) -> Result<(u32, String)> {
        let mut legend = vec![
            Key::new("candidate", Ink::Candidate.square(), Sign::Dot),
            Key::new("median", Ink::Text.plain(), Sign::Bar),
        ];
        if self.comparison {
            legend.insert(0, Key::new("baseline", Ink::Baseline.plain(), Sign::Dot));
        }
        let top = canvas::legend_px(&legend) + 6;
        let height = top + self.rows.len() as u32 * ROW_PX + 44;
        let margins = Margins { top, bottom: 44, left: 14, right: 14 };
        let relative = self.is_relative();
        let values = self.rows.iter().flat_map(|r| {
            let scale = r.scale(relative);
            r.baseline.iter().chain(&r.candidate).map(move |v| scale(*v))
        });
        let x = Axis::covering(values, false);
        let log = if x.is_log() { ", logarithmic" } else { "" };
        let name = match (relative, self.unit.as_str()) {
            (true, _) => "% from the device's own median".to_owned(),
            (false, unit) => format!("{unit}{log}"),
        };
        let rows = self.rows.len() as f64;
        let y = Axis::linear(0.0, rows.max(1.0));
        let body = canvas::figure(height, margins, x, y, &legend, |canvas| {
            canvas.x_axis(&name)?;
            for (position, row) in self.rows.iter().enumerate() {
                self.row(canvas, row, rows - position as f64, relative)?;
            }
            Ok(())
        })?;
        Ok((height, body))
    }

    /// Draws a row whose upper edge lies at `top`.
    fn row(&self, canvas: &mut Canvas, row: &StripRow, top: f64, relative: bool) -> Result<()> {
        let scale = row.scale(relative);
        let label = text::shortened(&row.label, 50 - row.note.chars().count().min(40));
        canvas.line_across(top, Ink::Grid.plain())?;
        canvas.text_at_edge(Edge::Left, top - 0.17, &label, Ink::Text)?;
        canvas.text_at_edge(Edge::Right, top - 0.17, &row.note, Ink::Faint)?;
        let lanes = [
            (&row.baseline, row.baseline_median, Ink::Baseline.plain(), top - 0.50),
            (&row.candidate, row.candidate_median, Ink::Candidate.square(), top - 0.80),
        ];
        for (values, median, pen, at) in lanes {
            canvas.dots(values.iter().map(|v| (scale(*v), at)), pen, 2.2)?;
            if let Some(median) = median.map(&scale) {
                canvas.line(&[(median, at - 0.15), (median, at + 0.15)], Ink::Text.plain(), 2.2)?;
            }
        }
        Ok(())
    }
}
