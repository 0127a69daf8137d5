//! To be written.

use super::args::{Args, Verb};
use crate::error::{EngineError, Result};

/// `farmhand run`.
pub const VERB: Verb = Verb { name: "run", summary: "", positional: "", flags: &[], run };

fn run(_args: &Args) -> Result<u8> {
    Err(EngineError::usage("not built yet"))
}
