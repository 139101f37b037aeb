//! Reception of frames: to their connection, to a [listener](crate::transport::connections), or
//! answered by the transport itself.

use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{
    IpAddress, IpListenEndpoint, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr,
    TcpSeqNumber,
};

use super::compose::emit;
use super::conn::Conn;
use super::device::Reply;
use super::isn::Options;
use super::key::Key;
use super::sequence::is_before;
use super::smoltcp_gaps::acceptance::{challenge, judge, Verdict};
use super::smoltcp_gaps::closed_window::sequence_of_ack;
use super::smoltcp_gaps::forged::replay_syn;
use super::smoltcp_gaps::partial_ack::{leaves_a_hole, recover};
use super::smoltcp_gaps::socket::{is_synchronized, TcpSocket};
use super::{waiter, After, Rest, TcpTransport};
use crate::datapath::Datapath;
use crate::network::{Headers, Link, Network, Packet, Protocol, Refused, Resolved};
use crate::transport::connections::index_of;
use crate::transport::life::Phase;
use crate::transport::{PacketTransport, Then, TransportEvent};
use crate::types::{ListenerId, NicTime};
use ringbell_net::wire::frame::{set_acknowledgement, set_sequence, TcpFrame};
use ringbell_net::wire::ETHERNET_HEADER;

/// A handshake that is not over after this long is dropped: 10 s.
const HANDSHAKE_NS: u64 = 10_000_000_000;
/// smoltcp's size of segments for a peer that names none (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;
/// How far a reused port begins beyond its last connection's numbers: more than a window without
/// scale.
const BEYOND: u32 = 1 << 17;

/// What a SYN needs to be answered.
struct Door {
    id: ListenerId,
    local: SocketAddrV4,
    peer: SocketAddrV4,
    from: Link,
}

impl PacketTransport for TcpTransport {
    fn receive(&mut self, now: NicTime, packet: &Packet<'_>, _: &mut Datapath<'_>) -> Then {
        let Packet {
            from,
            headers: Headers::Tcp(seg),
            frame,
            ..
        } = packet
        else {
            return Then::Next;
        };
        self.stack.reply.len = 0;
        let (mut hole, mut known) = (None, None);
        let found = self
            .table
            .find(Key::new(seg.src, seg.src_port, seg.dst_port));
        let conn = found.and_then(|i| Some((i, self.table.at(i)?)));
        let listening = seg.opens && self.listeners.at(seg.dst_port).is_some();
        // A SYN of the old connection may still be under way (RFC 1122 §4.2.2.13).
        let is_new = |c: &Conn| {
            c.tcp
                .next_expected()
                .is_some_and(|n| !is_before(seg.seq, n))
        };
        let reopens = |c: &Conn| {
            listening && c.life.is_orphan() && c.tcp.state() == State::TimeWait && is_new(c)
        };
        let what = match conn {
            Some((_, c)) if c.tcp.broken => return Then::Next,
            Some((index, c)) if !reopens(c) => {
                known = c.life.hop;
                let verdict = judge(&c.tcp, seg);
                match verdict {
                    Verdict::Challenge => Rest::Challenge(index),
                    Verdict::Drop => return Then::Next,
                    Verdict::Take | Verdict::TakeWithoutAck => {
                        c.life.has_received = true;
                        let before = c.tcp.state();
                        let resets = seg.rst && before != State::Closed;
                        let packet = &frame[ETHERNET_HEADER..seg.end];
                        let packet = as_shown(&mut c.tcp, verdict, seg, packet, &mut self.scratch);
                        self.stack.receive(&mut c.tcp, now, packet);
                        c.tcp.took(end_of(seg, frame));
                        c.tcp.reset |= resets && c.tcp.state() == State::Closed;
                        if resets && before == State::TimeWait {
                            // Both sides had ended, perhaps in segments received just now: no byte
                            // is missing.
                            c.last_state = before;
                        }
                        if leaves_a_hole(&mut c.tcp, seg) {
                            hole = Some(index);
                        }
                        self.turns.ready.resume(index);
                        if hole.is_none() && self.stack.reply.len == 0 {
                            return Then::Next;
                        }
                        Rest::Answer
                    }
                }
            }
            _ if listening => Rest::Opens(*seg, frame[ETHERNET_HEADER..].to_vec()),
            _ if self.keys.expects_cookies(now)
                && (seg.ack.is_some() && !seg.syn && !seg.rst)
                && self.listeners.at(seg.dst_port).is_some() =>
            {
                Rest::Completes(*seg, frame[ETHERNET_HEADER..seg.end].to_vec())
            }
            _ => {
                let packet = &frame[ETHERNET_HEADER..];
                self.refuse(from.port, now, packet);
                Rest::Answer
            }
        };
        self.after = Some(After {
            from: *from,
            known,
            hole,
            what,
        });
        Then::Answer
    }

