//! `farmhand`: parse, call the verb, print error and hint, exit code.

use farmgate_engine::error::EngineError;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let argv: Result<Vec<String>, EngineError> = std::env::args_os()
        .skip(1)
        .map(|word| {
            word.into_string().map_err(|word| {
                EngineError::usage(format!("an argument is not UTF-8: {}", word.to_string_lossy()))
                    .hint("rename the file, or give a path of UTF-8 characters")
            })
        })
        .collect();
    match argv.and_then(|argv| farmgate_engine::verb::dispatch(&argv)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // stderr may be closed as well; that must not turn an error into a panic
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
