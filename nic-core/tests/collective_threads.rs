//! Collectives between threads that wait and park, and with NICs that have a thread of their own.

#![allow(clippy::disallowed_methods)] // A rank that is late on purpose sleeps.

use crate::nic_support;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use nic_support::{Host, Setup, TempDir, BASE};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, DataType, Descriptor, GpuVa, Opcode, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommunicatorConfig};
use ringbell_nic_core::ProgressMode;

fn ranks(mode: ProgressMode, n: usize, algo: Algorithm, calls: u32, counts: [u64; 3]) {
    let dir = TempDir::new();
    let hosts: Vec<_> = (0..n)
        .map(|r| {
            let mut s = Setup::new(&dir, r as u8 + 1);
            s.nic.progress = mode;
            Host::new(&s)
        })
        .collect();
    let peers: Vec<_> = (0..n)
        .map(|r| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, r as u8 + 1), 7117))
        .collect();
    std::thread::scope(|scope| {
        for (r, h) in hosts.iter().enumerate() {
            let peers = peers.clone();
            scope.spawn(move || {
                let config = CommunicatorConfig {
                    ctx: 1,
                    rank: r as u32,
                    peers,
                    settings: CollectiveSettings::default(),
                };
                let comm = h.nic.create_communicator(&config).expect("communicator");
                for k in 0..calls {
                    let count = counts[k as usize % 3];
                    let v: Vec<u8> = (0..count as u32)
                        .flat_map(|i| (i ^ k).wrapping_mul(r as u32 + 1).to_le_bytes())
                        .collect();
                    h.poke(0, &v);
                    if (k + r as u32).is_multiple_of(50) {
                        // Late now and then, so that the others park.
                        std::thread::sleep(Duration::from_millis(3));
                    }
                    let mut spec = CollectiveSpec::new(CollectiveKind::AllReduce);
                    (spec.dtype, spec.algo) = (DataType::U32, algo);
                    let (imm, len) = spec.encode();
                    let d = Descriptor {
                        session: comm.session(),
                        local_va: BASE,
                        remote_va: GpuVa(BASE.0 + (4 << 20)),
                        operand: count,
                        imm,
                        len,
                        timeout_us: 20_000_000,
                        ..Descriptor::new(Opcode::Collective)
                    };
                    let c = h.queue.call(&d).expect("answered");
                    assert_eq!(c.status, Status::Ok, "call {k}: {c:?}");
                    let got = h.peek(4 << 20, count as usize * 4);
                    let all = (n * (n + 1) / 2) as u32;
                    for (i, c) in got.chunks_exact(4).enumerate() {
                        let want = (i as u32 ^ k).wrapping_mul(all);
                        assert_eq!(u32::from_le_bytes([c[0], c[1], c[2], c[3]]), want);
                    }
                }
                h.nic.free_communicator(comm).expect("known");
                assert!(h.nic.flush(Duration::from_secs(10)), "{}", h.nic.describe());
            });
        }
    });
}

#[test]
fn waiting_threads_step_and_park() {
    ranks(
        ProgressMode::Waiter,
        3,
        Algorithm::Auto,
        150,
        [1, 1000, 40_000],
    );
    ranks(
        ProgressMode::Waiter,
        3,
        Algorithm::Ring,
        150,
        [1, 1000, 40_000],
    );
}

#[test]
fn nics_with_a_thread_of_their_own() {
    ranks(
        ProgressMode::Dedicated,
        2,
        Algorithm::Ring,
        40,
        [1, 1000, 40_000],
    );
}
