//! TCP transports over the in-memory switch, in virtual time: every run is the same.

use crate::transport_support;

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::{mac_of, MemPort, MemSwitch};
use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{Buffer, NicTime, WorkToken};
use transport_support::*;

#[test]
fn bytes_go_both_ways() {
    for (mtu, checksums) in [
        (1500, Checksums::Software),
        (9000, Checksums::Omitted),
        (576, Checksums::Software),
    ] {
        let mut p = Pair::mem(mtu, checksums);
        p.listen(PORT);
        let (a, b) = p.connect(PORT);
        p.transfer((a, b), random(1, 3_000_000), 2, MINUTE);
        std::mem::swap(&mut p.a, &mut p.b);
        p.transfer((b, a), random(3, 1_000_001), 4, MINUTE);
    }
}

/// Two sides behind cables with these faults, each with dice of its own.
fn impaired(mtu: usize, faults: Faults) -> Pair {
    let sw = MemSwitch::private(2, mtu, Checksums::Software).unwrap(); // numbers in range
    let end = |i: usize| -> Box<dyn Port> {
        let faults = Faults {
            seed: faults.seed * 2 + i as u64,
            ..faults
        };
        Box::new(Impair::new(Box::new(sw.port(i).unwrap()), faults).unwrap()) // free ports, faults in range
    };
    Pair::with((end(0), end(1)), config(IP_A), config(IP_B))
}

fn env_mib(default: usize) -> usize {
    let set = std::env::var("RINGBELL_TCP_TEST_MIB").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(default) << 20
}

/// 5% loss and 10% reordering, both ways, for 1 GiB; `RINGBELL_TCP_TEST_MIB` changes the size.
#[test]
fn loss_and_reordering_cost_time_but_no_byte() {
    let mut left = env_mib(1024);
    let faults = Faults {
        loss: 0.05,
        reorder: 0.1,
        seed: 1,
        ..Faults::default()
    };
    let mut p = impaired(9000, faults);
    p.listen(PORT);
    let conns = p.connect(PORT);
    let mut seed = 0;
    while left > 0 {
        let n = left.min(64 << 20);
        seed += 1;
        p.transfer(conns, random(seed, n), seed, 600 * MINUTE);
        left -= n;
    }
    let c = p.a.port().counters();
    let all = c.tx_frames + c.tx_dropped;
    assert!(
        c.tx_dropped * 100 > all * 4 && c.tx_dropped * 100 < all * 6,
        "{c:?}"
    );
}

/// Several losses in a window are repaired one a round trip; without `recovery` each but the first
/// waits for a time-out. `--nocapture` shows the goodput in virtual time.
#[test]
fn the_holes_of_a_window_are_repaired_one_after_another() {
    for loss in [0.01, 0.05] {
        let faults = Faults {
            loss,
            delay: Duration::from_micros(100),
            rate_bps: Some(10_000_000_000),
            seed: 11,
            ..Faults::default()
        };
        let mut p = impaired(1500, faults);
        p.listen(PORT);
        let conns = p.connect(PORT);
        let (start, bytes) = (p.now.0, 8 << 20);
        p.transfer(conns, random(12, bytes), 13, 600 * MINUTE);
        let mbs = bytes as f64 * 1e3 / (p.now.0 - start) as f64;
        let mended = p.a.transport.counters().partial_acks;
        println!("loss {loss}: {mbs:.2} MB/s, {mended} holes mended");
        assert!(mended >= 5, "loss {loss}: {mended} holes mended");
    }
}

#[test]
fn small_segments_survive_loss_reordering_and_duplicates() {
    let faults = Faults {
        loss: 0.05,
        reorder: 0.1,
        duplicate: 0.02,
        seed: 3,
        ..Faults::default()
    };
    let mut p = impaired(1500, faults);
    p.listen(PORT);
    let conns = p.connect(PORT);
    p.transfer(conns, random(4, 2 << 20), 4, 600 * MINUTE);
}

