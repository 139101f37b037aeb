//! Why ports, addresses and routes make no network.

use std::net::Ipv4Addr;

use super::route::{Route, ROUTES_MAX};
use ringbell_net::port::MacAddr;

/// Most ports of a NIC.
pub const PORTS_MAX: usize = 64;

/// Ports, addresses or routes that make no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The address names no single host.
    #[error("{ip}/{prefix_len} is no host address; give the NIC one such as 10.0.0.1/24, and an address of IPv6 to its port, such as roce:[fd00::1]")]
    Address {
        /// As given.
        ip: Ipv4Addr,
        /// As given.
        prefix_len: u8,
    },
    /// The port's hardware address is a group address.
    #[error("the address {mac} of port {port} is not a unicast address")]
    Mac {
        /// Its number.
        port: usize,
        /// The port's.
        mac: MacAddr,
    },
    /// More ports than a NIC can have.
    #[error("a NIC has at most {PORTS_MAX} ports, not {ports}")]
    TooManyPorts {
        /// As given.
        ports: usize,
    },
    /// More routes than the table holds.
    #[error("a NIC has at most {ROUTES_MAX} routes")]
    TooManyRoutes,
    /// The destination is no network.
    #[error("route {route}: the destination is no network; bits after the prefix, which has at most 32, must be 0")]
    Prefix {
        /// As given.
        route: Route,
    },
    /// A port of datagrams with a next hop.
    #[error(
        "route {route}: a port of datagrams takes no next hop; the host's own routes choose it"
    )]
    HostRoutes {
        /// As given.
        route: Route,
    },
    /// The NIC has no such port.
    #[error("route {route}: the NIC has {}", numbered(*ports))]
    NoSuchPort {
        /// As given.
        route: Route,
        /// How many ports there are.
        ports: usize,
    },
    /// No packet can be sent to the next hop.
    #[error("route {route}: the next hop must be another host, by an IPv4 or a unicast hardware address")]
    NextHop {
        /// As given.
        route: Route,
    },
    /// Two routes have one destination.
    #[error("route {route}: this destination has a route already; it cannot be given twice")]
    Duplicate {
        /// The second one.
        route: Route,
    },
}

fn numbered(ports: usize) -> String {
    match ports {
        0 => "no port; give it one".into(),
        1 => "port 0 alone".into(),
        _ => format!("ports 0 to {}", ports - 1),
    }
}
