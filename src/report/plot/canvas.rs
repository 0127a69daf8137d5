//! The common ground of all plots: a plotters chart on a [`ClassedSvg`], with ticks, labels, legends and dots.

use super::WIDTH_PX;
use super::axis::Axis;
use super::ink::{Ink, Pen};
use super::svg::{ClassedSvg, UNITS};
use crate::error::{Error, Result};
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, ShapeStyle, TextStyle};

type Root<'a> = DrawingArea<ClassedSvg<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, ClassedSvg<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Width of a character of the figures' text, pixels, estimated: no font is read.
const CHAR_PX: f64 = 7.4;
/// Height of a line of the legend, pixels.
const LEGEND_LINE_PX: u32 = 20;

/// Room around the chart, pixels.
#[derive(Debug, Clone, Copy)]
pub struct Margins {
    /// Above.
    pub top: u32,
    /// Below.
    pub bottom: u32,
    /// To the left.
    pub left: u32,
    /// To the right.
    pub right: u32,
}

/// What an entry of the legend looks like: as it does in the chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A line.
    Line,
    /// Dots without a line.
    Dot,
    /// A dot on a line with end caps.
    Interval,
    /// An upright bar.
    Bar,
}

/// An entry of the legend.
#[derive(Debug, Clone)]
pub struct Key {
    /// What it is.
    pub label: String,
    /// Its look.
    pub pen: Pen,
    /// Its form.
    pub sign: Sign,
}

impl Key {
    /// An entry.
    pub fn new(label: impl Into<String>, pen: Pen, sign: Sign) -> Self {
        Self { label: label.into(), pen, sign }
    }
}

/// A side of the chart.
#[derive(Debug, Clone, Copy)]
pub enum Edge {
    /// Left.
    Left,
    /// Right.
    Right,
}

/// A chart being drawn.
pub struct Canvas<'a, 'b> {
    chart: Chart<'a, 'b>,
    x: Axis,
    y: Axis,
}

/// Draws a figure of the given height: makes the chart, calls `draw`, returns the SVG body.
pub fn figure(
    height_px: u32,
    margins: Margins,
    x: Axis,
    y: Axis,
    legend: &[Key],
    draw: impl FnOnce(&mut Canvas) -> Result<()>,
) -> Result<String> {
    let mut out = String::new();
    {
        let root = ClassedSvg::new(&mut out, WIDTH_PX, height_px).into_drawing_area();
        draw_legend(&root, legend)?;
        let unit = UNITS as u32;
        let chart = ChartBuilder::on(&root)
            .margin_top(margins.top * unit)
            .margin_bottom(margins.bottom * unit)
            .margin_left(margins.left * unit)
            .margin_right(margins.right * unit)
            .build_cartesian_2d(x.range(), y.range())
            .map_err(bug)?;
        draw(&mut Canvas { chart, x, y })?;
        root.present().map_err(bug)?;
    }
    Ok(out)
}

/// Height that a legend needs, pixels.
pub fn legend_px(legend: &[Key]) -> u32 {
    place_legend(legend).last().map_or(0, |(_, y)| *y as u32 + LEGEND_LINE_PX)
}

fn place_legend(legend: &[Key]) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (4.0, 2.0);
    let mut places = Vec::with_capacity(legend.len());
    for key in legend {
        let width = 30.0 + CHAR_PX * key.label.chars().count() as f64 + 14.0;
        if x > 4.0 && x + width > f64::from(WIDTH_PX) {
            (x, y) = (4.0, y + f64::from(LEGEND_LINE_PX));
        }
        places.push((x, y));
        x += width;
    }
    places
}

fn draw_legend(root: &Root, legend: &[Key]) -> Result<()> {
    for (key, (x, y)) in legend.iter().zip(place_legend(legend)) {
        let (x, y) = (units(x), units(y + 8.0));
        let path = |from: (f64, f64), to: (f64, f64)| {
            let at = |(dx, dy)| (x + units(dx), y + units(dy));
            root.draw(&PathElement::new([at(from), at(to)], stroke(key.pen, 2.0))).map_err(bug)
        };
        if matches!(key.sign, Sign::Line | Sign::Interval) {
            path((0.0, 0.0), (22.0, 0.0))?;
        }
        match key.sign {
            Sign::Line => {}
            Sign::Bar => path((11.0, -6.0), (11.0, 6.0))?,
            Sign::Interval | Sign::Dot => {
                root.draw(&Circle::new((x + units(11.0), y), units(3.0), fill(key.pen))).map_err(bug)?;
            }
        }
        if key.sign == Sign::Interval {
            path((0.0, -4.0), (0.0, 4.0))?;
            path((22.0, -4.0), (22.0, 4.0))?;
        }
        let at = (x + units(29.0), y);
        root.draw(&Text::new(key.label.as_str(), at, text_style(Ink::Text, HPos::Left, VPos::Center))).map_err(bug)?;
    }
    Ok(())
}

