//! The service of connections: packets in, bytes in both directions, packets out, events from what has happened.
//!
//! A packet goes to its queue pair while it lies in the port, when it is whole and of the right peer. All else waits for the
//! step: acknowledgements of many packets are one.

use std::time::Duration;

use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_PKEY_DEFAULT};
use ringbell_nic_abi::{RoceOpcode, Status};

use super::conn::Phase;
use super::manage::{Letter, AROUND};
use super::qp::{Client, QueuePair, WorkStatus};
use super::stream::{Fin, PLACED_MIN};
use super::{one_sided, waiter, RdmaTransport, Unsent};
use crate::datapath::Datapath;
use crate::engine::EngineFailed;
use crate::network::{Datagrams, Headers, Link, Network, Packet, Protocol, Refused, Resolved};
use crate::port::Places;
use crate::transport::turns::Sent;
use crate::transport::{PacketTransport, TransportEvent};
use crate::types::NicTime;
use crate::wire::frame::UdpFrame;
use crate::wire::roce::cm::Message;
use crate::wire::roce::icrc::Flow;
use crate::wire::roce::packet::{open, Head};
use crate::wire::roce::{self, Bth, Extended, Invalid, ICRC_BYTES};
use crate::wire::udp::{ECT0, MARKED};

/// Packets that one service may send.
const BUDGET: usize = 128;
/// How long a connection waits for room in the port before it tries again.
const BLOCKED: Duration = Duration::from_micros(10);
/// How long the peer's FIN may take after a close.
const FIN_WAIT: Duration = Duration::from_secs(60);
/// A peer whose host has refused so many packets in a row is gone.
const REFUSED_MAX: u32 = 3;

/// Messages that wait for a step; a flood beyond is dropped, as if the wire had lost it.
const LETTERS_MAX: usize = 256;
/// Bits of a partition key that name the partition.
const PARTITION: u16 = 0x7fff;

