//! The page: one file that opens offline, everything inline.

use super::Templates;
use crate::error::Result;
use crate::report::Report;
use minijinja::value::Serde;
use minijinja::{Value, context};
use std::collections::BTreeMap;

/// Renders the HTML page.
pub fn html(templates: &Templates, report: &Report) -> Result<String> {
    let metrics = report.metrics.iter().flat_map(|m| &m.figures);
    let devices = report.devices.iter().flat_map(|d| &d.figures);
    let mut drawn: BTreeMap<String, Value> = BTreeMap::new();
    for figure in metrics.chain(devices) {
        let svg = figure.plot.svg(&figure.id, &figure.title, &figure.description)?;
        drawn.insert(figure.id.clone(), Value::from_safe_string(svg));
    }
    templates.render("report.html.j2", context! { report => Value::from(Serde(report)), drawn })
}
