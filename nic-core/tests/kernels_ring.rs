//! Queues beside a GPU whose kernels have a ring, and words, of their own (docs/adr/0023): the host
//! posts beside them, and small receives arrive in the completion line.
#![allow(unsafe_code)] // Plays a kernel: stores entries and reads lines by address.
#![allow(clippy::disallowed_methods)] // Deadlines, so that a hang fails.

use crate::nic_support;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nic_support::*;
use ringbell_gtlb::testing::{HostMemory, Rng};
use ringbell_gtlb::{BusError, CompletionWrite, DmaId, DmaMemory, DmaOp, Exposed, Submitted};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::completion::{
    C_BYTES, C_DETAIL, C_LINE_VA, C_SCATTERED, C_TICKET, SCATTER_MAX,
};
use ringbell_nic_abi::descriptor::lap_bit;
use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{
    Completion, Descriptor, EventKind, Flags, GpuVa, Opcode, SessionId, Status,
};
use ringbell_nic_core::engine::Direction;
use ringbell_nic_core::{Nic, QueueConfig};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;

/// A GPU's memory that no CPU has mapped, with words for kernels.
struct Apart {
    memory: Arc<HostMemory>,
    words: Mutex<Vec<Arc<[AtomicU32]>>>,
    writes: AtomicU64,
}

impl DmaMemory for Apart {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        let writes = u64::from(matches!(op, DmaOp::Write { .. }));
        self.writes.fetch_add(writes, Ordering::Relaxed);
        self.memory.submit(op)
    }
    fn poll(&self) -> Option<DmaId> {
        self.memory.poll()
    }
    fn take(&self, id: DmaId, into: &mut [u8]) {
        self.memory.take(id, into);
    }
    fn publish(&self, completion: CompletionWrite) {
        self.memory.publish(completion);
    }
    fn device_words(&self, initial: &[u32]) -> std::io::Result<Option<Exposed>> {
        let words: Arc<[AtomicU32]> = initial.iter().map(|w| AtomicU32::new(*w)).collect();
        let va = GpuVa(words.as_ptr() as u64);
        self.words.lock().expect("unpoisoned").push(words.clone());
        Ok(Some(Exposed::pinned(va, Box::new(words))))
    }
}

/// The producer and waiter of a kernel, without its words: one thread, which counts its tickets.
struct Kernel {
    h: QueueHandle,
    next: u32,
}

impl Kernel {
    fn words(&self, base: u64, ticket: u32) -> &[AtomicU64] {
        let slot = ticket & ((1 << self.h.depth_log2) - 1);
        // SAFETY: rings of the queue, which outlives the test's kernel; they are accessed
        // atomically only.
        unsafe { std::slice::from_raw_parts((base as *const AtomicU64).add(slot as usize * 8), 8) }
    }

    fn post(&mut self, d: &Descriptor) -> u32 {
        let ticket = self.next;
        self.next = ticket.wrapping_add(1);
        let entry = d.encode(lap_bit(ticket, self.h.depth_log2));
        for (slot, word) in self.words(self.h.sq, ticket).iter().zip(entry.0) {
            slot.store(word, Ordering::Release);
        }
        // SAFETY: the doorbell, in the BAR of a NIC that lives.
        let bell = unsafe { &*(self.h.doorbell as *const AtomicU32) };
        bell.store(self.next, Ordering::Release);
        ticket
    }

    /// The line of a ticket, when it is there.
    fn line(&self, ticket: u32) -> Option<[u64; 8]> {
        let line = self.words(self.h.cq, ticket);
        let first = line[0].load(Ordering::Acquire);
        let there = C_TICKET.of(first) as u32 == ticket.wrapping_add(1);
        there.then(|| std::array::from_fn(|i| line[i].load(Ordering::Relaxed)))
    }

    fn wait(&self, hosts: &[&Host], ticket: u32) -> [u64; 8] {
        for _ in 0..10_000_000 {
            if let Some(line) = self.line(ticket) {
                return line;
            }
            hosts.iter().for_each(|h| {
                h.nic.step();
            });
        }
        panic!("no completion");
    }
}

