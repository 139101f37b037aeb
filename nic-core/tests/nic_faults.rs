//! Bad input and faults: a clear status, nothing lost, nothing hung.
#![allow(unsafe_code)] // A hostile kernel scribbles over its queue by address.

use crate::nic_support;

use std::net::Ipv4Addr;
use std::time::Duration;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Descriptor, EventKind, Flags, GpuVa, Lkey, Opcode, SessionId, Status};
use ringbell_nic_core::QueueConfig;

fn pair(dir: &TempDir) -> (Host, Host) {
    (
        Host::new(&Setup::new(dir, 1)),
        Host::new(&Setup::new(dir, 2)),
    )
}

fn balanced(hosts: &[&Host]) {
    for h in hosts {
        let c = h.nic.counters();
        assert_eq!(c.accepted, c.retired, "{}", h.nic.describe());
    }
}

#[test]
fn stale_ids_and_wrong_states_are_refused() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let status = |d: Descriptor| {
        let c = call(&hosts, 0, &d);
        (c.status, c.detail)
    };
    let bogus = SessionId(0x12_3456);
    for d in [
        send(bogus, 0, 8),
        recv(bogus, 0, 8),
        listen(bogus, 1),
        accept(bogus),
        connect(bogus, Ipv4Addr::LOCALHOST, 1),
        shutdown(bogus),
        close(bogus),
        abort(bogus),
    ] {
        assert_eq!(status(d), (Status::BadSession, 0x12_3456), "{:?}", d.opcode);
    }
    let s = session_of(call(&hosts, 0, &socket()));
    let id = u64::from(s.0);
    for d in [send(s, 0, 8), recv(s, 0, 8), accept(s), shutdown(s)] {
        assert_eq!(status(d), (Status::BadState, id), "{:?}", d.opcode);
    }
    assert_eq!(status(listen(s, 0)), (Status::BadDescriptor, 4));
    assert_eq!(status(listen(s, 80)).0, Status::Ok);
    assert_eq!(status(listen(s, 80)), (Status::BadState, id));
    let t = session_of(call(&hosts, 0, &socket()));
    assert_eq!(status(listen(t, 80)), (Status::AddressInUse, 80));
    assert_eq!(status(close(s)).0, Status::Ok);
    assert_eq!(status(close(s)), (Status::BadSession, id), "double close");
    assert_eq!(
        status(listen(t, 80)).0,
        Status::Ok,
        "the port is free again"
    );
    balanced(&hosts);
}

#[test]
fn bad_addresses_are_named_in_the_completion() {
    let dir = TempDir::new();
    let mut setup = Setup::new(&dir, 1);
    setup.register = false;
    let a = Host::new(&setup);
    let b = Host::new(&Setup::new(&dir, 2));
    let hosts = [&a, &b];
    let (s, _r) = connected(&hosts, 0, 1, 7);
    let at = |o: u64| GpuVa(BASE.0 + o);
    let mr = a
        .nic
        .register(a.pd, at(100_000), 50_000, Access::LOCAL_READ)
        .expect("register");
    let status = |d: Descriptor| {
        let c = call(&hosts, 0, &d);
        (c.status, c.detail)
    };
    assert_eq!(status(send(s, 0, 8)), (Status::NotRegistered, BASE.0));
    assert_eq!(
        status(recv(s, 100_000, 8)),
        (Status::AccessDenied, at(100_000).0)
    );
    assert_eq!(
        status(send(s, 149_999, 2)),
        (Status::OutOfBounds, at(150_000).0)
    );
    assert_eq!(status(send(s, 149_999, 1)).0, Status::Ok, "the last byte");
    assert_eq!(
        status(send(s, 123_457, 999)).0,
        Status::Ok,
        "interior and unaligned"
    );
    let mut d = send(s, 100_000, 8);
    d.lkey = Lkey(0xdead_0000);
    assert_eq!(status(d), (Status::BadKey, 0xdead_0000));
    let mut d = send(s, 0, 8);
    d.local_va = GpuVa(u64::MAX - 3);
    assert!(matches!(
        status(d).0,
        Status::NotRegistered | Status::OutOfBounds
    ));
    a.nic.deregister(mr.lkey).expect("idle");
    assert!(matches!(
        status(send(s, 100_000, 8)).0,
        Status::NotRegistered
    ));
    let mut kinds = Vec::new();
    while let Some(e) = a.nic.poll_event() {
        kinds.push(EventKind::from_code(e.kind));
    }
    assert!(kinds.contains(&Some(EventKind::Fault)));
    balanced(&hosts);
}

