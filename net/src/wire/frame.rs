//! Classification of frames for the demultiplexer: destination and connection.
//!
//! Only as many checks as it takes to find the connection; smoltcp checks the rest (lengths,
//! checksums, flags) when the packet is handed to the connection's socket.

use std::net::{Ipv4Addr, SocketAddr};

use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::accl::ACCL_UDP_PORT;
use super::udp::is_intact;
use super::{MacAddr, ETHERNET_HEADER, ETHERTYPE_ARP, ETHERTYPE_IPV4};

/// Ethernet II header (IEEE 802.3 §3.2).
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EthernetHeader {
    dst: MacAddr,
    src: MacAddr,
    ethertype: U16,
}

/// IPv4 header without options (RFC 791 §3.1).
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Ipv4Header {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    ident: U16,
    flags_fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: U32,
    dst: U32,
}

/// TCP header without options (RFC 9293 §3.1).
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TcpHeader {
    src_port: U16,
    dst_port: U16,
    seq: U32,
    ack: U32,
    offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

/// UDP header (RFC 768).
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UdpHeader {
    src_port: U16,
    dst_port: U16,
    len: U16,
    checksum: U16,
}

const FLAG_FIN: u8 = 0x01;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;

/// Why a frame goes no further. A fault of the peer or the wire: counted, never an error of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Dropped {
    /// Shorter than its headers, or with lengths that contradict each other.
    #[error("malformed frame")]
    Malformed,
    /// Addressed to another host, or a protocol that this NIC does not support.
    #[error("frame is not for this NIC")]
    NotOurs,
    /// An IPv4 fragment: TCP avoids them, so this NIC does not reassemble.
    #[error("IPv4 fragment")]
    Fragment,
}

/// A TCP segment, seen by the demultiplexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpFrame {
    /// Ethernet source.
    pub src_mac: MacAddr,
    /// IPv4 source.
    pub src: Ipv4Addr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// A SYN without ACK or RST: opens a connection.
    pub opens: bool,
    /// The SYN flag.
    pub syn: bool,
    /// The RST flag.
    pub rst: bool,
    /// An ACK without data, SYN, FIN or RST.
    pub pure_ack: bool,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, when there is one.
    pub ack: Option<u32>,
    /// Window, not scaled.
    pub window: u16,
    /// Where the TCP header lies in the frame.
    pub tcp_at: usize,
    /// Bytes of the frame that carry the packet; padding may follow.
    pub end: usize,
}

/// A UDP datagram for the port of RoCEv2 or of ACCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpFrame {
    /// Ethernet source.
    pub src_mac: MacAddr,
    /// IP source and source port.
    pub src: SocketAddr,
    /// IP destination and destination port.
    pub dst: SocketAddr,
    /// The two ECN bits (RFC 3168 §5).
    pub ecn: u8,
    /// Identification, flags and fragment offset of the IPv4 header, which the ICRC covers.
    pub fragment: u32,
    /// Where the payload begins in the frame.
    pub payload_at: usize,
    /// And where it ends; padding may follow.
    pub end: usize,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A TCP segment for our address.
    Tcp(TcpFrame),
    /// A UDP datagram for our address, at a port of ours.
    Udp(UdpFrame),
    /// An ARP packet; [`super::control`] looks further.
    Arp,
    /// An ICMP packet for our address.
    Icmp {
        /// Ethernet source.
        src_mac: MacAddr,
    },
}

