//! Taps of long messages beside the copy: results equal those of one thread, and a panic or hang of
//! a tap ends neither stream nor NIC.

#![allow(clippy::disallowed_methods)] // Deadlines, so that a hang fails.

use crate::engine_support;
use crate::nic_support;

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

use engine_support::*;
use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Descriptor, EngineId, EventKind, SessionId, Status};
use ringbell_nic_core::engine::{Direction, EngineUseError};
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::{EngineThread, Nic};
use ringbell_onc_engines::stream::{EngineError, Registry, StreamEngine};

/// Where the receiver's memory gets the stream.
const TO: u64 = 16 << 20;
const WORKER: &str = "ringbell-engine";

/// Two NICs over `local`; the second one's engines run as given.
fn pair(thread: EngineThread) -> (TempDir, [Host; 2]) {
    let dir = TempDir::new();
    let hosts = [1, 2].map(|n| {
        let mut setup = Setup::new(&dir, n);
        setup.memory_bytes = 32 << 20;
        setup.nic.engine_thread = thread;
        Host::new(&setup)
    });
    (dir, hosts)
}

/// A tap with another inside, which notes the threads that call it.
struct Noted {
    inner: Box<dyn StreamEngine>,
    threads: Arc<Mutex<BTreeSet<String>>>,
}

fn noted(spec: &str, threads: &Arc<Mutex<BTreeSet<String>>>) -> Box<dyn StreamEngine> {
    Box::new(Noted {
        inner: Registry::builtin().make(spec).expect("a good text"),
        threads: threads.clone(),
    })
}

impl StreamEngine for Noted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn declared_rate(&self) -> f64 {
        self.inner.declared_rate()
    }
    fn is_tap(&self) -> bool {
        true
    }
    fn output_bound(&self, _input: usize) -> usize {
        0
    }
    fn process(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let name = std::thread::current().name().unwrap_or("-").to_owned();
        self.threads.lock().expect("no panic").insert(name);
        self.inner.process(input, out);
    }
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
        self.inner.finish(out)
    }
    fn result(&self, into: &mut Vec<u8>) {
        self.inner.result(into);
    }
    fn reset(&mut self) {
        self.inner.reset();
    }
}

/// A tap that calls a function for each piece.
struct Calls<F>(F);

impl<F: FnMut(&[u8]) + Send> StreamEngine for Calls<F> {
    fn name(&self) -> &'static str {
        "calls"
    }
    fn declared_rate(&self) -> f64 {
        1.0
    }
    fn is_tap(&self) -> bool {
        true
    }
    fn output_bound(&self, _input: usize) -> usize {
        0
    }
    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        self.0(input);
    }
    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        Ok(())
    }
    fn result(&self, into: &mut Vec<u8>) {
        into.push(1);
    }
    fn reset(&mut self) {}
}

/// Lengths that add up to `total`: mostly long, some of a few bytes.
fn cut(rng: &mut Rng, mut total: u64) -> Vec<u64> {
    let mut out = Vec::new();
    while total > 0 {
        let longest = [9, 5_000, 700_000, 3 << 20][rng.below(4) as usize];
        let n = (1 + rng.below(longest)).min(total);
        out.push(n);
        total -= n;
    }
    out
}

/// Carries `len` bytes of the sender's memory over each connection, in random pieces on both sides.
fn carry(hosts: &[Host; 2], conns: &[(SessionId, SessionId)], len: u64, rng: &mut Rng) {
    // What is still to be posted, and what has been, for each side of each connection.
    let mut sides = Vec::new();
    for (i, (s, r)) in conns.iter().enumerate() {
        for (host, base) in [(0, 0), (1, TO)] {
            let mut at = base + i as u64 * len;
            let make = |n: u64| {
                let d = match host {
                    0 => send(*s, at, n as u32),
                    _ => recv(*r, at, n as u32),
                };
                at += n;
                d
            };
            let work: VecDeque<Descriptor> = cut(rng, len).into_iter().map(make).collect();
            sides.push((host, work, VecDeque::new()));
        }
    }
    let start = Instant::now();
    while !sides.is_empty() {
        for (host, work, posted) in &mut sides {
            while posted.len() < 8 && !work.is_empty() {
                posted.extend(work.pop_front().map(|d| hosts[*host].post(&d)));
            }
            hosts[*host].nic.step();
            while let Some(c) = posted.front().and_then(|t| hosts[*host].queue.poll(*t)) {
                assert_eq!(c.status, Status::Ok, "{c:?}");
                posted.pop_front();
            }
        }
        sides.retain(|(_, work, posted)| !(work.is_empty() && posted.is_empty()));
        assert!(start.elapsed().as_secs() < 60, "the streams hang");
    }
}

