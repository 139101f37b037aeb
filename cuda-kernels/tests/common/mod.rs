//! A NIC for tests of the device header: a thread that consumes entries and writes completions.
//!
//! It uses only nic-abi and the part of the GPU that every NIC uses: it *exposes* its queues, so
//! that kernels of a real GPU reach them, and it reads and writes kernels' buffers through the GPU.
//! A session below 100 is a loop-back stream: what is sent on it can be received from it. From 100
//! on sessions are pairs: what is sent on 100 is received from 101, and back.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(unsafe_code, dead_code, unreachable_pub)] // Queues lie in memory shared with kernels; each test uses a part.

pub mod test_gpu;

use std::alloc::{alloc_zeroed, handle_alloc_error, Layout};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringbell_cuda_kernels::{Gpu, GpuBuffer, KernelArg};
use ringbell_gtlb::Exposed;
use ringbell_nic_abi::bar::{doorbell_offset, BAR_BYTES};
use ringbell_nic_abi::descriptor::{lap_bit, Descriptor, WorkQueueEntry};
use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{Completion, Flags, GpuVa, Opcode, QueueId, Status};
#[allow(unused_imports)] // Each test uses a part.
pub use test_gpu::gpu;

/// Long enough for any test on a machine shared with others.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Whole pages of the host that the GPU sees too. They are never freed: a driver ends their
/// registration later, when no kernel of another test runs, and would refuse what was allocated in
/// their place meanwhile.
struct Shared {
    base: NonNull<u8>,
    layout: Layout,
    exposed: Exposed,
}

// SAFETY: the memory is accessed through atomics alone, and never freed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(gpu: &Gpu, bytes: usize) -> Shared {
        let layout = Layout::from_size_align(bytes.next_multiple_of(4096), 4096).expect("small");
        // SAFETY: not of size 0.
        let memory = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        let exposed = gpu.memory().expose(base, layout.size());
        Shared {
            base,
            layout,
            exposed: exposed.expect("the driver pins memory"),
        }
    }

    /// Where the GPU sees the byte at `offset`.
    fn va(&self, offset: usize) -> u64 {
        self.exposed.va().0 + offset as u64
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.layout.size());
        // SAFETY: inside the memory, aligned, initialised, and accessed atomically by all threads.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.layout.size());
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

/// Memory of one queue, and the handle on it.
pub struct Queue {
    memory: Shared,
    depth_log2: u32,
    start: u32,
    timeout_us: u32,
    grace_us: u32,
}

/// Bytes of an entry, and of a completion line.
const LINE: usize = 64;

impl Queue {
    /// A queue whose first ticket is `start`, so that the wrap past 2^32 can be near.
    pub fn new(
        gpu: &Gpu,
        depth_log2: u32,
        start: u32,
        timeout_us: u32,
        grace_us: u32,
    ) -> Arc<Queue> {
        let depth = 1u32 << depth_log2;
        // The BAR, entries, completion lines, what was released, and the tail on a line of its own.
        let bytes = BAR_BYTES + depth as usize * (2 * LINE + 4) + 2 * LINE;
        let q = Queue {
            memory: Shared::new(gpu, bytes),
            depth_log2,
            start,
            timeout_us,
            grace_us,
        };
        // As a NIC leaves it: any other value could be the very one that a producer rings first.
        q.register(doorbell_offset(0))
            .store(start, Ordering::Relaxed);
        q.tail_word().store(start, Ordering::Relaxed);
        for ticket in (0..depth).map(|i| start.wrapping_add(i)) {
            let released = q.released_at() + 4 * q.slot(ticket);
            q.memory.half(released).store(ticket, Ordering::Relaxed);
            // As the lap before would have left them: neither line nor entry is valid for `ticket`.
            let old = Completion {
                status: Status::Ok,
                opcode: 0,
                wr_id: 0,
                bytes: 0,
                detail: 0,
            };
            let line = old.encode(ticket.wrapping_sub(depth))[0];
            q.line(ticket, 0).store(line, Ordering::Relaxed);
            let stale = Descriptor::new(Opcode::Nop)
                .encode(lap_bit(ticket.wrapping_sub(depth), depth_log2));
            for (i, v) in stale.0.into_iter().enumerate() {
                q.entry_word(ticket, i).store(v, Ordering::Relaxed);
            }
        }
        Arc::new(q)
    }

    fn slot(&self, ticket: u32) -> usize {
        (ticket & ((1 << self.depth_log2) - 1)) as usize
    }

    fn depth(&self) -> usize {
        1 << self.depth_log2
    }

    fn sq_at(&self) -> usize {
        BAR_BYTES
    }

    fn cq_at(&self) -> usize {
        self.sq_at() + self.depth() * LINE
    }

