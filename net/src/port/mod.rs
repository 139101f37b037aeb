//! Ports: the NIC's interfaces to its networks.
//!
//! A [`Port`] carries packets. Its [`Capabilities`] say what a packet is: a whole Ethernet frame,
//! or a datagram between UDP sockets of hosts. The forms of sending differ with that:
//!
//! - A *frame* is written in place ([`tx_frame`], [`tx_commit`]) and read in place, in buffers that
//!   are reused, so none costs an allocation. Frames may wait for [`flush`], which sends a batch.
//!   One that lies in other memory is copied once ([`tx_copy`], [`receive_into`]).
//! - *Datagrams* leave as a [`Batch`] of packets ([`send`]), whose pieces the kernel gathers.
//!
//! Receiving never depends on transmitting: a port whose transmit side is full still receives, or
//! two NICs that both send would wait for each other forever.
//!
//! | port | module | packets | needs |
//! |---|---|---|---|
//! | in-memory switch | [`mem`] | frames | nothing; one process or several |
//! | UDP socket, VXLAN-framed | [`udp`] | frames | a UDP port; works between machines |
//! | TAP device | [`tap`] | frames | root, or a device that root made |
//! | UDP socket, for RoCEv2 | [`roce`] | datagrams | an address of the host; works between machines |
//! | TCP socket, connections of iWARP | [`streams`] | none | an address of the host; works between machines |
//! | any of these, with faults | [`impair`] | the same | – |
//! | any of these, recorded | [`capture`] | the same | a writable file |
//!
//! [`tx_frame`]: Port::tx_frame
//! [`tx_commit`]: Port::tx_commit
//! [`flush`]: Port::flush
//! [`tx_copy`]: Port::tx_copy
//! [`receive_into`]: Port::receive_into
//! [`send`]: Port::send

mod batch;
#[cfg(feature = "pcap")]
pub mod capture;
pub mod impair;
mod kernel;
pub mod mem;
mod places;
pub mod roce;
pub mod streams;
#[cfg(feature = "tap")]
pub mod tap;
pub mod udp;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::Deref;
use std::os::fd::BorrowedFd;

pub use self::batch::digest_memory;
pub use self::batch::Batch;
pub use self::places::Places;
use crate::wire::udp::IP_UDP_HEADERS;
pub use crate::wire::MacAddr;
use crate::wire::ETHERNET_HEADER;
use crate::NicTime;

/// Largest IP MTU of a port, as in smoltcp's `max_transmission_unit`.
pub const MTU_MAX: usize = 9_216;
/// Smallest IP MTU of a port: what every IPv4 host must take (RFC 791 §3.1).
pub const MTU_MIN: usize = 576;

/// Checksum computation for frames on this port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// The NIC, both ways: a wire that can flip bits.
    Software,
    /// None: both ends share memory, and have agreed on it.
    Omitted,
}

/// What went through a port, counted since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortCounters {
    /// Frames handed to the wire.
    pub tx_frames: u64,
    /// Their bytes, Ethernet header included.
    pub tx_bytes: u64,
    /// Frames lost because there was no room or no receiver, or whose length no frame has.
    pub tx_dropped: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames or datagrams that were malformed.
    pub rx_malformed: u64,
    /// Datagrams from unauthenticated peers.
    pub rx_unauthenticated: u64,
}

/// Whether a frame can have this length on a link of this MTU.
fn is_frame(len: usize, mtu: usize) -> bool {
    (ETHERNET_HEADER..=ETHERNET_HEADER + mtu).contains(&len)
}

/// What a port's packets are, with our own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Ethernet frames, from the Ethernet header on.
    Ethernet(MacAddr),
    /// Datagrams of the host: what lies behind the UDP header. The kernel does Ethernet, ARP,
    /// routes and the IP header. The address has no interface, as no address of IPv6 here has.
    Udp(SocketAddr),
}

impl Medium {
    /// Whether packets are frames.
    #[inline]
    pub fn has_frames(&self) -> bool {
        matches!(self, Medium::Ethernet(_))
    }

    /// Our MAC address; zeros where the kernel has it.
    #[inline]
    pub fn mac(&self) -> MacAddr {
        match self {
            Medium::Ethernet(mac) => *mac,
            Medium::Udp(_) => MacAddr::default(),
        }
    }