struct Pair {
    hosts: [Host; 2],
    apart: Arc<Apart>,
    kernel: Kernel,
    _dir: TempDir,
}

/// A host whose memory is an emulated GPU's, and one beside a GPU apart, with a kernel.
fn pair() -> Pair {
    let dir = TempDir::new();
    let first = Host::new(&Setup::new(&dir, 1));
    let setup = Setup::new(&dir, 2);
    let memory = Arc::new(HostMemory::new(setup.memory_bytes).expect("memory"));
    let apart = Arc::new(Apart {
        memory: memory.clone(),
        words: Mutex::default(),
        writes: AtomicU64::new(0),
    });
    let nic = Nic::builder(setup.nic.clone(), apart.clone()).local(setup.local.clone());
    let nic = nic.build().expect("NIC");
    let pd = nic.alloc_pd().expect("domain");
    let queue = nic.create_queue(pd, setup.queue).expect("queue");
    let kernel = Kernel {
        h: queue.handle(),
        next: 0,
    };
    let second = Host {
        queue,
        memory,
        layout: setup.layout,
        nic,
        pd,
        keep: None,
    };
    second.nic.map(second.view().table()).expect("map");
    let len = setup.memory_bytes;
    second
        .nic
        .register(pd, BASE, len, setup.access)
        .expect("register");
    Pair {
        hosts: [first, second],
        apart,
        kernel,
        _dir: dir,
    }
}

impl Pair {
    fn hosts(&self) -> [&Host; 2] {
        [&self.hosts[0], &self.hosts[1]]
    }

    /// A connection from the first host to the second, made by the hosts.
    fn connected(&self, port: u16) -> (SessionId, SessionId) {
        connected(&self.hosts(), 0, 1, port)
    }

    fn writes(&self) -> u64 {
        self.apart.writes.load(Ordering::Relaxed)
    }
}

fn payload(line: &[u64; 8]) -> Vec<u8> {
    let bytes: Vec<u8> = line[5..].iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes[..C_BYTES.of(line[1]) as usize].to_vec()
}

fn status(line: &[u64; 8], ticket: u32) -> Status {
    let first = [line[0], line[1], line[2], line[3]];
    Completion::decode(first, ticket).expect("its line").status
}

#[test]
fn short_receives_of_a_kernel_arrive_in_its_completion_line() {
    let mut p = pair();
    let (tx, rx) = p.connected(7);
    let mut rng = Rng::new(5);
    // Further than the ring is deep, so that places are used again.
    for i in 0..300_u32 {
        let len = 1 + i % (SCATTER_MAX as u32 + 3);
        let bytes = rng.bytes(len as usize);
        let at = u64::from(i) * 64 + 3;
        let before = p.hosts[1].peek(at, 64);
        // Sometimes the message is there first, sometimes the receive.
        let ticket = (i % 2 == 0).then(|| p.kernel.post(&recv(rx, at, len)));
        let sent = call(&p.hosts(), 0, &send_inline(tx, &bytes));
        assert_eq!(sent.status, Status::Ok);
        let ticket = ticket.unwrap_or_else(|| p.kernel.post(&recv(rx, at, len)));
        let line = p.kernel.wait(&p.hosts(), ticket);
        assert_eq!(status(&line, ticket), Status::Ok);
        let scattered = C_SCATTERED.of(line[0]) == 1;
        assert_eq!(scattered, len as usize <= SCATTER_MAX, "{len}");
        if scattered {
            assert_eq!(C_LINE_VA.of(line[4]), BASE.0 + at);
            assert_eq!(payload(&line), bytes);
            assert_eq!(p.hosts[1].peek(at, 64), before, "the kernel stores it");
        } else {
            assert_eq!(p.hosts[1].peek(at, len as usize), bytes);
        }
    }
    assert_ne!(p.writes(), 0, "longer ones are written");
}