#[test]
fn length_zero_completes_and_touches_nothing() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let mut d = send(s, 0, 0);
    d.local_va = GpuVa(1);
    assert_eq!(call(&hosts, 0, &d).status, Status::Ok);
    let mut d = recv(r, 0, 0);
    d.local_va = GpuVa(1);
    assert_eq!(call(&hosts, 1, &d).status, Status::Ok);
    assert_eq!(call(&hosts, 0, &send_inline(s, b"")).status, Status::Ok);
    assert_eq!(call(&hosts, 0, &send_inline(s, b"x")).status, Status::Ok);
    let c = call(&hosts, 1, &recv_some(r, 0, 100));
    assert_eq!(
        (c.status, c.bytes, b.peek(0, 1)),
        (Status::Ok, 1, b"x".to_vec())
    );
}

#[test]
fn a_connect_without_a_listener_or_host_fails_at_once() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let s = session_of(call(&hosts, 0, &socket()));
    let c = call(&hosts, 0, &connect(s, Ipv4Addr::new(10, 0, 0, 2), 9));
    assert_eq!(
        (c.status, c.detail),
        (Status::ConnectionRefused, 0x0a00_0002 << 16 | 9)
    );
    let c = call(&hosts, 0, &connect(s, Ipv4Addr::new(10, 0, 0, 99), 9));
    assert_eq!(
        (c.status, c.detail),
        (Status::HostUnreachable, 0x0a00_0063 << 16 | 9)
    );
    balanced(&hosts);
}

#[test]
fn waits_end_at_their_deadline() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let l = listener(&hosts, 1, 5);
    assert_eq!(
        call(&hosts, 1, &within(accept(l), 2000)).status,
        Status::TimedOut
    );
    let (s, r) = connected(&hosts, 0, 1, 7);
    let c = call(&hosts, 1, &within(recv(r, 0, 8), 2000));
    assert_eq!((c.status, c.bytes), (Status::TimedOut, 0));
    // Nothing was taken, so the stream lives on.
    let t = b.post(&recv(r, 0, 8));
    assert_eq!(
        call(&hosts, 0, &send_inline(s, b"abcdefgh")).status,
        Status::Ok
    );
    assert_eq!(settle(&hosts, &[(1, t)])[0].status, Status::Ok);
    // A receive that took a part reports it, and the stream ends.
    let t = b.post(&within(recv(r, 0, 8), 5000));
    assert_eq!(call(&hosts, 0, &send_inline(s, b"abc")).status, Status::Ok);
    let c = settle(&hosts, &[(1, t)])[0];
    assert_eq!((c.status, c.bytes), (Status::TimedOut, 3));
    assert_eq!(call(&hosts, 1, &recv(r, 0, 8)).status, Status::NotConnected);
    quiesce(&hosts);
    assert_eq!(
        call(&hosts, 0, &send(s, 0, 8)).status,
        Status::ConnectionReset
    );
    assert_eq!(call(&hosts, 1, &close(r)).status, Status::Ok);
    balanced(&hosts);
}

#[test]
fn chained_operations_fail_with_the_status_of_the_first() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let chained = |mut d: Descriptor| {
        d.flags = d.flags.union(Flags::CHAIN);
        d
    };
    let outside = GpuVa(BASE.0 - (1 << 20));
    // A time-out that leaves the stream open, and an address that leaves it open.
    for late in [true, false] {
        let (s, r) = connected(&hosts, 0, 1, 7 + u16::from(late));
        let mut first = chained(recv(r, 0, 8));
        match late {
            true => first.timeout_us = 1000,
            false => first.local_va = outside,
        }
        let failed = call(&hosts, 1, &first);
        let why = match late {
            true => (Status::TimedOut, 0),
            false => (Status::NotRegistered, outside.0),
        };
        assert_eq!((failed.status, failed.detail), why);
        for behind in [
            recv(r, 0, 8),
            send_inline(r, b"inline"),
            send(r, 0, 8),
            send(r, 0, 4096),
            shutdown(r),
        ] {
            let c = call(&hosts, 1, &chained(behind));
            assert_eq!((c.status, c.detail, c.bytes), (why.0, why.1, 0));
        }
        // Nothing has moved, and operations without the bit go on.
        let t = b.post(&recv(r, 64, 4));
        assert_eq!(
            call(&hosts, 0, &chained(send_inline(s, b"goes"))).status,
            Status::Ok
        );
        assert_eq!(settle(&hosts, &[(1, t)])[0].status, Status::Ok);
        assert_eq!(b.peek(64, 4), b"goes");
        let t = a.post(&chained(recv(s, 128, 5)));
        assert_eq!(
            call(&hosts, 1, &send_inline(r, b"on...")).status,
            Status::Ok
        );
        assert_eq!(settle(&hosts, &[(0, t)])[0].status, Status::Ok);
        // What is in the wrong state ends the chain as well.
        assert_eq!(call(&hosts, 0, &chained(shutdown(s))).status, Status::Ok);
        assert_eq!(
            call(&hosts, 0, &chained(send(s, 0, 8))).status,
            Status::NotConnected
        );
        assert_eq!(
            call(&hosts, 0, &chained(recv(s, 0, 8))).status,
            Status::NotConnected
        );
    }
    balanced(&hosts);
}

