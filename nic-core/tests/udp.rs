//! Streams over plain UDP in virtual time: every byte over a wire that loses nothing; over others
//! every byte or an error that names the gap.

use crate::scapy_support;
use crate::transport_support;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::Status;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::{mac_of, MemPort, MemSwitch};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::udp::{UdpConfig, UdpConfigError, UdpTransport};
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{Buffer, ConnId, NicTime};
use ringbell_nic_core::wire::accl::{
    Credit, End, Gap, Kind, Signature, Terms, ACCL_UDP_PORT, SIGNATURE_BYTES,
};
use ringbell_nic_core::wire::{emit_ethernet, udp, ETHERNET_HEADER, ETHERTYPE_IPV4};
use transport_support::{
    random, wire, Flow, Opened, PairOf, Rng, SideOf, Wire, IP_A, IP_B, MINUTE,
};

impl Opened for UdpTransport {
    type Config = UdpConfig;
    fn open(net: &Network, config: UdpConfig) -> UdpTransport {
        UdpTransport::new(net, config).unwrap() // a valid configuration
    }
}

type Side = SideOf<UdpTransport>;
type Pair = PairOf<UdpTransport>;

const MS: u64 = 1_000_000;

fn config(seed: u64) -> UdpConfig {
    UdpConfig {
        seed,
        // It wraps soon.
        first: seed
            .is_multiple_of(2)
            .then_some(u32::MAX - seed as u32 % 100),
        ..UdpConfig::default()
    }
}

fn pair(ports: Wire, seed: u64) -> Pair {
    Pair::with(ports, config(seed * 2 + 1), config(seed * 3 + 2))
}

fn faulty(seed: u64, mtu: usize, faults: &Faults) -> Wire {
    let (a, b) = wire(mtu, Checksums::Software);
    let impair = |port: Box<dyn Port>, seed| -> Box<dyn Port> {
        let faults = Faults { seed, ..*faults };
        Box::new(Impair::new(port, faults).unwrap()) // probabilities
    };
    (impair(a, seed * 2), impair(b, seed * 2 + 1))
}

fn both_ways(p: &mut Pair, (a, b): (ConnId, ConnId), len: usize, seed: u64) {
    let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), len, seed + 1);
    let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), len / 3 + 1, seed + 2);
    p.until(20 * MINUTE, |p| {
        let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
        done.then_some(())
    });
    there.check(&p.a, &p.b);
    back.check(&p.b, &p.a);
}

