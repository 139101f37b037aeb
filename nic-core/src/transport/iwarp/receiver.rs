//! What units bring to a session: bytes of its stream, of receives that were exposed, and of
//! one-sided operations.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;

use super::incoming::Sink;
use super::one_sided::Request;
use super::session::{Part, Session, Unit};
use super::socket::Places;
use crate::datapath::{Datapath, ReceivePath};
use crate::dma::{each_mapped, DmaAccess};
use crate::engine::Direction;
use crate::transport::one_sided::Note;
use crate::transport::TransportEvent;
use crate::types::{Buffer, ConnId};
use ringbell_net::wire::iwarp::ddp::{Header, Opcode, Place};
use ringbell_net::wire::iwarp::rdmap::{
    parse_atomic_response, AtomicRequest, ReadRequest, ATOMIC_REQUEST_BYTES, ATOMIC_RESPONSE_BYTES,
    READ_REQUEST_BYTES,
};
use ringbell_net::wire::iwarp::session::{Kind, Message, MESSAGE_BYTES};
use ringbell_net::wire::iwarp::terminate::Reason;

/// Bytes of a Terminate message that are read: its own, the unit's length and header.
const TERMINATE_MAX: usize = 32;

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
        let is_of_stream = matches!(message.kind, Kind::Data | Kind::End | Kind::Written);
        if rest > rx.ring.free() || (rx.peer_fin && is_of_stream) {
            return Err(Reason::NoBuffer);
        }
        match message.kind {
            Kind::Ask | Kind::Answer => self.session.rx.set_aside(rest),
            _ => self.plan(rest),
        }
        Ok(Unit::Message(message))
    }

    /// Decides where a payload goes: to posted receives, unless bytes before it wait, an engine is
    /// on the path, or their memory has no address of the CPU; else to the ring.
    fn plan(&mut self, rest: usize) {
        let rx = &mut self.session.rx;
        rx.set_aside(0);
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

    /// Bytes for memory here have begun: of the put that was announced, or of a receive that was
    /// exposed.
    fn write(&mut self, key: u32, offset: u64, len: usize, last: bool) -> Result<Unit, Reason> {
        let Session { rx, one_sided, .. } = &mut *self.session;
        // A unit has at most 64 KiB; a place inside a receive fits as well.
        let short = len as u32;
        if one_sided.serving.is_put((key, offset), len, last)? {
            let place = one_sided.serving.place(short, self.data.dma);
            let place = place.map(|buffer| (buffer, 0));
            rx.set_place(mapped(place, short, self.data.dma), short);
            return Ok(Unit::Put(short));
        }
        let buffer = rx.exposed.find(key, offset, short)?.buffer();
        let offset = offset as u32;
        let place = buffer.map(|buffer| (buffer, offset));
        rx.set_place(mapped(place, short, self.data.dma), short);
        Ok(Unit::Write(key, offset, short))
    }

    /// Bytes of a Read response have begun.
    fn response(&mut self, sink: u32, offset: u64, len: usize, last: bool) -> Result<Unit, Reason> {
        let Session { rx, one_sided, .. } = &mut *self.session;
        let len = len as u32;
        let place = one_sided.asking.place(sink, offset, len, last)?;
        rx.set_place(mapped(place, len, self.data.dma), len);
        Ok(Unit::Response(len))
    }

    /// A message in one of RDMAP's own queues, which is one unit.
    fn own_message(&mut self, header: &Header, front: &[u8], rest: usize) -> Result<Unit, Reason> {
        let Place::Untagged { message, offset } = header.place else {
            return Err(Reason::Opcode);
        };
        if offset != 0 {
            return Err(Reason::Offset);
        }
        if rest > 0 || !header.last {
            return Err(Reason::TooLong);
        }
        if header.opcode == Opcode::AtomicResponse {
            let word = parse_atomic_response(front).ok_or(Reason::Length)?;
            return Ok(Unit::Word(message, word));
        }
        self.session.one_sided.serving.expects(message)?;
        let is_short = front.len() < self.front(header);
        let request = match header.opcode {
            _ if is_short => return Err(Reason::Length),
            Opcode::ReadRequest => ReadRequest::parse(front).map(Request::Read),
            _ => Some(Request::Atomic(AtomicRequest::parse(front))),
        };
        Ok(Unit::Request(request.ok_or(Reason::Length)?))
    }

    /// Whether a unit asks for something that must wait until the session is accepted.
    fn must_wait(&mut self, unit: &Unit) -> bool {
        let asks = match unit {
            Unit::Message(message) => message.kind == Kind::Ask,
            unit => matches!(unit, Unit::Request(_)),
        };
        asks && self.session.one_sided.serving.must_wait()
    }

    /// Bytes of the announced put, or of the oldest get, are there: those that are not in their
    /// memory go there now.
    fn moved(&mut self, unit: Unit) {
        let Session { rx, one_sided, .. } = &mut *self.session;
        let dma = &mut *self.data.dma;
        let is_aside = rx.parts.is_empty();
        rx.parts.clear();
        match unit {
            Unit::Put(len) => {
                let to = is_aside
                    .then(|| one_sided.serving.place(len, dma))
                    .flatten();
                let written = to.map_or(Ok(()), |to| dma.write(&to, 0, &rx.aside));
                one_sided.serving.wrote(len, written.err(), dma);
            }
            Unit::Response(len) => {
                let to = is_aside.then(|| one_sided.asking.next_place()).flatten();
                let written = to.map_or(Ok(()), |(to, at)| dma.write(&to, at.into(), &rx.aside));
                let fault = written.err().map(Fault::status);
                one_sided.asking.came(len, fault, self.conn, self.events);
            }
            _ => {}
        }
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
        let Session { tx, rx, .. } = &mut *self.session;
        rx.message = rx.message.wrapping_add(1);
        tx.credited(&message.credit);
        match message.kind {
            Kind::Credit => {}
            Kind::Ask => match Note::read(&rx.aside) {
                Some(Note::Announce(access)) => {
                    self.session
                        .one_sided
                        .serving
                        .announce(access, self.data.dma)?;
                }
                _ => return Err(Reason::TooLong),
            },
            Kind::Answer => match Note::read(&rx.aside) {
                Some(Note::Because(status, detail)) => {
                    let asking = &mut self.session.one_sided.asking;
                    asking.because(self.conn, (status, detail), self.events)?;
                }
                _ => return Err(Reason::TooLong),
            },
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
            Opcode::ReadRequest => READ_REQUEST_BYTES,
            Opcode::AtomicRequest => ATOMIC_REQUEST_BYTES,
            Opcode::AtomicResponse => ATOMIC_RESPONSE_BYTES,
            Opcode::Write | Opcode::ReadResponse => 0,
        }
    }

    fn begin(&mut self, header: &Header, front: &[u8], rest: usize) -> Result<bool, Reason> {
        let unit = match (header.opcode, header.place) {
            (Opcode::Send, _) => self.message(header, front, rest)?,
            (Opcode::Terminate, _) if rest == 0 => {
                Unit::Terminate(Reason::parse(front).ok_or(Reason::Length)?)
            }
            (Opcode::Terminate, _) => return Err(Reason::Opcode),
            (Opcode::Write, _) if rest == 0 => Unit::Ready,
            (Opcode::Write, Place::Tagged { stag, offset }) => {
                self.write(stag, offset, rest, header.last)?
            }
            (Opcode::ReadResponse, Place::Tagged { stag, offset }) => {
                self.response(stag, offset, rest, header.last)?
            }
            _ => self.own_message(header, front, rest)?,
        };
        let waits = self.must_wait(&unit);
        if !waits {
            self.session.rx.unit = Some(unit);
        }
        Ok(!waits)
    }

    fn places(&mut self, at: usize, len: usize, places: &mut Places) -> Result<(), Fault> {
        let Session { rx, one_sided, .. } = &mut *self.session;
        if let (Some(Unit::Put(of)), [part]) = (rx.unit, &mut rx.parts[..]) {
            // The region may have been freed since the last call.
            match one_sided.serving.place(of, self.data.dma) {
                Some(buffer) => part.buffer = buffer,
                None => rx.set_aside(of as usize),
            }
        }
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
        if !rx.aside.is_empty() {
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
            Some(unit @ (Unit::Put(_) | Unit::Response(_))) => self.moved(unit),
            Some(Unit::Request(request)) => {
                self.session
                    .one_sided
                    .serving
                    .request(&request, self.data.dma);
            }
            Some(Unit::Word(message, word)) => {
                let asking = &mut self.session.one_sided.asking;
                asking.word(message, word, self.conn, self.events)?;
            }
            Some(Unit::Terminate(reason)) => rx.terminated = Some(reason),
            Some(Unit::Ready) | None => {}
        }
        Ok(())
    }

    fn dma(&mut self) -> &mut dyn DmaAccess {
        self.data.dma
    }
}

/// The place of so many bytes, if all of them have addresses of the CPU.
fn mapped(
    place: Option<(Buffer, u32)>,
    len: u32,
    dma: &mut dyn DmaAccess,
) -> Option<(Buffer, u32)> {
    let len = len as usize;
    place.filter(|(b, at)| each_mapped(dma, b, u64::from(*at), len, |_, _| {}) == len)
}