impl Canvas<'_, '_> {
    /// Grid lines and labels of the horizontal axis, and its name below.
    pub fn x_axis(&mut self, name: &str) -> Result<()> {
        let range = self.y.range();
        let (bottom, top) = (range.start, range.end);
        let count = 5;
        for (at, label) in self.x.ticks(count) {
            self.raw_path(&[(at, bottom), (at, top)], stroke(Ink::Grid.plain(), 1.0))?;
            self.offset_text(at, bottom, (0.0, 5.0), &label, Ink::Axis, (HPos::Center, VPos::Top))?;
        }
        let range = self.x.range();
        self.raw_path(&[(range.start, bottom), (range.end, bottom)], stroke(Ink::Axis.plain(), 1.0))?;
        self.offset_text(range.end, bottom, (0.0, 22.0), name, Ink::Faint, (HPos::Right, VPos::Top))
    }

    /// Grid lines and labels of the vertical axis, and its name above.
    pub fn y_axis(&mut self, name: &str) -> Result<()> {
        let range = self.x.range();
        let (left, right) = (range.start, range.end);
        for (at, label) in self.y.ticks(4) {
            self.raw_path(&[(left, at), (right, at)], stroke(Ink::Grid.plain(), 1.0))?;
            self.offset_text(left, at, (-6.0, 0.0), &label, Ink::Axis, (HPos::Right, VPos::Center))?;
        }
        let top = self.y.range().end;
        self.offset_text(left, top, (-40.0, -8.0), name, Ink::Faint, (HPos::Left, VPos::Bottom))
    }

    /// A line through values; those beyond the axes lie at their ends.
    pub fn line(&mut self, points: &[(f64, f64)], pen: Pen, width_px: f64) -> Result<()> {
        let placed: Vec<(f64, f64)> = points.iter().map(|p| self.place(*p)).collect();
        self.raw_path(&placed, stroke(pen, width_px))
    }

    /// Dots at values.
    pub fn dots(&mut self, points: impl Iterator<Item = (f64, f64)>, pen: Pen, radius_px: f64) -> Result<()> {
        for point in points {
            let at = self.place(point);
            let dot = Circle::new(at, units(radius_px), fill(pen));
            self.chart.plotting_area().draw(&dot).map_err(bug)?;
        }
        Ok(())
    }

    /// A translucent area between two lines.
    pub fn band(&mut self, lower: &[(f64, f64)], upper: &[(f64, f64)], pen: Pen) -> Result<()> {
        let outline: Vec<(f64, f64)> = lower.iter().chain(upper.iter().rev()).map(|p| self.place(*p)).collect();
        let area = Polygon::new(outline, pen.color().mix(0.18).filled());
        self.chart.plotting_area().draw(&area).map_err(bug)
    }

    /// Text at the left or the right edge.
    pub fn text_at_edge(&mut self, edge: Edge, y: f64, text: &str, ink: Ink) -> Result<()> {
        let range = self.x.range();
        let (x, pos) = match edge {
            Edge::Left => (range.start, HPos::Left),
            Edge::Right => (range.end, HPos::Right),
        };
        self.offset_text(x, y, (0.0, 0.0), text, ink, (pos, VPos::Center))
    }

    /// A line from edge to edge.
    pub fn line_across(&mut self, y: f64, pen: Pen) -> Result<()> {
        let range = self.x.range();
        self.raw_path(&[(range.start, y), (range.end, y)], stroke(pen, 1.0))
    }

    /// Whether the horizontal axis reaches a value.
    pub fn shows_x(&self, value: f64) -> bool {
        self.x.shows(value)
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.x.position(x), self.y.position(y))
    }

    fn raw_path(&mut self, points: &[(f64, f64)], style: ShapeStyle) -> Result<()> {
        self.chart.plotting_area().draw(&PathElement::new(points.to_vec(), style)).map_err(bug)
    }

    fn offset_text(
        &mut self,
        x: f64,
        y: f64,
        by_px: (f64, f64),
        text: &str,
        ink: Ink,
        anchor: (HPos, VPos),
    ) -> Result<()> {
        use plotters::element::EmptyElement;
        let style = text_style(ink, anchor.0, anchor.1);
        let label = EmptyElement::at((x, y)) + Text::new(text.to_owned(), (units(by_px.0), units(by_px.1)), style);
        self.chart.plotting_area().draw(&label).map_err(bug)
    }
}

fn units(px: f64) -> i32 {
    (px * f64::from(UNITS)).round() as i32
}

fn stroke(pen: Pen, width_px: f64) -> ShapeStyle {
    pen.color().stroke_width(units(width_px) as u32)
}

fn fill(pen: Pen) -> ShapeStyle {
    pen.color().filled()
}

fn text_style(ink: Ink, h: HPos, v: VPos) -> TextStyle<'static> {
    let font = ("sans-serif", 13 * UNITS).into_font();
    TextStyle { font, color: ink.plain().to_backend(), pos: Pos::new(h, v) }
}

/// The backend cannot fail, so an error of plotters is a mistake of ours.
fn bug(error: impl std::fmt::Display) -> Error {
    Error::bug(format!("drawing a plot: {error}"))
}
