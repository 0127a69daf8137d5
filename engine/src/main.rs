//! `farmhand`: parse, call the verb, print error and hint, exit code.

use farmgate_engine::error::EngineError;
use farmgate_engine::memory::Allocator;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    let argv: Result<Vec<String>, EngineError> = std::env::args_os()
        .skip(1)
        .map(|word| {
            word.into_string().map_err(|word| {
                EngineError::usage(format!("an argument is not UTF-8: {}", word.to_string_lossy()))
                    .hint("give texts as UTF-8, and rename files whose names are not")
            })
        })
        .collect();
    match argv.and_then(|argv| farmgate_engine::verb::dispatch(&argv)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            farmgate_engine::talk::say_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
