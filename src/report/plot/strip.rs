//! Samples by device: every dot a sample, baseline above candidate, a bar at each median.

use super::axis::Axis;
use super::canvas::{self, Canvas, Edge, Margins};
use super::ink::{Ink, Pen};
use crate::error::Result;
use crate::report::text;

/// Height of a row, pixels.
const ROW_PX: u32 = 50;

/// Samples of one metric on several devices.
#[derive(Debug, Clone)]
pub struct StripPlot {
    /// Unit; empty for ratios.
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

impl StripPlot {
    /// How many dots are drawn.
    pub fn points(&self) -> usize {
        self.rows.iter().map(|r| r.baseline.len() + r.candidate.len() + 4).sum()
    }

    /// Height in pixels, and the SVG body.
    pub(super) fn draw(&self) -> Result<(u32, String)> {
        let legend: Vec<(String, Pen)> = match self.comparison {
            true => vec![("baseline".into(), Ink::Baseline.plain()), ("candidate".into(), Ink::Candidate.square())],
            false => vec![("candidate".into(), Ink::Candidate.square())],
        };
        let top = canvas::legend_px(&legend) + 6;
        let height = top + self.rows.len() as u32 * ROW_PX + 42;
        let margins = Margins { top, bottom: 42, left: 8, right: 8 };
        let values = self.rows.iter().flat_map(|r| r.baseline.iter().chain(&r.candidate).copied());
        let x = Axis::covering(values, false);
        let log = if x.is_log() { ", logarithmic" } else { "" };
        let name = if self.unit.is_empty() { format!("ratio{log}") } else { format!("{}{log}", self.unit) };
        let rows = self.rows.len() as f64;
        let y = Axis::linear(0.0, rows.max(1.0));
        let body = canvas::figure(height, margins, x, y, &legend, |canvas| {
            canvas.x_axis(&name)?;
            for (position, row) in self.rows.iter().enumerate() {
                self.row(canvas, row, rows - position as f64)?;
            }
            Ok(())
        })?;
        Ok((height, body))
    }

    /// Draws a row whose upper edge lies at `top`.
    fn row(&self, canvas: &mut Canvas, row: &StripRow, top: f64) -> Result<()> {
        let label = text::shortened(&row.label, 34);
        canvas.line_across(top, Ink::Grid.plain())?;
        canvas.text_at_edge(Edge::Left, top - 0.17, &label, Ink::Text)?;
        canvas.text_at_edge(Edge::Right, top - 0.17, &row.note, Ink::Faint)?;
        let lanes = [
            (&row.baseline, row.baseline_median, Ink::Baseline.plain(), top - 0.50),
            (&row.candidate, row.candidate_median, Ink::Candidate.square(), top - 0.80),
        ];
        for (values, median, pen, at) in lanes {
            canvas.dots(values.iter().map(|v| (*v, at)), pen, 2.2)?;
            if let Some(median) = median {
                canvas.line(&[(median, at - 0.15), (median, at + 0.15)], Ink::Text.plain(), 2.2)?;
            }
        }
        Ok(())
    }
}
