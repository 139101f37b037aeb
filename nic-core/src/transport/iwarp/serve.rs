//! The service of connections: what their sockets have, bytes in both directions, and events from
//! what has happened.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};

use ringbell_nic_abi::Status;

use super::conn::{Conn, Startup};
use super::incoming::{Broken, Read};
use super::outgoing::Failed;
use super::session::Fin;
use super::{socket, IwarpTransport, IDLE_LOOK, OF_ARRIVAL, OF_LISTENER};
use crate::datapath::Datapath;
use crate::engine::EngineFailed;
use crate::network::{Link, Network, Packet, Protocol};
use crate::transport::carried::Carried;
use crate::transport::carrier::Carrier;
use crate::transport::life::Phase;
use crate::transport::sessions::Sessions;
use crate::transport::turns::Sent;
use crate::transport::TransportEvent;
use crate::types::{ConnId, NicTime};
use ringbell_net::wire::iwarp::terminate::Reason;

impl Carrier for IwarpTransport {
    const NAME: &'static str = "iwarp";
    const PROTOCOL: Protocol = Protocol::Iwarp;
    // An announcement is a call at each end, and a wake of the peer: up to there a copy costs less.
    const EXPOSES: Option<u64> = Some(64 << 10);
    const ONE_SIDED: bool = true;
    type Conn = Conn;

    fn parts(&self) -> &Sessions<Conn> {
        &self.sessions
    }

    fn sessions(&mut self) -> &mut Sessions<Conn> {
        &mut self.sessions
    }

    fn dial(&mut self, addresses: (SocketAddrV4, SocketAddrV4)) -> Option<ConnId> {
        let window = self.config.rx_buffer;
        let Sessions { table, lender, .. } = &mut self.sessions;
        table.insert(|id| Conn::new(id, addresses, Phase::Resolving, window, lender))
    }

