//! A drawing backend for plotters that writes compact SVG text whose colours are CSS classes, so that one drawing
//! serves light, dark and print. Coordinates are tenths of a pixel, since plotters counts in whole units. Dots of one
//! class are gathered into one path, which makes ten bytes of a sample instead of ninety.

use super::ink::{Ink, Mark};
use plotters::prelude::DrawingBackend;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind, FontStyle};
use std::convert::Infallible;
use std::fmt::Write as _;

/// Units of the drawing per pixel.
pub const UNITS: i32 = 10;

/// Writes the body of an SVG element into a string.
pub struct ClassedSvg<'a> {
    out: &'a mut String,
    size: (u32, u32),
    dots: Option<Dots>,
}

/// Dots of one look that wait to be written as one path.
struct Dots {
    ink: Ink,
    mark: Mark,
    radius: u32,
    path: String,
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl<'a> ClassedSvg<'a> {
    /// Draws into `out`, on an area of the given width and height in pixels.
    pub fn new(out: &'a mut String, width: u32, height: u32) -> Self {
        Self { out, size: (width * UNITS as u32, height * UNITS as u32), dots: None }
    }

    fn flush(&mut self) {
        let Some(dots) = self.dots.take() else { return };
        let _ = write!(
            self.out,
            "<path class=\"{} {}\" stroke-width=\"{}\" d=\"{}\"/>",
            dots.mark.class(),
            dots.ink.class(),
            Px(dots.radius as i32 * 2),
            dots.path
        );
    }

    fn path(
        &mut self,
        color: BackendColor,
        width: Option<u32>,
        points: impl Iterator<Item = BackendCoord>,
        close: bool,
    ) {
        self.flush();
        let (ink, mark) = Ink::of(color.rgb);
        let kind = if width.is_some() { mark.line_class() } else { "f" };
        let _ = write!(self.out, "<path class=\"{kind} {}\"", ink.class());
        if let Some(width) = width.filter(|w| *w != UNITS as u32) {
            let _ = write!(self.out, " stroke-width=\"{}\"", Px(width as i32));
        }
        if width.is_none() && color.alpha < 1.0 {
            let _ = write!(self.out, " opacity=\"{}\"", color.alpha);
        }
        self.out.push_str(" d=\"");
        let mut before: Option<BackendCoord> = None;
        for (x, y) in points {
            let _ = match before {
                None => write!(self.out, "M{} {}", Px(x), Px(y)),
                Some((bx, by)) => write!(self.out, "l{} {}", Px(x - bx), Px(y - by)),
            };
            before = Some((x, y));
        }
        self.out.push_str(if close { "z\"/>" } else { "\"/>" });
    }
}

impl DrawingBackend for ClassedSvg<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }
    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }
    fn present(&mut self) -> Drawn {
        self.flush();
        Ok(())
    }
    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Drawn {
        self.draw_rect(point, (point.0 + 1, point.1 + 1), &color, true)
    }
    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }
    fn draw_rect<S: BackendStyle>(&mut self, a: BackendCoord, b: BackendCoord, style: &S, fill: bool) -> Drawn {
        if style.color().alpha > 0.0 {
            let width = (!fill).then(|| style.stroke_width());
            self.path(style.color(), width, [a, (b.0, a.1), b, (a.0, b.1)].into_iter(), true);
        }
        Ok(())
    }
    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if style.color().alpha > 0.0 {
            self.path(style.color(), Some(style.stroke_width()), path.into_iter(), false);
        }
        Ok(())
    }
    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if style.color().alpha > 0.0 {
            self.path(style.color(), None, path.into_iter(), true);
        }
        Ok(())
    }
    fn draw_circle<S: BackendStyle>(&mut self, at: BackendCoord, radius: u32, style: &S, _fill: bool) -> Drawn {
        let (ink, mark) = Ink::of(style.color().rgb);
        if self.dots.as_ref().is_some_and(|d| (d.ink, d.mark, d.radius) != (ink, mark, radius)) {
            self.flush();
        }
        let dots = self.dots.get_or_insert_with(|| Dots { ink, mark, radius, path: String::new() });
        // a line of no length with a round or square cap is a dot
        let _ = write!(dots.path, "M{} {}h0", Px(at.0), Px(at.1));
        Ok(())
    }
    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        self.flush();
        let anchor = match style.anchor().h_pos {
            HPos::Left => "",
            HPos::Right => " e",
            HPos::Center => " m",
        };
        let dy = match style.anchor().v_pos {
            VPos::Top => ".76em",
            VPos::Center => ".35em",
            VPos::Bottom => "-.25em",
        };
        let bold = if matches!(style.style(), FontStyle::Bold) { " b" } else { "" };
        let (ink, _) = Ink::of(style.color().rgb);
        let (x, y) = (Px(at.0), Px(at.1));
        let _ = write!(self.out, "<text class=\"t {}{anchor}{bold}\" x=\"{x}\" y=\"{y}\" dy=\"{dy}\">", ink.class());
        escape_into(self.out, text);
        self.out.push_str("</text>");
        Ok(())
    }
}

/// A length in tenths of a pixel, shown in pixels.
struct Px(i32);

impl std::fmt::Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, size) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        match (size / 10, size % 10) {
            (whole, 0) => write!(f, "{sign}{whole}"),
            (0, part) => write!(f, "{sign}.{part}"),
            (whole, part) => write!(f, "{sign}{whole}.{part}"),
        }
    }
}

/// Appends text with the five characters escaped that XML reserves.
pub fn escape_into(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_pixels_without_waste() {
        let shown: Vec<String> = [0, 5, -5, 10, 123, -4400].iter().map(|v| Px(*v).to_string()).collect();
        assert_eq!(shown, ["0", ".5", "-.5", "1", "12.3", "-440"]);
    }

    #[test]
    fn dots_of_one_ink_become_one_path_and_colours_become_classes() {
        let mut out = String::new();
        let mut svg = ClassedSvg::new(&mut out, 40, 20);
        for x in [10, 20, 30] {
            svg.draw_circle((x, 10), 25, &Ink::Candidate.square().to_backend(), true).unwrap();
        }
        svg.present().unwrap();
        assert_eq!(out, "<path class=\"sq candidate\" stroke-width=\"5\" d=\"M1 1h0M2 1h0M3 1h0\"/>");
    }
}
