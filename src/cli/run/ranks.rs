//! The ranks' processes: started in groups of their own, watched, signalled and reaped.
#![allow(unsafe_code)] // One call between fork and exec: ranks must not outlive a killed launcher.
#![allow(clippy::disallowed_methods)] // The program: waits for output with a deadline.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{kill_process_group, set_parent_process_death_signal, Pid, Signal};

use crate::cli::{Exit, Problem};

/// How long the last lines of ranks that have ended may take: a process that a rank left behind may
/// hold its output open.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How a rank ended.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct End(ExitStatus);

impl End {
    pub(in crate::cli) fn is_success(self) -> bool {
        self.0.success()
    }

    /// By a signal that the launcher sends.
    pub(in crate::cli) fn was_asked(self) -> bool {
        let signals = [Signal::TERM, Signal::KILL, Signal::INT, Signal::HUP];
        signals
            .iter()
            .any(|s| self.0.signal() == Some(s.as_raw()) || self.0.code() == Some(128 + s.as_raw()))
    }

    /// As a shell numbers it.
    pub(in crate::cli) fn code(self) -> u8 {
        let code = self
            .0
            .code()
            .unwrap_or_else(|| 128 + self.0.signal().unwrap_or(0));
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "ended with status {code}"),
            (None, Some(signal)) => write!(f, "was ended by signal {signal}"),
            (None, None) => write!(f, "ended: {}", self.0),
        }
    }
}

struct Running {
    rank: u32,
    child: Child,
}

/// All ranks that run. Dropping it kills those that are left.
pub(in crate::cli) struct Ranks {
    running: Vec<Running>,
    output: Vec<JoinHandle<()>>,
}

impl Ranks {
    /// Starts a process of `program` for each rank, each with the variables that `environment` gives its rank.
    pub(in crate::cli) fn start(
        numbers: std::ops::Range<u32>,
        program: &[String],
        no_prefix: bool,
        environment: impl Fn(u32) -> Vec<(&'static str, String)>,
    ) -> Result<Ranks> {
        let mut ranks = Ranks {
            running: Vec::new(),
            output: Vec::new(),
        };
        let width = (numbers.end - 1).to_string().len();
        for rank in numbers {
            let mut command = Command::new(&program[0]);
            command
                .args(&program[1..])
                .envs(environment(rank))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                // What a rank starts itself is ended with it.
                .process_group(0);
            // SAFETY: the closure runs between fork and exec; it makes one system call and neither
            // allocates nor takes a lock.
            unsafe {
                command.pre_exec(|| {
                    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into)
                });
            }
            let mut child = command.spawn().with_context(|| {
                Problem::new(
                    Exit::Environment,
                    format!("cannot start {} as rank {rank}", program[0]),
                    "check the path of the program after `--`",
                )
            })?;
            let prefix = match no_prefix {
                true => String::new(),
                false => format!("[{rank:>width$}] "),
            };
            if let Some(out) = child.stdout.take() {
                ranks.output.push(copy_lines(out, prefix.clone(), false));
            }
            if let Some(err) = child.stderr.take() {
                ranks.output.push(copy_lines(err, prefix, true));
            }
            ranks.running.push(Running { rank, child });
        }
        Ok(ranks)
    }

    /// Ranks that have not ended.
    pub(in crate::cli) fn left(&self) -> usize {
        self.running.len()
    }

    /// Their numbers, for a person.
    pub(in crate::cli) fn names(&self) -> String {
        let names: Vec<_> = self.running.iter().map(|r| r.rank.to_string()).collect();
        names.join(", ")
    }

    /// Ranks that have ended since the last call.
    pub(in crate::cli) fn reap(&mut self) -> Result<Vec<(u32, End)>> {
        let mut ended = Vec::new();
        let mut i = 0;
        while i < self.running.len() {
            let r = &mut self.running[i];
            match r.child.try_wait().context("cannot wait for a rank")? {
                Some(status) => {
                    ended.push((r.rank, End(status)));
                    self.running.remove(i);
                }
                None => i += 1,
            }
        }
        Ok(ended)
    }

    /// Sends a signal to every rank that is left, and to what it has started.
    pub(in crate::cli) fn signal(&self, signal: Signal) {
        for r in &self.running {
            if let Some(group) = i32::try_from(r.child.id()).ok().and_then(Pid::from_raw) {
                // It may have ended in this moment: then there is nothing to signal.
                let _ = kill_process_group(group, signal);
            }
        }
    }

    /// Waits until everything that the ranks have printed is passed on.
    pub(in crate::cli) fn finish_output(&mut self) {
        let deadline = Instant::now() + LAST_LINES;
        for thread in self.output.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for r in &mut self.running {
            let _ = r.child.wait();
        }
    }
}

/// Passes on line by line, each with the prefix.
fn copy_lines(from: impl Read + Send + 'static, prefix: String, is_error: bool) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = prefix.clone().into_bytes();
        // Bytes, not text: a rank may print what is no UTF-8.
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // One write a line, so that lines of ranks do not mix.
            let written = match is_error {
                true => std::io::stderr().write_all(&line),
                false => {
                    let mut out = std::io::stdout().lock();
                    out.write_all(&line).and_then(|()| out.flush())
                }
            };
            if written.is_err() {
                return;
            }
            line.truncate(prefix.len());
        }
    })
}