#[test]
fn results_and_bytes_are_those_of_one_thread() {
    const LEN: u64 = 6 << 20;
    let mut results = Vec::new();
    for thread in [EngineThread::Off, EngineThread::Always, EngineThread::Auto] {
        let (_dir, hosts) = pair(thread);
        let nic = &hosts[1].nic;
        let threads = Arc::default();
        let conns = [7, 8].map(|port| connected(&[&hosts[0], &hosts[1]], 0, 1, port));
        // One at each stream, and one that both share; its items of four bytes must not be mixed.
        let own = ["hll:p=14", "checksum|hll:p=12"].into_iter().zip(conns);
        let own = own.map(|(spec, (_, r))| {
            let id = nic.attach_engine(r, Direction::Receive, noted(spec, &threads));
            id.expect("attach")
        });
        let mut ids: Vec<_> = own.collect();
        let queue = hosts[1].queue.id();
        let shared = nic.attach_queue_engine(queue, Direction::Receive, noted("hll", &threads), 4);
        ids.push(shared.expect("attach"));
        let mut rng = Rng::new(21);
        let mut outcomes = Vec::new();
        for round in 0..3 {
            let data = Rng::new(50 + round).bytes(2 * LEN as usize);
            hosts[0].poke(0, &data);
            carry(&hosts, &conns, LEN, &mut rng);
            assert!(hosts[1].peek(TO, data.len()) == data, "{thread:?}: bytes");
            // They are asked in the middle of the streams, too.
            let asked = ids
                .iter()
                .map(|id| nic.engine_result(*id).expect("a result"));
            outcomes.push(asked.map(|r| (r.bytes, r.cut)).collect::<Vec<_>>());
        }
        let last = ids.iter().map(|id| nic.detach_engine(*id).expect("there"));
        outcomes.push(last.map(|r| (r.bytes, r.cut)).collect());
        let info: Vec<_> = nic.engines();
        assert!(info.is_empty(), "{info:?}");
        let threads = threads.lock().expect("no panic").contains(WORKER);
        match thread {
            EngineThread::Off => assert!(!threads),
            EngineThread::Always => assert!(threads),
            EngineThread::Auto => {}
        }
        results.push(outcomes);
    }
    assert!(results[0] == results[1], "beside the copy");
    assert!(results[0] == results[2], "now here, now there");
}

/// Sends `len` bytes as one message, with these engines on the path and on the queue.
fn one_message(hosts: &[Host; 2], (s, r): (SessionId, SessionId), len: u32) -> Vec<u8> {
    let data = Rng::new(u64::from(len)).bytes(len as usize);
    hosts[0].poke(0, &data);
    let tickets = [
        (0, hosts[0].post(&send(s, 0, len))),
        (1, hosts[1].post(&recv(r, TO, len))),
    ];
    for c in settle(&[&hosts[0], &hosts[1]], &tickets) {
        assert_eq!((c.status, c.bytes), (Status::Ok, u64::from(len)), "{c:?}");
    }
    assert!(hosts[1].peek(TO, data.len()) == data, "bytes");
    data
}

/// The engine has no result, and the host was told so once.
fn assert_failed(nic: &Nic, id: EngineId) {
    assert_eq!(nic.engine_result(id), Err(EngineUseError::Failed { id }));
    let infos = nic.engines();
    assert!(infos.iter().any(|i| i.id == id && i.failed), "{infos:?}");
    let events = std::iter::from_fn(|| nic.poll_event());
    let kind = EventKind::EngineError.code();
    let told = events.filter(|e| e.kind == kind && e.session == id.0);
    assert_eq!(told.count(), 1);
}

#[test]
fn a_tap_that_panics_beside_the_copy_is_bypassed_and_the_other_sees_every_byte() {
    let (_dir, hosts) = pair(EngineThread::Always);
    let conn = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
    let nic = &hosts[1].nic;
    let brittle = Box::new(Brittle {
        how: How::After(1_500_000),
        seen: 0,
        tap: true,
    });
    let bad = nic.attach_engine(conn.1, Direction::Receive, brittle);
    let bad = bad.expect("attach");
    let threads = Arc::default();
    let queue = hosts[1].queue.id();
    let good = nic.attach_queue_engine(queue, Direction::Receive, noted("hll", &threads), 4);
    let good = good.expect("attach");
    let mut data = one_message(&hosts, conn, 4 << 20);
    data.extend(one_message(&hosts, conn, (3 << 20) + 5));
    assert_failed(nic, bad);
    let got = nic.detach_engine(good).expect("a result");
    // A shared engine gets whole items.
    let whole = &data[..data.len() - data.len() % 4];
    assert!(got.bytes == model("hll", whole, false).1);
    assert_eq!(got.cut, Some(1));
    let threads = threads.lock().expect("no panic");
    assert!(threads.contains(WORKER), "{threads:?}");
}