#[test]
fn duplicates_are_taken_once() {
    let mut p = impaired(
        1500,
        Faults {
            duplicate: 0.3,
            seed: 5,
            ..Faults::default()
        },
    );
    p.listen(PORT);
    let conns = p.connect(PORT);
    p.transfer(conns, random(6, 4 << 20), 6, 60 * MINUTE);
}

#[test]
fn corrupted_frames_are_dropped() {
    let mut p = impaired(
        1500,
        Faults {
            corrupt: 0.02,
            seed: 7,
            ..Faults::default()
        },
    );
    p.listen(PORT);
    let conns = p.connect(PORT);
    p.transfer(conns, random(8, 2 << 20), 8, 600 * MINUTE);
}

#[test]
fn a_slow_link_with_a_long_delay_works() {
    let faults = Faults {
        delay: Duration::from_millis(5),
        jitter: Duration::from_micros(300),
        rate_bps: Some(1_000_000_000),
        seed: 9,
        ..Faults::default()
    };
    let mut p = impaired(1500, faults);
    p.listen(PORT);
    let conns = p.connect(PORT);
    p.transfer(conns, random(10, 8 << 20), 10, 60 * MINUTE);
}

#[test]
fn memory_that_answers_later_changes_nothing() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.a.dma.pending_every = 3;
    p.listen(PORT);
    let conns = p.connect(PORT);
    p.transfer(conns, random(11, 3 << 20), 11, MINUTE);
}

#[test]
fn half_close_in_both_directions() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    // a sends and shuts down; b sees the bytes, then the end, and can still answer.
    let hello = p.a.dma.region(random(1, 100_000));
    p.a.send(a, 1, hello);
    p.a.transport.close(a, Close::Sending);
    let whole = p.b.dma.region(vec![0; 100_000]);
    let more = p.b.dma.region(vec![0; 10]);
    p.b.recv(b, 2, whole, false);
    p.b.recv(b, 3, more, false);
    assert_eq!(p.until(MINUTE, |p| p.b.received(2)), (Status::Ok, 100_000));
    assert_eq!(
        p.until(MINUTE, |p| p.b.received(3)),
        (Status::EndOfStream, 0)
    );
    p.b.has(TransportEvent::PeerClosed { conn: b })
        .expect("PeerClosed was reported");
    let late = p.a.dma.region(vec![1]);
    p.a.send(a, 4, late);
    assert_eq!(p.until(MINUTE, |p| p.a.sent(4)), (Status::NotConnected, 0));

    let answer = p.b.dma.region(random(2, 300_000));
    p.b.send(b, 5, answer);
    let got = p.a.dma.region(vec![0; 400_000]);
    p.a.recv(a, 6, got, false);
    p.run(MINUTE / 60);
    p.b.transport.close(b, Close::Sending);
    // The end comes before the buffer is full: what came is reported.
    assert_eq!(
        p.until(MINUTE, |p| p.a.received(6)),
        (Status::EndOfStream, 300_000)
    );
    assert!(p.a.dma.bytes(got)[..300_000] == *p.b.dma.bytes(answer));
    p.a.transport.close(a, Close::Gracefully);
    p.b.transport.close(b, Close::Gracefully);
    p.until(MINUTE, |p| p.a.has(TransportEvent::Closed { conn: a }));
    p.until(MINUTE, |p| p.b.has(TransportEvent::Closed { conn: b }));
    // TIME-WAIT ends by itself, and nothing is left.
    p.until(5 * MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
}

