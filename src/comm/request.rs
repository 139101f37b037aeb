//! [`Request`]: an outstanding operation.
#![allow(clippy::disallowed_methods)] // Waits for the NIC, with deadlines on the host's clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell_nic_abi::{CollectiveKind, Completion, Status};
use ringbell_nic_core::collective::CancelError;

use super::inner::Inner;
use super::CollectiveError;

/// Additional wait before a NIC counts as failed.
const SILENCE: Duration = Duration::from_secs(60);

/// Result of an operation that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// Bytes moved; of a receive: the length of the message.
    pub bytes: u64,
    /// The status's detail.
    pub detail: u64,
}

/// The predecessor of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// Number of the queue, and ticket.
    Ticket(u32, u32),
    /// All earlier operations of its queue.
    Everything,
    /// A request that has failed, or of another communicator: posting is refused.
    Impossible(&'static str),
}

/// An outstanding operation. Its buffers belong to the NIC until it has ended.
///
/// Dropping it does not end the operation: it continues, and its result is discarded.
#[derive(Debug)]
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Request {
    comm: Arc<Inner>,
    kind: CollectiveKind,
    ticket: u32,
    /// Its time-out and a grace: the NIC has its own clock.
    patience: Duration,
    completion: Option<Completion>,
}

impl Request {
    pub(super) fn new(
        comm: Arc<Inner>,
        kind: CollectiveKind,
        ticket: u32,
        patience: Duration,
    ) -> Request {
        Request {
            comm,
            kind,
            ticket,
            patience,
            completion: None,
        }
    }

    /// Whether the operation has ended; never waits. Steps the NIC once, so that repeated calls
    /// make progress.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`] when it has failed.
    pub fn test(&mut self) -> Result<Option<Done>, CollectiveError> {
        if self.completion.is_none() {
            self.comm.nic.backend().step();
            self.completion = self.comm.queue.poll(self.ticket);
        }
        match self.completion {
            Some(c) => self.judge(c).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the operation has ended, as far as the NIC has been stepped by others: it is not
    /// stepped here. For a thread that looks now and then, beside which the NIC's own thread goes
    /// on to sleep until something happens.
    pub fn has_ended(&self) -> bool {
        self.completion.is_some() || self.comm.queue.has_ended(self.ticket)
    }

    /// Waits for the end of the operation. The NIC ends it by its own time-out at the latest; on a
    /// busy machine that may be noticed late, and this call waits for it.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`]: how it ended, and which rank caused it; the caller may use the buffers again. With
    /// `NIC_SILENT` the NIC has failed, and the buffers must not be used while it exists.
    pub fn wait(mut self) -> Result<Done, CollectiveError> {
        self.wait_to_end()
    }

    /// As [`Request::wait`], and the request stays.
    ///
    /// # Errors
    /// As [`Request::wait`].
    pub fn wait_to_end(&mut self) -> Result<Done, CollectiveError> {
        let end = self.wait_for(self.patience);
        if !matches!(end, Err(CollectiveError::Wait { .. })) {
            return end;
        }
        // The waiting thread steps the NIC, so time alone does not distinguish a failed NIC from a
        // busy machine.
        match self.wait_for(SILENCE) {
            Err(CollectiveError::Wait { kind, .. }) => Err(CollectiveError::Failed {
                kind,
                rank: self.comm.rank,
                status: Status::NicSilent,
                detail: 0,
                why: None,
            }),
            end => end,
        }
    }

    /// Waits at most `timeout`; may be called again.
    ///
    /// # Errors
    /// As [`Request::wait`], and [`CollectiveError::Wait`] when the operation has not ended yet.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<Done, CollectiveError> {
        let c = match self.completion {
            Some(c) => c,
            None => {
                let c = self.comm.queue.wait(self.ticket, timeout);
                c.map_err(|source| CollectiveError::Wait {
                    kind: self.kind,
                    source,
                })?
            }
        };
        self.completion = Some(c);
        self.judge(c)
    }

    /// Cancels the operation, if no other rank depends on it yet: a message that has met no
    /// partner, or an operation that waits for its predecessor. Its buffer is the caller's at once,
    /// other ranks see nothing of it, and [`Request::wait`] gives [`CollectiveError::Failed`] with
    /// `CANCELLED`.
    ///
    /// # Errors
    /// [`CollectiveError::Cancel`] when it has ended, or has begun (a collective begins on all
    /// ranks when it is posted on one): nothing has changed, wait for its end.
    pub fn cancel(&mut self) -> Result<(), CollectiveError> {
        let (queue, ticket) = (&self.comm.queue, self.ticket);
        let deadline = Instant::now() + self.patience;
        let result = loop {
            // An operation that has ended before must be reported as ended, not as cancelled.
            if self.completion.is_none() {
                self.completion = queue.poll(ticket);
            }
            let result = match self.completion {
                Some(_) => break Err(ended(queue.id().0, ticket)),
                None => self.comm.nic.backend().cancel(queue.id(), ticket),
            };
            // A NIC that has not polled the queue yet has no record of the operation.
            let unknown = matches!(result, Err(CancelError::NotUnderWay { .. }));
            if !unknown || Instant::now() >= deadline {
                break result;
            }
            if !self.comm.nic.backend().step() {
                std::thread::yield_now();
            }
        };
        result.map_err(|source| CollectiveError::Cancel {
            kind: self.kind,
            source,
        })
    }

    fn judge(&self, c: Completion) -> Result<Done, CollectiveError> {
        match c.status {
            Status::Ok => Ok(Done {
                bytes: c.bytes,
                detail: c.detail,
            }),
            status => Err(CollectiveError::Failed {
                kind: self.kind,
                rank: self.comm.rank,
                status,
                detail: c.detail,
                why: self.comm.why(status, c.detail),
            }),
        }
    }

    /// The predecessor that a later operation names.
    pub(super) fn as_predecessor(&self) -> Option<After> {
        match self.completion {
            None => Some(After::Ticket(self.comm.queue.id().0, self.ticket)),
            Some(c) if c.status == Status::Ok => None,
            Some(_) => Some(After::Impossible("a request that has failed")),
        }
    }
}

fn ended(queue: u32, ticket: u32) -> CancelError {
    CancelError::NotUnderWay { queue, ticket }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.completion.is_none() {
            // The slot of the queue is given back when the operation has ended.
            self.comm.orphan(self.ticket);
        }
    }
}
