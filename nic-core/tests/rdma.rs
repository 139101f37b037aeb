//! Streams over RDMA in virtual time: lost, repeated, reordered and corrupted packets, ends, and
//! limits.

use crate::transport_support;

use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::{InlineSend, SessionId, Status};
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::rdma::{
    Congestion, DcqcnConfig, RdmaConfig, RdmaConfigError, RdmaTransport,
};
use ringbell_nic_core::transport::Icrc;
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{NicTime, WorkToken};
use ringbell_nic_core::wire::roce::cm::Reason;
use transport_support::rdma::{config, Pair, Side};
use transport_support::{random, wire, Flow, Rng, Wire, IP_A, IP_B, MINUTE};

fn faulty(seed: u64, faults: &Faults) -> Wire {
    let (a, b) = wire(1500, Checksums::Software);
    let impair = |port: Box<dyn Port>, seed| -> Box<dyn Port> {
        let faults = Faults { seed, ..*faults };
        Box::new(Impair::new(port, faults).unwrap()) // probabilities
    };
    (impair(a, seed * 2), impair(b, seed * 2 + 1))
}

/// Both directions at once; every byte is compared.
fn exactly_once(mut p: Pair, seed: u64, len: usize) -> Pair {
    let (a, b) = p.connect(7000);
    let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), len, seed + 1);
    let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), len / 3 + 1, seed + 2);
    p.until(20 * MINUTE, |p| {
        let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
        done.then_some(())
    });
    there.check(&p.a, &p.b);
    back.check(&p.b, &p.a);
    // The end arrives behind all bytes, in both directions.
    p.a.transport.close(a, Close::Gracefully);
    p.until(MINUTE, |p| p.b.has(TransportEvent::PeerClosed { conn: b }));
    p.b.transport.close(b, Close::Gracefully);
    p.until(MINUTE, |p| p.a.has(TransportEvent::Closed { conn: a }));
    p.until(MINUTE, |p| p.b.has(TransportEvent::Closed { conn: b }));
    p.until(2 * MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
    p
}

#[test]
fn bytes_arrive_once_over_thousands_of_bad_wires() {
    let mut all = [0; 4];
    for seed in 0..10_000 {
        // One end or both repeat all that follows a lost packet.
        let repair = |bit: u64| RdmaConfig {
            selective: seed & bit == 0,
            udp_ports: [1, 1, 3, 64][(seed / 4 % 4) as usize],
            ..config(seed * 2 + bit)
        };
        let mut rng = Rng(seed);
        let mut part = |max: u64| rng.below(max) as f64 / 1000.0;
        let faults = Faults {
            loss: part(60),
            duplicate: part(60),
            reorder: part(60),
            corrupt: part(30),
            reorder_by: Duration::from_micros(50),
            ..Faults::default()
        };
        let mut p = Pair::with(faulty(seed, &faults), repair(1), repair(2));
        // Long sends stay in memory that is mapped.
        (p.a.dma.mapped, p.b.dma.mapped) = (seed % 3 == 0, seed % 3 == 1);
        let p = exactly_once(p, seed, 60_000);
        let n = p.a.transport.counters();
        all[0] += n.repeated;
        all[1] += n.out_of_order;
        all[2] += n.duplicates;
        all[3] += n.invalid;
        assert_eq!(n.not_ready, 0, "the window keeps the receiver ready");
    }
    assert!(all.iter().all(|&n| n > 1000), "{all:?}");
}

/// Bytes per second over a cable of 1 Gb/s whose switch marks what waits for more than 200 µs, and
/// how many of 1,000 packets it marked.
fn over_a_narrow_cable(congestion: Congestion) -> (u64, u64) {
    let faults = Faults {
        rate_bps: Some(1_000_000_000),
        mark_beyond: Some(Duration::from_micros(200)),
        ..Faults::default()
    };
    let with = |seed| RdmaConfig {
        congestion,
        ..config(seed)
    };
    let mut p = Pair::with(faulty(3, &faults), with(1), with(2));
    let (a, b) = p.connect(7000);
    let len = 4_000_000;
    let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), len, 3);
    let start = p.now;
    p.until(MINUTE, |p| there.drive(&mut p.a, &mut p.b).then_some(()));
    there.check(&p.a, &p.b);
    assert_eq!(p.a.transport.counters().repeated, 0, "nothing is lost");
    let ns = p.now.0 - start.0;
    let packets = len as u64 / 1_448;
    (
        len as u64 * 1_000_000_000 / ns,
        p.b.transport.counters().marked * 1_000 / packets,
    )
}

