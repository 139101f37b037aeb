//! NCCL's network plug-in: a C driver that calls it as NCCL does, between processes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Result};

use crate::steps::{command, output_within, Outcome};
use crate::{root, target, test, tools};

/// Arguments of `cargo xtask nccl`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build and run the release
    #[arg(long)]
    release: bool,
}

/// Longest time of one scenario.
const LIMIT: Duration = Duration::from_secs(60);

/// What the driver does, for each version of the interface.
const SCENARIOS: [&str; 8] = [
    "loopback", "random", "threads", "overlaps", "close", "large", "killed", "wrong",
];

/// Scenarios over RDMA, which a process does not use to itself.
const OVER_RDMA: [&str; 6] = ["random", "threads", "overlaps", "close", "large", "killed"];

/// Builds what is tested, and tests it.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let release = args.release.then_some("--release");
    command(
        test::cargo()
            .args(["build", "-p", "ringbell-nccl"])
            .args(release),
    )?;
    let folder = if args.release { "release" } else { "debug" };
    match tests(&target().join(folder))? {
        Outcome::Passed => Ok(true),
        Outcome::Skipped(why) => {
            println!("SKIPPED: {why}");
            Ok(true)
        }
    }
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    test::build()?;
    tests(&test::built())
}

fn tests(built: &Path) -> Result<Outcome> {
    let plugin = built.join("libnccl_net_ringbell.so");
    let Some(cc) = tools::find("cc") else {
        return Ok(Outcome::Skipped("no cc for the driver".into()));
    };
    let folder = target().join("nccl");
    std::fs::create_dir_all(&folder)?;
    let driver = folder.join("driver");
    command(
        Command::new(&cc)
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .arg(root().join("bindings/nccl/tests/driver.c"))
            .arg("-o")
            .arg(&driver)
            .args(["-ldl", "-lpthread"]),
    )?;
    let bench = Bench { driver, plugin };
    for (version, seed) in [("12", 1), ("11", 2)] {
        for scenario in SCENARIOS {
            bench.drive(version, scenario, seed, &[])?;
        }
    }
    // Over the network, as between hosts.
    let rdma = [
        ("RINGBELL_NCCL_ADDR", "127.0.0.1"),
        ("RINGBELL_TRANSPORT", "rdma"),
        ("DRIVER_KILL_LIMIT", "50"),
    ];
    for scenario in OVER_RDMA {
        bench.drive("12", scenario, 3, &rdma)?;
    }
    Ok(Outcome::Passed)
}

/// The driver and the plug-in.
struct Bench {
    driver: std::path::PathBuf,
    plugin: std::path::PathBuf,
}

impl Bench {
    fn drive(&self, version: &str, scenario: &str, seed: u32, env: &[(&str, &str)]) -> Result<()> {
        let mut c = Command::new(&self.driver);
        c.arg(&self.plugin)
            .args([version, scenario, &seed.to_string()]);
        for name in [
            "RINGBELL_PORT",
            "RINGBELL_TRANSPORT",
            "RINGBELL_NCCL_ADDR",
            "RINGBELL_NCCL_TIMEOUT",
        ] {
            c.env_remove(name);
        }
        let ended = output_within(c.envs(env.iter().copied()), LIMIT)?;
        let said = String::from_utf8_lossy(&ended.stdout);
        let expected = format!("{scenario} v{version}: as it should");
        ensure!(
            ended.status.success() && said.contains(&expected),
            "{scenario} of version {version}, seed {seed}, {env:?}: {}{}",
            said,
            String::from_utf8_lossy(&ended.stderr)
        );
        Ok(())
    }
}
