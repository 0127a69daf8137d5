//! Lines over a common axis: token latency, distributions, telemetry.

use super::axis::Axis;
use super::canvas::{self, Key, Margins, Sign};
use super::ink::Pen;
use crate::error::Result;
use crate::report::text;

/// Height of the plotting area, pixels.
const AREA_PX: u32 = 150;

/// Several lines.
#[derive(Debug, Clone)]
pub struct LinePlot {
    /// Name of the horizontal axis, with unit.
    pub x_name: String,
    /// Name of the vertical axis, with unit.
    pub y_name: String,
    /// Whether the vertical axis begins at 0.
    pub y_from_zero: bool,
    /// Whether the vertical axis stays linear however wide the values spread.
    pub y_linear: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line, perhaps in several parts, perhaps with a band.
#[derive(Debug, Clone)]
pub struct Line {
    /// What it is; lines with an empty label are not in the legend.
    pub label: String,
    /// Its look.
    pub pen: Pen,
    /// Parts between which there is nothing to show.
    pub parts: Vec<Vec<(f64, f64)>>,
    /// The middle of the values around it.
    pub band: Option<Band>,
}

/// An area around a line.
#[derive(Debug, Clone)]
pub struct Band {
    /// Its lower edge.
    pub lower: Vec<(f64, f64)>,
    /// Its upper edge.
    pub upper: Vec<(f64, f64)>,
}

impl LinePlot {
    /// How many points are drawn.
    pub fn points(&self) -> usize {
        let of = |line: &Line| {
            let band = line.band.as_ref().map_or(0, |b| b.lower.len() + b.upper.len());
            line.parts.iter().map(Vec::len).sum::<usize>() + band
        };
        self.lines.iter().map(of).sum()
    }

    /// Height in pixels, and the SVG body.
    pub(super) fn draw(&self) -> Result<(u32, String)> {
        let key = |line: &Line| Key::new(text::shortened(&line.label, 40), line.pen, Sign::Line);
        let legend: Vec<Key> = self.lines.iter().filter(|l| !l.label.is_empty()).map(key).collect();
        let top = canvas::legend_px(&legend) + 28;
        let height = top + AREA_PX + 44;
        let margins = Margins { top, bottom: 44, left: 50, right: 12 };
        let bands = || self.lines.iter().filter_map(|l| l.band.as_ref());
        let points = || {
            let lines = self.lines.iter().flat_map(|l| l.parts.iter().flatten());
            lines.chain(bands().flat_map(|b| b.lower.iter().chain(&b.upper)))
        };
        let (x_low, x_high) = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.0), h.max(p.0)));
        let x = if x_low < x_high { Axis::linear(x_low, x_high) } else { Axis::covering(points().map(|p| p.0), false) };
        let y = match self.y_linear {
            true => Axis::covering_linearly(points().map(|p| p.1), self.y_from_zero),
            false => Axis::covering(points().map(|p| p.1), self.y_from_zero),
        };
        let y_name = if y.is_log() { format!("{}, logarithmic", self.y_name) } else { self.y_name.clone() };
        let body = canvas::figure(height, margins, x, y, &legend, |canvas| {
            canvas.x_axis(&self.x_name)?;
            canvas.y_axis(&y_name)?;
            for line in &self.lines {
                if let Some(band) = &line.band {
                    canvas.band(&band.lower, &band.upper, line.pen)?;
                }
            }
            for line in &self.lines {
                for part in &line.parts {
                    match part.as_slice() {
                        [one] => canvas.dots(std::iter::once(*one), line.pen, 2.0)?,
                        part => canvas.line(part, line.pen, 1.8)?,
                    }
                }
            }
            Ok(())
        })?;
        Ok((height, body))
    }
}