fn close(p: &mut Pair, (a, b): (ConnId, ConnId)) {
    p.a.transport.close(a, Close::Gracefully);
    p.until(MINUTE, |p| p.b.has(TransportEvent::PeerClosed { conn: b }));
    p.b.transport.close(b, Close::Gracefully);
    p.until(MINUTE, |p| p.a.has(TransportEvent::Closed { conn: a }));
    p.until(MINUTE, |p| p.b.has(TransportEvent::Closed { conn: b }));
    p.until(2 * MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
}

#[test]
fn every_byte_arrives_over_wires_that_lose_nothing() {
    let mut copies = 0;
    for seed in 0..40 {
        let mtu = [576, 1_500, 4_001, 9_000][seed as usize % 4];
        let faults = Faults {
            duplicate: if seed % 3 == 0 { 0.05 } else { 0.0 },
            delay: Duration::from_micros(seed * 7),
            rate_bps: (seed % 5 == 0).then_some(1_000_000_000),
            ..Faults::default()
        };
        let mut p = pair(faulty(seed, mtu, &faults), seed);
        let ends = p.connect(7000);
        both_ways(&mut p, ends, 300_001, seed);
        p.run(600 * MS);
        assert_eq!(p.a.transport.conn_state(ends.0).unwrap().undelivered, 0); // not closed
        close(&mut p, ends);
        for side in [&p.a, &p.b] {
            let n = side.transport.counters();
            assert_eq!((n.gaps, n.invalid, n.refused), (0, 0, 0), "{n:?}");
            assert!(n.duplicates == 0 || seed % 3 == 0);
            copies += n.duplicates;
        }
    }
    assert!(copies > 100, "{copies}");
}

/// How a receive of one end has ended.
fn is_right(side: &mut Side, token: u64, to: Buffer, want: &[u8]) -> Option<bool> {
    let (status, bytes) = side.received(token)?;
    let got = side.dma.bytes(to);
    let n = bytes as usize;
    assert!(got[..n] == want[..n], "{n} wrong bytes with {status:?}");
    assert!(got[n..].iter().all(|&b| b == 0xee), "bytes behind them");
    match status {
        Status::Ok => assert_eq!(n, want.len()),
        status => assert_eq!(status, Status::ConnectionReset),
    }
    Some(status == Status::Ok)
}

#[test]
fn bad_wires_give_every_byte_or_an_error_in_time() {
    let mut ended = [0, 0];
    let (mut gaps, mut invalid, mut copies) = (0, 0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng(seed);
        let mut part = |max: u64| rng.below(max) as f64 / 1_000.0;
        let faults = Faults {
            loss: part(15),
            reorder: part(10),
            corrupt: part(8),
            duplicate: part(60),
            reorder_by: Duration::from_micros(50),
            ..Faults::default()
        };
        let mut p = pair(faulty(seed, 1_500, &faults), seed);
        let (a, b) = p.connect(7000);
        let lens = [
            (1 + seed * 37 % 60_000) as usize,
            (seed * 11 % 9_000) as usize + 1,
        ];
        let data = lens.map(|len| random(seed, len));
        let from = [
            p.a.dma.region(data[0].clone()),
            p.b.dma.region(data[1].clone()),
        ];
        let to = [
            p.a.dma.region(vec![0xee; lens[1]]),
            p.b.dma.region(vec![0xee; lens[0]]),
        ];
        let start = p.now.0;
        p.a.recv(a, 1, to[0], false);
        p.b.recv(b, 2, to[1], false);
        p.a.send(a, 3, from[0]);
        p.b.send(b, 4, from[1]);
        let (mut at_a, mut at_b) = (None, None);
        p.until(MINUTE, |p| {
            at_a = at_a.or(is_right(&mut p.a, 1, to[0], &data[1]));
            at_b = at_b.or(is_right(&mut p.b, 2, to[1], &data[0]));
            (at_a.is_some() && at_b.is_some()).then_some(())
        });
        assert!(
            p.now.0 - start < 6_000 * MS,
            "an answer to a question is due by then"
        );
        assert!(p.a.done(3).is_some() || at_a == Some(true));
        ended[usize::from(at_a == Some(true) && at_b == Some(true))] += 1;
        for side in [&p.a, &p.b] {
            let n = side.transport.counters();
            gaps += n.gaps;
            invalid += n.invalid;
            copies += n.duplicates;
        }
    }
    assert!(ended.iter().all(|&n| n > 500), "{ended:?}");
    assert!(
        gaps > 500 && invalid > 200 && copies > 500,
        "{gaps} {invalid} {copies}"
    );
}

/// A peer whose messages are made by hand, beside a NIC that listens at port 7000.
struct Raw {
    nic: Side,
    port: MemPort,
    now: NicTime,
}

const TERMS: Terms = Terms {
    window: 1 << 16,
    payload: 1_000,
    buffers: 8,
};
const OWN: End = End {
    session: 9,
    tag: 0x1234_5678,
};

impl Raw {
    fn new(config: UdpConfig) -> Raw {
        let switch = MemSwitch::private(2, 1_500, Checksums::Software).unwrap(); // numbers in range
        let port = switch.port(0).unwrap(); // free
        let mut nic = Side::new(Box::new(switch.port(1).unwrap()), IP_B, config); // free
        nic.transport.listen(7000, 4).unwrap(); // free
        let now = NicTime(1_000_000);
        Raw { nic, port, now }
    }

    fn bytes(&mut self, from: SocketAddrV4, payload: &[u8]) {
        let to = SocketAddrV4::new(IP_B, ACCL_UDP_PORT);
        let (own, nic) = (mac_of(0), mac_of(1));
        let frame = self.port.tx_frame(self.now, nic).expect("room");
        emit_ethernet(frame, nic, own, ETHERTYPE_IPV4);
        let packet = &mut frame[ETHERNET_HEADER..];
        udp::emit(packet, from, to, 0, payload.len());
        packet[28..28 + payload.len()].copy_from_slice(payload);
        self.port
            .tx_commit(self.now, ETHERNET_HEADER + 28 + payload.len());
        self.port.flush(self.now);
        self.step(0);
    }

    fn send(&mut self, to: End, sequence: u32, kind: Kind, payload: &[u8]) {
        let from = SocketAddrV4::new(IP_A, ACCL_UDP_PORT);
        self.bytes(from, &message(to, sequence, kind, payload));
    }

    fn step(&mut self, ns: u64) {
        self.now.0 += ns;
        self.nic.step(self.now);
        self.nic.step(self.now);
    }

    /// The messages that the NIC has sent.
    fn got(&mut self) -> Vec<(Signature, Vec<u8>)> {
        let mut got = Vec::new();
        while let Some(frame) = self.port.receive(self.now) {
            if frame[12..14] == [8, 0] {
                let (signature, payload) = Signature::parse(&frame[42..]).expect("a message");
                got.push((signature, payload.to_vec()));
            }
        }
        got
    }

    /// Makes a session; gives its end at the NIC, its id there, and the first numbers of the NIC.
    fn connect(&mut self, first: u32) -> (End, ConnId, u32) {
        let kind = Kind::Connect {
            port: 7000,
            source_port: 50_000,
            terms: TERMS,
        };
        self.send(End::default(), first, kind, b"");
        let (accept, _) = self.got().pop().expect("an answer");
        assert_eq!(accept.to, OWN);
        assert!(matches!(accept.kind, Kind::Accept(_)), "{accept:?}");
        assert_eq!(
            self.nic.incoming(),
            None,
            "the peer has not shown that it lives there"
        );
        self.send(
            accept.from,
            first,
            Kind::Credit(credit(accept.sequence)),
            b"",
        );
        let conn = self.nic.incoming().expect("established");
        (accept.from, conn, accept.sequence)
    }
}

fn credit(next: u32) -> Credit {
    Credit { next, taken: 0 }
}

fn message(to: End, sequence: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0; SIGNATURE_BYTES], payload].concat();
    let from = OWN;
    let signature = Signature {
        to,
        from,
        sequence,
        kind,
    };
    signature.emit(&mut bytes);
    bytes
}

