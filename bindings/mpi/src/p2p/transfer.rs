//! [`Transfers`]: this rank's messages under way, as those of the NIC.
//!
//! The NIC matches them, in an inbox of a communicator of Ringbell's that holds all ranks. A
//! program's receive is one of the NIC's, without memory; when it has met a message, the bytes are
//! read to the program's memory, or come there from their sender. Short messages are copied when
//! they are sent.
//!
//! A thread of the layer advances these too, so that messages move while the program is inside the
//! library below. It must not call that library: what needs it (derived types, requests) is left in
//! `finished`.
#![allow(unsafe_code)] // The program's buffers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ringbell::abi::{GpuVa, Status};
use ringbell::comm::{Found, Inbox, MessageError, MessageEvent, MessageId, Wants};
use ringbell::{Communicator, HostBuffer, Nic};

use super::operation::{Bytes, Envelope, Fault, Finished, Op, Outcome, PEER_FAILED};
use super::ranks::Context;
use crate::elements::Elements;
use crate::memory::{Memories, Place, SHORT};

/// How a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Standard,
    Synchronous,
    /// A copy is sent, so that the call does not wait.
    Buffered,
}

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) op: Arc<Op>,
    pub(super) to: Elements,
    /// Bytes of its elements.
    pub(super) room: u64,
}

/// What a send sends.
#[derive(Debug)]
pub(super) enum Source {
    /// The program's memory, which it leaves alone until the send has ended.
    Program(*const u8),
    /// Packed, or a copy that the program's send does not wait for.
    Heap(Vec<u8>),
}

/// A send.
#[derive(Debug)]
pub(super) struct Send {
    /// `None`: the program has been told of its end.
    pub(super) op: Option<Arc<Op>>,
    pub(super) source: Source,
    pub(super) bytes: u64,
    pub(super) synchronous: bool,
}

/// What a receive or a probe takes, on a communicator.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) context: Arc<Context>,
    /// Rank in the communicator; `None`: any.
    pub(super) source: Option<u32>,
    pub(super) tag: Option<i32>,
}

/// Memory that the NIC reads or writes: the program's own, or a copy.
#[derive(Debug)]
enum Memory {
    Own(#[allow(dead_code)] Place),
    Copy(HostBuffer),
}

/// An operation of the NIC.
#[derive(Debug)]
enum Pending {
    Send(
        Option<Arc<Op>>,
        #[allow(dead_code)] Option<(Memory, Source)>,
    ),
    /// Has met no message, or not one that is told already.
    Receive(Receive, Arc<Context>),
    /// A matched probe's message, whose receive has not come; whether its bytes are here, once that
    /// is told.
    Probed(Option<bool>),
    /// The bytes are coming to NIC memory.
    Fetched(Receive, Envelope),
    /// The bytes are coming.
    Arriving(Receive, Envelope, u64, Option<Memory>),
}

/// The messages of this rank.
#[derive(Debug)]
pub(super) struct Transfers {
    nic: Nic,
    /// Own rank in `MPI_COMM_WORLD`.
    rank: u32,
    /// `None` when MPI is finalized.
    inbox: Option<Inbox>,
    pending: HashMap<MessageId, Pending>,
    pub(super) finished: Vec<Finished>,
    /// Why no message moves any more.
    lost: Option<String>,
}

// SAFETY: the program's addresses in it are only used while the operation that they belong to is
// under way, by one thread at a time.
unsafe impl std::marker::Send for Transfers {}

impl Transfers {
    /// In a communicator of all ranks.
    pub(super) fn new(nic: &Nic, comm: &Communicator) -> Result<Transfers, String> {
        let inbox = comm.inbox().map_err(|e| e.to_string())?;
        Ok(Transfers {
            nic: nic.clone(),
            rank: comm.rank(),
            inbox: Some(inbox),
            pending: HashMap::new(),
            finished: Vec::new(),
            lost: None,
        })
    }

    /// The inbox, while messages move.
    fn inbox(&self) -> Result<&Inbox, String> {
        match (&self.inbox, &self.lost) {
            (Some(inbox), None) => Ok(inbox),
            (_, why) => Err(why.clone().unwrap_or_else(|| "MPI is finalized".into())),
        }
    }

    /// Begins a send to a rank of `MPI_COMM_WORLD`.
    pub(super) fn send(
        &mut self,
        memories: &Memories,
        (to, context, tag): (u32, u32, i32),
        send: Send,
    ) {
        let op = send.op.clone();
        if let Err(why) = self.try_send(memories, (to, context, tag as u32), send) {
            self.sent(op, Some(why));
        }
    }