#[test]
fn close_delivers_queued_bytes() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let data = p.a.dma.region(random(1, 2 << 20));
    let waiting = p.a.dma.region(vec![0; 8]);
    p.a.send(a, 1, data);
    p.a.recv(a, 2, waiting, false);
    p.a.transport.close(a, Close::Gracefully);
    assert_eq!(
        p.until(MINUTE, |p| p.a.received(2)),
        (Status::NotConnected, 0)
    );
    let got = p.b.dma.region(vec![0; 2 << 20]);
    p.b.recv(b, 3, got, false);
    assert_eq!(p.until(MINUTE, |p| p.b.received(3)), (Status::Ok, 2 << 20));
    assert_eq!(p.until(MINUTE, |p| p.a.sent(1)), (Status::Ok, 2 << 20));
    assert!(p.b.dma.bytes(got) == p.a.dma.bytes(data));
    p.until(MINUTE, |p| p.a.has(TransportEvent::Closed { conn: a }));
    assert!(p.a.transport.conn_state(a).is_none());
    // The orphan that a left behind answers data with a reset.
    let late = p.b.dma.region(vec![1; 100]);
    p.b.send(b, 4, late);
    p.until(MINUTE, |p| p.b.has(TransportEvent::Reset { conn: b }));
}

#[test]
fn abort_resets_the_peer() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let buf = p.b.dma.region(vec![0; 64]);
    p.b.recv(b, 1, buf, false);
    let big = p.b.dma.region(vec![0; 4 << 20]);
    p.b.send(b, 2, big);
    p.run(1_000_000);
    p.a.recv(
        a,
        3,
        Buffer {
            region: 0,
            va: GpuVa(0),
            len: 0,
        },
        false,
    );
    p.a.transport.close(a, Close::Now);
    assert!(p.a.transport.conn_state(a).is_none());
    p.until(MINUTE, |p| p.b.has(TransportEvent::Reset { conn: b }));
    assert_eq!(p.b.received(1), Some((Status::ConnectionReset, 0)));
    let (status, bytes) = p.b.sent(2).expect("the send retired");
    assert!(status == Status::ConnectionReset && bytes < 4 << 20);
    p.b.recv(b, 4, buf, false);
    assert_eq!(
        p.until(MINUTE, |p| p.b.received(4)),
        (Status::ConnectionReset, 0)
    );
    p.b.transport.close(b, Close::Gracefully);
    p.until(MINUTE, |p| p.b.has(TransportEvent::Closed { conn: b }));
    p.until(MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
}

#[test]
fn refused_unreachable_and_timed_out_have_statuses_of_their_own() {
    let mut p = Pair::mem(1500, Checksums::Software);
    let failed = |p: &mut Pair, conn| {
        p.until(2 * MINUTE, |p| {
            p.a.take(|e| match *e {
                TransportEvent::ConnectFailed {
                    conn: c, status, ..
                } if c == conn => Some(status),
                _ => None,
            })
        })
    };
    let to = |ip: [u8; 4], port| SocketAddrV4::new(ip.into(), port);
    let deadline = |p: &Pair| NicTime(p.now.0 + MINUTE);
    // No listener on that port.
    let c =
        p.a.transport
            .connect(p.now, to([10, 0, 0, 2], 9), deadline(&p))
            .expect("an id");
    assert_eq!(failed(&mut p, c), Status::ConnectionRefused);
    assert_eq!(p.b.transport.counters().refused, 1);
    // No such host: ARP fails long before the deadline.
    let start = p.now;
    let c =
        p.a.transport
            .connect(p.now, to([10, 0, 0, 99], 9), deadline(&p))
            .expect("an id");
    let queued = p.a.dma.region(vec![0; 9]);
    p.a.send(c, 1, queued);
    assert_eq!(failed(&mut p, c), Status::HostUnreachable);
    assert_eq!(p.a.sent(1), Some((Status::HostUnreachable, 0)));
    assert!(p.now.0 - start.0 < MINUTE / 10);
    // A network without a way to it.
    let c =
        p.a.transport
            .connect(p.now, to([192, 168, 1, 1], 9), deadline(&p));
    assert_eq!(c, Err(Status::HostUnreachable));
    // A host that drops SYNs: the listener's backlog is full.
    p.b.transport.listen(PORT, 1).expect("the port is free");
    let first =
        p.a.transport
            .connect(p.now, to([10, 0, 0, 2], PORT), deadline(&p))
            .expect("an id");
    for _ in 0..1000 {
        // b's events are not polled: `Incoming` stays in the backlog.
        p.a.step(p.now);
        p.b.move_on(p.now);
        p.now.0 += 10_000;
    }
    p.a.has(TransportEvent::Connected { conn: first })
        .expect("the first fits");
    let soon = NicTime(p.now.0 + 3_000_000_000);
    let c =
        p.a.transport
            .connect(p.now, to([10, 0, 0, 2], PORT), soon)
            .expect("an id");
    let status = loop {
        p.a.step(p.now);
        p.b.move_on(p.now);
        p.now.0 += 1_000_000;
        if let Some(e) = p.a.events.pop_back() {
            break e;
        }
    };
    assert_eq!(
        status,
        TransportEvent::ConnectFailed {
            conn: c,
            status: Status::TimedOut,
            answer: None,
        }
    );
    assert!(p.b.transport.counters().overflowed >= 1);
    // With the backlog drained the next one gets in.
    assert!(p.until(MINUTE, |p| p.b.incoming()).0 < u32::MAX);
    p.connect(PORT);
    assert_eq!(p.a.transport.connections(), 2);
}

