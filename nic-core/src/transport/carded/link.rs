//! Operations of a connection, the parts of them that a card executes, and the room between card
//! and transport.

use std::collections::VecDeque;

use ringbell_nic_abi::{GpuVa, Status};

use crate::card::{Mapped, Shared, SharedCard, Side};
use crate::datapath::{Datapath, Payload};
use crate::transport::Close;
use crate::types::{Buffer, Owner, WorkToken};

/// A send or receive of the NIC.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) token: WorkToken,
    pub(super) by: Owner,
    pub(super) payload: Payload,
    /// A receive that ends with the first bytes.
    pub(super) some: bool,
    /// Of a send: no other follows soon.
    pub(super) push: bool,
    /// Bytes for which pieces are posted at the card, or have been.
    pub(super) posted: u32,
    /// Of a send, bytes that the transport has got; of a receive, bytes in memory.
    pub(super) moved: u32,
    /// Of a send, bytes that the transport has confirmed.
    pub(super) confirmed: u64,
    /// Works of it that the transport has.
    pub(super) below: u32,
    /// The software executes the rest; the transport has it.
    pub(super) in_software: bool,
    pub(super) faults: u8,
    /// How it has ended.
    pub(super) end: Option<(Status, u64)>,
}

impl Op {
    pub(super) fn len(&self) -> u32 {
        self.payload.len()
    }
}

/// A part of an operation that the card executes.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) mapped: Mapped,
    pub(super) len: u32,
    pub(super) some: bool,
    /// Bytes that have left, or were given to it.
    pub(super) done: u32,
    /// Of a receive: the card waits for its bytes.
    pub(super) wanted: bool,
    /// Of a receive: it takes no more.
    pub(super) full: bool,
    /// Of a receive: the bytes given to it.
    pub(super) given: Vec<u8>,
}

/// The operations of one direction, in order, and the pieces of the first of them.
#[derive(Debug, Default)]
pub(super) struct Half {
    pub(super) ops: VecDeque<Op>,
    pub(super) pieces: VecDeque<Piece>,
}

impl Half {
    /// The operation of the first piece: the first that has not moved all that was posted of it.
    pub(super) fn current(&mut self) -> Option<&mut Op> {
        self.ops.iter_mut().find(|op| op.moved < op.posted)
    }
}

/// Room for what is sent, given back in any order.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) next: u32,
    /// Works in it, oldest first: token, bytes, whether the transport has finished.
    pub(super) works: VecDeque<(u64, u32, bool)>,
}

#[derive(Debug, Default)]
pub(super) struct Link {
    /// Its connection of the card.
    pub(super) slot: Option<u16>,
    pub(super) sends: Half,
    pub(super) receives: Half,
    pub(super) ring: Ring,
    /// An address has faulted: what leaves the card until it was flushed lies behind a hole.
    pub(super) is_cut: bool,
    /// Bytes of the stream that were taken from the transport, and are not in memory because an
    /// address has faulted.
    pub(super) kept: VecDeque<u8>,
    /// The first of them, which were given to the card before: its engine has seen them.
    pub(super) again: usize,
    /// The receive into the room that the transport has.
    pub(super) pull: Option<u64>,
    /// The end that follows the queued sends.
    pub(super) last: Option<Close>,
    /// The transport has nothing more to receive, with this status; told when all that came before
    /// lies in memory.
    pub(super) over: Option<(Status, u64)>,
    /// The stream has ended: everything goes to the transport, which refuses it.
    pub(super) is_dead: bool,
}

/// A work that the transport has.
#[derive(Debug, Clone, Copy)]
pub(super) enum Below {
    /// Bytes in the room, of the send with that token.
    Chunk(WorkToken),
    /// A send or receive that the software executes.
    Whole(Side, WorkToken),
    /// The receive into the room.
    Pull,
}

impl Link {
    /// The transport has finished a work in the room: what is free again at its start is credit for
    /// the card.
    pub(super) fn ring_done(&mut self, token: u64, card: &SharedCard) {
        if let Some(work) = self.ring.works.iter_mut().find(|w| w.0 == token) {
            work.2 = true;
        }
        let mut free = 0;
        while let Some((_, len, true)) = self.ring.works.front() {
            free += len;
            self.ring.works.pop_front();
        }
        if let Some(slot) = self.slot.filter(|_| free > 0) {
            card.lock().credit(slot, free);
        }
    }
}

impl Piece {
    pub(super) fn new(mapped: Mapped, len: u32, some: bool) -> Piece {
        Piece {
            mapped,
            len,
            some,
            done: 0,
            wanted: false,
            full: false,
            given: Vec::new(),
        }
    }

    /// A segment goes to the card.
    pub(super) fn give(&mut self, bytes: &[u8]) {
        self.given.extend_from_slice(bytes);
        self.done += bytes.len() as u32;
        self.full = self.some || self.done == self.len;
    }
}

/// Enters a part of a buffer into the card's GTLB.
pub(super) fn map(
    card: &mut Shared,
    data: &mut Datapath<'_>,
    buffer: &Buffer,
    at: u32,
    len: u32,
) -> Option<Mapped> {
    let first = buffer.va.0 + u64::from(at);
    card.map(first, len, &mut |va| {
        let span = data.dma.span(buffer, va - buffer.va.0).ok()?;
        Some(span.addr.value())
    })
}

/// What is left of a payload after so many bytes.
pub(super) fn rest(payload: &Payload, done: u32) -> Payload {
    match payload {
        Payload::Memory(buffer) => Payload::Memory(Buffer {
            va: GpuVa(buffer.va.0 + u64::from(done)),
            len: buffer.len - done,
            ..*buffer
        }),
        inline => *inline,
    }
}

impl Op {
    pub(super) fn new(token: WorkToken, by: Owner, payload: Payload, some: bool, push: bool) -> Op {
        Op {
            token,
            by,
            payload,
            some,
            push,
            posted: 0,
            moved: 0,
            confirmed: 0,
            below: 0,
            in_software: false,
            faults: 0,
            end: None,
        }
    }
}