impl RdmaTransport {
    /// Serves each connection that has something to do once. Returns whether anything moved.
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
        if std::mem::take(&mut c.seen.heard) {
            if let Some(hop) = c.hop {
                net.confirm(hop, now);
            }
            self.accept(index);
        }
        let Some(c) = self.table.at(index) else {
            return moved;
        };
        c.expire(now, data, &mut self.events);
        match self.bytes(index, data) {
            Ok(any) => moved |= any,
            Err(failed) => {
                self.end_by_engine(index, failed);
                moved = true;
            }
        }
        let (sent, packets) = self.send_packets(index, now, net, data);
        moved |= packets > 0;
        moved |= self.report(index, now, sent);
        self.probe(index, now);
        self.schedule(index, now, sent);
        moved
    }

    /// Continues a handshake, or abandons it.
    fn handshake(&mut self, index: usize, now: NicTime, net: &mut Network) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let late = c.deadline.is_some_and(|d| d <= now);
        match c.phase {
            Phase::Resolving => {
                let known = c.hop;
                let peer = *c.peer.ip();
                let hop = match known {
                    Some(hop) => hop,
                    None => {
                        self.table.release_hops(net, Protocol::Roce);
                        match net.hop_to(Protocol::Roce, peer, None, now) {
                            Ok(hop) => hop,
                            Err(status) => {
                                self.fail_connect(index, status);
                                return true;
                            }
                        }
                    }
                };
                let Some(c) = self.table.at(index) else {
                    return false;
                };
                c.hop = Some(hop);
                if net.link(hop).is_none() {
                    if known.is_none() {
                        net.wait(hop, waiter(index), now);
                    }
                    if late {
                        self.fail_connect(index, Status::HostUnreachable);
                    }
                    return late;
                }
                self.request(index, now, net);
            }
            Phase::Requesting if late => self.fail_connect(index, Status::TimedOut),
            Phase::Incoming(listener) if late => {
                self.listeners.handshake_over(listener, false);
                self.free(index);
            }
            Phase::Orphan if late => self.dismiss(index),
            Phase::Ending if c.ask.is_some_and(|a| a.has_failed(now)) => self.free(index),
            Phase::Dead if c.ask.is_some_and(|a| a.has_failed(now)) => {
                (c.ask, c.seen.finished) = (None, true);
            }
            _ => {}
        }
        if !self.ask(index, now, net) {
            if let Some(ask) = self.table.at(index).and_then(|c| c.ask.as_mut()) {
                ask.next = now.plus(BLOCKED);
            }
        }
        false
    }

    /// Moves bytes between operations and rings.
    ///
    /// # Errors
    /// An engine on the path has failed.
    fn bytes(&mut self, index: usize, data: &mut Datapath<'_>) -> Result<bool, EngineFailed> {
        let Some(c) = self.table.at(index) else {
            return Ok(false);
        };
        let mut moved = false;
        match c.phase {
            Phase::Open => {
                if c.stream.peer_fin && !c.seen.peer_closed {
                    c.seen.peer_closed = true;
                    let conn = c.id;
                    self.events.push_back(TransportEvent::PeerClosed { conn });
                    moved = true;
                }
                moved |= c.pump_recvs(data, &mut self.events);
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
        moved |= c.pump_sends(data, &mut self.events)?;
        if c.stream.fin == Fin::Wanted && c.sends.unsent().is_none() && !c.sends.finish(data)? {
            // What an engine has kept for the end.
            moved |= c.pump_sends(data, &mut self.events)?;
        }
        Ok(moved)
    }

    /// Sends packets while windows, port and budget allow it.
    fn send_packets(
        &mut self,
        index: usize,
        now: NicTime,
        net: &mut Network,
        data: &mut Datapath<'_>,
    ) -> (Sent, usize) {
        let Some(c) = self.table.at(index) else {
            return (Sent::All, 0);
        };
        let (Some(hop), true) = (c.hop, c.qp.state().answers()) else {
            return (Sent::All, 0);
        };
        let Some(link) = net.link(hop) else {
            return (Sent::All, 0);
        };
        let (peer, wire) = (*c.peer.ip(), c.wire);
        // What a port takes as one.
        let most = net.segmentation(link.port).packets;
        let how = Datagrams {
            ecn: ECT0,
            segmented: wire.segmented,
        };
        let mut packets = 0;
        let sent = loop {
            if packets >= BUDGET {
                break Sent::More;
            }
            c.one_sided.post_requests();
            // The end of the stream waits for what an engine has kept, and for one-sided operations.
            let ends_now = c.stream.fin == Fin::Wanted
                && c.one_sided.is_idle()
                && c.sends.unsent().is_none()
                && c.sends.finish(data) == Ok(true);
            while c.qp.room() > 0 {
                let Some(work) = c.stream.next_work(wire.mtu, ends_now) else {
                    break;
                };
                let posted = c.qp.post(work);
                debug_assert!(posted, "a queue pair with room takes work");
            }
            if self.unsent.is_some() || !net.has_room(now, link) {
                break Sent::Blocked;
            }
            if net.payload_to(link.port, peer) < AROUND + wire.mtu as usize {
                break Sent::TooSmall;
            }
            let batch = &mut self.batch;
            batch.clear();
            let mut more = true;
            while more && batch.len() < most.min(BUDGET) {
                more = c.append(now, batch, data, &mut self.events);
                if more {
                    batch.seal(wire.icrc.then_some(&wire.flow));
                    batch.end();
                }
            }
            packets += batch.len();
            let taken = match batch.is_empty() {
                true => 0,
                false => net.send(now, link, &wire.flow, &how, batch, 0),
            };
            if taken < batch.len() {
                batch.own_from(taken);
                let flow = wire.flow;
                self.unsent = Some(Unsent { link, flow, how });
                break Sent::Blocked;
            }
            if !more {
                break Sent::All;
            }
        };
        if packets > 0 {
            net.probe_stale(hop, now);
        }
        (sent, packets)
    }

    /// Sends the packets for which there was no room. `false`: there is none yet.
    fn send_again(&mut self, now: NicTime, net: &mut Network) -> bool {
        let Some(u) = &self.unsent else {
            return true;
        };
        let taken = net.send(now, u.link, &u.flow, &u.how, &self.batch, 0);
        if taken < self.batch.len() {
            self.batch.own_from(taken);
            return false;
        }
        self.unsent = None;
        true
    }

    /// Events from what has happened to the queue pair and the stream.
    fn report(&mut self, index: usize, now: NicTime, sent: Sent) -> bool {
        let Some(c) = self.table.at(index) else {
            return false;
        };
        let is_gone =
            (c.probes.refused >= REFUSED_MAX || sent == Sent::TooSmall) && !c.seen.finished;
        let is_cut = c.has_failed() && !c.seen.finished;
        let conn = c.id;
        match c.phase {
            Phase::Open | Phase::Closing if is_gone || is_cut => {
                match c.stream.error.or(c.one_sided.error()) {
                    Some(WorkStatus::RetryExceeded) => tracing::warn!(
                        peer = %c.peer,
                        "the peer acknowledged nothing for {:?} (RETRY_EXC); the connection is reset",
                        self.config.give_up
                    ),
                    error => tracing::debug!(peer = %c.peer, ?error, ?sent, "reset"),
                }
                self.broken(index);
                true
            }
            Phase::Closing if c.stream.fin == Fin::Done => {
                self.events.push_back(TransportEvent::Closed { conn });
                c.phase = Phase::Orphan;
                c.deadline = Some(now.plus(FIN_WAIT));
                self.mark(index);
                true
            }
            // The peer has ended its direction as well; or it still sends, and nothing reads (RFC 1122 §4.2.2.13).
            Phase::Orphan
                if c.stream.peer_fin
                    || !c.stream.rx.is_empty()
                    || c.one_sided.is_asked()
                    || is_gone
                    || is_cut =>
            {
                self.dismiss(index);
                true
            }
            _ => false,
        }
    }

    /// The peer is gone, or has reset the connection.
    pub(super) fn broken(&mut self, index: usize) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let (conn, is_closing) = (c.id, c.phase == Phase::Closing);
        c.cut(&mut self.events);
        c.fail_all((Status::ConnectionReset, 0), &mut self.events);
        c.phase = Phase::Dead;
        self.events.push_back(TransportEvent::Reset { conn });
        if is_closing {
            self.events.push_back(TransportEvent::Closed { conn });
            return self.dismiss(index);
        }
        // The id stays until it is closed; a peer that lives hears of it now.
        if !c.seen.finished {
            c.ask = Some(c.goodbye(false));
            self.mark(index);
        }
    }

    /// The engine that changes this stream has failed: it ends here as by a reset, and the peer is told.
    fn end_by_engine(&mut self, index: usize, failed: EngineFailed) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        c.fail_all(failed.status(), &mut self.events);
        self.broken(index);
    }

    /// Asks a watched peer that owes nothing whether it lives.
    fn probe(&mut self, index: usize, now: NicTime) {
        let Some(every) = self.config.watch else {
            return;
        };
        let Some(c) = self.table.at(index) else {
            return;
        };
        if !c.probes.watched || c.phase != Phase::Open {
            return;
        }
        if c.probes.next.is_none_or(|at| at <= now) {
            if c.probes.next.is_some() && c.qp.is_idle() {
                c.stream.probe = true;
                self.mark(index);
            }
            if let Some(c) = self.table.at(index) {
                c.probes.next = Some(now.plus(every));
            }
        }
    }

    /// Decides when the connection is served next.
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
            _ if c.seen.pending || c.one_sided.take_pending() || c.seen.queued => now,
            _ => return,
        };
        self.mark(index);
        self.turns.no_later(at);
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
            let index = self.table.find(bth.destination);
            let Some(c) = index.and_then(|i| self.table.at(i)) else {
                return Ok(());
            };
            if c.wire.icrc {
                let right = places.icrc(k, &flow_of(frame), headers);
                // Those behind it are as if lost.
                right.filter(|right| right == sum).ok_or(Invalid::Icrc)?;
            }
            // A packet is no longer than 64 KiB.
            let len = places.payload() as u32;
            let (qp, mut ends) = c.ends(data, &mut self.events);
            if qp.placed(now, &head, len, &mut ends) {
                c.seen.heard = true;
                c.probes.refused = 0;
                self.counters.in_place += 1;
            }
            if frame.ecn == MARKED {
                c.qp.marked(now);
                self.counters.marked += 1;
            }
            self.streaming = index;
            if let Some(index) = index {
                self.mark(index);
            }
        }
        Ok(())
    }

    /// # Errors
    /// [`Invalid`], to be counted.
    fn take(
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
            if self.letters.len() < LETTERS_MAX {
                self.letters.push_back(Letter {
                    from,
                    address: frame.src,
                    message,
                    transaction,
                });
            }
            return Ok(());
        }
        let index = self.table.find(one_sided::stream(bth.destination));
        let conn = index.and_then(|i| self.table.at(i));
        let Some(c) = conn.filter(|c| c.wire.is_from(frame.src)) else {
            self.counters.foreign += 1;
            return Ok(());
        };
        let flow = c.wire.icrc.then(|| flow_of(frame));
        let packet = roce::Packet::parse(open(bytes, flow.as_ref())?)?;
        let is_marked = frame.ecn == MARKED;
        self.counters.marked += u64::from(is_marked);
        let had_receive = !c.recvs.is_empty();
        let useful = match bth.destination == one_sided::stream(bth.destination) {
            true => {
                let (qp, mut ends) = c.ends(data, &mut self.events);
                take_one(qp, now, &packet, is_marked, &mut ends)
            }
            false => {
                let (qp, mut peer) = c.peer(data, &mut self.events);
                take_one(qp, now, &packet, is_marked, &mut peer)
            }
        };
        // The bytes that follow on a link go into a buffer that its user names when it has read these.
        self.turns.wants_step |= c.probes.watched && had_receive && c.recvs.is_empty();
        if useful {
            c.seen.heard = true;
            c.probes.refused = 0;
        }
        let is_long = packet.payload.len() >= PLACED_MIN as usize;
        if !c.stream.exposed.is_empty()
            || (is_long && bth.destination == one_sided::stream(bth.destination))
        {
            self.streaming = index;
        } else if bth.opcode == RoceOpcode::SendOnly {
            self.streaming = None;
        }
        if let Some(index) = index {
            self.mark(index);
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

impl PacketTransport for RdmaTransport {
    fn protocol(&self) -> Protocol {
        Protocol::Roce
    }

    fn expect(&mut self, places: &mut Places, data: &mut Datapath<'_>) {
        if let Some(c) = self.streaming.and_then(|index| self.table.at(index)) {
            c.expect(places, data);
        }
    }

    fn receive(&mut self, now: NicTime, packet: &Packet<'_>, data: &mut Datapath<'_>) -> bool {
        if let Headers::Udp(frame) = &packet.headers {
            let bytes = &packet.frame[frame.payload_at..frame.end];
            let taken = match packet.placed {
                Some(places) => self.take_placed(now, frame, (places, bytes), data),
                None => self.take(now, packet.from, frame, bytes, data),
            };
            if taken.is_err() {
                self.counters.invalid += 1;
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
        let (mut broken, mut unheard) = (Vec::new(), Vec::new());
        for (index, c) in self.table.iter() {
            let link = c.hop.and_then(|hop| net.link(hop));
            let is_it = match by {
                Refused::Link(by) => link == Some(by),
                Refused::Peer { port, peer } => {
                    let to = match c.phase {
                        // Its addresses are agreed later.
                        Phase::Requesting => net.flow(port, 0, *c.peer.ip()).to,
                        _ => c.wire.flow.to,
                    };
                    to == peer && link.is_some_and(|l| l.port == port)
                }
            };
            if is_it && c.phase == Phase::Requesting {
                unheard.push(index);
            }
            if is_it && matches!(c.phase, Phase::Open | Phase::Closing | Phase::Orphan) {
                c.probes.refused += 1;
                broken.push(index);
            }
        }
        for index in broken {
            self.mark(index);
        }
        // No NIC receives there: an answer, as that of a NIC without a listener.
        for index in unheard {
            self.fail_connect(index, Status::ConnectionRefused);
        }
    }
}