#[test]
fn a_port_has_one_listener() {
    let mut p = Pair::mem(1500, Checksums::Software);
    let l = p.listen(PORT);
    assert_eq!(p.b.transport.listen(PORT, 1), Err(Status::AddressInUse));
    let (a, b) = p.connect(PORT);
    p.b.transport.unlisten(l);
    p.transfer((a, b), random(1, 1000), 1, MINUTE);
    let again = p.listen(PORT);
    assert_ne!(l, again);
    p.connect(PORT);
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender_and_lets_it_go_on() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let data = p.a.dma.region(random(1, 4 << 20));
    p.a.send(a, 1, data);
    p.run(5 * MINUTE);
    // Both buffers are full and the window is closed; probes kept the connection alive.
    assert_eq!(p.a.sent(1), None);
    let frames = p.a.port().counters().tx_frames;
    p.run(5 * MINUTE);
    let probes = p.a.port().counters().tx_frames - frames;
    assert!(
        (3..200).contains(&probes),
        "{probes} probes in five minutes"
    );
    let got = p.b.dma.region(vec![0; 4 << 20]);
    p.b.recv(b, 2, got, false);
    assert_eq!(
        p.until(10 * MINUTE, |p| p.b.received(2)),
        (Status::Ok, 4 << 20)
    );
    assert!(p.b.dma.bytes(got) == p.a.dma.bytes(data));
}

/// Both windows closed, both sides with more to send: an acknowledgement must count although its
/// sequence number lies just beyond the closed window (RFC 9293 §3.10.7.4).
#[test]
fn two_full_windows_do_not_lock_each_other() {
    for extra in 0..9 {
        let mut p = Pair::mem(1500, Checksums::Software);
        p.listen(PORT);
        let (a, b) = p.connect(PORT);
        // An odd start makes the window's scaled steps miss its edge.
        p.transfer((a, b), random(9, 1 + extra), 9, MINUTE);
        let (from_a, from_b) = (random(1, 2 << 20), random(2, 2 << 20));
        let (src_a, src_b) = (p.a.dma.region(from_a), p.b.dma.region(from_b));
        p.a.send(a, 1, src_a);
        p.b.send(b, 2, src_b);
        p.run(MINUTE);
        assert_eq!(
            (p.a.sent(1), p.b.sent(2)),
            (None, None),
            "the windows are closed"
        );
        // a reads everything while b still reads nothing.
        let got = p.a.dma.region(vec![0; 2 << 20]);
        p.a.recv(a, 3, got, false);
        assert_eq!(
            p.until(2 * MINUTE, |p| p.a.received(3)),
            (Status::Ok, 2 << 20)
        );
        assert!(p.a.dma.bytes(got) == p.b.dma.bytes(src_b));
        let got = p.b.dma.region(vec![0; 2 << 20]);
        p.b.recv(b, 4, got, false);
        assert_eq!(
            p.until(2 * MINUTE, |p| p.b.received(4)),
            (Status::Ok, 2 << 20)
        );
        assert!(p.b.dma.bytes(got) == p.a.dma.bytes(src_a));
    }
}

