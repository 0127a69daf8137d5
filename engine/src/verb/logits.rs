//! To be written.

use super::args::{Args, Verb};
use crate::error::{EngineError, Result};

/// `farmhand logits`.
pub const VERB: Verb = Verb { name: "logits", summary: "", positional: "", flags: &[], run };

fn run(_args: &Args) -> Result<u8> {
    Err(EngineError::usage("not built yet"))
}
