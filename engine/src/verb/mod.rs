//! The verbs of `farmhand`: one function each. stdout is data, stderr is talk.

pub mod args;

mod bench;
mod draft;
mod exec;
mod generate;
mod hash;
mod json;
mod lease;
mod logits;
mod perplexity;
mod probe;
mod profile;
mod progress;
mod roofline;
mod run;
mod setup;
mod stdout;
mod stop;
mod tokenize;
mod trace_file;
mod warm;

use crate::error::{EngineError, ErrorKind, Result};
use args::{Args, Verb};

/// All verbs, in the order in which the help page shows them.
pub const VERBS: &[&Verb] = &[
    &generate::VERB,
    &bench::VERB,
    &tokenize::VERB,
    &logits::VERB,
    &perplexity::VERB,
    &warm::VERB,
    &probe::VERB,
    &roofline::VERB,
    &run::VERB,
    &exec::VERB,
    &stop::VERB,
    &lease::VERB,
    &hash::VERB,
];

/// Carries out one command line (without the program's name) and returns the exit code.
pub fn dispatch(argv: &[String]) -> Result<u8> {
    match carry_out(argv) {
        Err(_) if stdout::reader_gone() => Ok(0),
        outcome => outcome,
    }
}

fn carry_out(argv: &[String]) -> Result<u8> {
    let Some(word) = argv.first() else {
        stdout::put(format_args!("{}", help()))?;
        return Ok(2);
    };
    match word.as_str() {
        "-h" | "--help" | "help" => {
            stdout::put(format_args!("{}", help()))?;
            return Ok(0);
        }
        "-V" | "--version" => {
            stdout::put(format_args!("farmhand {}\n", env!("CARGO_PKG_VERSION")))?;
            return Ok(0);
        }
        _ => {}
    }
    let verb = VERBS.iter().find(|v| v.name == word).ok_or_else(|| {
        EngineError::usage(format!("unknown verb `{word}`")).hint("`farmhand --help` lists the verbs")
    })?;
    if argv[1..].iter().take_while(|a| *a != "--").any(|a| a == "-h" || a == "--help") {
        stdout::put(format_args!("{}", verb.help()))?;
        return Ok(0);
    }
    Args::parse(verb, &argv[1..]).and_then(|args| (verb.run)(&args)).map_err(|error| hinted(error, verb))
}

/// No usage error goes without something to try.
fn hinted(error: EngineError, verb: &Verb) -> EngineError {
    if error.kind() != ErrorKind::Usage || error.hint_text().is_some() {
        return error;
    }
    error.hint(format!("`farmhand {} --help` lists the flags", verb.name))
}

fn help() -> String {
    let mut out =
        String::from("farmhand: farmgate's agent and reference engine on a device\n\nusage: farmhand VERB [FLAGS]\n");
    for verb in VERBS {
        out.push_str(&format!("\n  {:<12} {}", verb.name, verb.summary));
    }
    out.push_str("\n\n`farmhand VERB --help` shows the flags of a verb\n");
    out
}