#[test]
fn marks_of_a_switch_keep_its_queue_short_and_the_cable_full() {
    let rate = 125_000_000;
    let (fixed, marked) = over_a_narrow_cable(Congestion::Fixed);
    assert!(
        fixed > rate / 10 * 9 && marked > 900,
        "a window of 2 ms fills the queue: {fixed}, {marked}"
    );
    let dcqcn = Congestion::Dcqcn(DcqcnConfig {
        line_rate: 1_250_000_000,
        ..DcqcnConfig::default()
    });
    for control in [Congestion::Window, dcqcn] {
        let (bytes, marked) = over_a_narrow_cable(control);
        // DCQCN is made for marks with a probability; a step of marks cuts its rate more often than
        // it must.
        assert!(bytes > rate / 10 * 7, "{control}: {bytes}");
        assert!(marked < 500, "{control}: {marked}");
    }
}

#[test]
fn numbers_wrap() {
    // 2^24 packets are many; the first number is drawn, so some seed begins close to the end.
    let mut wrapped = 0;
    for seed in 0..400 {
        let faults = Faults {
            loss: 0.01,
            ..Faults::default()
        };
        let mut p = Pair::new(faulty(seed, &faults), seed);
        let (a, b) = p.connect(7000);
        let start = p.a.transport.first_psn(a).unwrap(); // connected
        if start.value() < (1 << 24) - 50_000 {
            continue;
        }
        wrapped += 1;
        let packets = (1 << 24) - start.value() as usize;
        let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), (packets + 100) * 1452, seed);
        p.until(100 * MINUTE, |p| {
            there.drive(&mut p.a, &mut p.b).then_some(())
        });
        there.check(&p.a, &p.b);
    }
    assert!(wrapped > 0);
}

#[test]
fn a_silent_peer_is_given_up_in_time() {
    let mut p = Pair::new(wire(1500, Checksums::Software), 5);
    let (a, _) = p.connect(7000);
    let src = p.a.dma.region(vec![7; 1000]);
    let recv = p.a.dma.region(vec![0; 10]);
    p.a.recv(a, 2, recv, false);
    p.a.send(a, 1, src);
    let start = p.now;
    // The peer is not stepped any more.
    let mut now = start;
    while p.a.has(TransportEvent::Reset { conn: a }).is_none() {
        p.a.step(now);
        let next = p.a.next_timer().map_or(now.0 + 1_000_000, |t| t.0);
        now = NicTime(next.max(now.0 + 10_000));
        assert!(now.0 < start.0 + 8_000_000_000, "{:?}", p.a.transport);
    }
    assert!(now.0 >= start.0 + 5_000_000_000);
    assert_eq!(
        p.a.done(1),
        Some((Status::Ok, 1000)),
        "its buffer was free at once"
    );
    assert_eq!(p.a.done(2), Some((Status::ConnectionReset, 0)));
    p.a.send(a, 3, src);
    p.a.transport.close(a, Close::Gracefully);
    p.a.step(now);
    assert_eq!(p.a.done(3), Some((Status::ConnectionReset, 0)));
    assert!(p.a.has(TransportEvent::Closed { conn: a }).is_some());
}

#[test]
fn a_long_send_stays_in_memory_until_it_is_acknowledged() {
    let len = 100_003;
    let sent = || {
        let mut p = Pair::new(wire(1500, Checksums::Software), 7);
        let (a, b) = p.connect(7000);
        p.a.dma.mapped = true;
        let mut data = vec![0; len];
        Rng(7).fill(&mut data);
        let src = p.a.dma.region(data.clone());
        let dst = p.b.dma.region(vec![0; len]);
        p.b.recv(b, 2, dst, false);
        p.a.send(a, 1, src);
        p.a.step(p.now);
        assert_eq!(p.a.done(1), None, "the peer has not acknowledged it");
        (p, a, src, dst, data)
    };
    let (mut p, a, _, dst, data) = sent();
    assert_eq!(p.until(MINUTE, |p| p.b.done(2)), (Status::Ok, len as u64));
    assert_eq!(p.until(MINUTE, |p| p.a.done(1)), (Status::Ok, len as u64));
    assert_eq!(p.b.dma.bytes(dst), data);
    assert_eq!(p.a.transport.conn_state(a).map(|c| c.undelivered), Some(0));
    // Taken back: nothing reads the memory again, so the stream ends when a packet is to be
    // repeated.
    let (mut p, a, src, ..) = sent();
    assert!(p.a.transport.cancel(a, WorkToken(1)).is_some_and(|n| n > 0));
    p.a.dma.regions[src.region as usize] = Vec::new();
    let mut now = p.now;
    while p.a.has(TransportEvent::Reset { conn: a }).is_none() {
        now = NicTime(now.0 + 100_000);
        p.a.step(now);
        assert!(now.0 < p.now.0 + 1_000_000_000, "{:?}", p.a.transport);
    }
    assert_eq!(p.a.done(1), None, "it was taken back");
    // The end of the stream, and an abort, with a send in flight.
    let (mut p, a, _, _, data) = sent();
    p.a.transport.close(a, Close::Gracefully);
    assert_eq!(
        p.until(MINUTE, |p| p.b.done(2)),
        (Status::Ok, data.len() as u64)
    );
    p.until(MINUTE, |p| p.a.has(TransportEvent::Closed { conn: a }));
    assert_eq!(p.a.done(1), Some((Status::Ok, len as u64)));
    let (mut p, a, src, ..) = sent();
    p.a.transport.close(a, Close::Now);
    p.a.dma.regions[src.region as usize] = Vec::new();
    p.run(1_000_000_000);
    assert_eq!(p.a.done(1), Some((Status::Aborted, 0)));
}

