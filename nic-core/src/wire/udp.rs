//! IPv4 and UDP headers of RoCEv2 packets on a port of frames.
//!
//! The identification is 0, DF is set, and the UDP checksum is 0: the invariant CRC of RoCEv2 covers what a checksum would (InfiniBand
//! Architecture, annex 17), and a plain socket of the host sends the same.

use std::net::SocketAddrV4;

/// Bytes of both headers.
pub const IP_UDP_HEADERS: usize = 28;
/// Identification, flags and fragment offset: 0, not to be fragmented.
pub const UNFRAGMENTED: u32 = 0x0000_4000;

/// Writes the headers of a payload of `len` bytes, with these ECN bits, to the front of `room`.
///
/// # Panics
/// When `room` is shorter than [`IP_UDP_HEADERS`].
pub fn emit(room: &mut [u8], from: SocketAddrV4, to: SocketAddrV4, ecn: u8, len: usize) {
    // A packet is at most as long as a port's MTU.
    let (total, udp) = ((IP_UDP_HEADERS + len) as u16, (8 + len) as u16);
    room[0] = 0x45;
    room[1] = ecn & 3;
    room[2..4].copy_from_slice(&total.to_be_bytes());
    room[4..8].copy_from_slice(&UNFRAGMENTED.to_be_bytes());
    room[8..12].copy_from_slice(&[64, 17, 0, 0]);
    room[12..16].copy_from_slice(&from.ip().octets());
    room[16..20].copy_from_slice(&to.ip().octets());
    let sum = !sum(&room[..20]);
    room[10..12].copy_from_slice(&sum.to_be_bytes());
    room[20..22].copy_from_slice(&from.port().to_be_bytes());
    room[22..24].copy_from_slice(&to.port().to_be_bytes());
    room[24..26].copy_from_slice(&udp.to_be_bytes());
    room[26..28].fill(0);
}

/// Whether the checksum of an IPv4 header without options is right (RFC 791 §3.1).
pub(super) fn is_intact(header: &[u8]) -> bool {
    sum(header) == u16::MAX
}

/// The ones' complement sum of a header (RFC 1071).
fn sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::{Ipv4Packet, UdpPacket};

    use super::*;

    #[test]
    fn headers_are_what_smoltcp_reads() {
        let from = SocketAddrV4::new([10, 0, 0, 9].into(), 50_000);
        let to = SocketAddrV4::new([10, 0, 0, 7].into(), 4791);
        for len in [0, 1, 12, 1400, 65_507] {
            let mut packet = vec![0xaa; IP_UDP_HEADERS + len];
            emit(&mut packet, from, to, 2, len);
            assert!(is_intact(&packet[..20]));
            let ip = Ipv4Packet::new_checked(&packet).unwrap(); // as long as it says
            assert!(ip.verify_checksum() && ip.dont_frag() && ip.ident() == 0);
            assert_eq!((ip.src_addr(), ip.dst_addr()), (*from.ip(), *to.ip()));
            assert_eq!((ip.ecn(), ip.dscp(), ip.hop_limit()), (2, 0, 64));
            let udp = UdpPacket::new_checked(ip.payload()).unwrap(); // likewise
            assert_eq!((udp.src_port(), udp.dst_port()), (50_000, 4791));
            assert_eq!((udp.payload().len(), udp.checksum()), (len, 0));
            packet[9] ^= 1;
            assert!(!is_intact(&packet[..20]));
        }
    }
}
