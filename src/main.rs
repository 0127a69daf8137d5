//! farmgate: parse, call the command, print its output or the error and its hint, exit code.

use clap::Parser;
use farmgate::cli::Cli;
use farmgate::error::ExitCode;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn main() -> std::process::ExitCode {
    env_logger::init();
    // clap itself exits with 2 on a usage error, and with 0 on --help and --version
    let cli = Cli::parse();
    let exit = match catch_unwind(AssertUnwindSafe(|| farmgate::command::run(&cli))) {
        Ok(Ok(done)) => {
            // a reader that closed the pipe early has what it wanted
            let _ = std::io::stdout().write_all(done.stdout.as_bytes());
            done.exit
        }
        Ok(Err(error)) => {
            // stderr may be closed as well; that must not turn an error into a panic
            let _ = writeln!(std::io::stderr(), "error: {error}");
            error.exit()
        }
        // the panic's message is on stderr already; its exit code must not look like a verdict
        Err(_) => ExitCode::Bug,
    };
    std::process::ExitCode::from(exit as u8)
}
