//! Programs that steps start, within limits, and how a step ends.

#![allow(clippy::disallowed_methods)] // Runs programs and times them.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

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
        kill_tree(child.id());
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

/// Ends a process and its descendants. They are in this process's group, so that Ctrl-C reaches
/// them.
pub(crate) fn kill_tree(pid: u32) {
    use rustix::process::{kill_process, Pid, Signal};
    let Some(process) = Pid::from_raw(pid as i32) else {
        return;
    };
    // A stopped process neither starts more children nor goes on when one ends.
    let _ = kill_process(process, Signal::STOP);
    let below = children(pid);
    let _ = kill_process(process, Signal::KILL);
    below.into_iter().for_each(kill_tree);
}

/// The children of a process, by /proc.
fn children(pid: u32) -> Vec<u32> {
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let of = |entry: std::fs::DirEntry| -> Option<u32> {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // After the name in parentheses: the state, then the parent.
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?;
        (parent.parse() == Ok(pid)).then_some(number)
    };
    all.filter_map(|entry| of(entry.ok()?)).collect()
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
    fn a_program_that_is_too_slow_ends_with_its_children() {
        let file = std::env::temp_dir().join(format!("xtask-children-{}", std::process::id()));
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let mut sh = Command::new("sh");
        let why = command_within(sh.args(["-c", &script]), Duration::from_secs(2));
        assert!(why
            .expect_err("too slow")
            .to_string()
            .contains("had not ended after 2s"));
        let child = std::fs::read_to_string(&file).expect("it was started");
        let stat = format!("/proc/{}/stat", child.trim());
        let start = Instant::now();
        // Gone, or dead and not yet reaped by its new parent.
        while std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
            assert!(start.elapsed() < Duration::from_secs(30), "{child} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = std::fs::remove_file(&file);
    }
}
