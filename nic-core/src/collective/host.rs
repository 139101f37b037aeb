//! Messages of a communicator that the host sends and receives without a queue.
//!
//! A queue's places are used in turn, so one receive that waits for long holds up all that come
//! after it. These operations have no place in a queue and no time-out: as many as there are wait
//! for as long as their communicator lives. Their receives are [claims](crate::message::claim), or
//! [`awaited`] by their senders.
//!
//! An *inbox* is one user's: what happens to its operations waits there. Memory that an operation
//! names is pinned until the inbox has been told of its end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use ringbell_gtlb::Need;
use ringbell_nic_abi::{GpuVa, PdId, Status};

use super::desk::{split, Desk, Held, MessageError, MessageId, Payload};
use crate::link::Io;
use crate::message::{
    awaited, claim, Event, RecvRequest, SendRequest, Tags, Wanted, AWAITED_TAG, HOST_TAG, USER_TAG,
};
use crate::slab::Slab;

/// Bit of the keys of messages that belong to operations here.
pub(super) const HOST_KEY: u64 = 1 << 63;
/// Most numbers that keep messages apart.
pub const MAX_CONTEXTS: u32 = 1 << 29;

/// Which messages a receive or a probe takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// Rank of the sender; `None`: any.
    pub from: Option<u32>,
    /// Number that keeps messages apart, below [`MAX_CONTEXTS`].
    pub context: u32,
    /// Their tag; `None`: any.
    pub tag: Option<u32>,
}

/// A message that has met its receive, or that a probe has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Rank of the sender.
    pub from: u32,
    /// Its tag.
    pub tag: u32,
    /// Its bytes.
    pub len: u64,
}

/// What has happened to an operation of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageEvent {
    /// A receive has met a message: it is to be read, when its bytes are here, and else fetched or
    /// given memory. What was fetched comes again, with its bytes.
    Met {
        /// The receive.
        id: MessageId,
        /// The message.
        found: Found,
        /// Its bytes are here.
        here: bool,
    },
    /// A send, or a receive that was given memory, has ended.
    Ended {
        /// The operation.
        id: MessageId,
        /// How.
        status: Status,
        /// Of the status; the bytes of a message that was received.
        detail: u64,
    },
}

/// How far an operation is.
#[derive(Debug)]
enum Stage {
    Send,
    /// The number of its claim, and what that has met.
    Receive(u32, Option<Found>),
    /// A receive with memory.
    Collect,
    /// The same, of an awaited message.
    Await,
    /// A receive whose bytes are coming to NIC memory.
    Fetch(Found),
    /// They have come.
    Fetched(Found),
}

#[derive(Debug)]
struct Op {
    inbox: u32,
    stage: Stage,
    held: Held,
}

/// What one user of a communicator waits for.
#[derive(Debug)]
struct Inbox {
    slot: u32,
    ctx: u64,
    pd: PdId,
    events: VecDeque<MessageEvent>,
    /// Their number, and 1 when the communicator has ended, for those who have no lock.
    news: Arc<AtomicUsize>,
    /// Operations that have not ended.
    under_way: usize,
    /// How the communicator has ended.
    over: Option<(Status, u64)>,
    /// Its user is gone.
    closed: bool,
}

/// All inboxes of a NIC.
#[derive(Debug, Default)]
pub(crate) struct Inboxes {
    inboxes: Slab<Inbox>,
    /// Their numbers are keys of messages, with [`HOST_KEY`].
    ops: Slab<Op>,
    /// Operations that have ended, ever.
    pub(crate) ended: u64,
}

impl Inboxes {
    /// Opens an inbox for a communicator that lives.
    pub(super) fn open(
        &mut self,
        (slot, ctx): (u32, u64),
        pd: PdId,
        news: Arc<AtomicUsize>,
    ) -> Option<u32> {
        self.inboxes.insert(Inbox {
            slot,
            ctx,
            pd,
            events: VecDeque::new(),
            news,
            under_way: 0,
            over: None,
            closed: false,
        })
    }

