//! All-reduce between NICs of one host, a thread each: the direct path against the same operation
//! over messages, in one run.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench direct [-- RANKS [MAX_KIB]]`. GPU memory
//! is emulated with scattered pages, so all of it is host memory. Every line verifies its data. The
//! median and the best of the runs are shown: the machine may be shared.
#![allow(clippy::disallowed_methods)] // A bench measures with the clock.

#[path = "../../nic-core/tests/nic_support/mod.rs"]
mod nic_support;

use std::net::SocketAddrV4;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::Layout;
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, Descriptor, GpuVa, Opcode, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus, CommunicatorConfig};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::ProgressMode;

const RUNS: usize = 9;
const LIMIT: Duration = Duration::from_secs(60);

fn element(rank: usize, i: usize) -> f32 {
    ((i * 7 + rank * 13) % 32) as f32
}

fn data(rank: usize, n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| element(rank, i).to_le_bytes())
        .collect()
}

fn all_reduce(comm: CommId, algo: Algorithm, n: u64, out: u64) -> Descriptor {
    let (imm, len) = CollectiveSpec {
        algo,
        ..CollectiveSpec::new(CollectiveKind::AllReduce)
    }
    .encode();
    Descriptor {
        session: comm.session(),
        local_va: BASE,
        remote_va: GpuVa(BASE.0 + out),
        operand: n,
        imm,
        len,
        timeout_us: 60_000_000,
        ..Descriptor::new(Opcode::Collective)
    }
}

fn hosts(ranks: usize, bytes: u64, dir: &TempDir) -> Vec<(Host, CommId)> {
    let make = |r: usize| {
        let mut setup = Setup::new(dir, r as u8 + 1);
        setup.nic.progress = ProgressMode::Waiter;
        setup.memory_bytes = bytes;
        setup.layout = Layout::Mixed(r as u64 + 1);
        setup.access.remote_write = true;
        let h = Host::new(&setup);
        h.poke(0, &vec![0; bytes as usize]);
        h
    };
    let hosts: Vec<Host> = (0..ranks).map(make).collect();
    let at = |h: &Host| SocketAddrV4::new(h.nic.config().ip, 7000);
    let peers: Vec<_> = hosts.iter().map(at).collect();
    let comm = |(rank, h): (usize, &Host)| {
        let config = CommunicatorConfig {
            ctx: 1,
            rank: rank as u32,
            peers: peers.clone(),
            settings: CollectiveSettings::default(),
        };
        h.nic.create_communicator(&config).expect("communicator")
    };
    let ids: Vec<CommId> = hosts.iter().enumerate().map(comm).collect();
    let start = Instant::now();
    let ready = |(h, id): (&Host, &CommId)| {
        h.nic.step();
        h.nic.communicator_status(*id) == Ok(CommStatus::Ready)
    };
    // Every rank is stepped in every round, also when an earlier one is not ready.
    while hosts
        .iter()
        .zip(&ids)
        .filter(|x| !ready((x.0, x.1)))
        .count()
        > 0
    {
        assert!(start.elapsed() < LIMIT, "the ranks did not find each other");
    }
    hosts.into_iter().zip(ids).collect()
}

/// Microseconds per call (median, best) and wrong elements.
fn measure(hosts: &[(Host, CommId)], algo: Algorithm, bytes: usize, out: u64) -> (f64, f64, usize) {
    let ranks = hosts.len();
    let n = bytes / 4;
    let calls = (40_000_000 / (bytes + 4000)).clamp(2, 4000) / (ranks / 2).max(1);
    let barrier = Barrier::new(ranks);
    let body = |rank: usize| {
        let (h, comm) = &hosts[rank];
        let d = all_reduce(*comm, algo, n as u64, out);
        let call = || {
            let t = h.queue.try_post(&d).expect("room");
            let c = h.queue.wait(t, LIMIT).expect("completes");
            assert_eq!(c.status, Status::Ok, "{c:?}");
        };
        h.poke(0, &data(rank, n));
        h.poke(
            out,
            &if out == 0 {
                data(rank, n)
            } else {
                vec![0; bytes]
            },
        );
        barrier.wait();
        call();
        let want = |i: usize| (0..ranks).map(|r| element(r, i)).sum::<f32>();
        let got = h.peek(out, bytes);
        let wrong = got.chunks_exact(4).enumerate();
        let wrong = wrong.filter(|(i, b)| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) != want(*i));
        let wrong = wrong.count();
        let mut times = Vec::new();
        for _ in 0..RUNS {
            barrier.wait();
            let start = Instant::now();
            for _ in 0..calls {
                call();
            }
            times.push(start.elapsed().as_nanos() as f64 / calls as f64 / 1000.0);
        }
        times.sort_by(f64::total_cmp);
        (times[RUNS / 2], times[0], wrong)
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..ranks)
            .map(|r| {
                s.spawn({
                    let body = &body;
                    move || body(r)
                })
            })
            .collect();
        let all: Vec<_> = all.into_iter().map(|t| t.join().expect("a rank")).collect();
        let wrong = all.iter().map(|x| x.2).sum();
        (all[0].0, all[0].1, wrong)
    })
}

