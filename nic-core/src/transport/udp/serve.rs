//! The service of sessions: packets in, bytes in both directions, packets out, events from what has
//! happened.
//!
//! A message goes to its session while it lies in the port. Requests and answers wait for the step.

use std::net::{SocketAddr, SocketAddrV4};

use ringbell_nic_abi::Status;

use super::answer::{Answer, ControlMessage};
use super::conn::reset_by;
use super::conn::{Arrived, Conn, Fin};
use super::requests::flow_to;
use super::{UdpTransport, GAPS_KEPT};
use crate::datapath::Datapath;
use crate::engine::EngineFailed;
use crate::network::{Headers, Link, Network, Packet, Protocol};
use crate::transport::carried::Carried;
use crate::transport::carrier::{Carrier, CONTROL_MAX};
use crate::transport::life::Phase;
use crate::transport::sessions::Sessions;
use crate::transport::turns::Sent;
use crate::transport::TransportEvent;
use crate::types::{ConnId, NicTime};
use ringbell_net::wire::accl::{Gap, Kind, Signature};

impl Carrier for UdpTransport {
    const NAME: &'static str = "udp";
    const PROTOCOL: Protocol = Protocol::Udp;
    type Conn = Conn;

    fn parts(&self) -> &Sessions<Conn> {
        &self.sessions
    }

    fn sessions(&mut self) -> &mut Sessions<Conn> {
        &mut self.sessions
    }

    fn dial(&mut self, addresses: (SocketAddrV4, SocketAddrV4)) -> Option<ConnId> {
        let numbers = self.draw();
        let config = &self.config;
        let Sessions { table, lender, .. } = &mut self.sessions;
        table.insert(|id| Conn::new(id, addresses, numbers, Phase::Resolving, config, lender))
    }

    fn take(&mut self, _: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) {
        if let Headers::Udp(frame) = &packet.headers {
            match Signature::parse(&packet.frame[frame.payload_at..frame.end]) {
                Ok((signature, payload)) => {
                    self.take_message((packet.from, frame.src), (&signature, payload), data);
                }
                Err(_) => self.counters.invalid += 1,
            }
        }
    }

    fn has_control(&self) -> bool {
        !self.control.is_empty() || !self.answers.is_empty()
    }

    fn read_control(&mut self, now: NicTime, net: &mut Network) -> bool {
        self.read_requests(now, net)
    }

    fn send_answers(&mut self, now: NicTime, net: &mut Network) {
        self.answer_all(now, net);
    }

    fn request(&mut self, index: usize, link: Link, net: &mut Network) -> Option<Kind> {
        let peer = *self.sessions.table.at(index)?.life.peer.ip();
        let terms = self.terms(net, link.port, peer);
        let c = self.sessions.table.at(index)?;
        c.rx.terms = terms;
        c.far.flow = flow_to(net, link.port, peer);
        Some(Kind::Connect {
            port: c.life.peer.port(),
            source_port: c.life.local.port(),
            terms,
        })
    }

    fn address(c: &Conn, _: &Network) -> SocketAddr {
        c.far.flow.to
    }

