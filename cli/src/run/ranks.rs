//! Processes of the ranks: started in groups of their own, watched, signalled and reaped.
#![allow(clippy::disallowed_methods)] // The program: waits for output with a deadline.

use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{kill_process_group, Pid, Signal};

use super::binding::Binding;
use super::programs::Programs;
use crate::child::{dies_with_us, End};
use crate::report::ranges;
use crate::{Exit, Problem};

/// Longest wait for the last lines of ranks that have ended: a process that a rank left behind may
/// hold its output open.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Most lines of a rank's error that are repeated.
const ERROR_LINES: usize = 6;

struct Running {
    rank: u32,
    child: Child,
    said: Said,
    errors: Option<JoinHandle<()>>,
}

/// The last error that a rank has printed: a line that begins with `ringbell: `, and the lines that
/// belong to it.
#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn hear(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        // Nothing that holds the lock can panic half-way through a change.
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = line.strip_prefix("ringbell: ") {
            *said = vec![error.trim_end().into()];
        } else if line.starts_with("  ") && !said.is_empty() && said.len() < ERROR_LINES {
            said.push(line.trim().into());
        }
    }

    fn text(&self) -> String {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.join("; ")
    }
}

/// A rank that has ended.
pub(crate) struct Ended {
    pub(crate) rank: u32,
    pub(crate) end: End,
    /// Its error, if it has printed one.
    said: String,
}

impl Ended {
    /// In one line, for the ranks that wait for it.
    pub(crate) fn brief(&self) -> String {
        let text = self.text();
        text.split("; ").next().unwrap_or(&text).to_string()
    }

    /// All of it, for a person.
    pub(crate) fn text(&self) -> String {
        let Ended { rank, end, said } = self;
        match said.is_empty() || end.is_success() {
            true => format!("rank {rank} {end}"),
            false => format!("rank {rank} {end}: {said}"),
        }
    }
}

/// The same for the error of one rank.
const LAST_ERROR: Duration = Duration::from_millis(100);

fn wait(thread: &JoinHandle<()>, deadline: Instant) {
    while !thread.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn no_thread(rank: u32, error: std::io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(Problem::new(
        Exit::Environment,
        format!("cannot start a thread for the output of rank {rank}"),
        "start fewer ranks, or raise `ulimit -u`",
    ))
}

/// All ranks that run. Dropping it kills those that are left.
pub(crate) struct Ranks {
    running: Vec<Running>,
    output: Vec<JoinHandle<()>>,
}

impl Ranks {
    /// Starts the program of each rank, with the variables that `environment` gives its rank.
    pub(crate) fn start(
        numbers: std::ops::Range<u32>,
        programs: &Programs,
        no_prefix: bool,
        binding: &Binding,
        environment: impl Fn(u32) -> Vec<(&'static str, String)>,
    ) -> Result<Ranks> {
        let mut ranks = Ranks {
            running: Vec::new(),
            output: Vec::new(),
        };
        let width = (numbers.end - 1).to_string().len();
        for rank in numbers {
            let program = programs.of(rank);
            let mut command = Command::new(&program[0]);
            command
                .args(&program[1..])
                .envs(environment(rank))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                // Processes that a rank starts itself are ended with it.
                .process_group(0);
            dies_with_us(&mut command);
            let mut child = binding.start(rank, || command.spawn())?.map_err(|e| {
                let advice = match e.kind() {
                    ErrorKind::NotFound | ErrorKind::PermissionDenied => {
                        "check the path of the program"
                    }
                    _ => "start fewer ranks, or raise what is short: `ulimit -u` (processes and threads), `ulimit -n` (files), memory",
                };
                let what = format!("cannot start {} as rank {rank}", program[0]);
                anyhow::Error::new(e).context(Problem::new(Exit::Environment, what, advice))
            })?;
            let prefix = match no_prefix {
                true => String::new(),
                false => format!("[{rank:>width$}] "),
            };
            let (out, err) = (child.stdout.take(), child.stderr.take());
            // From here on it is ended with the others.
            ranks.running.push(Running {
                rank,
                child,
                said: Said::default(),
                errors: None,
            });
            if let Some(out) = out {
                let copying = copy_lines(out, prefix.clone(), None);
                ranks.output.push(copying.map_err(|e| no_thread(rank, e))?);
            }
            if let (Some(err), Some(running)) = (err, ranks.running.last_mut()) {
                let copying = copy_lines(err, prefix, Some(running.said.clone()));
                running.errors = Some(copying.map_err(|e| no_thread(rank, e))?);
            }
        }
        Ok(ranks)
    }

    /// Ranks that have not ended.
    pub(crate) fn left(&self) -> usize {
        self.running.len()
    }

    /// Their numbers, for a person.
    pub(crate) fn names(&self) -> String {
        ranges(self.running.iter().map(|r| r.rank as usize))
    }

    /// Ranks that have ended since the last call.
    pub(crate) fn reap(&mut self) -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        let mut i = 0;
        while i < self.running.len() {
            let r = &mut self.running[i];
            match r.child.try_wait().context("cannot wait for a rank")? {
                Some(status) => {
                    let r = self.running.remove(i);
                    if let Some(errors) = r.errors {
                        // Its last lines may still be in the pipe.
                        wait(&errors, Instant::now() + LAST_ERROR);
                        self.output.push(errors);
                    }
                    ended.push(Ended {
                        rank: r.rank,
                        end: status.into(),
                        said: r.said.text(),
                    });
                }
                None => i += 1,
            }
        }
        Ok(ended)
    }

    /// Sends a signal to every rank that is left, and to the processes that it has started.
    pub(crate) fn signal(&self, signal: Signal) {
        for r in &self.running {
            if let Some(group) = i32::try_from(r.child.id()).ok().and_then(Pid::from_raw) {
                // It may have ended just now: then there is nothing to signal.
                let _ = kill_process_group(group, signal);
            }
        }
    }

    /// Waits until all output of the ranks is passed on.
    pub(crate) fn finish_output(&mut self) {
        let deadline = Instant::now() + LAST_LINES;
        for thread in self.output.drain(..) {
            wait(&thread, deadline);
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

/// Passes on line by line, each with the prefix: to standard error where `said` is given, which
/// keeps the last error.
fn copy_lines(
    from: impl Read + Send + 'static,
    prefix: String,
    said: Option<Said>,
) -> std::io::Result<JoinHandle<()>> {
    let copy = move || {
        let mut from = BufReader::new(from);
        let mut line = prefix.clone().into_bytes();
        // Bytes, not text: a rank may print bytes that are no UTF-8.
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            if let Some(said) = &said {
                said.hear(&line[prefix.len()..]);
            }
            // One write a line, so that lines of ranks do not mix.
            let written = match said {
                Some(_) => std::io::stderr().write_all(&line),
                None => {
                    let mut out = std::io::stdout().lock();
                    out.write_all(&line).and_then(|()| out.flush())
                }
            };
            if written.is_err() {
                return;
            }
            line.truncate(prefix.len());
        }
    };
    std::thread::Builder::new()
        .name("rank-output".into())
        .spawn(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_rank_is_kept_with_its_following_lines() {
        let said = Said::default();
        for line in [
            "loading\n",
            "ringbell: first\n",
            "  because: forgotten\n",
            "ringbell: cannot open the NIC\n",
            "  because: no descriptor\n",
            "  what to do: raise it\n",
            "bye\n",
        ] {
            said.hear(line.as_bytes());
        }
        assert_eq!(
            said.text(),
            "cannot open the NIC; because: no descriptor; what to do: raise it"
        );
    }
}
