//! The service of connections: packets in, bytes in both directions, packets out, events from what
//! has happened.
//!
//! A packet goes to its queue pair while it lies in the port, when it is whole and of the right
//! peer. All else waits for the step: acknowledgements of many packets are one.

use std::net::{SocketAddr, SocketAddrV4};

use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_PKEY_DEFAULT};
use ringbell_nic_abi::RoceOpcode;

use super::conn::Conn;
use super::stream::{Fin, PLACED_MIN};
use super::terms::ControlMessage;
use super::{one_sided, RdmaTransport, STREAMED_MAX};
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
use ringbell_net::port::Places;
use ringbell_net::wire::frame::UdpFrame;
use ringbell_net::wire::roce::cm::Message;
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::roce::packet::{open, Head};
use ringbell_net::wire::roce::{self, Bth, Extended, Invalid, Qpn, ICRC_BYTES};
use ringbell_net::wire::udp::MARKED;
use ringbell_roce::qp::{Client, QueuePair, WorkStatus};

/// Bits of a partition key that name the partition.
const PARTITION: u16 = 0x7fff;

impl Carrier for RdmaTransport {
    const NAME: &'static str = "rdma";
    const PROTOCOL: Protocol = Protocol::Roce;
    const EXPOSES: Option<u64> = Some(STREAMED_MAX);
    const ONE_SIDED: bool = true;
    type Conn = Conn;

    fn parts(&self) -> &Sessions<Conn> {
        &self.sessions
    }

    fn sessions(&mut self) -> &mut Sessions<Conn> {
        &mut self.sessions
    }

    fn dial(&mut self, addresses: (SocketAddrV4, SocketAddrV4)) -> Option<ConnId> {
        let names = self.names(0, Qpn::default(), None);
        let config = &self.config;
        let Sessions { table, lender, .. } = &mut self.sessions;
        table.insert(|id| Conn::new(id, names, addresses, Phase::Resolving, config, lender))
    }

    fn take(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) {
        if let Headers::Udp(frame) = &packet.headers {
            let bytes = &packet.frame[frame.payload_at..frame.end];
            let taken = match packet.placed {
                Some(places) => self.take_placed(now, frame, (places, bytes), data),
                None => self.take_packet(now, packet.from, frame, bytes, data),
            };
            if taken.is_err() {
                self.counters.invalid += 1;
            }
        }
    }

    fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    fn read_control(&mut self, now: NicTime, net: &mut Network) -> bool {
        self.read_management(now, net)
    }

    fn close_orphans(&mut self) {
        let conns = self.sessions.table.iter();
        let orphans = conns.filter(|(_, c)| c.life.phase == Phase::Orphan);
        let orphans: Vec<_> = orphans.map(|(i, c)| (i, c.has_lost_nothing())).collect();
        for (index, in_order) in orphans {
            self.part(index, in_order);
        }
    }

    fn request(&mut self, index: usize, link: Link, net: &mut Network) -> Option<Message> {
        self.request_for(index, link.port, net)
    }

    fn address(c: &Conn, net: &Network) -> SocketAddr {
        match (c.life.phase, c.life.hop) {
            // Its addresses are agreed later.
            (Phase::Requesting, Some(hop)) => net.flow(net.port_of(hop), 0, *c.life.peer.ip()).to,
            _ => c.wire.flow.to,
        }
    }