#[test]
fn a_full_window_stops_the_sender_and_no_packet_is_refused() {
    let mut p = Pair::new(wire(1500, Checksums::Software), 6);
    let (a, b) = p.connect(7000);
    let (tx, rx) = (
        RdmaConfig::default().tx_buffer,
        RdmaConfig::default().rx_buffer,
    );
    let mut data = vec![0; tx + rx + 50_000];
    Rng(1).fill(&mut data);
    let src = p.a.dma.region(data.clone());
    p.a.send(a, 1, src);
    p.run(1_000_000_000);
    assert_eq!(p.a.done(1), None, "more than both buffers hold");
    let state = p.a.transport.conn_state(a).expect("open");
    assert!(state.undelivered >= tx as u64);
    let dst = p.b.dma.region(vec![0; data.len()]);
    p.b.recv(b, 2, dst, false);
    p.until(MINUTE, |p| p.b.done(2));
    assert_eq!(p.a.done(1), Some((Status::Ok, data.len() as u64)));
    assert!(p.b.dma.bytes(dst) == data);
    for side in [&p.a, &p.b] {
        let n = side.transport.counters();
        assert_eq!((n.not_ready, n.repeated), (0, 0));
    }
}

#[test]
fn a_flood_of_requests_fills_the_backlog_and_no_more() {
    let mut p = Pair::new(wire(1500, Checksums::Software), 7);
    p.b.transport.listen(7000, 4).unwrap(); // the port is free
    let deadline = NicTime(p.now.0 + 5_000_000_000);
    let remote = SocketAddrV4::new(IP_B, 7000);
    for _ in 0..50 {
        p.a.transport.connect(p.now, remote, deadline).unwrap(); // there is room
    }
    p.run(1_000_000_000);
    // Those that are not polled by the program count against the backlog; here all are.
    assert!(p.b.transport.connections() <= 50);
    // Nothing answers at a port without a listener.
    let refused =
        p.a.transport
            .connect(p.now, SocketAddrV4::new(IP_B, 9), deadline)
            .unwrap();
    p.until(MINUTE, |p| {
        p.a.has(TransportEvent::ConnectFailed {
            conn: refused,
            status: Status::ConnectionRefused,
            answer: Some(Reason::NoService.code()),
        })
    });
    let own =
        p.a.transport
            .connect(p.now, SocketAddrV4::new(IP_A, 9), deadline);
    assert_eq!(own, Err(Status::HostUnreachable));
}

#[test]
fn the_crc_is_left_out_over_shared_memory_when_both_agree() {
    for (checksums, a, b, left_out) in [
        (Checksums::Omitted, Icrc::Auto, Icrc::Auto, true),
        (Checksums::Software, Icrc::Auto, Icrc::Auto, false),
        (Checksums::Omitted, Icrc::Always, Icrc::Auto, false),
        (Checksums::Software, Icrc::Never, Icrc::Never, true),
        (Checksums::Software, Icrc::Never, Icrc::Always, false),
    ] {
        let with = |seed, icrc| RdmaConfig {
            icrc,
            ..config(seed)
        };
        let mut p = Pair::with(wire(9000, checksums), with(1, a), with(2, b));
        let (ca, cb) = p.connect(7000);
        assert_eq!(p.a.transport.has_icrc(ca), Some(!left_out));
        assert_eq!(p.b.transport.has_icrc(cb), Some(!left_out));
        let mut there = Flow::new(&mut p.a, &mut p.b, (ca, cb), 300_000, 3);
        p.until(MINUTE, |p| there.drive(&mut p.a, &mut p.b).then_some(()));
        there.check(&p.a, &p.b);
    }
}

