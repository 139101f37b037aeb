//! The stream of a session over one connection: what was sent and received, where arriving bytes
//! go, and how much credit each end has.
//!
//! A receiver holds at most a window of bytes that its program has not received, so that it always
//! reads: what else travels by the connection never waits for a program.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::one_sided::{OneSided, Request};
use super::writes::Targets;
use crate::engine::EngineFailed;
use crate::memory::lender::Lender;
use crate::transport::exposed::Exposed;
use crate::transport::ring::Ring;
use crate::transport::TransportEvent;
use crate::types::{Buffer, ConnId, WorkToken};
use ringbell_net::wire::iwarp::ddp::{Header, Opcode};
use ringbell_net::wire::iwarp::session::{Credit, Kind, Message, MESSAGE_BYTES};
use ringbell_net::wire::iwarp::terminate::Reason;

/// How far the end of our direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fin {
    Open,
    /// It follows the posted sends.
    Wanted,
    Sent,
    /// The peer has it.
    Confirmed,
}

/// Our direction of the stream.
#[derive(Debug)]
pub(super) struct Sending {
    /// Number of the next Send.
    pub(super) message: u32,
    /// Bytes in Sends.
    pub(super) sent: u64,
    /// Bytes that the peer has, and that its program has.
    pub(super) got: u64,
    taken: u64,
    /// Bytes that the peer holds before its program receives them.
    pub(super) window: u32,
    pub(super) fin: Fin,
    /// Sends that go to receives of the peer.
    pub(super) targets: Targets,
}

impl Sending {
    /// Bytes for which the peer has room.
    pub(super) fn room(&self) -> usize {
        // The peer's taken bytes were sent before.
        (u64::from(self.window)).saturating_sub(self.sent - self.taken) as usize
    }

    /// Whether what the peer says that it has got can be true.
    pub(super) fn is_possible(&self, credit: &Credit) -> bool {
        let grows = credit.got >= self.got && credit.taken >= self.taken;
        grows && credit.got <= self.sent && (!credit.has_end || self.fin >= Fin::Sent)
    }

    pub(super) fn credited(&mut self, credit: &Credit) {
        (self.got, self.taken) = (credit.got, credit.taken);
        if credit.has_end {
            self.fin = Fin::Confirmed;
        }
    }
}

/// Where a part of a unit's payload goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Memory of a receive, and the first byte there.
    pub(super) buffer: Buffer,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// What a unit that has begun is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unit {
    Message(Message),
    /// Bytes of a receive that was exposed: its key, where the first goes, and how many.
    Write(u32, u32, u32),
    /// So many bytes of the put that was announced.
    Put(u32),
    /// So many bytes of the oldest get.
    Response(u32),
    /// The peer asks for something.
    Request(Request),
    /// The value before of an atomic operation: its message, identifier and value.
    Word(u32, (u32, u64)),
    Terminate(Reason),
    /// A Write of no bytes: the initiator is ready.
    Ready,
}

/// The peer's direction.
#[derive(Debug)]
pub(super) struct Arriving {
    /// Number of the next Send.
    pub(super) message: u32,
    /// Bytes that have come.
    pub(super) got: u64,
    /// Bytes that wait for receives.
    pub(super) ring: Ring,
    pub(super) unit: Option<Unit>,
    /// Where its payload goes; what is behind them goes to the ring.
    pub(super) parts: Vec<Part>,
    pub(super) to_ring: usize,
    /// Bytes of a note, and those for which no memory is mapped, or none wanted any more.
    pub(super) aside: Vec<u8>,
    /// Receives that the peer fills.
    pub(super) exposed: Exposed,
    /// What the peer was told.
    announced: Credit,
    /// The peer is to be told at once.
    pub(super) answer: bool,
    pub(super) peer_fin: bool,
    /// A unit of the peer has come.
    pub(super) is_heard: bool,
    /// Why the peer has ended the connection.
    pub(super) terminated: Option<Reason>,
    /// An engine on the path of arriving bytes has failed.
    pub(super) failed: Option<EngineFailed>,
}

impl Arriving {
    fn credit(&self) -> Credit {
        Credit {
            got: self.got,
            taken: self.ring.start(),
            has_end: self.peer_fin,
        }
    }

    /// Whether so much was taken that the peer must hear of it. A peer whose direction has ended
    /// needs no credit: it may have closed the connection.
    pub(super) fn must_announce(&self) -> bool {
        let taken = self.ring.start() - self.announced.taken;
        self.answer || (!self.peer_fin && taken > self.ring.capacity() as u64 / 4)
    }

