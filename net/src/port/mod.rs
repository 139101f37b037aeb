//! Ports: the NIC's interfaces to its networks.
//!
//! A [`Port`] carries whole Ethernet frames, a [`DatagramPort`] the datagrams of a UDP socket of the host.
//!
//! The buffers of a `Port` are reused, so no frame costs an allocation; the caller writes a frame in place ([`tx_frame`], [`tx_commit`]) and reads one in
//! place ([`rx_frame`]). Frames handed to a port may wait for [`flush`], which sends a batch.
//!
//! Receiving never depends on transmitting: a port whose transmit side is full still receives, or
//! two NICs that both send would wait for each other forever.
//!
//! | port | module | needs |
//! |---|---|---|
//! | in-memory switch | [`mem`] | nothing; one process or several |
//! | UDP socket, VXLAN-framed | [`udp`] | a UDP port; works between machines |
//! | TAP device | [`tap`] | root, or a device that root made |
//! | UDP socket, datagrams for RoCEv2 | [`roce`] | an address of the host; works between machines |
//! | TCP socket, connections of iWARP | [`streams`] | an address of the host; works between machines |
//! | any of these, with faults | [`impair`] | – |
//! | any of these, recorded | [`capture`] | a writable file |
//!
//! [`tx_frame`]: Port::tx_frame
//! [`tx_commit`]: Port::tx_commit
//! [`rx_frame`]: Port::rx_frame
//! [`flush`]: Port::flush

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
use std::os::fd::BorrowedFd;

pub use self::batch::digest_memory;
pub use self::batch::Batch;
pub use self::places::Places;
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

/// Whether a frame can have this length.
fn is_frame(len: usize, mtu: usize) -> bool {
    (ETHERNET_HEADER..=ETHERNET_HEADER + mtu).contains(&len)
}

/// A place where Ethernet frames leave and enter. See the module text for the rules.
pub trait Port: Send {
    /// Kind and destination, as text for users: `mem 0 of 2`, `tap rb0`.
    fn describe(&self) -> String;

    /// Our MAC address on this port.
    fn mac(&self) -> MacAddr;

    /// Largest IP packet, in bytes: a frame is up to this plus the Ethernet header. It may fall while the port is used, when the
    /// network turns out to carry less, and never rises.
    fn mtu(&self) -> usize;

    /// Checksum computation on this port.
    fn checksums(&self) -> Checksums {
        Checksums::Software
    }

    /// The next frame that has arrived. It stays until the next call of any method; calling again
    /// gives the frame after it.
    fn rx_frame(&mut self, now: NicTime) -> Option<&[u8]>;

    /// Room for a frame to `dst`: Ethernet header plus [`Port::mtu`] bytes, contents undefined.
    /// `None` while there is no room. Without [`Port::tx_commit`] nothing happens, and the call may
    /// be repeated.
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]>;

    /// Sends the first `len` bytes of what the last [`Port::tx_frame`] gave. A frame shorter than an Ethernet header or longer than
    /// that room is dropped and counted.
    fn tx_commit(&mut self, now: NicTime, len: usize);

    /// Sends frames that wait for a batch.
    fn flush(&mut self, now: NicTime);

    /// Whether nothing has arrived and no frame waits for [`Port::flush`]. A cheap look that costs no system call; `false` is
    /// always a correct answer. A port that says `true` is looked at again when the clock is read.
    fn is_quiet(&self) -> bool {
        false
    }

    /// When [`Port::flush`] and [`Port::rx_frame`] must be called although nothing arrives.
    fn next_timer(&self) -> Option<NicTime> {
        None
    }

    /// Adds the file descriptors that become readable when a frame arrives. A port without one is polled
    /// in bounded naps.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        let _ = fds;
    }

    /// The next MAC address for which a frame was refused: its host reports that no process receives there. A hint
    /// that an attacker on the path may have forged.
    fn next_refused(&mut self) -> Option<MacAddr> {
        None
    }

    /// Counted since the port was opened.
    fn counters(&self) -> PortCounters;
}

/// How many packets of one size a port takes as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// Most packets; 1: it takes each by itself.
    pub packets: usize,
    /// Most bytes of them together.
    pub bytes: usize,
}

