//! All-reduce between NICs of one host over host memory that peers map and over a program's own, in
//! turns.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench host_memory [-- RANKS [MAX_KIB
//! [ROUNDS]]]`. Memory of `Nic::alloc_host` is *mapped* by peers. *Ordinary* memory,
//! `Nic::adopt_host`, goes through windows in NIC memory. A call is timed between a barrier and the
//! last rank's completion. `written`: every rank writes its operand before the call, as programs
//! do. `kept`: it does not, and mapped operands stay in the caches of the cores that reduce them.
//! Results are verified after each turn. On a busy machine, `chrt -f 10` keeps both cores for the
//! second that it takes.
#![allow(clippy::disallowed_methods)] // A bench measures with the clock.

#[path = "../../nic-core/tests/nic_support/mod.rs"]
mod nic_support;

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Algorithm, CollectiveKind, CollectiveSpec, Descriptor, Opcode, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus, CommunicatorConfig};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{HostBuffer, ProgressMode};

const LIMIT: Duration = Duration::from_secs(60);

/// A barrier of threads that spin.
struct Gate {
    ranks: usize,
    came: AtomicUsize,
}

impl Gate {
    fn pass(&self, turn: &mut usize) {
        *turn += 1;
        // AcqRel and Acquire: what a rank did before the barrier happens before what others do
        // after it.
        self.came.fetch_add(1, Ordering::AcqRel);
        while self.came.load(Ordering::Acquire) < *turn * self.ranks {
            match self.ranks > 2 {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
    }
}

/// A rank: its NIC, and an operand of each kind.
struct Rank {
    host: Host,
    comm: CommId,
    operands: [HostBuffer; 2],
}

const KINDS: [&str; 2] = ["mapped", "ordinary"];
const WAYS: [&str; 2] = ["written", "kept"];

fn ranks(n: usize, bytes: usize, dir: &TempDir) -> Vec<Rank> {
    let hosts: Vec<Host> = (0..n)
        .map(|r| {
            let mut setup = Setup::new(dir, r as u8 + 1);
            setup.nic.progress = ProgressMode::Waiter;
            Host::new(&setup)
        })
        .collect();
    let peers: Vec<_> = hosts
        .iter()
        .map(|h| SocketAddrV4::new(h.nic.config().ip, 7000))
        .collect();
    let comms: Vec<CommId> = hosts
        .iter()
        .enumerate()
        .map(|(rank, h)| {
            let config = CommunicatorConfig {
                ctx: 1,
                rank: rank as u32,
                peers: peers.clone(),
                settings: CollectiveSettings::default(),
            };
            h.nic.create_communicator(&config).expect("communicator")
        })
        .collect();
    let start = Instant::now();
    loop {
        let ready = hosts.iter().zip(&comms).filter(|(h, id)| {
            h.nic.step();
            h.nic.communicator_status(**id) == Ok(CommStatus::Ready)
        });
        if ready.count() == n {
            break;
        }
        assert!(start.elapsed() < LIMIT, "the ranks did not find each other");
    }
    let operands = |h: &Host| {
        let access = Access::COLLECTIVE;
        let mapped = h.nic.alloc_host(h.pd, bytes, access);
        let ordinary = h.nic.adopt_host(h.pd, vec![0; bytes], access);
        [mapped.expect("memory"), ordinary.expect("memory")]
    };
    hosts
        .into_iter()
        .zip(comms)
        .map(|(host, comm)| Rank {
            operands: operands(&host),
            host,
            comm,
        })
        .collect()
}

fn call(rank: &Rank, kind: usize, count: usize) {
    let (imm, len) = CollectiveSpec {
        algo: Algorithm::Auto,
        ..CollectiveSpec::new(CollectiveKind::AllReduce)
    }
    .encode();
    let at = rank.operands[kind].va();
    let d = Descriptor {
        session: rank.comm.session(),
        local_va: at,
        remote_va: at,
        operand: count as u64,
        imm,
        len,
        timeout_us: 60_000_000,
        ..Descriptor::new(Opcode::Collective)
    };
    let t = rank.host.queue.try_post(&d).expect("room");
    let c = rank.host.queue.wait(t, LIMIT).expect("completes");
    assert_eq!(c.status, Status::Ok, "{c:?}");
}

fn fill(rank: &Rank, kind: usize, bytes: &[u8]) {
    rank.operands[kind].write(0, bytes).expect("room");
}

/// Wrong elements of the result.
fn wrong(rank: &Rank, kind: usize, count: usize, want: impl Fn(usize) -> f32) -> usize {
    let mut got = vec![0; count * 4];
    rank.operands[kind].read(0, &mut got).expect("room");
    let got = got.as_chunks::<4>().0.iter().enumerate();
    got.filter(|(i, b)| f32::from_le_bytes(**b) != want(*i))
        .count()
}

/// Microseconds of the calls of each way and kind, in turns: of the slowest rank.
fn measure(all: &[Rank], bytes: usize, rounds: usize) -> ([[Vec<f64>; 2]; 2], usize) {
    let count = bytes / 4;
    let calls = (1_000_000 / (bytes + 2000)).clamp(8, 40);
    let gate = Gate {
        ranks: all.len(),
        came: AtomicUsize::new(0),
    };
    let times: Mutex<Vec<Vec<Vec<f64>>>> = Mutex::new(vec![Vec::new(); all.len()]);
    let bad = AtomicUsize::new(0);
    let element = |rank: usize, i: usize| ((i * 7 + rank * 13) % 32) as f32;
    std::thread::scope(|s| {
        for (r, rank) in all.iter().enumerate() {
            let (gate, times, bad) = (&gate, &times, &bad);
            s.spawn(move || {
                let data: Vec<u8> = (0..count)
                    .flat_map(|i| element(r, i).to_le_bytes())
                    .collect();
                let zeros = vec![0; bytes];
                let want = |i: usize| (0..all.len()).map(|r| element(r, i)).sum::<f32>();
                let mut turn = 0;
                let mut mine = vec![Vec::new(); 4];
                for round in 0..=rounds {
                    for kind in 0..2 {
                        for way in 0..2 {
                            if way == 1 {
                                fill(rank, kind, &zeros);
                                call(rank, kind, count);
                            }
                            for c in 0..calls {
                                if way == 0 {
                                    fill(rank, kind, &data);
                                }
                                gate.pass(&mut turn);
                                let start = Instant::now();
                                call(rank, kind, count);
                                if round > 0 && c > 0 {
                                    mine[way * 2 + kind]
                                        .push(start.elapsed().as_nanos() as f64 / 1e3);
                                }
                            }
                            gate.pass(&mut turn);
                            let n = match way {
                                0 => wrong(rank, kind, count, want),
                                _ => wrong(rank, kind, count, |_| 0.0),
                            };
                            bad.fetch_add(n, Ordering::Relaxed);
                        }
                    }
                }
                times.lock().expect("lives")[r] = mine;
            });
        }
    });
    let times = times.into_inner().expect("lives");
    let slowest = |at: usize| -> Vec<f64> {
        (0..times[0][at].len())
            .map(|i| times.iter().map(|t| t[at][i]).fold(0.0, f64::max))
            .collect()
    };
    let all = [[slowest(0), slowest(1)], [slowest(2), slowest(3)]];
    (all, bad.into_inner())
}

/// Median and first decile.
fn summary(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() / 10])
}

