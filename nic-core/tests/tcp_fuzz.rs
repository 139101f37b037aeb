//! Hostile bytes: parsers and the whole transport never panic, and still serve others.
//!
//! The same in each run; `RINGBELL_FUZZ_ROUNDS` makes it longer. `fuzz/` has the same targets for
//! coverage-guided fuzzing.

use crate::transport_support;

use std::net::{Ipv4Addr, SocketAddrV4};

use proptest::prelude::{any, prop, proptest};
use ringbell_nic_core::port::mem::{mac_of, MemPort, MemSwitch};
use ringbell_nic_core::port::{Checksums, MacAddr, Port};
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::control::{echo_reply, Arp};
use ringbell_nic_core::wire::frame::{classify, set_acknowledgement, set_sequence, Frame};
use ringbell_nic_core::wire::vxlan;
use transport_support::*;

fn parse_all(bytes: &[u8]) {
    let mac = mac_of(1);
    let _ = vxlan::parse(bytes);
    let _ = Arp::parse(bytes);
    let _ = echo_reply(bytes, mac, &mut [0; 2048]);
    // Addressed to whomever the bytes say, so that the checks behind the addresses are reached.
    let mut own = MacAddr::default();
    if let Some(b) = bytes.get(..6) {
        own.0.copy_from_slice(b);
    }
    let ip = match bytes.get(30..34) {
        Some(b) => Ipv4Addr::new(b[0], b[1], b[2], b[3]),
        None => IP_B,
    };
    if let Ok(Frame::Tcp(seg)) = classify(bytes, own, ip) {
        let mut copy = bytes[seg.tcp_at..seg.end].to_vec();
        set_sequence(&mut copy, seg.seq.wrapping_add(1));
        set_acknowledgement(&mut copy, seg.seq, seg.window);
    }
}

proptest! {
    #[test]
    fn parsers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes);
    }

    #[test]
    fn parsers_never_panic_on_headers_that_look_right(
        mut bytes in prop::collection::vec(any::<u8>(), 14..200),
        ethertype in prop::sample::select(vec![0x0800u16, 0x0806]),
        ihl in 0x40u8..0x50,
        protocol in prop::sample::select(vec![1u8, 6, 17]),
    ) {
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if bytes.len() > 23 && ethertype == 0x0800 {
            bytes[14] = ihl;
            let total = (bytes.len() - 14) as u16;
            bytes[16..18].copy_from_slice(&total.to_be_bytes());
            bytes[20..22].fill(0);
            bytes[23] = protocol;
        }
        parse_all(&bytes);
    }
}

/// Takes a copy of each frame that leaves, as seeds for the attacker.
fn drain(port: &mut MemPort, now: NicTime, seeds: &mut Vec<Vec<u8>>) {
    while let Some(f) = port.receive(now) {
        if seeds.len() < 4096 {
            seeds.push(f.to_vec());
        }
    }
}

