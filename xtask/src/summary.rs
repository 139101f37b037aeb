//! The end of a run: each step's time, the tests that failed, what was not run and how to run it,
//! and the runners' closing lines.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::steps::command;
use crate::workspace::{root, target};

/// How a step ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Passed,
    Skipped(String),
    Failed(String),
}

impl End {
    /// Its word, and the reason.
    pub(crate) fn in_words(&self) -> (&'static str, &str) {
        match self {
            End::Passed => ("passed", ""),
            End::Skipped(why) => ("SKIPPED", why),
            End::Failed(why) => ("FAILED", why),
        }
    }
}

/// What is known of the steps that have ended.
#[derive(Default)]
pub(crate) struct Summary {
    steps: Vec<String>,
    failed: Vec<String>,
    skipped: Vec<String>,
    tests_skipped: Vec<String>,
    closing: Vec<String>,
}

impl Summary {
    /// Adds a step, with what its log says.
    pub(crate) fn add(&mut self, name: &str, end: &End, took: Duration, log: &Path) {
        let said = match took.is_zero() {
            true => String::new(),
            false => std::fs::read(log).map_or_else(
                |_| String::new(),
                |b| String::from_utf8_lossy(&b).into_owned(),
            ),
        };
        let word = match end {
            End::Passed => "passed",
            End::Skipped(_) => "skipped",
            End::Failed(_) => "FAILED",
        };
        let on_processors = said.lines().rfind(|l| l.starts_with(PROCESSOR_TIME));
        let on_processors = on_processors.map_or("", |l| &l[PROCESSOR_TIME.len()..]);
        let took = took.as_secs_f64();
        self.steps.push(format!(
            "{name:<13} {took:>7.1} s {on_processors:>7}  {word}"
        ));
        match end {
            End::Passed => {}
            End::Skipped(why) => self.skipped.push(format!("{name}: {why}")),
            End::Failed(why) => {
                self.failed
                    .push(format!("{name}: {why}; log: {}", shown(log)));
                let tests = failed_tests(&said);
                self.failed
                    .extend(tests.into_iter().map(|t| format!("    {t}")));
            }
        }
        self.tests_skipped.extend(
            said.lines()
                .filter_map(|l| {
                    l.strip_prefix(SKIPPED_TEST)
                        .or(l.strip_prefix(PYTEST_SKIPPED))
                })
                .map(str::to_owned),
        );
        let closing = said.lines().map(plain).filter(|l| is_closing(l));
        self.closing.extend(closing.map(|l| l.trim().to_owned()));
    }

    /// Prints it.
    pub(crate) fn print(&self) {
        let list = |title: &str, lines: &[String]| {
            if !lines.is_empty() {
                println!("\n{title}");
                lines.iter().for_each(|l| println!("  {l}"));
            }
        };
        list("steps: time, and time on all processors", &self.steps);
        list("not run here", &self.skipped);
        list(
            &format!("{} tests skipped themselves", self.tests_skipped.len()),
            &self.tests_skipped,
        );
        // As the runners print them: those who count tests read these lines.
        if !self.closing.is_empty() {
            println!("\nclosing lines of the test runners");
            sums(&self.closing).iter().for_each(|l| println!("{l}"));
        }
        list("FAILED", &self.failed);
        println!();
        match self.failed.is_empty() {
            true => println!("all steps passed, or say above why they were not run"),
            false => {
                println!("a step has failed: the lines under FAILED name its tests and its log")
            }
        }
    }
}

/// Before the seconds on processors, in the last line of a step's log.
pub(crate) const PROCESSOR_TIME: &str = "processor time: ";

/// Before the name and the reason of a test that skipped itself, in the output of the step `tests`.
pub(crate) const SKIPPED_TEST: &str = "skipped test: ";

/// As pytest begins the same line: a number, the place and the reason follow.
const PYTEST_SKIPPED: &str = "SKIPPED ";

/// Without the escape sequences of colours.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        out += before;
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// A test runner's last line: nextest's, cargo test's, pytest's.
fn is_closing(line: &str) -> bool {
    let line = line.trim();
    let pytest = line.starts_with('=') && line.ends_with('=') && line.contains(" in ");
    line.starts_with("Summary [") || line.starts_with("test result:") || pytest
}

