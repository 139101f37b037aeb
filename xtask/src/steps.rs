//! Programs that steps start, within limits, and how a step ends.

#![allow(clippy::disallowed_methods)] // Runs programs and times them.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};

/// How a step ended.
pub(crate) enum Outcome {
    /// It did what it should.
    Passed,
    /// It could not run here; the reason is shown.
    Skipped(String),
}

/// Prints how a step ended that was asked for by its name.
pub(crate) fn told(name: &str, outcome: Outcome) -> Result<bool> {
    match outcome {
        Outcome::Passed => println!("{name}: passed"),
        Outcome::Skipped(why) => println!("{name}: SKIPPED: {why}"),
    }
    Ok(true)
}

/// Arguments as on a command line.
pub(crate) trait Words {
    /// Adds arguments that have no spaces.
    fn words(&mut self, text: &str) -> &mut Self;
}

impl Words for Command {
    fn words(&mut self, text: &str) -> &mut Command {
        self.args(text.split_whitespace())
    }
}

/// Whether a command ends well; it prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = quiet.stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

/// Runs a command to its end; its output goes to ours.
pub(crate) fn command(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    println!("$ {shown}");
    let status = command
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// As [`command`], but ends the command when it takes longer than `limit`.
pub(crate) fn command_within(command: &mut Command, limit: Duration) -> Result<()> {
    match exit_code_within(command, limit)? {
        0 => Ok(()),
        code => bail!("`{}` ended with exit code {code}", shown(command)),
    }
}

/// As [`command_within`], for commands with several exit codes.
pub(crate) fn exit_code_within(command: &mut Command, limit: Duration) -> Result<i32> {
    let shown = shown(command);
    println!("$ {shown}");
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let Some(status) = wait_within(&mut child, limit)? else {
        child.kill()?;
        child.wait()?;
        bail!("`{shown}` had not ended after {limit:?} and was stopped")
    };
    match status.code() {
        Some(code) => Ok(code),
        None => bail!("`{shown}` ended with {status}"),
    }
}

/// What a command prints that must succeed; its errors are shown if it does not.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let out = command
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("`{shown}` ended with {}:\n{said}", out.status);
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// What a command prints, and how it ends; it and its children are stopped when it takes longer
/// than `limit`.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    println!("$ {}", shown(command));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)?.end(limit)
}

/// A program under way, in a process group of its own, so that a launcher's ranks end with it: when
/// this value goes at the latest.
pub(crate) struct Running {
    child: Child,
    shown: String,
    /// What it prints, by threads, where the command has pipes.
    printed: [Option<JoinHandle<io::Result<Vec<u8>>>>; 2],
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Running> {
        let shown = shown(command);
        let mut child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|p| Box::new(p) as _),
            child.stderr.take().map(|p| Box::new(p) as _),
        ];
        let read = |mut pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                pipe.read_to_end(&mut text).map(|_| text)
            })
        };
        Ok(Running {
            child,
            shown,
            printed: pipes.map(|p| p.map(read)),
        })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It takes longer than `limit`, with what it had printed.
    pub(crate) fn end(mut self, limit: Duration) -> Result<Output> {
        let ended = wait_within(&mut self.child, limit);
        // Processes that are left of the group hold the pipes.
        self.end_group();
        let [stdout, stderr] = self.printed.each_mut().map(|thread| match thread.take() {
            Some(thread) => Ok(thread
                .join()
                .map_err(|_| anyhow!("a thread that reads has panicked"))??),
            None => Ok::<_, anyhow::Error>(Vec::new()),
        });
        let (stdout, stderr) = (stdout?, stderr?);
        match ended? {
            Some(status) => Ok(Output {
                status,
                stdout,
                stderr,
            }),
            None => bail!(
                "`{}` had not ended after {limit:?} and was stopped; it had printed: {}{}",
                self.shown,
                String::from_utf8_lossy(&stdout),
                String::from_utf8_lossy(&stderr)
            ),
        }
    }

    fn end_group(&self) {
        // A process that was started has a number, and a group without processes is an error that
        // changes nothing.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end_group();
        let _ = self.child.wait();
    }
}

/// `None` when the time is over.
fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a program")? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_time_limits_become_errors() {
        assert!(command(&mut Command::new("true")).is_ok());
        assert!(command(&mut Command::new("false")).is_err());
        assert!(command(&mut Command::new("/nonexistent/program")).is_err());
        let limit = Duration::from_millis(100);
        assert!(command_within(Command::new("sleep").arg("60"), limit).is_err());
        assert!(command_within(&mut Command::new("true"), limit * 600).is_ok());
        assert!(command_within(&mut Command::new("false"), limit * 600).is_err());
        let code = exit_code_within(Command::new("sh").args(["-c", "exit 77"]), limit * 600);
        assert_eq!(code.ok(), Some(77));
        let killed = exit_code_within(Command::new("sh").args(["-c", "kill -9 $$"]), limit * 600);
        assert!(killed.is_err(), "a signal is no exit code");
    }

    #[test]
    fn a_program_that_is_too_slow_ends_with_its_children_and_what_it_printed_is_told() {
        let mut sh = Command::new("sh");
        sh.args(["-c", "sleep 600 & echo child $!; wait"]);
        let why = output_within(&mut sh, Duration::from_millis(500)).expect_err("too slow");
        let why = why.to_string();
        let (_, child) = why.split_once("child ").expect("it was printed");
        let stat = format!("/proc/{}/stat", child.trim());
        let start = Instant::now();
        // Gone, or dead and not yet reaped by its new parent.
        while std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
            assert!(start.elapsed() < Duration::from_secs(30), "{child} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
