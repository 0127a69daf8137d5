//! `farmhand hash`: by which name is this content known?

use super::args::{Args, Verb};
use super::json;
use crate::error::{EngineError, Result};
use crate::hash::sha256_file_with;
use serde::Serialize;
use std::path::Path;

/// `farmhand hash`.
pub const VERB: Verb = Verb {
    name: "hash",
    summary: "print sha256 and size of files as JSON lines",
    positional: "FILE...",
    flags: &[],
    shared: &[],
    run,
};

#[derive(Serialize)]
struct Hashed<'a> {
    path: &'a str,
    sha256: String,
    bytes: u64,
}

/// Files that can be read are printed even when others cannot; then the first error decides the exit code.
fn run(args: &Args) -> Result<u8> {
    if args.positional().is_empty() {
        return Err(EngineError::usage("`farmhand hash` needs at least one file"));
    }
    let mut first_error = None;
    for path in args.positional() {
        let mut bytes = 0;
        match sha256_file_with(Path::new(path), &mut |done| bytes = done) {
            Ok(sha256) => json::print(&Hashed { path, sha256, bytes }, false)?,
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    first_error.map_or(Ok(0), Err)
}