    fn try_send(
        &mut self,
        memories: &Memories,
        target: (u32, u32, u32),
        send: Send,
    ) -> Result<(), String> {
        let Send {
            op,
            source,
            bytes,
            synchronous,
        } = send;
        let inbox = self.inbox()?;
        let data = source.bytes(bytes);
        let (to_self, short) = (target.0 == self.rank, data.len() <= SHORT);
        let mut begun = None;
        if to_self || short {
            match inbox.send(target, data, synchronous) {
                // As much as NIC memory holds is under way.
                Err(MessageError::Full) if !to_self => {}
                sent => begun = Some(sent.map_err(told)?),
            }
        }
        let (id, memory) = match begun {
            Some(id) => (id, None),
            None => {
                let (memory, at) = self.reach(memories, data)?;
                let sent = inbox.send_from(target, (at, bytes), synchronous);
                (sent.map_err(told)?, Some((memory, source)))
            }
        };
        // The program waits for no copy of a short message.
        let is_copy = memory
            .as_ref()
            .is_none_or(|(m, _)| matches!(m, Memory::Copy(_)));
        let (now, later) = match id {
            Some(_) if synchronous || !(is_copy && (short || to_self)) => (None, op),
            _ => (op, None),
        };
        self.sent(now, None);
        if let Some(id) = id {
            self.pending.insert(id, Pending::Send(later, memory));
        }
        Ok(())
    }

    /// Bytes where the NIC reads them: in place, or in a copy.
    fn reach(&self, memories: &Memories, data: &[u8]) -> Result<(Memory, GpuVa), String> {
        let at = data.as_ptr().cast_mut();
        if let Some(place) = memories.place(&self.nic, at, data.len()) {
            let va = place.span.va();
            return Ok((Memory::Own(place), va));
        }
        let copy = self.copy(memories, data.len() as u64)?;
        // SAFETY: memory of our own, as long.
        unsafe { copy.as_ptr().copy_from_nonoverlapping(at, data.len()) };
        let va = copy.va();
        Ok((Memory::Copy(copy), va))
    }

    fn copy(&self, memories: &Memories, bytes: u64) -> Result<HostBuffer, String> {
        let made = memories.export(&self.nic, bytes as usize);
        made.map_err(|e| e.to_string())
    }

    /// A send has ended.
    pub(super) fn sent(&mut self, op: Option<Arc<Op>>, fault: Option<String>) {
        if let Some(op) = op {
            let fault = fault.map(Fault::Lost);
            let outcome = Outcome {
                fault,
                ..Outcome::default()
            };
            self.finished.push(Finished {
                op,
                outcome,
                unpack: None,
            });
        }
    }

    fn failed(&mut self, op: Arc<Op>, why: String) {
        self.sent(Some(op), Some(why));
    }

    /// Begins a receive.
    pub(super) fn receive(&mut self, wanted: &Wanted, receive: Receive) {
        let begun = self.inbox().and_then(|inbox| {
            let begun = inbox.receive(&wanted.of_nic());
            begun.map_err(told)
        });
        match begun {
            Ok(id) => {
                let pending = Pending::Receive(receive, wanted.context.clone());
                self.pending.insert(id, pending);
            }
            Err(why) => self.failed(receive.op, why),
        }
    }

    /// The first message for a probe: where it is from, and its bytes.
    pub(super) fn look(&self, wanted: &Wanted) -> Option<(Envelope, u64)> {
        let found = self.inbox().ok()?.probe(&wanted.of_nic()).ok()??;
        Some((wanted.context.envelope(&found), found.len))
    }

    /// Takes out the first message for a matched probe.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, u64, MessageId)> {
        // The same message: no other receive takes those of this inbox's numbers.
        let (envelope, bytes) = self.look(wanted)?;
        let id = self.inbox().ok()?.receive_now(&wanted.of_nic()).ok()??;
        self.pending.insert(id, Pending::Probed(None));
        Some((envelope, bytes, id))
    }

    /// Gives a message of a matched probe its receive.
    pub(super) fn deliver(
        &mut self,
        memories: &Memories,
        id: MessageId,
        receive: Receive,
        (context, envelope, bytes): (Arc<Context>, Envelope, u64),
    ) {
        match self.pending.remove(&id) {
            Some(Pending::Probed(Some(here))) => {
                self.met(memories, id, receive, (envelope, bytes), here);
            }
            Some(Pending::Probed(None)) => {
                self.pending.insert(id, Pending::Receive(receive, context));
            }
            _ => {
                let why = self.lost.clone();
                self.failed(
                    receive.op,
                    why.unwrap_or_else(|| "the message is gone".into()),
                );
            }
        }
    }