    /// Its user is gone: receives without a message are withdrawn, and messages that have met one
    /// dropped. Sends go on.
    pub(crate) fn close(&mut self, desk: &mut Desk<'_, '_>, inbox: u32) {
        for id in self.ops.ids(|op| op.inbox == inbox) {
            match self.ops.get(id).map(|op| &op.stage) {
                Some(Stage::Receive(..)) => {
                    self.cancel(desk, MessageId(id), true);
                }
                Some(Stage::Fetched(_)) => {
                    self.end(desk.io, id);
                }
                _ => {}
            }
        }
        if let Some(b) = self.inboxes.get_mut(inbox) {
            b.closed = true;
            b.events.clear();
            if b.under_way == 0 {
                self.inboxes.remove(inbox);
            }
        }
    }

    /// Operations of a communicator that have not ended.
    pub(super) fn under_way(&self, slot: u32) -> usize {
        let of = self
            .inboxes
            .iter()
            .filter(|(_, b)| b.slot == slot && b.over.is_none());
        of.map(|(_, b)| b.under_way).sum()
    }

    /// Whether there is any operation.
    pub(super) fn is_active(&self) -> bool {
        !self.ops.is_empty()
    }

    /// The inbox, if its communicator lives.
    fn living(&self, desk: &Desk<'_, '_>, inbox: u32) -> Result<&Inbox, MessageError> {
        let ended = |(status, detail)| MessageError::Ended { status, detail };
        let b = self.inboxes.get(inbox);
        let b = b.ok_or(ended((Status::BadCommunicator, 0)))?;
        match b.over.or(desk.over) {
            Some(over) => Err(ended(over)),
            None => Ok(b),
        }
    }

    /// Sends a message. Without `when_met` it has ended when the peer keeps it; one of this rank to
    /// itself that is not to be waited for gets no number.
    pub(crate) fn send(
        &mut self,
        desk: &mut Desk<'_, '_>,
        inbox: u32,
        (to, context, tag): (u32, u32, u32),
        payload: Payload<'_>,
        when_met: bool,
    ) -> Result<Option<MessageId>, MessageError> {
        let b = self.living(desk, inbox)?;
        let (ctx, pd) = (b.ctx, b.pd);
        let (rank, ranks) = desk.ranks;
        below("rank", to, ranks)?;
        let tag = tag_of(context, tag)?;
        if to == rank {
            let bytes = match payload {
                Payload::Bytes(bytes) => bytes.to_vec(),
                Payload::Spans(spans) => desk.read(pd, spans)?,
            };
            let id = when_met.then(|| self.begin(inbox, Stage::Send, Held::Nothing));
            let id = id.map(|id| id.ok_or(MessageError::Full)).transpose()?;
            let key = id.map(|id| key_of(id.0));
            if !claim::send_own(desk.messages, ctx, tag, bytes, key) {
                self.end(desk.io, id.map_or(u32::MAX, |id| id.0));
                return Err(MessageError::Full);
            }
            return Ok(id);
        }
        let (pieces, held) = desk.reach(pd, payload)?;
        let id = match self.begin(inbox, Stage::Send, held) {
            Some(id) => id,
            None => return Err(MessageError::Full),
        };
        desk.messages.send(SendRequest {
            ctx,
            to,
            tag,
            hash: 0,
            pieces,
            when_met,
            key: key_of(id.0),
        });
        Ok(Some(id))
    }

    /// Sends an awaited message; `None`: no receive is known, and it is too long to leave before.
    pub(crate) fn send_awaited(
        &mut self,
        desk: &mut Desk<'_, '_>,
        inbox: u32,
        (to, tag): (u32, u32),
        payload: Payload<'_>,
    ) -> Result<Option<MessageId>, MessageError> {
        let b = self.living(desk, inbox)?;
        let (ctx, pd) = (b.ctx, b.pd);
        below("rank", to, desk.ranks.1)?;
        let tag = AWAITED_TAG | u64::from(tag);
        if !awaited::may_leave(desk.messages, ctx, (to, tag), payload.len()) {
            return match desk.gone.iter().find(|g| g.rank == to) {
                // It tells of no receive any more.
                Some(g) => Err(MessageError::Ended {
                    status: g.status,
                    detail: g.blame.into(),
                }),
                None => Ok(None),
            };
        }
        let (pieces, held) = desk.reach(pd, payload)?;
        let id = self.begin(inbox, Stage::Send, held);
        let id = id.ok_or(MessageError::Full)?;
        let request = SendRequest {
            ctx,
            to,
            tag,
            hash: 0,
            pieces,
            when_met: false,
            key: key_of(id.0),
        };
        match awaited::send(desk.messages, desk.io, request) {
            awaited::Begun::Yes => Ok(Some(id)),
            awaited::Begun::NotNow => {
                self.end(desk.io, id.0);
                Ok(None)
            }
        }
    }

