//! Cancellation of operations.

use ringbell_nic_abi::Status;

use super::{Collectives, State};
use crate::types::WorkToken;

/// An operation that cannot be cancelled; it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// No such operation: the ticket was never taken, has retired, or is no `COLLECTIVE`.
    #[error("ticket {ticket} of queue {queue} is no collective operation under way; it may have ended: poll it")]
    NotUnderWay {
        /// The queue.
        queue: u32,
        /// The ticket.
        ticket: u32,
    },
    /// Other ranks depend on it.
    #[error("ticket {ticket} of queue {queue} has begun, and other ranks wait for it; wait for its end, or abort the communicator")]
    Begun {
        /// The queue.
        queue: u32,
        /// The ticket.
        ticket: u32,
    },
}

impl Collectives {
    /// Cancels an operation on which no other rank depends yet: a message that has met no partner, or
    /// a waiting operation that is no collective (a collective takes its number when it is
    /// posted, on all ranks alike). `false`: too late.
    pub(crate) fn cancel(&mut self, token: WorkToken) -> bool {
        let Some(id) = self.op_of(token) else {
            return false;
        };
        let Some(a) = self.ops.get_mut(id) else {
            return false;
        };
        let slot = a.comm;
        let waits = matches!(a.state, State::Waiting);
        let gone = match &mut a.state {
            State::Channel(c) => c.take_back(id, &mut self.fabric),
            State::Waiting => a.seq.is_none(),
            State::Message(Some(recv)) => self.fabric.cancel_recv(*recv),
            State::Message(None) => self.fabric.cancel_send(u64::from(id) << 32),
            _ => false,
        };
        if !gone {
            return false;
        }
        self.waiting -= usize::from(waits);
        self.forget(id, Status::Cancelled, 0);
        if let Some(c) = self.comm_mut(slot) {
            c.active.retain(|o| *o != id);
            c.queue.retain(|o| *o != id);
        }
        true
    }
}