#[test]
fn a_tap_that_hangs_has_failed_and_the_nic_goes_on() {
    let (dir, hosts) = pair(EngineThread::Always);
    let conn = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
    let nic = &hosts[1].nic;
    let (release, wait) = mpsc::channel::<()>();
    let ended = Arc::new(AtomicBool::new(false));
    let mark = OnDrop(ended.clone());
    let mut calls = 0;
    let hangs = Calls(move |_: &[u8]| {
        let _held = &mark;
        calls += 1;
        if calls == 30 {
            // Until the test is over: the sender is dropped.
            let _ = wait.recv();
        }
    });
    let id = nic.attach_engine(conn.1, Direction::Receive, Box::new(hangs));
    let id = id.expect("attach");
    one_message(&hosts, conn, 4 << 20);
    assert_failed(nic, id);
    assert_eq!(nic.detach_engine(id), Err(EngineUseError::Failed { id }));
    // The next one runs on the thread of the copy.
    let threads = Arc::default();
    let next = nic.attach_engine(conn.1, Direction::Receive, noted("hll", &threads));
    let data = one_message(&hosts, conn, 3 << 20);
    let got = nic.detach_engine(next.expect("attach")).expect("a result");
    assert!(got.bytes == model("hll", &data, false).1);
    assert!(!threads.lock().expect("no panic").contains(WORKER));
    // Nor does the NIC wait for the thread when it ends.
    drop((hosts, dir));
    assert!(!ended.load(Ordering::Acquire));
    drop(release);
    assert!(soon(|| ended.load(Ordering::Acquire)));
}

/// Notes that a value, or a thread that keeps it, has ended.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

thread_local! {
    static OF_THE_THREAD: RefCell<Option<OnDrop>> = const { RefCell::new(None) };
}

fn soon(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() && start.elapsed().as_secs() < 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    done()
}

#[test]
fn a_nic_that_ends_under_a_long_message_ends_the_engine_and_its_thread() {
    let (_dir, [a, b]) = pair(EngineThread::Always);
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    let (engine, thread) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (mark, of_thread) = (OnDrop(engine.clone()), thread.clone());
    let seen = Arc::new(AtomicU64::new(0));
    let count = seen.clone();
    let slow = Calls(move |bytes: &[u8]| {
        let _held = &mark;
        OF_THE_THREAD.with_borrow_mut(|t| {
            t.get_or_insert_with(|| OnDrop(of_thread.clone()));
        });
        std::thread::sleep(Duration::from_millis(1));
        count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    });
    let id = b.nic.attach_engine(r, Direction::Receive, Box::new(slow));
    id.expect("attach");
    a.post(&send(s, 0, 12 << 20));
    let receive = b.post(&recv(r, TO, 12 << 20));
    while seen.load(Ordering::Relaxed) == 0 {
        a.nic.step();
        b.nic.step();
    }
    assert!(b.queue.poll(receive).is_none(), "in the middle of it");
    drop(b);
    assert!(engine.load(Ordering::Acquire) && thread.load(Ordering::Acquire));
}

#[test]
fn a_receive_whose_deadline_passes_has_the_bytes_that_its_tap_has_seen() {
    let (_dir, hosts) = pair(EngineThread::Always);
    let (s, r) = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
    let nic = &hosts[1].nic;
    let seen = Arc::new(AtomicU64::new(0));
    let count = seen.clone();
    let counts = Calls(move |bytes: &[u8]| {
        count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    });
    let id = nic.attach_engine(r, Direction::Receive, Box::new(counts));
    let id = id.expect("attach");
    hosts[0].post(&send(s, 0, 12 << 20));
    let receive = Descriptor {
        timeout_us: 50_000,
        ..recv(r, TO, 12 << 20)
    };
    let receive = hosts[1].post(&receive);
    let step = |ms: u64| {
        hosts
            .each_ref()
            .map(|h| h.nic.step_at(NicTime(ms * 1_000_000)))
    };
    for _ in 0..100 {
        step(1);
        if seen.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(
        hosts[1].queue.poll(receive).is_none(),
        "in the middle of it"
    );
    // The time-out starts with the step after the one that has taken the descriptor.
    step(2);
    step(60);
    let c = hosts[1]
        .queue
        .poll(receive)
        .expect("its deadline has passed");
    assert_eq!(c.status, Status::TimedOut, "{c:?}");
    assert!(c.bytes > 0 && c.bytes < 12 << 20, "{c:?}");
    assert_eq!(seen.load(Ordering::Relaxed), c.bytes);
    let info = nic.engines();
    assert_eq!((info[0].id, info[0].bytes_in), (id, c.bytes));
}
