//! Runner of a bundle's steps: each within its limit, and the next ones after any outcome.

#![allow(clippy::disallowed_methods)] // Runs programs within limits, and times them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use fs_err as fs;
use serde_json::{json, Value};

use super::plan::{steps, Group, Step};
use super::{suite, summary};
use crate::steps::Running;
use crate::tools::find;

/// Longest that all measurements together may take, in seconds.
pub(super) const BUDGET_S: u64 = 480;

/// What may be chosen on the machine with the GPU.
#[derive(clap::Args)]
pub(crate) struct HereArgs {
    /// What runs the kernels: `cuda`, `cuda:N` or `emulated`
    #[arg(long, default_value = "cuda", value_name = "cuda[:N]|emulated")]
    gpu: String,
    /// Small runs: show that everything works, measure nothing
    #[arg(long)]
    short: bool,
    /// Run these steps alone, where time is short
    #[arg(long, value_name = "GROUP", value_enum)]
    only: Vec<Group>,
    /// NCCL's libnccl.so.2 to measure beside ours. `cargo xtask gpu` puts it into the bundle, which the libraries on PyPI
    /// are too large for; `./run` takes it where it is [default: the bundle's, else searched on the machine]
    #[arg(long, value_name = "PATH")]
    pub(super) nccl: Option<PathBuf>,
    /// Where results go
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    results: PathBuf,
}

impl HereArgs {
    /// The same on the command line of the script.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = vec!["--gpu".to_owned(), self.gpu.clone()];
        if self.short {
            words.push("--short".into());
        }
        for group in &self.only {
            words.extend(["--only".into(), group.name().into()]);
        }
        words.extend(["--results".into(), self.results.display().to_string()]);
        words
    }
}

/// Runs a bundle that `cargo xtask gpu` has made (its script does)
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The bundle
    #[arg(long, value_name = "FOLDER")]
    bundle: PathBuf,
    #[command(flatten)]
    here: HereArgs,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Passed,
    Failed(String),
    Skipped(String),
}

/// A step that was run, or not.
pub(super) struct Done {
    pub(super) name: String,
    pub(super) group: Group,
    pub(super) end: End,
    pub(super) seconds: f64,
    /// Its report.
    pub(super) report: Value,
}

/// Runs everything; false when a step failed.
pub(crate) fn run(args: &RunArgs) -> Result<bool> {
    let bundle = args
        .bundle
        .canonicalize()
        .with_context(|| format!("there is no bundle {}", args.bundle.display()))?;
    let about = bundle.join("bundle.json");
    let about = std::fs::read_to_string(&about)
        .with_context(|| format!("{} is missing; unpack the bundle again", about.display()))?;
    let about: Value = serde_json::from_str(&about).context("bundle.json is no JSON")?;
    let real = match args.here.gpu.as_str() {
        "emulated" => false,
        g if g == "cuda" || g.starts_with("cuda:") => true,
        other => bail!("--gpu is cuda, cuda:N or emulated, not `{other}`"),
    };
    let out = &args.here.results;
    std::fs::create_dir_all(out.join("logs"))
        .with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize().context("the results' folder is gone")?;
    let tests = serde_json::from_value(about["tests"].clone())
        .context("bundle.json names no tests; build the bundle again")?;
    let mut steps = steps(real, args.here.short, &bundle, &out, &tests);
    if !args.here.only.is_empty() {
        steps.retain(|s| args.here.only.contains(&s.group));
    }
    let files = out.join("files");
    std::fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
    if let Some(nccl) = nccl(&args.here, &bundle)? {
        for step in &mut steps {
            if step.args.iter().any(|a| a == "--beside") {
                step.args
                    .extend(["--nccl".to_owned(), nccl.display().to_string()]);
            }
        }
    }
    let done = all(&steps, &args.here.gpu, &out)?;
    let machine = machine();
    let results = summary::results(&done, &about, &machine, &args.here.gpu, args.here.short);
    let table = summary::table(&results) + &suite::table(&done);
    write(&out.join("results.json"), &format!("{results:#}\n"))?;
    write(&out.join("table.md"), &table)?;
    println!("\n{table}\nresults: {}", out.display());
    Ok(!done.iter().any(|d| matches!(d.end, End::Failed(_))))
}

