//! Where the threads of a kernel stand that does not end: asked for when a wait is late, and printed with
//! `RINGBELL_DEBUG=kernel`.
#![allow(clippy::disallowed_methods)] // A host thread waits for the answer, with a deadline.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringbell_gpu::{Block, Memory, Site};

use super::debugging;
use crate::locks::lock;

/// How long an answer may take: a block that only waits is looked at every few milliseconds.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long blocks only wait before `RINGBELL_DEBUG=kernel` says where; and how long until it says so again.
const QUIET: Duration = Duration::from_secs(2);

/// Lines that are shown at most.
const LINES: usize = 24;

/// Questions to the threads of the host that run a kernel's blocks, and their answers.
#[derive(Debug, Default)]
pub(super) struct Hang {
    /// Number of the last question.
    asked: AtomicU64,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads of the host that run blocks.
    workers: usize,
    /// Of the last question.
    answers: usize,
    stands: Vec<Stand>,
}

/// What the threads of a block wait for, in lines, and its index.
pub(super) type Stand = (Vec<String>, [u32; 3]);

/// One of the threads of the host, while it runs blocks.
pub(super) struct Worker<'a> {
    hang: &'a Hang,
    /// Number of the last question that it has answered.
    seen: u64,
    /// Since when its blocks only wait.
    idle: Option<Instant>,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        lock(&self.hang.state).workers -= 1;
        self.hang.answered.notify_all();
    }
}

impl Hang {
    pub(super) fn worker(&self) -> Worker<'_> {
        let mut state = lock(&self.state);
        state.workers += 1;
        Worker {
            hang: self,
            seen: self.asked.load(Ordering::Relaxed),
            idle: None,
        }
    }

    /// The answers of all, in lines; `None` if there is none in time.
    pub(super) fn ask(&self) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = lock(&self.state);
        (state.answers, state.stands) = (0, Vec::new());
        self.asked.fetch_add(1, Ordering::Relaxed);
        while state.answers < state.workers {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .answered
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        (!state.stands.is_empty()).then(|| lines(&state.stands))
    }
}

impl Worker<'_> {
    /// Whether to say where the threads stand: asked, or for so long without progress that a trace tells it.
    pub(super) fn is_asked(&mut self, idle: bool) -> bool {
        if !idle {
            self.idle = None;
        }
        let late = idle && debugging::asked().waits && {
            let since = *self.idle.get_or_insert_with(Instant::now);
            since.elapsed() >= QUIET
        };
        late || self.hang.asked.load(Ordering::Relaxed) != self.seen
    }

    pub(super) fn answer(&mut self, stands: &[Stand], kernel: &str) {
        if self.idle.is_some_and(|i| i.elapsed() >= QUIET) {
            self.idle = Some(Instant::now());
            eprintln!("ringbell: kernel `{kernel}` waits\n{}", lines(stands));
        }
        let mut state = lock(&self.hang.state);
        let asked = self.hang.asked.load(Ordering::Relaxed);
        if asked != self.seen {
            self.seen = asked;
            state.answers += 1;
            state.stands.extend_from_slice(stands);
            self.hang.answered.notify_all();
        }
    }
}

/// What the threads of blocks wait for.
pub(super) fn stands<'a>(
    blocks: impl Iterator<Item = &'a Block>,
    memory: &dyn Memory,
    describe: &dyn Fn(Site) -> String,
) -> Vec<Stand> {
    let stand = |block: &Block| {
        let waits = block.waits(memory);
        let lines = waits.iter().map(|w| w.describe(&describe(w.site)));
        (lines.collect(), block.index())
    };
    blocks.map(stand).collect()
}

/// A line for each thing that threads wait for; blocks whose threads wait alike share them.
fn lines(stands: &[Stand]) -> String {
    let mut alike: BTreeMap<&[String], Vec<[u32; 3]>> = BTreeMap::new();
    for (waits, index) in stands {
        alike.entry(waits).or_default().push(*index);
    }
    let mut groups: Vec<_> = alike.into_iter().collect();
    for (_, indices) in &mut groups {
        indices.sort_by_key(|[x, y, z]| (*z, *y, *x));
    }
    groups.sort_by_key(|(_, indices)| indices[0]);
    let mut lines = Vec::new();
    for (waits, indices) in groups {
        let named = indices.iter().take(4);
        let named = named.map(|[x, y, z]| format!("({x},{y},{z})"));
        let mut name = named.collect::<Vec<String>>().join(", ");
        if indices.len() > 4 {
            // Writing to a string cannot fail.
            let _ = write!(name, " and {} more", indices.len() - 4);
        }
        let word = if indices.len() == 1 {
            "block"
        } else {
            "blocks"
        };
        lines.extend(waits.iter().map(|w| format!("  {word} {name}: {w}")));
    }
    lines.truncate(LINES);
    lines.join("\n")
}
