//! One-sided operations that go wrong: hostile descriptors, keys, bounds and rights, regions that
//! are freed, time-outs and peers that are gone; and memory that peers cannot map.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::nic_support;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Descriptor, Flags, GpuVa, Opcode, PdId, Rkey, Status};
use ringbell_nic_core::{HostBuffer, StagingConfig};

over_each!(
    keys_rights_and_bounds_are_checked_at_the_target,
    hostile_descriptors_retire_and_write_only_where_the_key_allows,
    a_region_is_freed_while_puts_and_gets_are_under_way,
    operations_time_out_and_late_answers_are_dropped,
    requests_wait_until_their_session_is_accepted_and_end_with_the_peer,
    a_close_waits_for_what_was_posted_before,
);

const PAGE: u64 = 64 << 10;

/// Two NICs, whose memory peers may not touch.
fn pair(via: Via, dir: &TempDir) -> [Host; 2] {
    via.hosts([1, 2].map(|n| Setup::new(dir, n)))
}

/// Another region over part of a NIC's memory.
fn region(h: &Host, pd: PdId, from: u64, len: u64, access: Access) -> Rkey {
    let region = h.nic.register(pd, GpuVa(BASE.0 + from), len, access);
    region.expect("inside the memory").rkey
}

fn status(hosts: &[&Host], d: &Descriptor) -> (Status, u64) {
    let c = call(hosts, 0, d);
    (c.status, c.detail)
}

pub(crate) fn keys_rights_and_bounds_are_checked_at_the_target(via: Via) {
    let dir = TempDir::new();
    let hosts = pair(via, &dir);
    let (a, b) = (&hosts[0], &hosts[1]);
    let hosts = &[a, b];
    let (s, _) = connected(hosts, 0, 1, 7);
    let other = b.nic.alloc_pd().expect("domain");
    let rights = |read, write, atomic| Access {
        local_write: true,
        remote_read: read,
        remote_write: write,
        remote_atomic: atomic,
    };
    let at = 1 << 20;
    let va = |off: u64| BASE.0 + at + off;
    let all = [
        |s, k| put(s, k, 0, 1 << 20, 8),
        |s, k| get(s, k, 1 << 20, 0, 8),
        |s, k| fetch_add(s, k, 1 << 20, 0),
        |s, k| compare_swap(s, k, 1 << 20, 1, 1),
        |s, k| signalled(put(s, k, 0, 1 << 20, 8), 0, 1),
    ];
    for bits in 0..8 {
        let (read, write, atomic) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        let key = region(b, b.pd, at, PAGE, rights(read, write, atomic));
        let may = [write, read, atomic, atomic, write];
        for (op, may) in all.iter().zip(may) {
            let expected = match may {
                true => Status::Ok,
                false => Status::AccessDenied,
            };
            let (got, detail) = status(hosts, &op(s, key));
            assert_eq!(got, expected, "{bits:03b}");
            assert!(may || detail == va(0));
        }
    }
    let key = region(b, b.pd, at, PAGE, Access::REMOTE);
    let foreign = region(b, other, at, PAGE, Access::REMOTE);
    for op in &all {
        for bad in [foreign.0, 0, u32::MAX, key.0 ^ 1, key.0 ^ 1 << 31] {
            let expected = (Status::BadKey, bad.into());
            assert_eq!(status(hosts, &op(s, Rkey(bad))), expected);
        }
    }
    // Bounds: one byte before, the last byte, one past, and lengths that wrap.
    let end = va(PAGE);
    let out = (Status::OutOfBounds, end);
    assert_eq!(
        status(hosts, &put(s, key, 0, at + PAGE - 1, 1)).0,
        Status::Ok
    );
    assert_eq!(status(hosts, &put(s, key, 0, at + PAGE, 0)).0, Status::Ok);
    assert_eq!(status(hosts, &put(s, key, 0, at + PAGE - 1, 2)), out);
    assert_eq!(
        status(hosts, &put(s, key, 0, at - 1, 1)).0,
        Status::OutOfBounds
    );
    assert_eq!(status(hosts, &put(s, key, 0, at, PAGE as u32 + 1)), out);
    assert_eq!(status(hosts, &get(s, key, at + PAGE - 7, 0, 8)), out);
    assert_eq!(status(hosts, &get(s, key, at, 0, 1 << 22)), out);
    assert_eq!(status(hosts, &fetch_add(s, key, at + PAGE, 1)), out);
    for high in [GpuVa(u64::MAX), GpuVa(u64::MAX - 7), GpuVa(1 << 63)] {
        for op in &all {
            let d = Descriptor {
                remote_va: high,
                ..op(s, key)
            };
            assert_eq!(status(hosts, &d), out);
        }
    }
    // The signal's word: the last one, one past, and the largest number; nothing is written when it
    // is wrong.
    let last = (PAGE / 8 - 1) as u32;
    assert_eq!(
        status(hosts, &signalled(put(s, key, 0, at, 8), last, 3)).0,
        Status::Ok
    );
    b.poke(at, &[7; 64]);
    a.poke(0, &[9; 64]);
    for word in [last + 1, u32::MAX] {
        for len in [8, 64] {
            let d = signalled(put(s, key, 0, at, len), word, 3);
            assert_eq!(status(hosts, &d), out);
        }
    }
    assert_eq!(b.peek(at, 64), [7; 64]);
    // A region that begins between two words has none.
    let odd = region(b, b.pd, at + 4, 100, Access::REMOTE);
    let d = signalled(put(s, odd, 0, at + 8, 8), 0, 3);
    assert_eq!(status(hosts, &d), (Status::InvalidArgument, va(4)));
    // Faults of the own buffer: nothing leaves.
    let unregistered = put(s, key, 16 << 20, at, 8);
    assert_eq!(status(hosts, &unregistered).0, Status::NotRegistered);
    assert_eq!(b.peek(at, 64), [7; 64]);
    let own = get(s, key, at, (8 << 20) - 4, 8);
    assert_eq!(status(hosts, &own).0, Status::OutOfBounds);
    // The session has survived all of it.
    assert_eq!(status(hosts, &put(s, key, 0, at, 64)).0, Status::Ok);
    assert_eq!(b.peek(at, 64), [9; 64]);
}

