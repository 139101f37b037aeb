//! Progress: waiting, wake-ups and their cost, and that data comes before its completion.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(unsafe_code)] // Allocations are counted.

mod nic_support;

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::{DelayedMemory, GpuView, Layout, Rng};
use ringbell_gtlb::Access;
use ringbell_nic_abi::{
    CollectiveKind, CollectiveSpec, DataType, Descriptor, GpuVa, Opcode, SessionId, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommunicatorConfig};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::{HostQueue, Nic, ProgressMode};

thread_local! {
    static COUNTING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: forwards to the system allocator; counting touches no memory that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        if COUNTING.try_with(std::cell::Cell::get).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: AllocLayout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LIMIT: Duration = Duration::from_secs(30);

fn hosts(dir: &TempDir, mode: ProgressMode) -> (Host, Host) {
    let make = |n| {
        let mut s = Setup::new(dir, n);
        s.nic.progress = mode;
        Host::new(&s)
    };
    (make(1), make(2))
}

fn ok(q: &HostQueue, t: u32) -> u64 {
    let c = q.wait(t, LIMIT).expect("completes");
    assert_eq!(c.status, Status::Ok, "{c:?}");
    c.bytes
}

#[test]
fn a_message_in_steady_state_allocates_nothing_and_wakes_no_thread() {
    let dir = TempDir::new();
    let (a, b) = hosts(&dir, ProgressMode::Manual);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let round = |len: u32, recv_first: bool| {
        let post_recv = || b.queue.try_post(&recv(r, 0, len)).expect("room");
        let (ts, tr);
        if recv_first {
            tr = post_recv();
            b.nic.step();
            ts = a.queue.try_post(&send(s, 0, len)).expect("room");
        } else {
            ts = a.queue.try_post(&send(s, 0, len)).expect("room");
            a.nic.step();
            tr = post_recv();
        }
        let (mut done_s, mut done_r) = (false, false);
        while !(done_s && done_r) {
            a.nic.step();
            b.nic.step();
            done_s = done_s || a.queue.poll(ts).is_some();
            done_r = done_r || b.queue.poll(tr).is_some();
        }
    };
    let all = || {
        for len in [8, 100, 4096, 200_000] {
            round(len, true);
        }
        round(8, false);
    };
    for _ in 0..300 {
        all();
    }
    // Steps are counted, too, and are what it takes.
    let slow = |h: &Host| {
        let s = h.nic.progress_stats();
        (s.parks, s.wakes, s.yields)
    };
    let stats = (slow(&a), slow(&b));
    COUNTING.with(|c| c.set(true));
    for _ in 0..1000 {
        all();
    }
    COUNTING.with(|c| c.set(false));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
    let after = (slow(&a), slow(&b));
    assert_eq!(stats, after, "no park, no wake-up, no yield");
}

#[test]
fn waiters_on_threads_exchange_messages_and_park_between_them() {
    let dir = TempDir::new();
    let (a, b) = hosts(&dir, ProgressMode::Waiter);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    std::thread::scope(|scope| {
        let b = &b;
        scope.spawn(move || {
            for i in 0..300u64 {
                ok(&b.queue, b.post(&recv(r, 0, 8)));
                assert_eq!(b.peek(0, 8), i.to_le_bytes());
                ok(&b.queue, b.post(&send(r, 0, 8)));
            }
        });
        for i in 0..300u64 {
            if i % 100 == 50 {
                // Long enough for the other side to fall asleep.
                std::thread::sleep(Duration::from_millis(20));
            }
            a.poke(0, &i.to_le_bytes());
            ok(&a.queue, a.post(&send(s, 0, 8)));
            ok(&a.queue, a.post(&recv(s, 64, 8)));
            assert_eq!(a.peek(64, 8), i.to_le_bytes());
        }
    });
    assert!(b.nic.progress_stats().parks > 0, "a waiter slept");
}

#[test]
fn the_progress_thread_serves_a_program_that_computes() {
    let dir = TempDir::new();
    let (a, b) = hosts(&dir, ProgressMode::Waiter);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let data = Rng::new(1).bytes(1 << 20);
    a.poke(0, &data);
    let (ts, tr) = (a.post(&send(s, 0, 1 << 20)), b.post(&recv(r, 0, 1 << 20)));
    // No thread waits; the queues are only polled.
    let start = Instant::now();
    let (mut sent, mut got) = (None, None);
    while sent.is_none() || got.is_none() {
        assert!(
            start.elapsed() < LIMIT,
            "{}{}",
            a.nic.describe(),
            b.nic.describe()
        );
        std::thread::sleep(Duration::from_millis(1));
        sent = sent.or_else(|| a.queue.poll(ts));
        got = got.or_else(|| b.queue.poll(tr));
    }
    assert!(b.peek(0, 1 << 20) == data);
}

/// Without a kernel that could ring unnoticed, the progress thread sleeps until it is notified of
/// work.
#[test]
fn an_idle_nic_sleeps_until_a_kernel_has_its_queue() {
    let dir = TempDir::new();
    let (a, b) = hosts(&dir, ProgressMode::Waiter);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let naps = |of: &Host, at_least: u64| {
        // Long enough for fifty naps; a slow machine only makes fewer.
        let before = of.nic.progress_stats().parks;
        let start = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let n = of.nic.progress_stats().parks - before;
            if n >= at_least || start.elapsed() > LIMIT {
                return n;
            }
        }
    };
    std::thread::sleep(Duration::from_millis(50));
    assert!(naps(&a, 0) < 5 && naps(&b, 0) < 5, "{}", a.nic.describe());
    // Both are woken: by the post of the host, and by the peer.
    let (ts, tr) = (a.post(&send(s, 0, 100_000)), b.post(&recv(r, 0, 100_000)));
    let start = Instant::now();
    let (mut sent, mut got) = (None, None);
    while sent.is_none() || got.is_none() {
        assert!(start.elapsed() < LIMIT, "no thread was woken");
        std::thread::sleep(Duration::from_millis(1));
        sent = sent.or_else(|| a.queue.poll(ts));
        got = got.or_else(|| b.queue.poll(tr));
    }
    // From now on a kernel may ring at any time.
    let _ = a.queue.handle();
    assert!(naps(&a, 10) >= 10);
    assert!(naps(&b, 0) < 5);
}

