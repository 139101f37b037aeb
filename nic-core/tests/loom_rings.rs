//! Every interleaving of the lock-free protocols, under the C11 memory model: the modules
//! themselves, compiled with loom's atomics.
#![allow(dead_code, unreachable_pub, missing_docs)] // The modules' other users are not here.
#![allow(unsafe_code)] // A cell that loom watches, and `CompletionWrite`, which takes an address.

mod sync {
    pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
}

#[path = "../src/slots.rs"]
mod slots;

#[path = "../src/transport/local/ring.rs"]
mod ring;

#[path = "../src/marks.rs"]
mod marks;

#[path = "../../gtlb/src/completion_write.rs"]
mod completion_write;

use completion_write::CompletionWrite;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use ringbell_nic_abi::{Completion, Descriptor, GpuVa, Opcode, Status, WorkQueueEntry};
use slots::Slots;
use sync::{AtomicU32, AtomicU64, Ordering};

struct Queue {
    sq: Vec<AtomicU64>,
    cq: Vec<AtomicU64>,
    released: Vec<AtomicU32>,
    tail: AtomicU32,
    doorbell: AtomicU32,
    /// Stands for GPU memory: written before the descriptor, read by the NIC.
    payload: Vec<AtomicU64>,
    /// What the owner of slot 0 alone touches: loom fails when a user of the slot meets the one
    /// before.
    owned: UnsafeCell<u32>,
    log2: u32,
}

// SAFETY: that `owned` is never touched by two threads at once is what the model checks.
unsafe impl Sync for Queue {}

impl Queue {
    fn new(log2: u32) -> Arc<Queue> {
        let n = 1usize << log2;
        Arc::new(Queue {
            sq: (0..n * 8).map(|_| AtomicU64::new(0)).collect(),
            cq: (0..n * 8).map(|_| AtomicU64::new(0)).collect(),
            released: (0..n as u32).map(AtomicU32::new).collect(),
            tail: AtomicU32::new(0),
            doorbell: AtomicU32::new(0),
            payload: (0..4).map(|_| AtomicU64::new(0)).collect(),
            owned: UnsafeCell::new(0),
            log2,
        })
    }

    fn slots(&self) -> Slots<'_> {
        Slots {
            sq: &self.sq,
            cq: &self.cq,
            released: &self.released,
            tail: &self.tail,
            doorbell: &self.doorbell,
            depth_log2: self.log2,
        }
    }
}

fn complete(q: &Queue, ticket: u32, bytes: u64) {
    let done = Completion {
        status: Status::Ok,
        opcode: 1,
        wr_id: 0,
        bytes,
        detail: 0,
    };
    let slots = q.slots();
    // SAFETY: the line outlives the call, and is accessed atomically alone.
    unsafe { CompletionWrite::new(slots.line(ticket).as_ptr(), done.encode(ticket)) }.store();
}

/// An entry that differs from an empty slot in every word, beside the lap.
fn full_entry(q: &Queue, ticket: u32) -> WorkQueueEntry {
    let mut d = Descriptor::new(Opcode::Send);
    (d.local_va, d.remote_va) = (GpuVa(0x1000), GpuVa(0x2000));
    (d.len, d.imm, d.operand) = (3, 4, 5);
    (d.wr_id, d.timeout_us) = (6, 7);
    d.encode(q.slots().lap(ticket))
}

fn bounded() -> loom::model::Builder {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(2);
    b.max_branches = 20_000;
    b
}

#[test]
fn a_descriptor_is_seen_with_its_payload_and_a_completion_with_its_answer() {
    bounded().check(|| {
        let q = Queue::new(1);
        let producer = {
            let q = q.clone();
            thread::spawn(move || {
                let t = q.slots().try_take().expect("free");
                q.payload[0].store(77, Ordering::Relaxed);
                q.slots().publish(t, &full_entry(&q, t));
                t
            })
        };
        // The NIC may look at any time; whenever it sees the entry, it sees all of it and the
        // payload.
        let mut seen = false;
        for _ in 0..2 {
            let entry = q.slots().peek(0).filter(|_| !seen);
            if let Some(entry) = entry {
                assert_eq!(entry, full_entry(&q, 0), "a torn entry");
                assert_eq!(q.payload[0].load(Ordering::Relaxed), 77);
                q.payload[1].store(88, Ordering::Relaxed);
                complete(&q, 0, 5);
                seen = true;
            }
            thread::yield_now();
        }
        let t = producer.join().expect("producer");
        if !seen {
            assert!(
                q.slots().peek(t).is_some(),
                "a published entry stays visible"
            );
            complete(&q, t, 5);
        }
        assert_eq!(q.slots().completion(t).map(|c| c.bytes), Some(5));
    });
}