#[test]
fn a_gap_is_named_to_both_ends_and_keeps_what_came_before_it() {
    let first = u32::MAX - 1;
    // Lost in the middle, over the wrap of the number; overtaken; the last one, found by a
    // question; the end itself.
    type Last = fn(Credit) -> Kind;
    let cases: [(Last, u32, &[u8]); 4] = [
        (Kind::Data, 3, b"late"),
        (Kind::Data, 1 << 30, b"far"),
        (Kind::Probe, 3, b""),
        (Kind::End, 4, b""),
    ];
    for (kind, ahead, payload) in cases {
        let mut raw = Raw::new(config(1));
        let (end, conn, next) = raw.connect(first);
        let to = raw.nic.dma.region(vec![0; 100]);
        raw.nic.recv(conn, 1, to, false);
        raw.send(end, first, Kind::Data(credit(next)), b"one");
        raw.send(end, first.wrapping_add(1), Kind::Data(credit(next)), b"two");
        // A copy changes nothing.
        raw.send(end, first, Kind::Data(credit(next)), b"xxx");
        raw.got();
        let got = first.wrapping_add(ahead);
        raw.send(end, got, kind(credit(next)), payload);
        let gap = Gap {
            expected: first.wrapping_add(2),
            got,
        };
        let (reset, _) = raw.got().pop().expect("the peer is told");
        assert_eq!((reset.to, reset.kind), (OWN, Kind::Reset(Some(gap))));
        assert!(raw.nic.has(TransportEvent::Reset { conn }).is_some());
        let detail = u64::from(gap.expected) << 32 | u64::from(gap.got);
        assert_eq!(ended(&mut raw), Some((Status::ConnectionReset, 6, detail)));
        assert_eq!(raw.nic.dma.bytes(to)[..7], *b"onetwo\0");
        let n = raw.nic.transport.counters();
        assert_eq!((n.gaps, n.duplicates), (1, 1));
        // Nothing comes back to life.
        raw.send(end, gap.expected, Kind::Data(credit(next)), b"old");
        raw.nic.recv(conn, 2, to, false);
        raw.step(0);
        assert_eq!(ended(&mut raw), Some((Status::ConnectionReset, 0, detail)));
        raw.nic.send(conn, 3, to);
        raw.step(0);
        assert_eq!(ended(&mut raw), Some((Status::ConnectionReset, 0, detail)));
        assert_eq!(raw.nic.transport.conn_state(conn).unwrap().reset.1, detail);
        // The reset was lost: a question gets it again, and so does a message after the session was
        // freed.
        let is_named = |got: Vec<(Signature, Vec<u8>)>| {
            let (reset, _) = got.last().expect("an answer");
            assert_eq!((reset.to, reset.kind), (OWN, Kind::Reset(Some(gap))));
        };
        raw.send(end, got, Kind::Probe(credit(next)), b"");
        is_named(raw.got());
        raw.nic.transport.close(conn, Close::Gracefully);
        raw.step(0);
        assert!(raw.nic.has(TransportEvent::Closed { conn }).is_some());
        assert_eq!(raw.nic.transport.connections(), 0);
        is_named(raw.got());
        raw.send(end, got, Kind::Data(credit(next)), b"more");
        is_named(raw.got());
    }
}

