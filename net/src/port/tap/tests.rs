//! Joined segments are cut again as the kernel does it, and datagrams as they were sent.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
    ETHERNET_HEADER_LEN,
};
use tun_rs::VirtioNetHdr;

use super::join::Joined;
use super::offload::{self, Held, GSO_TCPV4, NEEDS_CSUM};

const FROM: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const TO: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const MSS: usize = 1460;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A frame of IPv4 whose payload `emit` writes.
fn frame(protocol: IpProtocol, len: usize, emit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ip = Ipv4Repr {
        src_addr: FROM,
        dst_addr: TO,
        next_header: protocol,
        payload_len: len,
        hop_limit: 64,
    };
    let mut bytes = vec![0; ETHERNET_HEADER_LEN + 20 + len];
    let mut ethernet = EthernetFrame::new_unchecked(&mut bytes);
    ethernet.set_src_addr(EthernetAddress([2, 0, 0, 0, 0, 2]));
    ethernet.set_dst_addr(EthernetAddress([2, 0, 0, 0, 0, 1]));
    ethernet.set_ethertype(EthernetProtocol::Ipv4);
    let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    emit(packet.payload_mut());
    bytes
}

/// What of a segment may differ from the one before it.
#[derive(Clone, Copy)]
struct Shape {
    seq: u32,
    ack: u32,
    window: u16,
    payload: usize,
    push: bool,
    fin: bool,
}

fn segment(s: Shape, fill: u8) -> Vec<u8> {
    let payload = vec![fill; s.payload];
    let tcp = TcpRepr {
        src_port: 7,
        dst_port: 8,
        control: match (s.push, s.fin) {
            (_, true) => TcpControl::Fin,
            (true, _) => TcpControl::Psh,
            _ => TcpControl::None,
        },
        seq_number: TcpSeqNumber(s.seq as i32),
        ack_number: Some(TcpSeqNumber(s.ack as i32)),
        window_len: s.window,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &payload,
    };
    frame(IpProtocol::Tcp, tcp.buffer_len(), |bytes| {
        let caps = ChecksumCapabilities::default();
        let mut packet = TcpPacket::new_unchecked(bytes);
        tcp.emit(&mut packet, &FROM.into(), &TO.into(), &caps);
    })
}