    fn released_at(&self) -> usize {
        self.cq_at() + self.depth() * LINE
    }

    fn tail_at(&self) -> usize {
        (self.released_at() + self.depth() * 4).next_multiple_of(LINE)
    }

    fn entry_word(&self, ticket: u32, i: usize) -> &AtomicU64 {
        self.memory
            .word(self.sq_at() + self.slot(ticket) * LINE + 8 * i)
    }

    fn line(&self, ticket: u32, i: usize) -> &AtomicU64 {
        self.memory
            .word(self.cq_at() + self.slot(ticket) * LINE + 8 * i)
    }

    fn tail_word(&self) -> &AtomicU32 {
        self.memory.half(self.tail_at())
    }

    fn register(&self, offset: usize) -> &AtomicU32 {
        self.memory.half(offset)
    }

    pub fn handle(&self) -> QueueHandle {
        QueueHandle {
            sq: self.memory.va(self.sq_at()),
            cq: self.memory.va(self.cq_at()),
            released: self.memory.va(self.released_at()),
            tail: self.memory.va(self.tail_at()),
            doorbell: self.memory.va(doorbell_offset(0)),
            bar: self.memory.va(0),
            depth_log2: self.depth_log2,
            queue: QueueId(0).0,
            default_timeout_us: self.timeout_us,
            silent_grace_us: self.grace_us,
            own: 0,
            own_next: 0,
            own_oldest: 0,
            reserved: 0,
        }
    }

    pub fn set_register(&self, offset: usize, value: u32) {
        self.register(offset).store(value, Ordering::Release);
    }

    pub fn tail(&self) -> u32 {
        self.tail_word().load(Ordering::Acquire)
    }

    fn doorbell(&self) -> u32 {
        // Acquire: pairs with the device's Release store.
        self.register(doorbell_offset(0)).load(Ordering::Acquire)
    }

    /// A whole, valid entry for `ticket`.
    fn entry(&self, ticket: u32) -> Option<WorkQueueEntry> {
        // Acquire: pairs with the Release store of the entry's first pair.
        let load = |i| self.entry_word(ticket, i).load(Ordering::Acquire);
        let e = WorkQueueEntry(std::array::from_fn(load));
        e.is_valid(lap_bit(ticket, self.depth_log2)).then_some(e)
    }

    fn complete(&self, ticket: u32, words: [u64; 4]) {
        for (i, word) in words.into_iter().enumerate().skip(1) {
            self.line(ticket, i).store(word, Ordering::Relaxed);
        }
        self.line(ticket, 0).store(words[0], Ordering::Release);
    }
}

/// How the mock misbehaves.
#[derive(Default)]
pub struct Faults {
    /// Consumes nothing at all.
    pub asleep: AtomicBool,
    /// Consumes but never completes.
    pub mute: AtomicBool,
    /// Keeps the lines of this many commands back and writes them in reverse order.
    pub reverse: AtomicU32,
    /// Completes with this unknown status code.
    pub garbage_status: AtomicBool,
    /// Sessions that accepts get, in order; without, each gets a new one at once.
    pub accepts: Mutex<Option<VecDeque<u32>>>,
}

pub struct MockNic {
    pub queue: Arc<Queue>,
    queues: Vec<Arc<Queue>>,
    pub faults: Arc<Faults>,
    /// Every descriptor seen, in order of consumption.
    pub seen: Arc<Mutex<Vec<Descriptor>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Waiting {
    queue: usize,
    ticket: u32,
    d: Descriptor,
    got: u64,
    deadline: Instant,
}

struct Engine {
    gpu: Gpu,
    queues: Vec<Arc<Queue>>,
    faults: Arc<Faults>,
    seen: Arc<Mutex<Vec<Descriptor>>>,
    /// Next ticket and last doorbell of each queue.
    next: Vec<(u32, u32)>,
    sessions: u32,
    streams: HashMap<u32, VecDeque<u8>>,
    /// Sessions whose peer has half-closed.
    ended: HashSet<u32>,
    recvs: Vec<Waiting>,
    held: Vec<(usize, u32, Completion)>,
}

impl MockNic {
    pub fn start(gpu: &Gpu, queue: Arc<Queue>) -> MockNic {
        MockNic::with(gpu, vec![queue])
    }

