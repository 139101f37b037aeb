//! The service of sessions: packets in, bytes in both directions, packets out, events from what has happened.
//!
//! A message goes to its session while it lies in the port. Requests and answers wait for the step.

use std::net::SocketAddr;
use std::time::Duration;

use ringbell_nic_abi::Status;

use super::conn::{Arrived, Conn, Fin, Phase};
use super::sessions::{Answer, Letter, BLOCKED, HOW, LETTERS_MAX};
use super::{reset_by, UdpTransport};
use crate::datapath::Datapath;
use crate::engine::EngineFailed;
use crate::network::{Headers, Link, Network, Packet, Protocol, Refused, Resolved};
use crate::transport::turns::Sent;
use crate::transport::{PacketTransport, TransportEvent};
use crate::types::NicTime;
use crate::wire::accl::{Gap, Kind, Signature, SIGNATURE_BYTES};
use crate::wire::roce::icrc::Flow;

/// Messages that one service may send.
const BUDGET: usize = 128;
/// How long the peer's end of the stream may take after a close.
const FIN_WAIT: Duration = Duration::from_secs(60);
/// A peer whose host has refused so many packets in a row is gone.
const REFUSED_MAX: u32 = 3;
/// Whose packets wait for room in a port.
#[derive(Debug)]
pub(super) struct Unsent {
    link: Link,
    flow: Flow,
}

impl UdpTransport {
    /// Serves each session that has something to do once. Returns whether anything moved.
    pub(super) fn serve_ready(
        &mut self,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let mut moved = false;
        let ready = self.turns.begin();
        if !self.send_again(now, net) {
            self.turns.no_later(now.plus(BLOCKED));
        }
        for _ in 0..ready {
            let Some(index) = self.turns.next_ready() else {
                break;
            };
            if let Some(c) = self.table.at(index) {
                c.seen.queued = false;
                moved |= self.serve(index, now, net, data);
            }
        }
        moved
    }

    fn serve(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> bool {
        let mut moved = self.handshake(index, now, net);
        let Some(c) = self.table.at(index) else {
            return moved;
        };
        if let (true, Some(hop)) = (std::mem::take(&mut c.seen.heard), c.hop) {
            net.confirm(hop, now);
        }
        moved |= self.arrived(index, data);
        let sent = match self.send_messages(index, now, net, data) {
            Ok((sent, messages)) => {
                moved |= messages > 0;
                sent
            }
            Err(failed) => {
                self.end_by_engine(index, failed);
                moved = true;
                Sent::All
            }
        };
        moved |= self.report(index, now, sent);
        self.schedule(index, now, sent);
        moved
    }

    /// Ends a session from which messages are missing; else gives what has arrived to receives.
    fn arrived(&mut self, index: usize, data: &mut Datapath<'_>) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let mut moved = false;
        match c.phase {
            Phase::Open => {
                // Nothing follows the missing messages: what came before them is right.
                moved |= c.pump_recvs(data, &mut self.events);
                if c.rx.peer_fin && !c.seen.peer_closed {
                    c.seen.peer_closed = true;
                    let conn = c.id;
                    self.events.push_back(TransportEvent::PeerClosed { conn });
                    c.pump_recvs(data, &mut self.events);
                    moved = true;
                }
            }
            // The program no longer reads.
            Phase::Closing => {
                let waiting = c.rx.ring.end() - c.rx.ring.start();
                c.rx.ring.take(waiting as usize);
            }
            _ => return false,
        }
        if let Some(failed) = c.rx.failed.take() {
            self.end_by_engine(index, failed);
            return true;
        }
        if let Some(gap) = c.rx.gap {
            self.counters.gaps += 1;
            let (peer, Gap { expected, got }) = (c.peer, gap);
            tracing::warn!(
                %peer, expected, got,
                "messages of the peer are missing, from the expected number up to the one that came; transport udp sends none again, so the session is reset. Use rdma or tcp over this network"
            );
            self.answers.extend(Answer::goodbye(c));
            self.broken(index, Some(gap));
            return true;
        }
        moved
    }

    /// Sends messages while credit, port and budget allow it.
    ///
    /// # Errors
    /// An engine on the path has failed.
    fn send_messages(
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
        let is_up = matches!(c.phase, Phase::Open | Phase::Closing | Phase::Orphan);
        let (Some(hop), true) = (c.hop, is_up) else {
            return nothing;
        };
        let Some(link) = net.link(hop) else {
            return nothing;
        };
        let (peer, flow) = (*c.peer.ip(), c.far.flow);
        let most = net.segmentation(link.port).packets.min(BUDGET);
        let mut messages = 0;
        let sent = loop {
            if messages >= BUDGET {
                break Sent::More;
            }
            if self.unsent.is_some() || !net.has_room(now, link) {
                break Sent::Blocked;
            }
            if net.payload_to(link.port, peer) < SIGNATURE_BYTES + c.tx.payload() {
                break Sent::TooSmall;
            }
            let batch = &mut self.batch;
            batch.clear();
            let mut more = true;
            while more && batch.len() < most {
                more = c.append(batch, data, &mut self.events)?;
            }
            messages += batch.len();
            let taken = match batch.is_empty() {
                true => 0,
                false => net.send(now, link, &flow, &HOW, batch, 0),
            };
            if taken < batch.len() {
                batch.own_from(taken);
                self.unsent = Some(Unsent { link, flow });
                break Sent::Blocked;
            }
            if !more {
                break Sent::All;
            }
        };
        if messages > 0 {
            net.probe_stale(hop, now);
        }
        Ok((sent, messages))
    }

    /// Sends the messages for which there was no room. `false`: there is none yet.
    fn send_again(&mut self, now: NicTime, net: &mut Network) -> bool {
        let Some(u) = &self.unsent else {
            return true;
        };
        let taken = net.send(now, u.link, &u.flow, &HOW, &self.batch, 0);
        if taken < self.batch.len() {
            self.batch.own_from(taken);
            return false;
        }
        self.unsent = None;
        true
    }

    /// Events from what has happened to the session.
    fn report(&mut self, index: usize, now: NicTime, sent: Sent) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let patience = (self.config.watch, self.config.give_up);
        let is_silent = !c.probe(now, patience);
        let is_gone = is_silent || c.probes.refused >= REFUSED_MAX || sent == Sent::TooSmall;
        let conn = c.id;
        match c.phase {
            Phase::Open | Phase::Closing if is_gone => {
                match is_silent {
                    true => tracing::warn!(
                        peer = %c.peer,
                        "the peer has answered nothing for {:?}; the session is reset",
                        self.config.give_up
                    ),
                    false => tracing::debug!(peer = %c.peer, ?sent, "reset"),
                }
                self.broken(index, None);
                true
            }
            Phase::Closing if c.tx.fin == Fin::Sent && c.tx.is_confirmed() => {
                self.events.push_back(TransportEvent::Closed { conn });
                c.phase = Phase::Orphan;
                c.deadline = Some(now.plus(FIN_WAIT));
                self.mark(index);
                true
            }
            // Both directions have ended, and the peer was told.
            Phase::Orphan if c.rx.peer_fin && !c.rx.answer => {
                self.free(index);
                true
            }
            // The peer still sends, and nothing reads (RFC 1122 §4.2.2.13).
            Phase::Orphan if !c.rx.ring.is_empty() || c.rx.gap.is_some() || is_gone => {
                self.dismiss(index);
                true
            }
            _ => false,
        }
    }

