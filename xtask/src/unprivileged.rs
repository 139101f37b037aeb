//! Second run of the tests that can depend on rights, as an unprivileged user (`xtask/user.sh`).

use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Result};

use crate::steps::{exit_code_within, Outcome};
use crate::tools;
use crate::workspace::{has_nextest, root, target};

/// The tests, as the runner's filter: those of devices, namespaces, files, sockets, limits and
/// processes. The rest computes, and needs no right of the system.
const WANTED: &str = "(package(ringbell) & (test(/^(card|communicator_memory|progress|sockets)::/) | binary(ringbell))) \
    | (package(ringbell-cli) & (test(/^(nc|udp|hosts|run|cli|command_line|descriptors|faults|regs_live|tutorial|ends)::/) | binary(ringbell))) \
    | (package(ringbell-nic-core) & (test(/^(tcp_linux|tcp_scapy|networks)::/) | test(cache) | test(shmem) | test(port::))) \
    | package(ringbell-card) | package(ringbell-job)";

/// Longest time of all of them.
const LIMIT: Duration = Duration::from_secs(2300);

/// As a step of CI: skipped by a user, whose tests have run without rights already, and where root
/// lacks rights itself.
pub(crate) fn tests() -> Result<Outcome> {
    let skipped = |why: &str| Ok(Outcome::Skipped(why.to_owned()));
    if !tools::is_root() {
        return skipped("the tests have just run as a user; only root can become another one");
    }
    if !has_nextest() {
        return skipped("cargo-nextest is not installed, which runs tests that were built before");
    }
    if let Some(tool) = tools::missing(&["unshare", "setpriv"]) {
        return skipped(&format!("no {tool} (Debian: util-linux)"));
    }
    let folder = target().join("unprivileged");
    let mut sh = Command::new("sh");
    sh.current_dir(root()).arg(root().join("xtask/user.sh"));
    match exit_code_within(sh.args([&folder, &target()]).arg(WANTED), LIMIT)? {
        0 => Ok(Outcome::Passed),
        77 => {
            let why = std::fs::read_to_string(folder.join("why")).unwrap_or_default();
            let why = why.trim().replace('\n', "; ");
            skipped(&format!("no user without rights can be had here: {why}"))
        }
        code => bail!("the tests as a user ended with exit code {code}"),
    }
}
