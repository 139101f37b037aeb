//! One connection: its socket, what leaves and arrives by it, and the session on it.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use ringbell_nic_abi::Status;

use super::incoming::{Broken, Incoming, Read};
use super::outgoing::{Failed, Outgoing, Payload};
use super::session::{Fin, Receiver, Session};
use crate::datapath::{self, Datapath, ReceivePath, Sent};
use crate::dma::{each_mapped, ReadStatus};
use crate::engine::{Direction, EngineFailed};
use crate::network::{Link, Network};
use crate::port::Batch;
use crate::transport::carried::{Addressed, Carried};
use crate::transport::connections::{index_of, Connection};
use crate::transport::life::{Ask, Life, Phase};
use crate::transport::random::Numbers;
use crate::transport::ring::Waiting;
use crate::transport::{RecvWork, Target, TransportEvent};
use crate::types::{Buffer, ConnId, NicTime, WorkToken};
use crate::wire::iwarp::ddp::{Header, Opcode, Place, TAGGED_BYTES, UNTAGGED_BYTES};
use crate::wire::iwarp::mpa::UNIT_MAX;
use crate::wire::iwarp::session::{Kind, MESSAGE_BYTES};
use crate::wire::iwarp::terminate::Reason;

/// Most bytes of the stream in one Send.
pub(super) const DATA_MAX: usize = UNIT_MAX - UNTAGGED_BYTES - MESSAGE_BYTES;
/// From here on a payload leaves from its memory: a shorter one is copied, so that its send retires
/// at once.
const BY_REFERENCE: usize = 16 << 10;

/// Most bytes of one Write.
const WRITE_MAX: usize = UNIT_MAX - TAGGED_BYTES;

/// Bytes of a send that leave from their memory.
#[derive(Debug, Clone, Copy)]
struct Referred {
    buffer: Buffer,
    offset: u32,
    len: u32,
    /// Of all such bytes, those up to these.
    until: u64,
}

/// How far the start-up is.
#[derive(Debug)]
pub(super) enum Startup {
    /// The kernel connects.
    Connecting,
    /// The request is out; so much of the answer is there.
    Requested(Vec<u8>),
    /// It is over.
    Done,
}

/// One connection.
#[derive(Debug)]
pub(in crate::transport) struct Conn {
    pub(super) life: Life,
    /// `None` before the kernel is asked to connect, and after the connection has ended.
    pub(super) socket: Option<OwnedFd>,
    pub(super) startup: Startup,
    pub(super) session: Session,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// The socket may have something to read.
    pub(super) input: bool,
    /// It has become writable.
    pub(super) output: bool,
    /// An operation was taken back in the middle of a unit: no more can move.
    pub(super) is_cut: bool,
    /// Why it was reset: the detail of operations that come after it.
    pub(super) why: u64,
    /// Nothing is asked again: the kernel retransmits.
    ask: Option<Ask<()>>,
    /// Payloads that are copied.
    scratch: Vec<u8>,
    /// Bytes that have left from their memory, or wait for the kernel.
    referred: u64,
}

impl Connection for Conn {
    type Key = u32;

