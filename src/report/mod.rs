//! What a run and its judgement look like to people and to other programs.
//!
//! [`Report::build`] makes one serialisable view, pure: no I/O, no clock. [`render`] turns it into HTML, Markdown and
//! JUnit through templates that users may replace, and the raw run into CSV and JSON. [`write_all`] is the only
//! place that writes files, [`terminal`] the only one that prints.
//!
//! Reports describe: medians, quantiles, counts. Whatever decides (estimates, intervals, outcomes) is taken from the
//! judgement as it is.

mod build;
mod order;
pub mod plot;
pub mod render;
pub mod terminal;
mod text;
pub mod view;
mod write;

pub use render::Templates;
pub use view::Report;
pub use write::write_all;

/// Version of the JSON file and of the view that templates see; grows when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;
