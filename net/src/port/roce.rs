//! A port of datagrams: a plain UDP socket, for RoCEv2 (InfiniBand Architecture, annex 17) without
//! privileges.
//!
//! The kernel does Ethernet, ARP, routes and the IP header; our end is an address of the host, of
//! IPv4 or IPv6. A packet begins behind the UDP header, at the BTH. A link-local address has its
//! interface from the port's own, here and nowhere else.
//!
//! **Sending.** Packets of one size to one peer leave as one message, which the kernel cuts
//! (`UDP_SEGMENT`), and up to 8 messages leave in one system call. The kernel gathers them from the
//! batch's pieces: no byte is copied before. **Receiving.** Several messages in one call, each of
//! packets that the kernel has joined (`UDP_GRO`).
//!
//! **Identification.** Datagrams are never fragmented (DF), and the socket is not connected: the
//! kernel then gives them the identification 0, which the ICRC covers (IPv6 has none). It numbers
//! the packets that it cuts from one message 0, 1, 2, ...: a peer that computes the ICRC from the
//! IP header needs packets that are sent without segmentation.
//!
//! **MTU.** What the way to each peer carries, as the kernel knows it, or a lower setting. It falls
//! when a datagram was too long.
//!
//! Senders are not authenticated here: keys and packet numbers of the transport are.

mod asks;
mod socket;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use rustc_hash::FxHashMap;

use self::asks::Asks;
use self::socket::{Message, Pieces, Received, MESSAGES, PIECES_MAX};
use super::kernel::{failed, path_mtu, Errors};
use super::{
    Arrived, Batch, Capabilities, Checksums, Datagram, Destination, Medium, Places, Port,
    PortCounters, RefusedBy, Segmentation, MTU_MIN,
};
use crate::wire::roce::icrc::ICRC_BYTES;
use crate::wire::udp::headers_to;
use crate::NicTime;

/// Largest MTU of a port of datagrams: the longest IPv4 packet.
pub const DATAGRAM_MTU_MAX: usize = 65_535;
/// Bytes of a message that is received: what the kernel joins at most.
const MESSAGE_BYTES: usize = 1 << 16;
/// Kernel buffers asked for, each way; the kernel may give less.
const SOCKET_BUFFER: usize = 32 << 20;
/// Up to here a packet is copied into one piece: a piece of memory costs the kernel more than the
/// copy costs.
const COPIED_MAX: usize = 256;
/// MTU of a way that the kernel does not know.
const MTU_UNKNOWN: usize = 1_500;
/// How many numbers are tried of those that the kernel chooses, until one is free for TCP as well.
const SAME_PORT_TRIES: usize = 16;
/// Most ways whose MTU is remembered.
const WAYS_MAX: usize = 4_096;

/// How a port of datagrams is opened.
#[derive(Debug, Clone)]
pub struct RoceConfig {
    /// An address of this host, with the interface of a link-local one, and the UDP port; 0 lets
    /// the kernel choose.
    pub bind: SocketAddr,
    /// Largest IP packet. `None`: what the way to each peer carries.
    pub mtu: Option<usize>,
}

/// A port of datagrams cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoceError {
    /// The address is not one of a host.
    #[error("{addr} is no address of this host: packets carry the address as their sender; name one, such as 127.0.0.1 or that of an interface")]
    Address {
        /// As given.
        addr: SocketAddr,
    },
    /// A link-local address without its interface.
    #[error("{addr} is the same on every interface; name the interface as well, such as [{}%eth0]", addr.ip())]
    Scope {
        /// As given.
        addr: SocketAddr,
    },
    /// The socket cannot be bound.
    #[error("cannot receive on UDP {addr}: {source}; choose another address or port")]
    Bind {
        /// As given.
        addr: SocketAddr,
        /// As the kernel says.
        source: io::Error,
    },
    /// The socket cannot be set up.
    #[error("cannot set up the UDP socket: {0}")]
    Socket(#[from] io::Error),
    /// A number is out of range.
    #[error("a port of datagrams has an MTU of 576 to 65535 bytes, not {mtu}")]
    Mtu {
        /// As given.
        mtu: usize,
    },
}

/// Messages that were received and not yet handed on.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    messages: [Received; MESSAGES],
    count: usize,
    next: usize,
    offset: usize,
    asks: Asks,
    /// The last call has emptied the queue, as far as it tells: what came is answered before the
    /// next look.
    pauses: bool,
}