    fn answer(&mut self, now: NicTime, net: &mut Network) {
        let Some(After {
            from,
            known,
            hole,
            what,
        }) = self.after.take()
        else {
            return;
        };
        match what {
            Rest::Answer => {}
            Rest::Opens(seg, packet) => self.open(now, net, from, seg, &packet),
            Rest::Completes(seg, packet) => self.complete(now, net, from, seg, &packet),
            Rest::Challenge(index) => {
                if let Some(c) = self.table.at(index) {
                    let sent = challenge(&mut self.stack, &mut c.tcp, now);
                    self.counters.challenged += u64::from(sent);
                }
            }
        }
        if self.stack.reply.len > 0 {
            // Numbers of a connection go to its peer, not to the sender of the frame.
            let peer = known.and_then(|hop| net.link(hop));
            let Reply { bytes, len } = &self.stack.reply;
            net.reply(now, peer.unwrap_or(from), &bytes[..*len]);
        }
        if let Some(c) = hole.and_then(|i| self.table.at(i)) {
            self.counters.partial_acks += 1;
            recover(&mut self.stack, &mut c.tcp, now);
        }
    }

    fn resolved(&mut self, index: usize, outcome: Resolved) {
        match outcome {
            Resolved::Known => self.mark(index),
            Resolved::Failed => self.fail_connect(index, Status::HostUnreachable),
        }
    }

    /// Records which peers' hosts have refused segments.
    fn refused(&mut self, now: NicTime, by: Refused, net: &Network) {
        let by = match by {
            Refused::Link(by) => by,
            Refused::NoWay(to) => return self.lose(to, net),
            Refused::Peer { .. } => return,
        };
        for (index, c) in self.table.iter() {
            let link = c.life.hop.and_then(|hop| net.link(hop));
            if link == Some(by) && is_synchronized(c.tcp.state()) {
                c.tcp.probes.refused(now);
                self.turns.ready.queue(index);
            }
        }
    }
}

impl TcpTransport {
    /// No way leads to a host any more: connections to it end.
    fn lose(&mut self, to: Link, net: &Network) {
        let all = self.table.iter();
        let is_it = all.filter(|(_, c)| c.life.hop.and_then(|hop| net.link(hop)) == Some(to));
        let lost: Vec<usize> = is_it.map(|(index, _)| index).collect();
        for index in lost {
            let Some(c) = self.table.at(index) else {
                continue;
            };
            match c.life.phase {
                Phase::Resolving | Phase::Requesting => {
                    self.fail_connect(index, Status::HostUnreachable);
                }
                Phase::Open | Phase::Closing => {
                    tracing::warn!(
                        peer = %c.life.peer,
                        "no way leads to the peer any more; what is posted on the connection ends"
                    );
                    c.life.unreachable = true;
                    self.end_broken(index);
                }
                // They have deadlines, and no operation waits for them.
                Phase::Incoming(_) | Phase::Dead | Phase::Orphan | Phase::Ending => {}
            }
        }
    }

