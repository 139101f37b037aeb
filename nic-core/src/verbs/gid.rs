//! Addresses of contexts: what a peer needs to reach one.
//!
//! ```text
//! byte  0        6          8          10     12         16
//!       | zeros  | features | UDP port | ffff | a.b.c.d   |
//! ```
//!
//! Without features and port it is the address of any RoCEv2 NIC (IBTA annex A17 §A17.4.5.2): IPv4 mapped to IPv6, UDP port 4791. Programs
//! exchange these 16 bytes without looking at them, so several processes on one address find each other by their ports.

use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;

/// What a context of ours can beside the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Longest payload of a packet, in KiB; 0: 4 KiB, as the standard says.
    pub payload_kib: u8,
    /// Packets over loopback need no invariant CRC.
    pub without_icrc: bool,
}

impl Features {
    /// What two contexts both can.
    #[must_use]
    pub(super) fn common(self, other: Features) -> Features {
        Features {
            payload_kib: self.payload_kib.min(other.payload_kib),
            without_icrc: self.without_icrc && other.without_icrc,
        }
    }
}

/// Address of a context. See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    pub(super) fn new(at: SocketAddrV4, features: Features) -> Gid {
        let mut gid = [0; 16];
        if at.port() != ROCE_UDP_PORT {
            gid[6] = features.payload_kib;
            gid[7] = u8::from(features.without_icrc);
            gid[8..10].copy_from_slice(&at.port().to_be_bytes());
        }
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&at.ip().octets());
        Gid(gid)
    }

    /// Address and UDP port, and what the context can. `None`: no context has this address.
    pub fn endpoint(&self) -> Option<(SocketAddrV4, Features)> {
        let [0, 0, 0, 0, 0, 0, payload_kib, flags, p0, p1, 0xff, 0xff, a, b, c, d] = self.0 else {
            return None;
        };
        let (port, features) = match u16::from_be_bytes([p0, p1]) {
            0 => (ROCE_UDP_PORT, Features::default()),
            port => (
                port,
                Features {
                    payload_kib,
                    without_icrc: flags & 1 != 0,
                },
            ),
        };
        let ip = Ipv4Addr::new(a, b, c, d);
        let is_host = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
        is_host.then_some((SocketAddrV4::new(ip, port), features))
    }

    /// Whether it names a UDP port, as no other NIC's does.
    pub fn is_ours(&self) -> bool {
        self.0[8..10] != [0, 0]
    }
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", std::net::Ipv6Addr::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_port_gives_the_standard_address() {
        let at = |port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 7), port);
        let ours = Features {
            payload_kib: 60,
            without_icrc: true,
        };
        let plain = Gid::new(at(4791), ours);
        assert_eq!(plain.to_string(), "::ffff:10.0.0.7");
        assert_eq!(plain.endpoint(), Some((at(4791), Features::default())));
        assert!(!plain.is_ours());
        let own = Gid::new(at(40_000), ours);
        assert_eq!(own.endpoint(), Some((at(40_000), ours)));
        assert!(own.is_ours());
        // Not one bit beside the fields may be set, and the address must be a host's.
        for bit in (0..48).chain(80..96) {
            let mut gid = own;
            gid.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(gid.endpoint(), None, "bit {bit}");
        }
        for ip in [
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::BROADCAST,
            Ipv4Addr::new(224, 0, 0, 1),
        ] {
            assert_eq!(Gid::new(SocketAddrV4::new(ip, 1), ours).endpoint(), None);
        }
    }
}