pub(crate) fn hostile_descriptors_retire_and_write_only_where_the_key_allows(via: Via) {
    let dir = TempDir::new();
    let hosts = pair(via, &dir);
    let (a, b) = (&hosts[0], &hosts[1]);
    let hosts = &[a, b];
    let (s, _) = connected(hosts, 0, 1, 7);
    let (at, len) = (2 << 20, 4 * PAGE);
    let key = region(b, b.pd, at, len, Access::REMOTE);
    let before = b.peek(0, 8 << 20);
    let mut rng = Rng::new(0x0ff);
    let mut tickets = Vec::new();
    let mut ok = 0;
    for i in 0..20_000 {
        let mut d = put(s, key, rng.below(1 << 20), at + rng.below(2 * len), 0);
        d.opcode = [
            Opcode::Put,
            Opcode::Get,
            Opcode::FetchAdd,
            Opcode::CompareSwap,
        ][rng.below(4) as usize];
        d.len = (rng.bits() >> (32 + rng.below(31))) as u32;
        d.imm = (rng.bits() >> (32 + rng.below(31))) as u32;
        d.operand = rng.bits();
        d.timeout_us = 2_000_000;
        d.flags = Flags(Flags::of(d.opcode).0 & rng.bits() as u8);
        // One field is wrong in most of them.
        match i % 8 {
            0 => d.rkey = Rkey(rng.bits() as u32),
            1 => d.remote_va = GpuVa(rng.bits()),
            2 => d.local_va = GpuVa(rng.bits()),
            3 => d.session.0 ^= 1 << rng.below(24),
            4 => d.flags = Flags(rng.bits() as u8),
            5 => d.lkey.0 = rng.bits() as u32,
            _ => {}
        }
        d.inline_len = match d.flags.contains(Flags::INLINE) {
            true => rng.below(10) as u8,
            false => 0,
        };
        loop {
            if let Some(t) = a.queue.try_post(&d) {
                tickets.push((0, t));
                break;
            }
            let done = settle(hosts, &[tickets.remove(0)]);
            ok += u32::from(done[0].status == Status::Ok);
        }
    }
    for c in settle(hosts, &tickets) {
        ok += u32::from(c.status == Status::Ok);
        assert!(
            !matches!(c.status, Status::TimedOut | Status::ConnectionReset),
            "{c:?}"
        );
    }
    assert!(ok > 500, "{ok} were right");
    let after = b.peek(0, 8 << 20);
    let (from, to) = (at as usize, (at + len) as usize);
    assert!(before[..from] == after[..from] && before[to..] == after[to..]);
    assert!(before[from..to] != after[from..to]);
    assert_eq!(ringbell_nic_core::leaked_permits(), 0);
    assert_eq!(status(hosts, &put(s, key, 0, at, 64)).0, Status::Ok);
}

