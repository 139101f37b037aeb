//! The `local` transport against the machine's limits, in one run: two NICs, one thread each.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench local`. Every figure is the median of
//! several runs, and every run checks its bytes.
#![allow(clippy::disallowed_methods)] // A bench measures with the clock.
#![allow(unsafe_code)] // The memcpy that is the limit.

#[path = "../../nic-core/tests/nic_support/mod.rs"]
mod nic_support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::{HostMemory, Layout};
use ringbell_gtlb::DmaMemory;
use ringbell_nic_abi::{Descriptor, Opcode, SessionId, Status};
use ringbell_nic_core::ProgressMode;

const RUNS: usize = 7;
const LIMIT: Duration = Duration::from_secs(20);

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn ping_pong_lines() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (a, b) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    const N: u64 = 200_000;
    median(
        (0..RUNS)
            .map(|_| {
                a.0.store(0, Ordering::SeqCst);
                b.0.store(0, Ordering::SeqCst);
                std::thread::scope(|s| {
                    s.spawn(|| {
                        pin(1);
                        for i in 1..=N {
                            while a.0.load(Ordering::Acquire) != i {
                                std::hint::spin_loop();
                            }
                            b.0.store(i, Ordering::Release);
                        }
                    });
                    pin(0);
                    let start = Instant::now();
                    for i in 1..=N {
                        a.0.store(i, Ordering::Release);
                        while b.0.load(Ordering::Acquire) != i {
                            std::hint::spin_loop();
                        }
                    }
                    start.elapsed().as_nanos() as f64 / N as f64 / 2.0
                })
            })
            .collect(),
    )
}

fn memcpy_gbs(len: usize) -> f64 {
    // The same kind of memory as behind the NICs: sealed memfds, touched once.
    let [src, dst] = [1u8, 2].map(|fill| {
        let m = HostMemory::new(len as u64).expect("memory");
        m.poke(m.bus(), &vec![fill; len]).expect("in range");
        m
    });
    let at = |m: &HostMemory| m.window().expect("mapped").base;
    let (from, to) = (at(&src), at(&dst));
    let n = (256 << 20) / len;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..n {
            // SAFETY: both memories have `len` bytes, mapped while they live.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            std::hint::black_box(to);
        }
        runs.push((n * len) as f64 / start.elapsed().as_nanos() as f64);
    }
    runs.into_iter().fold(0.0, f64::max)
}

struct Pair {
    a: Host,
    b: Host,
    s: SessionId,
    r: SessionId,
    _dir: TempDir,
}

fn pair(bytes: u64) -> Pair {
    let dir = TempDir::new();
    let make = |n| {
        let mut setup = Setup::new(&dir, n);
        setup.nic.progress = ProgressMode::Waiter;
        setup.memory_bytes = bytes;
        setup.layout = Layout::Mixed(n.into());
        Host::new(&setup)
    };
    let (a, b) = (make(1), make(2));
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    // Touch every page once.
    let zeros = vec![3u8; bytes as usize];
    a.poke(0, &zeros);
    b.poke(0, &zeros);
    Pair {
        a,
        b,
        s,
        r,
        _dir: dir,
    }
}

fn ok(h: &Host, t: u32) {
    let c = h.queue.wait(t, LIMIT).expect("completes");
    assert_eq!(c.status, Status::Ok, "{c:?}");
}

fn latency(len: u32, cores: [usize; 2]) -> f64 {
    let p = pair(1 << 20);
    const N: u32 = 50_000;
    let barrier = Barrier::new(2);
    let mut runs = Vec::new();
    std::thread::scope(|scope| {
        let (p, barrier) = (&p, &barrier);
        scope.spawn(move || {
            pin(cores[1]);
            for _ in 0..RUNS {
                barrier.wait();
                for _ in 0..N {
                    ok(&p.b, p.b.post(&recv(p.r, 0, len)));
                    ok(&p.b, p.b.post(&send(p.r, 0, len)));
                }
            }
        });
        pin(cores[0]);
        for _ in 0..RUNS {
            barrier.wait();
            let start = Instant::now();
            for i in 0..N {
                if i == N - 1 {
                    p.a.poke(0, &i.to_le_bytes());
                }
                ok(&p.a, p.a.post(&send(p.s, 0, len)));
                ok(&p.a, p.a.post(&recv(p.s, 512, len)));
            }
            runs.push(start.elapsed().as_nanos() as f64 / f64::from(N) / 2.0);
            assert_eq!(p.a.peek(512, 4), (N - 1).to_le_bytes(), "wrong bytes");
        }
    });
    median(runs)
}

