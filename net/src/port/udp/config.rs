//! How a UDP port is opened, and why it cannot be.

use std::io;
use std::net::SocketAddr;

use crate::port::MacAddr;

/// IP MTU inside VXLAN where the way is not known: for a network that carries 1,500 bytes, less 20
/// of IPv4, 8 of UDP, 8 of VXLAN and 14 of Ethernet.
pub const MTU_DEFAULT: usize = 1_450;

/// How a UDP port is opened.
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// Where to receive; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    /// Configured peers.
    pub peers: Vec<SocketAddr>,
    /// The job's network identifier, 24 bits.
    pub vni: u32,
    /// The job's secret. With one, peers that prove to hold it are learned.
    pub secret: Option<u64>,
    /// MAC address of the NIC.
    pub mac: MacAddr,
    /// IP MTU inside the tunnel. `None`: what the ways to the configured peers carry, at most
    /// [`MTU_MAX`](crate::port::MTU_MAX); without such peers what loopback carries where `bind` is
    /// a loopback address, else [`MTU_DEFAULT`].
    pub mtu: Option<usize>,
}

/// A UDP port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
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
    /// The system gives no random numbers.
    #[error("cannot draw a random key for the UDP port: {0}")]
    Random(#[source] io::Error),
    /// A number is out of range.
    #[error("the UDP port carries an MTU of 576 to 9216 bytes, not {mtu}")]
    Mtu {
        /// As given.
        mtu: usize,
    },
    /// The way to a peer carries less than asked for, or than any host must take.
    #[error("the way to {peer} carries an MTU of {most} bytes in VXLAN, not {mtu}; lower the port's MTU (576 at least), or raise that of the network")]
    Path {
        /// The peer.
        peer: SocketAddr,
        /// What fits.
        most: usize,
        /// As given, or the smallest.
        mtu: usize,
    },
    /// The network identifier has more than 24 bits.
    #[error("a VXLAN network identifier has 24 bits; {vni:#x} has more")]
    Vni {
        /// As given.
        vni: u32,
    },
}