    /// The socket from which datagrams leave.
    #[inline]
    pub fn local(&self) -> Option<SocketAddr> {
        match self {
            Medium::Ethernet(_) => None,
            Medium::Udp(local) => Some(*local),
        }
    }

    /// Whether packets are datagrams of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.local().is_some_and(|local| local.is_ipv6())
    }
}

/// How many packets of one size a port takes as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// Most packets; 1: it takes each by itself.
    pub packets: usize,
    /// Most bytes of them together.
    pub bytes: usize,
}

/// What a port can do. Medium and checksums never change.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// What its packets are.
    pub medium: Medium,
    /// Largest IP packet, in bytes: a frame is up to this plus the Ethernet header. It may fall
    /// while the port is used, when the network turns out to carry less, and never rises.
    pub mtu: usize,
    /// Checksums of its packets.
    pub checksums: Checksums,
    /// How many datagrams leave as one.
    pub segmentation: Segmentation,
    /// Bytes that wait for us before the network loses some, with the kernel's bookkeeping of each
    /// datagram. `None`: of frames.
    pub receive_buffer: Option<usize>,
}

impl Capabilities {
    /// Those of a port of frames.
    pub fn of_frames(mac: MacAddr, mtu: usize, checksums: Checksums) -> Capabilities {
        Capabilities {
            medium: Medium::Ethernet(mac),
            mtu,
            checksums,
            segmentation: Segmentation {
                packets: 1,
                bytes: mtu.saturating_sub(IP_UDP_HEADERS),
            },
            receive_buffer: None,
        }
    }
}

/// Where packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Frames: to a MAC address.
    Link(MacAddr),
    /// Datagrams.
    Socket {
        /// The peer's socket.
        to: SocketAddr,
        /// The two ECN bits (RFC 3168 §5).
        ecn: u8,
        /// The network may cut packets from larger ones. It then numbers them by their IPv4
        /// identification, which the ICRC covers.
        segmented: bool,
    },
}

/// A datagram that has arrived.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The sender's address, as the network says it.
    pub from: SocketAddr,
    /// The two ECN bits (RFC 3168 §5).
    pub ecn: u8,
    /// What lies behind the UDP header. Of packets whose payloads are in their places: header and
    /// CRC of each.
    pub bytes: &'a [u8],
    /// Those places.
    pub placed: Option<&'a Places>,
}

/// A packet that has arrived. It dereferences to its bytes.
#[derive(Debug)]
pub enum Arrived<'a> {
    /// A frame, from the Ethernet header on.
    Frame(&'a [u8]),
    /// A datagram, or several whose payloads are in their places.
    Datagram(Datagram<'a>),
}

impl<'a> Arrived<'a> {
    /// The packet's bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Arrived::Frame(bytes) => bytes,
            Arrived::Datagram(d) => d.bytes,
        }
    }
}

impl Deref for Arrived<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

/// What has refused a packet. That a host reports that no process receives there is a hint, which
/// an attacker on the path may have forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// The host with this MAC address, a frame.
    Link(MacAddr),
    /// The host of this socket, a datagram.
    Socket(SocketAddr),
    /// The port itself, which knows that no way leads to the host with this MAC address any more.
    NoWay(MacAddr),
}

/// A place where packets leave and enter. See the module text for the rules.
///
/// A port of frames has `tx_frame` and `tx_commit`, one of datagrams `send`.
pub trait Port: Send {
    /// Kind and destination, as text for users: `mem 0 of 2`, `tap rb0`.
    fn describe(&self) -> String;

    /// What a user may want to know of its parts, a line for each; none where it has no parts.
    fn report(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why no way leads to a host, by its MAC address, for users: which wires are missing. Without
    /// an address the same of each such host. `None`: the port knows of none.
    fn no_way(&self, _to: Option<MacAddr>) -> Option<String> {
        None
    }

    /// What the port carries, and how much at once.
    fn capabilities(&self) -> &Capabilities;

    /// Largest IP packet to a peer. It may fall while the port is used, and never rises.
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        let _ = to;
        self.capabilities().mtu
    }