#[test]
fn a_receiver_that_never_reads_costs_the_sender_its_deadline_only() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let (s2, r2) = connected(&hosts, 0, 1, 8);
    let big = a.post(&within(send(s, 0, 4 << 20), 20_000));
    // Small ones pile up until their window is full; the other connection is not held up.
    let mut small = Vec::new();
    for _ in 0..100 {
        small.push((0, a.post(&within(send_inline(s2, &[1; 40]), 50_000))));
    }
    let c = settle(&hosts, &[(0, big)])[0];
    assert_eq!(c.status, Status::TimedOut);
    assert_eq!(call(&hosts, 1, &recv(r2, 0, 4000)).status, Status::Ok);
    for c in settle(&hosts, &small) {
        assert_eq!(c.status, Status::Ok);
    }
    assert_eq!(
        call(&hosts, 1, &recv(r, 0, 8)).status,
        Status::ConnectionReset
    );
    balanced(&hosts);
}

#[test]
fn both_sides_may_send_first_within_the_window() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let data = Rng::new(3).bytes(100_000);
    a.poke(0, &data);
    b.poke(1_000_000, &data);
    let sends = [
        (0, a.post(&send(s, 0, 100_000))),
        (1, b.post(&send(r, 1_000_000, 100_000))),
    ];
    for c in settle(&hosts, &sends) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 100_000));
    }
    let recvs = [
        (0, a.post(&recv(s, 2_000_000, 100_000))),
        (1, b.post(&recv(r, 2_000_000, 100_000))),
    ];
    for c in settle(&hosts, &recvs) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 100_000));
    }
    assert!(a.peek(2_000_000, 100_000) == data && b.peek(2_000_000, 100_000) == data);
}

#[test]
fn half_close_lets_the_other_direction_go_on() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let big = a.post(&send(s, 0, 1_000_000));
    assert_eq!(call(&hosts, 0, &shutdown(s)).status, Status::Ok);
    assert_eq!(call(&hosts, 0, &send(s, 0, 8)).status, Status::NotConnected);
    let c = call(&hosts, 1, &recv(r, 0, 1_000_000));
    assert_eq!(
        (c.status, c.bytes),
        (Status::Ok, 1_000_000),
        "FIN comes after the data"
    );
    assert_eq!(settle(&hosts, &[(0, big)])[0].status, Status::Ok);
    assert_eq!(call(&hosts, 1, &recv(r, 0, 8)).status, Status::EndOfStream);
    let t = a.post(&recv(s, 0, 500_000));
    assert_eq!(call(&hosts, 1, &send(r, 0, 500_000)).status, Status::Ok);
    assert_eq!(settle(&hosts, &[(0, t)])[0].status, Status::Ok);
    assert_eq!(call(&hosts, 1, &close(r)).status, Status::Ok);
    assert_eq!(call(&hosts, 0, &recv(s, 0, 8)).status, Status::EndOfStream);
    assert_eq!(call(&hosts, 0, &close(s)).status, Status::Ok);
    quiesce(&hosts);
    assert!(!a.nic.is_active() && !b.nic.is_active());
    balanced(&hosts);
}

