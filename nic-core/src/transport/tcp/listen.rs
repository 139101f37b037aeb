//! Connections that come in: handshakes, the backlog, and cookies when it is full.
//!
//! ```text
//! SYN ──▶ backlog has room? ──▶ a socket in SYN-RECEIVED ──(ACK)──▶ Incoming
//!               │ no, but half-open handshakes fill it
//!               └──▶ a SYN|ACK with a cookie, and nothing kept ──(ACK with the cookie)──▶ socket, Incoming
//! ```
//!
//! So a flood of SYNs without an end keeps no client out. A backlog full of connections that the program has not
//! accepted is another matter: SYNs then have no answer, and the peer tries again (as Linux does).

use std::net::SocketAddrV4;

use smoltcp::iface::Interface;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{
    IpAddress, IpListenEndpoint, IpProtocol, Ipv4Cidr, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket,
    TcpRepr, TcpSeqNumber,
};

use super::admit::{request, send_frame};
use super::conn::{Conn, Phase};
use super::demux::Key;
use super::device::Ingress;
use super::isn::{Options, COOKIES_LAST};
use super::smoltcp_gaps::guarded;
use super::smoltcp_gaps::initial_sequence;
use super::smoltcp_gaps::partial_ack::is_before;
use super::TcpTransport;
use crate::port::MacAddr;
use crate::types::{ListenerId, NicTime};
use crate::wire::frame::TcpFrame;

/// A handshake that is not over after this long is forgotten: 10 s.
const HANDSHAKE_NS: u64 = 10_000_000_000;
/// smoltcp's size of segments for a peer that names none (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;
/// How far beyond its last connection's numbers a port begins that is used again: more than a window
/// without scale.
const BEYOND: u32 = 1 << 17;

/// A port that takes connections.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: ListenerId,
    pub(super) backlog: usize,
    /// Handshakes under way.
    pub(super) half_open: usize,
    /// Connections whose `Incoming` was not polled.
    pub(super) ready: usize,
    /// Until when a cookie may come back.
    pub(super) cookies_until: Option<NicTime>,
}

impl Listener {
    pub(super) fn new(id: ListenerId, backlog: usize) -> Listener {
        Listener {
            id,
            backlog: backlog.max(1),
            half_open: 0,
            ready: 0,
            cookies_until: None,
        }
    }

    pub(super) fn expects_cookies(&self, now: NicTime) -> bool {
        self.cookies_until.is_some_and(|t| now <= t)
    }
}

/// What a SYN needs to be answered.
struct Door {
    id: ListenerId,
    local: SocketAddrV4,
    peer: SocketAddrV4,
    mac: MacAddr,
}

impl TcpTransport {
    pub(super) fn interface_with(&self, isn: u32, now: NicTime) -> Interface {
        let address = Ipv4Cidr::new(self.config.ip, self.config.prefix_len);
        let t = self.clock.instant(now);
        initial_sequence::interface_with(isn, address, &self.caps, t)
    }

    fn door(&self, seg: &TcpFrame) -> Option<Door> {
        Some(Door {
            id: self.listeners.get(&seg.dst_port)?.id,
            local: SocketAddrV4::new(self.config.ip, seg.dst_port),
            peer: SocketAddrV4::new(seg.src, seg.src_port),
            mac: seg.src_mac,
        })
    }