    /// Begins a receive of an awaited message.
    pub(crate) fn await_from(
        &mut self,
        desk: &mut Desk<'_, '_>,
        inbox: u32,
        (from, tag): (u32, u32),
        spans: &[(GpuVa, u64)],
    ) -> Result<MessageId, MessageError> {
        let b = self.living(desk, inbox)?;
        let (ctx, pd) = (b.ctx, b.pd);
        below("rank", from, desk.ranks.1)?;
        let (pieces, held) = desk.pin_all(pd, spans, Need::Write)?;
        let id = self.begin(inbox, Stage::Await, held);
        let id = id.ok_or(MessageError::Full)?;
        let request = RecvRequest {
            ctx,
            from: Some(from),
            tag: Some(AWAITED_TAG | u64::from(tag)),
            hash: 0,
            pieces,
            in_use: false,
            key: key_of(id.0),
        };
        match awaited::receive(desk.messages, desk.io, request) {
            true => Ok(id),
            false => {
                self.end(desk.io, id.0);
                Err(MessageError::Full)
            }
        }
    }

    /// Begins a receive. `now`: only if it meets a message at once; `None` otherwise.
    pub(crate) fn receive(
        &mut self,
        desk: &mut Desk<'_, '_>,
        inbox: u32,
        wants: &Wants,
        now: bool,
    ) -> Result<Option<MessageId>, MessageError> {
        let b = self.living(desk, inbox)?;
        let (ctx, wanted) = (b.ctx, wanted(desk, wants)?);
        if now && claim::look(desk.messages, ctx, &wanted).is_none() {
            return Ok(None);
        }
        let stage = Stage::Receive(0, None);
        let id = self.begin(inbox, stage, Held::Nothing);
        let id = id.ok_or(MessageError::Full)?;
        match claim::post(desk.messages, desk.io, ctx, wanted, key_of(id.0)) {
            Some(claim) => {
                if let Some(op) = self.ops.get_mut(id.0) {
                    op.stage = Stage::Receive(claim, None);
                }
                Ok(Some(id))
            }
            None => {
                self.end(desk.io, id.0);
                Err(MessageError::Full)
            }
        }
    }

    /// The first message that a receive would meet.
    pub(crate) fn probe(
        &self,
        desk: &Desk<'_, '_>,
        inbox: u32,
        wants: &Wants,
    ) -> Result<Option<Found>, MessageError> {
        let b = self.living(desk, inbox)?;
        let wanted = wanted(desk, wants)?;
        let found = claim::look(desk.messages, b.ctx, &wanted);
        Ok(found.map(|f| shown(f.from, f.tag, f.len)))
    }

    /// Copies the bytes of a message that are here, as many as there is room for, and ends its
    /// receive.
    pub(crate) fn read(
        &mut self,
        desk: &mut Desk<'_, '_>,
        id: MessageId,
        into: &mut [u8],
    ) -> Result<u64, MessageError> {
        let n = match self.ops.get(id.0) {
            Some(Op {
                stage: Stage::Fetched(found),
                held: Held::Copy(block),
                ..
            }) => {
                let n = found.len.min(into.len() as u64);
                let nic_memory = &desk.io.dma.nic_memory;
                nic_memory.read(block.at, &mut into[..n as usize]);
                n
            }
            _ => {
                let claim = self.met(id)?.0;
                let n = claim::read(desk.messages, desk.io, claim, into);
                n.ok_or(MessageError::NotHere { id })?
            }
        };
        self.end(desk.io, id.0);
        Ok(n)
    }

