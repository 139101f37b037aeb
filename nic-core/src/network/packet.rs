//! What the network and the transports hand each other: packets, where they come from, and who
//! waits for a hop.

use std::net::SocketAddr;

use ringbell_net::port::{MacAddr, Places};
use ringbell_net::wire::frame::{TcpFrame, UdpFrame};

/// A port and a hardware address on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The port's number.
    pub port: usize,
    /// The address.
    pub mac: MacAddr,
}

/// What the packets of a transport carry. A NIC has one transport of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP over IPv4.
    Tcp,
    /// RoCEv2 over UDP.
    Roce,
    /// ACCL's messages over UDP.
    Udp,
    /// iWARP over the kernel's TCP, of which no port carries packets.
    Iwarp,
}

/// How many protocols there are.
pub const PROTOCOLS: usize = 4;

/// A connection that waits for a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    /// Its transport.
    pub protocol: Protocol,
    /// Its number there.
    pub index: usize,
}

/// A packet for our address, with the frame that carries it.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Where it came from. A port of datagrams knows no hardware address.
    pub from: Link,
    /// Its headers.
    pub headers: Headers,
    /// From the Ethernet header on; of a port of datagrams, what lies behind the UDP header.
    pub frame: &'a [u8],
    /// Of several packets whose payloads are in their places; the frame has header and CRC of each.
    pub placed: Option<&'a Places>,
}

/// A host that has refused a packet, or to which no way leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// By a frame.
    Link(Link),
    /// By a datagram of port `port`.
    Peer {
        /// Our port.
        port: usize,
        /// Where it was sent to.
        peer: SocketAddr,
    },
    /// No way leads there any more, as the port knows.
    NoWay(Link),
}

/// How datagrams leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagrams {
    /// The ECN bits.
    pub ecn: u8,
    /// The kernel may cut packets from larger ones: it then numbers them by their IPv4
    /// identification, which the ICRC covers.
    pub segmented: bool,
}

/// What the headers of a packet say.
#[derive(Debug)]
pub enum Headers {
    /// A TCP segment.
    Tcp(TcpFrame),
    /// A UDP datagram.
    Udp(UdpFrame),
}