/// Where the next packets are expected to go.
#[derive(Debug, Default)]
struct Expected {
    places: Places,
    /// They are for the next call.
    is_next: bool,
    pieces: Pieces,
    /// Headers and CRCs.
    around: Vec<u8>,
}

/// What is being sent.
#[derive(Debug, Default)]
struct Outbox {
    pieces: Pieces,
    messages: Vec<Message>,
    /// Short packets, and those in more pieces than the kernel takes: of one call at most.
    flat: Box<[u8]>,
}

/// What becomes of a message that the kernel has refused.
enum Outcome {
    /// It is sent again, as far as it is not too long.
    Again,
    /// Its packets are sent one by one, to see whether the kernel cannot cut it.
    OneByOne,
    /// So many packets are lost, as on any network.
    Lost(usize),
}

/// A port that carries datagrams of the host. See the module text.
#[derive(Debug)]
pub struct RocePort {
    socket: UdpSocket,
    /// Its own address, which for packets has no interface.
    local: SocketAddr,
    /// The interface of link-local addresses; 0 without one.
    scope: u32,
    capabilities: Capabilities,
    ways: FxHashMap<IpAddr, usize>,
    /// The way that was asked for last, and its MTU.
    last_way: Option<(IpAddr, usize)>,
    /// The ECN bits that the socket gives to what leaves.
    ecn: u8,
    errors: Errors,
    inbox: Inbox,
    expected: Expected,
    outbox: Outbox,
    /// Where TCP connections come in, beside the datagrams.
    listener: Option<TcpListener>,
    counters: PortCounters,
}

/// A socket at which connections come in, which never waits.
fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The number of an interface, which a link-local address has with it.
///
/// # Errors
/// There is no interface of this name.
pub fn interface(name: &str) -> io::Result<u32> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