    /// An outgoing connection failed: its operations retire, its id is free.
    pub(super) fn fail_connect(&mut self, index: usize, status: Status) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        let conn = c.life.id;
        c.fail_all((status, 0), &mut self.events);
        // A segment of the peer has said so.
        let is_answer = matches!(status, Status::ConnectionRefused | Status::ConnectionReset);
        self.events.push_back(TransportEvent::ConnectFailed {
            conn,
            status,
            answer: is_answer.then_some(0),
        });
        self.reset_orphan(index);
    }

    /// Gives up a connection in TIME-WAIT when the table is full.
    pub(super) fn make_room(&mut self) {
        if self.table.has_room() {
            return;
        }
        let waiting = |c: &Conn| c.life.is_orphan() && c.tcp.state() == State::TimeWait;
        let victim = self.table.iter().find(|(_, c)| waiting(c)).map(|(i, _)| i);
        if let Some(index) = victim {
            self.table.remove(index);
        }
    }

    fn door(&self, from: Link, seg: &TcpFrame) -> Option<Door> {
        Some(Door {
            id: self.listeners.at(seg.dst_port)?.id,
            local: SocketAddrV4::new(self.ip, seg.dst_port),
            peer: SocketAddrV4::new(seg.src, seg.src_port),
            from,
        })
    }

    /// A SYN for a listener: makes the connection and hands it the SYN, or answers with a cookie.
    fn open(&mut self, now: NicTime, net: &mut Network, from: Link, seg: TcpFrame, packet: &[u8]) {
        let key = Key::new(seg.src, seg.src_port, seg.dst_port);
        // A TIME-WAIT connection with the same addresses is replaced (RFC 9293 §3.10.7.4).
        let old = self.table.find(key);
        let used = old.and_then(|i| self.table.at(i)).map(|c| c.tcp.sent_end());
        if let Some(old) = old {
            self.table.remove(old);
        }
        self.make_room();
        let has_slot = self.table.has_room();
        let Some(door) = self.door(from, &seg) else {
            return;
        };
        let Some(listener) = self.listeners.at(seg.dst_port) else {
            return;
        };
        if !has_slot || !listener.has_room() {
            // A half-open handshake can give way to the client that brings a cookie.
            if listener.ready < listener.backlog && (has_slot || listener.half_open > 0) {
                self.answer_with_cookie(now, &door, packet);
            } else {
                // No answer, as Linux: the peer tries again while the backlog drains.
                self.counters.overflowed += 1;
            }
            return;
        }
        let Some(index) = self.half_open(now, net, &door, seg.seq.wrapping_add(1)) else {
            self.counters.overflowed += 1;
            return;
        };
        let drawn = self.keys.initial(door.local, door.peer, now);
        let isn = match used {
            Some(used) if is_before(drawn, used.wrapping_add(BEYOND)) => used.wrapping_add(BEYOND),
            _ => drawn,
        };
        let Some(c) = self.table.at(index) else {
            return;
        };
        c.tcp.first = isn.wrapping_add(1);
        self.stack.receive_syn(&mut c.tcp, now, packet, isn);
        if !c.tcp.broken && c.tcp.state() == State::SynReceived {
            self.mark(index);
        } else {
            // A bad checksum or bad options: as if it had not come.
            self.counters.dropped += 1;
            self.reset_orphan(index);
        }
    }

    /// A connection with a socket that listens for one SYN. `None` without room for a neighbour or
    /// a connection.
    fn half_open(
        &mut self,
        now: NicTime,
        net: &mut Network,
        door: &Door,
        next: u32,
    ) -> Option<usize> {
        self.table.release_hops(net, Protocol::Tcp);
        let hop = net
            .hop_to(Protocol::Tcp, *door.peer.ip(), Some(door.from), now)
            .ok()?;
        let phase = Phase::Incoming(door.id);
        let config = &self.config;
        let made = self.table.insert(|id| {
            let mut c = Conn::new(id, door.local, door.peer, phase, config);
            c.life.hop = Some(hop);
            c.tcp.port = door.from.port;
            c.life.deadline = Some(NicTime(now.0.saturating_add(HANDSHAKE_NS)));
            c.tcp.peer_base = Some(next);
            c
        });
        let index = made.map(index_of);
        let Some((index, c)) = index.and_then(|i| Some((i, self.table.at(i)?))) else {
            net.release(hop, waiter(usize::MAX));
            return None;
        };
        let here = IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*door.local.ip())),
            port: door.local.port(),
        };
        // A fresh socket and a port that is not zero: listening cannot fail.
        let listens = c.tcp.socket().listen(here);
        debug_assert!(listens.is_ok(), "a fresh socket listens");
        self.listeners.handshake(door.id);
        Some(index)
    }

    /// Answers a SYN and keeps nothing of it. The answer is left in the reply buffer.
    fn answer_with_cookie(&mut self, now: NicTime, door: &Door, packet: &[u8]) {
        let (src, dst) = (
            IpAddress::Ipv4(*door.peer.ip()),
            IpAddress::Ipv4(*door.local.ip()),
        );
        // A bad checksum or bad options: as if it had not come.
        let body = Ipv4Packet::new_checked(packet)
            .map(|p| usize::from(p.header_len())..usize::from(p.total_len()));
        let tcp = body.ok().and_then(|r| packet.get(r));
        let syn = tcp.and_then(|b| TcpPacket::new_checked(b).ok());
        let caps = self.stack.of(door.from.port).caps.clone();
        let syn = syn.and_then(|p| TcpRepr::parse(&p, &src, &dst, &caps.checksum).ok());
        let Some(syn) = syn.filter(|s| s.control == TcpControl::Syn) else {
            self.counters.dropped += 1;
            return;
        };
        let theirs = syn.seq_number.0 as u32;
        let said = Options {
            mss: syn.max_seg_size.filter(|&m| m > 0).unwrap_or(MSS_DEFAULT),
            scale: syn.window_scale,
            sack: syn.sack_permitted,
        };
        let cookie = self.keys.cookie(door.local, door.peer, theirs, said, now);
        let window = self.config.rx_buffer;
        let answer = TcpRepr {
            src_port: door.local.port(),
            dst_port: door.peer.port(),
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(cookie as i32),
            ack_number: Some(syn.seq_number + 1),
            window_len: u16::try_from(window).unwrap_or(u16::MAX),
            window_scale: syn.window_scale.map(|_| scale_of(window)),
            // An MTU is at most 9,216.
            max_seg_size: Some((caps.max_transmission_unit - 40) as u16),
            sack_permitted: syn.sack_permitted,
            sack_ranges: [None, None, None],
            timestamp: None,
            payload: &[],
        };
        let ip = Ipv4Repr {
            src_addr: *door.local.ip(),
            dst_addr: *door.peer.ip(),
            next_header: IpProtocol::Tcp,
            payload_len: answer.buffer_len(),
            hop_limit: 64,
        };
        let total = ip.buffer_len() + answer.buffer_len();
        emit(&mut self.stack.reply.bytes, &ip, &answer, &caps.checksum);
        self.stack.reply.len = total;
        self.counters.cookies += 1;
        self.keys.cookie_given(now);
    }

    /// A segment of no connection for a listener that has given cookies: its sender may bring one
    /// back.
    fn complete(
        &mut self,
        now: NicTime,
        net: &mut Network,
        from: Link,
        seg: TcpFrame,
        packet: &[u8],
    ) {
        let Some(door) = self.door(from, &seg) else {
            return;
        };
        let (theirs, cookie) = (
            seg.seq.wrapping_sub(1),
            seg.ack.unwrap_or(0).wrapping_sub(1),
        );
        let said = self.keys.open(door.local, door.peer, theirs, cookie, now);
        let Some(said) = said else {
            return self.refuse(from.port, now, packet);
        };
        let listener = self.listeners.at(seg.dst_port);
        if listener.is_none_or(|l| l.ready >= l.backlog) {
            // As if it had not come: the peer's next segment may find room.
            self.counters.overflowed += 1;
            return;
        }
        self.make_room();
        if !self.table.has_room() {
            self.drop_oldest_half_open(door.id);
        }
        let Some(index) = self.half_open(now, net, &door, seg.seq) else {
            self.counters.overflowed += 1;
            return;
        };
        let syn = TcpRepr {
            src_port: door.peer.port(),
            dst_port: door.local.port(),
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(theirs as i32),
            ack_number: None,
            window_len: seg.window,
            window_scale: said.scale,
            max_seg_size: Some(said.mss),
            sack_permitted: said.sack,
            sack_ranges: [None, None, None],
            timestamp: None,
            payload: &[],
        };
        let Some(c) = self.table.at(index) else {
            return;
        };
        let replayed = replay_syn(&mut self.stack, &mut c.tcp, now, &syn, cookie);
        if replayed {
            self.stack.receive(&mut c.tcp, now, packet);
        }
        c.tcp.first = cookie.wrapping_add(1);
        c.tcp.heard_window = seg.window;
        if !replayed || c.tcp.broken || matches!(c.tcp.state(), State::SynReceived | State::Listen)
        {
            // A bad checksum: as if it had not come.
            self.counters.dropped += 1;
            self.forget_half_open(index);
        } else {
            // Now, so that the next one finds it counted.
            self.establish(index, now, net);
            self.mark(index);
        }
    }

    /// Answers a segment of no connection with a reset.
    fn refuse(&mut self, port: usize, now: NicTime, packet: &[u8]) {
        let refused = self.stack.refuse(port, now, packet);
        self.counters.refused += u64::from(refused);
    }

    fn drop_oldest_half_open(&mut self, id: ListenerId) {
        let half_open =
            |c: &Conn| c.life.phase == Phase::Incoming(id) && c.tcp.state() == State::SynReceived;
        let conns = self.table.iter().filter(|(_, c)| half_open(c));
        let oldest = conns.min_by_key(|(_, c)| c.life.deadline).map(|(i, _)| i);
        if let Some(index) = oldest {
            self.forget_half_open(index);
        }
    }

    /// Frees a connection that was never reported, without a segment to its peer.
    fn forget_half_open(&mut self, index: usize) {
        let phase = self.table.at(index).map(|c| c.life.phase);
        if let Some(Phase::Incoming(id)) = phase {
            self.listeners.handshake_over(id, false);
        }
        self.table.remove(index);
    }
}

