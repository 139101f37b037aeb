//! Frames as the kernel hands them over with offloads: without their checksum, several segments of
//! a TCP connection as one, several datagrams as one (the header is struct `virtio_net_hdr`,
//! VIRTIO 1.2 §5.1.6).

use std::ops::Range;

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket, UdpPacket,
    ETHERNET_HEADER_LEN,
};
use tun_rs::VirtioNetHdr;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field has the sum of the pseudo-header alone.
pub(super) const NEEDS_CSUM: u8 = 1;
/// Values of `gso_type`; [`GSO_ECN`] is a flag beside them.
pub(super) const GSO_NONE: u8 = 0;
pub(super) const GSO_TCPV4: u8 = 1;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// Offset of the checksum in TCP's header.
pub(super) const TCP_CHECKSUM_AT: u16 = 16;
/// Bytes of UDP's header.
const UDP_HEADER: usize = 8;

/// What a frame of the kernel holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// So many frames of the wire, which are one for the NIC.
    One(u64),
    /// Datagrams, to be taken one by one.
    Datagrams(Datagrams),
}

/// Datagrams behind one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Datagrams {
    ip_end: usize,
    /// Payload of each but the last.
    size: usize,
    /// Payload that is left.
    left: Range<usize>,
}

/// Looks at a frame, and completes the checksum that the kernel has left to the device. `None`: its
/// header contradicts it.
pub(super) fn open(header: &VirtioNetHdr, frame: &mut [u8]) -> Option<Held> {
    let size = usize::from(header.gso_size);
    match header.gso_type & !GSO_ECN {
        GSO_NONE => {
            if header.flags & NEEDS_CSUM != 0 {
                complete(frame);
            }
            Some(Held::One(1))
        }
        GSO_UDP_L4 if is_ipv4(frame) => {
            let ip_end = usize::from(header.csum_start);
            let begin = ip_end + UDP_HEADER;
            let good = size > 0 && ip_end >= ETHERNET_HEADER_LEN + 20 && begin < frame.len();
            good.then_some(Held::Datagrams(Datagrams {
                ip_end,
                size,
                left: begin..frame.len(),
            }))
        }
        _ => {
            complete(frame);
            let payload = frame.len().saturating_sub(header.hdr_len.into());
            (size > 0).then(|| Held::One(payload.div_ceil(size) as u64))
        }
    }
}

fn is_ipv4(frame: &[u8]) -> bool {
    let ethernet = EthernetFrame::new_checked(frame);
    ethernet.is_ok_and(|e| e.ethertype() == EthernetProtocol::Ipv4)
}

/// Computes the checksum of TCP or UDP in an IPv4 frame. Others stay: no transport takes them.
fn complete(frame: &mut [u8]) {
    if !is_ipv4(frame) {
        return;
    }
    let Ok(mut ip) = Ipv4Packet::new_checked(&mut frame[ETHERNET_HEADER_LEN..]) else {
        return;
    };
    let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
    match ip.next_header() {
        IpProtocol::Tcp => {
            if let Ok(mut tcp) = TcpPacket::new_checked(ip.payload_mut()) {
                tcp.fill_checksum(&from, &to);
            }
        }
        IpProtocol::Udp => {
            if let Ok(mut udp) = UdpPacket::new_checked(ip.payload_mut()) {
                udp.fill_checksum(&from, &to);
            }
        }
        _ => {}
    }
}

impl Datagrams {
    /// Makes the frame of the next datagram in `out`: its length. `None` when there is none left,
    /// or `out` is too short for it.
    pub(super) fn next(&mut self, frame: &[u8], out: &mut [u8]) -> Option<usize> {
        if self.left.is_empty() {
            return None;
        }
        let headers = self.ip_end + UDP_HEADER;
        let end = self.left.end.min(self.left.start + self.size);
        let payload = std::mem::replace(&mut self.left.start, end)..end;
        let len = headers + payload.len();
        let out = out.get_mut(..len)?;
        out[..headers].copy_from_slice(&frame[..headers]);
        out[headers..].copy_from_slice(&frame[payload]);
        let mut udp = UdpPacket::new_unchecked(&mut out[self.ip_end..]);
        udp.set_len((len - self.ip_end) as u16);
        let mut ip = Ipv4Packet::new_unchecked(&mut out[ETHERNET_HEADER_LEN..]);
        ip.set_total_len((len - ETHERNET_HEADER_LEN) as u16);
        ip.fill_checksum();
        complete(out);
        Some(len)
    }
}

/// The sum of TCP's or UDP's pseudo-header (RFC 9293 §3.1), folded and not complemented.
pub(super) fn pseudo_header_sum<T: AsRef<[u8]>>(
    ip: &Ipv4Packet<T>,
    protocol: IpProtocol,
    length: usize,
) -> u16 {
    let halves = |a: std::net::Ipv4Addr| {
        let bits = a.to_bits();
        (bits >> 16) + (bits & 0xffff)
    };
    let sum = halves(ip.src_addr()) + halves(ip.dst_addr());
    let mut sum = sum + u32::from(u8::from(protocol)) + length as u32;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
