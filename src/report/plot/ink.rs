//! What is drawn, as a colour that plotters carries and a CSS class that the page styles. Each ink comes with a mark
//! (a shape or a dash), so that nothing is told by colour alone.

use plotters::style::RGBColor;
use plotters_backend::BackendColor;

/// A role in a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Axis line and its labels.
    Axis,
    /// Grid lines.
    Grid,
    /// Text that matters.
    Text,
    /// Text that explains.
    Faint,
    /// The baseline arm.
    Baseline,
    /// The candidate arm.
    Candidate,
    /// A limit of the policy.
    Limit,
    /// PASS.
    Pass,
    /// FAIL.
    Fail,
    /// INVALID, INCONCLUSIVE, INFRA.
    Open,
    /// The first of several lines without a meaning of their own.
    First,
    /// The second.
    Second,
    /// The third.
    Third,
    /// The fourth.
    Fourth,
}

/// Shape of dots, dash of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Round dots, whole lines.
    Plain,
    /// Square dots, dashed lines.
    Square,
    /// Round dots, dotted lines.
    Dotted,
    /// Round dots, lines of dash and dot.
    DashDot,
}

const INKS: [(Ink, &str); 14] = [
    (Ink::Axis, "axis"),
    (Ink::Grid, "grid"),
    (Ink::Text, "text"),
    (Ink::Faint, "faint"),
    (Ink::Baseline, "baseline"),
    (Ink::Candidate, "candidate"),
    (Ink::Limit, "limit"),
    (Ink::Pass, "pass"),
    (Ink::Fail, "fail"),
    (Ink::Open, "open"),
    (Ink::First, "l1"),
    (Ink::Second, "l2"),
    (Ink::Third, "l3"),
    (Ink::Fourth, "l4"),
];
const MARKS: [Mark; 4] = [Mark::Plain, Mark::Square, Mark::Dotted, Mark::DashDot];

/// An ink with its mark: what plotters takes for a colour.
#[derive(Debug, Clone, Copy)]
pub struct Pen(Ink, Mark);

impl Ink {
    /// The CSS class.
    pub fn class(self) -> &'static str {
        INKS[self as usize].1
    }
    /// With round dots and whole lines.
    pub fn plain(self) -> Pen {
        Pen(self, Mark::Plain)
    }
    /// With square dots and dashed lines.
    pub fn square(self) -> Pen {
        Pen(self, Mark::Square)
    }
    /// With the given mark.
    pub fn with(self, mark: Mark) -> Pen {
        Pen(self, mark)
    }
    /// The line ink number `index`, with a mark of its own.
    pub fn line(index: usize) -> Pen {
        const LINES: [Ink; 4] = [Ink::First, Ink::Second, Ink::Third, Ink::Fourth];
        Pen(LINES[index % LINES.len()], MARKS[index % MARKS.len()])
    }
    /// What a colour made by [`Pen::color`] stands for.
    pub fn of(rgb: (u8, u8, u8)) -> (Ink, Mark) {
        let ink = INKS.get(rgb.0 as usize).map_or(Ink::Axis, |(ink, _)| *ink);
        (ink, MARKS.get(rgb.1 as usize).copied().unwrap_or(Mark::Plain))
    }
}

impl Pen {
    /// The colour that carries this pen through plotters.
    pub fn color(self) -> RGBColor {
        RGBColor(self.0 as u8, self.1 as u8, 0)
    }
    /// The same for a backend.
    pub fn to_backend(self) -> BackendColor {
        BackendColor { alpha: 1.0, rgb: (self.0 as u8, self.1 as u8, 0) }
    }
}

impl Mark {
    /// CSS class of dots.
    pub fn class(self) -> &'static str {
        if self == Self::Square { "sq" } else { "dot" }
    }
    /// CSS classes of lines.
    pub fn line_class(self) -> &'static str {
        match self {
            Self::Plain => "s",
            Self::Square => "s dash",
            Self::Dotted => "s dots",
            Self::DashDot => "s dashdot",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ink_and_mark_survives_the_way_through_a_colour() {
        for (position, (ink, _)) in INKS.iter().enumerate() {
            assert_eq!(*ink as usize, position);
            for mark in MARKS {
                let RGBColor(r, g, b) = ink.with(mark).color();
                assert_eq!(Ink::of((r, g, b)), (*ink, mark));
            }
        }
    }
}