/// TCP over shared memory: a NIC with an idle connection makes no naps, and a peer's segment wakes
/// it.
#[test]
fn an_idle_nic_on_a_memory_port_sleeps_until_a_frame_comes() {
    let dir = TempDir::new();
    let switch = MemSwitch::shared(2, 1500, Checksums::Omitted).expect("switch");
    let [a, b] = [1u8, 2].map(|n| {
        let mut setup = Setup::new(&dir, n);
        setup.nic.progress = ProgressMode::Waiter;
        let port = switch.port(usize::from(n) - 1).expect("port");
        Host::over(&setup, Box::new(port), TcpConfig::default())
    });
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let parks = || (a.nic.progress_stats().parks, b.nic.progress_stats().parks);
    // Time for ten naps of a NIC that must look by itself.
    let asleep = || {
        let start = Instant::now();
        loop {
            let before = parks();
            std::thread::sleep(Duration::from_millis(200));
            if parks() == before {
                return;
            }
            let state = || format!("{}{}", a.nic.describe(), b.nic.describe());
            assert!(start.elapsed() < LIMIT, "still awake: {}", state());
        }
    };
    for i in 0..3u8 {
        asleep();
        a.poke(0, &[i; 1000]);
        ok(&a.queue, a.post(&send(s, 0, 1000)));
        // No thread waits on b before its NIC must have been woken by the segment.
        asleep();
        ok(&b.queue, b.post(&recv(r, 0, 1000)));
        assert_eq!(b.peek(0, 1000), [i; 1000]);
    }
    asleep();
    // The FIN is acknowledged by a NIC that sleeps and that no thread steps.
    ok(&a.queue, a.post(&close(s)));
}

#[test]
fn a_dedicated_thread_needs_no_waiter() {
    let dir = TempDir::new();
    let (a, b) = hosts(&dir, ProgressMode::Dedicated);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let tr = b.post(&recv(r, 0, 8));
    ok(&a.queue, a.post(&send_inline(s, b"dedicate")));
    ok(&b.queue, tr);
    assert_eq!(b.peek(0, 8), b"dedicate");
}

