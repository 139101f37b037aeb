//! Runner of a bundle's steps: each within its limit, and the next ones after any outcome.
//!
//! Each test of the suite is a process of its own, because a context broken by one must not reach
//! the next.

#![allow(clippy::disallowed_methods)] // Runs programs within limits, and times them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fs_err as fs;
use serde_json::{json, Value};

use super::plan::{Group, Plan, Step};
use super::summary::{self, Done};
use crate::steps::{self, Running};
use crate::suite::{KERNELS_PROGRAM, SDK_PROGRAM};
use crate::summary::End;
use crate::tools::find;

/// Longest that all measurements together may take, and all tests: later ones are not run.
pub(super) const MEASURING: Duration = Duration::from_secs(480);
const TESTING: Duration = Duration::from_secs(900);

/// What may be chosen on the machine with the GPU.
#[derive(clap::Args)]
pub(crate) struct HereArgs {
    /// What runs the kernels; CUDA_VISIBLE_DEVICES chooses among several GPUs
    #[arg(long, default_value = "cuda", value_parser = ["cuda", "emulated"])]
    gpu: String,
    /// Small runs: show that everything works, measure nothing
    #[arg(long)]
    short: bool,
    /// Run these steps alone, where time is short
    #[arg(long, value_name = "GROUP", value_enum)]
    only: Vec<Group>,
    /// NCCL's libnccl.so.2 to measure beside ours [default: searched on the machine]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
    /// Where results go, from the bundle
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    results: PathBuf,
}

/// Runs a bundle that `cargo xtask gpu` has made (its script does)
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The bundle
    #[arg(long, value_name = "FOLDER")]
    pub(super) bundle: PathBuf,
    #[command(flatten)]
    pub(super) here: HereArgs,
}

/// Runs everything; false when a step failed.
pub(super) fn run(bundle: &Path, here: &HereArgs) -> Result<bool> {
    let bundle = fs::canonicalize(bundle)?;
    let about = fs::read_to_string(bundle.join("bundle.json"));
    let about = about.context("the bundle is not complete; unpack it again")?;
    let about: Value = serde_json::from_str(&about).context("bundle.json is no JSON")?;
    let out = bundle.join(&here.results);
    for own in ["logs", "files"] {
        fs::create_dir_all(out.join(own))?;
    }
    let out = fs::canonicalize(out)?;
    let plan = Plan {
        bundle: &bundle,
        out: &out,
        real: here.gpu == "cuda",
        short: here.short,
    };
    let list = |binary: &str| {
        let program = bundle.join("tests").join(binary);
        steps::output(Command::new(program).args(["--list", "--format", "terse"]))
    };
    let (kernels, sdk) = (list(KERNELS_PROGRAM)?, list(SDK_PROGRAM)?);
    let mut steps = plan.steps(|program| {
        let listed = if program.binary == SDK_PROGRAM {
            &sdk
        } else {
            &kernels
        };
        let tests = listed.lines().filter_map(|l| l.strip_suffix(": test"));
        let own = tests.filter(|t| program.has(t)).map(str::to_owned);
        own.collect()
    });
    if !here.only.is_empty() {
        steps.retain(|s| here.only.contains(&s.group));
    }
    if let Some(nccl) = &here.nccl {
        let nccl = fs::canonicalize(nccl).context("--nccl")?;
        for step in &mut steps {
            if step.args.iter().any(|a| a == "--beside") {
                step.args
                    .extend(["--nccl".into(), nccl.display().to_string()]);
            }
        }
    }
    let done = all(steps, &here.gpu, &out)?;
    let results = summary::results(&done, &about, &machine(), &here.gpu, here.short);
    let table = summary::table(&results, &done);
    fs::write(out.join("results.json"), format!("{results:#}\n"))?;
    fs::write(out.join("table.md"), &table)?;
    println!("\n{table}\nresults: {}", out.display());
    Ok(!done.iter().any(|d| matches!(d.end, End::Failed(_))))
}