/// CPU time of this thread in nanoseconds: what others do to the machine does not count.
fn cpu_ns() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// Nanoseconds of software per rank and operation: all NICs stepped by one thread, so that nothing
/// waits. The best of the runs.
fn software(hosts: &[(Host, CommId)], bytes: u64) -> f64 {
    const N: usize = 20_000;
    let tickets = |d: &[Descriptor]| -> Vec<u32> {
        let posted = hosts.iter().zip(d);
        posted
            .map(|((h, _), d)| h.queue.try_post(d).expect("room"))
            .collect()
    };
    let calls: Vec<_> = hosts
        .iter()
        .map(|(_, c)| all_reduce(*c, Algorithm::Auto, bytes / 4, 0))
        .collect();
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let start = cpu_ns();
        for _ in 0..N {
            let mut open = tickets(&calls);
            let mut left = hosts.len();
            while left > 0 {
                for ((h, _), t) in hosts.iter().zip(&mut open) {
                    if *t == u32::MAX {
                        continue;
                    }
                    h.nic.step();
                    if let Some(c) = h.queue.poll(*t) {
                        assert_eq!(c.status, Status::Ok, "{c:?}");
                        (*t, left) = (u32::MAX, left - 1);
                    }
                }
            }
        }
        let ns = (cpu_ns() - start) / (N * hosts.len()) as f64;
        best = best.min(ns);
    }
    best
}

fn main() {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let mut numbers = std::env::args().filter_map(|a| a.parse::<usize>().ok());
    // `cargo test` runs benches without `--bench`: then only that it works.
    let quick = !std::env::args().any(|a| a == "--bench");
    let ranks = numbers.next().unwrap_or(2);
    let most = numbers.next().unwrap_or(if quick { 64 } else { 64 << 10 }) << 10;
    let room = (most as u64).next_multiple_of(2 << 20);
    let dir = TempDir::new();
    let hosts = hosts(ranks, 2 * room, &dir);
    for bytes in [8, 1 << 10] {
        println!(
            "software of {bytes} B, per rank {:8.0} ns",
            software(&hosts, bytes)
        );
    }
    if std::env::args().any(|a| a == "--software-only") {
        return;
    }
    println!("{ranks} ranks, f32 sum, us per call: median (best) busbw GB/s of the median");
    let sizes = [
        8,
        256,
        1 << 10,
        4 << 10,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
    ];
    for bytes in sizes
        .into_iter()
        .chain([16 << 20, 64 << 20])
        .filter(|b| *b <= most)
    {
        for out in [room, 0] {
            let place = if out == 0 { "in place" } else { "out of place" };
            print!("{bytes:>9} B {place:>12}");
            for (name, algo) in [("direct", Algorithm::Direct), ("ring", Algorithm::Ring)] {
                let (median, best, wrong) = measure(&hosts, algo, bytes, out);
                let share = 2.0 * (ranks - 1) as f64 / ranks as f64;
                let busbw = bytes as f64 * share / median / 1000.0;
                print!("   {name} {median:9.2} ({best:9.2}) {busbw:6.2} #wrong {wrong}");
                assert_eq!(wrong, 0);
            }
            println!();
        }
    }
    let info = hosts[0].0.nic.communicator_info(hosts[0].1).expect("known");
    println!("rank 0: {:?}", info.counters);
}
