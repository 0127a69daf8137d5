//! From the view, or the raw run, to text in a format. Pure.

mod csv;
mod html;
mod json;
mod junit;
mod markdown;
mod templates;

pub use csv::csv;
pub use html::html;
pub use json::json;
pub use junit::junit;
pub use markdown::{MARKDOWN_BYTES_MAX, markdown};
pub use templates::{TEMPLATE_BYTES_MAX, TEMPLATES_MAX, Templates};
