//! The first head on a connection from the side that has dialled: its identity, and whether the
//! connection is the link, or asks for it.
//!
//! Little endian: kind 1, or 21 of one that asks, version 3, two bytes of zeros; then the address
//! of IPv4 on which the sender is dialled, and its port in eight bytes.

use std::net::{Ipv4Addr, SocketAddrV4};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::HEAD;

const KIND: u8 = 1;
const ASKS: u8 = 21;
const VERSION: u8 = 3;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    kind: u8,
    version: u8,
    zeros: U16,
    ip: U32,
    port: U64,
    rest: [u8; HEAD - 16],
}

/// What the side that has dialled says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hello {
    /// The link comes from this address.
    Link(SocketAddrV4),
    /// The NIC with this address wants to be dialled; this connection carries nothing else.
    Ask(SocketAddrV4),
}

/// The head that says so.
pub(super) fn encode(hello: Hello) -> [u8; HEAD] {
    let (kind, from) = match hello {
        Hello::Link(from) => (KIND, from),
        Hello::Ask(from) => (ASKS, from),
    };
    let bytes = Bytes {
        kind,
        version: VERSION,
        zeros: U16::ZERO,
        ip: U32::new(u32::from(*from.ip())),
        port: U64::new(from.port().into()),
        rest: [0; HEAD - 16],
    };
    zerocopy::transmute!(bytes)
}

/// What a head says, if it is such a one.
pub(super) fn decode(head: &[u8; HEAD]) -> Option<Hello> {
    let hello: &Bytes = zerocopy::transmute_ref!(head);
    if hello.version != VERSION {
        return None;
    }
    let port = u16::try_from(hello.port.get()).ok()?;
    let from = SocketAddrV4::new(Ipv4Addr::from(hello.ip.get()), port);
    match hello.kind {
        KIND => Some(Hello::Link(from)),
        ASKS => Some(Hello::Ask(from)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_head_and_other_heads_have_none() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 65_535);
        let head = encode(Hello::Link(from));
        assert_eq!(head[..9], [1, 3, 0, 0, 3, 2, 1, 10, 0xff]);
        assert_eq!(decode(&head), Some(Hello::Link(from)));
        let ask = encode(Hello::Ask(from));
        assert_eq!(decode(&ask), Some(Hello::Ask(from)));
        assert_eq!((ask[0], &ask[1..]), (21, &head[1..]));
        for (at, byte) in [(0, 2), (1, 2), (10, 1), (15, 0x80)] {
            let mut other = head;
            other[at] = byte;
            assert_eq!(decode(&other), None);
        }
    }
}