pub(crate) fn a_region_is_freed_while_puts_and_gets_are_under_way(via: Via) {
    let dir = TempDir::new();
    let hosts = pair(via, &dir);
    let (a, b) = (&hosts[0], &hosts[1]);
    let hosts = &[a, b];
    let mut rng = Rng::new(5);
    for round in 0..60 {
        let (s, r) = connected(hosts, 0, 1, 7);
        let target = b
            .nic
            .register(b.pd, GpuVa(BASE.0 + (4 << 20)), 2 << 20, Access::REMOTE);
        let target = target.expect("inside");
        let source = a.nic.register(a.pd, GpuVa(BASE.0), 2 << 20, Access::LOCAL);
        let source = source.expect("inside");
        let mut tickets = Vec::new();
        for i in 0..12 {
            let len = [8, 100, 70_000, 1 << 20][rng.below(4) as usize];
            let mut d = match i % 3 {
                0 => get(s, target.rkey, 4 << 20, 0, len),
                1 => put(s, target.rkey, 0, 4 << 20, len),
                _ => signalled(put(s, target.rkey, 0, 4 << 20, len), 9, 1),
            };
            d.lkey = source.lkey;
            tickets.push((0, a.post(&d)));
        }
        for _ in 0..rng.below(12) {
            a.nic.step();
            b.nic.step();
        }
        // Both NICs are stepped by another thread, as a program's would be.
        let stop = std::sync::atomic::AtomicBool::new(false);
        let at_source = round % 2 == 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    a.nic.step();
                    b.nic.step();
                }
            });
            match at_source {
                true => a.nic.deregister(source.lkey).expect("freed"),
                false => b.nic.deregister(target.lkey).expect("freed"),
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mark = b.peek(4 << 20, 4096);
        a.poke(0, &rng.bytes(4096));
        for c in settle(hosts, &tickets) {
            let known = [
                Status::Ok,
                Status::RegionFreed,
                Status::BadKey,
                // A put whose source is freed ends its session.
                Status::ConnectionReset,
                Status::NotConnected,
                Status::Aborted,
            ];
            assert!(known.contains(&c.status), "{c:?}");
            assert!(
                at_source || !matches!(c.status, Status::ConnectionReset),
                "{c:?}"
            );
        }
        if !at_source {
            // Nothing is written after it was freed.
            assert!(mark == b.peek(4 << 20, 4096));
            a.nic.deregister(source.lkey).expect("freed");
        } else {
            b.nic.deregister(target.lkey).expect("freed");
        }
        call(hosts, 0, &abort(s));
        call(hosts, 1, &abort(r));
        quiesce(hosts);
    }
}

pub(crate) fn operations_time_out_and_late_answers_are_dropped(via: Via) {
    let dir = TempDir::new();
    let hosts = pair(via, &dir);
    let (a, b) = (&hosts[0], &hosts[1]);
    let hosts = &[a, b];
    let (s, r) = connected(hosts, 0, 1, 7);
    let key = region(b, b.pd, 0, 1 << 20, Access::REMOTE);
    b.poke(0, &[1; 4096]);
    a.poke(1 << 20, &[5; 4096]);
    // The peer does not step: a short get, a long one, an atomic and a put inside its line.
    let quick = |d| within(d, 2000);
    let late = [
        quick(get(s, key, 0, 1 << 20, 100)),
        quick(get(s, key, 0, 1 << 20, 4096)),
        quick(fetch_add(s, key, 512, 1)),
        quick(put(s, key, 0, 1024, 8)),
    ];
    let tickets: Vec<_> = late.iter().map(|d| (0, a.post(d))).collect();
    for c in settle(&[a], &tickets) {
        assert_eq!(c.status, Status::TimedOut);
    }
    quiesce(hosts);
    // Their answers have come and changed nothing here; the session goes on in step.
    assert_eq!(a.peek(1 << 20, 4096), [5; 4096]);
    assert_eq!(status(hosts, &fetch_add(s, key, 520, 1)).0, Status::Ok);
    assert_eq!(call(hosts, 0, &get(s, key, 0, 1 << 20, 4096)).bytes, 4096);
    assert_eq!(a.peek(1 << 20, 512), [1; 512]);
    // A put out of memory that the peer may still read ends the session.
    let t = a.post(&quick(put(s, key, 0, 8192, 4096)));
    assert_eq!(settle(&[a], &[(0, t)])[0].status, Status::TimedOut);
    let next = status(hosts, &put(s, key, 0, 0, 8)).0;
    assert_eq!(next, Status::NotConnected);
    let end = call(hosts, 1, &recv(r, 0, 8)).status;
    assert_eq!(end, Status::ConnectionReset);
    let (pins, all) = (
        |h: &Host| {
            h.nic
                .pointer_info(h.pd, BASE)
                .expect("registered")
                .operations
        },
        hosts,
    );
    assert_eq!(all.map(pins), [0, 0]);
}