#[test]
fn a_waiter_that_sees_the_completion_sees_the_data() {
    bounded().check(|| {
        let q = Queue::new(1);
        let nic = {
            let q = q.clone();
            thread::spawn(move || {
                q.payload[0].store(9, Ordering::Relaxed);
                complete(&q, 0, 8);
            })
        };
        if let Some(c) = q.slots().completion(0) {
            assert_eq!((c.bytes, q.payload[0].load(Ordering::Relaxed)), (8, 9));
        }
        nic.join().expect("nic");
    });
}

#[test]
fn a_released_slot_holds_no_data_of_its_last_user() {
    bounded().check(|| {
        let q = Queue::new(0);
        let t = q.slots().try_take().expect("free");
        complete(&q, t, 0);
        let last = {
            let q = q.clone();
            thread::spawn(move || {
                assert!(q.slots().completion(t).is_some());
                // SAFETY: checked by loom. Stands for every read of the line before the release.
                assert_eq!(q.owned.with(|o| unsafe { *o }), 0);
                q.slots().release(t);
            })
        };
        for _ in 0..2 {
            if q.slots().try_take() == Some(t + 1) {
                // SAFETY: checked by loom. Stands for the NIC's next completion in the line.
                q.owned.with_mut(|o| unsafe { *o = t + 1 });
            }
            thread::yield_now();
        }
        last.join().expect("the last user");
    });
}

#[test]
fn two_producers_never_share_a_ticket_nor_overrun_the_ring() {
    bounded().check(|| {
        let q = Queue::new(0);
        let take = |q: Arc<Queue>| thread::spawn(move || q.slots().try_take());
        let (a, b) = (take(q.clone()), take(q.clone()));
        let (a, b) = (a.join().expect("a"), b.join().expect("b"));
        // One slot: exactly one of them has it, until it is released.
        assert_eq!(a.is_some() as u32 + b.is_some() as u32, 1);
        let t = a.or(b).expect("one");
        complete(&q, t, 0);
        assert!(q.slots().completion(t).is_some());
        q.slots().release(t);
        assert_eq!(q.slots().try_take(), Some(t.wrapping_add(1)));
    });
}

#[test]
fn link_lines_arrive_whole_in_order_and_are_not_overwritten() {
    bounded().check(|| {
        const LINES: usize = 2;
        let memory: Arc<Vec<AtomicU64>> = Arc::new(
            (0..LINES * ring::WORDS)
                .map(|_| AtomicU64::new(0))
                .collect(),
        );
        let credit = Arc::new(AtomicU32::new(0));
        let sender = {
            let (memory, credit) = (memory.clone(), credit.clone());
            thread::spawn(move || {
                let mut p = ring::Producer::default();
                let mut sent = 0;
                for _ in 0..5 {
                    if sent < 3 && p.push(&memory, &credit, &[sent + 1; 8]) {
                        sent += 1;
                    }
                    thread::yield_now();
                }
                sent
            })
        };
        let mut c = ring::Consumer::default();
        let mut got = 0;
        for _ in 0..3 {
            if let Some(words) = c.peek(&memory) {
                got += 1;
                assert_eq!(words, [got; 8]);
                c.advance(&memory, &credit);
            }
            thread::yield_now();
        }
        let sent = sender.join().expect("sender");
        while let Some(words) = c.peek(&memory) {
            got += 1;
            assert_eq!(words, [got; 8]);
            c.advance(&memory, &credit);
        }
        assert_eq!(got, sent);
    });
}

#[test]
fn a_line_that_was_not_read_has_a_mark() {
    bounded().check(|| {
        const LINES: usize = 4;
        let memory: Arc<Vec<AtomicU64>> = Arc::new(
            (0..LINES * ring::WORDS)
                .map(|_| AtomicU64::new(0))
                .collect(),
        );
        let credit = Arc::new(AtomicU32::new(0));
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        const LINK: usize = 65;
        let sender = {
            let (memory, credit, words) = (memory.clone(), credit.clone(), words.clone());
            thread::spawn(move || {
                let mut p = ring::Producer::default();
                for line in 1..=2 {
                    assert!(p.push(&memory, &credit, &[line; 8]));
                    // As `WakeCell::announce` does.
                    sync::fence(Ordering::SeqCst);
                    marks::set(&*words, LINK);
                }
            })
        };
        let mut c = ring::Consumer::default();
        let mut got = 0;
        let mut look = |c: &mut ring::Consumer| {
            if marks::take(&words[LINK / 64]) == 1 << (LINK % 64) {
                while let Some(line) = c.peek(&memory) {
                    got += 1;
                    assert_eq!(line, [got; 8]);
                    c.advance(&memory, &credit);
                }
            }
            got
        };
        look(&mut c);
        look(&mut c);
        sender.join().expect("sender");
        assert_eq!(look(&mut c), 2, "a line waits without a mark");
    });
}