/// A datagram that has arrived.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The sender's address, as the network says it.
    pub from: SocketAddr,
    /// The two ECN bits (RFC 3168 §5).
    pub ecn: u8,
    /// What lies behind the UDP header. Of packets whose payloads are in their places: header and CRC of each.
    pub bytes: &'a [u8],
    /// Those places.
    pub placed: Option<&'a Places>,
}

/// A place where datagrams of the host leave and enter: the kernel does Ethernet, ARP, routes and the IP header.
pub trait DatagramPort: Send {
    /// Kind and address, as text for users: `roce 127.0.0.1:4791`.
    fn describe(&self) -> String;

    /// The address and UDP port that our packets carry as their sender. Addresses of IPv6 have no interface here, nor in any other method.
    fn local(&self) -> SocketAddr;

    /// Largest IP packet to any peer.
    fn mtu(&self) -> usize;

    /// Largest IP packet to a peer. It may fall while the port is used, and never rises.
    fn mtu_to(&mut self, to: IpAddr) -> usize;

    /// How many packets leave as one.
    fn segmentation(&self) -> Segmentation;

    /// Bytes that wait for us before the network loses some, with the kernel's bookkeeping of each packet.
    fn receive_buffer(&self) -> usize;

    /// Sends packets `from..` of a batch to a peer, with these ECN bits. `segmented`: the network may cut them from larger ones. Returns how
    /// many were taken; the others found no room and may be sent again. A packet that is longer than the MTU is taken, dropped and counted.
    fn send(
        &mut self,
        to: SocketAddr,
        ecn: u8,
        segmented: bool,
        batch: &Batch,
        from: usize,
    ) -> usize;

    /// Whether [`DatagramPort::receive`] may find something. It may receive to find out, unless packets are expected in places; default:
    /// yes. A spinning thread asks before it makes a whole step.
    fn poll(&mut self) -> bool {
        true
    }

    /// Where to say in which places the payloads of the next packets are expected, right before [`DatagramPort::receive`]. `None`, the
    /// default: they are not put there.
    fn places(&mut self) -> Option<&mut Places> {
        None
    }

    /// The next datagram that has arrived. It stays until the next call of any method.
    fn receive(&mut self, now: NicTime) -> Option<Datagram<'_>>;

    /// Sends what a wrapper has kept back.
    fn flush(&mut self, now: NicTime) {
        let _ = now;
    }

    /// When [`DatagramPort::flush`] must be called although nothing arrives.
    fn next_timer(&self) -> Option<NicTime> {
        None
    }

    /// Adds the file descriptors that become readable when a datagram arrives.
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>);

    /// The next peer by which a datagram was refused: its host reports that no process receives there. A hint
    /// that an attacker on the path may have forged.
    fn next_refused(&mut self) -> Option<SocketAddr>;

    /// Where TCP connections of the host come in, if the port takes those instead of datagrams.
    fn listener(&self) -> Option<&TcpListener> {
        None
    }

    /// Counted since the port was opened; bytes behind the UDP header.
    fn counters(&self) -> PortCounters;
}

/// A port of either kind.
pub enum AnyPort {
    /// It carries Ethernet frames.
    Frames(Box<dyn Port>),
    /// It carries datagrams of the host.
    Datagrams(Box<dyn DatagramPort>),
}

impl From<Box<dyn Port>> for AnyPort {
    fn from(port: Box<dyn Port>) -> AnyPort {
        AnyPort::Frames(port)
    }
}

impl<P: Port + 'static> From<Box<P>> for AnyPort {
    fn from(port: Box<P>) -> AnyPort {
        AnyPort::Frames(port)
    }
}

impl From<roce::RocePort> for AnyPort {
    fn from(port: roce::RocePort) -> AnyPort {
        AnyPort::Datagrams(Box::new(port))
    }
}

impl AnyPort {
    /// Kind and destination, as text for users.
    pub fn describe(&self) -> String {
        match self {
            AnyPort::Frames(p) => p.describe(),
            AnyPort::Datagrams(p) => p.describe(),
        }
    }