    /// The session has ended: the peer is gone, has reset it, or messages are missing.
    fn broken(&mut self, index: usize, gap: Option<Gap>) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let (conn, is_closing) = (c.id, c.phase == Phase::Closing);
        c.fail_all(reset_by(gap), &mut self.events);
        c.phase = Phase::Dead(gap);
        (c.ask, c.deadline, c.probes.next) = (None, None, None);
        self.events.push_back(TransportEvent::Reset { conn });
        if is_closing {
            self.events.push_back(TransportEvent::Closed { conn });
            self.free(index);
        }
    }

    /// The engine that changes this stream has failed: it ends here as by a reset, and the peer is told.
    fn end_by_engine(&mut self, index: usize, failed: EngineFailed) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        c.fail_all(failed.status(), &mut self.events);
        self.answers.extend(Answer::goodbye(c));
        self.broken(index, None);
    }

    /// Decides when the session is served next.
    fn schedule(&mut self, index: usize, now: NicTime, sent: Sent) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if let Some(at) = c.wake_at() {
            self.turns.timers.set(index, at);
        }
        let at = match sent {
            Sent::Blocked => now.plus(BLOCKED),
            Sent::More => now,
            _ if c.seen.pending || c.probes.due || c.seen.queued => now,
            _ => return,
        };
        self.mark(index);
        self.turns.no_later(at);
    }

    /// The peer says that the session has ended.
    fn reset(&mut self, index: usize, gap: Option<Gap>) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        match c.phase {
            Phase::Open | Phase::Closing => {
                if let Some(Gap { expected, got }) = gap {
                    let peer = c.peer;
                    tracing::warn!(
                        %peer, expected, got,
                        "messages to the peer were lost, from the number that it expected up to the one that came; transport udp sends none again, so the session is reset. Use rdma or tcp over this network"
                    );
                }
                self.broken(index, gap);
            }
            Phase::Incoming(listener) => {
                self.listeners.handshake_over(listener, false);
                self.free(index);
            }
            Phase::Orphan => self.free(index),
            Phase::Resolving | Phase::Requesting | Phase::Dead(_) => {}
        }
    }

    /// Takes a message.
    fn take(
        &mut self,
        from: (Link, SocketAddr),
        (signature, payload): (&Signature, &[u8]),
        data: &mut Datapath<'_>,
    ) {
        if let Kind::Connect {
            port,
            source_port,
            terms,
        } = signature.kind
        {
            if self.letters.len() < LETTERS_MAX {
                self.letters.push_back(Letter {
                    from: from.0,
                    address: from.1,
                    signature: *signature,
                    ports: (port, source_port),
                    terms,
                });
            }
            return;
        }
        let index = usize::from(signature.to.session);
        let is_it = |c: &&mut Conn| {
            let is_known = c.far.end == signature.from || c.phase == Phase::Requesting;
            c.tag == signature.to.tag && is_known && c.far.flow.to == from.1
        };
        let Some(phase) = self.table.at(index).filter(is_it).map(|c| c.phase) else {
            self.counters.foreign += 1;
            // Its sender may have missed that the session ended, or this NIC is another one by now.
            if matches!(
                signature.kind,
                Kind::Data(_) | Kind::End(_) | Kind::Probe(_)
            ) {
                let gap = self.gap_of_freed(signature.to);
                self.reply(from, signature, Kind::Reset(gap));
            }
            return;
        };
        match (&signature.kind, phase) {
            (Kind::Accept(terms), Phase::Requesting | Phase::Open) => {
                self.accepted(index, signature, terms);
            }
            (Kind::Refuse { no_listener }, Phase::Requesting) => {
                let status = match no_listener {
                    true => Status::ConnectionRefused,
                    false => Status::NoResources,
                };
                self.fail_connect(index, status);
            }
            (Kind::Reset(gap), _) => self.reset(index, *gap),
            // It has not got our reset.
            (Kind::Probe(_), Phase::Dead(gap)) => {
                self.reply(from, signature, Kind::Reset(gap));
            }
            (Kind::Accept(_) | Kind::Refuse { .. } | Kind::Connect { .. }, _)
            | (_, Phase::Resolving | Phase::Requesting | Phase::Dead(_)) => {}
            _ => {
                self.established(index);
                self.take_one(index, (signature, payload), data);
            }
        }
    }

    /// Takes a message of an open session.
    fn take_one(
        &mut self,
        index: usize,
        (signature, payload): (&Signature, &[u8]),
        data: &mut Datapath<'_>,
    ) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let had_receive = !c.recvs.is_empty();
        match c.take(signature, payload, data, &mut self.events) {
            Arrived::Taken => {}
            Arrived::Again => self.counters.duplicates += 1,
            Arrived::Rejected => {
                self.counters.invalid += 1;
                self.answers.extend(Answer::goodbye(c));
                return self.reset(index, None);
            }
        }
        // The bytes that follow on a link go into a buffer that its user names when it has read these.
        self.turns.wants_step |= c.probes.watched && had_receive && c.recvs.is_empty();
        self.mark(index);
    }
}

