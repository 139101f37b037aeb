//! Programs that steps start, and how a step ends.

#![allow(clippy::disallowed_methods)] // Runs programs and times them.

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

/// How a step ended.
pub(crate) enum Outcome {
    /// It did what it should.
    Passed,
    /// It could not run here; the reason is shown.
    Skipped(String),
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

/// What a command prints, and how it ends; it and its children are stopped when it takes longer than `limit`.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    let shown = shown(command);
    println!("$ {shown}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that a launcher's ranks end with it.
    let mut child = command
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            pipe.map(|mut p| p.read_to_end(&mut text)).transpose()?;
            Ok::<_, std::io::Error>(text)
        })
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = read(out.map(|p| Box::new(p) as Box<dyn Read + Send>));
    let err = read(err.map(|p| Box::new(p) as Box<dyn Read + Send>));
    let ended = wait_within(&mut child, limit);
    // Processes that are left of the group hold the pipes.
    end_group(&child);
    let panicked = |_| anyhow::anyhow!("a thread that reads has panicked");
    let (stdout, stderr) = (
        out.join().map_err(panicked)??,
        err.join().map_err(panicked)??,
    );
    match ended.with_context(|| format!("cannot wait for `{shown}`"))? {
        Some(status) => Ok(Output {
            status,
            stdout,
            stderr,
        }),
        None => bail!(
            "`{shown}` had not ended after {} s and was stopped; it had printed: {}{}",
            limit.as_secs(),
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        ),
    }
}

/// As [`command_within`], for commands with several exit codes.
pub(crate) fn exit_code_within(command: &mut Command, limit: Duration) -> Result<i32> {
    let shown = shown(command);
    println!("$ {shown}");
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let status =
        wait_within(&mut child, limit).with_context(|| format!("cannot wait for `{shown}`"))?;
    let Some(status) = status else {
        bail!(
            "`{shown}` had not ended after {} s and was stopped",
            limit.as_secs()
        )
    };
    match status.code() {
        Some(code) => Ok(code),
        None => bail!("`{shown}` ended with {status}"),
    }
}

/// Ends what is left of a child's process group.
pub(crate) fn end_group(child: &Child) {
    // A process that was started has a number, and a group without processes is an error that changes nothing.
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        if let Err(error) =
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL)
        {
            if error != rustix::io::Errno::SRCH {
                println!("the processes of group {} are left: {error}", child.id());
            }
        }
    }
}

fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn shown(command: &Command) -> String {
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
        assert!(command_within(&mut Command::new("true"), Duration::from_secs(60)).is_ok());
        assert!(command_within(&mut Command::new("false"), Duration::from_secs(60)).is_err());
        let code = exit_code_within(Command::new("sh").args(["-c", "exit 77"]), limit * 600);
        assert_eq!(code.ok(), Some(77));
        let killed = exit_code_within(Command::new("sh").args(["-c", "kill -9 $$"]), limit * 600);
        assert!(killed.is_err(), "a signal is no exit code");
    }
}