    fn bytes(
        &mut self,
        index: usize,
        now: NicTime,
        data: &mut Datapath<'_>,
    ) -> Result<bool, EngineFailed> {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return Ok(false);
        };
        c.expire(now, data, &mut s.events);
        let mut moved = false;
        match c.life.phase {
            Phase::Open => {
                if c.stream.peer_fin && !c.life.peer_closed {
                    c.life.peer_closed = true;
                    let conn = c.life.id;
                    s.events.push_back(TransportEvent::PeerClosed { conn });
                    moved = true;
                }
                moved |= c.pump_recvs(data, &mut s.events);
            }
            // The program no longer reads.
            Phase::Closing => {
                let waiting = c.stream.rx.end() - c.stream.rx.start();
                c.stream.rx.take(waiting as usize);
            }
            _ => return Ok(false),
        }
        if let Some(failed) = c.stream.failed.take() {
            return Err(failed);
        }
        moved |= c.pump_sends(data, &mut s.events)?;
        let ends = c.stream.fin == Fin::Wanted && c.life.sends.unsent().is_none();
        if ends && !c.life.sends.finish(data)? {
            // What an engine has kept for the end.
            moved |= c.pump_sends(data, &mut s.events)?;
        }
        Ok(moved)
    }

    fn report(&mut self, index: usize, now: NicTime, sent: Sent) -> bool {
        let is_gone = self.sessions.is_gone(index, sent);
        let any = self.report_end(index, now, is_gone);
        self.probe(index, now);
        any
    }

    fn cut_off(&mut self, index: usize) {
        self.broken(index);
    }

    fn end_by_engine(&mut self, index: usize, failed: EngineFailed) {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return;
        };
        c.fail_all(failed.status(), &mut s.events);
        self.broken(index);
    }

    fn reject(&mut self, index: usize) {
        self.part(index, false);
    }

    fn freed(&mut self, c: &mut Conn) {
        c.cut(&mut self.sessions.events);
        let all = &mut self.counters;
        for n in [c.qp.counters(), c.one_sided.counters()] {
            all.repeated += n.repeated;
            all.out_of_order += n.out_of_order;
            all.duplicates += n.duplicates;
            all.not_ready += n.not_ready;
            all.timeouts += n.timeouts;
        }
    }

    fn unanswered(&mut self, index: usize) {
        match self.sessions.table.at(index) {
            Some(c) if c.life.phase == Phase::Dead => (*c.ask(), c.finished) = (None, true),
            _ => self.free(index),
        }
    }
}

impl RdmaTransport {
    /// Events of a connection that has ended, or whose peer `is_gone`.
    fn report_end(&mut self, index: usize, now: NicTime, is_gone: bool) -> bool {
        let Some(c) = self.sessions.table.at(index) else {
            return false;
        };
        let is_gone = is_gone && !c.finished;
        let is_cut = c.has_failed() && !c.finished;
        match c.life.phase {
            Phase::Open | Phase::Closing if is_gone || is_cut => {
                let peer = c.life.peer;
                match c.stream.error.or(c.one_sided.error()) {
                    Some(WorkStatus::RetryExceeded) => tracing::warn!(
                        %peer,
                        "the peer acknowledged nothing for {:?} (RETRY_EXC); the connection is reset",
                        self.config.give_up
                    ),
                    error => tracing::debug!(%peer, ?error, is_gone, "reset"),
                }
                self.broken(index);
            }
            Phase::Closing if c.stream.fin == Fin::Done => self.sessions.closed(index, now),
            // The peer has ended its direction as well; or it still sends, and nothing reads (RFC
            // 1122 §4.2.2.13).
            Phase::Orphan
                if c.stream.peer_fin
                    || !c.stream.rx.is_empty()
                    || c.one_sided.is_asked()
                    || is_gone
                    || is_cut =>
            {
                self.reject(index);
            }
            _ => return false,
        }
        true
    }

    /// The peer is gone, or has reset the connection.
    pub(super) fn broken(&mut self, index: usize) {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return;
        };
        let end = c.life.end(0);
        c.cut(&mut s.events);
        if s.dead(index, end) {
            return self.reject(index);
        }
        // The id stays until it is closed; a peer that lives hears of it now.
        if let Some(c) = s.table.at(index).filter(|c| !c.finished) {
            *c.ask() = Some(c.disconnect(false));
            s.mark(index);
        }
    }

    /// Asks a watched peer that owes nothing whether it lives.
    fn probe(&mut self, index: usize, now: NicTime) {
        let Some(every) = self.config.watch else {
            return;
        };
        let Some(c) = self.sessions.table.at(index) else {
            return;
        };
        if !c.life.watched || c.life.phase != Phase::Open {
            return;
        }
        if c.probe_at.is_none_or(|at| at <= now) {
            if c.probe_at.is_some() && c.qp.is_idle() {
                c.stream.probe = true;
                self.sessions.mark(index);
            }
            if let Some(c) = self.sessions.table.at(index) {
                c.probe_at = Some(now.plus(every));
            }
        }
    }
}