/// The sequence number behind a segment's bytes.
fn end_of(seg: &TcpFrame, frame: &[u8]) -> u32 {
    // Length of the header in words (RFC 9293 §3.1).
    let words = frame.get(seg.tcp_at + 12).map_or(0, |b| b >> 4);
    let bytes = seg.end.saturating_sub(seg.tcp_at + 4 * usize::from(words));
    seg.seq.wrapping_add(bytes as u32)
}

/// The packet for the socket: as it came, or a copy with another number.
fn as_shown<'a>(
    s: &mut TcpSocket,
    verdict: Verdict,
    seg: &TcpFrame,
    packet: &'a [u8],
    scratch: &'a mut [u8],
) -> &'a [u8] {
    let without_ack = verdict == Verdict::TakeWithoutAck;
    if seg.ack.is_some() && !without_ack {
        s.heard_window = seg.window;
    }
    let sequence = match seg.pure_ack && !without_ack {
        true => sequence_of_ack(s, seg.seq),
        false => None,
    };
    if sequence.is_none() && !without_ack {
        return packet;
    }
    let Some(room) = scratch.get_mut(..packet.len()) else {
        return packet;
    };
    room.copy_from_slice(packet);
    let tcp = &mut room[seg.tcp_at - ETHERNET_HEADER..];
    match sequence {
        Some(seq) => set_sequence(tcp, seq),
        None => set_acknowledgement(tcp, s.unacknowledged(), s.heard_window),
    }
    room
}

/// The window scale that smoltcp announces for a receive buffer of so many bytes.
fn scale_of(window: usize) -> u8 {
    // At most 14: buffers are at most 1 GiB.
    (usize::BITS - window.leading_zeros()).saturating_sub(16) as u8
}
