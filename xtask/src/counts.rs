//! `cargo xtask counts`: instructions of the paths of small operations, compared with recorded
//! counts.
//!
//! Times on a shared machine vary by a third, instructions by a thousandth.
//! `benches/micro/counts.rs` has the paths; each runs under callgrind. A count above the recorded
//! one by more than the tolerance fails; a lower one is for `--update` to record. Only instructions
//! count: the simulated caches and branches are no real machine's.

mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};
use fs_err as fs;
use serde_json::{json, Value};

use crate::steps::{output, Outcome, Words as _};
use crate::workspace::{root, target};
use crate::{tools, workspace};

/// File with the recorded counts.
const RECORDED: &str = "benches/micro/counts.json";
/// Tolerated growth of a count, in percent.
const TOLERANCE: f64 = 5.0;
/// The same when another compiler than the recorded one has built the program.
const TOLERANCE_OTHER_COMPILER: f64 = 15.0;

/// Instructions by path.
type Counts = BTreeMap<String, f64>;

/// Content of `counts.json`.
#[derive(Debug, PartialEq)]
struct Recorded {
    compiler: String,
    counts: Counts,
}

/// As a step of CI: skipped without valgrind.
pub(crate) fn compare() -> Result<Outcome> {
    if let Some(why) = unable() {
        return Ok(Outcome::Skipped(why));
    }
    let recorded = read()?;
    let compiler = compiler()?;
    let tolerance = if compiler == recorded.compiler {
        TOLERANCE
    } else {
        println!(
            "counts were recorded with {}, this is {compiler}: up to {TOLERANCE_OTHER_COMPILER} % more pass; record anew with --update",
            recorded.compiler
        );
        TOLERANCE_OTHER_COMPILER
    };
    let counted = count()?;
    let verdict = judge(&recorded.counts, &counted.counts, tolerance);
    print!("{}", verdict.table);
    if verdict.worse.is_empty() {
        // Another compiler may inline another file's functions.
        if compiler == recorded.compiler {
            files::check(&counted.files)?;
        }
        return Ok(Outcome::Passed);
    }
    bail!(
        "{}; shorten the path, or say in the commit why it is worth it and record with `cargo xtask counts --update`",
        verdict.worse.join(", ")
    )
}

/// Records the present counts.
pub(crate) fn update() -> Result<()> {
    if let Some(why) = unable() {
        bail!("{why}");
    }
    let Counted { counts, files } = count()?;
    files::update(&files)?;
    let before = read().map(|r| r.counts).unwrap_or_default();
    print!("{}", judge(&before, &counts, TOLERANCE).table);
    let text = json!({ "compiler": compiler()?, "instructions": counts });
    Ok(fs::write(root().join(RECORDED), format!("{text:#}\n"))?)
}

/// Prints the files that a path crosses.
pub(crate) fn print_files(path: &str) -> Result<()> {
    if let Some(why) = unable() {
        bail!("{why}");
    }
    let (profile, operations) = profile(&build()?, path)?;
    let files = files::crossed(&profile, operations);
    files.iter().for_each(|f| println!("{f}"));
    println!("{} files", files.len());
    Ok(())
}

/// Why this machine cannot count.
fn unable() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the recorded counts are of x86-64".into());
    }
    tools::find("valgrind")
        .is_none()
        .then(|| "no valgrind. Debian: apt-get install valgrind".into())
}

fn compiler() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(output(Command::new(rustc).arg("--version"))?
        .trim()
        .to_string())
}

fn read() -> Result<Recorded> {
    let text = fs::read_to_string(root().join(RECORDED))?;
    parse(&text).with_context(|| format!("{RECORDED} is not as --update writes it"))
}

fn parse(text: &str) -> Result<Recorded> {
    let mut all: Value = serde_json::from_str(text)?;
    let counts: Counts = serde_json::from_value(all["instructions"].take())?;
    if let Some((path, _)) = counts.iter().find(|(_, n)| **n <= 0.0) {
        bail!("no count of {path}");
    }
    let compiler = all["compiler"].as_str().context("no compiler")?.into();
    Ok(Recorded { compiler, counts })
}

struct Verdict {
    table: String,
    /// The counts that have become worse.
    worse: Vec<String>,
}

