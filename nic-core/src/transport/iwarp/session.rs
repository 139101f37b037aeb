//! The stream of a session over one connection: what was sent and received, where arriving bytes
//! go, and how much credit each end has.
//!
//! A receiver holds at most a window of bytes that its program has not received, so that it always
//! reads: what else travels by the connection never waits for a program.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::incoming::Sink;
use super::socket::Places;
use super::writes::Targets;
use crate::datapath::{Datapath, ReceivePath};
use crate::dma::{each_mapped, DmaAccess};
use crate::engine::{Direction, EngineFailed};
use crate::transport::exposed::Exposed;
use crate::transport::ring::Ring;
use crate::transport::TransportEvent;
use crate::types::{Buffer, ConnId, WorkToken};
use crate::wire::iwarp::ddp::{Header, Opcode, Place};
use crate::wire::iwarp::session::{Credit, Kind, Message, MESSAGE_BYTES};
use crate::wire::iwarp::terminate::Reason;

/// Bytes of a Terminate message that are read: its own, the unit's length and header.
const TERMINATE_MAX: usize = 32;

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
    fn is_possible(&self, credit: &Credit) -> bool {
        let grows = credit.got >= self.got && credit.taken >= self.taken;
        grows && credit.got <= self.sent && (!credit.has_end || self.fin >= Fin::Sent)
    }

    fn credited(&mut self, credit: &Credit) {
        (self.got, self.taken) = (credit.got, credit.taken);
        if credit.has_end {
            self.fin = Fin::Confirmed;
        }
    }
}

/// Where a part of a unit's payload goes.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Memory of a receive, and the first byte there.
    buffer: Buffer,
    offset: u32,
    len: u32,
}

/// What a unit that has begun is.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Message(Message),
    /// Bytes of a receive that was exposed: its key, where the first goes, and how many.
    Write(u32, u32, u32),
    Terminate(Reason),
    /// A Write of no bytes: the initiator is ready.
    Ready,
}

/// The peer's direction.
#[derive(Debug)]
pub(super) struct Arriving {
    /// Number of the next Send.
    message: u32,
    /// Bytes that have come.
    got: u64,
    /// Bytes that wait for receives.
    pub(super) ring: Ring,
    unit: Option<Unit>,
    /// Where its payload goes; what is behind them goes to the ring, or of a Write aside.
    parts: Vec<Part>,
    to_ring: usize,
    /// Bytes of a Write for which no memory is mapped, or none wanted any more.
    aside: Vec<u8>,
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

