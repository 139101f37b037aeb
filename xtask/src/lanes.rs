//! Steps side by side: a lane for cargo, which locks its folder, and a lane for programs that run
//! beside it.
//!
//! Each step is this program once more, with its output in a pipe. So the output of a step has its
//! name in front of each line, a log of its own in `target/steps/`, and a deadline; a panic ends
//! that step alone.

#![allow(clippy::disallowed_methods)] // Runs programs and times them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, PipeReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _, Result};
use fs_err as fs;

use crate::steps::{kill_tree, Outcome};
use crate::summary::{End, Summary, PROCESSOR_TIME};
use crate::workspace::{root, target, BARE, BUILD, DONE};

/// Longest time of one step. The whole of CI has 90 minutes.
const LIMIT: Duration = Duration::from_secs(40 * 60);
/// Time between two lines that name the running steps.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Where a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// One at a time, in order: cargo locks its folder.
    Cargo,
    /// Beside it.
    Beside,
}

/// A step: its name, its lane, the steps that come before it, and what it does.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) lane: Lane,
    pub(crate) after: &'static [&'static str],
    pub(crate) run: fn() -> Result<Outcome>,
}

/// A step that comes after others.
pub(crate) const fn step(
    name: &'static str,
    lane: Lane,
    after: &'static [&'static str],
    run: fn() -> Result<Outcome>,
) -> Step {
    Step {
        name,
        lane,
        after,
        run,
    }
}

/// The folder with the logs of the steps.
pub(crate) fn logs() -> PathBuf {
    target().join("steps")
}

/// Runs one step in this process, and leaves its end where the process that started this one reads
/// it.
pub(crate) fn one(step: &Step) -> Result<bool> {
    let end = match (step.run)() {
        Ok(Outcome::Passed) => End::Passed,
        Ok(Outcome::Skipped(why)) => End::Skipped(why),
        Err(error) => End::Failed(format!("{error:#}")),
    };
    let (word, why) = end.in_words();
    if let Some(seconds) = processor_time() {
        println!("{PROCESSOR_TIME}{seconds} s");
    }
    fs::create_dir_all(logs())?;
    fs::write(end_of(step.name), format!("{word} {why}"))?;
    Ok(!matches!(end, End::Failed(_)))
}

/// Seconds on processors that this process has taken, and those of its descendants that have ended.
fn processor_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in parentheses, from the third field on: of these the 12th to the 15th.
    let fields = stat.rsplit(')').next()?.split_whitespace();
    let ticks = fields.skip(11).take(4).map(|f| f.parse::<u64>());
    let ticks = ticks.sum::<Result<u64, _>>().ok()?;
    Some(ticks / rustix::param::clock_ticks_per_second())
}

fn end_of(name: &str) -> PathBuf {
    logs().join(format!("{name}.end"))
}

/// A step under way.
struct Running {
    step: Step,
    child: Child,
    start: Instant,
    /// Prints what it prints.
    forwarded: JoinHandle<()>,
}