#[test]
fn close_delivers_sent_bytes_and_partial_receives_report_their_length() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let data = Rng::new(5).bytes(700_000);
    a.poke(0, &data);
    let t = a.post(&send(s, 0, 700_000));
    assert_eq!(call(&hosts, 0, &close(s)).status, Status::Ok);
    let c = call(&hosts, 1, &recv(r, 0, 1_000_000));
    assert_eq!((c.status, c.bytes), (Status::EndOfStream, 700_000));
    assert!(b.peek(0, 700_000) == data);
    assert_eq!(settle(&hosts, &[(0, t)])[0].status, Status::Ok);
    assert_eq!(
        call(&hosts, 1, &send(r, 0, 8)).status,
        Status::ConnectionReset
    );
    balanced(&hosts);
}

#[test]
fn a_peer_that_vanishes_resets_its_connections() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let (s, r, r2);
    {
        let hosts = [&a, &b];
        (s, r) = connected(&hosts, 0, 1, 7);
        (_, r2) = connected(&hosts, 0, 1, 8);
        a.post(&send(s, 0, 4 << 20));
        quiesce(&hosts);
    }
    // Half of it is received when the peer goes.
    let t = b.post(&recv(r, 0, 5 << 20));
    b.nic.step();
    let t2 = b.post(&recv(r2, 0, 8));
    drop(a);
    let done = settle(&[&b], &[(0, t), (0, t2)]);
    assert_eq!(done[0].status, Status::ConnectionReset);
    assert_eq!(
        (done[1].status, done[1].bytes),
        (Status::ConnectionReset, 0)
    );
    assert_eq!(
        call(&[&b], 0, &send(r, 0, 8)).status,
        Status::ConnectionReset
    );
    assert_eq!(call(&[&b], 0, &close(r)).status, Status::Ok);
    balanced(&[&b]);
}

#[test]
fn a_nic_connects_to_itself() {
    let dir = TempDir::new();
    let a = Host::new(&Setup::new(&dir, 1));
    let hosts = [&a];
    let (s, r) = connected(&hosts, 0, 0, 7);
    let data = Rng::new(9).bytes(300_000);
    a.poke(0, &data);
    let tr = a.post(&recv(r, 4_000_000, 300_000));
    let ts = a.post(&send(s, 0, 300_000));
    for c in settle(&hosts, &[(0, tr), (0, ts)]) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 300_000));
    }
    assert!(a.peek(4_000_000, 300_000) == data);
    assert_eq!(a.nic.counters().copied_bytes, 300_000, "one copy");
}

#[test]
fn rings_and_tickets_wrap() {
    let dir = TempDir::new();
    let mut setup = Setup::new(&dir, 1);
    setup.queue = QueueConfig {
        depth: 4,
        first_ticket: u32::MAX - 63,
        ..QueueConfig::default()
    };
    let a = Host::new(&setup);
    let b = Host::new(&Setup::new(&dir, 2));
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    // 5,000 messages wrap the link's ring of 512 lines several times, and the tickets past 2^32.
    for i in 0..5000u64 {
        let t = b.post(&recv(r, 0, 8));
        let c = call(&hosts, 0, &send_inline(s, &i.to_le_bytes()));
        assert_eq!(c.status, Status::Ok);
        assert_eq!(settle(&hosts, &[(1, t)])[0].bytes, 8);
        assert_eq!(b.peek(0, 8), i.to_le_bytes());
    }
    // All four slots, then a fifth: no ticket is taken.
    let held: Vec<_> = (0..4).map(|_| (0, a.post(&recv(s, 0, 8)))).collect();
    assert!(a.queue.try_post(&socket()).is_none());
    for _ in 0..4 {
        assert_eq!(call(&hosts, 1, &send_inline(r, &[7; 8])).status, Status::Ok);
    }
    assert_eq!(settle(&hosts, &held).len(), 4);
    balanced(&hosts);
}

#[test]
fn hostile_descriptors_retire_and_write_nothing_at_the_peer() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let mut rng = Rng::new(0xbad);
    let before = b.peek(0, 65536);
    let mut tickets = Vec::new();
    for i in 0..20_000 {
        let mut w = [0u64; 8].map(|_| rng.bits());
        if i % 2 == 0 {
            // Close to valid: a known opcode and clean reserved bits, so that decoding goes deep.
            w[0] = rng.below(12) | (rng.below(32) << 8) | (rng.below(1 << 24) << 32);
            w[7] = rng.below(128) | (rng.below(2000) + 1) << 8;
        }
        loop {
            if let Some(t) = a.queue.try_post_raw(w) {
                tickets.push((0, t));
                break;
            }
            let _ = settle(&hosts, &[tickets.remove(0)]);
        }
        a.nic.step();
    }
    let done = settle(&hosts, &tickets);
    assert!(done.iter().any(|c| c.status == Status::BadDescriptor));
    assert_eq!(before, b.peek(0, 65536));
    let t = b.post(&recv(r, 0, 8));
    assert_eq!(
        call(&hosts, 0, &send_inline(s, b"stillok!")).status,
        Status::Ok
    );
    assert_eq!(settle(&hosts, &[(1, t)])[0].status, Status::Ok);
    assert_eq!(ringbell_nic_core::leaked_permits(), 0);
    balanced(&hosts);
}

