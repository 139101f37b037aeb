//! Mutation test by cargo-mutants: faults planted in a sample of places; a test must detect each.
//! Not part of CI.
//!
//! The sample is a function of the seed and of the mutants' names. Each area has the tests that are
//! its own; a mutant that only the tests of another crate detect counts as missed. Survivors are
//! listed, with their reasons, in docs/testing.md.

use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Context as _, Result};
use fs_err as fs;
use serde_json::Value;

use crate::steps::{exit_code_within, output, succeeds, Words as _};
use crate::workspace::cargo;
use crate::workspace::target;

/// What `cargo xtask mutants` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Areas to look at [default: all]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(AREAS.map(|a| a.name)))]
    areas: Vec<String>,
    /// Mutants of each area
    #[arg(long, default_value_t = 30, value_name = "N")]
    count: usize,
    /// Another seed takes another sample
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
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

const AREAS: [Area; 7] = [
    Area {
        name: "gtlb",
        package: "ringbell-gtlb",
        files: "gtlb/src/**",
        tests: "",
    },
    Area {
        name: "onc-engines",
        package: "ringbell-onc-engines",
        files: "onc-engines/src/**",
        tests: "",
    },
    Area {
        name: "routes",
        package: "ringbell-routes",
        files: "routes/src/**",
        tests: "",
    },
    Area {
        name: "queue",
        package: "ringbell-nic-core",
        files: "nic-core/src/queue.rs nic-core/src/slots.rs nic-core/src/host_queue.rs",
        tests: "nic_path kernels_ring nic_progress loom_rings",
    },
    Area {
        name: "command",
        package: "ringbell-nic-core",
        files: "nic-core/src/command/**",
        tests: "nic_path nic_faults nic_closing kernels_ring long_messages engines engines_queue \
                collective_ops collective_streams",
    },
    Area {
        name: "transport",
        package: "ringbell-nic-core",
        files: "nic-core/src/transport/**",
        tests:
            "transport_conformance tcp tcp_windows tcp_hostile credit slow_memory staging engines \
                engines_sender nic_closing",
    },
    Area {
        name: "collective",
        package: "ringbell-nic-core",
        files: "nic-core/src/collective/**",
        tests: "collectives collective_ops collective_faults collective_direct collective_streams \
                engines_collective",
    },
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

/// Runs it.
///
/// # Errors
/// When cargo-mutants is missing, or the tests fail without a fault.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !succeeds(cargo().words("mutants --version")) {
        bail!("cargo-mutants is not installed; `cargo install cargo-mutants --locked` brings it");
    }
    let mut lines = Vec::new();
    let wanted = |a: &&Area| args.areas.is_empty() || args.areas.iter().any(|n| n == a.name);
    for area in AREAS.iter().filter(wanted) {
        let all = output(area.mutants().arg("--list"))?;
        let all: Vec<&str> = all.lines().collect();
        let chosen = sample(&all, args.seed, args.count);
        let (count, of) = (chosen.len(), all.len());
        println!("\n==> {}: {count} of {of} mutants", area.name);
        let counted = plant(area, &chosen)?;
        lines.push(format!("{:<12} {of:>5} mutants  {counted}", area.name));
    }
    println!();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// So many of the names, in the order of a hash of each with the seed.
fn sample<'a>(names: &[&'a str], seed: u64, count: usize) -> Vec<&'a str> {
    let mut order = names.to_vec();
    order.sort_unstable_by_key(|name| (hash(seed, name), *name));
    order.truncate(count);
    order
}

/// FNV-1a: the same on every machine and for every compiler.
fn hash(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Plants each, and runs the area's tests; what came of it, in words.
fn plant(area: &Area, chosen: &[&str]) -> Result<String> {
    let out = target().join("mutants").join(area.name);
    fs::create_dir_all(&out)?;
    let mut mutants = area.mutants();
    for name in chosen {
        mutants.arg("--re").arg(format!("^{}$", escaped(name)));
    }
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
        0 | 2 | 3 => {}
        code => bail!("cargo-mutants ended with exit code {code}"),
    }
    let outcomes = fs::read_to_string(out.join("mutants.out/outcomes.json"))?;
    counted(&serde_json::from_str(&outcomes)?).context("cargo-mutants' outcomes.json lacks counts")
}

/// The counts of an area's sample, and the share that tests saw of those that could be built; a
/// mutant that hangs counts as seen.
fn counted(outcomes: &Value) -> Option<String> {
    let count = |name: &str| outcomes[name].as_u64();
    let (caught, timeout) = (count("caught")?, count("timeout")?);
    let (missed, unviable) = (count("missed")?, count("unviable")?);
    let seen = caught + timeout;
    let percent = 100.0 * seen as f64 / (seen + missed).max(1) as f64;
    Some(format!(
        "{caught:>3} caught  {timeout:>3} timed out  {missed:>3} missed  {unviable:>3} not built  {percent:>5.1} %"
    ))
}

/// As a regular expression that matches this text alone.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$&-~#".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn a_sample_is_the_seeds_alone_and_larger_ones_contain_it() {
        let names = (0..50).map(|i| format!("src/lib.rs:{i}:1: replace f with ()"));
        let names: Vec<String> = names.collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        let small = sample(&names, 1, 5);
        assert_eq!(sample(&names, 1, 9)[..5], small);
        assert_ne!(sample(&names, 2, 5), small);
        assert_eq!(sample(&names, 1, 99).len(), 50);
        names.reverse();
        assert_eq!(sample(&names, 1, 5), small);
    }

    #[test]
    fn tests_of_an_area_exist() {
        for test in AREAS.iter().flat_map(|a| a.tests.split_whitespace()) {
            let file = root().join(format!("nic-core/tests/{test}.rs"));
            assert!(file.is_file(), "{}", file.display());
        }
    }

    #[test]
    fn a_hang_counts_as_caught_and_unviable_mutants_do_not_count() {
        let outcomes = serde_json::json!({"caught": 8, "timeout": 1, "missed": 1, "unviable": 7});
        assert!(counted(&outcomes).is_some_and(|line| line.ends_with(" 90.0 %")));
        assert_eq!(escaped("a::<T>(b) -> 1"), r"a::<T>\(b\) \-> 1");
    }
}