/// Runs all steps, also after one failed, and prints how each ended; true when none failed.
pub(crate) fn run(steps: &[Step]) -> Result<bool> {
    fs::create_dir_all(logs())?;
    let mut waiting: Vec<Step> = steps.to_vec();
    let mut running: Vec<Running> = Vec::new();
    let mut ends: BTreeMap<&'static str, End> = BTreeMap::new();
    let mut summary = Summary::default();
    let mut said = Instant::now();
    while !waiting.is_empty() || !running.is_empty() {
        let mut i = 0;
        while i < running.len() {
            match running[i].ended()? {
                None => i += 1,
                Some(end) => {
                    let done = running.swap_remove(i);
                    let took = done.start.elapsed();
                    let (word, why) = end.in_words();
                    let why = why.lines().next().map(|l| format!(": {l}"));
                    println!(
                        "<== {}: {word}{} ({:.0} s)",
                        done.step.name,
                        why.unwrap_or_default(),
                        took.as_secs_f64()
                    );
                    summary.add(done.step.name, &end, took, &log_of(done.step.name));
                    ends.insert(done.step.name, end);
                }
            }
        }
        while let Some(next) = next(&waiting, &running, &ends, steps) {
            let step = waiting.remove(next);
            let broken = step
                .after
                .iter()
                .find(|name| matches!(ends.get(*name), Some(End::Failed(_))));
            if let Some(name) = broken {
                let end = End::Failed(format!("not run, because `{name}` failed"));
                summary.add(step.name, &end, Duration::ZERO, &log_of(step.name));
                ends.insert(step.name, end);
                continue;
            }
            println!("==> {}", step.name);
            let done = |name: &&&str| match ends.get(**name) {
                Some(End::Passed) => true,
                // Its failed tests fail the run, and are tried outside; the others ran.
                Some(End::Failed(_)) => **name == BARE,
                Some(End::Skipped(_)) | None => false,
            };
            let done: Vec<&str> = [BUILD, BARE].iter().filter(done).copied().collect();
            running.push(Running::start(step, &done)?);
        }
        if said.elapsed() > HEARTBEAT {
            said = Instant::now();
            let names: Vec<String> = running
                .iter()
                .map(|r| format!("{} for {} s", r.step.name, r.start.elapsed().as_secs()))
                .collect();
            println!(
                "... {}; {} steps wait{}",
                names.join(", "),
                waiting.len(),
                room()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    summary.print();
    Ok(!ends.values().any(|end| matches!(end, End::Failed(_))))
}

/// The next step that can begin: its lane is free, and all that come before it have ended.
fn next(
    waiting: &[Step],
    running: &[Running],
    ends: &BTreeMap<&'static str, End>,
    all: &[Step],
) -> Option<usize> {
    let busy: Vec<Lane> = running.iter().map(|r| r.step.lane).collect();
    ready(waiting, &busy, &|name| {
        // What is no part of this run holds nothing up.
        ends.contains_key(name) || !all.iter().any(|s| s.name == name)
    })
}

fn ready(waiting: &[Step], busy: &[Lane], ended: &dyn Fn(&str) -> bool) -> Option<usize> {
    let begins =
        |step: &Step| !busy.contains(&step.lane) && step.after.iter().all(|name| ended(name));
    waiting.iter().position(begins)
}

/// What is free where cargo's folder lies, in words. A full disk fails steps in many ways, which
/// seldom name it.
fn room() -> String {
    let Ok(disk) = rustix::fs::statvfs(target()) else {
        return String::new();
    };
    let bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    format!("; {:.1} GB free on the disk", bytes as f64 / 1e9)
}

fn log_of(name: &str) -> PathBuf {
    logs().join(format!("{name}.log"))
}

impl Running {
    fn start(step: Step, done: &[&str]) -> Result<Running> {
        let _ = std::fs::remove_file(end_of(step.name));
        // This very program: a build of the workspace may put another in its place meanwhile.
        let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
        command.current_dir(root()).args(["step", step.name]);
        command.env(DONE, done.join(","));
        // Both kinds of output in their order, by one pipe.
        let (output, end) = std::io::pipe().context("no pipe is left")?;
        let errors = end.try_clone().context("no descriptor is left")?;
        let command = command.stdin(Stdio::null()).stdout(end).stderr(errors);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start the step {}", step.name))?;
        let log = fs::File::create(log_of(step.name))?;
        Ok(Running {
            step,
            child,
            start: Instant::now(),
            forwarded: std::thread::spawn(move || forward(step.name, output, log)),
        })
    }

    /// How it ended; `None` while it runs.
    fn ended(&mut self) -> Result<Option<End>> {
        if let Some(status) = self.child.try_wait().context("cannot wait for a step")? {
            // Programs that a step has left behind may hold the pipes.
            let patience = Instant::now();
            while !self.forwarded.is_finished() && patience.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let text = std::fs::read_to_string(end_of(self.step.name)).unwrap_or_default();
            let (word, why) = text.split_once(' ').unwrap_or((&text, ""));
            return Ok(Some(match word {
                "passed" if status.success() => End::Passed,
                "SKIPPED" if status.success() => End::Skipped(why.to_owned()),
                "FAILED" => End::Failed(why.to_owned()),
                _ => End::Failed(format!("its process ended with {status}")),
            }));
        }
        if self.start.elapsed() > LIMIT {
            kill_tree(self.child.id());
            let _ = self.child.wait();
            return Ok(Some(End::Failed(format!(
                "not done after {} s, and stopped",
                LIMIT.as_secs()
            ))));
        }
        Ok(None)
    }
}

fn forward(name: &str, output: PipeReader, mut log: fs::File) {
    let mut reader = BufReader::new(output);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        println!("{name} | {}", text.trim_end());
        // Without its log a step's lines are still printed.
        let _ = log.write_all(&line);
        line.clear();
    }
}

/// Finds a step by its name.
pub(crate) fn find<'a>(steps: &'a [Step], name: &str) -> Result<&'a Step> {
    match steps.iter().find(|s| s.name == name) {
        Some(step) => Ok(step),
        None => {
            let names: Vec<&str> = steps.iter().map(|s| s.name).collect();
            bail!("there is no step `{name}`; there are {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, lane: Lane, after: &'static [&'static str]) -> Step {
        Step {
            name,
            lane,
            after,
            run: || Ok(Outcome::Passed),
        }
    }

    #[test]
    fn a_step_begins_when_its_lane_is_free_and_those_before_it_have_ended() {
        let steps = [
            step("tests", Lane::Cargo, &["build"]),
            step("docs", Lane::Cargo, &[]),
            step("mpi", Lane::Beside, &["build"]),
        ];
        assert_eq!(ready(&steps, &[], &|_| false), Some(1));
        assert_eq!(ready(&steps, &[Lane::Cargo], &|_| false), None);
        assert_eq!(ready(&steps, &[Lane::Cargo], &|_| true), Some(2));
        assert_eq!(ready(&steps, &[], &|_| true), Some(0));
    }

    #[test]
    fn every_step_has_a_name_of_its_own_and_comes_after_known_ones() {
        let all = crate::test::all();
        for (i, step) in all.iter().enumerate() {
            assert!(
                all[..i].iter().all(|s| s.name != step.name),
                "{}",
                step.name
            );
            for before in step.after {
                let known = all[..i].iter().any(|s| s.name == *before);
                assert!(
                    known,
                    "{} comes after {before}, which comes later",
                    step.name
                );
            }
        }
    }
}
