//! Watch over the other ranks' processes while this rank measures: an end is reported to the ranks
//! that wait for it.
#![allow(clippy::disallowed_methods)] // The program: waits for its ranks, with deadlines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Result};
use ringbell::job::BootstrapServer;

use crate::run::ranks::{Ended, Ranks};
use crate::{Exit, Problem};

/// Longest time for started ranks to end after the last measurement.
pub(super) const END: Duration = Duration::from_secs(10);
/// Interval between two checks of the processes.
const LOOK: Duration = Duration::from_millis(20);
/// Longest delay between an error and the detection of the process end that caused it.
const SEEN: Duration = Duration::from_millis(200);

/// Whether an error is one of this machine, not of the ranks.
pub(super) fn lacks_something(error: &anyhow::Error) -> bool {
    Problem::exit_of(error) == Exit::Environment
}

/// See the module text.
pub(super) struct Watch {
    state: Mutex<State>,
    stop: AtomicBool,
}

struct State {
    ranks: Ranks,
    /// In the order in which they were seen.
    failed: Vec<Ended>,
    error: Option<anyhow::Error>,
}

impl Watch {
    pub(super) fn new(ranks: Ranks) -> Watch {
        Watch {
            state: Mutex::new(State {
                ranks,
                failed: Vec::new(),
                error: None,
            }),
            stop: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks until it is stopped.
    pub(super) fn run(&self, server: &BootstrapServer) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut state = self.state();
            match state.ranks.reap() {
                Ok(ended) => {
                    for e in ended {
                        server.rank_ended(e.rank, &e.brief());
                        if !e.end.is_success() {
                            state.failed.push(e);
                        }
                    }
                }
                Err(e) => drop(state.error.get_or_insert(e)),
            }
            drop(state);
            std::thread::sleep(LOOK);
        }
    }

    /// The watching thread ends when this is dropped.
    pub(super) fn looks(&self) -> Looks<'_> {
        Looks(self)
    }

    /// Waits until all ranks have ended, after the last measurement.
    pub(super) fn finish(&self) -> Result<()> {
        let deadline = Instant::now() + END;
        loop {
            let mut state = self.state();
            if let Some(e) = state.error.take() {
                return Err(e);
            }
            if let Some(e) = state.failed.first() {
                return Err(problem(e).into());
            }
            if state.ranks.left() == 0 {
                state.ranks.finish_output();
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "rank(s) {} did not end; they were killed",
                    state.ranks.names()
                );
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Puts the rank in front whose end has caused rank 0's error.
    pub(super) fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        let before = self.state().failed.len();
        let start = Instant::now();
        loop {
            let mut state = self.state();
            // Later than the error only a signal is a cause: a process that exits may do so because
            // rank 0 has.
            let of_interest = |(i, e): &(usize, &Ended)| *i < before || e.end.is_by_signal();
            let causes = || state.failed.iter().enumerate().filter(of_interest);
            // A rank that lacks a resource ends before those that wait for it, and may be seen
            // after them.
            let lacks = causes().find(|(_, e)| exit_of(e) == Exit::Environment);
            if lacks.is_none() && lacks_something(&error) {
                return error;
            }
            if let Some(i) = lacks.or_else(|| causes().next()).map(|(i, _)| i) {
                let rank_0 = anyhow!("rank 0: {error:#}");
                return rank_0.context(problem(&state.failed.remove(i)));
            }
            drop(state);
            if start.elapsed() > SEEN {
                return error;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// See [`Watch::looks`].
pub(super) struct Looks<'a>(&'a Watch);

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn problem(ended: &Ended) -> Problem {
    Problem::new(
        exit_of(ended),
        ended.text(),
        "see why it ended: its own words are above, signal 9 may be the system's for want of memory (`dmesg`)",
    )
}

/// The exit of the whole command after a rank's end: a rank is this program, with the same exit
/// codes.
fn exit_of(ended: &Ended) -> Exit {
    match ended.end.code() {
        4 => Exit::Environment,
        _ => Exit::Failed,
    }
}
