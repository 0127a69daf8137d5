//! JSON on stdout, one value a line: what scripts and the harness read.

use super::stdout;
use crate::error::{EngineError, ErrorKind, Result};
use serde::Serialize;

/// Prints `value` as one line of JSON, or over several lines when `pretty`.
pub(super) fn print<T: Serialize>(value: &T, pretty: bool) -> Result<()> {
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    let text = text.map_err(|e| EngineError::new(ErrorKind::Bug, format!("cannot encode the answer: {e}")))?;
    stdout::put(format_args!("{text}\n"))
}
