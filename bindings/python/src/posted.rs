//! Operations under way: each with its memory, and a communicator with those whose requests were
//! dropped.
#![allow(clippy::disallowed_methods)] // Waits for the NIC, with a deadline on the host's clock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringbell::comm::Done;
use ringbell::Communicator;

use crate::operand::{Operand, Registry};
use crate::process::Owned;

/// An operation that has not been waited for to its end.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Before its memory.
    request: Owned<ringbell::Request>,
    _operands: Vec<Operand>,
}

impl Posted {
    pub(crate) fn new(request: ringbell::Request, operands: Vec<Operand>) -> Posted {
        Posted {
            request: Owned::new(request),
            _operands: operands,
        }
    }

    pub(crate) fn request(&mut self) -> PyResult<&mut ringbell::Request> {
        self.request.get_mut()
    }

    /// Whether it has ended; steps the NIC.
    pub(crate) fn has_ended(&mut self) -> bool {
        // In a forked child nothing is left to be done.
        self.request()
            .map_or(true, |r| !matches!(r.test(), Ok(None)))
    }
}

/// How far a request is.
#[derive(Debug)]
pub(crate) enum State {
    Outstanding(Posted),
    /// A thread waits for it.
    Waited,
    Done(Done),
    Failed,
}

/// Each change of what it protects is one step, so a panic leaves it whole.
pub(crate) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue is a ring of 256 slots: a completion that nothing takes blocks the post that comes to
/// its slot again. So many posts after its own, it is taken although the program has not waited for
/// it yet.
const LATE: u64 = 192;
/// So many posts after its own, the next one waits until an operation has ended.
const LAST: u64 = 240;
/// Longest such wait; then the queue's own error names it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Requests whose completions may lie in the queue, the oldest first, each with its number.
#[derive(Debug, Default)]
struct Watched {
    posts: u64,
    requests: Vec<(u64, Weak<Mutex<State>>)>,
}

impl Watched {
    /// Posts since the oldest.
    fn age(&self) -> u64 {
        let oldest = self.requests.first();
        oldest.map_or(0, |(number, _)| self.posts - number)
    }
}

/// A communicator, with what its requests leave behind.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Operations whose requests were dropped; their memory is the NIC's until they have ended.
    dropped: Mutex<Vec<Posted>>,
    watched: Mutex<Watched>,
    pub(crate) comm: Owned<Communicator>,
    pub(crate) registry: Arc<Registry>,
    rank: u32,
}

impl Shared {
    pub(crate) fn new(comm: Communicator, registry: &Arc<Registry>) -> Arc<Shared> {
        Arc::new(Shared {
            dropped: Mutex::default(),
            watched: Mutex::default(),
            rank: comm.rank(),
            comm: Owned::new(comm),
            registry: registry.clone(),
        })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Remembers a request whose completion may have to be taken before its program waits for it.
    pub(crate) fn watch(&self, request: &Arc<Mutex<State>>) {
        let mut watched = locked(&self.watched);
        let number = watched.posts;
        watched.posts += 1;
        watched.requests.push((number, Arc::downgrade(request)));
    }

    /// Keeps the queue's ring free for another post.
    pub(crate) fn make_room(&self) {
        let under_way = |request: &Weak<Mutex<State>>| {
            let request = request.upgrade();
            request.is_some_and(|r| match &mut *locked(&r) {
                State::Outstanding(posted) => !posted.has_ended(),
                // A thread that waits takes it itself.
                State::Waited => true,
                State::Done(_) | State::Failed => false,
            })
        };
        let start = Instant::now();
        loop {
            let mut watched = locked(&self.watched);
            if watched.age() < LATE {
                return;
            }
            watched.requests.retain(|(_, r)| under_way(r));
            if watched.age() < LAST || start.elapsed() > PATIENCE {
                return;
            }
            drop(watched);
            std::thread::yield_now();
        }
    }

    /// Keeps an operation without a request until it has ended.
    pub(crate) fn adopt(&self, posted: Posted) {
        locked(&self.dropped).push(posted);
    }

    pub(crate) fn collect_dropped(&self) {
        locked(&self.dropped).retain_mut(|p| !p.has_ended());
    }

    pub(crate) fn abort(&self) {
        if let Ok(comm) = self.comm.get() {
            comm.abort();
        }
    }
}