/// A cable that makes pure acknowledgements claim four bytes that were refused: what Linux does
/// when it filled a window whose edge then moved back by a part of the window's scale.
struct Ahead(MemPort);

impl Port for Ahead {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        self.0.receive(now)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.0.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        if let Some(f) = self.0.tx_frame(now, mac_of(0)) {
            // Ethernet 14, IPv4 20: flags exactly ACK, and no payload.
            if len >= 54 && f[23] == 6 && f[47] == 0x10 && len == 34 + usize::from(f[46] >> 4) * 4 {
                let seq = u32::from_be_bytes([f[38], f[39], f[40], f[41]]).wrapping_add(4);
                f[38..42].copy_from_slice(&seq.to_be_bytes());
            }
        }
        self.0.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.0.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

#[test]
fn acknowledgements_beyond_a_closed_window_count() {
    let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let (port_a, port_b) = (sw.port(0).unwrap(), sw.port(1).unwrap()); // free ports
    let ports: (Box<dyn Port>, Box<dyn Port>) = (Box::new(port_a), Box::new(Ahead(port_b)));
    let mut p = Pair::with(ports, config(IP_A), config(IP_B));
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let flood = p.b.dma.region(vec![0; 2 << 20]);
    p.b.send(b, 1, flood);
    p.run(MINUTE);
    assert_eq!(p.b.sent(1), None, "a's window is closed");
    p.transfer((a, b), random(1, 4 << 20), 1, MINUTE);
}

#[test]
fn cancel_withdraws_an_outstanding_receive() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let buf = p.b.dma.region(vec![0; 100]);
    p.b.recv(b, 1, buf, false);
    let part = p.a.dma.region(vec![7; 40]);
    p.a.send(a, 2, part);
    p.run(1_000_000);
    assert_eq!(p.b.transport.cancel(b, WorkToken(1)), Some(40));
    assert_eq!(p.b.transport.cancel(b, WorkToken(1)), None);
    p.run(1_000_000);
    assert_eq!(p.b.received(1), None);
}

#[test]
fn recv_some_returns_the_available_bytes_and_empty_operations_retire() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let buf = p.b.dma.region(vec![0; 1 << 20]);
    p.b.recv(b, 1, buf, true);
    let word = p.a.dma.region(vec![7; 5]);
    p.a.send(a, 2, Buffer { len: 0, ..word });
    p.a.send(a, 3, word);
    assert_eq!(p.until(MINUTE, |p| p.a.sent(2)), (Status::Ok, 0));
    assert_eq!(p.until(MINUTE, |p| p.b.received(1)), (Status::Ok, 5));
    p.b.recv(b, 4, Buffer { len: 0, ..buf }, false);
    assert_eq!(p.until(MINUTE, |p| p.b.received(4)), (Status::Ok, 0));
}

#[test]
fn a_fault_names_the_address_and_the_stream_stays_whole() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    let bad = p.b.dma.region(vec![0; 64]);
    let good = p.b.dma.region(vec![0; 64]);
    p.b.dma.faulty = Some(bad.region);
    p.b.recv(b, 1, bad, false);
    p.b.recv(b, 2, good, false);
    let data = p.a.dma.region(random(1, 64));
    p.a.send(a, 3, data);
    assert_eq!(
        p.until(MINUTE, |p| p.b.received(1)),
        (Status::NoTranslation, 0)
    );
    // The bytes were not lost with the work that could not take them.
    assert_eq!(p.until(MINUTE, |p| p.b.received(2)), (Status::Ok, 64));
    assert_eq!(p.b.dma.bytes(good), p.a.dma.bytes(data));
    p.a.dma.faulty = Some(data.region);
    p.a.send(a, 4, data);
    assert_eq!(p.until(MINUTE, |p| p.a.sent(4)), (Status::NoTranslation, 0));
}