#[test]
fn the_host_posts_beside_its_kernels_and_its_bytes_lie_in_memory() {
    let mut p = pair();
    let (tx, rx) = p.connected(7);
    let (tx2, rx2) = p.connected(8);
    let writes = p.writes();
    for i in 0..600_u32 {
        let theirs = p.kernel.post(&recv(rx, 64, 8));
        let ours = p.hosts[1].post(&recv(rx2, 128, 8));
        let (a, b) = (u64::from(i).to_le_bytes(), (!u64::from(i)).to_le_bytes());
        call(&p.hosts(), 0, &send_inline(tx2, &b));
        call(&p.hosts(), 0, &send_inline(tx, &a));
        assert_eq!(settle(&p.hosts(), &[(1, ours)])[0].bytes, 8);
        assert_eq!(p.hosts[1].peek(128, 8), b);
        let line = p.kernel.wait(&p.hosts(), theirs);
        assert_eq!(payload(&line), a);
    }
    assert_eq!(p.writes() - writes, 600, "one for each of the host's");
    // Both are one queue: one number, one entry in the registers.
    assert_eq!(p.kernel.h.queue, p.hosts[1].queue.id().0);
    let words = p.apart.words.lock().expect("unpoisoned").len();
    assert_eq!(words, 1);
}

#[test]
fn a_receive_that_ends_half_way_returns_the_bytes_so_far() {
    let mut p = pair();
    let (tx, rx) = p.connected(7);
    let ticket = p.kernel.post(&within(recv(rx, 0, 8), 50_000));
    call(&p.hosts(), 0, &send_inline(tx, b"five!"));
    let line = p.kernel.wait(&p.hosts(), ticket);
    assert_eq!(status(&line, ticket), Status::TimedOut);
    assert_eq!(C_SCATTERED.of(line[0]), 1);
    assert_eq!(payload(&line), b"five!");
    // And one that ends with nothing has nothing.
    let (_, rx) = p.connected(8);
    let ticket = p.kernel.post(&within(recv(rx, 0, 8), 20_000));
    let line = p.kernel.wait(&p.hosts(), ticket);
    assert_eq!(status(&line, ticket), Status::TimedOut);
    assert_eq!(C_SCATTERED.of(line[0]), 0);
}

#[test]
fn nothing_is_stored_in_a_region_that_was_freed() {
    let mut p = pair();
    let (tx, rx) = p.connected(7);
    let host = &p.hosts[1];
    let at = GpuVa(BASE.0 + (4 << 20));
    let region = host
        .nic
        .register(host.pd, at, 4096, ringbell_gtlb::Access::LOCAL)
        .expect("register");
    let mut d = recv(rx, 4 << 20, 16);
    d.lkey = region.lkey;
    let ticket = p.kernel.post(&d);
    call(&p.hosts(), 0, &send_inline(tx, b"half of"));
    quiesce(&p.hosts());
    let gone = std::thread::scope(|s| {
        let nic = &p.hosts[1].nic;
        let freeing = s.spawn(move || nic.deregister(region.lkey));
        while !freeing.is_finished() {
            p.hosts().iter().for_each(|h| {
                h.nic.step();
            });
        }
        freeing.join().expect("it returns")
    });
    let line = p.kernel.wait(&p.hosts(), ticket);
    assert_eq!(status(&line, ticket), Status::RegionFreed, "{gone:?}");
    assert_eq!((C_SCATTERED.of(line[0]), C_BYTES.of(line[1])), (0, 0));
}

