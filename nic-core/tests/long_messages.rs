//! The longest message of one descriptor. Both ends lie over the same 2 MiB at every address, so it needs no memory.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

mod nic_support;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::{Access, PageTable};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::{Descriptor, GpuVa, Opcode, SessionId, Status};

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
    let first = host.memory.bus().next_multiple_of(LARGE);
    let page = (0..32).map(|i| first + i * (LARGE / 32));
    let pages = (0..2048).flat_map(|_| page.clone()).collect();
    let table = PageTable { base: WIDE, pages };
    host.nic.map(&table).expect("map");
    host.nic
        .register(host.pd, WIDE, 2048 * LARGE, Access::LOCAL)
        .expect("register");
    host
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
    let page = |h: &Host| h.memory.bus().next_multiple_of(LARGE);
    let data = Rng::new(8).bytes(LARGE as usize);
    hosts[0].memory.poke(page(hosts[0]), &data).expect("inside");
    let tr = hosts[1].post(&at(Opcode::Recv, r, WIDE, u32::MAX));
    let ts = hosts[0].post(&at(Opcode::Send, s, WIDE, u32::MAX));
    let before = hosts[1].nic.counters();
    for c in settle(hosts, &[(0, ts), (1, tr)]) {
        assert_eq!((c.status, c.bytes), (Status::Ok, u32::MAX.into()));
    }
    let after = hosts[1].nic.counters();
    assert_eq!(after.copied_bytes - before.copied_bytes, u32::MAX.into());
    assert_eq!(after.rx_bytes, u32::MAX.into());
    assert_eq!(hosts[0].nic.counters().tx_bytes, u32::MAX.into());
    let mut got = vec![0; LARGE as usize];
    hosts[1]
        .memory
        .peek(page(hosts[1]), &mut got)
        .expect("inside");
    assert!(got == data);
    // Two bytes more are a number of 33 bits, which registers tell in two halves.
    assert_eq!(call(hosts, 0, &send_inline(s, &[1, 2])).status, Status::Ok);
    let c = call(hosts, 1, &at(Opcode::Recv, r, WIDE, 2));
    assert_eq!((c.status, c.bytes), (Status::Ok, 2));
    let read = |h: &Host, r: Reg| h.nic.bar_read32(r.offset());
    let sent = [Reg::TxBytesLo, Reg::TxBytesHi].map(|r| read(hosts[0], r));
    let received = [Reg::RxBytesLo, Reg::RxBytesHi].map(|r| read(hosts[1], r));
    assert_eq!((sent, received), ([Ok(1), Ok(1)], [Ok(1), Ok(1)]));
}
