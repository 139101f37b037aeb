//! The connections of a carrier: found by their packets, made, marked for service, and what they
//! share.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::Status;
use rustc_hash::FxBuildHasher;

use super::carried::{Addressed, Carried};
use super::connections::{check_remote, index_of, Connections, EphemeralPorts, Listeners};
use super::life::Phase;
use super::turns::{Sent, Turns};
use super::{RecvWork, RemoteWork, SendWork, TransportEvent};
use crate::datapath::Datapath;
use crate::engine::EngineFailed;
use crate::memory::lender::Lender;
use crate::network::{Datagrams, Link, Network, Protocol, Routes, Waiter};
use crate::types::{ConnId, ListenerId, NicTime};
use ringbell_net::port::Batch;
use ringbell_net::random::Numbers;
use ringbell_net::wire::roce::icrc::Flow;

/// A request whose answer is not confirmed after this long is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long the peer's end of the stream may take after a close.
const FIN_WAIT: Duration = Duration::from_secs(60);
/// How long a connection waits for room in the port before it tries again.
pub(super) const BLOCKED: Duration = Duration::from_micros(10);
/// Packets that one service may send.
const BUDGET: usize = 128;
/// A peer whose host has refused so many packets in a row is gone.
const REFUSED_MAX: u32 = 3;
/// A connection that rests gives back so many bytes of memory or more: 512. Probes need less.
const SPARE_MIN: usize = 512;

/// Whose packets wait for room in a port.
#[derive(Debug)]
struct Unsent {
    link: Link,
    flow: Flow,
    how: Datagrams,
}

/// The connections of a carrier, and what they share.
pub(super) struct Sessions<C: Carried> {
    pub(super) ip: Ipv4Addr,
    protocol: Protocol,
    routes: Arc<Routes>,
    pub(super) numbers: Numbers,
    /// Lends the connections memory for their bytes.
    pub(super) lender: Lender,
    /// Its keys are drawn here: no peer chooses which collide.
    pub(super) table: Connections<C, FxBuildHasher>,
    pub(super) listeners: Listeners,
    ports: EphemeralPorts,
    pub(super) turns: Turns,
    /// Connections that peers have asked for, by their address and end.
    pub(super) requests: BTreeMap<(Ipv4Addr, C::End), usize>,
    /// Packets that are being sent, and for whom, when they found no room.
    batch: Batch,
    unsent: Option<Unsent>,
    /// The connection whose long packets come now: the next may be received in place.
    pub(super) streaming: Option<usize>,
    pub(super) events: VecDeque<TransportEvent>,
}

impl<C: Carried> Sessions<C> {
    pub(super) fn new(
        net: &Network,
        protocol: Protocol,
        (connections, lent): (usize, usize),
        seed: u64,
    ) -> Sessions<C> {
        let mut numbers = Numbers::new(seed);
        let ports = EphemeralPorts::new(numbers.draw());
        Sessions {
            ip: net.ip(),
            protocol,
            routes: net.table(),
            numbers,
            lender: Lender::new(lent),
            table: Connections::new(connections, FxBuildHasher),
            listeners: Listeners::default(),
            ports,
            turns: Turns::default(),
            requests: BTreeMap::new(),
            batch: Batch::new(),
            unsent: None,
            streaming: None,
            events: VecDeque::new(),
        }
    }

    /// Has a connection served by the next step.
    pub(super) fn mark(&mut self, index: usize) {
        if let Some(c) = self.table.at(index) {
            self.turns.mark(index, &mut c.life_mut().queued);
        }
    }

    /// A connection as the network knows it.
    fn waiter(&self, index: usize) -> Waiter {
        let protocol = self.protocol;
        Waiter { protocol, index }
    }

    /// Whether a step would find nothing to do. Timers fire when the clock is read.
    pub(super) fn is_quiet(&self) -> bool {
        self.turns.is_quiet()
            && self.events.is_empty()
            && self.unsent.is_none()
            && !self.table.has_released()
    }

    /// The addresses of an outgoing connection, local and peer.
    pub(super) fn addresses(
        &mut self,
        remote: SocketAddrV4,
    ) -> Result<(SocketAddrV4, SocketAddrV4), Status> {
        check_remote(&self.routes, self.protocol, self.ip, remote)?;
        // It only names the connection; the peer's program sees it.
        let port = self.ports.once().next().unwrap_or_default();
        Ok((SocketAddrV4::new(self.ip, port), remote))
    }

    /// The connection that a peer has asked for before, if it has.
    pub(super) fn requested_before(&self, peer: Ipv4Addr, end: C::End) -> Option<usize> {
        self.requests.get(&(peer, end)).copied()
    }

    /// Adds a connection that a peer has asked for.
    pub(super) fn accept(
        &mut self,
        now: NicTime,
        listener: ListenerId,
        make: impl FnOnce(ConnId) -> C,
    ) -> Option<usize> {
        let made = self.table.insert(|id| {
            let mut c = make(id);
            c.life_mut().deadline = Some(now.plus(HANDSHAKE));
            c
        });
        let index = index_of(made?);
        let c = self.table.at(index)?;
        let request = (*c.life().peer.ip(), c.end_of_peer());
        self.listeners.handshake(listener);
        self.requests.insert(request, index);
        self.mark(index);
        Some(index)
    }