#[test]
fn unauthenticated_peers_are_dropped_and_delay_no_connection() {
    let dir = TempDir::new();
    let (a, b) = hosts(&dir, ProgressMode::Manual);
    let path = dir.path().join("10.0.0.2.sock");
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let family = rustix::net::AddressFamily::UNIX;
    let seqpacket = rustix::net::SocketType::SEQPACKET;
    let addr = rustix::net::SocketAddrUnix::new(&path).expect("path");
    let caller = || {
        let s = rustix::net::socket_with(family, seqpacket, flags, None).expect("socket");
        rustix::net::connect(&s, &addr).expect("the NIC listens");
        s
    };
    assert!(
        UnixStream::connect(&path).is_err(),
        "another type of socket"
    );
    let silent: Vec<_> = (0..20).map(|_| caller()).collect();
    let garbage = caller();
    let none = rustix::net::SendFlags::NOSIGNAL;
    rustix::net::send(&garbage, &[0x5a; 300], none).expect("send");
    let dribbler = caller();
    rustix::net::send(&dribbler, b"R", none).expect("send");
    // Meanwhile the NIC works.
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let tr = b.post(&recv(r, 0, 8));
    let ts = a.post(&send_inline(s, &[1; 8]));
    settle(&[&a, &b], &[(0, ts), (1, tr)]);
    // Each of them finds its socket closed, the silent ones after the deadline.
    let start = Instant::now();
    for s in silent.iter().chain([&garbage, &dribbler]) {
        rustix::fs::fcntl_setfl(s, rustix::fs::OFlags::NONBLOCK).expect("fcntl");
        loop {
            b.nic.step();
            match rustix::io::read(s, &mut [0u8; 16]) {
                Err(rustix::io::Errno::AGAIN) => {
                    assert!(start.elapsed() < LIMIT, "an unauthenticated peer was kept");
                }
                _ => break,
            }
        }
    }
}

#[test]
fn a_nic_of_another_job_is_unreachable() {
    let dir = TempDir::new();
    let mut sa = Setup::new(&dir, 1);
    sa.local.secret = [1; 32];
    let mut sb = Setup::new(&dir, 2);
    sb.local.secret = [2; 32];
    let (a, b) = (Host::new(&sa), Host::new(&sb));
    let hosts = [&a, &b];
    listener(&hosts, 1, 7);
    let s = session_of(call(&hosts, 0, &socket()));
    let c = call(&hosts, 0, &connect(s, Ipv4Addr::new(10, 0, 0, 2), 7));
    assert_eq!(c.status, Status::HostUnreachable);
}

/// A NIC over a memory that finishes writes late and in another order.
struct Slow {
    memory: Arc<DelayedMemory>,
    nic: Nic,
    queue: HostQueue,
}

fn slow(dir: &TempDir, n: u8, seed: u64) -> Slow {
    let s = Setup::new(dir, n);
    let memory = Arc::new(DelayedMemory::new(s.memory_bytes, seed).expect("memory"));
    let nic = Nic::builder(s.nic, memory.clone())
        .local(s.local)
        .build()
        .expect("NIC");
    let pd = nic.alloc_pd().expect("domain");
    let view = GpuView::new(memory.host(), BASE, Layout::Scattered(seed));
    nic.map(view.table()).expect("map");
    nic.register(pd, BASE, s.memory_bytes, Access::LOCAL)
        .expect("register");
    let queue = nic.create_queue(pd, s.queue).expect("queue");
    Slow { memory, nic, queue }
}

#[test]
fn data_comes_before_its_completion_on_an_asynchronous_memory() {
    for seed in 0..5 {
        let dir = TempDir::new();
        let nics = [slow(&dir, 1, seed), slow(&dir, 2, seed + 100)];
        let view = |i: usize| {
            let seed = [seed, seed + 100][i];
            GpuView::new(nics[i].memory.host(), BASE, Layout::Scattered(seed))
        };
        let wait = |i: usize, t: u32| {
            let start = Instant::now();
            loop {
                if let Some(c) = nics[i].queue.poll(t) {
                    return c;
                }
                assert!(start.elapsed() < LIMIT, "{}", nics[i].nic.describe());
                for n in &nics {
                    n.nic.step();
                }
            }
        };
        let post = |i: usize, d| nics[i].queue.try_post(&d).expect("room");
        let l = session_of(wait(1, post(1, socket())));
        wait(1, post(1, listen(l, 7)));
        let s = session_of(wait(0, post(0, socket())));
        let tc = post(0, connect(s, Ipv4Addr::new(10, 0, 0, 2), 7));
        let r = session_of(wait(1, post(1, accept(l))));
        assert_eq!(wait(0, tc).status, Status::Ok);
        let mut rng = Rng::new(seed);
        for len in [8usize, 40, 1000, 70_000] {
            let data = rng.bytes(len);
            view(0).write(GpuVa(BASE.0 + 33), &data);
            let ts = post(0, send(s, 33, len as u32));
            let tr = post(1, recv(r, 77, len as u32));
            let c = wait(1, tr);
            // The very moment the completion is visible, the bytes must be.
            let mut got = vec![0; len];
            view(1).read(GpuVa(BASE.0 + 77), &mut got);
            assert!(got == data, "completed before it was there: {len} bytes");
            assert_eq!((c.status, c.bytes), (Status::Ok, len as u64));
            assert_eq!(wait(0, ts).status, Status::Ok);
        }
    }
}

