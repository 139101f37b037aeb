//! Mutation test by cargo-mutants: faults planted in a sample of places; a test must detect each. Not part of CI.
//!
//! The sample is a function of the seed and of the mutants' names. Each area has the tests that are its own; a mutant that only
//! the tests of another crate detect counts as missed. Survivors are listed, with their reasons, in docs/testing.md.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context as _, Result};
use clap::ValueEnum as _;

use crate::steps::exit_code_within;
use crate::target;
use crate::test::cargo;

/// What `cargo xtask mutants` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Areas to look at [default: all]
    #[arg(value_enum)]
    areas: Vec<Area>,
    /// Mutants of each area
    #[arg(long, default_value_t = 30, value_name = "N")]
    count: usize,
    /// Another seed takes another sample
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Print the sample and plant nothing
    #[arg(long)]
    list: bool,
    /// Change the sources where they are, and put them back: nothing is built anew, and no file may be edited meanwhile
    #[arg(long)]
    in_place: bool,
}

/// What a sample is taken from, and which tests are to see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Area {
    Gtlb,
    OncEngines,
    Queue,
    Command,
    Transport,
    Collective,
}

impl Area {
    fn package(self) -> &'static str {
        match self {
            Area::Gtlb => "ringbell-gtlb",
            Area::OncEngines => "ringbell-onc-engines",
            _ => "ringbell-nic-core",
        }
    }

    /// Its files, as globs.
    fn files(self) -> &'static [&'static str] {
        match self {
            Area::Gtlb => &["gtlb/src/**"],
            Area::OncEngines => &["onc-engines/src/**"],
            Area::Queue => &[
                "nic-core/src/queue.rs",
                "nic-core/src/slots.rs",
                "nic-core/src/host_queue.rs",
            ],
            Area::Command => &["nic-core/src/command/**"],
            Area::Transport => &["nic-core/src/transport/**"],
            Area::Collective => &["nic-core/src/collective/**"],
        }
    }

    /// The files of tests beside the crate's unit tests; `None`: all of the crate.
    fn tests(self) -> Option<&'static [&'static str]> {
        match self {
            Area::Gtlb | Area::OncEngines => None,
            Area::Queue => Some(&["nic_path", "kernels_ring", "nic_progress", "loom_rings"]),
            Area::Command => Some(&[
                "nic_path",
                "nic_faults",
                "nic_closing",
                "kernels_ring",
                "long_messages",
                "engines",
                "engines_queue",
                "collective_ops",
                "collective_streams",
            ]),
            Area::Transport => Some(&[
                "transport_conformance",
                "tcp",
                "tcp_windows",
                "tcp_hostile",
                "credit",
                "lending",
                "staging",
                "engines",
                "engines_sender",
                "nic_closing",
            ]),
            Area::Collective => Some(&[
                "collectives",
                "collective_ops",
                "collective_faults",
                "collective_direct",
                "collective_streams",
                "engines_collective",
            ]),
        }
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// cargo-mutants, with the files to mutate. Helpers of tests are no product, and the output of `{:?}` is for a person.
    fn mutants(self) -> Command {
        let mut mutants = cargo();
        mutants.args(["mutants", "--package", self.package()]);
        for files in self.files() {
            mutants.args(["--file", files]);
        }
        for helpers in [
            "**/testing/**",
            "**/testing.rs",
            "**/tests.rs",
            "**/conformance.rs",
        ] {
            mutants.args(["--exclude", helpers]);
        }
        mutants.args(["--exclude-re", r"\bDebug for "]);
        mutants
    }
}

/// Results of an area's sample.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    caught: usize,
    timeout: usize,
    missed: usize,
    unviable: usize,
}

impl Count {
    /// Of those that could be built; a mutant that hangs counts as detected.
    fn percent(&self) -> f64 {
        let seen = self.caught + self.timeout;
        100.0 * seen as f64 / (seen + self.missed).max(1) as f64
    }
}