impl RocePort {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`RoceError`] says what is wrong with which setting.
    pub fn open(config: &RoceConfig) -> Result<RocePort, RoceError> {
        let RoceConfig {
            bind: mut addr,
            mtu,
        } = *config;
        addr.set_ip(addr.ip().to_canonical());
        let (is_host, scope) = match addr {
            SocketAddr::V4(a) => {
                let ip = a.ip();
                let is_none = ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast();
                (!is_none, 0)
            }
            SocketAddr::V6(a) if a.ip().is_unicast_link_local() && a.scope_id() == 0 => {
                return Err(RoceError::Scope { addr });
            }
            SocketAddr::V6(a) => {
                let is_host = !a.ip().is_unspecified() && !a.ip().is_multicast();
                (is_host, a.scope_id())
            }
        };
        if !is_host {
            return Err(RoceError::Address { addr });
        }
        if let Some(mtu) = mtu.filter(|m| !(MTU_MIN..=DATAGRAM_MTU_MAX).contains(m)) {
            return Err(RoceError::Mtu { mtu });
        }
        let socket = UdpSocket::bind(addr).map_err(|source| RoceError::Bind { addr, source })?;
        let segments = socket::set_up(&socket, addr.is_ipv6(), SOCKET_BUFFER)?;
        let local = SocketAddr::new(addr.ip(), socket.local_addr()?.port());
        Ok(RocePort {
            local,
            scope,
            capabilities: Capabilities {
                medium: Medium::Udp(local),
                mtu: mtu.unwrap_or(DATAGRAM_MTU_MAX),
                checksums: Checksums::Software,
                segmentation: Segmentation {
                    packets: segments,
                    bytes: DATAGRAM_MTU_MAX - headers_to(local.ip()),
                },
                receive_buffer: Some(socket::receive_buffer(&socket)),
            },
            socket,
            ways: FxHashMap::default(),
            last_way: None,
            errors: Errors::default(),
            inbox: Inbox {
                bytes: vec![0; MESSAGES * MESSAGE_BYTES].into(),
                messages: [Received::NONE; MESSAGES],
                count: 0,
                next: 0,
                offset: 0,
                asks: Asks::new(),
                pauses: false,
            },
            ecn: 0,
            expected: Expected::default(),
            outbox: Outbox {
                flat: vec![0; MESSAGES * MESSAGE_BYTES].into(),
                ..Outbox::default()
            },
            listener: None,
            counters: PortCounters::default(),
        })
    }

    /// The address and UDP port from which packets leave.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Opens a socket, and takes TCP connections at the TCP port of the same number, as a
    /// [port of streams](super::streams) does. Where that is in use it carries datagrams alone.
    ///
    /// # Errors
    /// [`RoceError`] says what is wrong with which setting.
    pub fn open_with_streams(config: &RoceConfig) -> Result<RocePort, RoceError> {
        let tries = match config.bind.port() {
            // A number of the kernel's may be free for UDP and not for TCP.
            0 => SAME_PORT_TRIES,
            _ => 1,
        };
        let mut port = RocePort::open(config)?;
        for left in (0..tries).rev() {
            let at = port.socket.local_addr()?;
            match listen(at) {
                Ok(listener) => {
                    port.listener = Some(listener);
                    break;
                }
                Err(e) if left == 0 => {
                    tracing::warn!(%at, %e, "no TCP connections are taken at this address: peers reach this NIC by RDMA alone");
                }
                Err(_) => port = RocePort::open(config)?,
            }
        }
        Ok(port)
    }

    /// What the kernel says that the way carries.
    fn probe(&self, to: IpAddr) -> usize {
        let with_scope = |ip: IpAddr| {
            let mut at = SocketAddr::new(ip, 0);
            if let SocketAddr::V6(at) = &mut at {
                let is_local = at.ip().is_unicast_link_local();
                at.set_scope_id(if is_local { self.scope } else { 0 });
            }
            at
        };
        let known = path_mtu(with_scope(self.local.ip()), with_scope(to));
        known
            .unwrap_or(MTU_UNKNOWN)
            .clamp(MTU_MIN, DATAGRAM_MTU_MAX)
    }

    /// The MTU of a way, asked of the kernel once.
    fn way(&mut self, to: IpAddr) -> usize {
        let path = match self.ways.get(&to) {
            Some(known) => *known,
            None => {
                let path = self.probe(to);
                if self.ways.len() >= WAYS_MAX {
                    self.ways.clear();
                }
                self.ways.insert(to, path);
                path
            }
        };
        self.last_way = Some((to, path));
        path
    }

    /// Lowers the MTU of a way. Returns whether it was higher.
    fn lower(&mut self, to: IpAddr, path: usize) -> bool {
        let was = self.mtu_to(to);
        let now = path.max(MTU_MIN);
        if now < was {
            tracing::warn!(peer = %to, was, now, "the way to a peer carries less than its MTU, which is lowered; what was too long is lost");
            self.ways.insert(to, now);
            self.last_way = None;
        }
        now < was
    }

    /// Reads what has become of earlier datagrams. Returns whether there was anything.
    fn read_errors(&mut self) -> bool {
        let some = self.errors.read(self.socket.as_fd());
        while let Some((to, path)) = self.errors.next_too_long() {
            self.lower(to.ip(), path);
        }
        some
    }

    /// Receives messages into the inbox, which is empty. Returns whether there was any, or an error
    /// of an earlier datagram.
    fn fetch(&mut self) -> bool {
        let mut is_told = false;
        let got = loop {
            let i = &mut self.inbox;
            let asked = &mut i.messages[..i.asks.next];
            let got = socket::receive(&self.socket, &mut i.bytes, MESSAGE_BYTES, asked);
            if is_told || !failed(&got) || !self.read_errors() {
                break got;
            }
            is_told = true;
        };
        let i = &mut self.inbox;
        i.count = got.unwrap_or(0);
        i.pauses = i.count > 0 && i.count < MESSAGES;
        i.asks.answered(i.count);
        (i.next, i.offset) = (0, 0);
        i.count > 0 || is_told
    }

    /// Receives a message into the places where it is expected. `Some(n)`: its `n` packets are
    /// there. Otherwise it is in the inbox, if there was one.
    #[allow(unsafe_code)] // Memory of posted receives, by address.
    fn receive_placed(&mut self) -> Option<(Received, usize)> {
        let (i, e) = (&mut self.inbox, &mut self.expected);
        let (most, around_each) = (e.places.len(), e.places.around());
        let (packet, head) = (e.places.payload() + around_each, around_each - ICRC_BYTES);
        e.around.resize(most * around_each, 0);
        e.pieces.clear();
        let mut around = e.around.as_mut_ptr();
        let mut add = |pieces: &mut Pieces, len: usize| {
            pieces.add(pieces.len(), around, len);
            around = around.wrapping_add(len);
        };
        add(&mut e.pieces, head);
        for k in 0..most {
            for (at, len) in e.places.spans(k) {
                e.pieces.add(e.pieces.len(), at, len);
            }
            let next = if k + 1 < most { head } else { 0 };
            add(&mut e.pieces, ICRC_BYTES + next);
        }
        let (beyond, linear) = i.bytes.split_at_mut(MESSAGE_BYTES);
        e.pieces
            .add(e.pieces.len(), beyond.as_mut_ptr(), beyond.len());
        // SAFETY: the transport has said where in its posted receives; the rest is ours.
        let got = unsafe { socket::receive_into(&self.socket, &e.pieces) };
        let is_failed = failed(&got);
        let Ok(got) = got else {
            i.asks.next = 1;
            if is_failed {
                self.read_errors();
            }
            return None;
        };
        i.pauses = true;
        let n = got.len / packet;
        let is_whole = n > 0 && n <= most && n * packet == got.len;
        let is_cut_so = got.segment == packet;
        if is_whole && is_cut_so && e.places.are(got.from, &e.around[..n * around_each]) {
            e.places.truncate(n);
            return Some((got, n));
        }
        // Another message: as if it had come without places.
        // SAFETY: as above, and the second message's room is apart from all pieces.
        unsafe { e.pieces.copy_to(&mut linear[..got.len.min(MESSAGE_BYTES)]) };
        i.messages[1] = got;
        (i.next, i.count, i.offset) = (1, 2, 0);
        i.asks.next = 1;
        None
    }

    /// Gathers messages from packet `at` on, none of them longer than `longest` bytes. Returns
    /// whether there is one.
    fn gather(&mut self, batch: &Batch, mut at: usize, longest: usize, segments: usize) -> bool {
        let Outbox {
            pieces,
            messages,
            flat,
        } = &mut self.outbox;
        pieces.clear();
        messages.clear();
        let headers = headers_to(self.local.ip());
        let mut flat_len = 0;
        while at < batch.len() && messages.len() < MESSAGES {
            let segment = batch.len_of(at);
            if segment > longest {
                break;
            }
            let first = pieces.len();
            let mut message = Message {
                pieces: first..first,
                packets: 0,
                bytes: 0,
                segment,
            };
            while message.packets < segments && at + message.packets < batch.len() {
                let packet = at + message.packets;
                let len = batch.len_of(packet);
                let count = batch.pieces_of(packet);
                let copied = len <= COPIED_MAX || count > PIECES_MAX;
                let more = if copied { 1 } else { count };
                let room = message.bytes + len <= DATAGRAM_MTU_MAX - headers
                    && pieces.len() - first + more <= PIECES_MAX;
                if len > segment || !room {
                    break;
                }
                if copied {
                    let place = &mut flat[flat_len..flat_len + len];
                    batch.copy_to(packet, place);
                    pieces.add(first, place.as_ptr(), len);
                    flat_len += len;
                } else {
                    for (from, len) in batch.spans(packet) {
                        pieces.add(first, from, len);
                    }
                }
                message.packets += 1;
                message.bytes += len;
                // A shorter packet is the last one of its message.
                if len < segment {
                    break;
                }
            }
            at += message.packets;
            message.pieces.end = pieces.len();
            messages.push(message);
        }
        !self.outbox.messages.is_empty()
    }

    /// What becomes of the first message, which the kernel has refused.
    fn refused(&mut self, to: SocketAddr, error: &io::Error) -> Outcome {
        let packets = self.outbox.messages.first().map_or(0, |m| m.packets);
        let of_several = packets > 1;
        let code = error.raw_os_error();
        // Older kernels refuse a message of too long packets so, and any kernel one that it cannot
        // cut for its device.
        let uncut = of_several && matches!(code, Some(libc::EINVAL | libc::EIO));
        if code == Some(libc::EMSGSIZE) || uncut {
            let path = self.probe(to.ip());
            if self.lower(to.ip(), path) {
                return Outcome::Again;
            }
        }
        if uncut {
            return Outcome::OneByOne;
        }
        self.counters.tx_dropped += packets as u64;
        Outcome::Lost(packets)
    }
}