/// Two NICs, the clock at `now`, and the sequence numbers that the first one sends.
fn spied(now: NicTime) -> (Pair, Arc<Mutex<Vec<u32>>>) {
    let sw = MemSwitch::private(2, 1500, Checksums::Software).unwrap(); // numbers in range
    let (port_a, port_b) = (sw.port(0).unwrap(), sw.port(1).unwrap()); // free ports
    let seen = Arc::new(Mutex::new(Vec::new()));
    let spy = Spy {
        inner: port_a,
        seen: Arc::clone(&seen),
    };
    let mut p = Pair::with(
        (Box::new(spy), Box::new(port_b)),
        config(IP_A),
        config(IP_B),
    );
    p.now = now;
    p.listen(PORT);
    (p, seen)
}

#[test]
fn sequence_numbers_wrap() {
    // They move on by one in 4 us: the first run gives the time at which the second one begins.
    let start = 1_000_000;
    let (mut p, seen) = spied(NicTime(start));
    p.connect(PORT);
    let first = seen.lock().unwrap()[0]; // no thread has panicked
    let to_go = u64::from(u32::MAX - 50_000).wrapping_sub(u64::from(first)) as u32;
    let (mut p, seen) = spied(NicTime(start + u64::from(to_go) * 4_000));
    let conns = p.connect(PORT);
    p.transfer(conns, random(1, 1 << 20), 1, MINUTE);
    let seen = seen.lock().unwrap(); // no thread has panicked
    assert!(
        seen[0] > u32::MAX - 100_000,
        "the first sequence number was {:#x}",
        seen[0]
    );
    assert!(
        seen.iter().any(|&s| (100_000..2_000_000).contains(&s)),
        "it did not wrap"
    );
}

/// Notes the sequence numbers of the TCP segments that leave.
struct Spy {
    inner: MemPort,
    seen: Arc<Mutex<Vec<u32>>>,
}

