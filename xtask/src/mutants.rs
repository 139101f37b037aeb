//! Mutation test by cargo-mutants: faults planted in a sample of places; a test must detect each.
//! Not part of CI.
//!
//! Each area has the tests that are its own; a mutant that only the tests of another crate detect
//! counts as missed. Survivors are listed, with their reasons, in docs/testing.md.

use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Result};
use fs_err as fs;

use crate::steps::{exit_code_within, output, succeeds, Words as _};
use crate::workspace::{cargo, target};

/// What `cargo xtask mutants` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Areas to look at [default: all]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(AREAS.map(|a| a.name)))]
    areas: Vec<String>,
    /// Mutants of each area, about
    #[arg(long, default_value_t = 30, value_name = "N")]
    count: usize,
    /// Another seed takes another sample
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: usize,
}

/// What a sample is taken from, and which tests are to see it.
#[derive(Clone, Copy)]
struct Area {
    name: &'static str,
    package: &'static str,
    /// Its files, as globs.
    files: &'static str,
    /// The files of tests beside the crate's unit tests; none: all of the crate.
    tests: &'static str,
}

const fn area(
    name: &'static str,
    package: &'static str,
    files: &'static str,
    tests: &'static str,
) -> Area {
    Area {
        name,
        package,
        files,
        tests,
    }
}

const AREAS: [Area; 7] = [
    area("gtlb", "ringbell-gtlb", "gtlb/src/**", ""),
    area(
        "onc-engines",
        "ringbell-onc-engines",
        "onc-engines/src/**",
        "",
    ),
    area("routes", "ringbell-routes", "routes/src/**", ""),
    area(
        "queue",
        "ringbell-nic-core",
        "nic-core/src/queue.rs nic-core/src/slots.rs nic-core/src/host_queue.rs",
        "nic_path kernels_ring nic_progress loom_rings",
    ),
    area(
        "command",
        "ringbell-nic-core",
        "nic-core/src/command/**",
        "nic_path nic_faults nic_closing kernels_ring long_messages engines engines_queue \
         collective_ops collective_streams",
    ),
    area(
        "transport",
        "ringbell-nic-core",
        "nic-core/src/transport/**",
        "transport_conformance tcp tcp_windows tcp_hostile credit slow_memory staging engines \
         engines_sender nic_closing",
    ),
    area(
        "collective",
        "ringbell-nic-core",
        "nic-core/src/collective/**",
        "collectives collective_ops collective_faults collective_direct collective_streams \
         engines_collective",
    ),
];

/// Helpers of tests are no product.
const HELPERS: &str = "**/testing/** **/testing.rs **/tests.rs **/conformance.rs";

impl Area {
    /// cargo-mutants, with the files to mutate. The output of `{:?}` is for a person.
    fn mutants(&self) -> Command {
        let mut mutants = cargo();
        mutants
            .words("mutants --colors never --package")
            .arg(self.package);
        for files in self.files.split(' ') {
            mutants.args(["--file", files]);
        }
        for helpers in HELPERS.split(' ') {
            mutants.args(["--exclude", helpers]);
        }
        mutants.args(["--exclude-re", r"\bDebug for "]);
        mutants
    }
}

/// Runs it: cargo-mutants tells how many of each area were caught, missed, or could not be built.
///
/// # Errors
/// When cargo-mutants is missing, or the tests fail without a fault.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !succeeds(cargo().words("mutants --version")) {
        bail!("cargo-mutants is not installed; `cargo install cargo-mutants --locked` brings it");
    }
    let wanted = |a: &&Area| args.areas.is_empty() || args.areas.iter().any(|n| n == a.name);
    for area in AREAS.iter().filter(wanted) {
        let all = output(area.mutants().arg("--list"))?.lines().count();
        // One mutant in so many, from the one on that the seed says.
        let share = all.div_ceil(args.count.max(1)).max(1);
        println!("\n==> {}: one in {share} of {all} mutants", area.name);
        plant(area, &format!("{}/{share}", args.seed % share))?;
    }
    Ok(())
}

/// Plants a share of the mutants, and runs the area's tests after each.
fn plant(area: &Area, share: &str) -> Result<()> {
    let out = target().join("mutants").join(area.name);
    fs::create_dir_all(&out)?;
    let mut mutants = area.mutants();
    mutants.words("--sharding round-robin --shard").arg(share);
    mutants.words("--test-tool nextest --minimum-test-timeout 60 --jobs 1 -o");
    // Crates that do not depend on the copy's place are built once.
    mutants
        .arg(&out)
        .env("CARGO_TARGET_DIR", target().join("mutants/build"));
    if !area.tests.is_empty() {
        // Files of tests are modules of one program, or programs of their own.
        let any = area.tests.split_whitespace().collect::<Vec<_>>().join("|");
        let filter = format!("kind(lib) | test(/^({any})::/) | binary(/^({any})$/)");
        mutants.args(["--", "-E", &filter]);
    }
    // 2: some were missed; 3: some timed out.
    match exit_code_within(&mut mutants, Duration::from_secs(24 * 3600))? {
        0 | 2 | 3 => Ok(()),
        code => bail!("cargo-mutants ended with exit code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_an_area_exist() {
        for test in AREAS.iter().flat_map(|a| a.tests.split_whitespace()) {
            let file = crate::workspace::root().join(format!("nic-core/tests/{test}.rs"));
            assert!(file.is_file(), "{}", file.display());
        }
    }
}