    /// A NIC that serves several queues.
    pub fn with(gpu: &Gpu, queues: Vec<Arc<Queue>>) -> MockNic {
        let faults = Arc::new(Faults::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut e = Engine {
            gpu: gpu.clone(),
            next: queues.iter().map(|q| (q.start, q.start)).collect(),
            queues: queues.clone(),
            faults: faults.clone(),
            seen: seen.clone(),
            sessions: 0,
            streams: HashMap::new(),
            ended: HashSet::new(),
            recvs: Vec::new(),
            held: Vec::new(),
        };
        let s = stop.clone();
        let thread = std::thread::spawn(move || {
            while !s.load(Ordering::Relaxed) {
                if !e.step() {
                    std::thread::yield_now();
                }
            }
        });
        MockNic {
            queue: queues[0].clone(),
            queues,
            faults,
            seen,
            stop,
            thread: Some(thread),
        }
    }

    pub fn handle(&self) -> KernelArg {
        self.queue.handle().into()
    }

    pub fn handle_of(&self, queue: usize) -> KernelArg {
        self.queues[queue].handle().into()
    }
}

impl Drop for MockNic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

impl Engine {
    fn step(&mut self) -> bool {
        if self.faults.asleep.load(Ordering::Relaxed) {
            return false;
        }
        let mut moved = false;
        for i in 0..self.queues.len() {
            let q = self.queues[i].clone();
            let bell = q.doorbell();
            if bell == self.next[i].1 {
                continue;
            }
            self.next[i].1 = bell;
            while let Some(e) = q.entry(self.next[i].0) {
                let ticket = self.next[i].0;
                self.next[i].0 = ticket.wrapping_add(1);
                self.accept(i, ticket, e);
                moved = true;
            }
        }
        moved | self.receive()
    }

    fn finish(
        &mut self,
        queue: usize,
        ticket: u32,
        d: &Descriptor,
        status: Status,
        bytes: u64,
        detail: u64,
    ) {
        if self.faults.mute.load(Ordering::Relaxed) {
            return;
        }
        let c = Completion {
            status,
            opcode: d.opcode.code(),
            wr_id: d.wr_id,
            bytes,
            detail,
        };
        let keep = self.faults.reverse.load(Ordering::Relaxed) as usize;
        self.held.push((queue, ticket, c));
        if self.held.len() > keep.saturating_sub(1) {
            while let Some((i, t, c)) = self.held.pop() {
                let mut words = c.encode(t);
                if self.faults.garbage_status.load(Ordering::Relaxed) {
                    words[0] |= 0xee;
                }
                self.queues[i].complete(t, words);
            }
        }
    }

    fn accept(&mut self, queue: usize, ticket: u32, e: WorkQueueEntry) {
        let d = match e.decode() {
            Ok(d) => d,
            Err(why) => {
                let none = Descriptor::new(Opcode::Nop);
                return self.finish(
                    queue,
                    ticket,
                    &none,
                    Status::BadDescriptor,
                    0,
                    why.word().into(),
                );
            }
        };
        self.seen.lock().unwrap().push(d);
        let s = d.session.0;
        match d.opcode {
            Opcode::Nop => self.finish(queue, ticket, &d, Status::Ok, 0, 0),
            Opcode::Socket => {
                self.sessions += 1;
                self.streams.insert(self.sessions, VecDeque::new());
                self.finish(queue, ticket, &d, Status::Ok, 0, self.sessions.into());
            }
            Opcode::Accept if self.faults.accepts.lock().unwrap().is_some() => {
                self.wait_for(queue, ticket, d)
            }
            Opcode::Accept => {
                self.sessions += 1;
                self.streams.insert(self.sessions, VecDeque::new());
                let peer = u64::from(0x0a00_0002u32) << 16 | 4791;
                self.finish(queue, ticket, &d, Status::Ok, peer, self.sessions.into());
            }
            Opcode::Connect if d.operand == 0xdead => {
                let to = d.operand << 16 | u64::from(d.imm & 0xffff);
                self.finish(queue, ticket, &d, Status::ConnectionRefused, 0, to);
            }
            Opcode::Shutdown => {
                self.ended.insert(if s < 100 { s } else { s ^ 1 });
                self.finish(queue, ticket, &d, Status::Ok, 0, 0);
            }
            Opcode::Listen | Opcode::Connect => self.finish(queue, ticket, &d, Status::Ok, 0, 0),
            Opcode::Close | Opcode::Abort => {
                let known = self.streams.remove(&s).is_some();
                let status = if known {
                    Status::Ok
                } else {
                    Status::BadSession
                };
                self.finish(queue, ticket, &d, status, 0, s.into());
            }
            Opcode::Send => {
                let to = if s < 100 { s } else { s ^ 1 };
                let stream = self.streams.entry(to).or_default();
                if d.flags.contains(Flags::INLINE) {
                    stream.extend(&d.inline[..d.inline_len as usize]);
                } else {
                    let mut bytes = vec![0u8; d.len as usize];
                    if !bytes.is_empty() {
                        let read = self.gpu.read(d.local_va, &mut bytes);
                        read.expect("a buffer of the GPU");
                    }
                    stream.extend(&bytes);
                }
                self.finish(queue, ticket, &d, Status::Ok, d.len.into(), 0);
            }
            Opcode::Recv => self.wait_for(queue, ticket, d),
            // No engine: what was asked for is looked at in `seen`.
            Opcode::Collective => self.finish(queue, ticket, &d, Status::Ok, 0, 0),
            // Detail: a number that identifies the call; lengths of buffers return as those of
            // results.
            Opcode::EngineAttach => self.finish(queue, ticket, &d, Status::Ok, 0, 0x1_0007),
            Opcode::EngineDetach => self.finish(queue, ticket, &d, Status::Ok, 0, 0),
            Opcode::EngineResult => self.finish(queue, ticket, &d, Status::Ok, d.len.into(), 3),
            Opcode::Put | Opcode::Get | Opcode::FetchAdd | Opcode::CompareSwap => {
                self.finish(queue, ticket, &d, Status::Ok, d.len.into(), d.operand);
            }
            Opcode::Copy => {
                let mut bytes = vec![0u8; d.len as usize];
                let copied = self.gpu.read(d.local_va, &mut bytes);
                let copied = copied.and_then(|()| self.gpu.write(d.remote_va, &bytes));
                copied.expect("buffers of the GPU");
                self.finish(queue, ticket, &d, Status::Ok, d.len.into(), 0);
            }
        }
    }