fn all(steps: Vec<Step>, gpu: &str, out: &Path) -> Result<Vec<Done>> {
    let mut done = Vec::new();
    let (mut measured, mut tested) = (Duration::ZERO, Duration::ZERO);
    for step in steps {
        let (spent, most) = match step.group {
            Group::Measurement => (&mut measured, MEASURING),
            _ => (&mut tested, TESTING),
        };
        let left = most.saturating_sub(*spent);
        let start = Instant::now();
        let (end, said) = match () {
            () if left.is_zero() => {
                let why = format!("not run: the {} s were over", most.as_secs());
                (End::Failed(why), String::new())
            }
            () if step.group == Group::Sanitizer && sanitizer().is_none() => {
                let why = "compute-sanitizer is not there";
                (End::Skipped(why.into()), String::new())
            }
            () => one(&step, gpu, out, step.limit.min(left))?,
        };
        *spent += start.elapsed();
        let seconds = start.elapsed().as_secs_f64();
        let (word, why) = end.in_words();
        println!("{:<70} {seconds:>6.1} s  {word} {why}", step.name);
        let report = std::fs::read_to_string(report_of(&step, out)).ok();
        let report = report.and_then(|text| serde_json::from_str(&text).ok());
        done.push(Done {
            step,
            end,
            seconds,
            said,
            report: report.unwrap_or_default(),
        });
    }
    Ok(done)
}

fn report_of(step: &Step, out: &Path) -> PathBuf {
    out.join(format!("{}.json", step.name))
}

/// In the path, or where CUDA's toolkit puts it.
fn sanitizer() -> Option<PathBuf> {
    let usual = Path::new("/usr/local/cuda/bin/compute-sanitizer");
    find("compute-sanitizer").or_else(|| usual.is_file().then(|| usual.to_owned()))
}

