//! The SDK's own suites over the NIC `rtl`: the tests of the software NIC, with simulated hardware
//! as the data path.

use std::process::Command;

use anyhow::Result;

use super::tools::{Tools, SIMULATION_LIMIT};
use crate::steps::command_within;
use crate::workspace::root;
use crate::{suite, workspace};

/// Files of tests/ in every run.
const DAILY: [&str; 9] = [
    "rtl",
    "mailbox",
    "transports",
    "sockets",
    "engines_kernel",
    "communicator",
    "communicator_memory",
    "communicator_queues",
    "one_sided",
];
/// Tests of them that only `--all` runs: each waits five seconds for the end of RDMA.
const SLOW: &str = "rdma::";
/// Files that only `--all` runs.
const MORE: [&str; 4] = ["strict", "growth", "progress", "stream_sockets"];

/// Tests and examples that the NIC `rtl` cannot run, with the reason; hw/README.md names them too.
const LEFT_OUT: [(&str, &str); 3] = [
    (
        "sockets_in_streams_are_kernels_where_it_has_none",
        "runs over the mock driver, whose memory the card's bus does not reach",
    ),
    (
        "sockets_in_streams_need_no_kernel_where_the_driver_has_memory_operations",
        "runs over the mock driver, whose memory the card's bus does not reach",
    ),
    (
        "03_echo_server_100_connections",
        "wants 100 queues; the card has 64",
    ),
];

/// Packages with unit tests that would be built once more for the SDK's one that is about hardware.
const WITHOUT: [&str; 5] = [
    "ringbell-c",
    "ringbell-mpi",
    "ringbell-nccl",
    "ringbell-perf",
    "ringbell-verbs",
];
const CONFORMS: &str = "rtl_conforms";

/// Runs a selection of about a minute, or `all`: every suite, and the examples.
pub(super) fn run(tools: &Tools, all: bool) -> Result<()> {
    let mut skipped: Vec<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    let mut files = DAILY.to_vec();
    if all {
        for (name, why) in LEFT_OUT {
            println!("left out over rtl: {name} ({why})");
        }
        files.extend(MORE);
    } else {
        skipped.push(SLOW);
    }
    let mut conforms = tools.cargo("test");
    let without = WITHOUT.iter().flat_map(|p| ["--exclude", p]);
    conforms.args(without).args(["--lib", CONFORMS]);
    command_within(&mut conforms, SIMULATION_LIMIT)?;
    let mut tests = tools.cargo("test");
    tests.args(["--test", suite::SDK_PROGRAM, "--"]);
    tests.args(files.iter().map(|file| format!("{file}::")));
    if !all {
        // A name of `sockets` is a part of its names.
        skipped.push("stream_sockets::");
    }
    for name in &skipped {
        tests.args(["--skip", name]);
    }
    command_within(tests.env("RINGBELL_NIC", "rtl"), SIMULATION_LIMIT)?;
    if all {
        let mut build = tools.cargo("build");
        command_within(build.arg("--examples"), SIMULATION_LIMIT)?;
        let names = suite::example_programs()?;
        for name in names.iter().filter(|n| !skipped.contains(&n.as_str())) {
            let mut example = Command::new(workspace::built().join("examples").join(name));
            example.current_dir(root()).env("RINGBELL_NIC", "rtl");
            command_within(&mut example, suite::EXAMPLE_LIMIT)?;
        }
    }
    Ok(())
}