#[test]
fn small_payloads_are_sent_at_once_when_nothing_is_before_them() {
    let mut p = Pair::new(wire(1500, Checksums::Software), 9);
    let (a, b) = p.connect(7000);
    let payload = |n: u8| InlineSend {
        session: SessionId(0),
        len: 1 + n % 40,
        words: [u64::from_le_bytes([n; 8]); 5],
    };
    let mut sent = Vec::new();
    for n in 0..100 {
        let one = payload(n);
        assert!(p.a.transport.send_now(a, &one), "there is room");
        sent.extend(vec![n; one.len.into()]);
    }
    // Behind a send that is queued it would overtake.
    let long = p.a.dma.region(random(5, 2 << 20));
    p.a.send(a, 1, long);
    assert!(!p.a.transport.send_now(a, &payload(0)));
    let want = sent.len() as u32 + long.len;
    let to = p.b.dma.region(vec![0; want as usize]);
    p.b.recv(b, 2, to, false);
    p.until(MINUTE, |p| p.b.received(2));
    sent.extend(random(5, 2 << 20));
    assert!(p.b.dma.bytes(to) == sent);
    p.until(MINUTE, |p| p.a.sent(1));
    assert!(p.a.transport.send_now(a, &payload(0)));
    p.a.transport.close(a, Close::Sending);
    assert!(
        !p.a.transport.send_now(a, &payload(0)),
        "nothing follows the end"
    );
    p.a.transport.close(a, Close::Now);
    assert!(!p.a.transport.send_now(a, &payload(0)));
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let net = Side::new(wire(1500, Checksums::Software).0, IP_A, config(1)).net;
    let refused = |c| RdmaTransport::new(&net, c).unwrap_err();
    let bytes = 100;
    let c = RdmaConfig {
        rx_buffer: bytes,
        ..config(1)
    };
    assert_eq!(refused(c), RdmaConfigError::Buffer { bytes });
    let c = RdmaConfig {
        payload_max: bytes,
        ..config(1)
    };
    assert_eq!(refused(c), RdmaConfigError::Payload { bytes });
    let timeout = Duration::from_secs(2);
    let c = RdmaConfig {
        timeout,
        ..config(1)
    };
    assert_eq!(refused(c), RdmaConfigError::Timeout { timeout });
    for ports in [0, 65] {
        let c = RdmaConfig {
            udp_ports: ports,
            ..config(1)
        };
        assert_eq!(refused(c), RdmaConfigError::UdpPorts { ports });
    }
}

#[test]
fn tshark_reads_a_session_from_the_first_request_to_the_last_reply() {
    let path = std::env::temp_dir().join(format!("ringbell-rdma-{}.pcapng", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a name of our own");
    // Reports of lost packets are read, too.
    let faults = Faults {
        loss: 0.02,
        ..Faults::default()
    };
    let (a, b) = faulty(3, &faults);
    let recorded = Capture::new(a, file, Duration::ZERO).expect("a new file can be written");
    let mut p = Pair::new((Box::new(recorded), b), 3);
    let (a, b) = p.connect(7000);
    let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), 700_001, 1);
    let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), 10_001, 2);
    p.until(MINUTE, |p| {
        let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
        done.then_some(())
    });
    p.a.transport.close(a, Close::Gracefully);
    p.until(MINUTE, |p| p.b.has(TransportEvent::PeerClosed { conn: b }));
    p.b.transport.close(b, Close::Gracefully);
    p.until(MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
    drop(p);
    let shown = std::process::Command::new("tshark")
        // Random payloads look like those of another protocol now and then.
        .args(["-n", "--disable-protocol", "rpcordma", "-T", "fields"])
        .args([
            "-e",
            "_ws.malformed",
            "-e",
            "_ws.expert",
            "-e",
            "infiniband.bth.opcode",
            "-e",
            "infiniband.mad.attributeid",
            "-r",
        ])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).expect("written above");
    let Ok(shown) = shown else {
        eprintln!("SKIPPED tshark_reads_a_session: there is no tshark");
        return;
    };
    let text = String::from_utf8_lossy(&shown.stdout);
    let number = |t: &str| match t.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => t.parse().ok(),
    };
    let seen: std::collections::BTreeSet<_> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('\t').skip(2).map(number);
            Some((cells.next()??, cells.next()?))
        })
        .collect();
    // Operations, and those of queue pair 1 with the attribute of their message: request, reply,
    // ready, disconnect and its reply.
    let management = [0x10, 0x13, 0x14, 0x15, 0x16].map(|a| (0x64, Some(a)));
    let all = [4, 5, 0x11]
        .map(|op| (op, None))
        .into_iter()
        .chain(management);
    assert_eq!(seen, all.collect());
    let odd = text.lines().find(|l| !l.starts_with("\t\t"));
    assert_eq!(odd, None, "malformed, or an expert's remark");
}
