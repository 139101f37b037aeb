//! Ports: the NIC's interfaces for Ethernet frames.
//!
//! A [`Port`] carries whole Ethernet frames. Its buffers are reused, so no frame costs an
//! allocation; the caller writes a frame in place ([`tx_frame`], [`tx_commit`]) and reads one in
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
//! | any of these, with faults | [`impair`] | – |
//! | any of these, recorded | [`capture`] | a writable file |
//!
//! [`tx_frame`]: Port::tx_frame
//! [`tx_commit`]: Port::tx_commit
//! [`rx_frame`]: Port::rx_frame
//! [`flush`]: Port::flush

#[cfg(feature = "pcap")]
pub mod capture;
pub mod impair;
pub mod mem;
#[cfg(feature = "tap")]
pub mod tap;
pub mod udp;

use std::os::fd::BorrowedFd;

use crate::types::NicTime;
pub use crate::wire::MacAddr;
use crate::wire::ETHERNET_HEADER;

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