    /// Bytes of a Write go to no memory.
    fn set_aside(&mut self, len: usize) {
        self.parts.clear();
        self.aside.resize(len, 0);
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
}

impl Session {
    /// A session that holds `window` bytes.
    pub(super) fn new(window: usize) -> Session {
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
                ring: Ring::new(window),
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

/// Takes units for a session.
pub(super) struct Receiver<'a, 'd> {
    pub(super) conn: ConnId,
    pub(super) session: &'a mut Session,
    pub(super) recvs: &'a mut ReceivePath,
    pub(super) data: &'a mut Datapath<'d>,
    pub(super) events: &'a mut VecDeque<TransportEvent>,
}

impl Receiver<'_, '_> {
    fn message(&mut self, header: &Header, front: &[u8], rest: usize) -> Result<Unit, Reason> {
        let Place::Untagged { message, offset } = header.place else {
            return Err(Reason::Opcode);
        };
        let rx = &self.session.rx;
        if message != rx.message {
            return Err(Reason::Message);
        }
        if offset != 0 {
            return Err(Reason::Offset);
        }
        // A session's Sends have one unit each.
        let parsed = Message::parse(front, front.len() + rest).ok();
        let parsed = parsed.filter(|m| header.last && self.session.tx.is_possible(&m.credit));
        let message = parsed.ok_or(Reason::TooLong)?;
        if rest > rx.ring.free() || (rx.peer_fin && message.kind != Kind::Credit) {
            return Err(Reason::NoBuffer);
        }
        self.plan(rest);
        Ok(Unit::Message(message))
    }

    /// Decides where a payload goes: to posted receives, unless bytes before it wait, an engine is on
    /// the path, or their memory has no address of the CPU; else to the ring.
    fn plan(&mut self, rest: usize) {
        let rx = &mut self.session.rx;
        rx.parts.clear();
        rx.to_ring = rest;
        if !rx.ring.is_empty() || self.data.on_path(self.conn, Direction::Receive) {
            return;
        }
        while rx.to_ring > 0 {
            let Some((buffer, offset)) = self.recvs.at(rx.parts.len()) else {
                return;
            };
            let len = (rx.to_ring as u64).min(u64::from(buffer.len - offset)) as u32;
            let mut none = |_: *mut u8, _: usize| {};
            let mapped = each_mapped(
                self.data.dma,
                &buffer,
                offset.into(),
                len as usize,
                &mut none,
            );
            // Behind one that takes no bytes, the ring keeps the order.
            if len == 0 || mapped < len as usize {
                return;
            }
            rx.parts.push(Part {
                buffer,
                offset,
                len,
            });
            rx.to_ring -= len as usize;
        }
    }

    /// Bytes for a receive that was exposed have begun.
    fn write(&mut self, key: u32, offset: u64, len: usize) -> Result<Unit, Reason> {
        let rx = &mut self.session.rx;
        // A unit has at most 64 KiB; a place inside a receive fits as well.
        let short = len as u32;
        let buffer = rx.exposed.find(key, offset, short)?.buffer();
        let offset = offset as u32;
        let dma = &mut *self.data.dma;
        let is_mapped = |b: &Buffer| each_mapped(dma, b, offset.into(), len, |_, _| {}) == len;
        rx.set_aside(0);
        rx.to_ring = 0;
        match buffer.filter(is_mapped) {
            Some(buffer) => rx.parts.push(Part {
                buffer,
                offset,
                len: short,
            }),
            None => rx.set_aside(len),
        }
        Ok(Unit::Write(key, offset, short))
    }

    /// They are there: those that are not in their memory go there now.
    fn wrote(&mut self, key: u32, offset: u32, len: u32) {
        let rx = &mut self.session.rx;
        let at = (key, u64::from(offset));
        // The access was checked when the unit began; receives that have ended since take no bytes.
        if rx.parts.is_empty() {
            let dma = &mut *self.data.dma;
            let _ = rx.exposed.write(self.conn, at, &rx.aside, dma, self.events);
        } else if let Ok(r) = rx.exposed.find(key, at.1, len) {
            r.came(len);
        }
        rx.parts.clear();
    }

    fn arrived(&mut self, message: &Message) -> Result<(), Reason> {
        let Session { tx, rx } = &mut *self.session;
        rx.message = rx.message.wrapping_add(1);
        tx.credited(&message.credit);
        match message.kind {
            Kind::Credit => {}
            Kind::Written => {
                let is_it = |key| key == message.key;
                rx.exposed.end(self.conn, is_it, self.events)?;
            }
            Kind::End => (rx.peer_fin, rx.answer) = (true, true),
            Kind::Data => {
                for part in &rx.parts {
                    // The ring is empty: parts are only planned then.
                    rx.ring.pass(part.len as usize);
                    rx.got += u64::from(part.len);
                    self.recvs.placed(part.len, self.events);
                }
                rx.ring.filled(rx.to_ring);
                rx.got += rx.to_ring as u64;
                rx.parts.clear();
                rx.to_ring = 0;
            }
        }
        Ok(())
    }
}

impl Sink for Receiver<'_, '_> {
    fn front(&self, header: &Header) -> usize {
        match header.opcode {
            Opcode::Send => MESSAGE_BYTES,
            Opcode::Terminate => TERMINATE_MAX,
            _ => 0,
        }
    }

    fn begin(&mut self, header: &Header, front: &[u8], rest: usize) -> Result<(), Reason> {
        let unit = match header.opcode {
            Opcode::Send => self.message(header, front, rest)?,
            Opcode::Terminate if rest == 0 => {
                Unit::Terminate(Reason::parse(front).ok_or(Reason::Length)?)
            }
            Opcode::Write if rest == 0 => Unit::Ready,
            Opcode::Write => match header.place {
                Place::Tagged { stag, offset } => self.write(stag, offset, rest)?,
                Place::Untagged { .. } => return Err(Reason::Opcode),
            },
            // Nothing was asked for.
            Opcode::ReadResponse => return Err(Reason::Stag),
            _ => return Err(Reason::Opcode),
        };
        self.session.rx.unit = Some(unit);
        Ok(())
    }

    fn places(&mut self, at: usize, len: usize, places: &mut Places) -> Result<(), Fault> {
        let rx = &mut self.session.rx;
        let (mut skip, mut left) = (at, len);
        for part in &rx.parts {
            let here = part.len as usize;
            if skip >= here {
                skip -= here;
                continue;
            }
            let want = left.min(here - skip);
            let (from, mut added) = (u64::from(part.offset) + skip as u64, 0);
            let found = each_mapped(self.data.dma, &part.buffer, from, want, |p, n| {
                if places.has_room() {
                    places.add(p, n);
                    added += n;
                }
            });
            if found < want {
                // It was mapped when the unit began.
                self.data.dma.span(&part.buffer, from + found as u64)?;
                let va = part.buffer.va;
                return Err(Fault::NoTranslation { va });
            }
            (skip, left) = (0, left - added);
            if left == 0 || added < want {
                return Ok(());
            }
        }
        if let Some(Unit::Write(..)) = rx.unit {
            let room = rx.aside.get_mut(skip..skip + left).unwrap_or_default();
            places.add(room.as_mut_ptr(), room.len());
            return Ok(());
        }
        // As positions of the stream go on: receives' bytes pass by the ring.
        skip += rx.parts.iter().map(|p| p.len as usize).sum::<usize>();
        while left > 0 && places.has_room() {
            let room = rx.ring.room_behind(skip);
            let n = room.len().min(left);
            places.add(room.as_mut_ptr(), n);
            (skip, left) = (skip + n, left - n);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Reason> {
        let rx = &mut self.session.rx;
        rx.is_heard = true;
        match rx.unit.take() {
            Some(Unit::Message(message)) => self.arrived(&message)?,
            Some(Unit::Write(key, offset, len)) => self.wrote(key, offset, len),
            Some(Unit::Terminate(reason)) => rx.terminated = Some(reason),
            Some(Unit::Ready) | None => {}
        }
        Ok(())
    }

    fn dma(&mut self) -> &mut dyn DmaAccess {
        self.data.dma
    }
}