/// Classifies a frame that arrived at the host with these addresses.
///
/// # Errors
/// [`Dropped`] with the reason.
// Inlined: the result, written field by field and copied whole, stalls on the store buffer
// otherwise.
#[inline(always)]
pub fn classify(frame: &[u8], mac: MacAddr, ip: Ipv4Addr) -> Result<Frame, Dropped> {
    let (eth, rest) = EthernetHeader::ref_from_prefix(frame).map_err(|_| Dropped::Malformed)?;
    if eth.dst != mac && eth.dst != MacAddr::BROADCAST {
        return Err(Dropped::NotOurs);
    }
    match eth.ethertype.get() {
        ETHERTYPE_IPV4 => {}
        ETHERTYPE_ARP => return Ok(Frame::Arp),
        _ => return Err(Dropped::NotOurs),
    }
    let (hdr, _) = Ipv4Header::ref_from_prefix(rest).map_err(|_| Dropped::Malformed)?;
    let header_len = usize::from(hdr.version_ihl & 0xf) * 4;
    let total = usize::from(hdr.total_len.get());
    if hdr.version_ihl >> 4 != 4 || header_len < 20 || total < header_len || total > rest.len() {
        return Err(Dropped::Malformed);
    }
    if hdr.dst.get() != u32::from(ip) {
        return Err(Dropped::NotOurs);
    }
    // More-fragments bit or a non-zero offset.
    if hdr.flags_fragment.get() & 0x3fff != 0 {
        return Err(Dropped::Fragment);
    }
    if !eth.src.is_unicast() {
        return Err(Dropped::Malformed);
    }
    let payload = &rest[header_len..total];
    match hdr.protocol {
        6 => {
            let (tcp, _) = TcpHeader::ref_from_prefix(payload).map_err(|_| Dropped::Malformed)?;
            if tcp.src_port.get() == 0 || tcp.dst_port.get() == 0 {
                return Err(Dropped::Malformed);
            }
            let src = Ipv4Addr::from(hdr.src.get());
            if !is_answerable(src) || src == ip {
                return Err(Dropped::Malformed);
            }
            Ok(Frame::Tcp(TcpFrame {
                src_mac: eth.src,
                src,
                src_port: tcp.src_port.get(),
                dst_port: tcp.dst_port.get(),
                pure_ack: tcp.flags & (FLAG_FIN | FLAG_SYN | FLAG_RST | FLAG_ACK) == FLAG_ACK
                    && usize::from(tcp.offset >> 4) * 4 == payload.len(),
                seq: tcp.seq.get(),
                ack: (tcp.flags & FLAG_ACK != 0).then(|| tcp.ack.get()),
                window: tcp.window.get(),
                tcp_at: ETHERNET_HEADER + header_len,
                end: ETHERNET_HEADER + total,
                opens: tcp.flags & (FLAG_SYN | FLAG_ACK | FLAG_RST) == FLAG_SYN,
                syn: tcp.flags & FLAG_SYN != 0,
                rst: tcp.flags & FLAG_RST != 0,
            }))
        }
        17 => udp(eth.src, hdr, &rest[..header_len], payload),
        1 => Ok(Frame::Icmp { src_mac: eth.src }),
        _ => Err(Dropped::NotOurs),
    }
}

/// Whether a source names one host: another cannot be answered.
fn is_answerable(src: Ipv4Addr) -> bool {
    !(src.is_unspecified() || src.is_broadcast() || src.is_multicast())
}

/// A UDP datagram: RoCEv2 and ACCL alone are known. UDP's checksum is not verified, as the CRCs of
/// both cover their payloads.
fn udp(
    src_mac: MacAddr,
    hdr: &Ipv4Header,
    header: &[u8],
    payload: &[u8],
) -> Result<Frame, Dropped> {
    let (udp, _) = UdpHeader::ref_from_prefix(payload).map_err(|_| Dropped::Malformed)?;
    let dst_port = udp.dst_port.get();
    if !matches!(dst_port, ROCE_UDP_PORT | ACCL_UDP_PORT) {
        return Err(Dropped::NotOurs);
    }
    let src = Ipv4Addr::from(hdr.src.get());
    let len = usize::from(udp.len.get());
    // The ICRC of a header with options is not defined.
    let valid = header.len() == 20 && (8..=payload.len()).contains(&len) && is_intact(header);
    if !valid || !is_answerable(src) || src == Ipv4Addr::from(hdr.dst.get()) {
        return Err(Dropped::Malformed);
    }
    let udp_at = ETHERNET_HEADER + header.len();
    Ok(Frame::Udp(UdpFrame {
        src_mac,
        src: (src, udp.src_port.get()).into(),
        dst: (Ipv4Addr::from(hdr.dst.get()), dst_port).into(),
        ecn: hdr.tos & 3,
        fragment: u32::from(hdr.ident.get()) << 16 | u32::from(hdr.flags_fragment.get()),
        payload_at: udp_at + 8,
        end: udp_at + len,
    }))
}