/// The lines, with those of cargo test's programs added up.
fn sums(lines: &[String]) -> Vec<String> {
    let (of_programs, mut out): (Vec<&String>, Vec<&String>) =
        lines.iter().partition(|l| l.starts_with("test result:"));
    let count = |word: &str| -> u64 {
        let of = |l: &&String| {
            l.split([';', '.'])
                .find_map(|p| p.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
        };
        of_programs.iter().filter_map(of).sum()
    };
    let sum = match of_programs.is_empty() {
        true => None,
        false => Some(format!(
            "test result: {}. {} passed; {} failed; {} ignored ({} programs of cargo test)",
            if count(" failed") == 0 {
                "ok"
            } else {
                "FAILED"
            },
            count(" passed"),
            count(" failed"),
            count(" ignored"),
            of_programs.len()
        )),
    };
    out.extend(&sum);
    out.into_iter().cloned().collect()
}

/// The names of failed tests in the output of a runner, each once.
pub(crate) fn failed_tests(said: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for line in said.lines().map(plain) {
        let line = line.trim();
        let nextest = ["FAIL [", "TIMEOUT [", "SIGABRT [", "SIGSEGV ["]
            .iter()
            .any(|w| line.starts_with(w));
        let name = match (
            nextest,
            line.strip_prefix("test "),
            line.strip_prefix("FAILED "),
        ) {
            (true, ..) => line.split_once(']').map(|(_, name)| name.trim()),
            (_, Some(rest), _) => rest.strip_suffix(" ... FAILED"),
            (_, _, Some(rest)) => rest.split_whitespace().next().filter(|n| n.contains("::")),
            _ => None,
        };
        if let Some(name) = name {
            // Nextest numbers them: (12/1690).
            let name = match name.strip_prefix('(').and_then(|n| n.split_once(')')) {
                Some((_, name)) => name.trim(),
                None => name,
            };
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// The tests that skipped themselves, with the reason, in nextest's JUnit report.
pub(crate) fn skipped_in_junit(report: &str) -> Vec<String> {
    let attribute = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!(" {name}=\""))?;
        Some(rest.split('"').next()?.to_owned())
    };
    let mut found: Vec<String> = Vec::new();
    let mut test = String::new();
    for line in report.lines() {
        if line.contains("<testcase ") {
            let part = |name: &str| attribute(line, name).unwrap_or_default();
            test = format!("{} {}", part("classname"), part("name"));
        }
        // Tests of xtask play steps that skip themselves.
        let is_played = test.starts_with("xtask");
        if let Some((_, why)) = line.split_once("SKIPPED").filter(|_| !is_played) {
            let why = why
                .trim_start_matches([' ', ':'])
                .split("</")
                .next()
                .unwrap_or_default();
            let why = why
                .replace("&quot;", "\"")
                .replace("&apos;", "'")
                .replace("&gt;", ">")
                .replace("&lt;", "<")
                .replace("&amp;", "&");
            let said = format!("{test}: {why}");
            if !found.contains(&said) {
                found.push(said);
            }
        }
    }
    found
}

/// As [`skipped_in_junit`], in what `cargo test -- --show-output` prints.
pub(crate) fn skipped_in_output(said: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut test = "";
    for line in said.lines() {
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|l| l.strip_suffix(" stdout ----"))
        {
            test = name;
        }
        if let Some((_, why)) = line.split_once("SKIPPED") {
            found.push(format!("{test}: {}", why.trim_start_matches([' ', ':'])));
        }
    }
    found
}

/// Whether a path is a log of a step; for messages.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Runs [`nextest`](crate::workspace::nextest) with further arguments; how many tests skipped
/// themselves.
pub(crate) fn counted(tests: &mut Command) -> Result<usize> {
    let ended = command(tests);
    // The runner hides what a test prints that passed; its report has it.
    let report = target().join("nextest/counted/junit.xml");
    let skipped = skipped_in_junit(&std::fs::read_to_string(report).unwrap_or_default());
    say_skipped(&skipped);
    ended.map(|()| skipped.len())
}

/// Prints the tests that skipped themselves, for the summary.
pub(crate) fn say_skipped(tests: &[String]) {
    tests.iter().for_each(|t| println!("{SKIPPED_TEST}{t}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_once() {
        let said = "        FAIL [   0.005s] (3/1690) ringbell-cli::all run::x\n\
            test tcp::y ... FAILED\ntest tcp::z ... ok\nFAILED tests/test_a.py::test_b - assert\n\
            \u{1b}[31;1m        FAIL\u{1b}[0m [   0.005s] (3/1690) ringbell-cli::all run::x\nFAILED: no test\n";
        let named = [
            "ringbell-cli::all run::x",
            "tcp::y",
            "tests/test_a.py::test_b",
        ];
        assert_eq!(failed_tests(said), named);
    }

    #[test]
    fn closing_lines_of_programs_are_added_up() {
        let lines = [
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "Summary [ 1.0s] 3 tests run: 3 passed, 0 skipped",
            "===== 12 passed, 2 skipped in 3.1s =====",
        ];
        assert!(lines.iter().all(|l| is_closing(l)));
        let sums = sums(&lines.map(str::to_owned));
        assert_eq!(sums.len(), 3);
        assert_eq!(
            sums[2],
            "test result: FAILED. 7 passed; 1 failed; 1 ignored (2 programs of cargo test)"
        );
    }

    #[test]
    fn tests_that_skip_themselves_are_found_in_both_reports() {
        let junit = "<testcase name=\"run::x\" classname=\"ringbell-cli::all\" time=\"0.1\">\n\
            <system-err>SKIPPED: no &quot;ip&quot; here</system-err>\n</testcase>\n\
            <testcase name=\"run::y\" classname=\"c\">\n<system-err>fine</system-err>\n";
        assert_eq!(
            skipped_in_junit(junit),
            ["ringbell-cli::all run::x: no \"ip\" here"]
        );
        let said = "successes:\n\n---- run::x stdout ----\nSKIPPED a: no ip\n";
        assert_eq!(skipped_in_output(said), ["run::x: a: no ip"]);
    }
}
