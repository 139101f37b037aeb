//! HyperLogLog on the path of a `local` stream, in CPU time: what the NIC spends on a byte with the
//! engine, without it, and what the engine spends alone.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench engine [-- --quick]`. One thread steps
//! both NICs and nothing waits, so that scheduling and neighbours count for little (they still take
//! cache and memory bandwidth); the three take turns, and figures are medians. Every row checks its
//! bytes and the engine's registers.
#![allow(clippy::disallowed_methods)] // A bench measures with a clock.

#[path = "../../nic-core/tests/nic_support/mod.rs"]
mod nic_support;

use std::process::ExitCode;

use nic_support::*;
use ringbell_gtlb::testing::{Layout, Rng};
use ringbell_nic_abi::{SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_onc_engines::stream::hll::{HllConfig, HllEngine};
use ringbell_onc_engines::stream::StreamEngine;
use rustix::time::{clock_gettime, ClockId};

const RUNS: usize = 7;
/// Messages under way.
const WINDOW: u64 = 8;

/// Seconds that this thread has computed.
fn cpu() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn engine() -> HllEngine {
    HllEngine::new(HllConfig::default()).expect("the default is valid")
}

/// Streams `count` messages; seconds of CPU time of both NICs.
fn stream(hosts: &[Host; 2], (s, r): (SessionId, SessionId), size: u64, count: u64) -> f64 {
    let start = cpu();
    let mut tickets = std::collections::VecDeque::new();
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && tickets.len() < WINDOW as usize {
            let at = posted % WINDOW * size;
            let len = size as u32;
            let tr = hosts[1].post(&recv(r, at, len));
            tickets.push_back((hosts[0].post(&send(s, at, len)), tr));
            posted += 1;
        }
        hosts.iter().for_each(|h| {
            h.nic.step();
        });
        while let Some(&(ts, tr)) = tickets.front() {
            let (Some(a), Some(b)) = (hosts[0].queue.poll(ts), hosts[1].queue.poll(tr)) else {
                break;
            };
            assert_eq!((a.status, b.status), (Status::Ok, Status::Ok));
            tickets.pop_front();
            done += 1;
        }
    }
    cpu() - start
}

/// Messages of `size` bytes; the line, and whether bytes and registers were right.
fn row(size: u64, budget: u64) -> (String, bool) {
    let ring = WINDOW * size;
    let count = (budget / size).max(2 * WINDOW);
    let dir = TempDir::new();
    let hosts = [1, 2].map(|n| {
        let mut setup = Setup::new(&dir, n);
        setup.memory_bytes = ring.next_multiple_of(2 << 20);
        setup.layout = Layout::Mixed(n.into());
        Host::new(&setup)
    });
    let conn = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
    let items = Rng::new(7).bytes(ring as usize);
    hosts[0].poke(0, &items);
    let bytes = (count * size) as f64;
    let [mut off, mut on, mut alone] = [const { Vec::new() }; 3];
    stream(&hosts, conn, size, 2 * WINDOW);
    let mut right = true;
    for _ in 0..RUNS {
        off.push(stream(&hosts, conn, size, count) / bytes);
        let nic = &hosts[1].nic;
        let id = nic.attach_engine(conn.1, Direction::Receive, Box::new(engine()));
        let id = id.expect("attach");
        on.push(stream(&hosts, conn, size, count) / bytes);
        let got = nic.detach_engine(id).expect("there").bytes;
        let mut model = engine();
        let start = cpu();
        let mut left = count * size;
        while left > 0 {
            let n = left.min(ring);
            model.process(&items[..n as usize], &mut Vec::new());
            left -= n;
        }
        alone.push((cpu() - start) / bytes);
        let mut expected = Vec::new();
        model.result(&mut expected);
        right &= got == expected;
    }
    right &= hosts[1].peek(0, ring as usize) == items;
    let [off, on, alone] = [off, on, alone].map(median);
    let gbs = |seconds: f64| 1e-9 / seconds;
    let line = format!(
        "{:>6} KiB  engine alone {:6.2} GB/s  stream without {:6.2}  with {:6.2}  {:.2} x the smaller  {:.2} x one after the other",
        size >> 10,
        gbs(alone),
        gbs(off),
        gbs(on),
        alone.max(off) / on,
        (alone + off) / on,
    );
    (line, right)
}

fn main() -> ExitCode {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let args: Vec<String> = std::env::args().collect();
    let flag = |name: &str| args.iter().any(|a| a == name);
    // `cargo test` runs benches without `--bench`: then only that it works.
    let quick = flag("--quick") || !flag("--bench");
    let (sizes, budget): (&[u64], u64) = match quick {
        true => (&[64 << 10], 4 << 20),
        false => (&[64 << 10, 1 << 20, 16 << 20], 256 << 20),
    };
    println!("# CPU time of one thread that steps both NICs; 2^16 registers, u32 items, hash mix");
    let mut failed = false;
    for size in sizes {
        let (line, right) = row(*size, budget);
        println!("{line}");
        failed |= !right;
    }
    if failed {
        eprintln!("wrong bytes or registers");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