/// The segments of a frame that left, each completed: what `net/ipv4/tcp_offload.c` makes of it.
fn cut(header: &VirtioNetHdr, frame: &[u8]) -> Vec<Vec<u8>> {
    if header.gso_type == 0 {
        return vec![frame.to_vec()];
    }
    assert_eq!((header.gso_type, header.flags), (GSO_TCPV4, NEEDS_CSUM));
    let ip = Ipv4Packet::new_checked(&frame[ETHERNET_HEADER_LEN..]).expect("whole");
    assert!(ip.verify_checksum());
    // With the sum of the pseudo-header in its place, the rest adds up to the checksum.
    let start = usize::from(header.csum_start);
    let whole = TcpPacket::new_checked(ip.payload()).expect("whole");
    let mut again = frame[start..].to_vec();
    let partial = whole.checksum();
    again[16..18].fill(0);
    let mut sum: u32 = u32::from(partial);
    for pair in again.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    again[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let checked = TcpPacket::new_checked(&again[..]).expect("whole");
    assert!(checked.verify_checksum(&FROM.into(), &TO.into()));
    let headers = usize::from(header.hdr_len);
    let all: Vec<&[u8]> = frame[headers..].chunks(header.gso_size.into()).collect();
    let one = |(n, payload): (usize, &&[u8])| {
        let mut out = [&frame[..headers], payload].concat();
        let len = out.len();
        let mut ip = Ipv4Packet::new_unchecked(&mut out[ETHERNET_HEADER_LEN..]);
        ip.set_total_len((len - ETHERNET_HEADER_LEN) as u16);
        ip.fill_checksum();
        let mut tcp = TcpPacket::new_unchecked(ip.payload_mut());
        let seq = whole.seq_number() + n * usize::from(header.gso_size);
        tcp.set_seq_number(seq);
        tcp.set_psh(whole.psh() && n + 1 == all.len());
        tcp.fill_checksum(&FROM.into(), &TO.into());
        out
    };
    all.iter().enumerate().map(one).collect()
}

/// Lets frames pass as the port does: what has left, each with its header.
fn pass(frames: &[Vec<u8>]) -> Vec<(VirtioNetHdr, Vec<u8>)> {
    let mut left = Vec::new();
    let mut bytes = vec![0; 1 << 18];
    let mut next: Option<Joined> = None;
    let mut finish = |next: Joined, bytes: &mut [u8]| {
        let header = next.finish(&mut bytes[..next.len]);
        left.push((header, bytes[..next.len].to_vec()));
    };
    for frame in frames {
        if let Some(mut one) = next.take() {
            bytes[one.len..one.len + frame.len()].copy_from_slice(frame);
            if one.append(&mut bytes, frame.len()) {
                next = Some(one);
                continue;
            }
            finish(one, &mut bytes);
        }
        bytes[..frame.len()].copy_from_slice(frame);
        next = Some(Joined::first(frame).unwrap_or(Joined::alone(frame.len())));
    }
    if let Some(one) = next {
        finish(one, &mut bytes);
    }
    left
}

#[test]
fn joined_segments_are_cut_into_those_that_were_sent() {
    let mut joined = 0;
    for seed in 1..300 {
        let mut rng = Rng(seed);
        let mut s = Shape {
            seq: u32::MAX - rng.below(100_000) as u32,
            ack: 5,
            window: 900,
            payload: MSS,
            push: false,
            fin: false,
        };
        let frames: Vec<Vec<u8>> = (0..100)
            .map(|n| {
                s.payload = match rng.below(12) {
                    0 => rng.below(MSS as u64 + 1) as usize,
                    _ => MSS,
                };
                s.push = rng.below(20) == 0;
                s.fin = rng.below(60) == 0;
                match rng.below(60) {
                    0 => s.ack += 1,
                    1 => s.window += 1,
                    // One is missing, or sent again.
                    2 => s.seq = s.seq.wrapping_add(MSS as u32),
                    3 => s.seq = s.seq.wrapping_sub(MSS as u32),
                    _ => {}
                }
                let frame = segment(s, n);
                s.seq = s.seq.wrapping_add(s.payload as u32);
                frame
            })
            .collect();
        let left = pass(&frames);
        joined += frames.len() - left.len();
        let again: Vec<Vec<u8>> = left.iter().flat_map(|(h, f)| cut(h, f)).collect();
        assert_eq!(again.len(), frames.len(), "seed {seed}");
        for (n, (a, b)) in again.iter().zip(&frames).enumerate() {
            assert!(a == b, "seed {seed}, frame {n}");
        }
    }
    assert!(joined > 20_000, "{joined} of 29,900 frames joined others");
}

#[test]
fn a_joined_frame_is_no_longer_than_a_packet_of_ip() {
    let at = |n: u32| Shape {
        seq: n * MSS as u32,
        ack: 1,
        window: 1,
        payload: MSS,
        push: false,
        fin: false,
    };
    let frames: Vec<Vec<u8>> = (0..100).map(|n| segment(at(n), 1)).collect();
    let left = pass(&frames);
    let longest = left.iter().map(|(_, f)| f.len() - ETHERNET_HEADER_LEN);
    let longest = longest.max().expect("some");
    assert!((60_000..=65_535).contains(&longest), "{longest}");
}

#[test]
fn datagrams_behind_one_header_are_taken_one_by_one() {
    for (size, total) in [(1000, 10_000), (1400, 1401), (7, 50), (1200, 1200)] {
        let payload: Vec<u8> = (0..total).map(|n| n as u8).collect();
        let udp = UdpRepr {
            src_port: 9,
            dst_port: 10,
        };
        let mut long = frame(IpProtocol::Udp, 8 + total, |bytes| {
            let mut packet = UdpPacket::new_unchecked(bytes);
            let caps = ChecksumCapabilities::default();
            let fill = |b: &mut [u8]| b.copy_from_slice(&payload);
            udp.emit(&mut packet, &FROM.into(), &TO.into(), total, fill, &caps);
        });
        let header = VirtioNetHdr {
            flags: NEEDS_CSUM,
            gso_type: 5,
            hdr_len: 42,
            gso_size: size,
            csum_start: 34,
            csum_offset: 6,
        };
        let Some(Held::Datagrams(mut left)) = offload::open(&header, &mut long) else {
            panic!("datagrams of {size} bytes");
        };
        let (mut got, mut out) = (Vec::new(), vec![0; 2000]);
        while let Some(len) = left.next(&long, &mut out) {
            let ip = Ipv4Packet::new_checked(&out[ETHERNET_HEADER_LEN..len]).expect("whole");
            assert!(ip.verify_checksum());
            let udp = UdpPacket::new_checked(ip.payload()).expect("whole");
            assert!(udp.verify_checksum(&FROM.into(), &TO.into()));
            assert!(udp.payload().len() <= size.into() && !udp.payload().is_empty());
            got.extend_from_slice(udp.payload());
        }
        assert_eq!(got, payload, "{size}");
    }
}

#[test]
fn a_frame_that_lacks_its_checksum_gets_it() {
    let s = Shape {
        seq: 1,
        ack: 1,
        window: 1,
        payload: 333,
        push: true,
        fin: false,
    };
    let good = segment(s, 3);
    let mut bad = good.clone();
    bad[34 + 16..34 + 18].fill(0x5a);
    let header = VirtioNetHdr {
        flags: NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 16,
        ..VirtioNetHdr::default()
    };
    assert_eq!(offload::open(&header, &mut bad), Some(Held::One(1)));
    assert!(bad == good);
    // Without the flag it is the wire's, and stays as it came.
    bad[40] ^= 1;
    let before = bad.clone();
    let none = VirtioNetHdr::default();
    assert_eq!(offload::open(&none, &mut bad), Some(Held::One(1)));
    assert!(bad == before);
}

#[test]
fn headers_and_frames_of_any_bytes_are_survived() {
    let mut rng = Rng(77);
    for _ in 0..20_000 {
        let len = 14 + rng.below(120) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
        // Often IPv4, as far as the next look goes.
        if rng.below(3) > 0 {
            bytes[12..14].copy_from_slice(&[8, 0]);
            bytes.get_mut(14).into_iter().for_each(|b| *b = 0x45);
        }
        let header: Vec<u8> = (0..10)
            .map(|n| match n {
                0..=1 => [0, 1, 2, 4, 5, 0x81][rng.below(6) as usize],
                _ => (rng.below(4) * rng.below(80)) as u8,
            })
            .collect();
        let header = VirtioNetHdr::decode(&header).expect("ten bytes");
        if let Some(Held::Datagrams(mut left)) = offload::open(&header, &mut bytes) {
            let mut out = vec![0; 300];
            while left.next(&bytes, &mut out).is_some() {}
        }
        if let Some(mut one) = Joined::first(&bytes) {
            let next = bytes.clone();
            let mut room = [&bytes[..], &next[..]].concat();
            one.append(&mut room, next.len());
            one.finish(&mut room[..one.len]);
        }
    }
}
