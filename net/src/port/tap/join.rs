//! Segments of one TCP connection, joined on their way to the kernel: it takes up to 64 KiB of them
//! as one frame (TCP segmentation offload), for the price of one.

use std::ops::Range;

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket, ETHERNET_HEADER_LEN,
};
use tun_rs::VirtioNetHdr;

use super::offload::{pseudo_header_sum, GSO_TCPV4, NEEDS_CSUM, TCP_CHECKSUM_AT};

/// Longest IPv4 packet.
pub(super) const PACKET_MAX: usize = u16::MAX as usize;

/// Places in the IPv4 header that may differ between two segments: length, number and checksum.
const IP_OWN: [Range<usize>; 3] = [2..4, 4..6, 10..12];

/// A frame that the next segment of its connection may lengthen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joined {
    /// Bytes of the frame.
    pub(super) len: usize,
    /// Segments in it.
    pub(super) segments: u64,
    /// Bytes of the headers of Ethernet and IP, and with TCP's.
    ip_end: usize,
    headers: usize,
    /// Payload of each segment but the last, which may have less.
    size: usize,
    /// Nothing may follow.
    closed: bool,
}

/// A segment with payload, and no flag but ACK and PSH.
struct Segment {
    ip_end: usize,
    headers: usize,
    payload: usize,
    seq: u32,
    pushes: bool,
}

impl Segment {
    fn read(frame: &[u8]) -> Option<Segment> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        if ethernet.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
        let whole = usize::from(ip.total_len()) + ETHERNET_HEADER_LEN == frame.len();
        if ip.next_header() != IpProtocol::Tcp || ip.more_frags() || ip.frag_offset() != 0 || !whole
        {
            return None;
        }
        let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
        let plain = tcp.ack() && !(tcp.fin() || tcp.syn() || tcp.rst() || tcp.urg());
        let ip_end = ETHERNET_HEADER_LEN + usize::from(ip.header_len());
        let headers = ip_end + usize::from(tcp.header_len());
        let payload = frame.len() - headers;
        let echoes = tcp.ece() || tcp.cwr();
        (plain && !echoes && payload > 0).then(|| Segment {
            ip_end,
            headers,
            payload,
            seq: tcp.seq_number().0 as u32,
            pushes: tcp.psh(),
        })
    }
}

impl Joined {
    /// A frame that others may follow; `None` for one that goes alone.
    pub(super) fn first(frame: &[u8]) -> Option<Joined> {
        let s = Segment::read(frame)?;
        Some(Joined {
            len: frame.len(),
            segments: 1,
            ip_end: s.ip_end,
            headers: s.headers,
            size: s.payload,
            closed: s.pushes,
        })
    }

    /// A frame that nothing follows.
    pub(super) fn alone(len: usize) -> Joined {
        Joined {
            len,
            segments: 1,
            ip_end: 0,
            headers: 0,
            size: 0,
            closed: true,
        }
    }

    /// Bytes on the wire, on which each segment has headers of its own.
    pub(super) fn bytes(&self) -> u64 {
        self.len as u64 + (self.segments - 1) * self.headers as u64
    }

    /// Appends the segment that lies behind the frame in `bytes`, `len` bytes long. `false`: it
    /// does not follow, and stays where it is.
    pub(super) fn append(&mut self, bytes: &mut [u8], len: usize) -> bool {
        let (frame, rest) = bytes.split_at_mut(self.len);
        let next = &rest[..len];
        let Some(s) = Segment::read(next).filter(|s| self.takes(frame, next, s)) else {
            return false;
        };
        if s.pushes {
            TcpPacket::new_unchecked(&mut frame[self.ip_end..]).set_psh(true);
        }
        bytes.copy_within(self.len + s.headers..self.len + len, self.len);
        self.len += s.payload;
        self.segments += 1;
        self.closed = s.pushes || s.payload < self.size;
        true
    }

    fn takes(&self, frame: &[u8], next: &[u8], s: &Segment) -> bool {
        let room = PACKET_MAX + ETHERNET_HEADER_LEN - self.len;
        if self.closed || s.payload > self.size.min(room) || s.headers != self.headers {
            return false;
        }
        let same = |range: Range<usize>| frame[range.clone()] == next[range];
        let ip = |at: usize| ETHERNET_HEADER_LEN + at;
        let [length, number, checksum] = IP_OWN;
        let tcp = TcpPacket::new_unchecked(&frame[self.ip_end..]);
        let carried = (self.len - self.headers) as u32;
        let follows = (tcp.seq_number().0 as u32).wrapping_add(carried) == s.seq;
        follows
            && s.ip_end == self.ip_end
            && same(0..ip(length.start))
            && same(ip(number.end)..ip(checksum.start))
            && same(ip(checksum.end)..self.ip_end)
            // Ports, then acknowledgement and length of the header, the window, urgent and options.
            && same(self.ip_end..self.ip_end + 4)
            && same(self.ip_end + 8..self.ip_end + 13)
            && same(self.ip_end + 14..self.ip_end + 16)
            && same(self.ip_end + 18..self.headers)
    }

    /// What stands before the frame: of one segment nothing, of several how the kernel cuts them.
    /// Their common headers are completed.
    pub(super) fn finish(&self, frame: &mut [u8]) -> VirtioNetHdr {
        if self.segments == 1 {
            return VirtioNetHdr::default();
        }
        let packet = &mut frame[ETHERNET_HEADER_LEN..self.len];
        let total = packet.len();
        let mut ip = Ipv4Packet::new_unchecked(&mut *packet);
        ip.set_total_len(total as u16);
        ip.fill_checksum();
        let length = self.len - self.ip_end;
        let sum = pseudo_header_sum(&ip, IpProtocol::Tcp, length);
        let mut tcp = TcpPacket::new_unchecked(&mut frame[self.ip_end..self.len]);
        tcp.set_checksum(sum);
        VirtioNetHdr {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: self.headers as u16,
            gso_size: self.size as u16,
            csum_start: self.ip_end as u16,
            csum_offset: TCP_CHECKSUM_AT,
        }
    }
}