fn main() {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let mut numbers = std::env::args().filter_map(|a| a.parse::<usize>().ok());
    // `cargo test` runs benches without `--bench`: then only that it works.
    let quick = !std::env::args().any(|a| a == "--bench");
    let n = numbers.next().unwrap_or(2);
    let most = numbers.next().unwrap_or(if quick { 128 } else { 16 << 10 }) << 10;
    let rounds = numbers.next().unwrap_or(if quick { 1 } else { 15 });
    let dir = TempDir::new();
    let all = ranks(n, most, &dir);
    println!("all-reduce in place, {n} ranks, f32, us per call: median (first decile)");
    for bytes in [
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
        16 << 20,
        64 << 20,
    ]
    .into_iter()
    .filter(|b| *b <= most)
    {
        let (mut times, bad) = measure(&all, bytes, rounds);
        for (way, times) in WAYS.into_iter().zip(&mut times) {
            let [mapped, ordinary] = times;
            let (m, o) = (summary(mapped), summary(ordinary));
            println!(
                "{bytes:>9} B {way:>8}   {} {:9.1} ({:9.1})   {} {:9.1} ({:9.1})   ratio {:5.2} ({:5.2})",
                KINDS[0], m.0, m.1, KINDS[1], o.0, o.1, o.0 / m.0, o.1 / m.1
            );
        }
        println!("{:>9}   #wrong {bad}", "");
        assert_eq!(bad, 0);
    }
    let info = all[0].host.nic.communicator_info(all[0].comm);
    println!("rank 0: {:?}", info.expect("known").counters);
}