    /// A SYN for a listener: makes the connection and hands it the SYN, or answers with a cookie.
    pub(super) fn open(&mut self, now: NicTime, seg: TcpFrame, packet: &[u8]) {
        let key = Key::new(seg.src, seg.src_port, seg.dst_port);
        // A TIME-WAIT connection of the same name gives way (RFC 9293 §3.10.7.4).
        let old = self.table.find(key);
        let used = old.and_then(|i| self.table.at(i)).map(|c| c.sent_end());
        if let Some(old) = old {
            self.free(old);
        }
        self.make_room();
        let has_slot = self.table.has_room();
        let Some(door) = self.door(&seg) else { return };
        let Some(listener) = self.listeners.get(&seg.dst_port) else {
            return;
        };
        let has_room = has_slot && listener.half_open + listener.ready < listener.backlog;
        if !has_room {
            // A half-open handshake can give way to the client that brings a cookie.
            if listener.ready < listener.backlog && (has_slot || listener.half_open > 0) {
                self.answer_with_cookie(now, &door, packet);
            } else {
                // No answer, as Linux: the peer tries again while the backlog drains.
                self.counters.overflowed += 1;
            }
            return;
        }
        let Some(index) = self.half_open(now, &door, seg.seq.wrapping_add(1)) else {
            self.counters.overflowed += 1;
            return;
        };
        let drawn = self.keys.initial(door.local, door.peer, now);
        let isn = match used {
            Some(used) if is_before(drawn, used.wrapping_add(BEYOND)) => used.wrapping_add(BEYOND),
            _ => drawn,
        };
        let mut fresh = self.interface_with(isn, now);
        let t = self.clock.instant(now);
        let Some(c) = self.table.at(index) else {
            return;
        };
        c.first = isn.wrapping_add(1);
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let sockets = &mut c.sockets;
        if guarded(|| fresh.poll_ingress_single(t, &mut device, sockets)).is_none() {
            self.counters.defects += 1;
            c.broken = true;
        }
        if !c.broken && c.state() == State::SynReceived {
            self.mark(index);
        } else {
            // A bad checksum or bad options: as if it had not come.
            self.counters.dropped += 1;
            self.reset_orphan(index);
        }
    }