    fn wait_for(&mut self, queue: usize, ticket: u32, d: Descriptor) {
        let deadline = Instant::now() + Duration::from_micros(d.timeout_us.into());
        self.recvs.push(Waiting {
            queue,
            ticket,
            d,
            got: 0,
            deadline,
        });
    }

    fn receive(&mut self) -> bool {
        let mut moved = false;
        let mut blocked = Vec::new();
        let mut i = 0;
        while i < self.recvs.len() {
            let w = &mut self.recvs[i];
            let s = w.d.session.0;
            if w.d.opcode == Opcode::Accept {
                let next = self
                    .faults
                    .accepts
                    .lock()
                    .unwrap()
                    .as_mut()
                    .and_then(VecDeque::pop_front);
                let late = Instant::now() >= w.deadline;
                if next.is_some() || late {
                    let w = self.recvs.remove(i);
                    let status = if next.is_some() {
                        Status::Ok
                    } else {
                        Status::TimedOut
                    };
                    self.streams.entry(next.unwrap_or(0)).or_default();
                    self.finish(w.queue, w.ticket, &w.d, status, 0, next.unwrap_or(0).into());
                    moved = true;
                } else {
                    i += 1;
                }
                continue;
            }
            let first = !blocked.contains(&s);
            if first {
                if let Some(stream) = self.streams.get_mut(&s) {
                    let n = stream.len().min((u64::from(w.d.len) - w.got) as usize);
                    let bytes: Vec<u8> = stream.drain(..n).collect();
                    if n > 0 {
                        let to = GpuVa(w.d.local_va.0 + w.got);
                        self.gpu.write(to, &bytes).expect("a buffer of the GPU");
                    }
                    w.got += n as u64;
                    moved |= n > 0;
                }
            }
            let some = w.d.flags.contains(Flags::SOME) && w.got > 0;
            let all = w.got == u64::from(w.d.len);
            let empty = self.streams.get(&s).is_none_or(VecDeque::is_empty);
            let end = first && empty && self.ended.contains(&s);
            let late = Instant::now() >= w.deadline;
            if some || all || end || late {
                let w = self.recvs.remove(i);
                let status = match (some || all, end) {
                    (true, _) => Status::Ok,
                    (false, true) => Status::EndOfStream,
                    (false, false) => Status::TimedOut,
                };
                self.finish(w.queue, w.ticket, &w.d, status, w.got, 0);
                moved = true;
            } else {
                blocked.push(s);
                i += 1;
            }
        }
        moved
    }
}

/// `gpu_result` as bytes in GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuResult {
    pub status: Status,
    pub session: u32,
    pub bytes: u64,
    pub detail: u64,
}

pub fn result(buffer: &GpuBuffer, index: u64) -> GpuResult {
    let mut b = [0u8; 24];
    buffer.read(index * 24, &mut b).unwrap();
    let u32_at = |i: usize| u32::from_le_bytes(b[i..i + 4].try_into().unwrap());
    let u64_at = |i: usize| u64::from_le_bytes(b[i..i + 8].try_into().unwrap());
    GpuResult {
        status: Status::from_code(u32_at(0) as u8).expect("a known status"),
        session: u32_at(4),
        bytes: u64_at(8),
        detail: u64_at(16),
    }
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

/// Loads the kernels of `kernels/selftest.cu`.
pub fn load_selftest(gpu: &Gpu) {
    test_gpu::load(gpu, "selftest");
}