/// Runs it.
///
/// # Errors
/// When cargo-mutants is missing, or the tests fail without a fault.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut version = cargo();
    version
        .args(["mutants", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !version.status().is_ok_and(|s| s.success()) {
        bail!("cargo-mutants is not installed; `cargo install cargo-mutants --locked` brings it");
    }
    let areas = match args.areas.is_empty() {
        true => Area::value_variants(),
        false => &args.areas,
    };
    let mut lines = Vec::new();
    for area in areas {
        let all = listed(*area)?;
        let chosen = sample(&all, args.seed, args.count);
        println!(
            "\n==> {}: {} of {} mutants",
            area.name(),
            chosen.len(),
            all.len()
        );
        if args.list {
            chosen.iter().for_each(|name| println!("{name}"));
            continue;
        }
        let count = plant(*area, &chosen, args.in_place)?;
        lines.push(format!(
            "{:<12} {:>5} mutants  {:>3} caught  {:>3} timed out  {:>3} missed  {:>3} not built  {:>5.1} %",
            area.name(),
            all.len(),
            count.caught,
            count.timeout,
            count.missed,
            count.unviable,
            count.percent(),
        ));
    }
    println!();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Every mutant of an area, by name.
fn listed(area: Area) -> Result<Vec<String>> {
    let out = area
        .mutants()
        .args(["--list", "--colors", "never"])
        .stderr(Stdio::inherit())
        .output();
    let out = out.context("cannot start cargo-mutants")?;
    ensure!(
        out.status.success(),
        "cargo-mutants cannot list {}",
        area.name()
    );
    let names = String::from_utf8(out.stdout)?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// So many of the names, in the order of a hash of each with the seed.
fn sample(names: &[String], seed: u64, count: usize) -> Vec<&str> {
    let mut order: Vec<(u64, &str)> = names.iter().map(|n| (hash(seed, n), n.as_str())).collect();
    order.sort_unstable();
    order
        .into_iter()
        .take(count)
        .map(|(_, name)| name)
        .collect()
}

/// FNV-1a: the same on every machine and for every compiler.
fn hash(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Plants each, and runs the area's tests.
fn plant(area: Area, chosen: &[&str], in_place: bool) -> Result<Count> {
    let out = target().join("mutants").join(area.name());
    fs::create_dir_all(&out)?;
    let mut mutants = area.mutants();
    for name in chosen {
        mutants.arg("--re").arg(format!("^{}$", escaped(name)));
    }
    mutants.args([
        "--test-tool",
        "nextest",
        "--minimum-test-timeout",
        "60",
        "--colors",
        "never",
        "-o",
    ]);
    mutants.arg(&out);
    if in_place {
        mutants.arg("--in-place");
    } else {
        // Crates that do not depend on the copy's place are built once.
        mutants.args(["--jobs", "1"]);
        mutants.env("CARGO_TARGET_DIR", target().join("mutants/build"));
    }
    if let Some(tests) = area.tests() {
        // Files of tests are modules of one program, or programs of their own.
        let any = tests.join("|");
        let filter = format!("kind(lib) | test(/^({any})::/) | binary(/^({any})$/)");
        mutants.args(["--", "-E", &filter]);
    }
    // 2: some were missed; 3: some timed out.
    match exit_code_within(&mut mutants, std::time::Duration::from_secs(24 * 3600))? {
        0 | 2 | 3 => {}
        code => bail!("cargo-mutants ended with exit code {code}"),
    }
    let results = out.join("mutants.out");
    let count = Count {
        caught: lines_of(&results.join("caught.txt")),
        timeout: lines_of(&results.join("timeout.txt")),
        missed: lines_of(&results.join("missed.txt")),
        unviable: lines_of(&results.join("unviable.txt")),
    };
    Ok(count)
}

fn lines_of(file: &PathBuf) -> usize {
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
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
    use crate::root;

    #[test]
    fn a_sample_is_the_seeds_alone_and_larger_ones_contain_it() {
        let names: Vec<String> = (0..50)
            .map(|i| format!("src/lib.rs:{i}:1: replace f with ()"))
            .collect();
        let small = sample(&names, 1, 5);
        let mut turned = names.clone();
        turned.reverse();
        assert_eq!(sample(&turned, 1, 5), small);
        assert_eq!(sample(&names, 1, 9)[..5], small);
        assert_ne!(sample(&names, 2, 5), small);
        assert_eq!(sample(&names, 1, 99).len(), 50);
    }

    #[test]
    fn tests_of_an_area_exist() {
        for area in Area::value_variants() {
            for test in area.tests().unwrap_or_default() {
                let file = root()
                    .join("nic-core/tests")
                    .join(test)
                    .with_extension("rs");
                assert!(file.is_file(), "{}", file.display());
            }
        }
    }

    #[test]
    fn a_hang_counts_as_caught_and_unviable_mutants_do_not_count() {
        let count = Count {
            caught: 8,
            timeout: 1,
            missed: 1,
            unviable: 7,
        };
        assert!((count.percent() - 90.0).abs() < 1e-9);
        assert_eq!(escaped("a::<T>(b) -> 1"), r"a::<T>\(b\) \-> 1");
    }
}