impl Port for Spy {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        self.inner.receive(now)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.inner.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        // The frame is still in the room that the port gave.
        if let Some(f) = self.inner.tx_frame(now, mac_of(1)) {
            if len >= 54 && f[23] == 6 {
                let seq = u32::from_be_bytes([f[38], f[39], f[40], f[41]]);
                self.seen.lock().unwrap().push(seq); // no thread has panicked
            }
        }
        self.inner.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.inner.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[test]
fn a_thousand_connections_take_turns() {
    const N: usize = 1_000;
    let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let ports: (Box<dyn Port>, Box<dyn Port>) =
        (Box::new(sw.port(0).unwrap()), Box::new(sw.port(1).unwrap())); // free ports
    let small = |ip| TcpConfig {
        rx_buffer: 16 << 10,
        tx_buffer: 16 << 10,
        ..config(ip)
    };
    let mut p = Pair::with(ports, small(IP_A), small(IP_B));
    p.b.transport.listen(PORT, N).expect("the port is free");
    let deadline = NicTime(p.now.0 + MINUTE);
    let remote = SocketAddrV4::new(IP_B, PORT);
    let mut up = HashMap::new();
    for _ in 0..N {
        let a =
            p.a.transport
                .connect(p.now, remote, deadline)
                .expect("room for all");
        p.until(MINUTE, |p| p.a.has(TransportEvent::Connected { conn: a }));
        let b = p.until(MINUTE, |p| p.b.incoming());
        assert_eq!(
            p.a.transport.conn_state(a).map(|c| (c.peer, c.local)),
            p.b.transport.conn_state(b).map(|c| (c.local, c.peer))
        );
        up.insert(a, b);
    }
    for (round, (&a, &b)) in (0..2).flat_map(|r| up.iter().map(move |x| (r, x))) {
        let data = p.a.dma.region(random(u64::from(a.0) * 2 + round, 3_000));
        let got = p.b.dma.region(vec![0; 3_000]);
        let token = u64::from(a.0);
        p.b.recv(b, token, got, false);
        p.a.send(a, token, data);
        assert_eq!(
            p.until(MINUTE, |p| p.b.received(token)),
            (Status::Ok, 3_000)
        );
        assert_eq!(p.until(MINUTE, |p| p.a.sent(token)), (Status::Ok, 3_000));
        assert!(p.b.dma.bytes(got) == p.a.dma.bytes(data));
    }
}

#[test]
fn a_full_table_is_reported_and_time_wait_gives_way() {
    let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let ports: (Box<dyn Port>, Box<dyn Port>) =
        (Box::new(sw.port(0).unwrap()), Box::new(sw.port(1).unwrap())); // free ports
    let mut p = Pair::with(
        ports,
        TcpConfig {
            connections: 2,
            ..config(IP_A)
        },
        config(IP_B),
    );
    p.listen(PORT);
    let first = p.connect(PORT);
    let _second = p.connect(PORT);
    let remote = SocketAddrV4::new(IP_B, PORT);
    assert_eq!(
        p.a.transport.connect(p.now, remote, NicTime(u64::MAX)),
        Err(Status::NoResources)
    );
    p.a.transport.close(first.0, Close::Gracefully);
    p.run(100_000);
    p.b.transport.close(first.1, Close::Gracefully);
    p.until(MINUTE, |p| {
        p.a.has(TransportEvent::Closed { conn: first.0 })
    });
    p.until(MINUTE, |p| {
        p.b.has(TransportEvent::Closed { conn: first.1 })
    });
    assert_eq!(p.a.transport.connections(), 2, "one is in TIME-WAIT");
    let third = p.connect(PORT);
    p.transfer(third, random(1, 10_000), 1, MINUTE);
}

#[test]
fn idle_connections_stay_open() {
    let mut p = Pair::mem(1500, Checksums::Software);
    p.listen(PORT);
    let conns = p.connect(PORT);
    p.transfer(conns, random(1, 1000), 1, MINUTE);
    p.run(600 * MINUTE);
    assert!(p.a.events.is_empty() && p.b.events.is_empty());
    p.transfer(conns, random(2, 100_000), 2, MINUTE);
}

#[test]
fn a_peer_that_vanishes_is_detected() {
    let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let ports: (Box<dyn Port>, Box<dyn Port>) =
        (Box::new(sw.port(0).unwrap()), Box::new(sw.port(1).unwrap())); // free ports
    let timeout = |ip| TcpConfig {
        user_timeout: Some(Duration::from_secs(20)),
        keep_alive: Some(Duration::from_secs(5)),
        ..config(ip)
    };
    let mut p = Pair::with(ports, timeout(IP_A), timeout(IP_B));
    p.listen(PORT);
    let (a, b) = p.connect(PORT);
    p.run(5 * MINUTE);
    assert!(
        p.a.events.is_empty() && p.b.events.is_empty(),
        "idle peers that live stay connected"
    );
    let buf = p.a.dma.region(vec![0; 8]);
    p.a.recv(a, 1, buf, false);
    // b is not stepped any more.
    let alone = |p: &mut Pair, token| {
        let end = p.now.0 + 3 * MINUTE;
        loop {
            p.a.step(p.now);
            if let Some(done) = p.a.received(token).or_else(|| p.a.sent(token)) {
                return done;
            }
            assert!(p.now.0 < end, "not noticed");
            p.now.0 += 10_000_000;
        }
    };
    assert_eq!(alone(&mut p, 1), (Status::ConnectionReset, 0));
    p.a.has(TransportEvent::Reset { conn: a })
        .expect("Reset was reported");
    p.b.transport.close(b, Close::Now);

    // Without keep-alive it is noticed when there is something to send.
    let mut p = Pair::mem(1500, Checksums::Omitted);
    p.listen(PORT);
    let (a, _) = p.connect(PORT);
    let buf = p.a.dma.region(vec![0; 4 << 20]);
    p.a.send(a, 2, buf);
    let (status, bytes) = alone(&mut p, 2);
    assert!(status == Status::ConnectionReset && bytes < 4 << 20);
}
