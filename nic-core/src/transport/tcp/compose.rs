//! Packets that the transport composes itself, beside those of smoltcp.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv4Repr, TcpPacket, TcpRepr};

/// Writes a packet to the front of `room`.
pub(super) fn emit(room: &mut [u8], ip: &Ipv4Repr, tcp: &TcpRepr<'_>, sums: &ChecksumCapabilities) {
    let (src, dst) = (IpAddress::Ipv4(ip.src_addr), IpAddress::Ipv4(ip.dst_addr));
    let (head, body) = room.split_at_mut(ip.buffer_len());
    // The total length covers both, although `head` alone is at hand.
    ip.emit(&mut Ipv4Packet::new_unchecked(head), sums);
    let body = &mut body[..tcp.buffer_len()];
    tcp.emit(&mut TcpPacket::new_unchecked(body), &src, &dst, sums);
}