    /// So many bytes of a unit go to no memory.
    pub(super) fn set_aside(&mut self, len: usize) {
        self.parts.clear();
        self.aside.resize(len, 0);
        self.to_ring = 0;
    }

    /// The bytes of a unit go to this memory; aside where there is none.
    pub(super) fn set_place(&mut self, place: Option<(Buffer, u32)>, len: u32) {
        self.set_aside(if place.is_some() { 0 } else { len as usize });
        self.parts.extend(place.map(|(buffer, offset)| Part {
            buffer,
            offset,
            len,
        }));
    }

    /// What the peer is told now.
    pub(super) fn announce(&mut self) -> Credit {
        self.answer = false;
        self.announced = self.credit();
        self.announced
    }
}

/// The stream of a session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) tx: Sending,
    pub(super) rx: Arriving,
    pub(super) one_sided: OneSided,
}

impl Session {
    /// A session that holds `window` bytes.
    pub(super) fn new(window: usize, lender: &Lender) -> Session {
        Session {
            tx: Sending {
                message: 1,
                sent: 0,
                got: 0,
                taken: 0,
                window: 0,
                fin: Fin::Open,
                targets: Targets::default(),
            },
            rx: Arriving {
                message: 1,
                got: 0,
                ring: Ring::new(window, lender),
                unit: None,
                parts: Vec::new(),
                to_ring: 0,
                aside: Vec::new(),
                exposed: Exposed::default(),
                announced: Credit::default(),
                answer: false,
                peer_fin: false,
                is_heard: false,
                terminated: None,
                failed: None,
            },
            one_sided: OneSided::default(),
        }
    }

    /// Whether both directions have ended, and both ends know.
    pub(super) fn is_over(&self) -> bool {
        self.rx.peer_fin && self.tx.fin == Fin::Confirmed
    }

    /// Whether bytes of the unit that has begun go to the posted receive with this number.
    pub(super) fn fills(&self, receive: usize) -> bool {
        matches!(self.rx.unit, Some(Unit::Message(_))) && receive < self.rx.parts.len()
    }

    /// The program receives no more: the rest of a unit that was on its way to posted receives goes
    /// to the ring, which nothing reads any more.
    pub(super) fn redirect(&mut self) {
        let rx = &mut self.rx;
        if matches!(rx.unit, Some(Unit::Message(_))) {
            let to_receives: usize = rx.parts.iter().map(|p| p.len as usize).sum();
            rx.to_ring += to_receives;
            rx.parts.clear();
        }
    }

    /// Ends the receives that the peer fills; what still comes for them ends the connection.
    pub(super) fn end_exposed(
        &mut self,
        conn: ConnId,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        if let Some(Unit::Write(_, _, len)) = self.rx.unit {
            self.rx.set_aside(len as usize);
        }
        self.rx.exposed.fail_all(conn, status, events);
    }

    /// Takes a one-sided operation back; see [`Asking::cancel`](super::one_sided::Asking::cancel).
    pub(super) fn cancel_one_sided(&mut self, token: WorkToken) -> Option<u64> {
        let left = self.one_sided.asking.cancel(token)?;
        self.drop_response();
        Some(left)
    }

    /// Ends the one-sided operations of this end.
    pub(super) fn end_one_sided(
        &mut self,
        conn: ConnId,
        status: (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.one_sided.asking.fail_all(conn, status, events);
        self.drop_response();
    }

    /// The rest of a Read response goes to no memory, unless its operation is still here.
    fn drop_response(&mut self) {
        if let Some(Unit::Response(len)) = self.rx.unit {
            if self.one_sided.asking.next_place().is_none() {
                self.rx.set_aside(len as usize);
            }
        }
    }

    /// Takes a receive back that the peer fills. The bytes that it has.
    pub(super) fn cancel_exposed(&mut self, token: WorkToken) -> Option<u64> {
        let rx = &mut self.rx;
        let (key, bytes) = rx.exposed.cancel(token)?;
        match rx.unit {
            Some(Unit::Write(of, _, len)) if of == key => rx.set_aside(len as usize),
            _ => {}
        }
        Some(bytes)
    }

    /// The header of the next Send, in both layers; with the key of a receive that was written.
    pub(super) fn next(&mut self, kind: Kind, key: u32) -> (Header, [u8; MESSAGE_BYTES]) {
        let credit = self.rx.announce();
        let header = Header::whole(Opcode::Send, self.tx.message);
        self.tx.message = self.tx.message.wrapping_add(1);
        (header, Message { kind, key, credit }.emit())
    }
}