fn judge(recorded: &Counts, now: &Counts, tolerance: f64) -> Verdict {
    let mut table = format!(
        "{:<30} {:>10} {:>10} {:>8}\n",
        "instructions of", "recorded", "now", ""
    );
    let mut worse = Vec::new();
    for (path, n) in now {
        let Some(was) = recorded.get(path) else {
            table += &format!("{path:<30} {:>10} {n:>10.1}\n", "-");
            worse.push(format!("{path} is not recorded"));
            continue;
        };
        let percent = (n / was - 1.0) * 100.0;
        table += &format!("{path:<30} {was:>10.1} {n:>10.1} {percent:>+7.1}%\n");
        if percent > tolerance {
            worse.push(format!("{path} takes {percent:.1} % more instructions"));
        }
    }
    for path in recorded.keys().filter(|p| !now.contains_key(*p)) {
        worse.push(format!("{path} is recorded and no longer counted"));
    }
    Verdict { table, worse }
}

/// What was counted of all paths.
struct Counted {
    counts: Counts,
    files: files::Files,
}

fn count() -> Result<Counted> {
    let program = build()?;
    let list = output(Command::new(&program).arg("--list"))?;
    let (mut counts, mut files) = (Counts::new(), files::Files::new());
    for path in list.lines() {
        let (profile, operations) = profile(&program, path)?;
        let n = instructions(&profile)
            .with_context(|| format!("no instructions were counted of {path}"))?;
        counts.insert(path.into(), (n / operations * 10.0).round() / 10.0);
        files.insert(path.into(), files::crossed(&profile, operations));
    }
    Ok(Counted { counts, files })
}

/// Runs a path under callgrind. Its profile, and the number of operations in that.
fn profile(program: &Path, path: &str) -> Result<(String, f64)> {
    let dir = target().join("counts");
    fs::create_dir_all(&dir)?;
    let file = dir.join(format!("{}.callgrind", path.replace([' ', ','], "-")));
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&file);
    let said = output(
        Command::new("valgrind")
            .args(["--tool=callgrind", "--toggle-collect=counts::counted*"])
            .arg(out)
            .arg(program)
            .arg(path),
    )?;
    let operations = said
        .trim()
        .strip_prefix(&format!("{path}: "))
        .and_then(|n| n.parse().ok())
        .with_context(|| format!("{path} said {said:?} instead of a number"))?;
    Ok((fs::read_to_string(&file)?, operations))
}

/// The sum that a callgrind profile ends with, unless nothing was counted.
fn instructions(profile: &str) -> Option<f64> {
    let sum = profile.lines().find_map(|l| l.strip_prefix("totals:"))?;
    sum.trim().parse().ok().filter(|n| *n > 0.0)
}

/// Builds the program; returns its path.
fn build() -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    cargo.words("bench --quiet --no-run --profile=dist --package=ringbell-micro --bench=counts");
    workspace::executable(&output(cargo.arg("--message-format=json"))?, "counts")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> Counts {
        of.iter().map(|(p, n)| (p.to_string(), *n)).collect()
    }

    #[test]
    fn more_instructions_fail_and_fewer_do_not() {
        let was = counts(&[("a", 100.0), ("b", 1000.0)]);
        let same = judge(&was, &counts(&[("a", 104.9), ("b", 500.0)]), TOLERANCE);
        assert!(same.worse.is_empty(), "{:?}", same.worse);
        let more = judge(&was, &counts(&[("a", 105.1), ("b", 1000.0)]), TOLERANCE);
        assert_eq!(more.worse.len(), 1);
        assert!(
            more.worse[0].starts_with("a takes 5.1 %"),
            "{:?}",
            more.worse
        );
    }

    #[test]
    fn paths_cannot_come_or_go_unrecorded() {
        let verdict = judge(&counts(&[("a", 1.0)]), &counts(&[("b", 1.0)]), TOLERANCE);
        assert_eq!(
            verdict.worse,
            ["b is not recorded", "a is recorded and no longer counted"]
        );
    }

    #[test]
    fn outputs_of_callgrind_and_of_update_are_read() {
        assert_eq!(instructions("fn=(1)\n1 2\n\ntotals: 4321\n"), Some(4321.0));
        assert_eq!(instructions("totals: 0\n"), None, "nothing was counted");
        assert_eq!(instructions("fn=(1)\n"), None);
        let text = json!({ "compiler": "rustc 1", "instructions": { "a b": 1.5 } }).to_string();
        let want = Recorded {
            compiler: "rustc 1".into(),
            counts: counts(&[("a b", 1.5)]),
        };
        assert_eq!(parse(&text).expect("well-formed"), want);
        assert!(parse("{}").is_err());
        assert!(parse(&text.replace("1.5", "0")).is_err());
        parse(&std::fs::read_to_string(root().join(RECORDED)).expect("checked in")).expect("good");
    }
}