/// Runs a program once; how it ended, and what it printed.
fn one(step: &Step, gpu: &str, out: &Path, limit: Duration) -> Result<(End, String)> {
    // A report of an earlier run is not this one's.
    let _ = std::fs::remove_file(report_of(step, out));
    let log = out.join("logs").join(format!("{}.log", step.name));
    let file = fs::File::create(&log)?.into_parts().0;
    let program = match step.group {
        Group::Sanitizer => sanitizer().unwrap_or_else(|| step.program.clone()),
        _ => step.program.clone(),
    };
    let mut command = Command::new(&program);
    command
        .args(&step.args)
        .env("RINGBELL_GPU", gpu)
        // Kernels of many streams wait for each other. None may stand behind another in one of the
        // GPU's queues. None may be loaded only at its launch, which may wait for running kernels
        // (CUDA C++ Programming Guide, "Lazy Loading").
        .env("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        .env("CUDA_MODULE_LOADING", "EAGER")
        .envs(step.env.iter().map(|(name, value)| (name, value)))
        .stdout(file.try_clone().context("no descriptor left")?)
        .stderr(file);
    let ended = Running::start(&mut command).and_then(|running| running.end(limit));
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let end = match ended {
        _ if step.group == Group::Sanitizer && refusal(&said).is_some() => {
            let words = refusal(&said).unwrap_or_default();
            End::Skipped(format!("compute-sanitizer says: {words}"))
        }
        Ok(out) if !out.status.success() => End::Failed(out.status.to_string()),
        Ok(_) if step.of.is_some() => judge(&said),
        Ok(_) => End::Passed,
        Err(error) => End::Failed(format!("{error:#}")),
    };
    Ok((end, said))
}

/// Result of a test whose process has ended well.
fn judge(said: &str) -> End {
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

/// A sanitizer's message that it cannot work here: its lines begin with `=========`. It has checked
/// nothing then.
fn refusal(said: &str) -> Option<String> {
    said.lines()
        .filter_map(|l| l.strip_prefix("========="))
        .find(|l| l.to_lowercase().contains("not supported"))
        .map(|l| l.trim().to_owned())
}

/// The machine, its GPUs and their driver, as far as they can be read.
fn machine() -> Value {
    let said = |program: &str, args: &[&str]| {
        let text = steps::output(Command::new(program).args(args)).ok()?;
        Some(text.trim().to_owned()).filter(|t| !t.is_empty())
    };
    let query = "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max";
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut models = cpu.lines().filter_map(|l| l.strip_prefix("model name"));
    let cpu = models
        .next()
        .map(|l| l.trim_start_matches([' ', '\t', ':']));
    json!({
        "cpu": cpu,
        "cores": steps::cores(),
        "kernel": said("uname", &["-sr"]),
        "gpus": said("nvidia-smi", &[query, "--format=csv,noheader"]),
        "date": said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, script: &str) -> Step {
        Step {
            name: name.into(),
            group: Group::Correctness,
            limit: Duration::from_secs(60),
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("WORD", "heard".into())],
            of: None,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let out = std::env::temp_dir().join(format!("rb-gpu-{name}-{}", std::process::id()));
        std::fs::create_dir_all(out.join("logs")).unwrap();
        out
    }

    #[test]
    fn a_sanitizer_that_refuses_the_device_is_quoted_and_no_failure() {
        let said = "========= Error: Device not supported. Please refer to the documentation";
        let words = refusal(&format!("x\n{said}\n========= more\n"));
        let words = words.expect("it refuses");
        assert!(words.starts_with("Error: Device not supported"), "{words}");
        let found = "========= ERROR SUMMARY: 0 errors\nnot supported";
        assert_eq!(refusal(found), None);
        if sanitizer().is_none() {
            let out = folder("refused");
            let mut refused = step("s", &format!("echo '{said}'; exit 1"));
            // In the group of sanitizers: `one` looks for the tool itself only where it is.
            refused.group = Group::Sanitizer;
            let (end, _) = one(&refused, "cuda", &out, refused.limit).unwrap();
            assert!(matches!(end, End::Skipped(why) if why.contains("Device not supported")));
            std::fs::remove_dir_all(&out).unwrap();
        }
    }

    #[test]
    fn a_step_that_fails_or_hangs_does_not_stop_the_others() {
        let out = folder("run");
        let mut hangs = step("b", "sleep 600");
        hangs.limit = Duration::from_secs(1);
        let written = out.join("d.json");
        let reports = step("d", &format!("echo '{{\"x\": 7}}' > {}", written.display()));
        let mut absent = step("e", "true");
        absent.program = "/nonexistent/program".into();
        let test = |name, script| {
            let mut step = step(name, script);
            step.of = Some("mixed".into());
            step
        };
        let steps = vec![
            step("a", "exit 3"),
            hangs,
            step("c", "test $WORD = heard && test $RINGBELL_GPU = emulated"),
            reports,
            absent,
            test("f", "echo 1 passed"),
            test("g", "echo 0 passed"),
            test("h", "echo x SKIPPED on CUDA: a reason; echo 1 passed"),
            test("i", "kill -9 $$"),
        ];
        let done = all(steps, "emulated", &out).unwrap();
        let words: Vec<&str> = done.iter().map(|d| d.end.in_words().0).collect();
        let want = [
            "FAILED", "FAILED", "passed", "passed", "FAILED", "passed", "FAILED", "SKIPPED",
            "FAILED",
        ];
        assert_eq!(words, want);
        assert_eq!(done[3].report["x"], 7);
        assert_eq!(done[7].end, End::Skipped("a reason".into()));
        let about = json!({"commit": "abc"});
        let results = summary::results(&done, &about, &json!({}), "cuda", false);
        let table = summary::table(&results, &done);
        assert!(table.contains("| mixed | 1 | 2 | 1 |"), "{table}");
        assert!(table.contains("- mixed, `h`: a reason"), "{table}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}