    fn key(&self) -> u32 {
        self.life.id.0
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn life_mut(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Carried for Conn {
    type End = u32;
    type Message = ();

    /// A connection of the kernel's is an end of its own.
    fn end_of_peer(&self) -> u32 {
        self.life.id.0
    }

    fn ask(&mut self) -> &mut Option<Ask<()>> {
        &mut self.ask
    }

    fn say(&self, (): &(), _: NicTime, _: Link, _: &mut Network) -> bool {
        false
    }

    /// It sends no packets.
    fn addressed(&self) -> Option<Addressed> {
        None
    }

    fn prepare(&mut self, _: &mut Datapath<'_>) {}

    fn append(
        &mut self,
        _: NicTime,
        _: &mut Batch,
        _: &mut Datapath<'_>,
        _: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        Ok(false)
    }

    fn receiving(&mut self) -> (Waiting<'_>, &mut ReceivePath) {
        let waiting = Waiting {
            rx: &mut self.session.rx.ring,
            ended: self.life.peer_closed,
        };
        (waiting, &mut self.life.recvs)
    }

    fn failed(&mut self) -> &mut Option<EngineFailed> {
        &mut self.session.rx.failed
    }

    fn must_announce(&self) -> bool {
        self.session.rx.must_announce()
    }

    fn cancel(&mut self, token: WorkToken, _: &mut VecDeque<TransportEvent>) -> Option<u64> {
        if let Some(s) = self.life.sends.cancel(token) {
            self.is_cut |= s.referred;
            self.session.tx.targets.forget(token);
            return Some(s.bytes);
        }
        if let Some(bytes) = self.session.cancel_exposed(token) {
            return Some(bytes);
        }
        let number = self.life.recvs.number_of(token)?;
        self.is_cut |= self.session.fills(number);
        self.life.recvs.cancel(token)
    }

    fn write_to(&mut self, send: WorkToken, to: Target) {
        self.session.tx.targets.post(send, to);
    }

    /// Only the message's own bytes are written there, so it does not matter what lies there.
    fn expose(&mut self, work: &RecvWork, _: bool, numbers: &mut Numbers) -> Option<u32> {
        let draw = || numbers.draw() as u32;
        Some(self.session.rx.exposed.open(*work, false, u32::MAX, draw))
    }

    fn undelivered(&self) -> u64 {
        self.session.tx.sent - self.session.tx.got
    }

    fn reset_detail(&self) -> u64 {
        self.why
    }

    fn refuses_sends(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Dead => Some((Status::ConnectionReset, self.why)),
            _ => (self.session.tx.fin != Fin::Open).then_some((Status::NotConnected, 0)),
        }
    }

    fn refuses_receives(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Dead => Some((Status::ConnectionReset, self.why)),
            Phase::Closing => Some((Status::NotConnected, 0)),
            _ => None,
        }
    }

    fn end_stream(&mut self) {
        let fin = &mut self.session.tx.fin;
        *fin = (*fin).max(Fin::Wanted);
    }

    fn stop_receiving(&mut self, events: &mut VecDeque<TransportEvent>) {
        self.session.redirect();
        let ended = (Status::NotConnected, 0);
        self.life.recvs.fail_all(ended, events);
        self.session.end_exposed(self.life.id, ended, events);
    }

    fn is_over(&self) -> bool {
        self.session.is_over() && self.outgoing.is_empty()
    }

    fn fail_all(&mut self, status: (Status, u64), events: &mut VecDeque<TransportEvent>) {
        self.life.sends.fail_all(status, events);
        self.life.recvs.fail_all(status, events);
        self.session.end_exposed(self.life.id, status, events);
        self.session.tx.targets.clear();
        self.outgoing.clear();
        self.is_cut = true;
    }

    fn wake_at(&self) -> Option<NicTime> {
        self.life.deadline
    }

    fn has_more(&mut self) -> bool {
        false
    }
}

impl Conn {
    /// A connection that holds `window` bytes for its program.
    pub(super) fn new(
        id: ConnId,
        addresses: (SocketAddrV4, SocketAddrV4),
        phase: Phase,
        window: usize,
    ) -> Conn {
        Conn {
            life: Life::new(id, addresses, phase),
            socket: None,
            startup: Startup::Connecting,
            session: Session::new(window),
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            input: false,
            output: false,
            is_cut: false,
            why: 0,
            ask: None,
            scratch: Vec::new(),
            referred: 0,
        }
    }

    /// Its number in the table, which names its socket.
    pub(super) fn token(&self) -> u64 {
        index_of(self.life.id) as u64
    }

    /// Takes what the kernel has. Returns whether that was all.
    ///
    /// # Errors
    /// [`Broken`]: nothing more can come.
    pub(super) fn receive(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<Read, Broken> {
        let Some(socket) = &self.socket else {
            return Ok(Read::All);
        };
        let mut receiver = Receiver {
            conn: self.life.id,
            session: &mut self.session,
            recvs: &mut self.life.recvs,
            data,
            events,
        };
        self.incoming.advance(socket, &mut receiver)
    }

    /// Makes units of what is to be sent, and hands them to the kernel. Returns whether any left.
    ///
    /// # Errors
    /// An engine on the path has failed.
    pub(super) fn send(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<Result<bool, Failed>, EngineFailed> {
        self.life.pending = false;
        let mut any = false;
        loop {
            while self.outgoing.has_room() && self.append_unit(data, events)? {}
            let Some(socket) = &self.socket else {
                return Ok(Ok(any));
            };
            if self.outgoing.is_empty() || self.outgoing.blocked {
                return Ok(Ok(any));
            }
            match self.outgoing.flush(socket, data.dma) {
                Ok(left) => any |= left,
                Err(failed) => return Ok(Err(failed)),
            }
            self.life.sends.acknowledge(self.outgoing.left, events);
        }
    }

    /// Makes the next unit: bytes, the end of the stream, or credit. `false`: there is none.
    fn append_unit(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let is_open = matches!(self.life.phase, Phase::Open | Phase::Closing);
        let is_up = is_open || self.life.phase == Phase::Orphan;
        if is_open && self.append_bytes(data, events)? {
            return Ok(true);
        }
        let ends = is_open
            && self.session.tx.fin == Fin::Wanted
            && self.life.sends.unsent().is_none()
            && !self.life.pending;
        let kind = if ends && self.life.sends.finish(data)? {
            self.session.tx.fin = Fin::Sent;
            Kind::End
        } else if is_up && self.session.rx.must_announce() {
            Kind::Credit
        } else {
            return Ok(false);
        };
        let (header, message) = self.session.next(kind, 0);
        self.add(&header, Payload::Bytes(&message), data);
        Ok(true)
    }

    /// Adds a unit whose payload is in no memory of a user.
    pub(super) fn add(&mut self, header: &Header, payload: Payload<'_>, data: &mut Datapath<'_>) {
        let has_crc = self.incoming.has_crc;
        let added = self.outgoing.add(header, payload, has_crc, data.dma);
        debug_assert!(added, "bytes of ours are always there");
    }

    /// Makes a unit of the next bytes of the stream.
    fn append_bytes(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let conn = self.life.id;
        if self.life.sends.unsent().is_none() && !data.on_path(conn, Direction::Send) {
            return Ok(false);
        }
        if let Some(to) = self.target() {
            return self.append_write(to, data, events);
        }
        let most = self.session.tx.room().min(DATA_MAX);
        if most == 0 {
            return Ok(false);
        }
        if let Some(referred) = self.refer(most, data, events) {
            if let Some(Referred {
                buffer,
                offset,
                len,
                until,
            }) = referred
            {
                self.session.tx.sent += u64::from(len);
                let (header, message) = self.session.next(Kind::Data, 0);
                let payload = Payload::Memory {
                    first: &message,
                    buffer,
                    offset,
                    len,
                    until,
                };
                self.add(&header, payload, data);
            }
            return Ok(true);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(DATA_MAX, 0);
        let filled = self.fill(&mut scratch[..most], data, events);
        if let Ok(n @ 1..) = filled {
            self.session.tx.sent += n as u64;
            let (header, message) = self.session.next(Kind::Data, 0);
            self.add(&header, Payload::After(&message, &scratch[..n]), data);
        }
        self.scratch = scratch;
        Ok(filled? > 0)
    }

    /// Where the next send goes, when it goes to a receive of the peer.
    fn target(&self) -> Option<Target> {
        let (work, _) = self.life.sends.unsent()?;
        self.session.tx.targets.of(work.token)
    }

    /// Makes a unit of the next bytes of a send that goes to a receive of the peer.
    fn append_write(
        &mut self,
        to: Target,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<bool, EngineFailed> {
        let Some((token, done, left)) = self.life.sends.unsent().map(|(work, done)| {
            let left = work.payload.len() - done;
            (work.token, done, left)
        }) else {
            return Ok(false);
        };
        let header = |n: u32| Header {
            opcode: Opcode::Write,
            last: to.last && n == left,
            place: Place::Tagged {
                stag: to.key,
                offset: u64::from(to.offset) + u64::from(done),
            },
        };
        let n = match self.refer(WRITE_MAX, data, events) {
            // A fault: the send has ended, and the receive stays.
            Some(None) => {
                self.session.tx.targets.forget(token);
                return Ok(true);
            }
            Some(Some(r)) => {
                let payload = Payload::Memory {
                    first: &[],
                    buffer: r.buffer,
                    offset: r.offset,
                    len: r.len,
                    until: r.until,
                };
                self.add(&header(r.len), payload, data);
                r.len
            }
            None => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.resize(DATA_MAX, 0);
                let sent = self.life.sends.fill(&mut scratch, data, events);
                if let Sent::Bytes(n @ 1..) = sent {
                    let header = header(n as u32);
                    self.add(&header, Payload::Bytes(&scratch[..n]), data);
                }
                self.scratch = scratch;
                match sent {
                    Sent::Bytes(n) => n as u32,
                    Sent::Pending => {
                        self.life.pending = true;
                        return Ok(false);
                    }
                    Sent::Fault(_) => {
                        self.session.tx.targets.forget(token);
                        return Ok(true);
                    }
                    Sent::Failed(failed) => return Err(failed),
                }
            }
        };
        if n == left {
            self.session.tx.targets.forget(token);
            if to.last {
                let (header, message) = self.session.next(Kind::Written, to.key);
                self.add(&header, Payload::Bytes(&message), data);
            }
        }
        Ok(true)
    }

    /// Copies the next bytes, as far as they do not leave from their memory. Returns how many.
    fn fill(
        &mut self,
        room: &mut [u8],
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Result<usize, EngineFailed> {
        let mut n = 0;
        let goes_on =
            |c: &Conn, data: &Datapath<'_>| c.reference(data).is_none() && c.target().is_none();
        while n < room.len() && (n == 0 || goes_on(self, data)) {
            match self.life.sends.fill(&mut room[n..], data, events) {
                Sent::Bytes(0) => break,
                Sent::Bytes(more) => n += more,
                Sent::Pending => {
                    self.life.pending = true;
                    break;
                }
                Sent::Fault(_) => {}
                Sent::Failed(failed) => return Err(failed),
            }
        }
        Ok(n)
    }

    /// The next send, where it leaves from its memory: buffer, bytes that have left, and the rest.
    fn reference(&self, data: &Datapath<'_>) -> Option<(Buffer, u32, u32)> {
        let (conn, sends) = (self.life.id, &self.life.sends);
        let (work, done) = sends.unsent()?;
        let datapath::Payload::Memory(buffer) = work.payload else {
            return None;
        };
        let left = buffer.len - done;
        let is_plain = !data.transforms(conn) && data.held(conn, Direction::Send) == 0;
        let is_long = left as usize >= BY_REFERENCE && sends.pending() == 0;
        (is_plain && is_long).then_some((buffer, done, left))
    }

    /// Lets the next bytes leave from their memory, at most so many. `None`: they do not;
    /// `Some(None)`: they cannot be read, and their send has ended.
    fn refer(
        &mut self,
        most: usize,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Option<Option<Referred>> {
        let (buffer, offset, left) = self.reference(data)?;
        // At most a unit.
        let len = left.min(most as u32);
        let mapped = each_mapped(data.dma, &buffer, offset.into(), len as usize, |_, _| {});
        if mapped < len as usize {
            return None;
        }
        let until = self.referred + u64::from(len);
        let sends = &mut self.life.sends;
        let sent = sends.refer(len, until, data, events, |dma, at, to| {
            match dma.read(&buffer, at.into(), to)? {
                // Mapped memory answers at once.
                ReadStatus::Done | ReadStatus::Pending => Ok(()),
            }
        });
        if !matches!(sent, Sent::Bytes(_)) {
            return Some(None);
        }
        self.referred = until;
        Some(Some(Referred {
            buffer,
            offset,
            len,
            until,
        }))
    }

    /// Tells the peer why the connection ends, as far as the kernel takes it now.
    pub(super) fn terminate(
        &mut self,
        reason: Reason,
        unit: Option<&(u16, Vec<u8>)>,
        data: &mut Datapath<'_>,
    ) {
        let mut message = Vec::new();
        reason.emit(unit.map(|(len, header)| (*len, &header[..])), &mut message);
        let header = Header::whole(Opcode::Terminate, 1);
        self.add(&header, Payload::Bytes(&message), data);
        if let Some(socket) = &self.socket {
            // A peer that reads nothing sees the end of the connection alone.
            let _ = self.outgoing.flush(socket, data.dma);
        }
    }
}