#[test]
fn producers_on_several_threads_get_every_completion() {
    let dir = TempDir::new();
    let a = Host::new(&Setup::new(&dir, 1));
    std::thread::scope(|scope| {
        for seed in [1, 2] {
            let a = &a;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..20_000 {
                    let w = [0u64; 8].map(|_| rng.bits());
                    if let Some(t) = a.queue.try_post_raw(w) {
                        let limit = Duration::from_secs(30);
                        a.queue.wait(t, limit).expect("every descriptor retires");
                    }
                }
            });
        }
    });
    let c = a.nic.counters();
    assert!(c.accepted > 0 && c.accepted == c.retired);
}

#[test]
fn slots_rewritten_while_the_nic_reads_them_break_no_invariant() {
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let h = a.queue.handle();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            // SAFETY: the handle's own addresses, of a queue that outlives the scope; atomics only.
            let (sq, bell) = unsafe {
                let words = 8usize << h.depth_log2;
                let sq = std::slice::from_raw_parts(h.sq as *const AtomicU64, words);
                (sq, &*(h.doorbell as *const AtomicU32))
            };
            let mut rng = Rng::new(77);
            let good = send_inline(s, b"hostile!");
            while !stop.load(Ordering::Relaxed) {
                // Whole entries, torn ones and noise, of either lap, rewritten at once.
                let lap = (rng.bits() & 1) << 63;
                let slot = rng.below(sq.len() as u64 / 8) as usize * 8;
                for (i, w) in good.encode(lap).0.iter().enumerate() {
                    let noise = if rng.below(8) == 0 { rng.bits() } else { *w };
                    sq[slot + i].store(noise, Ordering::Relaxed);
                }
                bell.store(rng.bits() as u32, Ordering::Release);
            }
        });
        for _ in 0..300_000 {
            a.nic.step();
            b.nic.step();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let c = a.nic.counters();
    assert!(c.accepted > 0, "the NIC has read garbage");
    a.nic.reset();
    let c = a.nic.counters();
    assert_eq!(c.accepted, c.retired);
    assert_eq!(ringbell_nic_core::leaked_permits(), 0);
    // The peer, and another queue of the same NIC, work on.
    assert_eq!(call(&[&b], 0, &abort(r)).status, Status::Ok);
    let q = a
        .nic
        .create_queue(a.pd, QueueConfig::default())
        .expect("queue");
    assert_eq!(q.call(&socket()).expect("retires").status, Status::Ok);
}

#[test]
fn copies_inside_a_domain_are_checked_and_exact() {
    let dir = TempDir::new();
    let a = Host::new(&Setup::new(&dir, 1));
    let data = Rng::new(4).bytes(3_000_000);
    a.poke(5, &data);
    let copy = |from: u64, to: u64, len: u32, burst: u32| Descriptor {
        local_va: GpuVa(BASE.0 + from),
        remote_va: GpuVa(BASE.0 + to),
        len,
        imm: burst,
        ..Descriptor::new(Opcode::Copy)
    };
    for burst in [0, 512, 100_000] {
        a.poke(4_000_003, &vec![0; 3_000_000]);
        let c = call(&[&a], 0, &copy(5, 4_000_003, 3_000_000, burst));
        assert_eq!((c.status, c.bytes), (Status::Ok, 3_000_000));
        assert!(a.peek(4_000_003, 3_000_000) == data, "burst {burst}");
    }
    let c = call(&[&a], 0, &copy(0, 100, 200, 0));
    assert_eq!((c.status, c.detail), (Status::BadDescriptor, 3));
    let c = call(&[&a], 0, &copy(0, (8 << 20) - 10, 20, 0));
    assert_eq!(c.status, Status::OutOfBounds);
    balanced(&[&a]);
}

