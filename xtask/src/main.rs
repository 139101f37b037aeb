//! `cargo xtask`: what developers and CI run. `cargo xtask ci` is exactly what CI runs.

mod gen;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Ringbell's developer tasks.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the CUDA header, the SystemVerilog package and the register reference from `nic-abi`.
    Gen {
        /// Write nothing; fail when a generated file is stale.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    match Args::parse().task {
        Task::Gen { check: true } => gen::check(),
        Task::Gen { check: false } => gen::write(),
    }
}
