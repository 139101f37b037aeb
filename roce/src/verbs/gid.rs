//! Addresses of contexts: what a peer needs to reach one.
//!
//! ```text
//! byte  0        6          8          10     12         16
//!       | zeros  | features | UDP port | ffff | a.b.c.d   |   IPv4
//!       | zeros  | features | UDP port | zeros          1 |   ::1
//!       0      2          4          6      8
//!       | fe80 | features | UDP port | 0000 | interface   |   link-local
//! ```
//!
//! Without features and port it is the address of any RoCEv2 NIC (IBTA annex A17 §A17.4.5.2) at UDP
//! port 4791: IPv6, or IPv4 mapped to it. Programs exchange these 16 bytes without looking at them,
//! so several processes on one address find each other by their ports. Any other address of IPv6
//! leaves no room for a port.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;

/// What a context of ours can beside the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Longest payload of a packet, in KiB; 0: 4 KiB, as the standard says.
    pub payload_kib: u8,
    /// Packets over loopback need no invariant CRC.
    pub without_icrc: bool,
    /// Packets that come early are kept and reported, and marks of switches answered: losses are
    /// repaired selectively, and the pace follows the marks.
    pub selective: bool,
}

/// Features with a bit each.
const WITHOUT_ICRC: u8 = 1;
const SELECTIVE: u8 = 2;

impl Features {
    /// In a byte, as datagrams between contexts of ours carry them. It is not 0: a payload is of 4
    /// KiB at least.
    pub(super) fn to_byte(self) -> u8 {
        self.payload_kib << 2 | self.bits()
    }

    /// From that byte; 0, which other NICs send, stands for none.
    pub(super) fn from_byte(byte: u8) -> Features {
        Features::of(byte >> 2, byte)
    }

    fn bits(self) -> u8 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.without_icrc, WITHOUT_ICRC) | bit(self.selective, SELECTIVE)
    }

    fn of(payload_kib: u8, bits: u8) -> Features {
        Features {
            payload_kib,
            without_icrc: bits & WITHOUT_ICRC != 0,
            selective: bits & SELECTIVE != 0,
        }
    }

    /// What two contexts both can.
    #[must_use]
    pub(super) fn common(self, other: Features) -> Features {
        Features {
            payload_kib: self.payload_kib.min(other.payload_kib),
            without_icrc: self.without_icrc && other.without_icrc,
            selective: self.selective && other.selective,
        }
    }
}

/// Address of a context. See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    pub(super) fn new(at: SocketAddr, features: Features) -> Gid {
        let ip = match at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut gid = Gid(ip.octets());
        if let Some(fields) = fields_at(&ip).filter(|_| at.port() != ROCE_UDP_PORT) {
            let [p0, p1] = at.port().to_be_bytes();
            let bits = features.bits();
            gid.0[fields..fields + 4].copy_from_slice(&[features.payload_kib, bits, p0, p1]);
        }
        gid
    }

    /// Whether the address of a context can name its UDP port.
    pub(super) fn names_port(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) => fields_at(&ip).is_some(),
        }
    }

    /// The address without features and port, and where they are.
    fn split(&self) -> (Ipv6Addr, Option<usize>) {
        let gid = Ipv6Addr::from(self.0);
        // The fields are in the place of zeros.
        let without = |at: usize| {
            let mut bytes = self.0;
            bytes[at..at + 4].fill(0);
            Ipv6Addr::from(bytes)
        };
        let found = [AT_FRONT, AT_LINK_LOCAL].into_iter().find_map(|at| {
            let ip = without(at);
            (fields_at(&ip) == Some(at)).then_some((ip, Some(at)))
        });
        found.unwrap_or((gid, None))
    }

    /// Address and UDP port, and what the context can. `None`: no context has this address.
    pub fn endpoint(&self) -> Option<(SocketAddr, Features)> {
        let (ip, at) = self.split();
        let fields = at.map_or([0; 4], |at| std::array::from_fn(|i| self.0[at + i]));
        let [payload_kib, flags, p0, p1] = fields;
        let (port, features) = match u16::from_be_bytes([p0, p1]) {
            0 => (ROCE_UDP_PORT, Features::default()),
            port => (port, Features::of(payload_kib, flags)),
        };
        let ip = ip.to_canonical();
        let is_host = match ip {
            IpAddr::V4(ip) => ringbell_net::is_host(ip),
            // What begins with a byte of zeros and names no port is none (RFC 4291 §2.4), nor is a
            // link-local address with more bits.
            IpAddr::V6(ip) => {
                let is_other = ip.octets()[0] == 0 || ip.is_unicast_link_local();
                at.is_some() || !is_other && !ip.is_multicast()
            }
        };
        is_host.then_some((SocketAddr::new(ip, port), features))
    }

    /// Whether it names a UDP port, as no other NIC's does.
    pub fn is_ours(&self) -> bool {
        let (_, at) = self.split();
        at.is_some_and(|at| self.0[at + 2..at + 4] != [0, 0])
    }
}