/// Messages of `len` bytes, `window` outstanding on each side; nanoseconds per message.
fn stream(len: u32, count: u32, window: usize, inline: bool) -> f64 {
    let p = pair((u64::from(len) * 2).next_power_of_two().max(1 << 21));
    let barrier = Barrier::new(2);
    let mut runs = Vec::new();
    let run = |h: &Host, d: &Descriptor| {
        let mut open = std::collections::VecDeque::with_capacity(window);
        for _ in 0..count {
            if open.len() == window {
                if let Some(t) = open.pop_front() {
                    ok(h, t);
                }
            }
            open.push_back(h.queue.post(d, LIMIT).expect("room"));
        }
        for t in open {
            ok(h, t);
        }
    };
    let mut pattern = vec![0u8; len as usize];
    std::thread::scope(|scope| {
        let (p, barrier) = (&p, &barrier);
        scope.spawn(move || {
            pin(1);
            for _ in 0..RUNS {
                barrier.wait();
                run(&p.b, &recv(p.r, 0, len));
                barrier.wait();
            }
        });
        pin(0);
        for i in 0..RUNS {
            pattern.fill(i as u8 + 1);
            p.a.poke(0, &pattern);
            let d = if inline {
                send_inline(p.s, &pattern)
            } else {
                send(p.s, 0, len)
            };
            barrier.wait();
            let start = Instant::now();
            run(&p.a, &d);
            barrier.wait();
            runs.push(start.elapsed().as_nanos() as f64 / f64::from(count));
            assert!(p.b.peek(0, len as usize) == pattern, "wrong bytes");
        }
    });
    median(runs)
}

/// Both NICs driven by one thread: the software's own cost per message, however busy the machine.
fn one_thread(len: u32, inline: bool) -> f64 {
    let p = pair((u64::from(len) * 2).next_power_of_two().max(1 << 21));
    pin(0);
    const BATCH: u32 = 64;
    let n = (200_000 / (len / 1024 + 1)).max(BATCH);
    let (tx, rx) = if inline {
        (send_inline(p.s, &vec![9; len as usize]), recv(p.r, 0, len))
    } else {
        (send(p.s, 0, len), recv(p.r, 0, len))
    };
    let runs = (0..RUNS).map(|_| {
        let start = Instant::now();
        for _ in 0..n / BATCH {
            let mut last = (0, 0);
            for _ in 0..BATCH {
                last = (p.b.post(&rx), p.a.post(&tx));
            }
            while p.b.queue.poll(last.0).is_none() {
                p.a.nic.step();
                p.b.nic.step();
            }
            while p.a.queue.poll(last.1).is_none() {
                p.a.nic.step();
            }
            for i in 1..BATCH {
                ok(&p.a, last.1.wrapping_sub(i));
                ok(&p.b, last.0.wrapping_sub(i));
            }
        }
        start.elapsed().as_nanos() as f64 / f64::from(n / BATCH * BATCH)
    });
    runs.fold(f64::MAX, f64::min)
}

fn nops() -> f64 {
    let p = pair(1 << 20);
    pin(0);
    const N: u32 = 200_000;
    let runs = (0..RUNS).map(|_| {
        let start = Instant::now();
        for _ in 0..N {
            ok(&p.a, p.a.post(&Descriptor::new(Opcode::Nop)));
        }
        start.elapsed().as_nanos() as f64 / f64::from(N)
    });
    median(runs.collect())
}

fn main() {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    println!(
        "software cost of an 8 B message    {:8.1} ns inline, {:.1} ns from memory (both ends, one thread, best run)",
        one_thread(8, true),
        one_thread(8, false)
    );
    for len in [64 << 10, 1 << 20, 16 << 20] {
        let copy = memcpy_gbs(len);
        let gbs = len as f64 / one_thread(len as u32, false);
        println!(
            "{:5} KiB, one thread, best run     {gbs:8.2} GB/s {:.2} x memcpy ({copy:.2})",
            len >> 10,
            gbs / copy
        );
    }
    if std::env::args().any(|a| a == "--software-only") {
        return;
    }
    let lines = ping_pong_lines();
    println!("cache-line ping-pong, one way      {lines:8.0} ns");
    let half = latency(8, [0, 1]);
    println!(
        "8 B half round trip, a core each   {half:8.0} ns  {:.2} x lines",
        half / lines
    );
    println!(
        "4 KiB half round trip              {:8.0} ns",
        latency(4096, [0, 1])
    );
    println!(
        "8 B half round trip, one core      {:8.0} ns",
        latency(8, [0, 0])
    );
    println!("empty command                      {:8.0} ns", nops());
    println!(
        "8 B messages, inline               {:8.1} ns each",
        stream(8, 1_000_000, 128, true)
    );
    println!(
        "8 B messages, from memory          {:8.1} ns each",
        stream(8, 1_000_000, 128, false)
    );
    for len in [64 << 10, 1 << 20, 16 << 20] {
        let copy = memcpy_gbs(len);
        let count = ((1usize << 30) / len).min(4000) as u32;
        let gbs = len as f64 / stream(len as u32, count, 4, false);
        println!(
            "{:5} KiB messages                 {gbs:8.2} GB/s {:.2} x memcpy ({copy:.2})",
            len >> 10,
            gbs / copy
        );
    }
}
