//! [`Inbox`]: messages of a communicator that a host thread sends and receives without a queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::GpuVa;

use crate::collective::{
    Desk, Found, Inboxes, MessageError, MessageEvent, MessageId, Payload, Wants,
};
use crate::progress::Progress;
use crate::types::CommId;

/// Messages of a communicator, for one user on the host. The NIC matches them: by sender, by tag,
/// and by a number (*context*) that keeps those of libraries, or of MPI's communicators, apart.
///
/// A receive names no memory. It waits in its order among the others, as long as its communicator
/// lives, and holds no place of a queue. When it has met a message ([`MessageEvent::Met`]) the user
/// [reads](Inbox::read) the bytes that are here, [fetches](Inbox::fetch) those that are not, or
/// gives the message [registered memory](Inbox::collect), to which they go from its sender. All
/// inboxes of a communicator share its messages; events come to the one whose operation it is.
///
/// Dropping it withdraws its receives. What was sent leaves.
pub struct Inbox {
    id: u32,
    comm: CommId,
    news: Arc<AtomicUsize>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox({})", self.id)
    }
}

impl Inbox {
    pub(super) fn new(
        id: u32,
        comm: CommId,
        news: Arc<AtomicUsize>,
        progress: Arc<Progress>,
    ) -> Inbox {
        Inbox {
            id,
            comm,
            news,
            progress,
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Inboxes, &mut Desk<'_, '_>) -> R) -> R {
        self.progress
            .with_core(|c| c.collectives(|x, io| x.with_inboxes(io, self.comm, f)))
    }

    /// Sends bytes to a rank. They are copied, so the call does not wait for anything; the number
    /// ends when the peer keeps the message or a receive has met it, and with `when_met` not before
    /// that. A message to the own rank that is not to be waited for has none.
    ///
    /// # Errors
    /// [`MessageError`]; nothing was sent.
    pub fn send(
        &self,
        (to, context, tag): (u32, u32, u32),
        bytes: &[u8],
        when_met: bool,
    ) -> Result<Option<MessageId>, MessageError> {
        let payload = Payload::Bytes(bytes);
        self.with(|x, desk| x.send(desk, self.id, (to, context, tag), payload, when_met))
    }

    /// The same from registered memory, which is in use until the number has ended.
    ///
    /// # Errors
    /// As [`send`](Inbox::send).
    pub fn send_from(
        &self,
        (to, context, tag): (u32, u32, u32),
        memory: (GpuVa, u64),
        when_met: bool,
    ) -> Result<Option<MessageId>, MessageError> {
        let memory = [memory];
        let payload = Payload::Spans(&memory);
        self.with(|x, desk| x.send(desk, self.id, (to, context, tag), payload, when_met))
    }

    /// Sends an *awaited* message from ranges of registered memory, to the oldest receive with this
    /// tag of which the peer has told ([`await_from`](Inbox::await_from)). It goes straight into
    /// the receive, and the memory is in use until the number has ended. Without such a receive a
    /// short message may leave before it; `None`: this one has not, try again.
    ///
    /// Awaited messages are apart from all others, and have a tag alone.
    ///
    /// # Errors
    /// As [`send`](Inbox::send).
    pub fn send_awaited(
        &self,
        target: (u32, u32),
        memory: &[(GpuVa, u64)],
    ) -> Result<Option<MessageId>, MessageError> {
        let payload = Payload::Spans(memory);
        self.with(|x, desk| x.send_awaited(desk, self.id, target, payload))
    }

    /// The same of bytes that are copied.
    ///
    /// # Errors
    /// As [`send`](Inbox::send).
    pub fn send_awaited_bytes(
        &self,
        target: (u32, u32),
        bytes: &[u8],
    ) -> Result<Option<MessageId>, MessageError> {
        let payload = Payload::Bytes(bytes);
        self.with(|x, desk| x.send_awaited(desk, self.id, target, payload))
    }

