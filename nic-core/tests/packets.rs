//! Received packets go to the transport of their protocol, among others that arrive at the port.

use crate::transport_support;

use std::collections::VecDeque;

use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::{Headers, Link, Network, Packet, Protocol, Refused, Resolved};
use ringbell_nic_core::port::mem::{mac_of, MemPort, MemSwitch};
use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, Port, PortCounters};
use ringbell_nic_core::transport::{deliver, PacketTransport, Takers, Then};
use ringbell_nic_core::types::NicTime;
use transport_support::{MockDma, Rng, IP_A, IP_B};

/// Keeps the payloads that it is given, and counts its answers.
struct Taker {
    protocol: Protocol,
    got: VecDeque<(Link, Vec<u8>)>,
    answers: u32,
}

impl Taker {
    fn new(protocol: Protocol) -> Taker {
        Taker {
            protocol,
            got: VecDeque::new(),
            answers: 0,
        }
    }
}

impl PacketTransport for Taker {
    fn receive(&mut self, _: NicTime, packet: &Packet<'_>, _: &mut Datapath<'_>) -> Then {
        let payload = match &packet.headers {
            Headers::Tcp(seg) => {
                assert_eq!(self.protocol, Protocol::Tcp);
                &packet.frame[seg.tcp_at + 20..seg.end]
            }
            Headers::Udp(d) => {
                assert_eq!(self.protocol, Protocol::Roce);
                assert_eq!((d.src.port(), d.ecn, d.fragment), (4000, 2, 0x0000_4000));
                &packet.frame[d.payload_at..d.end]
            }
        };
        assert_eq!(self.got.len() as u32, self.answers, "answered in between");
        self.got.push_back((packet.from, payload.to_vec()));
        Then::Answer
    }
    fn answer(&mut self, _: NicTime, _: &mut Network) {
        self.answers += 1;
    }
    fn resolved(&mut self, _: usize, _: Resolved) {}
    fn refused(&mut self, _: NicTime, _: Refused, _: &Network) {}
}

/// A frame from the other end with an IPv4 packet of this protocol number.
fn frame(number: u8, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let header: usize = if number == 6 { 20 } else { 8 };
    let mut f = vec![0; 34 + header];
    f[..6].copy_from_slice(&mac_of(1).0);
    f[6..12].copy_from_slice(&mac_of(0).0);
    f[12..14].copy_from_slice(&[8, 0]);
    f[14] = 0x45;
    f[15] = 2; // ECT(0)
    let total = (20 + header + payload.len()) as u16;
    f[16..18].copy_from_slice(&total.to_be_bytes());
    f[20] = 0x40; // not to be fragmented
    f[23] = number;
    f[26..30].copy_from_slice(&IP_A.octets());
    f[30..34].copy_from_slice(&IP_B.octets());
    f[34..36].copy_from_slice(&4000u16.to_be_bytes());
    f[36..38].copy_from_slice(&to_port.to_be_bytes());
    match number {
        6 => f[46] = 0x50,
        _ => f[38..40].copy_from_slice(&(total - 20).to_be_bytes()),
    }
    correct(&mut f);
    f.extend(payload);
    f.resize(f.len().max(60), 0xee);
    f
}

