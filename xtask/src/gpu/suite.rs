//! Test suite on the machine with the GPU: each test in a process of its own, because a context broken by one must not reach the
//! next.

#![allow(clippy::disallowed_methods)] // Runs programs within limits.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

use super::plan::Step;
use super::run::{one, End};
use crate::venv;
use crate::{root, suite};

/// Longest time of the whole suite, in seconds; later tests are not run, and are listed.
const BUDGET_S: u64 = 900;

/// How many tests of each program a short run takes.
const SAMPLE: usize = 2;

/// Names of tests by the program's name in the bundle.
pub(super) type Tests = BTreeMap<String, Vec<String>>;

/// Lists the tests of a program.
pub(super) fn list(program: &Path) -> Result<Vec<String>> {
    let out = Command::new(program)
        .args(["--list", "--format", "terse"])
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !out.status.success() {
        bail!(
            "{} does not list its tests: {}",
            program.display(),
            out.status
        );
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let names = text.lines().filter_map(|l| l.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Collects the kernels of tests for every GPU: the PTX for the emulated one (and the mock driver's), by nvcc for real ones.
/// Without nvcc the bundle has none for those, and prints that.
pub(super) fn kernels(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let include = root().join("cuda-kernels/include");
    let nvcc = venv::nvcc();
    if let Err(why) = &nvcc {
        println!("note: no kernels of tests for real GPUs, because there is no nvcc: {why:#}");
    }
    for (name, source) in suite::KERNELS {
        let source = root().join(source);
        let ptx = source.with_extension("ptx");
        std::fs::copy(&ptx, folder.join(name).with_extension("ptx"))
            .with_context(|| format!("cannot copy {}", ptx.display()))?;
        let Ok(nvcc) = &nvcc else { continue };
        let mut fat = Command::new(nvcc);
        fat.args(["--fatbin", "-std=c++17", "-Xfatbin=-compress-all"]);
        // As the SDK's own (cuda-kernels/build.rs): two architectures, and PTX for later ones.
        for code in ["compute_80,code=sm_80", "compute_90,code=sm_90"] {
            fat.arg(format!("-gencode=arch={code}"));
        }
        fat.args(["-gencode=arch=compute_90,code=compute_90", "-I"])
            .args([&include, &source])
            .arg("-o")
            .arg(folder.join(name).with_extension("fatbin"));
        crate::steps::command(&mut fat)?;
    }
    Ok(())
}

/// The steps that run the suite, one for each program.
pub(super) fn sample(tests: &[String], short: bool) -> Vec<String> {
    let most = if short { SAMPLE } else { tests.len() };
    tests.iter().take(most).cloned().collect()
}

/// Runs the tests of a program, one after the other; the report counts them, and names those that failed or were skipped.
pub(super) fn run(
    step: &Step,
    gpu: &str,
    out: &Path,
    spent: &mut Duration,
) -> Result<(End, Value)> {
    let (mut passed, mut left) = (0, 0);
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    for test in &step.tests {
        if *spent > Duration::from_secs(BUDGET_S) {
            left += 1;
            continue;
        }
        let start = Instant::now();
        let alone = Step {
            name: format!("{}--{}", step.name, test.replace("::", "--")),
            args: [test, "--exact", "--nocapture", "--test-threads=1"]
                .map(str::to_owned)
                .to_vec(),
            tests: Vec::new(),
            ..step.clone()
        };
        let end = one(&alone, gpu, out, Duration::from_secs(step.limit_s))?;
        *spent += start.elapsed();
        let log = out.join("logs").join(format!("{}.log", alone.name));
        let said = std::fs::read_to_string(log).unwrap_or_default();
        match judge(end, &said) {
            End::Passed => passed += 1,
            End::Skipped(why) => skipped.push(json!({"test": test, "why": why})),
            End::Failed(why) => {
                println!("    FAILED {test}: {why}");
                failed.push(json!({"test": test, "why": why}));
            }
        }
    }
    let end = match (failed.len(), left) {
        (0, 0) if passed == 0 => End::Skipped("every test skipped itself".into()),
        (0, 0) => End::Passed,
        (0, n) => End::Failed(format!("{n} tests were not run: the suite's time was over")),
        (n, _) => {
            let names: Vec<&str> = failed.iter().filter_map(|f| f["test"].as_str()).collect();
            End::Failed(format!("{n} of {}: {}", step.tests.len(), names.join(", ")))
        }
    };
    let report = json!({"passed": passed, "failed": failed, "skipped": skipped, "not_run": left});
    Ok((end, report))
}

/// Result of a test, from its process's end and output.
fn judge(end: End, said: &str) -> End {
    if end != End::Passed {
        return end;
    }
    let skip = said.lines().find_map(|l| {
        let (_, rest) = l.split_once("SKIPPED")?;
        Some(rest.split_once(": ")?.1)
    });
    match skip {
        Some(why) => End::Skipped(why.to_owned()),
        None if said.contains("1 passed") => End::Passed,
        // A process that runs no test exits with 0 too.
        None => End::Failed("it did not say that one test has passed".into()),
    }
}

/// The results of the suite, for the table.
pub(super) fn table(done: &[super::run::Done]) -> String {
    let reports = done.iter().filter(|d| d.report["passed"].is_u64());
    let (mut lines, mut skipped) = (String::new(), String::new());
    let mut sums = [0, 0, 0, 0];
    for d in reports {
        let count = |key: &str| d.report[key].as_array().map_or(0, |a| a.len() as u64);
        let of = [
            d.report["passed"].as_u64().unwrap_or(0),
            count("failed"),
            count("skipped"),
            d.report["not_run"].as_u64().unwrap_or(0),
        ];
        for (sum, n) in sums.iter_mut().zip(of) {
            *sum += n;
        }
        let [passed, failed, skips, left] = of;
        let name = d.name.trim_start_matches("suite-");
        lines += &format!("| {name} | {passed} | {failed} | {skips} | {left} |\n");
        for s in d.report["skipped"].as_array().into_iter().flatten() {
            let text = |key: &str| s[key].as_str().unwrap_or_default().to_owned();
            skipped += &format!("- {name}, `{}`: {}\n", text("test"), text("why"));
        }
    }
    if lines.is_empty() {
        return lines;
    }
    let [passed, failed, skips, left] = sums;
    let mut out = format!(
        "\n| tests of | passed | failed | skipped | not run |\n|---|---|---|---|---|\n{lines}\
         | all | {passed} | {failed} | {skips} | {left} |\n"
    );
    if !skipped.is_empty() {
        out += &format!("\nSkipped tests, and why:\n\n{skipped}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::plan::Group;
    use super::super::run::Done;
    use super::*;

    fn step(name: &str, script: &str, tests: &[&str]) -> Step {
        // Stands for a test program: its first argument is the test's name.
        let folder = std::env::temp_dir().join(format!("rb-suite-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        Step {
            name: name.into(),
            group: Group::Correctness,
            limit_s: 2,
            program,
            args: Vec::new(),
            env: vec![("RINGBELL_TEST_GPU", "cuda".into())],
            report: None,
            tests: tests.iter().map(|t| (*t).to_owned()).collect(),
        }
    }

    #[test]
    fn a_hanging_or_killed_test_affects_no_other_and_skips_are_reported() {
        let script = r#"case $1 in
good) test $RINGBELL_TEST_GPU = cuda && echo "1 passed" ;;
skip) echo "x SKIPPED on CUDA: a reason"; echo "1 passed" ;;
dies) kill -9 $$ ;;
hangs) sleep 600 ;;
none) echo "0 passed" ;;
esac"#;
        let step = step("mixed", script, &["dies", "good", "hangs", "skip", "none"]);
        let out = step.program.parent().unwrap().join("out");
        std::fs::create_dir_all(out.join("logs")).unwrap();
        let mut none = Duration::ZERO;
        let (end, report) = run(&step, "cuda", &out, &mut none).unwrap();
        let failed = "3 of 5: dies, hangs, none";
        assert_eq!(end, End::Failed(failed.into()));
        assert_eq!(report["passed"], 1);
        assert_eq!(report["skipped"][0]["why"], "a reason");
        let mut over = Duration::from_secs(BUDGET_S + 1);
        let (end, late) = run(&step, "cuda", &out, &mut over).unwrap();
        assert!(matches!(end, End::Failed(why) if why.contains("5 tests were not run")));
        let done = [report, late].map(|report| Done {
            name: "suite-mixed".into(),
            group: Group::Correctness,
            end: End::Passed,
            seconds: 1.0,
            report,
        });
        let table = table(&done);
        assert!(table.contains("| mixed | 1 | 3 | 1 | 0 |"), "{table}");
        assert!(table.contains("| all | 1 | 3 | 1 | 5 |"), "{table}");
        assert!(table.contains("- mixed, `skip`: a reason"), "{table}");
        std::fs::remove_dir_all(out.parent().unwrap()).unwrap();
    }
}
