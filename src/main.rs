//! The `ringbell` command.

// They panic when a reader closes the pipe; `cli::stdio` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