/// Replaces the sequence number of the TCP header at the start of `tcp` and adjusts its checksum
/// (RFC 1624 eqn. 3): one that was wrong stays wrong.
///
/// # Panics
/// When `tcp` is shorter than a TCP header, which [`classify`] has ruled out for its frames.
pub fn set_sequence(tcp: &mut [u8], seq: u32) {
    replace(tcp, 4, &seq.to_be_bytes());
}

/// The same for acknowledgement number and window.
///
/// # Panics
/// As [`set_sequence`].
pub fn set_acknowledgement(tcp: &mut [u8], ack: u32, window: u16) {
    replace(tcp, 8, &ack.to_be_bytes());
    replace(tcp, 14, &window.to_be_bytes());
}

/// Puts an even number of bytes at an even place of a TCP header.
fn replace(tcp: &mut [u8], at: usize, new: &[u8]) {
    let word = |b: &[u8], at: usize| u32::from(u16::from_be_bytes([b[at], b[at + 1]]));
    let mut sum = !word(tcp, 16) & 0xffff;
    for half in (0..new.len()).step_by(2) {
        sum += (!word(tcp, at + half) & 0xffff) + word(new, half);
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    tcp[at..at + new.len()].copy_from_slice(new);
    tcp[16..18].copy_from_slice(&(!sum as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::emit_ethernet;

    const MAC: MacAddr = MacAddr::local(7);
    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

    fn tcp_frame(flags: u8) -> Vec<u8> {
        let mut f = vec![0; 54];
        emit_ethernet(&mut f, MAC, MacAddr::local(9), ETHERTYPE_IPV4);
        f[14] = 0x45;
        f[16..18].copy_from_slice(&40u16.to_be_bytes());
        f[23] = 6;
        f[26..30].copy_from_slice(&[10, 0, 0, 9]);
        f[30..34].copy_from_slice(&IP.octets());
        f[34..36].copy_from_slice(&4000u16.to_be_bytes());
        f[36..38].copy_from_slice(&80u16.to_be_bytes());
        f[46] = 0x50;
        f[47] = flags;
        f
    }

    #[test]
    fn names_the_connection_and_its_opening() {
        for (flags, opens) in [
            (FLAG_SYN, true),
            (FLAG_SYN | FLAG_ACK, false),
            (FLAG_ACK, false),
        ] {
            let got = classify(&tcp_frame(flags), MAC, IP);
            let Ok(Frame::Tcp(t)) = got else {
                panic!("{got:?}")
            };
            assert_eq!(
                (t.src, t.src_port, t.dst_port, t.opens),
                (Ipv4Addr::new(10, 0, 0, 9), 4000, 80, opens)
            );
            assert_eq!(t.src_mac, MacAddr::local(9));
        }
    }

    #[test]
    fn drops_with_the_reason() {
        let mut f = tcp_frame(FLAG_SYN);
        f[20] = 0x20; // more fragments
        assert_eq!(classify(&f, MAC, IP), Err(Dropped::Fragment));
        let mut f = tcp_frame(FLAG_SYN);
        f[16..18].copy_from_slice(&41u16.to_be_bytes()); // one byte more than there is
        assert_eq!(classify(&f, MAC, IP), Err(Dropped::Malformed));
        let f = tcp_frame(FLAG_SYN);
        assert_eq!(classify(&f, MacAddr::local(1), IP), Err(Dropped::NotOurs));
        assert_eq!(
            classify(&f, MAC, Ipv4Addr::new(10, 0, 0, 8)),
            Err(Dropped::NotOurs)
        );
        for cut in 0..f.len() {
            assert_eq!(
                classify(&f[..cut], MAC, IP),
                Err(Dropped::Malformed),
                "cut at {cut}"
            );
        }
    }

    /// The frame with the right checksum of its IPv4 header.
    fn intact(mut f: Vec<u8>) -> Vec<u8> {
        let end = 14 + usize::from(f[14] & 0xf) * 4;
        smoltcp::wire::Ipv4Packet::new_unchecked(&mut f[14..end]).fill_checksum();
        f
    }

    #[test]
    fn takes_datagrams_for_the_port_of_roce_alone_and_within_their_lengths() {
        let frame = |to: u16, udp_len: u16| {
            let mut f = tcp_frame(0);
            f[15] = 0xff;
            f[18..22].copy_from_slice(&[0x12, 0x34, 0x40, 0]);
            f[23] = 17;
            f[36..38].copy_from_slice(&to.to_be_bytes());
            f[38..40].copy_from_slice(&udp_len.to_be_bytes());
            intact(f)
        };
        for len in 8..=20 {
            let got = classify(&frame(ROCE_UDP_PORT, len), MAC, IP);
            let Ok(Frame::Udp(d)) = got else {
                panic!("{got:?}")
            };
            let end = 34 + usize::from(len);
            assert_eq!((d.payload_at, d.end), (42, end));
            assert_eq!((d.ecn, d.fragment), (3, 0x1234_4000));
            assert_eq!(d.src, ([10, 0, 0, 9], 4000).into());
        }
        for len in [0, 7, 21, u16::MAX] {
            let got = classify(&frame(ROCE_UDP_PORT, len), MAC, IP);
            assert_eq!(got, Err(Dropped::Malformed), "{len}");
        }
        let got = classify(&frame(ROCE_UDP_PORT + 1, 20), MAC, IP);
        assert_eq!(got, Err(Dropped::NotOurs));
        for src in [[0; 4], [224, 0, 0, 1], [255; 4], IP.octets()] {
            let mut f = frame(ROCE_UDP_PORT, 20);
            f[26..30].copy_from_slice(&src);
            let f = intact(f);
            assert_eq!(classify(&f, MAC, IP), Err(Dropped::Malformed), "{src:?}");
        }
        let mut damaged = frame(ROCE_UDP_PORT, 20);
        damaged[22] ^= 1;
        assert_eq!(classify(&damaged, MAC, IP), Err(Dropped::Malformed));
        let mut options = frame(ROCE_UDP_PORT, 16);
        options[14] = 0x46;
        options.copy_within(34..50, 38);
        let options = intact(options);
        assert_eq!(classify(&options, MAC, IP), Err(Dropped::Malformed));
    }

    #[test]
    fn a_changed_sequence_number_keeps_the_checksum_right_or_wrong() {
        use smoltcp::wire::{IpAddress, TcpPacket};
        let (src, dst) = (IpAddress::v4(10, 0, 0, 9), IpAddress::v4(10, 0, 0, 7));
        for (old, new) in [
            (0, 1),
            (u32::MAX, 4),
            (0x1234_5678, 0x1234_ffff),
            (7, 0xffff_0000),
        ] {
            let mut frame = tcp_frame(FLAG_ACK);
            let tcp = &mut frame[34..];
            tcp[4..8].copy_from_slice(&u32::to_be_bytes(old));
            TcpPacket::new_unchecked(&mut *tcp).fill_checksum(&src, &dst);
            set_sequence(tcp, new);
            let packet = TcpPacket::new_unchecked(&*tcp);
            assert!(packet.verify_checksum(&src, &dst) && packet.seq_number().0 == new as i32);
            set_acknowledgement(tcp, !new, new as u16);
            let packet = TcpPacket::new_unchecked(&*tcp);
            assert!(packet.verify_checksum(&src, &dst) && packet.ack_number().0 == !new as i32);
            assert_eq!(packet.window_len(), new as u16);
            tcp[0] ^= 1;
            set_sequence(tcp, old);
            assert!(!TcpPacket::new_unchecked(&*tcp).verify_checksum(&src, &dst));
        }
    }
}