    /// Largest IP packet.
    #[inline]
    pub fn mtu(&self) -> usize {
        match self {
            AnyPort::Frames(p) => p.mtu(),
            AnyPort::Datagrams(p) => p.mtu(),
        }
    }

    /// Counted since the port was opened.
    pub fn counters(&self) -> PortCounters {
        match self {
            AnyPort::Frames(p) => p.counters(),
            AnyPort::Datagrams(p) => p.counters(),
        }
    }

    /// Checksum computation for frames; the kernel computes those of datagrams.
    #[inline]
    pub fn checksums(&self) -> Checksums {
        self.frames().map_or(Checksums::Omitted, |p| p.checksums())
    }

    /// Whether it carries datagrams of IPv6.
    pub fn is_ipv6(&self) -> bool {
        match self {
            AnyPort::Frames(_) => false,
            AnyPort::Datagrams(p) => p.local().is_ipv6(),
        }
    }

    /// The port, if it carries frames.
    #[inline]
    pub fn frames(&self) -> Option<&dyn Port> {
        match self {
            AnyPort::Frames(p) => Some(&**p),
            AnyPort::Datagrams(_) => None,
        }
    }

    /// As [`frames`](AnyPort::frames), to be used.
    #[inline]
    pub fn frames_mut(&mut self) -> Option<&mut Box<dyn Port>> {
        match self {
            AnyPort::Frames(p) => Some(p),
            AnyPort::Datagrams(_) => None,
        }
    }

    /// Adds the descriptors by which it wakes a thread.
    pub fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        match self {
            AnyPort::Frames(p) => p.poll_fds(fds),
            AnyPort::Datagrams(p) => p.poll_fds(fds),
        }
    }
}

impl From<Box<dyn DatagramPort>> for AnyPort {
    fn from(port: Box<dyn DatagramPort>) -> AnyPort {
        AnyPort::Datagrams(port)
    }
}

impl<P: DatagramPort + ?Sized> DatagramPort for Box<P> {
    fn describe(&self) -> String {
        (**self).describe()
    }
    fn local(&self) -> SocketAddr {
        (**self).local()
    }
    fn mtu(&self) -> usize {
        (**self).mtu()
    }
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        (**self).mtu_to(to)
    }
    fn segmentation(&self) -> Segmentation {
        (**self).segmentation()
    }
    fn receive_buffer(&self) -> usize {
        (**self).receive_buffer()
    }
    fn send(
        &mut self,
        to: SocketAddr,
        ecn: u8,
        segmented: bool,
        batch: &Batch,
        from: usize,
    ) -> usize {
        (**self).send(to, ecn, segmented, batch, from)
    }
    fn poll(&mut self) -> bool {
        (**self).poll()
    }
    fn places(&mut self) -> Option<&mut Places> {
        (**self).places()
    }
    fn receive(&mut self, now: NicTime) -> Option<Datagram<'_>> {
        (**self).receive(now)
    }
    fn flush(&mut self, now: NicTime) {
        (**self).flush(now)
    }
    fn next_timer(&self) -> Option<NicTime> {
        (**self).next_timer()
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        (**self).poll_fds(fds)
    }
    fn next_refused(&mut self) -> Option<SocketAddr> {
        (**self).next_refused()
    }
    fn listener(&self) -> Option<&TcpListener> {
        (**self).listener()
    }
    fn counters(&self) -> PortCounters {
        (**self).counters()
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn describe(&self) -> String {
        (**self).describe()
    }
    fn mac(&self) -> MacAddr {
        (**self).mac()
    }
    fn mtu(&self) -> usize {
        (**self).mtu()
    }
    fn checksums(&self) -> Checksums {
        (**self).checksums()
    }
    fn rx_frame(&mut self, now: NicTime) -> Option<&[u8]> {
        (**self).rx_frame(now)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        (**self).tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        (**self).tx_commit(now, len)
    }
    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }
    fn flush(&mut self, now: NicTime) {
        (**self).flush(now)
    }
    fn next_timer(&self) -> Option<NicTime> {
        (**self).next_timer()
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        (**self).poll_fds(fds)
    }
    fn next_refused(&mut self) -> Option<MacAddr> {
        (**self).next_refused()
    }
    fn counters(&self) -> PortCounters {
        (**self).counters()
    }
}
