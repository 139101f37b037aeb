//! Host, GPU and NIC memory in the same calls: every kind to every kind over each transport,
//! interior addresses and odd lengths, and the errors of invalid calls.
#![allow(unsafe_code)] // Registers memory that lives elsewhere.

use crate::nic_support;

use std::ptr::NonNull;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{Access, DeregisterError};
use ringbell_nic_abi::{Descriptor, GpuVa, SessionId, Status};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::{
    FreeError, HostBuffer, HostRegion, MemoryError, MemoryKind, Nic, NicBuffer, ProgressMode,
};

/// The progress threads answer when memory is freed, independent of what the test's own thread
/// waits for.
fn local(dir: &TempDir) -> [Host; 2] {
    [1, 2].map(|n| {
        let mut setup = Setup::new(dir, n);
        setup.nic.progress = ProgressMode::Waiter;
        Host::new(&setup)
    })
}

fn tcp(dir: &TempDir) -> [Host; 2] {
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    [1, 2].map(|n: u8| {
        let setup = Setup::new(dir, n);
        let port = switch.port(usize::from(n) - 1).expect("port");
        Host::over(&setup, Box::new(port), TcpConfig::default())
    })
}

/// A buffer of one of the kinds.
enum Memory {
    /// The GPU's, at an offset of the test host's memory.
    Gpu(u64),
    /// Allocated for the NIC.
    Host(HostBuffer),
    /// Bytes that the program had.
    Foreign(HostRegion, Vec<u8>),
    OnNic(NicBuffer),
}

const KINDS: [&str; 4] = ["gpu", "host", "foreign", "nic"];

impl Memory {
    fn new(h: &Host, kind: &str, len: usize) -> Memory {
        match kind {
            "gpu" => Memory::Gpu(1 << 20),
            "host" => Memory::Host(h.nic.alloc_host(h.pd, len, Access::LOCAL).expect("host")),
            "foreign" => {
                let mut bytes = vec![0; len];
                let region = register(h, &mut bytes).expect("register");
                Memory::Foreign(region, bytes)
            }
            "nic" => Memory::OnNic(
                h.nic
                    .alloc_on_nic(h.pd, len as u64, Access::LOCAL)
                    .expect("NIC memory"),
            ),
            other => panic!("{other}"),
        }
    }

    fn va(&self) -> GpuVa {
        match self {
            Memory::Gpu(at) => GpuVa(BASE.0 + at),
            Memory::Host(b) => b.va(),
            Memory::Foreign(r, _) => r.va(),
            Memory::OnNic(b) => b.va(),
        }
    }

    fn write(&mut self, h: &Host, offset: usize, bytes: &[u8]) {
        match self {
            Memory::Gpu(at) => h.poke(*at + offset as u64, bytes),
            Memory::Host(b) => b.write(offset as u64, bytes).expect("inside"),
            Memory::Foreign(_, v) => v[offset..offset + bytes.len()].copy_from_slice(bytes),
            Memory::OnNic(b) => b.write(offset as u64, bytes).expect("inside"),
        }
    }

    fn read(&self, h: &Host, offset: usize, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        match self {
            Memory::Gpu(at) => return h.peek(*at + offset as u64, len),
            Memory::Host(b) => b.read(offset as u64, &mut v).expect("inside"),
            Memory::Foreign(_, bytes) => v.copy_from_slice(&bytes[offset..offset + len]),
            Memory::OnNic(b) => b.read(offset as u64, &mut v).expect("inside"),
        }
        v
    }
}

fn register(h: &Host, bytes: &mut [u8]) -> Result<HostRegion, MemoryError> {
    let ptr = NonNull::new(bytes.as_mut_ptr()).expect("a slice");
    // SAFETY: every test keeps its bytes until the region has gone, and looks at them only when no
    // operation uses them.
    unsafe { h.nic.register_host(h.pd, ptr, bytes.len(), Access::LOCAL) }
}

fn from(s: SessionId, va: GpuVa, offset: usize, len: usize) -> Descriptor {
    Descriptor {
        local_va: GpuVa(va.0 + offset as u64),
        ..send(s, 0, len as u32)
    }
}

fn into(s: SessionId, va: GpuVa, offset: usize, len: usize) -> Descriptor {
    Descriptor {
        local_va: GpuVa(va.0 + offset as u64),
        ..recv(s, 0, len as u32)
    }
}

