//! The `ringbell` command.

mod cli;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
