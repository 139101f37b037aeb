//! Frames and packets that the transport composes itself, beside those of smoltcp.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv4Repr, TcpPacket, TcpRepr};

use super::TcpCounters;
use crate::port::{MacAddr, Port};
use crate::types::NicTime;
use crate::wire::control::Arp;

/// An ARP request for the hardware address of `target`.
pub(super) fn request(
    mac: MacAddr,
    ip: std::net::Ipv4Addr,
    target: std::net::Ipv4Addr,
) -> [u8; 42] {
    let mut frame = [0; 42];
    let arp = Arp {
        request: true,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: MacAddr::default(),
        target_ip: target,
    };
    arp.emit(&mut frame);
    frame
}

/// Sends a frame that the transport composed itself; it is lost when there is no room.
pub(super) fn send_frame(
    port: &mut dyn Port,
    counters: &mut TcpCounters,
    now: NicTime,
    dst: MacAddr,
    frame: &[u8],
) {
    match port
        .tx_frame(now, dst)
        .and_then(|b| b.get_mut(..frame.len()))
    {
        Some(room) => {
            room.copy_from_slice(frame);
            port.tx_commit(now, frame.len());
        }
        None => counters.replies_lost += 1,
    }
}

/// Writes a packet to the front of `room`.
pub(super) fn emit(room: &mut [u8], ip: &Ipv4Repr, tcp: &TcpRepr<'_>, sums: &ChecksumCapabilities) {
    let (src, dst) = (IpAddress::Ipv4(ip.src_addr), IpAddress::Ipv4(ip.dst_addr));
    let (head, body) = room.split_at_mut(ip.buffer_len());
    // The total length covers both, although `head` alone is at hand.
    ip.emit(&mut Ipv4Packet::new_unchecked(head), sums);
    let body = &mut body[..tcp.buffer_len()];
    tcp.emit(&mut TcpPacket::new_unchecked(body), &src, &dst, sums);
}
