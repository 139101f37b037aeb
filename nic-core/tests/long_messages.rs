//! The longest message of one descriptor, and collectives of more. Both ends lie over the same 2
//! MiB at every address, so it needs no memory.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::collective_support;

use collective_support::nic::*;
use collective_support::{Call, Wire, World};
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{Access, PageTable};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, DataType, Descriptor, GpuVa, Opcode, ReduceOp, SessionId, Status,
};
use ringbell_nic_core::collective::CollectiveSettings;

/// Bytes of a large page.
const LARGE: u64 = 2 << 20;
/// Behind everything that the hosts map themselves.
const WIDE: GpuVa = GpuVa(0x7a00_0000_0000);

/// A NIC that sees one large page of memory at 4 GiB of addresses.
fn wide(dir: &TempDir, n: u8) -> Host {
    let mut setup = Setup::new(dir, n);
    setup.memory_bytes = 2 * LARGE;
    setup.register = false;
    let host = Host::new(&setup);
    show(&host, 0, WIDE, 2048);
    host
}

/// Bus address of a large page of a host's memory.
fn page(host: &Host, n: u64) -> u64 {
    host.memory.bus().next_multiple_of(LARGE) + n * LARGE
}

/// Shows a NIC one large page of a host's memory at so many addresses.
fn show(host: &Host, n: u64, base: GpuVa, times: u64) {
    let first = page(host, n);
    let once = (0..32).map(|i| first + i * (LARGE / 32));
    let pages = (0..times).flat_map(|_| once.clone()).collect();
    host.nic.map(&PageTable { base, pages }).expect("map");
    host.nic
        .register(host.pd, base, times * LARGE, Access::LOCAL)
        .expect("register");
}

fn at(opcode: Opcode, session: SessionId, va: GpuVa, len: u32) -> Descriptor {
    Descriptor {
        session,
        local_va: va,
        len,
        timeout_us: 120_000_000,
        ..Descriptor::new(opcode)
    }
}

#[test]
fn four_gib_less_one_byte_go_in_one_descriptor() {
    let dir = TempDir::new();
    let hosts = &[&wide(&dir, 1), &wide(&dir, 2)];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = Rng::new(8).bytes(LARGE as usize);
    hosts[0]
        .memory
        .poke(page(hosts[0], 0), &data)
        .expect("inside");
    let tr = hosts[1].post(&at(Opcode::Recv, r, WIDE, u32::MAX));
    let ts = hosts[0].post(&at(Opcode::Send, s, WIDE, u32::MAX));
    let before = hosts[1].nic.counters();
    for c in settle(hosts, &[(0, ts), (1, tr)]) {
        assert_eq!((c.status, c.bytes), (Status::Ok, u32::MAX.into()));
    }
    let after = hosts[1].nic.counters();
    assert_eq!(
        after.copied_bytes - before.copied_bytes,
        u64::from(u32::MAX)
    );
    assert_eq!(after.rx_bytes, u64::from(u32::MAX));
    assert_eq!(hosts[0].nic.counters().tx_bytes, u64::from(u32::MAX));
    let mut got = vec![0; LARGE as usize];
    hosts[1]
        .memory
        .peek(page(hosts[1], 0), &mut got)
        .expect("inside");
    assert!(got == data);
    // Two bytes more are a number of 33 bits, which registers report in two halves.
    assert_eq!(call(hosts, 0, &send_inline(s, &[1, 2])).status, Status::Ok);
    let c = call(hosts, 1, &at(Opcode::Recv, r, WIDE, 2));
    assert_eq!((c.status, c.bytes), (Status::Ok, 2));
    let read = |h: &Host, r: Reg| h.nic.bar_read32(r.offset());
    let sent = [Reg::TxBytesLo, Reg::TxBytesHi].map(|r| read(hosts[0], r));
    let received = [Reg::RxBytesLo, Reg::RxBytesHi].map(|r| read(hosts[1], r));
    assert_eq!((sent, received), ([Ok(1), Ok(1)], [Ok(1), Ok(1)]));
}

/// More bytes than 32 bits can count, and no whole number of segments.
const MORE: u64 = (1 << 32) + 3 * 4096 + 5;

#[test]
fn collectives_of_more_than_four_gib_go_by_segments_and_messages_are_refused() {
    let mut w = World::unjoined(2, Wire::Local, 6 * LARGE);
    let second = GpuVa(WIDE.0 + 4096 * LARGE);
    for h in 0..2 {
        show(w.host(h), 0, WIDE, 2049);
        show(w.host(h), 1, second, 2049);
    }
    let settings = CollectiveSettings::default();
    w.comms = w.communicator(7, &[0, 1], &settings);
    let data = Rng::new(9).bytes(LARGE as usize);
    let source = page(w.host(0), 0);
    w.host(0).memory.poke(source, &data).expect("inside");
    let call = |kind, count| {
        Call::new(kind, count)
            .of(DataType::U8, ReduceOp::Sum)
            .at(WIDE.0 - BASE.0, second.0 - BASE.0)
    };
    // From rank 0's first page to both ranks' second page.
    for c in w.call(&call(CollectiveKind::Broadcast, MORE).algo(Algorithm::Chain)) {
        assert_eq!((c.status, c.bytes), (Status::Ok, MORE));
    }
    for h in 0..2 {
        let mut got = vec![0; LARGE as usize];
        let at = page(w.host(h), 1);
        w.host(h).memory.peek(at, &mut got).expect("inside");
        assert!(got == data, "rank {h}");
    }
    // A message has no segments. Its length is at fault before its memory, which nothing is
    // registered for.
    for kind in [CollectiveKind::Send, CollectiveKind::Recv] {
        for (count, at) in [(MORE, 0), (1 << 32, 0), (1 << 40, 1 << 50)] {
            let c = w.post(0, &call(kind, count).root(1).at(at, at));
            let c = w.settle(&[(0, c)])[0];
            assert_eq!((c.status, c.detail), (Status::InvalidArgument, count));
        }
    }
}