/// How the next operation has ended: status, bytes and detail.
fn ended(raw: &mut Raw) -> Option<(Status, u64, u64)> {
    raw.nic.take(|e| match *e {
        TransportEvent::RecvDone {
            status,
            bytes,
            detail,
            ..
        }
        | TransportEvent::SendDone {
            status,
            bytes,
            detail,
            ..
        } => Some((status, bytes, detail)),
        _ => None,
    })
}

#[test]
fn a_gap_that_the_peer_has_found_ends_our_operations() {
    let mut raw = Raw::new(config(1));
    let (end, conn, next) = raw.connect(5);
    let to = raw.nic.dma.region(vec![0; 100]);
    raw.nic.recv(conn, 1, to, false);
    let gap = Gap {
        expected: next,
        got: next.wrapping_add(1),
    };
    raw.send(end, 0, Kind::Reset(Some(gap)), b"");
    let detail = u64::from(gap.expected) << 32 | u64::from(gap.got);
    assert_eq!(ended(&mut raw), Some((Status::ConnectionReset, 0, detail)));
    assert_eq!(raw.got(), [], "a reset is not answered");
    raw.nic.send(conn, 2, to);
    raw.step(0);
    assert_eq!(ended(&mut raw), Some((Status::ConnectionReset, 0, detail)));
}