/// A frame that the victim looks at: a known one with a few things wrong, or noise behind a header.
fn hostile(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut f = match rng.below(8) {
        0 => {
            let mut f = vec![0; rng.below(1514) as usize];
            rng.fill(&mut f);
            f
        }
        _ => seeds[rng.below(seeds.len() as u64) as usize].clone(),
    };
    for _ in 0..rng.below(4) {
        if f.is_empty() {
            break;
        }
        let at = rng.below(f.len() as u64) as usize;
        match rng.below(6) {
            0 => f[at] ^= 1 << rng.below(8),
            1 => f[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => f.truncate(at),
            // TCP flags and header length, where states are decided.
            3 if f.len() > 47 => f[47] = rng.next() as u8,
            4 if f.len() > 46 => f[46] = rng.next() as u8,
            // Sequence and acknowledgement numbers near the true ones.
            5 if f.len() > 45 => {
                let at = if rng.below(2) == 0 { 38 } else { 42 };
                let n = u32::from_be_bytes([f[at], f[at + 1], f[at + 2], f[at + 3]]);
                let near = n.wrapping_add((rng.next() as i32 >> rng.below(32)) as u32);
                f[at..at + 4].copy_from_slice(&near.to_be_bytes());
            }
            _ => {}
        }
    }
    if f.len() >= 14 && rng.below(16) > 0 {
        f[..6].copy_from_slice(&mac_of(1).0);
    }
    f.truncate(1514);
    f
}

/// The victim is port 1. A friend on port 0 has connections; the attacker on port 2 sends frames
/// with any source, the friend's included, and without checksums to guess.
#[test]
fn a_transport_survives_hostile_frames() {
    let rounds: u64 = std::env::var("RINGBELL_FUZZ_ROUNDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(300);
    for round in 0..rounds {
        let mut rng = Rng(round);
        let sw = MemSwitch::private(3, 1500, Checksums::Omitted).unwrap(); // numbers in range
        let end = |i: usize| -> Box<dyn Port> { Box::new(sw.port(i).unwrap()) }; // free ports
        let mut p = Pair::with((end(0), end(1)), config(IP_A), config(IP_B));
        let mut attacker = sw.port(2).unwrap(); // free port
        p.b.transport.listen(PORT, 64).expect("the port is free");
        let (a, b) = p.connect(PORT);
        // Seeds: what a friendly connection looks like from the victim's side. The attacker answers
        // them with the addresses turned round.
        let mut seeds = Vec::new();
        let out = p.b.dma.region(random(round, 20_000));
        p.b.send(b, 1, out);
        let room = p.b.dma.region(vec![0; 1 << 16]);
        p.b.recv(b, 2, room, rng.below(2) == 0);
        let src = p.a.dma.region(random(round, 5_000));
        p.a.send(a, 3, src);
        if rng.below(3) == 0 {
            p.b.transport.close(b, Close::Sending);
        }
        for (remote_port, flags, seq, ack) in [
            (4000u16, 0x02u8, 1u32, 0u32), // SYN of an unknown sender
            (4001, 0x10, 2, 3),            // ACK of no connection
            (
                p.a.transport.conn_state(a).map_or(1, |c| c.local.port()),
                0x18,
                4,
                5,
            ),
        ] {
            seeds.push(segment(remote_port, flags, seq, ack));
        }
        for _ in 0..40 {
            p.tick();
            drain(&mut attacker, p.now, &mut seeds);
            for _ in 0..8 {
                let frame = hostile(&mut rng, &seeds);
                if let Some(room) = attacker.tx_frame(p.now, mac_of(1)) {
                    room[..frame.len()].copy_from_slice(&frame);
                    attacker.tx_commit(p.now, frame.len());
                }
            }
            attacker.flush(p.now);
        }
        // Time passes, timers fire, and a new client is still served. The attacker may have filled
        // the backlog with half-open connections: they time out.
        p.run(MINUTE / 2);
        while p.b.incoming().is_some() {}
        let remote = SocketAddrV4::new(IP_B, PORT);
        let deadline = NicTime(p.now.0 + MINUTE);
        let conn =
            p.a.transport
                .connect(p.now, remote, deadline)
                .expect("room");
        p.until(2 * MINUTE, |p| {
            while p.b.incoming().is_some() {}
            p.a.take(|e| match *e {
                TransportEvent::Connected { conn: c } if c == conn => Some(()),
                TransportEvent::ConnectFailed {
                    conn: c, status, ..
                } if c == conn => {
                    panic!("round {round}: {status}")
                }
                _ => None,
            })
        });
    }
}

/// A segment from 10.0.0.1 to the victim, without checksums.
fn segment(remote_port: u16, flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let mut f = vec![0; 64];
    f[..6].copy_from_slice(&mac_of(1).0);
    f[6..12].copy_from_slice(&mac_of(0).0);
    f[12..14].copy_from_slice(&[8, 0]);
    f[14] = 0x45;
    f[16..18].copy_from_slice(&50u16.to_be_bytes());
    f[22] = 64;
    f[23] = 6;
    f[26..30].copy_from_slice(&IP_A.octets());
    f[30..34].copy_from_slice(&IP_B.octets());
    f[34..36].copy_from_slice(&remote_port.to_be_bytes());
    f[36..38].copy_from_slice(&PORT.to_be_bytes());
    f[38..42].copy_from_slice(&seq.to_be_bytes());
    f[42..46].copy_from_slice(&ack.to_be_bytes());
    f[46] = 0x50;
    f[47] = flags;
    f[48..50].copy_from_slice(&1000u16.to_be_bytes());
    f
}

/// A bridge in the middle changes frames of a live connection: deeper states than an outside sender
/// reaches.
#[test]
fn live_connections_with_mutated_segments_never_panic() {
    let rounds: u64 = std::env::var("RINGBELL_FUZZ_ROUNDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(300);
    for round in 0..rounds {
        let mut rng = Rng(round ^ 0x5555);
        // Two switches, joined by us.
        let left = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
        let right = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap();
        let ports: (Box<dyn Port>, Box<dyn Port>) = (
            Box::new(left.port(0).unwrap()),
            Box::new(right.port(1).unwrap()),
        ); // free ports
        let mut bridge = (left.port(1).unwrap(), right.port(0).unwrap()); // free ports
        let mut p = Pair::with(ports, config(IP_A), config(IP_B));
        p.b.transport.listen(PORT, 16).expect("the port is free");
        let remote = SocketAddrV4::new(IP_B, PORT);
        let a =
            p.a.transport
                .connect(p.now, remote, NicTime(p.now.0 + MINUTE))
                .expect("room");
        let data = p.a.dma.region(random(round, 60_000));
        p.a.send(a, 1, data);
        let mut started = 0;
        for turn in 0..400u32 {
            p.tick();
            forward(&mut bridge.0, &mut bridge.1, p.now, &mut rng, mac_of(1));
            forward(&mut bridge.1, &mut bridge.0, p.now, &mut rng, mac_of(0));
            if let Some(b) = p.b.incoming() {
                started += 1;
                let back = p.b.dma.region(random(round, 60_000));
                p.b.send(b, 2, back);
                let room = p.b.dma.region(vec![0; 1 << 16]);
                p.b.recv(b, 3, room, true);
            }
            if turn == 150 {
                p.a.transport.close(a, Close::Sending);
            }
            if turn == 300 {
                p.a.transport.close(a, Close::Gracefully);
            }
        }
        assert!(started <= 400);
    }
}

fn forward(from: &mut MemPort, to: &mut MemPort, now: NicTime, rng: &mut Rng, dst: MacAddr) {
    while let Some(f) = from.receive(now) {
        let mut f = f.to_vec();
        if rng.below(10) == 0 {
            f = hostile(rng, &[f]);
            if f.len() >= 14 {
                f[..6].copy_from_slice(&dst.0);
            }
        }
        if let Some(room) = to.tx_frame(now, dst) {
            room[..f.len()].copy_from_slice(&f);
            to.tx_commit(now, f.len());
        }
    }
    to.flush(now);
}