/// Sends from one memory into another at odd offsets, and checks every byte, those around included.
fn every_kind_to_every_kind(pair: &[Host; 2]) {
    const ROOM: usize = 700_001;
    let hosts = &[&pair[0], &pair[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let mut rng = Rng::new(31);
    for (i, a) in KINDS.iter().enumerate() {
        for (j, b) in KINDS.iter().enumerate() {
            let mut src = Memory::new(hosts[0], a, ROOM);
            let mut dst = Memory::new(hosts[1], b, ROOM);
            for (k, len) in [1, 40, 41, 4097, 65_537, 300_003].into_iter().enumerate() {
                let (x, y) = (3 + 11 * i + k, 7 + 13 * j + 5 * k);
                let data = rng.bytes(len);
                src.write(hosts[0], x, &data);
                dst.write(hosts[1], 0, &vec![0xa5; y + len + 64]);
                let tickets = [
                    (1, hosts[1].post(&into(r, dst.va(), y, len))),
                    (0, hosts[0].post(&from(s, src.va(), x, len))),
                ];
                for c in settle(hosts, &tickets) {
                    assert_eq!((c.status, c.bytes), (Status::Ok, len as u64), "{a} to {b}");
                }
                let got = dst.read(hosts[1], 0, y + len + 64);
                assert!(got[y..y + len] == data, "{a} to {b}, {len} bytes");
                let around = got[..y].iter().chain(&got[y + len..]);
                assert!(around.into_iter().all(|x| *x == 0xa5), "{a} to {b}, {len}");
            }
        }
    }
    assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
    assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
}

#[test]
fn every_kind_to_every_kind_over_local() {
    let dir = TempDir::new();
    every_kind_to_every_kind(&local(&dir));
}

#[test]
fn every_kind_to_every_kind_over_tcp() {
    let dir = TempDir::new();
    every_kind_to_every_kind(&tcp(&dir));
}

#[test]
fn pointer_info_reports_kind_and_offset_of_an_address() {
    let dir = TempDir::new();
    let h = Host::new(&Setup::new(&dir, 1));
    let host = h.nic.alloc_host(h.pd, 10_000, Access::LOCAL).expect("host");
    let on_nic = h.nic.alloc_on_nic(h.pd, 777, Access::LOCAL).expect("NIC");
    let info = |va: u64| h.nic.pointer_info(h.pd, GpuVa(va));
    let kind = |va: u64| info(va).map(|i| (i.kind, i.offset));
    assert_eq!(kind(BASE.0 + 70_000), Some((MemoryKind::Gpu, 70_000)));
    let (a, b) = (host.va().0, on_nic.va().0);
    assert_eq!(kind(a), Some((MemoryKind::Host, 0)));
    assert_eq!(kind(a + 9_999), Some((MemoryKind::Host, 9_999)));
    assert_eq!(kind(a + 10_000), None, "the byte behind the end");
    assert_eq!(kind(b + 776), Some((MemoryKind::Nic, 776)));
    assert_eq!(kind(b + 777), None, "not even the padding");
    assert_eq!(info(a + 5).expect("covered").region, *host.region());
    assert_eq!(kind(8), None);
    let other = h.nic.alloc_pd().expect("domain");
    assert!(h.nic.pointer_info(other, GpuVa(a)).is_none(), "another's");
    host.free().expect("nothing uses it");
    assert_eq!(kind(a), None, "freed");
    drop(on_nic);
    assert_eq!(kind(b), None, "freed");
}

#[test]
fn each_byte_is_registered_once() {
    let dir = TempDir::new();
    let h = Host::new(&Setup::new(&dir, 1));
    let mut bytes = vec![1_u8; 100_000];
    let region = register(&h, &mut bytes[1000..50_000]).expect("first");
    let again = register(&h, &mut bytes[1000..50_000]).expect_err("twice");
    assert!(
        matches!(again, MemoryError::AlreadyRegistered { len: 49_000, .. }),
        "{again}"
    );
    for range in [0..1001, 49_999..60_000, 2000..3000, 0..100_000] {
        let e = register(&h, &mut bytes[range.clone()]).expect_err("overlap");
        assert!(
            matches!(
                e,
                MemoryError::Overlaps {
                    kind: MemoryKind::Host,
                    other_len: 49_000,
                    ..
                }
            ),
            "{range:?}: {e}"
        );
    }
    // Neighbours within a page do not overlap: the bounds are the region's, not the page's.
    let left = register(&h, &mut bytes[..1000]).expect("left of it");
    let right = register(&h, &mut bytes[50_000..50_001]).expect("right of it");
    drop((region, left, right));
    drop(register(&h, &mut bytes).expect("all of it, now"));
    let empty = register(&h, &mut bytes[..0]).expect_err("nothing");
    assert!(matches!(empty, MemoryError::Register(_)), "{empty}");
    let e = h
        .nic
        .alloc_on_nic(h.pd, 1 << 40, Access::LOCAL)
        .expect_err("too large");
    assert!(
        matches!(e, MemoryError::NicMemoryFull { used: 0, .. }),
        "{e}"
    );
}

#[test]
fn unmapped_memory_is_refused() {
    let dir = TempDir::new();
    let h = Host::new(&Setup::new(&dir, 1));
    let at = NonNull::new(std::ptr::without_provenance_mut(64)).expect("not null");
    // SAFETY: nothing is there, so nothing can be accessed; the call has to find out.
    let e = unsafe { h.nic.register_host(h.pd, at, 4096, Access::LOCAL) }.expect_err("no page");
    assert!(
        matches!(e, MemoryError::NotMapped(e) if e.need == "written"),
        "{e}"
    );
}

#[test]
fn unregistered_and_freed_addresses_fault_with_the_address() {
    let dir = TempDir::new();
    let pair = local(&dir);
    let hosts = &[&pair[0], &pair[1]];
    let (s, _r) = connected(hosts, 0, 1, 7);
    let bytes = vec![0_u8; 4096];
    let va = GpuVa(bytes.as_ptr().addr() as u64);
    let c = call(hosts, 0, &from(s, va, 5, 100));
    assert_eq!((c.status, c.detail), (Status::NotRegistered, va.0 + 5));
    let buffer = hosts[0].nic.alloc_host(hosts[0].pd, 4096, Access::LOCAL);
    let buffer = buffer.expect("host");
    let va = buffer.va();
    let c = call(hosts, 0, &from(s, va, 4000, 97));
    assert_eq!((c.status, c.detail), (Status::OutOfBounds, va.0 + 4096));
    buffer.free().expect("free");
    let c = call(hosts, 0, &from(s, va, 0, 100));
    assert_eq!((c.status, c.detail), (Status::NotRegistered, va.0));
    let read_only = hosts[0].nic.alloc_host(hosts[0].pd, 64, Access::LOCAL_READ);
    let read_only = read_only.expect("host");
    let c = call(hosts, 0, &into(s, read_only.va(), 0, 64));
    assert_eq!(c.status, Status::AccessDenied);
}

/// A stale key must not reach what took the place of its memory.
#[test]
fn a_new_buffer_at_an_old_address_has_another_key() {
    let dir = TempDir::new();
    let pair = local(&dir);
    let hosts = &[&pair[0], &pair[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let mut bytes = vec![7_u8; 70_000];
    let old = register(hosts[0], &mut bytes).expect("first life");
    let stale = old.region().lkey;
    drop(old);
    let new = register(hosts[0], &mut bytes).expect("second life");
    assert_eq!(
        (new.va().0, new.region().lkey == stale),
        (bytes.as_ptr().addr() as u64, false)
    );
    let d = Descriptor {
        lkey: stale,
        ..from(s, new.va(), 0, 70_000)
    };
    let c = call(hosts, 0, &d);
    assert_eq!((c.status, c.detail), (Status::RegionFreed, new.va().0));
    let gone = hosts[0].nic.deregister(stale);
    assert_eq!(gone, Err(DeregisterError::BadKey { lkey: stale }));
    let d = Descriptor {
        lkey: new.region().lkey,
        ..from(s, new.va(), 0, 70_000)
    };
    let tickets = [
        (1, hosts[1].post(&recv(r, 0, 70_000))),
        (0, hosts[0].post(&d)),
    ];
    assert!(settle(hosts, &tickets)
        .iter()
        .all(|c| c.status == Status::Ok));
}

#[test]
fn memory_goes_while_it_is_being_sent_and_received() {
    let dir = TempDir::new();
    for sender_goes in [true, false] {
        for kind in ["host", "foreign", "nic"] {
            let pair = local(&dir);
            let hosts = &[&pair[0], &pair[1]];
            let (s, r) = connected(hosts, 0, 1, 7);
            let mut src = Memory::new(hosts[0], kind, 3 << 20);
            let data = Rng::new(3).bytes(3 << 20);
            src.write(hosts[0], 0, &data);
            let mut dst = Some(Memory::new(hosts[1], kind, 3 << 20));
            let to = dst.as_ref().map_or(GpuVa(0), Memory::va);
            let before = hosts.map(|h| h.nic.counters().accepted);
            let ts = (0, hosts[0].post(&from(s, src.va(), 0, 3 << 20)));
            let tr = (1, hosts[1].post(&into(r, to, 0, 3 << 20)));
            // A step each, unless the NIC's own thread is at it just then.
            for (h, before) in hosts.iter().zip(before) {
                let mut tries = 0;
                while h.nic.counters().accepted == before {
                    h.nic.step();
                    tries += 1;
                    assert!(tries < 1_000_000, "{}", h.nic.describe());
                }
            }
            let free = |m: Memory, nic: &Nic| {
                let va = m.va();
                match m {
                    Memory::Host(b) => b.free(),
                    Memory::OnNic(b) => b.free(),
                    Memory::Foreign(mut r, _) => r.end(),
                    Memory::Gpu(_) => Ok(()),
                }
                .unwrap_or_else(|e: FreeError| panic!("{kind}: {e}\n{}", nic.describe()));
                va
            };
            let (at, ticket, other, va) = if sender_goes {
                (0, ts, tr, free(src, &hosts[0].nic))
            } else {
                (1, tr, ts, dst.take().map_or(to, |m| free(m, &hosts[1].nic)))
            };
            let done = settle(hosts, &[ticket, other]);
            if done[0].status != Status::Ok {
                assert_eq!(
                    (done[0].status, done[0].detail),
                    (Status::RegionFreed, va.0),
                    "{kind} at {at}"
                );
                // A receive may have had everything before the sender's memory went; then it has
                // it.
                match (&dst, done[1].status) {
                    (Some(dst), Status::Ok) => assert!(dst.read(hosts[1], 0, 3 << 20) == data),
                    (_, status) => assert_ne!(status, Status::Ok, "{kind} at {at}"),
                }
            }
            for h in hosts {
                let c = h.nic.counters();
                assert_eq!(c.accepted, c.retired, "{}", h.nic.describe());
            }
        }
    }
}