#[test]
fn credit_bounds_what_is_under_way_and_a_silent_peer_is_given_up() {
    let mut raw = Raw::new(config(4));
    let (end, conn, next) = raw.connect(u32::MAX);
    let len = 100_000;
    let data = random(3, len);
    let from = raw.nic.dma.region(data.clone());
    raw.nic.send(conn, 1, from);
    raw.step(0);
    let mut got: Vec<u8> = Vec::new();
    let mut expected = next;
    let mut taken = 0;
    let mut take = |raw: &mut Raw, most: usize| {
        let messages = raw.got();
        let data = messages
            .iter()
            .filter(|m| matches!(m.0.kind, Kind::Data(_)));
        let data: Vec<_> = data.collect();
        assert!(data.len() <= most, "{} messages", data.len());
        for (signature, payload) in &data {
            assert_eq!(signature.sequence, expected);
            assert!(payload.len() <= 1_000);
            expected = expected.wrapping_add(1);
            got.extend(payload);
        }
        (data.len(), expected, got.len())
    };
    assert_eq!(take(&mut raw, 8).0, 8, "as many as the peer has buffers");
    raw.step(5 * MS);
    assert_eq!(take(&mut raw, 0).0, 0);
    // Confirmed, but not taken: the window of 64 KiB is the bound.
    loop {
        let (_, seen, _) = take(&mut raw, 8);
        raw.send(end, u32::MAX, Kind::Credit(credit(seen)), b"");
        if raw.nic.done(1).is_some() {
            panic!("more than the window holds");
        }
        let (n, _, bytes) = take(&mut raw, 8);
        assert!(bytes <= 1 << 16);
        if n == 0 {
            assert_eq!(bytes, 1 << 16);
            break;
        }
    }
    // Credit for what was never sent, and older credit, change nothing.
    let (_, seen, bytes) = take(&mut raw, 0);
    for (next, taken) in [
        (seen, 1 << 20),
        (seen.wrapping_add(1), 0),
        (next, 0),
        (seen, u32::MAX),
    ] {
        let lies = Credit { next, taken };
        raw.send(end, u32::MAX, Kind::Credit(lies), b"");
        assert_eq!(take(&mut raw, 0).0, 0, "{lies:?}");
    }
    // A NIC without credit asks; the answer may have been lost.
    raw.step(11 * MS);
    raw.step(0);
    let asked = raw.got();
    let is_probe =
        |m: &(Signature, Vec<u8>)| matches!(m.0.kind, Kind::Probe(_)) && m.0.sequence == seen;
    assert!(!asked.is_empty() && asked.iter().all(is_probe), "{asked:?}");
    while taken + 1_000 < len as u32 {
        taken = take(&mut raw, 8).2 as u32;
        let all = Credit {
            next: take(&mut raw, 8).1,
            taken,
        };
        raw.send(end, u32::MAX, Kind::Credit(all), b"");
    }
    let (_, _, bytes_now) = take(&mut raw, 8);
    assert!(bytes_now > bytes);
    assert_eq!(raw.nic.done(1), Some((Status::Ok, len as u64)));
    assert_eq!(got, data);
    // The last message is never confirmed.
    let to = raw.nic.dma.region(vec![0; 1]);
    raw.nic.send(conn, 3, to);
    raw.step(0);
    assert_eq!(raw.nic.done(3), Some((Status::Ok, 1)));
    raw.nic.recv(conn, 2, to, false);
    let start = raw.now.0;
    let mut questions = 0;
    while raw.nic.has(TransportEvent::Reset { conn }).is_none() {
        assert!(raw.now.0 < start + 7_000 * MS, "{:?}", raw.nic.transport);
        let next = raw
            .nic
            .next_timer()
            .map_or(MS, |t| t.0.saturating_sub(raw.now.0));
        raw.step(next.max(1_000));
        questions += raw.got().len();
    }
    assert_eq!(raw.nic.done(2), Some((Status::ConnectionReset, 0)));
    assert!((10..40).contains(&questions), "{questions} questions");
}

#[test]
fn outsiders_and_wrong_fields_change_nothing() {
    let mut raw = Raw::new(config(2));
    let (end, conn, next) = raw.connect(100);
    let to = raw.nic.dma.region(vec![0; 4]);
    raw.nic.recv(conn, 1, to, false);
    let outsider = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), ACCL_UDP_PORT);
    let other_port = SocketAddrV4::new(IP_A, ACCL_UDP_PORT + 1);
    let own = SocketAddrV4::new(IP_A, ACCL_UDP_PORT);
    let data = Kind::Data(credit(next));
    let resets = Kind::Reset(None);
    let wrong_ends = [
        End {
            tag: end.tag ^ 1,
            ..end
        },
        End {
            session: end.session + 1,
            ..end
        },
        End {
            session: u16::MAX,
            ..end
        },
        End::default(),
    ];
    let mut foreign = 0;
    for kind in [
        data,
        Kind::End(credit(next)),
        Kind::Probe(credit(7)),
        Kind::Credit(credit(7)),
        resets,
        Kind::Accept(TERMS),
        Kind::Refuse { no_listener: true },
    ] {
        let payload: &[u8] = if kind == data { b"evil" } else { b"" };
        for from in [outsider, other_port] {
            raw.bytes(from, &message(end, 100, kind, payload));
            foreign += 1;
        }
        for wrong in wrong_ends {
            raw.send(wrong, 100, kind, payload);
            foreign += 1;
        }
    }
    assert_eq!(raw.nic.transport.counters().foreign, foreign);
    // Their senders are told, by no more bytes than they have sent, and with no tag of ours.
    for (answer, payload) in raw.got() {
        assert_eq!((answer.kind, payload.len()), (resets, 0));
        assert_eq!(answer.to, OWN);
    }
    // An answer or a refusal on an open session, and an own request that repeats.
    raw.send(end, 100, Kind::Refuse { no_listener: false }, b"");
    raw.send(end, 7, Kind::Accept(TERMS), b"");
    // Damaged in every byte, or cut.
    let good = message(end, 100, data, b"good");
    for at in 0..good.len() {
        let mut wrong = good.clone();
        wrong[at] ^= 0x41;
        raw.bytes(own, &wrong);
        raw.bytes(own, &good[..at]);
    }
    assert_eq!(raw.nic.transport.counters().invalid, 2 * good.len() as u64);
    assert_eq!(raw.nic.done(1), None);
    raw.send(end, 100, data, b"good");
    assert_eq!(raw.nic.done(1), Some((Status::Ok, 4)));
    assert_eq!(raw.nic.dma.bytes(to), b"good");
}