    /// Ends a session from which messages are missing; else gives what has arrived to receives.
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
        let mut moved = false;
        match c.life.phase {
            Phase::Open => {
                // Nothing follows the missing messages: what came before them is right.
                moved |= c.pump_recvs(data, &mut s.events);
                if c.rx.peer_fin && !c.life.peer_closed {
                    c.life.peer_closed = true;
                    let conn = c.life.id;
                    s.events.push_back(TransportEvent::PeerClosed { conn });
                    c.pump_recvs(data, &mut s.events);
                    moved = true;
                }
            }
            // The program no longer reads.
            Phase::Closing => {
                let waiting = c.rx.ring.end() - c.rx.ring.start();
                c.rx.ring.take(waiting as usize);
            }
            _ => return Ok(false),
        }
        if let Some(failed) = c.rx.failed.take() {
            return Err(failed);
        }
        if let Some(gap) = c.rx.gap {
            self.counters.gaps += 1;
            let (peer, Gap { expected, got }) = (c.life.peer, gap);
            tracing::warn!(
                %peer, expected, got,
                "messages of the peer are missing, from the expected number up to the one that came; transport udp sends none again, so the session is reset. Use rdma or tcp over this network"
            );
            self.answers.extend(Answer::disconnect(c));
            self.broken(index, Some(gap));
            return Ok(true);
        }
        Ok(moved)
    }

    fn report(&mut self, index: usize, now: NicTime, sent: Sent) -> bool {
        let is_gone = self.sessions.is_gone(index, sent);
        let Some(c) = self.sessions.table.at(index) else {
            return false;
        };
        let is_silent = !c.probe(now, (self.config.watch, self.config.give_up));
        match c.life.phase {
            Phase::Open | Phase::Closing if is_silent || is_gone => {
                let peer = c.life.peer;
                match is_silent {
                    true => tracing::warn!(
                        %peer,
                        "the peer has answered nothing for {:?}; the session is reset",
                        self.config.give_up
                    ),
                    false => tracing::debug!(%peer, ?sent, "reset"),
                }
                self.broken(index, None);
            }
            Phase::Closing if c.tx.fin == Fin::Sent && c.tx.is_confirmed() => {
                self.sessions.closed(index, now);
            }
            // Both directions have ended, and the peer was told.
            Phase::Orphan if c.rx.peer_fin && !c.rx.answer => self.free(index),
            // The peer still sends, and nothing reads (RFC 1122 §4.2.2.13).
            Phase::Orphan
                if !c.rx.ring.is_empty() || c.rx.gap.is_some() || is_silent || is_gone =>
            {
                self.reject(index);
            }
            _ => return false,
        }
        true
    }

    fn cut_off(&mut self, index: usize) {
        self.broken(index, None);
    }

    fn end_by_engine(&mut self, index: usize, failed: EngineFailed) {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return;
        };
        c.fail_all(failed.status(), &mut s.events);
        self.answers.extend(Answer::disconnect(c));
        self.broken(index, None);
    }

    /// A peer that may not know that the session ends is told so once.
    fn reject(&mut self, index: usize) {
        if let Some(c) = self.sessions.table.at(index) {
            self.answers.extend(Answer::disconnect(c));
        }
        self.free(index);
    }

    fn freed(&mut self, c: &mut Conn) {
        if let Some(gap) = c.gap() {
            if self.gaps.len() == GAPS_KEPT {
                self.gaps.pop_front();
            }
            self.gaps.push_back((c.end(), gap));
        }
    }
}

impl UdpTransport {
    /// The session has ended: the peer is gone, has reset it, or messages are missing.
    fn broken(&mut self, index: usize, gap: Option<Gap>) {
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        let end = c.life.end(reset_by(gap).1);
        let is_closing = self.sessions.dead(index, end);
        if let Some(c) = self.sessions.table.at(index) {
            (c.ended_by, c.life.deadline, c.probes.next) = (gap, None, None);
        }
        if is_closing {
            self.free(index);
        }
    }

    /// The peer says that the session has ended.
    fn reset(&mut self, index: usize, gap: Option<Gap>) {
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        match c.life.phase {
            Phase::Open | Phase::Closing => {
                if let Some(Gap { expected, got }) = gap {
                    let peer = c.life.peer;
                    tracing::warn!(
                        %peer, expected, got,
                        "messages to the peer were lost, from the number that it expected up to the one that came; transport udp sends none again, so the session is reset. Use rdma or tcp over this network"
                    );
                }
                self.broken(index, gap);
            }
            Phase::Incoming(_) | Phase::Orphan | Phase::Ending => self.free(index),
            Phase::Resolving | Phase::Requesting | Phase::Dead => {}
        }
    }

    /// Takes a message.
    fn take_message(
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
            if self.control.len() < CONTROL_MAX {
                self.control.push_back(ControlMessage {
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
            let is_known = c.far.end == signature.from || c.life.phase == Phase::Requesting;
            c.tag == signature.to.tag && is_known && c.far.flow.to == from.1
        };
        let Some(phase) = self
            .sessions
            .table
            .at(index)
            .filter(is_it)
            .map(|c| c.life.phase)
        else {
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
                self.fail_connect(index, status, Some(0));
            }
            (Kind::Reset(gap), _) => self.reset(index, *gap),
            // It has not got our reset.
            (Kind::Probe(_), Phase::Dead) => {
                let gap = self.sessions.table.at(index).and_then(|c| c.gap());
                self.reply(from, signature, Kind::Reset(gap));
            }
            (Kind::Accept(_) | Kind::Refuse { .. } | Kind::Connect { .. }, _)
            | (_, Phase::Resolving | Phase::Requesting | Phase::Dead) => {}
            _ => {
                self.sessions.established(index);
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
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        let had_receive = !c.life.recvs.is_empty();
        match c.take(signature, payload, data, &mut self.sessions.events) {
            Arrived::Taken => {}
            Arrived::Again => self.counters.duplicates += 1,
            Arrived::Rejected => {
                self.counters.invalid += 1;
                self.answers.extend(Answer::disconnect(c));
                return self.reset(index, None);
            }
        }
        self.sessions.received(index, had_receive);
        self.sessions.mark(index);
    }
}