#[test]
fn an_engine_at_the_queue_sees_the_bytes_received_by_both_rings() {
    let mut p = pair();
    let (tx, rx) = p.connected(7);
    let host = &p.hosts[1];
    let engine = Box::new(ChecksumEngine::new());
    let id = host
        .nic
        .attach_queue_engine(host.queue.id(), Direction::Receive, engine, 1)
        .expect("attach");
    for i in 0..20_u64 {
        let ticket = (i % 2 == 0).then(|| p.kernel.post(&recv(rx, 0, 8)));
        let ours = (i % 2 == 1).then(|| p.hosts[1].post(&recv(rx, 0, 8)));
        call(&p.hosts(), 0, &send_inline(tx, &i.to_le_bytes()));
        if let Some(t) = ticket {
            p.kernel.wait(&p.hosts(), t);
        }
        if let Some(t) = ours {
            settle(&p.hosts(), &[(1, t)]);
        }
    }
    let all = p.hosts[1].nic.engines();
    let info = all.iter().find(|e| e.id == id).expect("it is there");
    assert_eq!(info.bytes_in, 160);
}

#[test]
fn malformed_entries_of_kernels_are_reported_by_queue_number() {
    let mut p = pair();
    // A second queue, so that numbers of rings and of queues are not the same.
    let host = &p.hosts[1];
    let queue = host
        .nic
        .create_queue(host.pd, QueueConfig::default())
        .expect("queue");
    let mut kernel = Kernel {
        h: queue.handle(),
        next: 0,
    };
    assert_ne!(kernel.h.doorbell, p.kernel.h.doorbell);
    let mut bad = Descriptor::new(Opcode::Nop);
    (bad.opcode, bad.flags) = (Opcode::Recv, Flags::INLINE);
    let ticket = kernel.post(&bad);
    let line = kernel.wait(&p.hosts(), ticket);
    assert_eq!(status(&line, ticket), Status::BadDescriptor);
    let told = std::iter::from_fn(|| p.hosts[1].nic.poll_event());
    let told = told.filter(|e| e.kind == EventKind::BadDescriptor as u32);
    let told: Vec<_> = told.map(|e| e.session).collect();
    assert_eq!(told, [queue.id().0]);
    // Queue and word, of the last such entry.
    let word = C_DETAIL.of(line[3]);
    let register = p.hosts[1].nic.bar_read32(Reg::BadDescriptor.offset());
    assert_eq!(register, Ok(queue.id().0 << 8 | word as u32));
    // The ring goes on, and the other queue's as well.
    for k in [&mut kernel, &mut p.kernel] {
        let after = k.post(&Descriptor::new(Opcode::Nop));
        let start = std::time::Instant::now();
        while k.line(after).is_none() {
            p.hosts[1].nic.step();
            assert!(start.elapsed() < std::time::Duration::from_secs(60));
        }
    }
}

#[test]
fn a_queue_that_is_dropped_aborts_its_kernels_operations_and_is_given_back() {
    let p = pair();
    let (tx, rx) = p.connected(8);
    let host = &p.hosts[1];
    let (queues, memory) = (Reg::Queues.offset(), host.nic.nic_memory().0);
    let before = host.nic.bar_read32(queues);
    // More than there may be at a time.
    for round in 0..200 {
        let queue = host.nic.create_queue(host.pd, QueueConfig::default());
        let queue = queue.unwrap_or_else(|e| panic!("{round}: {e}"));
        let mut kernel = Kernel {
            h: queue.handle(),
            next: 0,
        };
        let waits = kernel.post(&recv(rx, 0, 16));
        host.nic.step();
        let unseen = kernel.post(&recv(rx, 64, 16));
        drop(queue);
        // The last rings stay mapped, so that a kernel reads how its operations ended.
        for ticket in [waits, unseen] {
            let line = kernel.line(ticket).expect("it has retired");
            assert_eq!(status(&line, ticket), Status::Aborted, "{round}");
        }
    }
    assert_eq!(host.nic.bar_read32(queues), before);
    assert_eq!(host.nic.nic_memory().0, memory, "places of small receives");
    // The session goes on, on another queue.
    let got = p.hosts[1].queue.try_post(&recv(rx, 0, 5)).expect("room");
    assert_eq!(
        call(&p.hosts(), 0, &send_inline(tx, b"later")).status,
        Status::Ok
    );
    settle(&p.hosts(), &[(1, got)]);
    assert_eq!(p.hosts[1].peek(0, 5), b"later");
}