#[test]
fn a_peer_that_breaks_its_word_is_reset() {
    let cases: [(Kind, usize); 2] = [(Kind::Data(credit(0)), 1_300), (Kind::End(credit(0)), 0)];
    for (kind, len) in cases {
        let config = UdpConfig {
            rx_buffer: 4_096,
            ..config(2)
        };
        let mut raw = Raw::new(config);
        let (end, conn, _) = raw.connect(0);
        // Beyond the window, which is never opened; behind the end of the stream.
        for sequence in 0..4 {
            raw.send(end, sequence, kind, &vec![7; len]);
        }
        let told = raw.got().pop().map(|m| m.0.kind);
        assert_eq!(told, Some(Kind::Reset(None)));
        assert!(raw.nic.has(TransportEvent::Reset { conn }).is_some());
    }
}

#[test]
fn requests_are_refused_or_wait_and_a_flood_fills_the_backlog_alone() {
    let mut raw = Raw::new(config(3));
    let request = |port, terms| Kind::Connect {
        port,
        source_port: 1,
        terms,
    };
    let cases = [
        (request(7001, TERMS), true),
        (
            request(
                7000,
                Terms {
                    window: 100,
                    ..TERMS
                },
            ),
            false,
        ),
        (
            request(
                7000,
                Terms {
                    window: u32::MAX,
                    ..TERMS
                },
            ),
            false,
        ),
        (
            request(
                7000,
                Terms {
                    payload: 0,
                    ..TERMS
                },
            ),
            false,
        ),
        (
            request(
                7000,
                Terms {
                    buffers: 0,
                    ..TERMS
                },
            ),
            false,
        ),
    ];
    for (kind, no_listener) in cases {
        raw.send(End::default(), 1, kind, b"");
        let answer = raw.got().pop().map(|m| m.0.kind);
        assert_eq!(answer, Some(Kind::Refuse { no_listener }));
    }
    for tag in 0..500 {
        let mut flood = message(End::default(), 1, request(7000, TERMS), b"");
        let (mut signature, _) = Signature::parse(&flood).expect("ours");
        signature.from.tag = tag;
        signature.emit(&mut flood);
        raw.bytes(SocketAddrV4::new(IP_A, ACCL_UDP_PORT), &flood);
    }
    assert_eq!(raw.nic.transport.connections(), 4);
    assert_eq!(raw.nic.transport.counters().overflowed, 496);
    // Repeated answers end with their deadline.
    for _ in 0..200 {
        raw.step(100 * MS);
        raw.got();
    }
    assert_eq!(raw.nic.transport.connections(), 0);
    raw.connect(1);
}

#[test]
fn any_bytes_are_survived() {
    let mut rng = Rng(7);
    let mut raw = Raw::new(config(3));
    let (end, _, next) = raw.connect(100);
    for _ in 0..20_000 {
        let kind = match rng.below(8) {
            0 => Kind::Data(Credit {
                next: next.wrapping_add(rng.below(4) as u32),
                taken: rng.next() as u32,
            }),
            1 => Kind::End(credit(rng.next() as u32)),
            2 => Kind::Probe(credit(next)),
            3 => Kind::Connect {
                port: 7000,
                source_port: rng.next() as u16,
                terms: TERMS,
            },
            4 => Kind::Accept(TERMS),
            5 => Kind::Credit(credit(next)),
            6 => Kind::Refuse { no_listener: true },
            _ => Kind::Data(credit(next)),
        };
        let payload = if matches!(kind, Kind::Data(_)) {
            random(1, 1 + rng.below(900) as usize)
        } else {
            Vec::new()
        };
        let mut bytes = message(end, 100 + rng.below(3) as u32, kind, &payload);
        if rng.below(3) == 0 {
            let (mut signature, _) = Signature::parse(&bytes).expect("ours");
            signature.to.session = rng.below(8) as u16;
            signature.from.session = rng.below(8) as u16;
            signature.emit(&mut bytes);
        }
        raw.bytes(SocketAddrV4::new(IP_A, ACCL_UDP_PORT), &bytes);
        raw.step(rng.below(20) * MS);
        raw.got();
    }
    assert!(raw.nic.transport.connections() <= 5);
}