/// Both operands of a pass are read slowly, and may be the same memory: neither is forgotten while
/// the other is waited for.
#[test]
fn a_pass_over_asynchronous_memory_ends_also_where_both_operands_are_one() {
    let mut spec = CollectiveSpec::new(CollectiveKind::Combine);
    spec.dtype = DataType::I32;
    let (imm, len) = spec.encode();
    for seed in 0..4 {
        let dir = TempDir::new();
        let slow = slow(&dir, 1, seed);
        let view = GpuView::new(slow.memory.host(), BASE, Layout::Scattered(seed));
        let comm = slow.nic.create_communicator(&CommunicatorConfig {
            ctx: 5,
            rank: 0,
            peers: vec![SocketAddrV4::new([10, 0, 0, 1].into(), 0)],
            settings: CollectiveSettings::default(),
        });
        let comm = comm.expect("a communicator of one");
        // More than a block, across pages that lie apart.
        let count = 40_003_u64;
        let value = |i: u64| (i as i32).wrapping_mul(7919) + seed as i32;
        let bytes = |times: i32| -> Vec<u8> {
            let all = (0..count).flat_map(|i| value(i).wrapping_mul(times).to_ne_bytes());
            all.collect()
        };
        view.write(GpuVa(BASE.0 + 12), &bytes(1));
        let d = Descriptor {
            session: comm.session(),
            local_va: GpuVa(BASE.0 + 12),
            remote_va: GpuVa(BASE.0 + 12),
            operand: count,
            imm,
            len,
            timeout_us: 60_000_000,
            ..Descriptor::new(Opcode::Collective)
        };
        let ticket = slow.queue.try_post(&d).expect("room");
        let start = Instant::now();
        let done = loop {
            if let Some(c) = slow.queue.poll(ticket) {
                break c;
            }
            assert!(start.elapsed() < LIMIT, "{}", slow.nic.describe());
            slow.nic.step();
        };
        assert_eq!(done.status, Status::Ok);
        let mut got = vec![0; 4 * count as usize];
        view.read(GpuVa(BASE.0 + 12), &mut got);
        assert!(got == bytes(2), "seed {seed}");
    }
}

/// Runs in a child process, see the test below.
#[test]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os("RB_TEST_KILLED_CHILD") else {
        // Only a body for the child; the parent's test is the next one.
        return;
    };
    let shared = TempDir::new();
    let mut setup = Setup::new(&shared, 1);
    setup.local.directory = Some(dir.into());
    setup.nic.progress = ProgressMode::Waiter;
    let a = Host::new(&setup);
    let s = session_of(a.queue.call(&socket()).expect("socket"));
    let c = a.queue.call(&connect(s, Ipv4Addr::new(10, 0, 0, 2), 7));
    assert_eq!(c.expect("connect").status, Status::Ok);
    loop {
        let t = a.post(&send(s, 0, 4 << 20));
        let _ = a.queue.wait(t, LIMIT);
    }
}

#[test]
fn a_peer_process_killed_in_the_middle_is_a_reset() {
    let dir = TempDir::new();
    let mut setup = Setup::new(&dir, 2);
    setup.nic.progress = ProgressMode::Waiter;
    let b = Host::new(&setup);
    let l = listener(&[&b], 0, 7);
    let exe = std::env::current_exe().expect("own path");
    let mut child = std::process::Command::new(exe)
        .args(["--exact", "child_that_is_killed", "--nocapture"])
        .env("RB_TEST_KILLED_CHILD", dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("child");
    let r: SessionId = session_of(b.queue.call(&accept(l)).expect("accept"));
    for _ in 0..3 {
        ok(&b.queue, b.post(&recv(r, 0, 3 << 20)));
    }
    let killed = AtomicBool::new(false);
    let end = std::thread::scope(|scope| {
        scope.spawn(|| {
            child.kill().expect("kill");
            child.wait().expect("reap");
            killed.store(true, Ordering::Release);
        });
        loop {
            let t = b.post(&recv(r, 0, 3 << 20));
            let c = b.queue.wait(t, LIMIT).expect("never hangs");
            if c.status != Status::Ok {
                return c;
            }
        }
    });
    assert_eq!(end.status, Status::ConnectionReset);
    assert!(killed.load(Ordering::Acquire));
    // The NIC lives on.
    assert_eq!(b.queue.call(&close(r)).expect("close").status, Status::Ok);
}
