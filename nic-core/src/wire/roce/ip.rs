//! IPv4 and UDP headers of the RoCEv2 packets that this NIC sends through ports of frames.
//!
//! The identification is 0 and DF is set, because the invariant CRC covers both and the kernel of a plain UDP socket uses the same
//! values. The UDP checksum is 0: the invariant CRC takes its place (annex A17 §A17.3.1.3).

use std::net::{Ipv4Addr, SocketAddrV4};

use super::icrc::Flow;
use ringbell_nic_abi::roce::ROCE_UDP_PORT;

/// Bytes of both headers.
pub const IP_UDP_BYTES: usize = 28;
const PROTOCOL_UDP: u8 = 17;
/// ECN-capable transport (RFC 3168 §5): a switch marks the packet instead of dropping it.
const ECT0: u8 = 0x02;

/// Writes the headers of a packet of `len` bytes in all to the front of `room`.
///
/// # Panics
/// When `room` is shorter than [`IP_UDP_BYTES`].
pub fn emit(room: &mut [u8], from: SocketAddrV4, to: Ipv4Addr, len: usize) {
    // A packet is at most as long as a port's MTU.
    let total = len as u16;
    room[..IP_UDP_BYTES].fill(0);
    room[0] = 0x45;
    room[1] = ECT0;
    room[2..4].copy_from_slice(&total.to_be_bytes());
    room[4..8].copy_from_slice(&Flow::DF.to_be_bytes());
    room[8] = 64;
    room[9] = PROTOCOL_UDP;
    room[12..16].copy_from_slice(&from.ip().octets());
    room[16..20].copy_from_slice(&to.octets());
    let sum = checksum(&room[..20]);
    room[10..12].copy_from_slice(&sum.to_be_bytes());
    room[20..22].copy_from_slice(&from.port().to_be_bytes());
    room[22..24].copy_from_slice(&ROCE_UDP_PORT.to_be_bytes());
    room[24..26].copy_from_slice(&(total - 20).to_be_bytes());
}

/// The checksum of an IPv4 header (RFC 791 §3.1).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