    /// A receive has met a message. `here`: its bytes are here.
    fn met(
        &mut self,
        memories: &Memories,
        id: MessageId,
        receive: Receive,
        (e, bytes): (Envelope, u64),
        here: bool,
    ) {
        let op = receive.op.clone();
        let done = match here {
            true => self.read(id, receive, (e, bytes)),
            false => self.collect(memories, id, receive, (e, bytes)),
        };
        if let Err(why) = done {
            self.failed(op, why);
        }
    }

    /// Reads bytes that are here.
    fn read(
        &mut self,
        id: MessageId,
        receive: Receive,
        (e, bytes): (Envelope, u64),
    ) -> Result<(), String> {
        let taken = bytes.min(receive.room);
        let inbox = self.inbox()?;
        let mut packed = Vec::new();
        let into = match receive.to {
            _ if taken == 0 => &mut [][..],
            // SAFETY: the program's buffer, of at least as many bytes, which it leaves alone until
            // the receive has ended.
            Elements::Plain(to) => unsafe { std::slice::from_raw_parts_mut(to, taken as usize) },
            _ => {
                packed = vec![0; taken as usize];
                &mut packed[..]
            }
        };
        inbox.read(id, into).map_err(told)?;
        let unpack = match receive.to {
            Elements::Plain(_) => None,
            to => Some((to, Bytes::Heap(packed))),
        };
        self.ended(receive.op, e, (bytes, taken), unpack);
        Ok(())
    }

    /// Asks for bytes that are at their sender.
    fn collect(
        &mut self,
        memories: &Memories,
        id: MessageId,
        receive: Receive,
        (e, bytes): (Envelope, u64),
    ) -> Result<(), String> {
        // Short ones are read when they are here; NIC memory may have no room.
        if bytes <= SHORT as u64 && self.inbox()?.fetch(id).is_ok() {
            self.pending.insert(id, Pending::Fetched(receive, e));
            return Ok(());
        }
        let mut memory = None;
        let mut at = GpuVa(0);
        if let Elements::Plain(to) = receive.to {
            if bytes > 0 && bytes <= receive.room {
                let place = memories.place(&self.nic, to, bytes as usize);
                at = place.as_ref().map_or(at, |p| p.span.va());
                memory = place.map(Memory::Own);
            }
        }
        if memory.is_none() && bytes > 0 {
            let copy = self.copy(memories, bytes)?;
            at = copy.va();
            memory = Some(Memory::Copy(copy));
        }
        let asked = self.inbox()?.collect(id, (at, bytes));
        asked.map_err(told)?;
        let arriving = Pending::Arriving(receive, e, bytes, memory);
        self.pending.insert(id, arriving);
        Ok(())
    }

    /// The bytes of a receive are in memory that the NIC has written.
    fn arrived(&mut self, receive: Receive, e: Envelope, bytes: u64, memory: Option<Memory>) {
        let taken = bytes.min(receive.room);
        let unpack = match (memory, receive.to) {
            (Some(Memory::Copy(b)), Elements::Plain(to)) => {
                // SAFETY: as in `read`.
                unsafe { to.copy_from_nonoverlapping(b.as_ptr(), taken as usize) };
                None
            }
            (Some(Memory::Copy(b)), to) => Some((to, Bytes::Exported(b, taken as usize))),
            _ => None,
        };
        self.ended(receive.op, e, (bytes, taken), unpack);
    }

    fn ended(
        &mut self,
        op: Arc<Op>,
        e: Envelope,
        (bytes, taken): (u64, u64),
        unpack: Option<(Elements, Bytes)>,
    ) {
        let outcome = Outcome {
            source: Some(e.source),
            tag: e.tag,
            bytes: taken,
            fault: (bytes > taken).then_some(Fault::Truncated),
            ..Outcome::default()
        };
        self.finished.push(Finished {
            op,
            outcome,
            unpack,
        });
    }

    /// Whether [`Transfers::advance`] would move something. It does not step the NIC: beside a
    /// thread that does now and then, the NIC's own would not, and peers would wait for the next
    /// time.
    pub(super) fn has_news(&self) -> bool {
        self.inbox().is_ok_and(|inbox| inbox.has_news())
    }

    /// Moves what can move; never waits.
    pub(super) fn advance(&mut self, memories: &Memories) {
        while let Ok(inbox) = self.inbox() {
            match inbox.poll() {
                Ok(Some(event)) => self.on_event(memories, event),
                Ok(None) => return,
                Err(error) => self.lose(&error),
            }
        }
    }

