//! Plots as inline SVG, styled by the page. A figure is 400 pixels wide at every screen width, so that its text stays
//! legible on a phone; wide screens show several side by side.

mod axis;
mod canvas;
mod forest;
mod ink;
mod lines;
mod strip;
mod svg;

pub use forest::{ForestPlot, ForestRow};
pub use ink::{Ink, Mark, Pen};
pub use lines::{Band, Line, LinePlot};
pub use strip::{StripPlot, StripRow};

use crate::error::Result;
use std::fmt::Write as _;

/// Width of every figure, pixels.
pub const WIDTH_PX: u32 = 400;

/// Something to draw.
#[derive(Debug, Clone)]
pub enum Plot {
    /// Samples by device.
    Strip(StripPlot),
    /// Ratios with intervals by device.
    Forest(ForestPlot),
    /// Lines over a common axis.
    Lines(LinePlot),
}

impl Plot {
    /// How many points are drawn; figures are left out beyond a budget.
    pub fn points(&self) -> usize {
        match self {
            Self::Strip(plot) => plot.points(),
            Self::Forest(plot) => plot.points(),
            Self::Lines(plot) => plot.points(),
        }
    }

    /// The SVG element, with title and description for screen readers. `id` must be unique in the page and safe as an
    /// attribute.
    pub fn svg(&self, id: &str, title: &str, description: &str) -> Result<String> {
        let (height, body) = match self {
            Self::Strip(plot) => plot.draw()?,
            Self::Forest(plot) => plot.draw()?,
            Self::Lines(plot) => plot.draw()?,
        };
        let mut out = String::with_capacity(body.len() + 512);
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH_PX} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">"
        );
        svg::escape_into(&mut out, title);
        let _ = write!(out, "</title><desc id=\"{id}-d\">");
        svg::escape_into(&mut out, description);
        out.push_str("</desc>");
        out.push_str(&body);
        out.push_str("</svg>");
        Ok(out)
    }
}