/// Writes the checksum of the IPv4 header (RFC 791 §3.1).
fn correct(f: &mut [u8]) {
    f[24..26].fill(0);
    let words = f[14..34].chunks_exact(2);
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    f[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}

fn send(port: &mut MemPort, frame: &[u8]) {
    let room = port.tx_frame(NicTime(1), mac_of(1)).expect("room");
    room[..frame.len()].copy_from_slice(frame);
    port.tx_commit(NicTime(1), frame.len());
    port.flush(NicTime(1));
}

fn pair() -> (MemPort, Network) {
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("numbers in range");
    let port = Box::new(switch.port(1).expect("a free port"));
    let net = Network::new(IP_B, 24, vec![port], &[]).expect("a host's address");
    (switch.port(0).expect("a free port"), net)
}

#[test]
fn each_packet_goes_to_the_transport_of_its_protocol_in_order() {
    let (mut far, mut net) = pair();
    let (mut tcp, mut roce) = (Taker::new(Protocol::Tcp), Taker::new(Protocol::Roce));
    let mut rng = Rng(5);
    let mut sent: [Vec<Vec<u8>>; 2] = Default::default();
    for round in 0..40u64 {
        for _ in 0..10 {
            let mut payload = vec![0; rng.below(1400) as usize];
            rng.fill(&mut payload);
            let kind = rng.below(2) as usize;
            let (number, port) = [(6, 7), (17, ROCE_UDP_PORT)][kind];
            send(&mut far, &frame(number, port, &payload));
            sent[kind].push(payload);
        }
        // Neither of them: another port of UDP, and another protocol.
        send(&mut far, &frame(17, 4789, b"other"));
        send(&mut far, &frame(132, 1, b"other"));
        let takers: &mut Takers<'_> = &mut [Some(&mut tcp), Some(&mut roce), None, None];
        assert!(deliver(
            NicTime(round),
            &mut net,
            takers,
            &mut Datapath::without_engines(&mut MockDma::default())
        ));
        assert!(!deliver(
            NicTime(round),
            &mut net,
            takers,
            &mut Datapath::without_engines(&mut MockDma::default())
        ));
    }
    for (taker, sent) in [(&tcp, &sent[0]), (&roce, &sent[1])] {
        let from = |(link, _): &(Link, Vec<u8>)| (link.port, link.mac) == (0, mac_of(0));
        assert!(taker.got.iter().all(from));
        assert!(taker.got.iter().map(|g| &g.1).eq(sent.iter()));
        assert_eq!(taker.answers as usize, sent.len());
    }
    assert_eq!(net.counters().not_ours, 80);
    assert_eq!(net.counters().dropped, 0);
}

#[test]
fn a_packet_without_a_transport_is_dropped_and_counted() {
    let (mut far, mut net) = pair();
    let mut tcp = Taker::new(Protocol::Tcp);
    send(&mut far, &frame(17, ROCE_UDP_PORT, b"for no transport"));
    send(&mut far, &frame(6, 7, b"for tcp"));
    let takers: &mut Takers<'_> = &mut [Some(&mut tcp), None, None, None];
    assert!(deliver(
        NicTime(1),
        &mut net,
        takers,
        &mut Datapath::without_engines(&mut MockDma::default())
    ));
    assert_eq!(tcp.got.len(), 1);
    assert_eq!(net.counters().dropped, 1);
}

/// A port at which the same frame arrives for ever.
struct Flood {
    frame: Vec<u8>,
    capabilities: Capabilities,
}

impl Port for Flood {
    fn describe(&self) -> String {
        "flood".into()
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn receive(&mut self, _: NicTime) -> Option<Arrived<'_>> {
        Some(Arrived::Frame(&self.frame))
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

#[test]
fn a_flood_at_one_port_leaves_the_other_port_and_the_step_their_turn() {
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("numbers in range");
    let mut far = switch.port(0).expect("a free port");
    let ports: Vec<Box<dyn Port>> = vec![
        Box::new(Flood {
            frame: frame(17, ROCE_UDP_PORT, b"flood"),
            capabilities: Capabilities::of_frames(mac_of(1), 1500, Checksums::Software),
        }),
        Box::new(switch.port(1).expect("a free port")),
    ];
    let mut net = Network::new(IP_B, 24, ports, &[]).expect("a host's address");
    let (mut tcp, mut roce) = (Taker::new(Protocol::Tcp), Taker::new(Protocol::Roce));
    for step in 1..=10 {
        send(&mut far, &frame(6, 7, b"in time"));
        let takers: &mut Takers<'_> = &mut [Some(&mut tcp), Some(&mut roce), None, None];
        assert!(deliver(
            NicTime(step),
            &mut net,
            takers,
            &mut Datapath::without_engines(&mut MockDma::default())
        ));
        assert_eq!(tcp.got.len() as u64, step);
        assert_eq!(roce.got.len() as u64 % step, 0, "as many in each step");
    }
}

/// Every truncation and every damaged header byte of a datagram is refused or delivered within its
/// frame.
#[test]
fn damaged_datagrams_stay_within_their_frame() {
    let whole = frame(17, ROCE_UDP_PORT, &[7; 32]);
    let (mut far, mut net) = pair();
    let mut rng = Rng(9);
    let mut counted = 0;
    for round in 0..20_000 {
        let mut roce = Damaged { got: 0 };
        let mut f = whole.clone();
        if round < whole.len() {
            f.truncate(round.max(14));
        }
        for _ in 0..rng.below(3) {
            let at = 14 + rng.below(28) as usize;
            if let Some(b) = f.get_mut(at) {
                *b = rng.next() as u8;
            }
        }
        // The checksum alone would refuse them.
        if f.len() >= 34 && rng.below(4) > 0 {
            correct(&mut f);
        }
        send(&mut far, &f);
        let takers: &mut Takers<'_> = &mut [None, Some(&mut roce), None, None];
        deliver(
            NicTime(1),
            &mut net,
            takers,
            &mut Datapath::without_engines(&mut MockDma::default()),
        );
        let c = net.counters();
        let refused = c.dropped + c.not_ours - counted;
        counted += refused;
        // TCP and echo that the damage made end elsewhere.
        assert!(roce.got + refused <= 1, "{c:?}");
        assert!(refused == 0 || round < whole.len() || f != whole);
    }
}

struct Damaged {
    got: u64,
}

impl PacketTransport for Damaged {
    fn receive(&mut self, _: NicTime, packet: &Packet<'_>, _: &mut Datapath<'_>) -> Then {
        if let Headers::Udp(d) = &packet.headers {
            assert!(d.payload_at <= d.end && d.end <= packet.frame.len());
            self.got += 1;
        }
        Then::Next
    }
    fn resolved(&mut self, _: usize, _: Resolved) {}
    fn refused(&mut self, _: NicTime, _: Refused, _: &Network) {}
}
