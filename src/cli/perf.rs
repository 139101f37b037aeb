//! `ringbell perf`: the benchmarks.

mod limits;

use anyhow::Result;
use clap::Subcommand;

use super::Exit;

/// Arguments of `ringbell perf`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// What this machine can do at best: memcpy by size, cache-line ping-pong between two cores
    Limits(limits::Args),
}

/// Runs a benchmark.
pub(crate) fn run(args: Args) -> Result<Exit> {
    match args.bench {
        Bench::Limits(args) => limits::run(&args),
    }
}