    fn look(&self) -> bool {
        !self.is_idle() && self.poller.look()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.poller.as_fd()]
    }

    /// No port carries its packets.
    fn take(&mut self, _: NicTime, _: &Packet<'_>, _: &mut Datapath<'_>) {}

    fn has_control(&self) -> bool {
        false
    }

    /// Notes which sockets are ready, and takes connections that have come in.
    fn read_control(&mut self, now: NicTime, net: &mut Network) -> bool {
        let mut any = false;
        let is_due = !self.is_idle() || now >= self.look_at;
        if is_due && self.poller.look() {
            while let Some(ready) = self.poller.take() {
                any = true;
                self.note(ready);
            }
        }
        if is_due {
            self.look_at = now.plus(IDLE_LOOK);
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
        }
        any | self.take_arrivals(now, net)
    }

    /// Has the next step come in time for connections that do not ask.
    fn send_answers(&mut self, _: NicTime, _: &mut Network) {
        let arrivals = self.arrivals.iter().flatten().map(|a| a.deadline());
        if let Some(at) = arrivals.chain(self.accept_at).min() {
            self.sessions.turns.no_later(at);
        }
    }

    fn request(&mut self, _: usize, _: Link, _: &mut Network) -> Option<()> {
        None
    }

    fn address(c: &Conn, _: &Network) -> SocketAddr {
        c.life.peer.into()
    }

    fn serve(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let mut moved = self.advance(index, now, net, data);
        let Some(c) = self.sessions.table.at(index) else {
            return moved;
        };
        if c.is_cut && c.life.phase.is_up() {
            tracing::debug!(peer = %c.life.peer, "an operation was taken back in the middle of a unit");
            self.broken(index, 0);
            return true;
        }
        moved |= self.bytes(index, now, data).unwrap_or_else(|failed| {
            self.end_by_engine(index, failed);
            true
        });
        let sent = match self.sessions.table.at(index) {
            Some(c) if c.input && !matches!(c.startup, Startup::Connecting) => Sent::More,
            _ => Sent::All,
        };
        moved |= self.report(index, now, sent);
        self.sessions.schedule(index, now, sent, false);
        moved
    }

    fn bytes(
        &mut self,
        index: usize,
        _: NicTime,
        data: &mut Datapath<'_>,
    ) -> Result<bool, EngineFailed> {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return Ok(false);
        };
        if c.life.phase == Phase::Dead {
            c.input = false;
        }
        if c.life.phase == Phase::Dead || !matches!(c.startup, Startup::Done) {
            return Ok(false);
        }
        let mut moved = false;
        if c.life.phase == Phase::Open {
            moved |= c.pump_recvs(data, &mut s.events);
        }
        if c.input {
            let read = c.receive(data, &mut s.events);
            moved = true;
            c.input = matches!(read, Ok(Read::More));
            if c.session.rx.is_heard {
                c.life.has_received = true;
            }
            let is_heard = c.life.has_received;
            let terminated = c.session.rx.terminated.take();
            if is_heard {
                self.sessions.established(index);
            }
            if let Some(reason) = terminated {
                self.terminated(index, reason);
                return Ok(true);
            }
            self.take_bytes(index, data)?;
            if let Err(broken) = read {
                self.read_failed(index, broken, data);
                return Ok(true);
            }
        }
        self.take_bytes(index, data)?;
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return Ok(true);
        };
        match c.send(data, &mut s.events)? {
            Ok(left) => moved |= left,
            Err(Failed::Socket(e)) => {
                self.read_failed(index, Broken::Socket(e), data);
                return Ok(true);
            }
            Err(Failed::Memory(fault)) => {
                let peer = c.life.peer;
                tracing::warn!(%peer, %fault, "memory of a send is gone in the middle of a unit; the session is reset");
                self.broken(index, 0);
                return Ok(true);
            }
        }
        Ok(moved)
    }

    fn report(&mut self, index: usize, now: NicTime, _: Sent) -> bool {
        let Some(c) = self.sessions.table.at(index) else {
            return false;
        };
        let session = &c.session;
        match c.life.phase {
            Phase::Closing if session.tx.fin == Fin::Confirmed => {
                self.sessions.closed(index, now);
            }
            // Both directions have ended, and the peer was told.
            Phase::Orphan if session.rx.peer_fin && c.is_over() && !session.rx.answer => {
                self.free(index);
            }
            // The peer still sends, and nothing reads (RFC 1122 §4.2.2.13), or it asks and gets no
            // answer.
            Phase::Orphan
                if !session.rx.ring.is_empty() || session.one_sided.serving.is_asked() =>
            {
                self.reject(index);
            }
            _ => return false,
        }
        true
    }

    fn cut_off(&mut self, index: usize) {
        self.broken(index, 0);
    }

    fn end_by_engine(&mut self, index: usize, failed: EngineFailed) {
        let s = &mut self.sessions;
        if let Some(c) = s.table.at(index) {
            c.fail_all(failed.status(), &mut s.events);
            self.broken(index, 0);
        }
    }

    /// The peer sees a reset.
    fn reject(&mut self, index: usize) {
        if let Some(socket) = self
            .sessions
            .table
            .at(index)
            .and_then(|c| c.socket.as_ref())
        {
            socket::reset_on_close(socket);
        }
        self.free(index);
    }

    fn freed(&mut self, _: &mut Conn) {}
}

impl IwarpTransport {
    /// Notes what has become ready.
    fn note(&mut self, ready: super::poller::Ready) {
        // An index, by the tokens' making.
        let at = (ready.token & !(OF_LISTENER | OF_ARRIVAL)) as usize;
        if ready.token & OF_LISTENER != 0 {
            self.listeners[at].input = true;
        } else if ready.token & OF_ARRIVAL != 0 {
            if let Some(Some(arrival)) = self.arrivals.get_mut(at) {
                arrival.mark();
            }
        } else if let Some(c) = self.sessions.table.at(at) {
            c.input |= ready.input;
            c.incoming.ended |= ready.ended;
            if ready.output {
                (c.output, c.outgoing.blocked) = (true, false);
            }
            self.sessions.mark(at);
        }
    }

