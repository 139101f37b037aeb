//! The first head on a link from the side that has dialled: its identity.
//!
//! Little endian: kind 1, version 3, two bytes of zeros; then the address of IPv4 on which the
//! sender is dialled, and its port in eight bytes.

use std::net::{Ipv4Addr, SocketAddrV4};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::HEAD;

const KIND: u8 = 1;
const VERSION: u8 = 3;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Hello {
    kind: u8,
    version: u8,
    zeros: U16,
    ip: U32,
    port: U64,
    rest: [u8; HEAD - 16],
}

/// The head that says that it comes from this address.
pub(super) fn encode(from: SocketAddrV4) -> [u8; HEAD] {
    let hello = Hello {
        kind: KIND,
        version: VERSION,
        zeros: U16::ZERO,
        ip: U32::new(u32::from(*from.ip())),
        port: U64::new(from.port().into()),
        rest: [0; HEAD - 16],
    };
    zerocopy::transmute!(hello)
}

/// Who has sent a head, if it says that.
pub(super) fn decode(head: &[u8; HEAD]) -> Option<SocketAddrV4> {
    let hello: &Hello = zerocopy::transmute_ref!(head);
    if (hello.kind, hello.version) != (KIND, VERSION) {
        return None;
    }
    let port = u16::try_from(hello.port.get()).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(hello.ip.get()), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_head_and_other_heads_have_none() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 65_535);
        let head = encode(from);
        assert_eq!(head[..9], [1, 3, 0, 0, 3, 2, 1, 10, 0xff]);
        assert_eq!(decode(&head), Some(from));
        for (at, byte) in [(0, 2), (1, 2), (10, 1), (15, 0x80)] {
            let mut other = head;
            other[at] = byte;
            assert_eq!(decode(&other), None);
        }
    }
}