impl Port for RocePort {
    fn describe(&self) -> String {
        format!("roce {}", self.local)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline]
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        let path = match self.last_way {
            Some((last, path)) if last == to => path,
            _ => self.way(to),
        };
        path.min(self.capabilities.mtu)
    }

    fn send(&mut self, _: NicTime, to: &Destination, batch: &Batch, from: usize) -> usize {
        let Destination::Socket { to, ecn, segmented } = *to else {
            // No host has a hardware address here: lost.
            return batch.len().saturating_sub(from);
        };
        let mut next = from;
        let ecn = ecn & 3;
        if ecn != self.ecn && socket::mark(&self.socket, self.local.is_ipv6(), ecn).is_ok() {
            self.ecn = ecn;
        }
        let (mut repeated, mut one_by_one) = (false, !segmented);
        let is_reachable = to.port() != 0 && to.is_ipv6() == self.local.is_ipv6();
        while next < batch.len() {
            let longest = self.mtu_to(to.ip()) - headers_to(to.ip());
            let segments = match one_by_one {
                true => 1,
                false => self.capabilities.segmentation.packets,
            };
            if !is_reachable || !self.gather(batch, next, longest, segments) {
                // Longer than any packet on this way, for no port, or for an address of the other
                // family.
                self.counters.tx_dropped += 1;
                next += 1;
                continue;
            }
            let Outbox {
                pieces, messages, ..
            } = &self.outbox;
            // SAFETY: the pieces are the batch's, whose filler keeps them readable, and `flat`,
            // which the outbox keeps.
            #[allow(unsafe_code)]
            let sent = unsafe { socket::send(&self.socket, (to, self.scope), messages, pieces) };
            match sent {
                Ok(sent) => {
                    repeated = false;
                    if one_by_one && segmented {
                        tracing::warn!(%to, "the kernel does not cut messages into packets on this way; they are sent one by one");
                        self.capabilities.segmentation.packets = 1;
                        one_by_one = false;
                    }
                    for m in &messages[..sent] {
                        self.counters.tx_frames += m.packets as u64;
                        self.counters.tx_bytes += m.bytes as u64;
                        next += m.packets;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // It may be the error of an earlier datagram: once more then.
                Err(_) if self.read_errors() && !repeated => repeated = true,
                Err(e) => {
                    repeated = false;
                    match self.refused(to, &e) {
                        Outcome::Again => {}
                        Outcome::OneByOne => one_by_one = true,
                        Outcome::Lost(packets) => {
                            next += packets;
                            one_by_one = !segmented;
                        }
                    }
                }
            }
        }
        next - from
    }

    fn places(&mut self) -> Option<&mut Places> {
        let i = &self.inbox;
        let e = &mut self.expected;
        let is_empty = i.next == i.count;
        e.is_next = is_empty && !i.pauses;
        e.places.clear();
        // Asked behind the last packet as well: `poll` leaves to `receive` what has a place.
        is_empty.then_some(&mut e.places)
    }

    fn poll(&mut self) -> bool {
        let i = &self.inbox;
        i.next < i.count || self.expected.places.runs() > 0 || self.fetch()
    }

    fn receive(&mut self, _: NicTime) -> Option<Arrived<'_>> {
        let e = &mut self.expected;
        if std::mem::take(&mut e.is_next) && (1..PIECES_MAX / 2).contains(&e.places.runs()) {
            if let Some((got, n)) = self.receive_placed() {
                self.counters.rx_frames += n as u64;
                self.counters.rx_bytes += got.len as u64;
                return Some(Arrived::Datagram(Datagram {
                    from: got.from,
                    ecn: got.ecn,
                    bytes: &self.expected.around[..n * self.expected.places.around()],
                    placed: Some(&self.expected.places),
                }));
            }
            if self.inbox.next == self.inbox.count {
                return None;
            }
        }
        loop {
            let i = &mut self.inbox;
            if i.next == i.count {
                if std::mem::take(&mut i.pauses) {
                    return None;
                }
                self.fetch();
                if self.inbox.count == 0 {
                    return None;
                }
                continue;
            }
            let m = i.messages[i.next];
            let len = m.len.min(MESSAGE_BYTES);
            if len == 0 || m.from.port() == 0 {
                // An empty datagram, one that was cut, or one that cannot be answered.
                self.counters.rx_malformed += 1;
                i.next += 1;
                continue;
            }
            let n = m.segment.clamp(1, len - i.offset);
            let start = i.next * MESSAGE_BYTES + i.offset;
            i.offset += n;
            if i.offset >= len {
                (i.next, i.offset) = (i.next + 1, 0);
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += n as u64;
            return Some(Arrived::Datagram(Datagram {
                from: m.from,
                ecn: m.ecn,
                bytes: &self.inbox.bytes[start..start + n],
                placed: None,
            }));
        }
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.socket.as_fd());
    }

    fn next_refused(&mut self) -> Option<RefusedBy> {
        self.errors.next_refused().map(RefusedBy::Socket)
    }

    fn listener(&self) -> Option<&TcpListener> {
        self.listener.as_ref()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use ringbell_nic_abi::RoceOpcode;

    use super::*;
    use crate::wire::roce::packet::Head;
    use crate::wire::roce::{Bth, Extended, Psn, Qpn};

    /// How many packets each message of a batch has, whose packets are header, payload and trailer.
    fn messages(sizes: &[usize], longest: usize, segments: usize) -> Vec<usize> {
        let bind = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut port = RocePort::open(&RoceConfig { bind, mtu: None }).unwrap(); // loopback has free ports
        let (mut batch, payload) = (Batch::new(), vec![1; 1 << 16]);
        for (n, size) in sizes.iter().enumerate() {
            batch.put(&[n as u8; 12]);
            // SAFETY: the payload outlives the batch.
            #[allow(unsafe_code)]
            unsafe {
                batch.memory(payload.as_ptr(), size - 16)
            };
            batch.put(&[0xcc; 4]);
            batch.end();
        }
        port.gather(&batch, 0, longest, segments);
        let all = &port.outbox.messages;
        for m in all {
            // A trailer and the header behind it are one piece.
            let pieces = if m.segment > COPIED_MAX {
                2 * m.packets + 1
            } else {
                1
            };
            assert_eq!(m.pieces.len(), pieces);
            assert!(m.bytes <= 65_507);
        }
        all.iter().map(|m| m.packets).collect()
    }

    #[test]
    fn packets_of_one_size_are_one_message_and_a_shorter_one_ends_it() {
        let of = |sizes: &[usize]| messages(sizes, 65_507, 64);
        assert_eq!(of(&[4_112; 40]), [15, 15, 10]);
        assert_eq!(of(&[300; 150]), [64, 64, 22]);
        assert_eq!(of(&[300, 300, 280, 300, 280, 280, 500]), [3, 2, 1, 1]);
        assert_eq!(of(&[65_507, 65_507, 300]), [1, 1, 1]);
        assert_eq!(of(&[40_000, 30_000]), [1, 1]);
        // Eight messages a call, and none behind one that is too long.
        assert_eq!(of(&[65_000; 20]), [1; 8]);
        assert_eq!(messages(&[300, 300, 2_000, 300], 1_000, 64), [2]);
        assert_eq!(messages(&[2_000, 300], 1_000, 64), []);
        assert_eq!(messages(&[300; 3], 1_000, 1), [1; 3]);
        // Short packets are copied side by side.
        assert_eq!(of(&[100; 70]), [64, 6]);
    }

    #[test]
    fn a_poll_receives_what_has_come_unless_packets_are_expected_in_places() {
        let bind = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut port = RocePort::open(&RoceConfig { bind, mtu: None }).unwrap(); // loopback has free ports
        let peer = UdpSocket::bind(bind).unwrap();
        let now = NicTime(0);
        assert!(!port.poll());
        peer.send_to(&[1; 20], port.local()).unwrap();
        peer.send_to(&[2; 21], port.local()).unwrap();
        // On the loopback a datagram is there when the call returns.
        assert!(port.poll() && port.poll());
        assert_eq!(port.receive(now).map(|d| d.to_vec()), Some(vec![1; 20]));
        assert!(port.receive(now).is_none(), "it is answered first");
        assert!(port.poll());
        assert_eq!(port.receive(now).map(|d| d.to_vec()), Some(vec![2; 21]));
        assert!(!port.poll());

        let mut room = [0; 64];
        let first = Head {
            bth: Bth::new(RoceOpcode::SendOnly, Qpn::new(9), Psn::new(1)),
            extended: Extended::None,
        };
        let from = peer.local_addr().unwrap();
        let places = port.places().expect("the inbox is empty");
        places.begin(from, first, room.len());
        // SAFETY: the room outlives the call.
        #[allow(unsafe_code)]
        unsafe {
            places.add(room.as_mut_ptr(), room.len())
        };
        places.end();
        assert!(port.receive(now).is_none());
        peer.send_to(&[3; 22], port.local()).unwrap();
        assert!(port.poll(), "it may not receive, so it cannot tell");
        assert_eq!(port.inbox.next, port.inbox.count);
        port.places().expect("still empty");
        assert!(port.receive(now).is_some() && !port.poll());
    }
}