    /// The peer has answered our request.
    pub(super) fn connected(&mut self, index: usize) {
        if let Some(c) = self.table.at(index) {
            *c.ask() = None;
            let life = c.life_mut();
            (life.deadline, life.phase) = (None, Phase::Open);
            let conn = life.id;
            self.events.push_back(TransportEvent::Connected { conn });
        }
        self.mark(index);
    }

    /// The peer has confirmed our answer, or has begun to use the connection.
    pub(super) fn established(&mut self, index: usize) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let Phase::Incoming(listener) = c.life().phase else {
            return;
        };
        *c.ask() = None;
        let life = c.life_mut();
        (life.deadline, life.phase) = (None, Phase::Open);
        self.events.push_back(TransportEvent::Incoming {
            listener,
            conn: life.id,
            peer: life.peer,
        });
        self.listeners.handshake_over(listener, true);
        self.mark(index);
    }

    /// The connection has ended: its operations retire, its id stays until it is closed. Returns
    /// whether it is being closed, which is then answered.
    pub(super) fn dead(&mut self, index: usize, status: (Status, u64)) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        c.fail_all(status, &mut self.events);
        *c.ask() = None;
        let life = c.life_mut();
        let (conn, was) = (life.id, life.phase);
        life.phase = Phase::Dead;
        self.events.push_back(TransportEvent::Reset { conn });
        let is_closing = was == Phase::Closing;
        if is_closing {
            self.events.push_back(TransportEvent::Closed { conn });
        }
        is_closing
    }

    /// The peer has all that was sent: the close is answered, and the peer's end is waited for.
    pub(super) fn closed(&mut self, index: usize, now: NicTime) {
        if let Some(c) = self.table.at(index) {
            let life = c.life_mut();
            life.phase = Phase::Orphan;
            life.deadline = Some(now.plus(FIN_WAIT));
            let conn = life.id;
            self.events.push_back(TransportEvent::Closed { conn });
        }
        self.mark(index);
    }

    /// Queues a send. `first` is called with the connection if that takes the send.
    pub(super) fn post_send(&mut self, conn: ConnId, work: SendWork, first: impl FnOnce(&mut C)) {
        let refused = match self.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.refuses_sends() {
                Some(why) => why,
                None => {
                    first(c);
                    c.life_mut().sends.post(work);
                    return self.mark(index_of(conn));
                }
            },
        };
        self.events
            .push_back(TransportEvent::send_refused(conn, work.token, refused));
    }

    /// Queues a receive.
    pub(super) fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        let refused = match self.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.refuses_receives() {
                Some(why) => why,
                None => {
                    c.life_mut().recvs.post(work);
                    return self.mark(index_of(conn));
                }
            },
        };
        self.events
            .push_back(TransportEvent::recv_refused(conn, work.token, refused));
    }

    /// Queues a one-sided operation.
    pub(super) fn post_remote(&mut self, conn: ConnId, work: RemoteWork) {
        let (status, detail) = match self.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.refuses_sends() {
                Some(why) => why,
                None => {
                    c.post_remote(work);
                    return self.mark(index_of(conn));
                }
            },
        };
        self.events.push_back(TransportEvent::RemoteDone {
            conn,
            token: work.token,
            status,
            bytes: 0,
            detail,
        });
    }

    /// A receive that is watched has got its bytes: those that follow go into a buffer that its
    /// user names when it has read these.
    pub(super) fn received(&mut self, index: usize, had_receive: bool) {
        if let Some(c) = self.table.at(index) {
            let life = c.life();
            self.turns.wants_step |= life.watched && had_receive && life.recvs.is_empty();
        }
    }

    /// Has connections served whose timers have come.
    pub(super) fn expire(&mut self, now: NicTime) {
        while let Some(index) = self.turns.timers.pop(now) {
            match self.table.at(index).and_then(|c| wake_at(c)) {
                Some(at) if at > now => self.turns.timers.set(index, at),
                Some(_) => self.mark(index),
                None => {}
            }
        }
    }

    /// The way to a peer; `None` while it is looked for.
    pub(super) fn resolve(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
    ) -> Result<Option<Link>, Status> {
        let life = self.table.at(index).map(|c| c.life());
        let Some((known, peer)) = life.map(|l| (l.hop, *l.peer.ip())) else {
            return Ok(None);
        };
        let hop = match known {
            Some(hop) => hop,
            None => {
                self.table.release_hops(net, self.protocol);
                net.hop_to(self.protocol, peer, None, now)?
            }
        };
        let link = net.link(hop);
        if link.is_none() && known.is_none() {
            net.wait(hop, self.waiter(index), now);
        }
        if let Some(c) = self.table.at(index) {
            c.life_mut().hop = Some(hop);
        }
        Ok(link)
    }

    /// Sends what a connection asks of its peer, when it is due.
    pub(super) fn ask(&mut self, index: usize, now: NicTime, net: &mut Network) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if c.ask().as_ref().is_none_or(|ask| now < ask.next) {
            return;
        }
        let Some(ask) = *c.ask() else { return };
        let again = ask.was_sent();
        let Some(hop) = c.life().hop else { return };
        let Some(link) = net.link(hop) else { return };
        let was_sent = c.say(&ask.message, now, link, net);
        if let Some(ask) = c.ask() {
            match was_sent {
                true => ask.tried(now),
                false => ask.next = now.plus(BLOCKED),
            }
        }
        if was_sent {
            net.sent_to(hop, again, now);
        }
    }

    /// Sends packets while windows, port and budget allow it. Returns how that ended, and the
    /// number of packets.
    ///
    /// # Errors
    /// An engine on the path has failed.
    pub(super) fn send(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> Result<(Sent, usize), EngineFailed> {
        let nothing = Ok((Sent::All, 0));
        let Some(c) = self.table.at(index) else {
            return nothing;
        };
        let (Some(hop), Some(addressed)) = (c.life().hop, c.addressed()) else {
            return nothing;
        };
        let Some(link) = net.link(hop) else {
            return nothing;
        };
        let peer = *c.life().peer.ip();
        let Addressed { flow, how, longest } = addressed;
        // What a port takes as one.
        let most = net.segmentation(link.port).packets.min(BUDGET);
        let mut packets = 0;
        let sent = loop {
            if packets >= BUDGET {
                break Sent::More;
            }
            c.prepare(most, data);
            if self.unsent.is_some() || !net.has_room(now, link) {
                break Sent::Blocked;
            }
            if net.payload_to(link.port, peer) < longest {
                break Sent::TooSmall;
            }
            let batch = &mut self.batch;
            // Until it is cleared it refers to bytes of the connection, of which nothing but
            // `append` is called meanwhile.
            let more = fill(c, most, now, batch, data, &mut self.events)?;
            packets += batch.len();
            let taken = match batch.is_empty() {
                true => 0,
                false => net.send(now, link, &flow, &how, batch, 0),
            };
            if taken < batch.len() {
                batch.own_from(taken);
                self.unsent = Some(Unsent { link, flow, how });
                break Sent::Blocked;
            }
            batch.clear();
            if !more {
                break Sent::All;
            }
        };
        let sent = match sent {
            Sent::Blocked if packets == 0 => Sent::CrowdedOut,
            sent => sent,
        };
        if packets > 0 {
            let again = self.table.at(index).is_some_and(|c| c.is_repeating());
            net.sent_to(hop, again, now);
        }
        Ok((sent, packets))
    }

    /// Sends the packets for which there was no room. `false`: there is none yet.
    pub(super) fn send_again(&mut self, now: NicTime, net: &mut Network) -> bool {
        let Some(u) = &self.unsent else {
            return true;
        };
        let taken = net.send(now, u.link, &u.flow, &u.how, &self.batch, 0);
        if taken < self.batch.len() {
            self.batch.own_from(taken);
            return false;
        }
        self.batch.clear();
        self.unsent = None;
        true
    }

    /// Whether the peer of a connection is gone, by what its host and the port have said.
    pub(super) fn is_gone(&mut self, index: usize, sent: Sent) -> bool {
        let refused = self.table.at(index).map_or(0, |c| c.life().refused);
        refused >= REFUSED_MAX || sent == Sent::TooSmall
    }

    /// Decides when the connection is served next. `moved` tells whether this service has moved
    /// something.
    pub(super) fn schedule(&mut self, index: usize, now: NicTime, sent: Sent, moved: bool) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let mut rest = c.life().rest;
        if rest.begins(now, moved, || c.spare() >= SPARE_MIN) {
            c.shrink();
        }
        c.life_mut().rest = rest;
        if let Some(at) = wake_at(c) {
            self.turns.timers.set(index, at);
        }
        let at = match sent {
            Sent::CrowdedOut => {
                self.turns.no_later(now.plus(BLOCKED));
                let queued = &mut c.life_mut().queued;
                return self.turns.mark_crowded_out(index, queued);
            }
            Sent::Blocked => now.plus(BLOCKED),
            Sent::More => now,
            _ if c.life().pending || c.has_more() || c.life().queued => now,
            _ => return,
        };
        self.mark(index);
        self.turns.no_later(at);
    }
}

/// When a connection must be served although no packet comes.
fn wake_at(c: &impl Carried) -> Option<NicTime> {
    NicTime::earliest([c.wake_at(), c.life().rest.look_at()])
}

/// Adds packets of a connection to an empty batch, `most` at most. Returns whether there may be
/// more.
fn fill<C: Carried>(
    c: &mut C,
    most: usize,
    now: NicTime,
    batch: &mut Batch,
    data: &mut Datapath<'_>,
    events: &mut VecDeque<TransportEvent>,
) -> Result<bool, EngineFailed> {
    debug_assert!(batch.is_empty());
    while batch.len() < most {
        match c.append(now, batch, data, events) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(failed) => {
                batch.clear();
                return Err(failed);
            }
        }
    }
    Ok(true)
}
