//! Where the threads of a kernel stand that does not end: asked for when a wait is late, and
//! printed with `RINGBELL_DEBUG=kernel`.
#![allow(clippy::disallowed_methods)] // A host thread waits for the answer, with a deadline.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringbell_gpu::{Block, Memory, Site, Wait, WaitFor};

use super::debugging;
use crate::locks::lock;

/// How long an answer may take: a block that only waits is looked at every few milliseconds.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long blocks only wait before `RINGBELL_DEBUG=kernel` says where; and how long until it says
/// so again.
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

/// What the threads of a block wait for.
#[derive(Debug, Clone)]
pub(super) struct Stand {
    lines: Vec<String>,
    index: [u32; 3],
    /// Some loop at a word.
    at_words: bool,
    /// Some can go on by themselves.
    can_run: bool,
}

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
    /// Whether to say where the threads stand: asked, or for so long without progress that a trace
    /// tells it.
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
        let is_word = |w: &Wait| matches!(w.what, WaitFor::Word { .. });
        let runs = |w: &Wait| matches!(w.what, WaitFor::Nothing | WaitFor::Sleep);
        Stand {
            lines: lines.collect(),
            index: block.index(),
            at_words: waits.iter().any(is_word),
            can_run: waits.iter().any(runs),
        }
    };
    blocks.map(stand).collect()
}

/// Whom those depend on that loop at words: nothing is said while none does.
fn dependence(stands: &[Stand]) -> Option<String> {
    if !stands.iter().any(|s| s.at_words) {
        return None;
    }
    let running: Vec<[u32; 3]> = stands
        .iter()
        .filter(|s| s.can_run)
        .map(|s| s.index)
        .collect();
    Some(match running.is_empty() {
        true => "  no thread of these blocks can go on by itself: they depend on a store by the host, a NIC, another kernel or rank; else they wait for each other".to_owned(),
        false => format!("  they depend on threads of {}, which can run", named(&running)),
    })
}

/// `block (0,0,0)`, or `blocks (0,0,0), (1,0,0) and 7 more`.
fn named(indices: &[[u32; 3]]) -> String {
    let shown = indices.iter().take(4);
    let shown = shown.map(|[x, y, z]| format!("({x},{y},{z})"));
    let mut name = shown.collect::<Vec<String>>().join(", ");
    if indices.len() > 4 {
        // Writing to a string cannot fail.
        let _ = write!(name, " and {} more", indices.len() - 4);
    }
    let word = if indices.len() == 1 {
        "block"
    } else {
        "blocks"
    };
    format!("{word} {name}")
}

/// A line for each thing that threads wait for; blocks whose threads wait alike share them.
pub(super) fn lines(stands: &[Stand]) -> String {
    let mut alike: BTreeMap<&[String], Vec<[u32; 3]>> = BTreeMap::new();
    for stand in stands {
        alike.entry(&stand.lines).or_default().push(stand.index);
    }
    let mut groups: Vec<_> = alike.into_iter().collect();
    for (_, indices) in &mut groups {
        indices.sort_by_key(|[x, y, z]| (*z, *y, *x));
    }
    groups.sort_by_key(|(_, indices)| indices[0]);
    let mut lines = Vec::new();
    for (waits, indices) in groups {
        let name = named(&indices);
        lines.extend(waits.iter().map(|w| format!("  {name}: {w}")));
    }
    lines.truncate(LINES);
    lines.extend(dependence(stands));
    lines.join("\n")
}
