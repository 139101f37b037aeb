//! [`Request`]: an operation under way.

use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::{CollectiveKind, Completion, Status};

use super::communicator::Inner;
use super::operation::After;
use super::CollectiveError;

/// What an operation that ended well says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// Bytes moved; of a receive: the length of the message.
    pub bytes: u64,
    /// What the NIC adds.
    pub detail: u64,
}

/// An operation under way. Its buffers are the NIC's until it is done.
///
/// Dropping it does not end the operation: it goes on, and its result is forgotten.
#[derive(Debug)]
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Request {
    comm: Arc<Inner>,
    kind: CollectiveKind,
    ticket: u32,
    /// Its time-out, and some: the NIC has its own clock.
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

    /// Whether the operation has ended; never waits. Steps the NIC once, so that asking again and again
    /// gets there.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`] when it has ended badly.
    pub fn test(&mut self) -> Result<Option<Done>, CollectiveError> {
        if self.completion.is_none() {
            self.comm.nic.soft().step();
            self.completion = self.comm.queue.poll(self.ticket);
        }
        match self.completion {
            Some(c) => self.judge(c).map(Some),
            None => Ok(None),
        }
    }

    /// Waits for the end of the operation: until its own time-out, and the queue's grace.
    ///
    /// # Errors
    /// [`CollectiveError::Failed`]: how it ended, and which rank is to blame; the buffers are yours.
    /// [`CollectiveError::Wait`]: the NIC is silent.
    pub fn wait(mut self) -> Result<Done, CollectiveError> {
        let patience = self.patience;
        self.wait_for(patience)
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
            }),
        }
    }

    /// What an operation that comes after this one is to say.
    pub(super) fn as_predecessor(&self) -> Option<After> {
        match self.completion {
            None => Some(After::Ticket(self.comm.queue.id().0, self.ticket)),
            Some(c) if c.status == Status::Ok => None,
            Some(_) => Some(After::Impossible("a request that has failed")),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.completion.is_none() {
            // The slot of the queue is given back when the operation has ended.
            self.comm.orphan(self.ticket);
        }
    }
}
