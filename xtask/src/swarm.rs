//! Swarms: seeded clusters of whole NICs in virtual time, with faults, against a model.
//!
//! The clusters are those of `nic-core/tests/swarm.rs`. A failure prints the shortest plan that
//! fails, and the command that repeats it.
#![allow(clippy::disallowed_methods)] // A seed by the clock.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::steps::{command, Words as _};
use crate::workspace::cargo;

/// What `cargo xtask swarm` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The first seed [default: by the clock]; without --seconds the only one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs one seed after the other for so long [default: 60, without --seed]
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Only plans over this transport: the next one from the seed on, and so on
    #[arg(long, value_name = "NAME", value_parser = ["local", "tcp", "rdma", "udp"])]
    over: Option<String>,
    /// Operations of the plan, by number; the others are left out
    #[arg(
        long,
        value_name = "N,...",
        requires = "seed",
        conflicts_with_all = ["seconds", "over"],
        value_delimiter = ','
    )]
    only: Vec<usize>,
}

/// `cargo xtask swarm`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (seed, seconds) = match (args.seed, args.seconds) {
        (Some(seed), seconds) => (seed, seconds.unwrap_or(0)),
        (None, seconds) => (by_clock(), seconds.unwrap_or(60)),
    };
    let mut test = cargo();
    test.words("test -p ringbell-nic-core --test all -- swarm::at_random --exact --ignored");
    test.arg("--nocapture");
    test.env("RINGBELL_SWARM_SEED", seed.to_string());
    test.env("RINGBELL_SWARM_SECONDS", seconds.to_string());
    if let Some(over) = &args.over {
        test.env("RINGBELL_SWARM_OVER", over);
    }
    if !args.only.is_empty() {
        let only: Vec<String> = args.only.iter().map(usize::to_string).collect();
        test.env("RINGBELL_SWARM_ONLY", only.join(","));
    }
    command(&mut test)
}

/// Another one each time. Short, so that it can be typed.
fn by_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |t| t.as_millis() as u64 % 1_000_000_000)
}
