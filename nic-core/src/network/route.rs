//! A row of the forwarding table, and its text.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use smoltcp::wire::Ipv4Cidr;

use ringbell_net::port::MacAddr;

/// Most routes of a NIC.
pub const ROUTES_MAX: usize = 1_024;

/// The next hop on the way to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The destination itself, which ARP finds.
    Link,
    /// A gateway, which ARP finds.
    Gateway(Ipv4Addr),
    /// The host with this hardware address, without ARP.
    Mac(MacAddr),
}

/// A row of the forwarding table. As text `10.0.2.0/24=1`, or `10.0.2.0/24=1,via=NEXT_HOP` with the
/// address or the hardware address of the next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// First address of the destinations.
    pub network: Ipv4Addr,
    /// Bits that they have in common, 0 to 32.
    pub prefix_len: u8,
    /// Number of the port, from 0.
    pub port: usize,
    /// The next hop.
    pub via: Via,
}

impl Route {
    pub(super) fn cidr(&self) -> Ipv4Cidr {
        Ipv4Cidr::new(self.network, self.prefix_len)
    }
}

/// A text that is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a route; write NETWORK/BITS=PORT or NETWORK/BITS=PORT,via=NEXT_HOP, such as 10.0.2.0/24=1,via=10.0.1.254, with a next hop of A.B.C.D or aa:bb:cc:dd:ee:ff")]
pub struct RouteError(String);

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Route, RouteError> {
        parse(text).ok_or_else(|| RouteError(text.into()))
    }
}

impl TryFrom<&str> for Route {
    type Error = RouteError;

    fn try_from(text: &str) -> Result<Route, RouteError> {
        text.parse()
    }
}

fn parse(text: &str) -> Option<Route> {
    // Rust's numbers may have a sign.
    if text.contains('+') {
        return None;
    }
    let (destination, rest) = text.split_once('=')?;
    let (network, bits) = destination.split_once('/')?;
    let (port, via) = match rest.split_once(",via=") {
        None => (rest, Via::Link),
        Some((port, hop)) => match hop.parse() {
            Ok(gateway) => (port, Via::Gateway(gateway)),
            Err(_) => (port, Via::Mac(mac(hop)?)),
        },
    };
    Some(Route {
        network: network.parse().ok()?,
        prefix_len: bits.parse().ok()?,
        port: port.parse().ok()?,
        via,
    })
}

fn mac(text: &str) -> Option<MacAddr> {
    let mut bytes = text.split(':').map(|b| match b.len() {
        2 => u8::from_str_radix(b, 16).ok(),
        _ => None,
    });
    let mac = [(); 6].map(|()| bytes.next().flatten());
    let [Some(a), Some(b), Some(c), Some(d), Some(e), Some(f)] = mac else {
        return None;
    };
    bytes
        .next()
        .is_none()
        .then_some(MacAddr([a, b, c, d, e, f]))
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}={}", self.network, self.prefix_len, self.port)?;
        match self.via {
            Via::Link => Ok(()),
            Via::Gateway(ip) => write!(f, ",via={ip}"),
            Via::Mac(mac) => write!(f, ",via={mac}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in [
            "10.0.2.0/24=1",
            "0.0.0.0/0=0,via=10.0.1.254",
            "10.0.2.7/32=63,via=02:00:00:00:00:ff",
        ] {
            let route: Result<Route, _> = text.parse();
            assert_eq!(route.map(|r| r.to_string()).as_deref(), Ok(text));
        }
        for text in [
            "",
            "=",
            "10.0.2.0=1",
            "10.0.2.0/24",
            "10.0.2.0/24=",
            "10.0.2.0/24=x",
            "10.0.2.0/24=1,via=",
            "10.0.2.0/24=1,via=02:00:00:00:00",
            "10.0.2.0/24=1,via=02:00:00:00:00:00:00",
            "10.0.2.0/24=1,via=+2:00:00:00:00:00",
            "10.0.2.0/999=1",
            "::/0=1",
        ] {
            let route: Result<Route, _> = text.parse();
            assert!(route.is_err(), "{text}");
        }
    }
}
