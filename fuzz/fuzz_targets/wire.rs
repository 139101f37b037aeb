//! Ethernet, ARP, IPv4, ICMP, TCP, VXLAN and RoCEv2 headers, and messages of connection management,
//! of any shape: an error, never a panic.
#![no_main]

use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use ringbell_nic_core::port::MacAddr;
use ringbell_nic_core::wire::control::{echo_reply, Arp};
use ringbell_nic_core::wire::frame::{classify, set_sequence, Frame};
use ringbell_nic_core::wire::roce::{cm, mad, packet, Packet, ICRC_BYTES};
use ringbell_nic_core::wire::vxlan;

fuzz_target!(|bytes: &[u8]| {
    let _ = vxlan::parse(bytes);
    // A packet that was parsed is emitted with the same length.
    if let Ok(p) = packet::open(bytes, None).and_then(Packet::parse) {
        let head = packet::Head {
            bth: p.bth,
            extended: p.extended,
        };
        let len = head.emit(&mut vec![0; bytes.len()], p.payload.len());
        assert_eq!(len + ICRC_BYTES, bytes.len());
    }
    if let Some(datagram) = bytes.first_chunk::<{ mad::MAD_BYTES }>() {
        if let Some((message, transaction)) = cm::Message::parse(datagram) {
            let again = cm::Message::parse(&message.emit(transaction));
            assert_eq!(again, Some((message, transaction)));
        }
    }
    let _ = Arp::parse(bytes);
    let _ = echo_reply(bytes, MacAddr::local(1), &mut [0; 2048]);
    // Addressed to whomever the bytes say, so that the checks behind the addresses are reached.
    let (Some(mac), Some(ip)) = (bytes.get(..6), bytes.get(30..34)) else {
        return;
    };
    let mut own = MacAddr::default();
    own.0.copy_from_slice(mac);
    let ip = Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]);
    if let Ok(Frame::Tcp(seg)) = classify(bytes, own, ip) {
        set_sequence(&mut bytes[seg.tcp_at..seg.end].to_vec(), seq_of(bytes));
    }
});

fn seq_of(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |a, &b| a.rotate_left(8) ^ u32::from(b))
}
