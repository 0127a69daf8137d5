//! The whole run and its judgement as one JSON object, with every raw sample. NaN cannot occur: samples are finite by
//! type, and a bound that is not finite is written as null, which means unbounded. One line: indented, the token
//! times of a large run would be mostly spaces.

use crate::error::{Error, Result};
use crate::gate::Judgement;
use crate::report::SCHEMA_VERSION;
use crate::run::RunData;
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Document<'a> {
    schema_version: u32,
    kind: &'static str,
    exit_code: Option<u8>,
    judgement: Option<&'a Judgement>,
    run: &'a RunData,
}

/// Renders the JSON file.
pub fn json(run: &RunData, judgement: Option<&Judgement>) -> Result<String> {
    let document = Document {
        schema_version: SCHEMA_VERSION,
        kind: "farmgate-report",
        exit_code: judgement.map(|j| j.exit as u8),
        judgement,
        run,
    };
    let mut text =
        serde_json::to_string(&document).map_err(|error| Error::bug(format!("writing the report as JSON: {error}")))?;
    text.push('\n');
    Ok(text)
}