    /// The next packet that has arrived. It stays until the next call of any method; calling again
    /// gives the packet after it.
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>>;

    /// Where to say in which places the payloads of the next packets are expected, right before
    /// [`Port::receive`]. `None`, the default: they are not put there.
    fn places(&mut self) -> Option<&mut Places> {
        None
    }

    /// Whether nothing has arrived and nothing waits for [`Port::flush`]. A cheap look that costs
    /// no system call; `false`, the default, is always a correct answer. A port that says `true` is
    /// looked at again when the clock is read.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Whether [`Port::receive`] may find something, or something waits for [`Port::flush`]. A
    /// spinning thread asks before it makes a whole step. The port may receive to find out, unless
    /// packets are expected in places.
    fn poll(&mut self) -> bool {
        !self.is_quiet()
    }

    /// Room for a frame to `dst`: Ethernet header plus MTU bytes, contents undefined. `None` while
    /// there is no room, and always at a port of datagrams. Without [`Port::tx_commit`] nothing
    /// happens, and the call may be repeated.
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        let _ = (now, dst);
        None
    }

    /// Sends the first `len` bytes of what the last [`Port::tx_frame`] gave. A frame shorter than
    /// an Ethernet header or longer than that room is dropped and counted.
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        let _ = (now, len);
    }

    /// Sends a frame that lies in other memory. `false`: there is no room, and nothing happened.
    /// The default copies it into the room of [`Port::tx_frame`].
    fn tx_copy(&mut self, now: NicTime, dst: MacAddr, frame: &[u8]) -> bool {
        let Some(room) = self.tx_frame(now, dst) else {
            return false;
        };
        // What is longer than the room is dropped and counted there.
        let len = frame.len().min(room.len());
        room[..len].copy_from_slice(&frame[..len]);
        self.tx_commit(now, frame.len());
        true
    }

    /// As [`Port::receive`] for ports of frames, into other memory: returns the frame's length.
    /// What is longer than the memory is cut to it.
    fn receive_into(&mut self, now: NicTime, into: &mut [u8]) -> Option<usize> {
        let frame = self.receive(now)?.bytes();
        let len = frame.len().min(into.len());
        into[..len].copy_from_slice(&frame[..len]);
        Some(len)
    }

    /// Sends packets `from..` of a batch. Returns how many were taken; the others found no room and
    /// may be sent again. A packet that is longer than the MTU is taken, dropped and counted. The
    /// default writes each as a frame; packets to a socket are lost.
    fn send(&mut self, now: NicTime, to: &Destination, batch: &Batch, from: usize) -> usize {
        let count = batch.len().saturating_sub(from);
        let Destination::Link(dst) = *to else {
            return count;
        };
        for packet in from..batch.len() {
            let Some(room) = self.tx_frame(now, dst) else {
                return packet - from;
            };
            batch.copy_to(packet, room);
            // What is longer than the room is dropped and counted there.
            self.tx_commit(now, batch.len_of(packet));
        }
        count
    }

    /// Sends what waits for a batch, or was kept back.
    fn flush(&mut self, now: NicTime) {
        let _ = now;
    }

    /// When [`Port::flush`] and [`Port::receive`] must be called although nothing arrives.
    fn next_timer(&self) -> Option<NicTime> {
        None
    }

    /// Adds the file descriptors that become readable when a packet arrives. A port without one is
    /// polled in bounded naps.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        let _ = fds;
    }

    /// The next host that has refused a packet, or to which no way leads.
    fn next_refused(&mut self) -> Option<RefusedBy> {
        None
    }

    /// How many others a frame to all reaches by a tree: over each wire once, in order, and held
    /// back rather than dropped where there is no room. 0: it goes otherwise.
    fn reached_by_tree(&self) -> usize {
        0
    }

    /// Whether the tree is there now: routes that others have replaced, or that go around what is
    /// down, may leave no channel for it.
    fn has_tree(&self) -> bool {
        self.reached_by_tree() > 0
    }

    /// Where TCP connections of the host come in, if the port takes those, beside packets or alone.
    fn listener(&self) -> Option<&TcpListener> {
        None
    }

    /// Counted since the port was opened; bytes of whole frames, or behind the UDP header.
    fn counters(&self) -> PortCounters;
}
