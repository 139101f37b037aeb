//! ARP (RFC 826) and ICMP echo (RFC 792), parsed and emitted with smoltcp's wire types.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpProtocol,
    Ipv4Packet, Ipv4Repr,
};

use super::{emit_ethernet, MacAddr, ETHERNET_HEADER, ETHERTYPE_ARP, ETHERTYPE_IPV4};

/// Bytes of an ARP frame.
pub const ARP_FRAME: usize = ETHERNET_HEADER + 28;

/// A valid ARP packet for Ethernet and IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// A request, otherwise a reply.
    pub request: bool,
    /// The sender's hardware address.
    pub sender_mac: MacAddr,
    /// The sender's protocol address.
    pub sender_ip: Ipv4Addr,
    /// The hardware address asked for; zero in a request.
    pub target_mac: MacAddr,
    /// The protocol address asked for.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Parses the ARP packet of a frame; `None` when it is malformed or not of Ethernet and IPv4.
    pub fn parse(frame: &[u8]) -> Option<Arp> {
        let packet = ArpPacket::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = ArpRepr::parse(&packet).ok()?
        else {
            return None;
        };
        let request = match operation {
            ArpOperation::Request => true,
            ArpOperation::Reply => false,
            ArpOperation::Unknown(_) => return None,
        };
        let sender_mac = MacAddr(source_hardware_addr.0);
        if !sender_mac.is_unicast()
            || source_protocol_addr.is_multicast()
            || source_protocol_addr.is_broadcast()
        {
            return None;
        }
        Some(Arp {
            request,
            sender_mac,
            sender_ip: source_protocol_addr,
            target_mac: MacAddr(target_hardware_addr.0),
            target_ip: target_protocol_addr,
        })
    }

    /// Writes the whole frame: to the target for a reply, to everyone for a request. Returns its
    /// length, [`ARP_FRAME`].
    ///
    /// # Panics
    /// When `frame` is shorter than [`ARP_FRAME`].
    pub fn emit(&self, frame: &mut [u8]) -> usize {
        let dst = if self.request {
            MacAddr::BROADCAST
        } else {
            self.target_mac
        };
        emit_ethernet(frame, dst, self.sender_mac, ETHERTYPE_ARP);
        let repr = ArpRepr::EthernetIpv4 {
            operation: if self.request {
                ArpOperation::Request
            } else {
                ArpOperation::Reply
            },
            source_hardware_addr: EthernetAddress(self.sender_mac.0),
            source_protocol_addr: self.sender_ip,
            target_hardware_addr: EthernetAddress(self.target_mac.0),
            target_protocol_addr: self.target_ip,
        };
        repr.emit(&mut ArpPacket::new_unchecked(
            &mut frame[ETHERNET_HEADER..ARP_FRAME],
        ));
        ARP_FRAME
    }
}

/// Writes into `reply` the whole frame that answers an ICMP echo request; `None` when the frame is
/// no valid request or the answer does not fit.
pub fn echo_reply(frame: &[u8], mac: MacAddr, reply: &mut [u8]) -> Option<usize> {
    let checksums = ChecksumCapabilities::default();
    let ip = Ipv4Packet::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
    let ip_repr = Ipv4Repr::parse(&ip, &checksums).ok()?;
    if ip_repr.next_header != IpProtocol::Icmp || ip_repr.src_addr.is_unspecified() {
        return None;
    }
    let icmp = Icmpv4Packet::new_checked(ip.payload()).ok()?;
    let Icmpv4Repr::EchoRequest {
        ident,
        seq_no,
        data,
    } = Icmpv4Repr::parse(&icmp, &checksums).ok()?
    else {
        return None;
    };
    let answer = Icmpv4Repr::EchoReply {
        ident,
        seq_no,
        data,
    };
    let ip_answer = Ipv4Repr {
        src_addr: ip_repr.dst_addr,
        dst_addr: ip_repr.src_addr,
        next_header: IpProtocol::Icmp,
        payload_len: answer.buffer_len(),
        hop_limit: 64,
    };
    let len = ETHERNET_HEADER + ip_answer.buffer_len() + answer.buffer_len();
    let out = reply.get_mut(..len)?;
    let mut dst = MacAddr::default();
    dst.0.copy_from_slice(&frame[6..12]);
    emit_ethernet(out, dst, mac, ETHERTYPE_IPV4);
    let mut packet = Ipv4Packet::new_unchecked(&mut out[ETHERNET_HEADER..]);
    ip_answer.emit(&mut packet, &checksums);
    answer.emit(
        &mut Icmpv4Packet::new_unchecked(packet.payload_mut()),
        &checksums,
    );
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arp_round_trip() {
        for request in [true, false] {
            let arp = Arp {
                request,
                sender_mac: MacAddr::local(1),
                sender_ip: Ipv4Addr::new(10, 0, 0, 1),
                target_mac: MacAddr::local(2),
                target_ip: Ipv4Addr::new(10, 0, 0, 2),
            };
            let mut frame = [0; ARP_FRAME];
            arp.emit(&mut frame);
            assert_eq!(Arp::parse(&frame), Some(arp));
            for cut in 0..frame.len() {
                assert_eq!(Arp::parse(&frame[..cut]), None);
            }
        }
    }

    #[test]
    fn echo_is_answered_and_its_answer_is_not() {
        let checksums = ChecksumCapabilities::default();
        let icmp = Icmpv4Repr::EchoRequest {
            ident: 5,
            seq_no: 6,
            data: b"ping",
        };
        let ip = Ipv4Repr {
            src_addr: Ipv4Addr::new(10, 0, 0, 9),
            dst_addr: Ipv4Addr::new(10, 0, 0, 7),
            next_header: IpProtocol::Icmp,
            payload_len: icmp.buffer_len(),
            hop_limit: 64,
        };
        let mut frame = vec![0; ETHERNET_HEADER + 20 + icmp.buffer_len()];
        emit_ethernet(
            &mut frame,
            MacAddr::local(7),
            MacAddr::local(9),
            ETHERTYPE_IPV4,
        );
        let mut p = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
        ip.emit(&mut p, &checksums);
        icmp.emit(
            &mut Icmpv4Packet::new_unchecked(p.payload_mut()),
            &checksums,
        );
        let mut reply = [0; 128];
        let n = echo_reply(&frame, MacAddr::local(7), &mut reply).unwrap(); // a valid request
        assert_eq!(&reply[0..6], &MacAddr::local(9).0);
        assert_eq!(&reply[n - 4..n], b"ping");
        assert_eq!(
            echo_reply(&reply[..n], MacAddr::local(9), &mut [0; 128]),
            None
        );
    }
}
