//! [`Sender`]: the sending end of a connection.
//!
//! The NIC knows of the receives of the peer. A message without one is taken only if it is short,
//! and otherwise the caller tries again.

use std::collections::VecDeque;
use std::sync::Arc;

use ringbell::abi::{GpuVa, Status};
use ringbell::comm::MessageId;

use crate::abi::REQUESTS;
use crate::failure::Failure;
use crate::memory::Registered;
use crate::peer::{Ended, Peer};
use crate::requests::Requests;
use crate::wire::{GROUP, INSIDE};

/// A message under way.
#[derive(Debug)]
struct Message {
    size: usize,
    is_sent: bool,
    _memory: Option<Arc<Registered>>,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) peer: Peer,
    messages: Requests<Message>,
    /// Requests whose messages the NIC has, oldest first.
    posted: VecDeque<(MessageId, u64)>,
}

/// A message to send.
pub(crate) struct Outgoing {
    pub(crate) at: usize,
    pub(crate) size: usize,
    pub(crate) tag: i32,
    pub(crate) memory: Option<Arc<Registered>>,
    /// Its bytes, of a short one.
    pub(crate) inside: [u8; INSIDE],
}

impl Sender {
    /// The end of a connection that was just made.
    pub(crate) fn new(peer: Peer) -> Sender {
        Sender {
            peer,
            messages: Requests::new(REQUESTS * GROUP),
            posted: VecDeque::new(),
        }
    }

    fn on_end(&mut self, ended: &Ended) -> Result<(), Failure> {
        if ended.status != Status::Ok {
            return Err(self.peer.failed("a send", ended.status));
        }
        let place = self.posted.iter().position(|(id, _)| *id == ended.id);
        let posted = place.and_then(|p| self.posted.remove(p));
        if let Some(message) = posted.and_then(|(_, n)| self.messages.get_mut(n)) {
            message.is_sent = true;
        }
        Ok(())
    }

    /// Takes what has gone, with work of the NIC where nothing has without it.
    fn advance(&mut self) -> Result<(), Failure> {
        let mut next = self.peer.poll()?;
        while let Some(ended) = next {
            self.on_end(&ended)?;
            next = self.peer.look()?;
        }
        Ok(())
    }

    /// Sends a message; `None` when no receive waits for it, or too much is under way.
    pub(crate) fn send(&mut self, m: Outgoing) -> Result<Option<u64>, Failure> {
        self.peer.check()?;
        let spans: Vec<(GpuVa, u64)>;
        let bytes = match &m.memory {
            _ if m.size <= INSIDE => Err(&m.inside[..m.size]),
            Some(memory) => {
                spans = memory.cut(m.at, m.size)?;
                Ok(&spans[..])
            }
            None => {
                let text =
                    "a message of more than 24 B needs registered memory; its handle is null";
                return Err(Failure::argument(text));
            }
        };
        let posted = match self.messages.is_full() {
            true => None,
            false => self.peer.send(m.tag, bytes)?,
        };
        let Some(id) = posted else {
            self.advance()?;
            return Ok(None);
        };
        let message = Message {
            size: m.size,
            is_sent: false,
            _memory: m.memory,
        };
        let number = self.messages.insert(message);
        self.posted.extend(number.map(|n| (id, n)));
        Ok(number)
    }

    /// The bytes of a message that was sent: its memory is the caller's, and its request ends.
    pub(crate) fn test(&mut self, number: u64) -> Result<Option<usize>, Failure> {
        let unknown = || Requests::<Message>::unknown(number);
        if !self.messages.get_mut(number).ok_or_else(unknown)?.is_sent {
            self.advance()?;
        }
        match self.messages.get_mut(number).is_some_and(|m| m.is_sent) {
            true => Ok(self.messages.remove(number).map(|m| m.size)),
            false => Ok(None),
        }
    }

    /// Closes it. Messages that have not left are given up.
    pub(crate) fn close(&mut self) {
        if !self.peer.close(!self.posted.is_empty()) {
            // The NIC may still read there.
            std::mem::forget(std::mem::replace(&mut self.messages, Requests::new(0)));
        }
    }
}
