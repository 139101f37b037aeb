//! What the engine costs per step of a program, and what a collective over messages moves per second.
//!
//! All ranks are NICs of this process over the `local` transport, stepped by one thread in turn: the
//! numbers are the engine's own work, without threads that wait. `ns/step` divides the time by the
//! steps of all ranks. Run with `cargo bench -p ringbell-nic-core --bench collective`.
#![allow(clippy::disallowed_methods)] // A measurement reads the clock.

#[path = "../tests/nic_support/mod.rs"]
mod nic_support;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use nic_support::{Host, Setup, TempDir, BASE};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, DataType, Descriptor, GpuVa, Opcode, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommId, CommStatus, CommunicatorConfig};

struct World {
    hosts: Vec<Host>,
    comms: Vec<CommId>,
    _dir: TempDir,
}

fn world(ranks: usize) -> World {
    let dir = TempDir::new();
    let hosts: Vec<_> = (0..ranks)
        .map(|r| {
            let mut s = Setup::new(&dir, r as u8 + 1);
            s.memory_bytes = 32 << 20;
            Host::new(&s)
        })
        .collect();
    let peers: Vec<_> = (0..ranks)
        .map(|r| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, r as u8 + 1), 7117))
        .collect();
    let comms: Vec<_> = (0..ranks)
        .map(|r| {
            let config = CommunicatorConfig {
                ctx: 1,
                rank: r as u32,
                peers: peers.clone(),
                settings: CollectiveSettings::default(),
            };
            hosts[r]
                .nic
                .create_communicator(&config)
                .expect("communicator")
        })
        .collect();
    let start = Instant::now();
    let ready = |h: &Host, id: CommId| h.nic.communicator_status(id) == Ok(CommStatus::Ready);
    while !hosts.iter().zip(&comms).all(|(h, id)| ready(h, *id)) {
        for h in &hosts {
            h.nic.step();
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the ranks do not meet"
        );
    }
    World {
        hosts,
        comms,
        _dir: dir,
    }
}

impl World {
    fn call(&self, kind: CollectiveKind, algo: Algorithm, count: u64) {
        let mut spec = CollectiveSpec::new(kind);
        (spec.algo, spec.dtype) = (algo, DataType::F32);
        let (imm, len) = spec.encode();
        let post = |(h, id): (&Host, &CommId)| {
            h.post(&Descriptor {
                session: id.session(),
                local_va: BASE,
                remote_va: GpuVa(BASE.0 + (16 << 20)),
                operand: count,
                imm,
                len,
                ..Descriptor::new(Opcode::Collective)
            })
        };
        let tickets: Vec<u32> = self.hosts.iter().zip(&self.comms).map(post).collect();
        let mut left: Vec<_> = self.hosts.iter().zip(tickets).collect();
        while !left.is_empty() {
            for h in &self.hosts {
                h.nic.step();
            }
            left.retain(|(h, t)| match h.queue.poll(*t) {
                Some(c) => {
                    assert_eq!(c.status, Status::Ok, "{c:?}");
                    false
                }
                None => true,
            });
        }
    }

    fn steps(&self) -> u64 {
        let of = |(h, id): (&Host, &CommId)| {
            h.nic.communicator_info(*id).map_or(0, |i| i.counters.steps)
        };
        self.hosts.iter().zip(&self.comms).map(of).sum()
    }
}

/// Median time of one call over several samples of `calls` calls, and the steps of one call.
fn measure(w: &World, kind: CollectiveKind, algo: Algorithm, count: u64, calls: u32) -> (f64, f64) {
    w.call(kind, algo, count);
    let before = w.steps();
    let mut times: Vec<f64> = (0..7)
        .map(|_| {
            let t = Instant::now();
            for _ in 0..calls {
                w.call(kind, algo, count);
            }
            t.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let steps = (w.steps() - before) as f64 / (7.0 * f64::from(calls));
    (times[3], steps)
}

fn main() {
    println!(
        "# software NIC, ranks of one process stepped in turn by one thread; median of 7 samples"
    );
    println!(
        "{:>5} {:>18} {:>18} {:>10} {:>11} {:>9} {:>9}",
        "ranks", "collective", "algorithm", "bytes", "us/call", "steps", "ns/step"
    );
    for ranks in [2usize, 4, 8] {
        let w = world(ranks);
        // Distinct data on every rank, checked after the runs.
        for (r, h) in w.hosts.iter().enumerate() {
            let v: Vec<u8> = (0..1u32 << 20)
                .flat_map(|i| ((i % 1000) as f32 + r as f32).to_le_bytes())
                .collect();
            h.poke(0, &v);
        }
        let rows = [
            (
                CollectiveKind::Barrier,
                Algorithm::RecursiveDoubling,
                0,
                500,
            ),
            (CollectiveKind::AllReduce, Algorithm::Ring, 16, 500),
            (
                CollectiveKind::AllReduce,
                Algorithm::RecursiveDoubling,
                16,
                500,
            ),
            (CollectiveKind::AllReduce, Algorithm::Ring, 16 << 10, 100),
            (CollectiveKind::AllReduce, Algorithm::Ring, 1 << 20, 8),
        ];
        for (kind, algo, count, calls) in rows {
            let (ns, steps) = measure(&w, kind, algo, count, calls);
            let (kind, algo) = (format!("{kind:?}"), format!("{algo:?}"));
            println!(
                "{ranks:>5} {kind:>18} {algo:>18} {:>10} {:>11.2} {steps:>9.1} {:>9.0}",
                count * 4,
                ns / 1e3,
                ns / steps
            );
        }
        let n = ranks as f32;
        let mut wrong = 0;
        for h in &w.hosts {
            let got = h.peek(16 << 20, 4 << 20);
            for (i, c) in got.chunks_exact(4).enumerate() {
                let want = (i % 1000) as f32 * n + n * (n - 1.0) / 2.0;
                wrong += u32::from(f32::from_le_bytes([c[0], c[1], c[2], c[3]]) != want);
            }
        }
        println!("#wrong {wrong}");
        assert_eq!(wrong, 0);
    }
}