    /// Begins a receive of an awaited message from a rank and with a tag, which are told to that
    /// rank. A shorter message fits. The memory is in use until the number has ended, with its
    /// message or with the communicator. A longer message ends it with `MESSAGE_TOO_LARGE`, and its
    /// send, too, unless that has ended before.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn await_from(
        &self,
        source: (u32, u32),
        memory: &[(GpuVa, u64)],
    ) -> Result<MessageId, MessageError> {
        self.with(|x, desk| x.await_from(desk, self.id, source, memory))
    }

    /// Begins a receive.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn receive(&self, wants: &Wants) -> Result<MessageId, MessageError> {
        let begun = self.with(|x, desk| x.receive(desk, self.id, wants, false))?;
        begun.ok_or(MessageError::Full)
    }

    /// Takes out the first message that a receive would meet, as a receive that has met it;
    /// `None`: there is none. (MPI: `MPI_Improbe`.)
    ///
    /// # Errors
    /// As [`receive`](Inbox::receive).
    pub fn receive_now(&self, wants: &Wants) -> Result<Option<MessageId>, MessageError> {
        self.with(|x, desk| x.receive(desk, self.id, wants, true))
    }

    /// The first message that a receive would meet; it stays. (MPI: `MPI_Iprobe`.)
    ///
    /// # Errors
    /// As [`receive`](Inbox::receive).
    pub fn probe(&self, wants: &Wants) -> Result<Option<Found>, MessageError> {
        self.with(|x, desk| x.probe(desk, self.id, wants))
    }

    /// Copies the bytes of a message that are here, as many as there is room for, and ends its
    /// receive. Returns how many.
    ///
    /// # Errors
    /// [`MessageError::NotHere`]: they are at the sender; [`fetch`](Inbox::fetch) them.
    pub fn read(&self, id: MessageId, into: &mut [u8]) -> Result<u64, MessageError> {
        self.with(|x, desk| x.read(desk, id, into))
    }

    /// Asks for the bytes of a message that are at its sender: they come to NIC memory, and
    /// [`MessageEvent::Met`] says when they are to be [read](Inbox::read).
    ///
    /// # Errors
    /// [`MessageError::Full`]: NIC memory has no room, and the message stays.
    pub fn fetch(&self, id: MessageId) -> Result<(), MessageError> {
        self.with(|x, desk| x.fetch(desk, id))
    }

    /// Gives a message that was met registered memory, with room for all of it, which is in use
    /// until [`MessageEvent::Ended`].
    ///
    /// # Errors
    /// [`MessageError::Room`], [`MessageError::Memory`]: the message stays. Others as before.
    pub fn collect(&self, id: MessageId, memory: (GpuVa, u64)) -> Result<(), MessageError> {
        self.with(|x, desk| x.collect(desk, id, memory))
    }

    /// Withdraws a receive that has met no message. `false`: it has.
    pub fn cancel(&self, id: MessageId) -> bool {
        self.with(|x, desk| x.cancel(desk, id, false))
    }

    /// The next event; steps the NIC once when there is none.
    ///
    /// # Errors
    /// [`MessageError::Ended`], after the last event: the communicator has ended, and all
    /// operations with it.
    pub fn poll(&self) -> Result<Option<MessageEvent>, MessageError> {
        if !self.has_news() && !self.progress.is_dedicated() {
            self.progress.take_over();
            self.progress.try_step();
        }
        match self.has_news() {
            true => self
                .progress
                .with_core(|c| c.collectives.inboxes.poll(self.id)),
            false => Ok(None),
        }
    }

    /// Whether [`poll`](Inbox::poll) has something, as far as the NIC has been stepped by others.
    pub fn has_news(&self) -> bool {
        // Acquire: pairs with the Release of who adds an event.
        self.news.load(Ordering::Acquire) > 0
    }

    /// Waits for an event, stepping the NIC. `false`: none has come in time.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.progress.wait_until(timeout, || self.has_news())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.with(|x, desk| x.close(desk, self.id));
    }
}
