//! IP and UDP headers of RoCEv2 packets: on a port of frames, and in the capture of a port of
//! datagrams.
//!
//! Of IPv4 the identification is 0, DF is set, and the UDP checksum is 0: the invariant CRC of
//! RoCEv2 covers what a checksum would (InfiniBand Architecture, annex 17), and a plain socket of
//! the host sends the same. IPv6 wants the checksum (RFC 8200 §8.1).

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of an IPv4 and a UDP header.
pub const IP_UDP_HEADERS: usize = 28;
/// Bytes of an IPv6 and a UDP header.
pub const IPV6_UDP_HEADERS: usize = 48;
/// ECN bits of a transport that knows them (RFC 3168 §5): a switch marks its packets instead of
/// dropping them.
pub const ECT0: u8 = 2;
/// Both ECN bits: a switch has marked the packet.
pub const MARKED: u8 = 3;
/// Identification of UDP in IP headers.
const PROTOCOL_UDP: u8 = 17;

/// Bytes of the headers of a datagram to an address.
#[inline]
pub const fn headers_to(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => IP_UDP_HEADERS,
        IpAddr::V6(_) => IPV6_UDP_HEADERS,
    }
}

/// Writes the headers of the payload behind them to the front of `packet`, with these ECN bits: as
/// many bytes as [`headers_to`] says. `false`: the addresses are of two families, or the packet is
/// too long or too short.
pub fn emit_any(packet: &mut [u8], from: SocketAddr, to: SocketAddr, ecn: u8) -> bool {
    let Some(len) = packet.len().checked_sub(headers_to(to.ip())) else {
        return false;
    };
    // The length of IPv6 leaves its own header out.
    let counted = if to.is_ipv6() { 8 + len } else { packet.len() };
    if u16::try_from(counted).is_err() {
        return false;
    }
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => emit(packet, from, to, ecn, len),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => emit_ipv6(packet, from, to, ecn),
        _ => return false,
    }
    true
}

/// Writes the headers before a payload, with flow label 0.
fn emit_ipv6(packet: &mut [u8], from: SocketAddrV6, to: SocketAddrV6, ecn: u8) {
    let (ip, datagram) = packet.split_at_mut(IPV6_UDP_HEADERS - 8);
    // A packet is no longer than 64 KiB.
    let len = (datagram.len() as u16).to_be_bytes();
    ip[..4].copy_from_slice(&[0x60, (ecn & 3) << 4, 0, 0]);
    ip[4..6].copy_from_slice(&len);
    ip[6..8].copy_from_slice(&[PROTOCOL_UDP, 64]);
    ip[8..24].copy_from_slice(&from.ip().octets());
    ip[24..].copy_from_slice(&to.ip().octets());
    datagram[..2].copy_from_slice(&from.port().to_be_bytes());
    datagram[2..4].copy_from_slice(&to.port().to_be_bytes());
    datagram[4..6].copy_from_slice(&len);
    datagram[6..8].fill(0);
    // The addresses, the protocol and the length stand for the header (RFC 8200 §8.1).
    let pseudo = [len[0], len[1], 0, PROTOCOL_UDP];
    let sum = match !sum([&ip[8..], &pseudo, datagram]) {
        0 => u16::MAX,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}

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
    room[8..12].copy_from_slice(&[64, PROTOCOL_UDP, 0, 0]);
    room[12..16].copy_from_slice(&from.ip().octets());
    room[16..20].copy_from_slice(&to.ip().octets());
    let sum = !sum([&room[..20]]);
    room[10..12].copy_from_slice(&sum.to_be_bytes());
    room[20..22].copy_from_slice(&from.port().to_be_bytes());
    room[22..24].copy_from_slice(&to.port().to_be_bytes());
    room[24..26].copy_from_slice(&udp.to_be_bytes());
    room[26..28].fill(0);
}

/// Whether the checksum of an IPv4 header without options is right (RFC 791 §3.1).
pub(super) fn is_intact(header: &[u8]) -> bool {
    sum([header]) == u16::MAX
}

/// The ones' complement sum of parts, all but the last of an even length (RFC 1071). Together at
/// most 64 KiB.
fn sum<const N: usize>(parts: [&[u8]; N]) -> u16 {
    let words = parts.iter().flat_map(|p| p.chunks(2));
    let low = |w: &[u8]| w.get(1).map_or(0, |b| u32::from(*b));
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | low(w)).sum();
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

    #[test]
    fn headers_of_ipv6_have_a_checksum_and_mixed_families_none() {
        let from: SocketAddr = "[fd00::9]:50000".parse().unwrap(); // an address
        let to: SocketAddr = "[fd00::7]:4791".parse().unwrap(); // likewise
        for len in [0, 1, 12, 1401, 65_487] {
            let mut packet = vec![0xa5; IPV6_UDP_HEADERS + len];
            assert!(emit_any(&mut packet, from, to, 3));
            let number = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
            assert_eq!((packet[0] >> 4, packet[1] >> 4 & 3), (6, 3));
            assert_eq!((number(4), number(44)), (8 + len, 8 + len));
            assert_eq!((packet[6], number(40), number(42)), (17, 50_000, 4791));
            let SocketAddr::V6(a) = from else { panic!() };
            assert_eq!(packet[8..24], a.ip().octets());
            // With its checksum in place the sum of all is that of ones.
            let pseudo = [packet[4], packet[5], 0, 17];
            assert_eq!(sum([&packet[8..40], &pseudo, &packet[40..]]), u16::MAX);
        }
        let v4 = SocketAddr::from(([10, 0, 0, 1], 4791));
        let mut packet = vec![0; 100];
        assert!(!emit_any(&mut packet, v4, to, 0) && !emit_any(&mut packet, from, v4, 0));
        assert!(!emit_any(&mut packet[..47], from, to, 0));
        assert!(emit_any(&mut vec![0; 40 + 65_535], from, to, 0));
        assert!(!emit_any(&mut vec![0; 40 + 65_536], from, to, 0));
    }
}
