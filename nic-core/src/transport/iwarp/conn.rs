//! One connection: its socket, what leaves and arrives by it, and the session on it.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use ringbell_nic_abi::{PdId, Status};

use super::incoming::{Broken, Incoming, Read};
use super::outgoing::{Failed, Outgoing, Payload};
use super::receiver::Receiver;
use super::session::{Fin, Session};
use crate::datapath::{Datapath, ReceivePath};
use crate::engine::EngineFailed;
use crate::memory::lender::Lender;
use crate::network::{Link, Network};
use crate::transport::carried::{Addressed, Carried};
use crate::transport::connections::{index_of, Connection};
use crate::transport::life::{Ask, Life, Phase};
use crate::transport::ring::Waiting;
use crate::transport::{RecvWork, RemoteWork, Target, TransportEvent};
use crate::types::{ConnId, NicTime, WorkToken};
use ringbell_net::port::Batch;
use ringbell_net::random::Numbers;
use ringbell_net::wire::iwarp::ddp::{Header, Opcode};
use ringbell_net::wire::iwarp::terminate::Reason;

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
    pub(super) scratch: Vec<u8>,
    /// Bytes that have left from their memory, or wait for the kernel.
    pub(super) referred: u64,
    /// A unit of one-sided operations is made before one of the stream.
    pub(super) one_sided_next: bool,
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

    fn prepare(&mut self, _: usize, _: &mut Datapath<'_>) {}

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
        if let Some(left) = self.session.cancel_one_sided(token) {
            return Some(left);
        }
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

    fn post_remote(&mut self, work: RemoteWork) {
        self.session.one_sided.asking.post(work);
    }

    fn grant(&mut self, pd: PdId) {
        self.input |= self.session.one_sided.serving.grant(pd);
    }

    fn undelivered(&self) -> u64 {
        self.session.tx.sent - self.session.tx.got
    }

    fn reset_detail(&self) -> u64 {
        self.why
    }

    fn refuses_sends(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Dead => Some(self.life.end(self.why)),
            _ => (self.session.tx.fin != Fin::Open).then_some((Status::NotConnected, 0)),
        }
    }

    fn refuses_receives(&self) -> Option<(Status, u64)> {
        match self.life.phase {
            Phase::Dead => Some(self.life.end(self.why)),
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
        self.input |= self.session.one_sided.serving.revoke();
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
        self.session.end_one_sided(self.life.id, status, events);
        self.session.tx.targets.clear();
        self.outgoing.clear();
        self.is_cut = true;
    }

    fn wake_at(&self) -> Option<NicTime> {
        self.life.deadline
    }

    fn has_more(&mut self) -> bool {
        std::mem::take(&mut self.session.one_sided.asking.pending)
    }
}

impl Conn {
    /// A connection that holds `window` bytes for its program.
    pub(super) fn new(
        id: ConnId,
        addresses: (SocketAddrV4, SocketAddrV4),
        phase: Phase,
        window: usize,
        lender: &Lender,
    ) -> Conn {
        Conn {
            life: Life::new(id, addresses, phase),
            socket: None,
            startup: Startup::Connecting,
            session: Session::new(window, lender),
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            input: false,
            output: false,
            is_cut: false,
            why: 0,
            ask: None,
            scratch: Vec::new(),
            referred: 0,
            one_sided_next: false,
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

    /// Adds a unit to what leaves.
    pub(super) fn add(&mut self, header: &Header, payload: Payload<'_>) {
        self.outgoing.add(header, payload, self.incoming.has_crc);
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
        self.add(&header, Payload::Bytes(&message));
        if let Some(socket) = &self.socket {
            // A peer that reads nothing sees the end of the connection alone.
            let _ = self.outgoing.flush(socket, data.dma);
        }
    }
}
