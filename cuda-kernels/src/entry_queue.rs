//! Operations posted by a GPU stream itself, without a kernel.
//!
//! The host prepares an entry. The stream stores its first word and the doorbell, and waits for the
//! completion line.
#![allow(clippy::disallowed_methods)] // The host waits here, with deadlines.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ringbell_nic_abi::queue::PreparedEntry;
use ringbell_nic_abi::{Completion, Descriptor, Status};

use crate::locks::lock;
use crate::{Event, LaunchError, Stream, WordOp};

/// A queue whose entries the host prepares and a stream publishes, implemented by the owner of the
/// NIC. An entry that is not published holds up those behind it, so a queue serves one stream.
pub trait EntryQueue: Debug + Send + Sync {
    /// Takes a slot and writes the entry without its first word; `None` when no slot is free.
    fn prepare(&self, d: &Descriptor) -> Option<PreparedEntry>;
    /// The completion of a ticket, if it has come; its slot is free afterwards.
    fn poll(&self, ticket: u32) -> Option<Completion>;
    /// Whether the first word of a prepared entry was stored.
    fn is_published(&self, ticket: u32) -> bool;
    /// Longest time from a published entry to its completion.
    fn limit(&self, timeout_us: u32) -> Duration;
    /// Releases a stream that waits for a ticket although the NIC is silent. The slot is not used
    /// again.
    fn give_up(&self, ticket: u32);
}

/// A stream and its queue: entries are published in the order in which they were prepared.
#[derive(Debug, Clone)]
pub struct PostingStream {
    inner: Arc<PostingInner>,
}

#[derive(Debug)]
struct PostingInner {
    stream: Stream,
    queue: Box<dyn EntryQueue>,
    /// Tickets of dropped operations that have not completed.
    orphans: Mutex<Vec<u32>>,
}

impl PostingStream {
    /// A stream that posts to `queue`, as its only producer.
    pub fn new(stream: &Stream, queue: Box<dyn EntryQueue>) -> PostingStream {
        PostingStream {
            inner: Arc::new(PostingInner {
                stream: stream.clone(),
                queue,
                orphans: Mutex::default(),
            }),
        }
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.inner.stream
    }

    /// Queues a descriptor behind the stream's present work. `None` when a kernel must do it: the
    /// stream cannot ([`Stream::has_words`]), or the queue has no free slot.
    pub fn post(&self, d: &Descriptor) -> Option<Result<Posted, LaunchError>> {
        let one = &self.inner;
        one.stream.has_words().ok()?;
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
        Some(one.stream.words(&ops).map(|()| Posted {
            limit: one.queue.limit(d.timeout_us),
            event: one.stream.record(),
            one: one.clone(),
            ticket: entry.ticket,
            seen: OnceLock::new(),
            done: OnceLock::new(),
        }))
    }
}

/// An operation that a stream posts.
#[derive(Debug)]
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Posted {
    one: Arc<PostingInner>,
    ticket: u32,
    event: Event,
    /// Longest time that the NIC takes.
    limit: Duration,
    /// When the host first saw that the NIC has the operation.
    seen: OnceLock<Instant>,
    done: OnceLock<Completion>,
}

impl Posted {
    /// Whether the operation has ended, with success or not; never waits.
    pub fn has_ended(&self) -> bool {
        let reached = || self.event.wait(Duration::ZERO);
        self.done.get().is_some() || !matches!(reached(), Err(LaunchError::TimedOut { .. }))
    }

    /// Waits until the operation has ended.
    ///
    /// # Errors
    /// [`LaunchError`]: a time-out before the stream has reached the operation, or a failure of the stream.
    pub fn wait(&self, timeout: Duration) -> Result<Completion, LaunchError> {
        if let Some(done) = self.done.get() {
            return Ok(*done);
        }
        self.is_late();
        match self.event.wait(timeout) {
            Ok(()) => {
                let poll = || self.one.queue.poll(self.ticket);
                Ok(*self.done.get_or_init(|| poll().unwrap_or_else(silent)))
            }
            Err(LaunchError::TimedOut { .. }) if self.is_late() => {
                // The NIC has missed its own deadline: the stream must not wait without end.
                self.one.queue.give_up(self.ticket);
                Ok(*self.done.get_or_init(silent))
            }
            Err(e) => Err(e),
        }
    }

    /// Whether the NIC is late with the operation.
    fn is_late(&self) -> bool {
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