#[test]
fn freeing_memory_retires_the_operations_that_wait_on_it() {
    let dir = TempDir::new();
    let (mut sa, sb) = (Setup::new(&dir, 1), Setup::new(&dir, 2));
    sa.register = false;
    let (a, b) = (Host::new(&sa), Host::new(&sb));
    let hosts = [&a, &b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let mr = a
        .nic
        .register(a.pd, BASE, 1 << 20, Access::LOCAL)
        .expect("register");
    let t = a.post(&recv(s, 4096, 8));
    quiesce(&hosts);
    a.nic
        .deregister(mr.lkey)
        .expect("the receive is taken back");
    let c = settle(&hosts, &[(0, t)])[0];
    assert_eq!((c.status, c.detail), (Status::RegionFreed, BASE.0 + 4096));
    let _ = r;
    balanced(&hosts);
}

#[test]
fn reset_retires_everything_with_aborted() {
    let dir = TempDir::new();
    let (a, b) = pair(&dir);
    let hosts = [&a, &b];
    let (s, _r) = connected(&hosts, 0, 1, 7);
    let l = listener(&hosts, 0, 99);
    let waiting = [
        (0, a.post(&recv(s, 0, 8))),
        (0, a.post(&accept(l))),
        (0, a.post(&send(s, 0, 4 << 20))),
    ];
    quiesce(&hosts);
    a.nic
        .bar_write32(ringbell_nic_abi::bar::Reg::Reset.offset(), 1)
        .expect("reset");
    for c in settle(&hosts, &waiting) {
        assert_eq!(c.status, Status::Aborted);
    }
    assert_eq!(call(&hosts, 0, &recv(s, 0, 8)).status, Status::BadSession);
    balanced(&hosts);
}

#[test]
fn a_queue_that_outlives_its_nic_reports_it_and_the_address_is_free() {
    let dir = TempDir::new();
    let a = Host::new(&Setup::new(&dir, 1));
    let l = listener(&[&a], 0, 7);
    let Host { nic, queue, .. } = a;
    let waiting = queue.try_post(&accept(l)).expect("room");
    nic.step();
    drop(nic);
    let limit = Duration::from_secs(30);
    let c = queue.wait(waiting, limit).expect("retires");
    assert_eq!(c.status, Status::ShuttingDown);
    let c = queue.call(&socket()).expect("retires");
    assert_eq!(c.status, Status::ShuttingDown);
    // The same address again, while the old queue is still held.
    let again = Host::new(&Setup::new(&dir, 1));
    assert_eq!(call(&[&again], 0, &socket()).status, Status::Ok);
}

#[test]
fn registers_count_and_invalid_accesses_change_nothing() {
    use ringbell_nic_abi::bar::{self, Reg};
    let dir = TempDir::new();
    let a = Host::new(&Setup::new(&dir, 1));
    let read = |r: Reg| a.nic.bar_read32(r.offset()).expect("readable");
    assert_eq!(read(Reg::Magic), bar::MAGIC);
    assert_eq!(read(Reg::Queues), 1);
    assert_eq!(read(Reg::Ipv4), 0x0a00_0001);
    let before = read(Reg::Accepted);
    assert_eq!(call(&[&a], 0, &socket()).status, Status::Ok);
    assert_eq!(read(Reg::Accepted), before + 1);
    assert_eq!(read(Reg::Retired), before + 1);
    assert_eq!(read(Reg::Sessions), 1);
    let beat = read(Reg::Heartbeat);
    a.nic.step();
    assert_ne!(read(Reg::Heartbeat), beat);
    assert!(
        a.nic.bar_write32(Reg::Magic.offset(), 1).is_err(),
        "read only"
    );
    assert!(a.nic.bar_write32(2, 1).is_err(), "unaligned");
    assert!(
        a.nic.bar_write32(bar::BAR_BYTES, 1).is_err(),
        "past the end"
    );
    assert!(a.nic.bar_read32(0x7fc).is_err(), "no register");
    // A doorbell is the first word of its line alone.
    for word in 1..16 {
        let at = bar::doorbell_offset(3) + 4 * word;
        assert!(a.nic.bar_write32(at, 1).is_err(), "word {word}");
        assert!(a.nic.bar_read32(at).is_err(), "word {word}");
    }
    assert!(a.nic.bar_write32(Reg::GtlbSelect.offset(), 99).is_err());
    assert!(a.nic.bar_write32(Reg::GtlbSelect.offset(), 1).is_ok());
    assert_eq!(read(Reg::GtlbSelect), 1);
}