    /// Asks for the bytes of a message that are at its sender, to be read when they are here.
    pub(crate) fn fetch(
        &mut self,
        desk: &mut Desk<'_, '_>,
        id: MessageId,
    ) -> Result<(), MessageError> {
        let (claim, found) = self.met(id)?;
        let gone = MessageError::NotHere { id };
        let op = self.ops.get_mut(id.0).ok_or(gone)?;
        // Of an empty message, too: what is held says where the bytes are.
        let block = desk.io.dma.nic_memory.alloc(found.len.max(1));
        let block = block.ok_or(MessageError::Full)?;
        let first = desk.io.dma.nic_memory.buffer(block.at, 0);
        (op.stage, op.held) = (Stage::Fetch(found), Held::Copy(block));
        match claim::collect(desk.messages, desk.io, claim, split(first, found.len)) {
            true => Ok(()),
            false => {
                self.end(desk.io, id.0);
                Err(gone)
            }
        }
    }

    /// Gives a message that was met registered memory; its end is an event.
    pub(crate) fn collect(
        &mut self,
        desk: &mut Desk<'_, '_>,
        id: MessageId,
        (va, room): (GpuVa, u64),
    ) -> Result<(), MessageError> {
        let (claim, found) = self.met(id)?;
        let len = found.len;
        if room < len {
            return Err(MessageError::Room { len, room });
        }
        let Some(op) = self.ops.get_mut(id.0) else {
            return Err(MessageError::NotHere { id });
        };
        let inbox = self.inboxes.get(op.inbox);
        let pd = inbox.ok_or(MessageError::NotHere { id })?.pd;
        let (pieces, held) = desk.pin(pd, va, len, Need::Write)?;
        (op.stage, op.held) = (Stage::Collect, held);
        match claim::collect(desk.messages, desk.io, claim, pieces) {
            true => Ok(()),
            false => {
                self.end(desk.io, id.0);
                Err(MessageError::NotHere { id })
            }
        }
    }

    /// Ends a receive that was given no memory. One that has met a message stays, unless it is to
    /// end `anyhow`. Returns whether it has ended.
    pub(crate) fn cancel(&mut self, desk: &mut Desk<'_, '_>, id: MessageId, anyhow: bool) -> bool {
        let Some(Stage::Receive(claim, met)) = self.ops.get(id.0).map(|op| &op.stage) else {
            return false;
        };
        let claim = *claim;
        // One that has met a message that is still arriving was not told yet.
        if !anyhow && (met.is_some() || !claim::waits(desk.messages, claim)) {
            return false;
        }
        claim::forget(desk.messages, claim);
        self.end(desk.io, id.0);
        true
    }

    /// The next event of an inbox.
    pub(crate) fn poll(&mut self, inbox: u32) -> Result<Option<MessageEvent>, MessageError> {
        let gone = MessageError::Ended {
            status: Status::BadCommunicator,
            detail: 0,
        };
        let b = self.inboxes.get_mut(inbox).ok_or(gone)?;
        match (b.events.pop_front(), b.over) {
            (Some(event), _) => {
                // Relaxed: read for a hint alone; events are taken under the lock.
                b.news.fetch_sub(1, Ordering::Relaxed);
                Ok(Some(event))
            }
            (None, Some((status, detail))) => Err(MessageError::Ended { status, detail }),
            (None, None) => Ok(None),
        }
    }

    /// Whether an event of messages is one of these operations; if so it was processed.
    pub(super) fn on_event(&mut self, io: &mut Io<'_>, e: &Event) -> bool {
        let (Event::Sent { key, .. } | Event::Received { key, .. } | Event::Met { key, .. }) = *e
        else {
            return false;
        };
        if key & HOST_KEY == 0 {
            return false;
        }
        let id = MessageId(key as u32);
        match *e {
            Event::Met {
                from,
                tag,
                len,
                here,
                ..
            } => {
                let found = shown(from, tag, len);
                if let Some(op) = self.ops.get_mut(id.0) {
                    if let Stage::Receive(_, met) = &mut op.stage {
                        *met = Some(found);
                    }
                    let inbox = op.inbox;
                    self.tell(inbox, MessageEvent::Met { id, found, here });
                }
            }
            Event::Received {
                status: Status::Ok, ..
            } if self.has_come(id) => {}
            Event::Sent { status, detail, .. } | Event::Received { status, detail, .. } => {
                let detail = match *e {
                    Event::Received { len, .. } if status == Status::Ok => len,
                    _ => detail,
                };
                if let Some(inbox) = self.end(io, id.0) {
                    let event = MessageEvent::Ended { id, status, detail };
                    self.tell(inbox, event);
                }
            }
            Event::Seen { .. } => {}
        }
        true
    }