    /// A connection with a socket that listens for one SYN. `None` without room for a neighbour or a
    /// connection.
    fn half_open(&mut self, now: NicTime, door: &Door, next: u32) -> Option<usize> {
        let hop = self.next_hop(*door.peer.ip())?;
        // The SYN's source answers for its address until ARP says otherwise.
        let neighbor = self.neighbors.acquire(hop, Some(door.mac), now)?;
        if let Some(target) = self.neighbors.doubt(neighbor, door.mac, now) {
            let frame = request(self.mac, self.config.ip, target);
            let port = &mut *self.port;
            send_frame(port, &mut self.counters, now, MacAddr::BROADCAST, &frame);
        }
        let phase = Phase::Incoming(door.id);
        let config = &self.config;
        let key = Key::of(door.peer, door.local.port());
        let made = self.table.insert(key, |id| {
            let mut c = Conn::new(id, door.local, door.peer, phase, neighbor, config);
            c.deadline = Some(NicTime(now.0.saturating_add(HANDSHAKE_NS)));
            c.peer_base = Some(next);
            c
        });
        let Some((index, c)) = made.and_then(|i| Some((i, self.table.at(i)?))) else {
            self.neighbors.release(neighbor, usize::MAX);
            return None;
        };
        let here = IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*door.local.ip())),
            port: door.local.port(),
        };
        // A fresh socket and a port that is not zero: listening cannot fail.
        let listens = c.socket().listen(here);
        debug_assert!(listens.is_ok(), "a fresh socket listens");
        if let Some(l) = self.listeners.get_mut(&door.local.port()) {
            l.half_open += 1;
        }
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
        let syn = syn.and_then(|p| TcpRepr::parse(&p, &src, &dst, &self.caps.checksum).ok());
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
            max_seg_size: Some((self.caps.max_transmission_unit - 40) as u16),
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
        emit(&mut self.reply.bytes, &ip, &answer, &self.caps.checksum);
        self.reply.len = total;
        self.counters.cookies += 1;
        if let Some(l) = self.listeners.get_mut(&door.local.port()) {
            l.cookies_until = Some(now.plus(COOKIES_LAST));
        }
    }

    /// A segment of no connection for a listener that has given cookies: its sender may bring one back.
    pub(super) fn complete(&mut self, now: NicTime, seg: TcpFrame, packet: &[u8]) {
        let Some(door) = self.door(&seg) else { return };
        let (theirs, cookie) = (
            seg.seq.wrapping_sub(1),
            seg.ack.unwrap_or(0).wrapping_sub(1),
        );
        let said = self.keys.open(door.local, door.peer, theirs, cookie, now);
        let Some(said) = said else {
            return self.refuse(now, packet);
        };
        let full = |l: &Listener| l.ready >= l.backlog;
        if self.listeners.get(&seg.dst_port).is_none_or(full) {
            // As if it had not come: the peer's next segment may find room.
            self.counters.overflowed += 1;
            return;
        }
        self.make_room();
        if !self.table.has_room() {
            self.drop_oldest_half_open(door.id);
        }
        let Some(index) = self.half_open(now, &door, seg.seq) else {
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
        let replayed = self.replay_syn(index, now, &syn, cookie);
        if replayed {
            self.tell(index, now, packet);
        }
        let Some(c) = self.table.at(index) else {
            return;
        };
        c.first = cookie.wrapping_add(1);
        c.heard_window = seg.window;
        if !replayed || c.broken || matches!(c.state(), State::SynReceived | State::Listen) {
            // A bad checksum: as if it had not come.
            self.counters.dropped += 1;
            self.forget_half_open(index);
        } else {
            // Now, so that the next one finds it counted.
            self.establish(index, now);
            self.mark(index);
        }
    }

    /// Answers a segment of no connection with a reset.
    fn refuse(&mut self, now: NicTime, packet: &[u8]) {
        let mut device = Ingress {
            packet: Some(packet),
            reply: &mut self.reply,
            caps: &self.caps,
        };
        let t = self.clock.instant(now);
        self.iface
            .poll_ingress_single(t, &mut device, &mut self.nobody);
        self.counters.refused += u64::from(self.reply.len > 0);
    }

    fn drop_oldest_half_open(&mut self, id: ListenerId) {
        let half_open =
            |c: &Conn| c.phase == Phase::Incoming(id) && c.state() == State::SynReceived;
        let conns = self.table.iter().filter(|(_, c)| half_open(c));
        let oldest = conns.min_by_key(|(_, c)| c.deadline).map(|(i, _)| i);
        if let Some(index) = oldest {
            self.forget_half_open(index);
        }
    }

    /// Frees a connection that was never reported, without a word to its peer.
    fn forget_half_open(&mut self, index: usize) {
        let phase = self.table.at(index).map(|c| c.phase);
        if let Some(Phase::Incoming(id)) = phase {
            self.handshake_over(id, false);
        }
        self.free(index);
    }

    /// One handshake less for a listener, and when it `succeeded` one connection more to be polled.
    pub(super) fn handshake_over(&mut self, id: ListenerId, succeeded: bool) {
        if let Some(l) = self.listeners.values_mut().find(|l| l.id == id) {
            l.half_open = l.half_open.saturating_sub(1);
            l.ready += usize::from(succeeded);
        }
    }
}

/// The window scale that smoltcp announces for a receive buffer of so many bytes.
fn scale_of(window: usize) -> u8 {
    // At most 14: buffers are at most 1 GiB.
    (usize::BITS - window.leading_zeros()).saturating_sub(16) as u8
}

/// Writes a packet to the front of `room`.
pub(super) fn emit(room: &mut [u8], ip: &Ipv4Repr, tcp: &TcpRepr<'_>, sums: &ChecksumCapabilities) {
    let (src, dst) = (IpAddress::Ipv4(ip.src_addr), IpAddress::Ipv4(ip.dst_addr));
    let (head, body) = room.split_at_mut(ip.buffer_len());
    // The total length covers both, although `head` alone is at hand.
    ip.emit(&mut Ipv4Packet::new_unchecked(head), sums);
    let body = &mut body[..tcp.buffer_len()];
    tcp.emit(&mut TcpPacket::new_unchecked(body), &src, &dst, sums);
}