    /// Continues a start-up, or abandons what is late. Returns whether anything moved.
    fn advance(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return false;
        };
        let late = c.life.deadline.is_some_and(|d| d <= now);
        if std::mem::take(&mut c.life.has_received) {
            if let Some(hop) = c.life.hop {
                net.confirm(hop, now);
            }
        }
        match c.life.phase {
            Phase::Resolving => match s.resolve(index, now, net) {
                Ok(Some(link)) => self.dial_on(index, link, net),
                Ok(None) if !late => {
                    s.schedule(index, now, Sent::All, false);
                    false
                }
                found => {
                    let status = found.err().unwrap_or(Status::HostUnreachable);
                    self.fail_connect(index, status, None);
                    true
                }
            },
            Phase::Requesting if late => {
                self.fail_connect(index, Status::TimedOut, None);
                true
            }
            Phase::Requesting => self.start_up(index, data),
            Phase::Incoming(_) | Phase::Orphan if late => {
                self.reject(index);
                true
            }
            _ => false,
        }
    }

    /// Gives what has arrived to receives, and reports the end of the peer's direction.
    fn take_bytes(&mut self, index: usize, data: &mut Datapath<'_>) -> Result<(), EngineFailed> {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return Ok(());
        };
        match c.life.phase {
            Phase::Open => {
                c.pump_recvs(data, &mut s.events);
                if c.session.rx.peer_fin && !c.life.peer_closed {
                    c.life.peer_closed = true;
                    let conn = c.life.id;
                    s.events.push_back(TransportEvent::PeerClosed { conn });
                    c.pump_recvs(data, &mut s.events);
                }
            }
            // The program no longer reads.
            Phase::Closing => {
                let ring = &mut c.session.rx.ring;
                let waiting = ring.end() - ring.start();
                ring.take(waiting as usize);
            }
            _ => {}
        }
        c.session.rx.failed.take().map_or(Ok(()), Err)
    }

    /// The peer has ended the connection by a message.
    fn terminated(&mut self, index: usize, reason: Reason) {
        if let Some(c) = self.sessions.table.at(index) {
            let peer = c.life.peer;
            tracing::warn!(%peer, %reason, "the peer has ended the session by a Terminate message");
        }
        self.broken(index, reason.detail());
    }

    /// No more units come, or none can leave.
    fn read_failed(&mut self, index: usize, broken: Broken, data: &mut Datapath<'_>) {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return;
        };
        let peer = c.life.peer;
        match broken {
            // Both ends have said all: the connection is not needed any more.
            Broken::Ended | Broken::Socket(_) if c.session.is_over() && !c.incoming.is_inside() => {
                c.outgoing.clear();
                c.socket = None;
                s.mark(index);
            }
            Broken::Ended => {
                tracing::debug!(%peer, "the peer has ended the connection without ending the session");
                self.broken(index, 0);
            }
            Broken::Socket(e) => {
                tracing::debug!(%peer, %e, "the connection has failed");
                self.broken(index, 0);
            }
            Broken::Peer(reason, unit) => {
                tracing::warn!(%peer, %reason, "the peer has sent what iWARP does not allow here; the session is reset");
                c.terminate(reason, unit.as_ref(), data);
                self.broken(index, reason.detail());
            }
            Broken::Memory(fault) => {
                tracing::warn!(%peer, %fault, "memory of a receive is gone in the middle of a unit; the session is reset");
                c.terminate(Reason::Catastrophic, None, data);
                self.broken(index, 0);
            }
        }
    }

    /// The session has ended: its operations retire, its socket is closed.
    fn broken(&mut self, index: usize, why: u64) {
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        if !matches!(c.life.phase, Phase::Open | Phase::Closing) {
            return self.reject(index);
        }
        c.why = why;
        c.life.deadline = None;
        // What was said to the peer still leaves.
        c.socket = None;
        let end = c.life.end(why);
        if self.sessions.dead(index, end) {
            self.free(index);
        }
    }
}
