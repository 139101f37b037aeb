//! Operations that a stream of the GPU posts by itself: it stores the last word of a prepared entry and the
//! doorbell, and waits for the completion line. No kernel runs meanwhile.
#![allow(clippy::disallowed_methods)] // The host waits here, with deadlines.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ringbell_cuda_kernels::{Event, LaunchError, Stream, WordOp};
use ringbell_nic_abi::{Completion, Descriptor, Status};

use crate::{HostQueue, Nic};

/// Most queues of a communicator for streams; further streams use kernels.
const MOST: usize = 8;

/// The queue of one stream: entries become whole in the order in which they were prepared.
#[derive(Debug)]
struct OneStream {
    stream: Stream,
    queue: HostQueue,
    /// Tickets that nobody asks about any more.
    orphans: Mutex<Vec<u32>>,
}

/// The queues of a communicator, one for each stream that uses it.
#[derive(Debug, Default)]
pub(super) struct StreamQueues {
    all: Mutex<Vec<Arc<OneStream>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks can panic half-way through a change.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamQueues {
    fn of(&self, nic: &Nic, stream: &Stream) -> Option<Arc<OneStream>> {
        let mut all = lock(&self.all);
        if let Some(known) = all.iter().find(|q| q.stream.is_same(stream)) {
            return Some(known.clone());
        }
        if all.len() >= MOST {
            return None;
        }
        let queue = nic.create_queue().ok()?;
        let made = Arc::new(OneStream {
            stream: stream.clone(),
            queue,
            orphans: Mutex::default(),
        });
        all.push(made.clone());
        Some(made)
    }

    /// Queues a descriptor on a stream; `None` when a kernel must do it: the stream cannot, or there is no
    /// queue or slot left.
    pub(super) fn post(
        &self,
        nic: &Nic,
        stream: &Stream,
        d: &Descriptor,
    ) -> Option<Result<Posted, LaunchError>> {
        stream.has_words().ok()?;
        let one = self.of(nic, stream)?;
        lock(&one.orphans).retain(|t| one.queue.poll(*t).is_none());
        let entry = one.queue.prepare(d)?;
        let ops = [
            WordOp::Store64 {
                va: entry.word.0,
                value: entry.word.1,
            },
            WordOp::Store32 {
                va: entry.doorbell.0,
                value: entry.doorbell.1,
            },
            WordOp::WaitEqual32 {
                va: entry.done.0,
                value: entry.done.1,
            },
        ];
        Some(stream.words(&ops).map(|()| Posted {
            limit: one.queue.limit(d.timeout_us),
            event: stream.record(),
            one,
            ticket: entry.ticket,
            seen: OnceLock::new(),
            done: OnceLock::new(),
        }))
    }
}

/// An operation that a stream posts.
#[derive(Debug)]
pub(super) struct Posted {
    one: Arc<OneStream>,
    ticket: u32,
    event: Event,
    /// Longest time that the NIC takes.
    limit: Duration,
    /// When the host first saw that the NIC has the operation.
    seen: OnceLock<Instant>,
    done: OnceLock<Completion>,
}

impl Posted {
    pub(super) fn has_ended(&self) -> bool {
        let reached = || self.event.wait(Duration::ZERO);
        self.done.get().is_some() || !matches!(reached(), Err(LaunchError::TimedOut { .. }))
    }

    /// Waits until the stream has come to the operation and it has ended.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Completion, LaunchError> {
        if let Some(done) = self.done.get() {
            return Ok(*done);
        }
        self.look();
        match self.event.wait(timeout) {
            Ok(()) => {
                let poll = || self.one.queue.poll(self.ticket);
                Ok(*self.done.get_or_init(|| poll().unwrap_or_else(silent)))
            }
            Err(LaunchError::TimedOut { .. }) if self.look() => {
                // The NIC has not kept its own deadline: the stream must not wait for it for ever.
                self.one.queue.give_up(self.ticket);
                Ok(*self.done.get_or_init(silent))
            }
            Err(e) => Err(e),
        }
    }

    /// Whether the NIC has had the operation for longer than it may.
    fn look(&self) -> bool {
        if !self.one.queue.is_published(self.ticket) {
            return false;
        }
        self.seen.get_or_init(Instant::now).elapsed() > self.limit
    }
}

fn silent() -> Completion {
    Completion {
        status: Status::NicSilent,
        opcode: 0,
        wr_id: 0,
        bytes: 0,
        detail: 0,
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // The slot of a silent ticket stays in use: the NIC may still write its line.
        if self.done.get().is_none() && self.one.queue.poll(self.ticket).is_none() {
            lock(&self.one.orphans).push(self.ticket);
        }
    }
}
