//! Runs of the fuzz targets of `fuzz/`: guided by coverage where nightly and cargo-fuzz are, else
//! blind.
//!
//! Without them the targets are built on stable, and libFuzzer changes the committed seeds at
//! random without feedback: little, but each target runs. A crash leaves its input below
//! `target/fuzz-run/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{anyhow, bail, Context as _, Result};
use fs_err as fs;

use crate::steps::{at_once, command, cores, succeeds, Outcome, Words as _};
use crate::workspace::cargo;
use crate::workspace::{entries, root, target};

/// What `cargo xtask fuzz` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for each target
    #[arg(long, default_value_t = SECONDS, value_name = "N")]
    seconds: u32,
    /// Keep what a target has found beside its seeds in fuzz/corpus/, and begin with it the next
    /// time
    #[arg(long)]
    keep: bool,
    /// Targets, by name [default: all]
    targets: Vec<String>,
}

/// Seconds for each target in CI.
const SECONDS: u32 = 10;

/// Seconds in CI without guidance: more of them find little more.
const BLIND_SECONDS: u32 = 5;

/// The level of optimisation. Where targets run for seconds, the highest takes longer to compile
/// than it saves.
const LEVEL: &str = "CARGO_PROFILE_RELEASE_OPT_LEVEL";

/// How targets are built and run.
struct Way {
    /// By coverage.
    guided: bool,
    /// Of each target.
    seconds: u32,
    /// What is found stays.
    keep: bool,
    /// They are compiled quickly, and run slower.
    is_quick: bool,
}

/// libFuzzer's settings. One seed, so that two runs on one machine begin alike.
const FLAGS: [&str; 5] = [
    "-seed=1",
    "-timeout=20",
    "-rss_limit_mb=2048",
    "-close_fd_mask=1",
    "-print_final_stats=1",
];

/// As a step of CI.
pub(crate) fn step() -> Result<Outcome> {
    let guided = is_guided();
    let seconds = if guided { SECONDS } else { BLIND_SECONDS };
    let way = Way {
        guided,
        seconds,
        keep: false,
        is_quick: true,
    };
    all(&names()?, &way)?;
    match guided {
        true => Ok(Outcome::Passed),
        false => Ok(Outcome::Skipped(
            "no nightly with cargo-fuzz (`cargo install cargo-fuzz --locked`): each target ran for a moment without guidance".into(),
        )),
    }
}

/// `cargo xtask fuzz`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let known = names()?;
    if let Some(unknown) = args.targets.iter().find(|t| !known.contains(*t)) {
        let known = Vec::from_iter(known).join(", ");
        bail!("no fuzz target `{unknown}`; there are {known}");
    }
    let wanted = match args.targets.is_empty() {
        true => known,
        false => args.targets.iter().cloned().collect(),
    };
    let guided = is_guided();
    if !guided {
        println!(
            "without guidance: `cargo install cargo-fuzz --locked` and a nightly toolchain give it"
        );
    }
    let way = Way {
        guided,
        seconds: args.seconds,
        keep: args.keep,
        is_quick: false,
    };
    all(&wanted, &way)
}

/// The targets' names: those of their files.
fn names() -> Result<BTreeSet<String>> {
    let dir = root().join("fuzz/fuzz_targets");
    let files = entries(&dir)?.into_iter();
    let names = files.filter_map(|f| Some(f.file_stem()?.to_str()?.to_owned()));
    Ok(names.collect())
}

fn nightly_fuzz() -> Command {
    let mut fuzz = Command::new("rustup");
    fuzz.current_dir(root())
        .args(["run", "nightly", "cargo", "fuzz"]);
    // The variables of this cargo are of another toolchain.
    for name in [
        "CARGO",
        "RUSTC",
        "RUSTUP_TOOLCHAIN",
        "RUSTFLAGS",
        "LD_LIBRARY_PATH",
    ] {
        fuzz.env_remove(name);
    }
    fuzz
}

/// Whether coverage can guide the fuzzer here.
fn is_guided() -> bool {
    succeeds(nightly_fuzz().arg("--version"))
}

/// Builds all targets once; returns the folder with their programs.
fn build(way: &Way, work: &Path) -> Result<PathBuf> {
    let level = way.is_quick.then_some((LEVEL, "1"));
    if way.guided {
        let target = work.join("guided");
        let mut fuzz = nightly_fuzz();
        fuzz.args(["build", "--target-dir"]).arg(&target);
        command(fuzz.envs(level))?;
        let mut built = fs::read_dir(&target)?.filter_map(|e| Some(e.ok()?.path().join("release")));
        // cargo-fuzz names the host's target, and cargo puts the programs below it.
        return built
            .find(|release| release.join("wire").is_file())
            .context("cargo-fuzz has built no program `wire`");
    }
    let target = work.join("blind");
    let mut blind = cargo();
    blind.words("build --release --locked --manifest-path fuzz/Cargo.toml --target-dir");
    // As cargo-fuzz has them.
    blind.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    command(blind.arg(&target).envs(level))?;
    Ok(target.join("release"))
}