#[test]
fn a_peer_that_has_restarted_ends_the_session_at_once() {
    let mut p = pair(wire(1_500, Checksums::Software), 1);
    let (a, _) = p.connect(7000);
    let from = p.a.dma.region(vec![1; 100]);
    let to = p.a.dma.region(vec![0; 100]);
    p.a.recv(a, 1, to, false);
    // Another NIC in the place of the peer.
    p.b.transport = UdpTransport::new(&p.b.net, config(99)).unwrap(); // a valid configuration
    p.a.send(a, 2, from);
    let start = p.now.0;
    assert_eq!(
        p.until(MINUTE, |p| p.a.received(1)),
        (Status::ConnectionReset, 0)
    );
    assert!(p.now.0 - start < MS);
}

#[test]
fn a_listener_that_is_not_there_and_a_host_that_is_not_are_told_apart() {
    let mut p = pair(wire(1_500, Checksums::Software), 1);
    let deadline = NicTime(p.now.0 + 5_000 * MS);
    let mut attempt = |ip: Ipv4Addr, want: Status| {
        let at = SocketAddrV4::new(ip, 9);
        let conn = p.a.transport.connect(p.now, at, deadline).unwrap(); // on the same network
        let status = want;
        p.until(MINUTE, |p| {
            p.a.has(TransportEvent::ConnectFailed {
                conn,
                status,
                answer: (want == Status::ConnectionRefused).then_some(0),
            })
        });
    };
    attempt(IP_B, Status::ConnectionRefused);
    attempt(Ipv4Addr::new(10, 0, 0, 77), Status::HostUnreachable);
    let own =
        p.a.transport
            .connect(p.now, SocketAddrV4::new(IP_A, 9), deadline);
    assert_eq!(own, Err(Status::HostUnreachable));
    assert_eq!(p.a.transport.connections(), 0);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let net = Side::new(wire(1500, Checksums::Software).0, IP_A, config(1)).net;
    let refused = |c| UdpTransport::new(&net, c).unwrap_err();
    let bytes = 100;
    let c = UdpConfig {
        rx_buffer: bytes,
        ..config(1)
    };
    assert_eq!(refused(c), UdpConfigError::Buffer { bytes });
    let c = UdpConfig {
        payload_max: bytes,
        ..config(1)
    };
    assert_eq!(refused(c), UdpConfigError::Payload { bytes });
    let c = UdpConfig {
        buffers: 1,
        ..config(1)
    };
    assert_eq!(refused(c), UdpConfigError::Buffers { buffers: 1 });
}

#[test]
fn scapy_reads_every_signature_of_a_session() {
    let Some(python) = scapy_support::python() else {
        eprintln!("SKIPPED scapy_reads_every_signature_of_a_session: there is no scapy; `cargo xtask test` installs it below target/venv");
        return;
    };
    let path = std::env::temp_dir().join(format!("ringbell-udp-{}.pcapng", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a name of our own");
    let (a, b) = wire(1_500, Checksums::Software);
    let recorded = Capture::new(a, file, Duration::ZERO).expect("a new file can be written");
    let mut p = pair((Box::new(recorded), b), 4);
    let ends = p.connect(7000);
    both_ways(&mut p, ends, 100_003, 1);
    p.run(20 * MS);
    close(&mut p, ends);
    drop(p);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/udp_scapy.py");
    let shown = std::process::Command::new(python)
        .arg(script)
        .arg(&path)
        .output();
    std::fs::remove_file(&path).expect("written above");
    let shown = shown.expect("it has imported scapy");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        shown.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    // Messages of each type: data, end, probe, credit, connect, accept.
    let types: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(
        types,
        ["0x0", "0x80", "0x81", "0x82", "0x83", "0x84"],
        "{text}"
    );
}