impl RdmaTransport {
    /// Takes packets whose payloads are in their places.
    ///
    /// # Errors
    /// [`Invalid`], to be counted.
    fn take_placed(
        &mut self,
        now: NicTime,
        frame: &UdpFrame,
        (places, around): (&Places, &[u8]),
        data: &mut Datapath<'_>,
    ) -> Result<(), Invalid> {
        for (k, around) in around.chunks_exact(places.around()).enumerate() {
            let (head, sum) = around
                .split_last_chunk::<ICRC_BYTES>()
                .ok_or(Invalid::Length)?;
            let headers = head;
            let (bth, rest) = Bth::parse(headers)?;
            let (extended, _) = Extended::parse(bth.opcode, rest)?;
            let head = Head { bth, extended };
            let index = self.sessions.table.find(bth.destination);
            let Some(c) = index.and_then(|i| self.sessions.table.at(i)) else {
                return Ok(());
            };
            if c.wire.icrc {
                let right = places.icrc(k, &flow_of(frame), headers);
                // Those behind it are as if lost.
                right.filter(|right| right == sum).ok_or(Invalid::Icrc)?;
            }
            // A packet is no longer than 64 KiB.
            let len = places.payload() as u32;
            let (qp, mut ends) = c.ends(data, &mut self.sessions.events);
            if qp.placed(now, &head, len, &mut ends) {
                c.life.has_received = true;
                c.life.refused = 0;
                self.counters.in_place += 1;
            }
            if frame.ecn == MARKED {
                c.qp.marked(now);
                self.counters.marked += 1;
            }
            self.sessions.streaming = index;
            if let Some(index) = index {
                self.sessions.mark(index);
            }
        }
        Ok(())
    }

    /// # Errors
    /// [`Invalid`], to be counted.
    fn take_packet(
        &mut self,
        now: NicTime,
        from: Link,
        frame: &UdpFrame,
        bytes: &[u8],
        data: &mut Datapath<'_>,
    ) -> Result<(), Invalid> {
        // Before the CRC: whether it counts depends on the connection.
        let (bth, _) = Bth::parse(bytes)?;
        if bth.partition & PARTITION != ROCE_PKEY_DEFAULT & PARTITION {
            self.counters.foreign += 1;
            return Ok(());
        }
        if bth.destination.value() == QPN_GSI {
            let flow = flow_of(frame);
            let packet = roce::Packet::parse(open(bytes, Some(&flow))?)?;
            let Extended::Datagram(deth) = packet.extended else {
                return Err(Invalid::Opcode);
            };
            let datagram = packet.payload.try_into().map_err(|_| Invalid::Length)?;
            let message = Message::parse(datagram).filter(|_| deth.key == QKEY_GSI);
            let (message, transaction) = message.ok_or(Invalid::Opcode)?;
            if self.control.len() < CONTROL_MAX {
                self.control.push_back(ControlMessage {
                    from,
                    address: frame.src,
                    message,
                    transaction,
                });
            }
            return Ok(());
        }
        let index = self.sessions.table.find(one_sided::stream(bth.destination));
        let conn = index.and_then(|i| self.sessions.table.at(i));
        let Some(c) = conn.filter(|c| c.wire.is_from(frame.src)) else {
            self.counters.foreign += 1;
            return Ok(());
        };
        let flow = c.wire.icrc.then(|| flow_of(frame));
        let packet = roce::Packet::parse(open(bytes, flow.as_ref())?)?;
        let is_marked = frame.ecn == MARKED;
        self.counters.marked += u64::from(is_marked);
        let had_receive = !c.life.recvs.is_empty();
        let useful = match bth.destination == one_sided::stream(bth.destination) {
            true => {
                let (qp, mut ends) = c.ends(data, &mut self.sessions.events);
                take_one(qp, now, &packet, is_marked, &mut ends)
            }
            false => {
                let (qp, mut peer) = c.peer(data, &mut self.sessions.events);
                take_one(qp, now, &packet, is_marked, &mut peer)
            }
        };
        if useful {
            c.life.has_received = true;
            c.life.refused = 0;
        }
        let is_long = packet.payload.len() >= PLACED_MIN as usize;
        if !c.stream.exposed.is_empty()
            || (is_long && bth.destination == one_sided::stream(bth.destination))
        {
            self.sessions.streaming = index;
        } else if bth.opcode == RoceOpcode::SendOnly {
            self.sessions.streaming = None;
        }
        if let Some(index) = index {
            self.sessions.received(index, had_receive);
            self.sessions.mark(index);
        }
        Ok(())
    }
}

/// Gives a packet to its queue pair, and its mark.
fn take_one(
    qp: &mut QueuePair,
    now: NicTime,
    packet: &roce::Packet<'_>,
    is_marked: bool,
    client: &mut dyn Client,
) -> bool {
    let useful = qp.receive(now, packet, client);
    if is_marked {
        qp.marked(now);
    }
    useful
}

/// The addresses of a packet that has arrived.
fn flow_of(frame: &UdpFrame) -> Flow {
    Flow {
        from: frame.src,
        to: frame.dst,
        fragment: frame.fragment,
    }
}