/// The named NCCL, else the bundle's; without either the machine is searched.
fn nccl(here: &HereArgs, bundle: &Path) -> Result<Option<PathBuf>> {
    if let Some(named) = &here.nccl {
        let found = named.canonicalize();
        return Ok(Some(found.with_context(|| {
            format!("--nccl: there is no {}", named.display())
        })?));
    }
    let packed = bundle.join(super::NCCL);
    Ok(packed.is_file().then_some(packed))
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn all(steps: &[Step], gpu: &str, out: &Path) -> Result<Vec<Done>> {
    let mut done = Vec::new();
    let mut spent = Duration::ZERO;
    let mut tested = Duration::ZERO;
    for step in steps {
        let mut limit = Duration::from_secs(step.limit_s);
        if step.group == Group::Measurement {
            limit = limit.min(Duration::from_secs(BUDGET_S).saturating_sub(spent));
        }
        let start = Instant::now();
        let mut account = Value::Null;
        let end = match skipped(step, limit) {
            Some(why) => End::Skipped(why),
            None if step.tests.is_empty() => one(step, gpu, out, limit)?,
            None => {
                let (end, report) = suite::run(step, gpu, out, &mut tested)?;
                account = report;
                end
            }
        };
        let took = start.elapsed();
        if step.group == Group::Measurement {
            spent += took;
        }
        let (word, why) = match &end {
            End::Passed => ("passed", ""),
            End::Failed(why) => ("FAILED", why.as_str()),
            End::Skipped(why) => ("not run", why.as_str()),
        };
        println!(
            "{:<70} {:>6.1} s  {word} {why}",
            step.name,
            took.as_secs_f64()
        );
        let report = step
            .report
            .as_ref()
            // Of a failed one as well, if it wrote one: wrong values are marked in it.
            .filter(|_| !matches!(end, End::Skipped(_)))
            .and_then(|file| std::fs::read_to_string(file).ok())
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or(account);
        done.push(Done {
            name: step.name.clone(),
            group: step.group,
            end,
            seconds: took.as_secs_f64(),
            report,
        });
    }
    Ok(done)
}

fn skipped(step: &Step, limit: Duration) -> Option<String> {
    if step.group == Group::Sanitizer && sanitizer().is_none() {
        return Some("compute-sanitizer is not there".into());
    }
    limit
        .is_zero()
        .then(|| "the time for measurements is over".into())
}

/// In the path, or where CUDA's toolkit puts it.
fn sanitizer() -> Option<PathBuf> {
    let usual = Path::new("/usr/local/cuda/bin/compute-sanitizer");
    find("compute-sanitizer").or_else(|| usual.is_file().then(|| usual.to_owned()))
}

/// Runs a program once.
pub(super) fn one(step: &Step, gpu: &str, out: &Path, limit: Duration) -> Result<End> {
    if let Some(report) = &step.report {
        // A report of an earlier run is not this one's.
        let _ = std::fs::remove_file(report);
    }
    let log = out.join("logs").join(format!("{}.log", step.name));
    let file = fs::File::create(&log)?.into_parts().0;
    let program = match step.group {
        Group::Sanitizer => sanitizer().unwrap_or_else(|| step.program.clone()),
        _ => step.program.clone(),
    };
    let mut command = Command::new(&program);
    let number = gpu.strip_prefix("cuda:");
    let number = number.filter(|_| step.env.iter().any(|(n, _)| *n == "RINGBELL_TEST_GPU"));
    match number {
        // Tests open GPU 0, so the selected GPU is the only one that they see.
        Some(n) => command
            .env("RINGBELL_GPU", "cuda")
            .env("CUDA_VISIBLE_DEVICES", n),
        None => command.env("RINGBELL_GPU", gpu),
    };
    let command = command
        .args(&step.args)
        // Kernels of many streams wait for each other. None may stand behind another in one of the GPU's queues. None may be
        // loaded only at its launch, which may wait for running kernels (CUDA C++ Programming Guide, "Lazy Loading").
        .env("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        .env("CUDA_MODULE_LOADING", "EAGER")
        .envs(step.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("no descriptor left")?)
        .stderr(file);
    let ended = Running::start(command).and_then(|running| running.end(limit));
    if step.group == Group::Sanitizer {
        let said = fs::read_to_string(&log).unwrap_or_default();
        if let Some(words) = refusal(&said) {
            return Ok(End::Skipped(format!("compute-sanitizer says: {words}")));
        }
    }
    Ok(match ended {
        Ok(out) if out.status.success() => End::Passed,
        Ok(out) => End::Failed(format!("{}; see {}", out.status, log.display())),
        Err(error) => End::Failed(format!("{error:#}; see {}", log.display())),
    })
}

/// A sanitizer's message that it cannot work here: its lines begin with `=========`. It has checked nothing then.
fn refusal(said: &str) -> Option<String> {
    said.lines()
        .filter_map(|l| l.strip_prefix("========="))
        .find(|l| l.to_lowercase().contains("not supported"))
        .map(|l| l.trim().to_owned())
}

/// The machine, its GPUs and their driver, as far as they can be read.
fn machine() -> Value {
    let said = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        (out.status.success() && !text.is_empty()).then_some(text)
    };
    let query = "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max";
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find(|l| l.starts_with("model name"))
        .and_then(|l| l.split_once(':'))
        .map(|(_, name)| name.trim().to_owned());
    json!({
        "cpu": cpu,
        "cores": std::thread::available_parallelism().map(usize::from).unwrap_or(1),
        "kernel": said("uname", &["-sr"]),
        "gpus": said("nvidia-smi", &[query, "--format=csv,noheader"]),
        "date": said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, limit_s: u64, script: &str) -> Step {
        Step {
            name: name.into(),
            group: Group::Correctness,
            limit_s,
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("WORD", "heard".into())],
            report: None,
            tests: Vec::new(),
        }
    }

    #[test]
    fn a_sanitizer_that_refuses_the_device_is_quoted_and_no_failure() {
        let out = std::env::temp_dir().join(format!("rb-gpu-refused-{}", std::process::id()));
        std::fs::create_dir_all(out.join("logs")).unwrap();
        let said = "========= Error: Device not supported. Please refer to the documentation";
        let mut refused = step("s", 60, &format!("echo '{said}'; exit 1"));
        // In the group of sanitizers: `one` looks for the tool itself only where it is.
        refused.group = Group::Sanitizer;
        let words = refusal(&format!("x\n{said}\n========= more\n"));
        let words = words.expect("it refuses");
        assert!(words.starts_with("Error: Device not supported"), "{words}");
        assert_eq!(
            refusal("========= ERROR SUMMARY: 0 errors\nnot supported"),
            None
        );
        let end = one(&refused, "cuda", &out, Duration::from_secs(60)).unwrap();
        if sanitizer().is_none() {
            assert!(matches!(end, End::Skipped(why) if why.contains("Device not supported")));
        }
        std::fs::remove_dir_all(&out).unwrap();
    }

    #[test]
    fn tests_are_shown_the_one_gpu_that_was_asked_for() {
        let out = std::env::temp_dir().join(format!("rb-gpu-which-{}", std::process::id()));
        std::fs::create_dir_all(out.join("logs")).unwrap();
        let script = "test \"$CUDA_VISIBLE_DEVICES $RINGBELL_GPU\" = \"3 cuda\"";
        let mut tests = step("t", 60, script);
        tests.env.push(("RINGBELL_TEST_GPU", "cuda".into()));
        let end = one(&tests, "cuda:3", &out, Duration::from_secs(60)).unwrap();
        assert_eq!(end, End::Passed);
        std::fs::remove_dir_all(&out).unwrap();
    }

    #[test]
    fn a_step_that_fails_or_hangs_does_not_stop_the_others() {
        let out = std::env::temp_dir().join(format!("rb-gpu-run-{}", std::process::id()));
        std::fs::create_dir_all(out.join("logs")).unwrap();
        let mut reports = step(
            "d",
            60,
            &format!("echo '{{\"x\": 7}}' > {}/d.json", out.display()),
        );
        reports.report = Some(out.join("d.json"));
        let mut absent = step("e", 60, "true");
        absent.program = "/nonexistent/program".into();
        let steps = [
            step("a", 60, "exit 3"),
            // Its child would survive if it were in another group.
            step(
                "b",
                1,
                &format!("sleep 600 & echo $! > {}/child; wait", out.display()),
            ),
            step(
                "c",
                60,
                "test $WORD = heard && test $RINGBELL_GPU = emulated",
            ),
            reports,
            absent,
        ];
        let done = all(&steps, "emulated", &out).unwrap();
        let failed = |i: usize| matches!(&done[i].end, End::Failed(_));
        assert!(failed(0) && failed(1) && failed(4));
        assert_eq!((&done[2].end, &done[3].end), (&End::Passed, &End::Passed));
        assert_eq!(done[3].report["x"], 7);
        let child = std::fs::read_to_string(out.join("child")).unwrap();
        let start = Instant::now();
        let stat = format!("/proc/{}/stat", child.trim());
        // Gone, or dead and not yet reaped by its new parent.
        while std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "the child still runs"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}