/// Where features and port are in the GID of IPv4 and of `::1`, and in that of a link-local
/// address.
const AT_FRONT: usize = 6;
const AT_LINK_LOCAL: usize = 2;

/// Where the GID of an address has room for features and port.
fn fields_at(ip: &Ipv6Addr) -> Option<usize> {
    let is_link_local = ip.segments()[..4] == [0xfe80, 0, 0, 0];
    let is_front = ip.to_ipv4_mapped().is_some() || *ip == Ipv6Addr::LOCALHOST;
    match (is_front, is_link_local) {
        (true, _) => Some(AT_FRONT),
        (_, true) => Some(AT_LINK_LOCAL),
        _ => None,
    }
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_standard_port_gives_the_standard_address() {
        let at = |port| SocketAddr::from(([10, 0, 0, 7], port));
        let ours = Features {
            payload_kib: 60,
            without_icrc: true,
            selective: true,
        };
        let plain = Gid::new(at(4791), ours);
        assert_eq!(plain.to_string(), "::ffff:10.0.0.7");
        assert_eq!(plain.endpoint(), Some((at(4791), Features::default())));
        assert!(!plain.is_ours());
        let own = Gid::new(at(40_000), ours);
        assert_eq!(own.endpoint(), Some((at(40_000), ours)));
        assert!(own.is_ours());
        // With a bit beside the fields it is none, or that of a host of IPv6; and the address must
        // be a host's.
        for bit in (0..48).chain(80..96) {
            let mut gid = own;
            gid.0[bit / 8] ^= 1 << (bit % 8);
            match gid.endpoint() {
                Some((SocketAddr::V6(at), _)) if bit < 8 => {
                    assert_eq!((at.ip().octets(), at.port()), (gid.0, 4791));
                    assert!(!gid.is_ours());
                }
                other => assert_eq!(other, None, "bit {bit}"),
            }
        }
        for ip in [
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::BROADCAST,
            Ipv4Addr::new(224, 0, 0, 1),
        ] {
            assert_eq!(Gid::new((ip, 1).into(), ours).endpoint(), None);
        }
    }

    #[test]
    fn an_address_of_ipv6_is_its_gid_and_names_a_port_where_there_is_room() {
        let ours = Features {
            payload_kib: 60,
            without_icrc: true,
            selective: true,
        };
        for (ip, own) in [
            ("::1", Some("::3c03:9c40:0:0:1")),
            ("fe80::7", Some("fe80:3c03:9c40::7")),
            ("fd00::7", None),
            ("2001:db8::1:2:3", None),
        ] {
            let address: IpAddr = ip.parse().unwrap(); // an address
            let plain = Gid::new((address, 4791).into(), ours);
            assert_eq!(plain.to_string(), ip);
            let standard = ((address, 4791).into(), Features::default());
            assert_eq!(plain.endpoint(), Some(standard));
            assert!(!plain.is_ours());
            assert_eq!(Gid::names_port(address), own.is_some(), "{ip}");
            let Some(text) = own else { continue };
            let gid = Gid::new((address, 40_000).into(), ours);
            assert_eq!(gid.to_string(), text);
            assert_eq!(gid.endpoint(), Some(((address, 40_000).into(), ours)));
            assert!(gid.is_ours());
        }
        for text in [
            "::",
            "::2",
            "ff02::1",
            "fe80::1:0:0:0:1",
            "febf::1",
            "::10.0.0.1",
        ] {
            let ip: Ipv6Addr = text.parse().unwrap(); // an address
            assert_eq!(Gid(ip.octets()).endpoint(), None, "{text}");
        }
    }
}