    fn on_event(&mut self, memories: &Memories, event: MessageEvent) {
        let (MessageEvent::Met { id, .. } | MessageEvent::Ended { id, .. }) = event;
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        match (event, pending) {
            (MessageEvent::Met { found, here, .. }, Pending::Receive(receive, context)) => {
                let message = (context.envelope(&found), found.len);
                self.met(memories, id, receive, message, here);
            }
            (MessageEvent::Met { found, here, .. }, Pending::Fetched(receive, e)) => {
                self.met(memories, id, receive, (e, found.len), here);
            }
            (MessageEvent::Met { here, .. }, Pending::Probed(_)) => {
                self.pending.insert(id, Pending::Probed(Some(here)));
            }
            (MessageEvent::Ended { status, detail, .. }, pending) => {
                let why = (status != Status::Ok).then(|| format!("{status} (detail {detail:#x})"));
                match (pending, why) {
                    // A message that its receiver drops has been received.
                    (Pending::Send(op, _), why) => {
                        self.sent(op, why.filter(|_| status != Status::Cancelled));
                    }
                    (Pending::Arriving(receive, e, bytes, memory), None) => {
                        self.arrived(receive, e, bytes, memory);
                    }
                    (
                        Pending::Arriving(receive, ..)
                        | Pending::Fetched(receive, _)
                        | Pending::Receive(receive, _),
                        why,
                    ) => {
                        self.failed(receive.op, why.unwrap_or_default());
                    }
                    (Pending::Probed(_), _) => {}
                }
            }
            (MessageEvent::Met { .. }, pending) => {
                self.pending.insert(id, pending);
            }
        }
    }

    /// Cancels receives that met no message.
    pub(super) fn cancel(&mut self) {
        let Ok(inbox) = self.inbox() else { return };
        let is_cancelled = |p: &Pending| matches!(p, Pending::Receive(r, _) if r.op.is_cancelled());
        let wanted = self.pending.iter().filter(|(_, p)| is_cancelled(p));
        let ids: Vec<MessageId> = wanted.map(|(id, _)| *id).collect();
        let gone: Vec<_> = ids.into_iter().filter(|id| inbox.cancel(*id)).collect();
        for id in gone {
            if let Some(Pending::Receive(receive, _)) = self.pending.remove(&id) {
                let outcome = Outcome {
                    cancelled: true,
                    ..Outcome::default()
                };
                self.finished.push(Finished {
                    op: receive.op,
                    outcome,
                    unpack: None,
                });
            }
        }
    }

    /// Whether everything has left that the program was told is sent.
    pub(super) fn has_left(&self) -> bool {
        let moves = |p: &Pending| !matches!(p, Pending::Receive(..) | Pending::Probed(_));
        self.lost.is_some() || !self.pending.values().any(moves)
    }

    /// Waits until something may have moved, at most so long.
    pub(super) fn wait(&self, at_most: Duration) {
        if let Ok(inbox) = self.inbox() {
            // What has come is seen by the next step.
            let _ = inbox.wait(at_most);
        }
    }

    /// Why no message moves any more.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    /// Ends all receives.
    pub(super) fn close(&mut self) {
        self.lost = Some("MPI is finalized".into());
        self.inbox = None;
    }

    /// The communicator has ended: so do all operations. The NIC touches their memory no more.
    fn lose(&mut self, error: &MessageError) {
        let why = told(*error);
        self.lost = Some(why.clone());
        for (_, pending) in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Send(op, _) => self.sent(op, Some(why.clone())),
                Pending::Receive(receive, _)
                | Pending::Fetched(receive, _)
                | Pending::Arriving(receive, ..) => {
                    self.failed(receive.op, why.clone());
                }
                Pending::Probed(_) => {}
            }
        }
    }
}

/// An error of the NIC as a text for the program.
fn told(error: MessageError) -> String {
    match error {
        MessageError::Ended {
            status: Status::PeerFailed,
            detail,
        } => format!("{PEER_FAILED}rank {detail} has ended"),
        other => other.to_string(),
    }
}

impl Wanted {
    /// The same for the NIC.
    fn of_nic(&self) -> Wants {
        Wants {
            from: self.source.and_then(|s| self.context.world_rank(s as i32)),
            context: self.context.id,
            tag: self.tag.map(|t| t as u32),
        }
    }
}

impl Context {
    /// A message of the NIC's, as the communicator has it.
    fn envelope(&self, found: &Found) -> Envelope {
        Envelope {
            source: self.rank_of(found.from),
            tag: found.tag as i32,
        }
    }
}

impl Source {
    fn bytes(&self, bytes: u64) -> &[u8] {
        match self {
            Source::Heap(b) => b,
            Source::Program(_) if bytes == 0 => &[],
            // SAFETY: the program's buffer, which it leaves alone until the send has ended.
            Source::Program(at) => unsafe { std::slice::from_raw_parts(*at, bytes as usize) },
        }
    }
}