pub(crate) fn requests_wait_until_their_session_is_accepted_and_end_with_the_peer(via: Via) {
    let dir = TempDir::new();
    let [a, b] = pair(via, &dir);
    let key = region(&b, b.pd, 0, 1 << 20, Access::REMOTE);
    {
        let hosts = &[&a, &b];
        let l = listener(hosts, 1, 7);
        let s = session_of(call(hosts, 0, &socket()));
        let ip = b.nic.config().ip;
        assert_eq!(call(hosts, 0, &connect(s, ip, 7)).status, Status::Ok);
        // No domain is known before the connection has a session.
        let early = a.post(&put(s, key, 0, 0, 64));
        quiesce(hosts);
        assert!(a.queue.poll(early).is_none());
        let r = session_of(call(hosts, 1, &accept(l)));
        assert_eq!(settle(hosts, &[(0, early)])[0].status, Status::Ok);
        // An orderly close by the peer: what it has not answered fails.
        let t = a.post(&put(s, key, 0, 0, 64));
        assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
        let end = settle(hosts, &[(0, t)])[0].status;
        assert!(matches!(end, Status::Ok | Status::ConnectionReset), "{end}");
        assert_eq!(
            status(hosts, &put(s, key, 0, 0, 64)).0,
            Status::ConnectionReset
        );
        assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
    }
    let hosts = &[&a, &b];
    let (s, _) = connected(hosts, 0, 1, 8);
    let tickets: Vec<_> = [
        put(s, key, 0, 0, 1 << 20),
        get(s, key, 0, 0, 1 << 20),
        fetch_add(s, key, 0, 1),
    ]
    .iter()
    .map(|d| (0, a.post(d)))
    .collect();
    a.nic.step();
    drop(b);
    for c in settle(&[&a], &tickets) {
        assert_eq!(c.status, Status::ConnectionReset);
    }
    assert_eq!(a.nic.counters().accepted, a.nic.counters().retired);
}

pub(crate) fn a_close_waits_for_what_was_posted_before(via: Via) {
    let dir = TempDir::new();
    let hosts = pair(via, &dir);
    let (a, b) = (&hosts[0], &hosts[1]);
    let hosts = &[a, b];
    let (s, _) = connected(hosts, 0, 1, 7);
    let key = region(b, b.pd, 0, 2 << 20, Access::REMOTE);
    let data = Rng::new(3).bytes(1 << 20);
    a.poke(0, &data);
    let tickets = [
        (0, a.post(&put(s, key, 0, 4096, 1 << 20))),
        (0, a.post(&get(s, key, 4096, 2 << 20, 1 << 20))),
        (0, a.post(&close(s))),
    ];
    for c in settle(hosts, &tickets) {
        assert_eq!(c.status, Status::Ok);
    }
    assert!(b.peek(4096, 1 << 20) == data && a.peek(2 << 20, 1 << 20) == data);
}

#[test]
fn memory_that_a_peer_cannot_map_goes_through_nic_memory() {
    let mut rng = Rng::new(9);
    for (chunk, depth) in [(4096, 2), (64 << 10, 4), (1 << 20, 2)] {
        let dir = TempDir::new();
        let [a, b] = [1, 2].map(|n| {
            let mut setup = Setup::new(&dir, n);
            setup.local.staging = StagingConfig { chunk, depth };
            Host::new(&setup)
        });
        let hosts = &[&a, &b];
        let (s, _) = connected(hosts, 0, 1, 7);
        let adopt = |h: &Host, access| -> (HostBuffer, Rkey) {
            let bytes = h.nic.adopt_host(h.pd, vec![0; 1 << 20], access);
            let bytes = bytes.expect("registered");
            let info = h.nic.pointer_info(h.pd, bytes.va()).expect("registered");
            (bytes, info.region.rkey)
        };
        let (source, _) = adopt(&a, Access::LOCAL);
        let (target, key) = adopt(&b, Access::REMOTE);
        let used = a.nic.nic_memory().0 + b.nic.nic_memory().0;
        for len in [33_u32, 121, 4096, 4097, 65_537, 1_000_000] {
            let data = rng.bytes(len as usize);
            source.write(5, &data).expect("inside");
            let mut d = signalled(put(s, key, 0, 0, len), 0, 1);
            d.local_va = GpuVa(source.va().0 + 5);
            d.remote_va = GpuVa(target.va().0 + 64);
            assert_eq!(status(hosts, &d).0, Status::Ok);
            let mut got = vec![0; len as usize];
            target.read(64, &mut got).expect("inside");
            assert!(got == data, "put {len} in pieces of {chunk}");
            let (d_from, d_to) = (d.remote_va, d.local_va);
            source.write(0, &vec![0; len as usize + 5]).expect("inside");
            let mut d = get(s, key, 0, 0, len);
            (d.local_va, d.remote_va) = (d_to, d_from);
            let c = call(hosts, 0, &d);
            assert_eq!((c.status, c.bytes), (Status::Ok, len.into()));
            source.read(5, &mut got).expect("inside");
            assert!(got == data, "get {len} in pieces of {chunk}");
        }
        quiesce(hosts);
        let after = a.nic.nic_memory().0 + b.nic.nic_memory().0;
        assert_eq!(used, after, "rooms were given back");
    }
}