    /// The bytes of a message have come that are still to be read. `false`: it is another.
    fn has_come(&mut self, id: MessageId) -> bool {
        let Some(op) = self.ops.get_mut(id.0) else {
            return false;
        };
        let (inbox, Stage::Fetch(found)) = (op.inbox, &op.stage) else {
            return false;
        };
        let found = *found;
        if self.inboxes.get(inbox).is_none_or(|b| b.closed) {
            return false;
        }
        op.stage = Stage::Fetched(found);
        let here = true;
        self.tell(inbox, MessageEvent::Met { id, found, here });
        true
    }

    /// A communicator has ended, and nothing touches the memory of its operations any more.
    pub(super) fn comm_is_over(&mut self, io: &mut Io<'_>, slot: u32, how: (Status, u64)) {
        for inbox in self.inboxes.ids(|b| b.slot == slot && b.over.is_none()) {
            for id in self.ops.ids(|op| op.inbox == inbox) {
                self.end(io, id);
            }
            if let Some(b) = self.inboxes.get_mut(inbox) {
                b.over = Some(how);
                // Release: pairs with the Acquire of who looks without the lock.
                b.news.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn tell(&mut self, inbox: u32, event: MessageEvent) {
        if let Some(b) = self.inboxes.get_mut(inbox).filter(|b| !b.closed) {
            b.events.push_back(event);
            // Release: pairs with the Acquire of who looks without the lock.
            b.news.fetch_add(1, Ordering::Release);
            self.ended += 1;
        }
    }

    fn begin(&mut self, inbox: u32, stage: Stage, held: Held) -> Option<MessageId> {
        let op = Op { inbox, stage, held };
        let id = self.ops.insert(op)?;
        if let Some(b) = self.inboxes.get_mut(inbox) {
            b.under_way += 1;
        }
        Some(MessageId(id))
    }

    /// An operation has ended: gives its memory back. Returns its inbox, if that has a user.
    fn end(&mut self, io: &mut Io<'_>, id: u32) -> Option<u32> {
        let op = self.ops.remove(id)?;
        op.held.give_back(io);
        let b = self.inboxes.get_mut(op.inbox)?;
        b.under_way -= 1;
        match b.closed {
            false => Some(op.inbox),
            true => {
                if b.under_way == 0 {
                    self.inboxes.remove(op.inbox);
                }
                None
            }
        }
    }

    /// The claim of a receive that has met a message, and the message.
    fn met(&self, id: MessageId) -> Result<(u32, Found), MessageError> {
        match self.ops.get(id.0).map(|op| &op.stage) {
            Some(Stage::Receive(claim, Some(found))) => Ok((*claim, *found)),
            _ => Err(MessageError::NotHere { id }),
        }
    }
}

fn key_of(id: u32) -> u64 {
    HOST_KEY | u64::from(id)
}

fn below(what: &'static str, given: u32, limit: u32) -> Result<(), MessageError> {
    match given < limit {
        true => Ok(()),
        false => Err(MessageError::Range {
            what,
            given: given.into(),
            limit: limit.into(),
        }),
    }
}

/// The tag of messages, for theirs and the number that keeps them apart.
fn tag_of(context: u32, tag: u32) -> Result<u64, MessageError> {
    below("context", context, MAX_CONTEXTS)?;
    Ok(USER_TAG | HOST_TAG | u64::from(context) << 32 | u64::from(tag))
}

fn wanted(desk: &Desk<'_, '_>, w: &Wants) -> Result<Wanted, MessageError> {
    if let Some(from) = w.from {
        below("rank", from, desk.ranks.1)?;
    }
    let like = tag_of(w.context, 0)?;
    Ok(Wanted {
        from: w.from,
        tags: match w.tag {
            Some(tag) => Tags::One(like | u64::from(tag)),
            None => Tags::Like(like),
        },
    })
}

fn shown(from: u32, tag: u64, len: u64) -> Found {
    Found {
        from,
        tag: tag as u32,
        len,
    }
}