impl PacketTransport for UdpTransport {
    fn protocol(&self) -> Protocol {
        Protocol::Udp
    }

    fn receive(&mut self, _: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) -> bool {
        if let Headers::Udp(frame) = &packet.headers {
            match Signature::parse(&packet.frame[frame.payload_at..frame.end]) {
                Ok((signature, payload)) => {
                    self.take((packet.from, frame.src), (&signature, payload), data);
                }
                Err(_) => self.counters.invalid += 1,
            }
        }
        // The next step sends what follows.
        false
    }

    fn wants_step(&mut self) -> bool {
        std::mem::take(&mut self.turns.wants_step)
    }

    fn answer(&mut self, _: NicTime, _: &mut Network) {}

    fn resolved(&mut self, index: usize, outcome: Resolved) {
        match outcome {
            Resolved::Known => self.mark(index),
            Resolved::Failed => self.fail_connect(index, Status::HostUnreachable),
        }
    }

    fn refused(&mut self, _: NicTime, by: Refused, net: &Network) {
        let mut broken = Vec::new();
        for (index, c) in self.table.iter() {
            let link = c.hop.and_then(|hop| net.link(hop));
            let is_it = match by {
                Refused::Link(by) => link == Some(by),
                Refused::Peer { port, peer } => {
                    c.far.flow.to == peer && link.is_some_and(|l| l.port == port)
                }
            };
            if is_it && matches!(c.phase, Phase::Open | Phase::Closing | Phase::Orphan) {
                c.probes.refused += 1;
                broken.push(index);
            }
        }
        for index in broken {
            self.mark(index);
        }
    }
}