/// Runs the targets, as many at once as there are cores.
fn all(names: &BTreeSet<String>, way: &Way) -> Result<()> {
    let work = target().join("fuzz-run");
    let programs = build(way, &work)?;
    let names: Vec<&String> = names.iter().collect();
    let ended = at_once(cores(), &names, |name| {
        let ended = one(name, &programs, &work, way);
        match &ended {
            Ok(said) => println!("{name:<12} {said}"),
            Err(error) => println!("{name:<12} FAILED: {error:#}"),
        }
        ended.map_err(|error| anyhow!("{name} failed{}", reason(&format!("{error:#}"))))
    });
    ended.context("see target/fuzz-run/").map(drop)
}

/// Runs one target; returns a summary.
fn one(name: &str, programs: &Path, work: &Path, way: &Way) -> Result<String> {
    let found = match way.keep {
        true => root().join("fuzz/corpus").join(name),
        false => work.join("found").join(name),
    };
    if found.exists() && !way.keep {
        fs::remove_dir_all(&found)?;
    }
    fs::create_dir_all(&found)?;
    let seeds = root().join("fuzz/seeds").join(name);
    let log_path = work.join(format!("{name}.log"));
    let log = fs::File::create(&log_path)?;
    let artifacts = format!("-artifact_prefix={}/{name}-", work.display());
    let mut fuzzer = Command::new(programs.join(name));
    fuzzer
        .current_dir(root())
        .args(FLAGS)
        .args([format!("-max_total_time={}", way.seconds), artifacts])
        .arg(&found);
    if seeds.is_dir() {
        fuzzer.arg(&seeds);
    }
    let status = fuzzer
        .stdout(Stdio::null())
        .stderr(log.into_parts().0)
        .status();
    let status = status.with_context(|| format!("cannot start the program of {name}"))?;
    let said = String::from_utf8_lossy(&fs::read(&log_path)?).into_owned();
    if !status.success() {
        let from = said.lines().count().saturating_sub(40);
        let tail: Vec<_> = said.lines().skip(from).collect();
        bail!(
            "{status}{}; {} ends:\n{}",
            reason(&said),
            log_path.display(),
            tail.join("\n")
        );
    }
    summary(&said)
        .with_context(|| format!("{} has no closing line of libFuzzer", log_path.display()))
}

/// What ended a target: a panic's place and text, else libFuzzer's line.
fn reason(log: &str) -> String {
    let panic = log.lines().skip_while(|l| !l.contains("panicked at"));
    let panic: Vec<_> = panic.take(2).collect();
    let error = log.lines().find(|l| l.contains("ERROR: "));
    match (panic.is_empty(), error) {
        (false, _) => format!(": {}", panic.join(" ")),
        (true, Some(line)) => format!(": {line}"),
        (true, None) => String::new(),
    }
}

/// The number of runs, and the covered part of the code.
fn summary(said: &str) -> Option<String> {
    let done = said.lines().rfind(|l| l.starts_with("Done "))?;
    let word = |l: &str| {
        l.split("cov: ")
            .nth(1)?
            .split(' ')
            .next()
            .map(str::to_owned)
    };
    let coverage = said.lines().rev().find_map(word);
    let done = done.trim_start_matches("Done ");
    Some(match coverage {
        Some(cov) => format!("{done}, {cov} edges seen"),
        None => done.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_failure_is_found() {
        let panic = "#5 NEW\nthread 'x' panicked at a.rs:1:2:\n3 requests never completed\nnote: run\n==1== ERROR: libFuzzer: deadly signal\n";
        let want = ": thread 'x' panicked at a.rs:1:2: 3 requests never completed";
        assert_eq!(reason(panic), want);
        let timeout = "x\n==1== ERROR: libFuzzer: timeout after 21 seconds\n";
        assert_eq!(
            reason(timeout),
            ": ==1== ERROR: libFuzzer: timeout after 21 seconds"
        );
        assert_eq!(reason("Done 5 runs"), "");
    }

    #[test]
    fn every_target_is_built_and_has_seeds() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("the manifest");
        for name in names().expect("targets") {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            let seeds = fs::read_dir(root().join("fuzz/seeds").join(&name));
            assert!(
                seeds.is_ok_and(|mut s| s.next().is_some()),
                "no seed of {name}"
            );
        }
    }

    #[test]
    fn the_closing_line_is_summarised() {
        let said = "#2\tINITED cov: 12 ft: 13\n#9\tNEW    cov: 34 ft: 40 corp: 2/3b\nDone 900 runs in 31 second(s)\nstat::x: 1\n";
        let told = "900 runs in 31 second(s), 34 edges seen";
        assert_eq!(summary(said).as_deref(), Some(told));
        assert_eq!(summary("==1== ERROR: libFuzzer: deadly signal\n"), None);
    }
}
