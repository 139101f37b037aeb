//! Invariant CRC of RoCEv2 (annex A17 §A17.3.3, IBTA vol. 1 §7.8.1).
//!
//! CRC-32 as Ethernet's, over the packet from the IP header to the padding, with ones in the place
//! of what routers may change: of IPv4 the type of service, the time to live and the checksum; of
//! IPv6 the traffic class, the flow label and the hop limit; of UDP the checksum; of the base
//! header the byte with the congestion marks. Eight bytes of ones stand before it for InfiniBand's
//! local header. The result lies in the packet with its low byte first.
//!
//! It covers the identification and the flags of IPv4 ([`Flow::fragment`]): on ports of datagrams
//! the kernel sets them, and the NIC assumes [`UNFRAGMENTED`](crate::wire::udp::UNFRAGMENTED).

use std::net::SocketAddr;

use crc_fast::{CrcAlgorithm, Digest};

use super::bth::BTH_BYTES;

/// Bytes of the invariant CRC.
pub const ICRC_BYTES: usize = 4;

const UDP_BYTES: usize = 8;
/// Eight bytes of ones, an IPv6 header, UDP, base header.
const HEAD_MAX: usize = 8 + 40 + UDP_BYTES + BTH_BYTES;
const PROTOCOL_UDP: u8 = 17;
const ECN_BYTE: usize = 4;

/// What the CRC covers of a packet's IP and UDP headers, beside their lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Source, with its UDP port.
    pub from: SocketAddr,
    /// Destination, with its UDP port.
    pub to: SocketAddr,
    /// Identification, flags and fragment offset of IPv4.
    pub fragment: u32,
}

/// The headers with ones in place of what may change.
struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn ones(&mut self, n: usize) {
        // The array was filled with them.
        self.len += n;
    }
}

/// The CRC of a packet from its base header to its padding, as it lies behind them. `None` when it
/// is too short or too long, or the addresses are of two families.
#[inline]
pub fn icrc(flow: &Flow, packet: &[u8]) -> Option<[u8; ICRC_BYTES]> {
    let (bth, rest) = packet.split_first_chunk::<BTH_BYTES>()?;
    let mut digest = begin(flow, bth, packet.len())?;
    digest.update(rest);
    Some(finish(&digest))
}

/// The CRC so far, over the headers of a packet of `len` bytes from its base header to its padding.
/// What lies behind the base header follows in pieces. `None` as for [`icrc`].
pub fn begin(flow: &Flow, bth: &[u8; BTH_BYTES], len: usize) -> Option<Digest> {
    let udp = UDP_BYTES + len + ICRC_BYTES;
    let udp_len = u16::try_from(udp).ok()?;
    let mut head = Head {
        bytes: [0xff; HEAD_MAX],
        len: 8,
    };
    match (flow.from, flow.to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            let total = udp_len.checked_add(20)?;
            head.put(&[0x45]);
            head.ones(1);
            head.put(&total.to_be_bytes());
            head.put(&flow.fragment.to_be_bytes());
            head.ones(1);
            head.put(&[PROTOCOL_UDP]);
            head.ones(2);
            head.put(&from.ip().octets());
            head.put(&to.ip().octets());
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            head.put(&[0x6f]);
            head.ones(3);
            head.put(&udp_len.to_be_bytes());
            head.put(&[PROTOCOL_UDP]);
            head.ones(1);
            head.put(&from.ip().octets());
            head.put(&to.ip().octets());
        }
        _ => return None,
    }
    head.put(&flow.from.port().to_be_bytes());
    head.put(&flow.to.port().to_be_bytes());
    head.put(&udp_len.to_be_bytes());
    head.ones(2);
    head.put(&bth[..ECN_BYTE]);
    head.ones(1);
    head.put(&bth[ECN_BYTE + 1..]);
    let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
    digest.update(&head.bytes[..head.len]);
    Some(digest)
}

/// The CRC as it lies in the packet.
pub fn finish(digest: &Digest) -> [u8; ICRC_BYTES] {
    // 32 bits of a 64-bit result.
    (digest.finalize() as u32).to_le_bytes()
}
