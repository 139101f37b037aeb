//! A block as a stepper: [`Block::step`] lets its threads run as far as they can, and returns.
//!
//! Nothing in here waits or reads a clock: who drives it gives the time ([`Clock`]) and the order
//! of threads ([`Order`]). A thread that loops at memory which others write gives way when its
//! budget is spent, so that each thread of each resident block gets on.
#![allow(unsafe_code)] // Calls compiled code, and hands it memory of the block.

mod bulk;
mod helpers;
mod lanes;
pub(crate) mod matrix;
mod phase;
mod print;
mod sync;
mod wait;
mod waits;
mod warp;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

pub(crate) use bulk::{bulk, Transfer};
pub(crate) use helpers::*;
pub(crate) use phase::*;
pub use wait::{Until, Wait, WaitFor};
pub(crate) use waits::SITE_BITS;
pub(crate) use warp::code;

use crate::check::{BlockTrace, Trace, Watch};
use crate::code::{Kernel, Shape};
use crate::context::{mark, why, BlockState, Surroundings, Thread, ALIGNED, BUDGET};
use crate::memory::{Clock, Memory, Output};
use crate::module::Site;
use lanes::{each, Lanes};
use sync::Place;

/// The order in which a block's warps run: with seed 0 ascending, else another rotation in each
/// round.
#[derive(Debug, Clone, Copy)]
pub struct Order(u64);

impl Order {
    /// By its seed.
    pub fn new(seed: u64) -> Order {
        Order(seed)
    }

    /// The next choice among `n`, which is not 0.
    pub fn next(&mut self, n: usize) -> usize {
        if self.0 == 0 {
            return 0;
        }
        // xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// All threads have ended.
    Done,
    /// Threads have moved on, and others can.
    Running,
    /// The same, and a thread has written what others may wait for, before it waits itself.
    Published,
    /// Threads only looked at memory in loops: let other blocks run.
    Spinning,
    /// All threads that could run sleep until this time, in nanoseconds.
    Sleeping(u64),
    /// The block was ended.
    Failed(Box<Fault>),
}

/// Why a block was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Index of the block.
    pub block: [u32; 3],
    /// Index of the thread in it.
    pub thread: [u32; 3],
    /// Where.
    pub site: Site,
    /// Of a block in which no thread can run: where they stand.
    pub waits: Vec<Wait>,
}

/// What ended a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside of every memory that the thread may use, or one that is not aligned.
    Access {
        /// Where to; of shared and local memory the offset in it.
        address: u64,
        /// Bytes.
        bytes: u32,
        /// Whether it was a store or atomic operation.
        store: bool,
        /// Name of the state space.
        space: &'static str,
        /// Where the address lies, next to what is allocated.
        near: Option<String>,
    },
    /// `trap`.
    Trap,
    /// Calls that are nested too deep, or too much memory of the stack.
    StackOverrun,
    /// `__assertfail`, whose words were printed.
    Assertion,
    /// No thread can run: so many wait at a barrier, so many for lanes of their warp.
    Stuck {
        /// At a barrier.
        barrier: u32,
        /// At a warp operation.
        warp: u32,
    },
    /// The launch was told to end.
    Stopped,
}

/// A block's threads and memory; used for one block after the other.
pub struct Block {
    kernel: Arc<Kernel>,
    state: Box<BlockState>,
    threads: Vec<Thread>,
    /// Of checked code: the maps of shared and local memory.
    _maps: [Vec<u8>; 2],
    /// 16-byte units, so that every variable is aligned.
    shared: Vec<u128>,
    _locals: Vec<u128>,
    _frames: Vec<u64>,
    _parameters: Arc<[u128]>,
    live: u32,
    /// Of each warp.
    lanes: Vec<Lanes>,
    watch: Option<Arc<Watch>>,
    /// Of a kernel whose accesses are traced; on the heap, because the code has a pointer.
    trace: Option<Box<BlockTrace>>,
    /// The trace does not know yet that the block has begun.
    fresh: bool,
    output: Arc<dyn Output>,
}

// SAFETY: the pointers are to memory that the value owns, which moves with it on the heap.
unsafe impl Send for Block {}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Block({:?}, {} threads left)",
            self.state.ctaid, self.live
        )
    }
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FaultKind::Access {
                address,
                bytes,
                store,
                space,
                near,
            } => {
                let what = if *store { "store" } else { "load" };
                let aligned = address.is_multiple_of(u64::from(*bytes).max(1));
                let how = if aligned {
                    "outside of"
                } else {
                    "not aligned in"
                };
                write!(
                    f,
                    "a {what} of {bytes} bytes at {address:#x}, {how} {space}"
                )?;
                match near {
                    Some(near) if aligned => write!(f, ": {near}"),
                    _ => Ok(()),
                }
            }
            FaultKind::Trap => f.write_str("__trap()"),
            FaultKind::StackOverrun => {
                f.write_str("the thread's stack is full: calls are nested too deep")
            }
            FaultKind::Assertion => f.write_str("an assertion does not hold"),
            FaultKind::Stuck { barrier, warp } => write!(
                f,
                "no thread can run: {barrier} wait at a barrier, {warp} at a warp operation"
            ),
            FaultKind::Stopped => f.write_str("it was told to end"),
        }
    }
}

/// Words of a thread's frame that calls may take, beyond those of each function, in kernels that
/// have a stack.
const FRAME_STACK: usize = 4096;

/// Words of a thread's frame, and those before the last place at which a function's part may begin.
fn frame_words(kernel: &Kernel) -> (usize, usize) {
    let words = kernel.frame_words as usize;
    match kernel.stack_begin {
        0 => (words, 0),
        _ => (words + FRAME_STACK, FRAME_STACK),
    }
}

impl Block {
    /// Memory for a block of this shape. `parameters` has the kernel's parameters at their offsets.
    ///
    /// # Panics
    /// If the block has no thread or more than 1,024, or `parameters` is shorter than the kernel's.
    pub fn new(kernel: Arc<Kernel>, shape: Shape, parameters: Arc<[u128]>) -> Block {
        let n = shape.block.iter().map(|n| *n as usize).product::<usize>();
        assert!(n > 0 && n <= 1024, "a block has 1 to 1,024 threads");
        assert!(parameters.len() * 16 >= kernel.parameter_bytes() as usize);
        let dynamic = kernel.shared_bytes.next_multiple_of(16);
        let shared_bytes = u64::from(dynamic) + u64::from(shape.dynamic_shared);
        // 16 more, so that an empty memory has an address of its own.
        let mut shared = vec![0u128; (shared_bytes as usize).div_ceil(16) + 1];
        let (words, most) = frame_words(&kernel);
        let mut frames = vec![0u64; words * n + 1];
        let units = (kernel.local_bytes as usize).div_ceil(16);
        let mut locals = vec![0u128; units * n + 1];
        let maps = match kernel.checks.memory {
            true => [
                kernel.layouts[0].map(shared_bytes, (u64::from(dynamic), shared_bytes)),
                kernel.layouts[1].map(u64::from(kernel.local_bytes), (0, 0)),
            ],
            false => Default::default(),
        };
        let state = Box::new(BlockState {
            parameters: parameters.as_ptr().cast(),
            shared: shared.as_mut_ptr().cast(),
            shared_bytes,
            dynamic: u64::from(dynamic),
            ctaid: [0; 3],
            ntid: shape.block,
            nctaid: shape.grid,
            grid: 0,
            environment: 0,
            live: [0; 32],
            parameter_bytes: kernel.parameter_bytes(),
            local_bytes: kernel.local_bytes,
            variables: kernel.placement.variables.as_ptr(),
            arrived: Default::default(),
            arrivals: AtomicU32::new(0),
            cluster: Default::default(),
            surroundings: std::ptr::null(),
            maps: [std::ptr::null(), maps[0].as_ptr(), maps[1].as_ptr()],
            trace: std::ptr::null_mut(),
            allowed: Default::default(),
        });
        let [x, y, _] = shape.block;
        let (memory, memory_bytes) = kernel.placement.memory;
        let threads = (0..n).map(|i| {
            let u = i as u32;
            Thread {
                block: &raw const *state,
                local: locals.as_mut_ptr().wrapping_add(i * units).cast(),
                frame: frames.as_mut_ptr().wrapping_add(i * words),
                frame_end: frames.as_mut_ptr().wrapping_add(i * words + most),
                stack: 0,
                stack_top: 0,
                stack_end: u64::from(kernel.local_bytes),
                memory,
                items: std::array::from_fn(|n| memory_bytes >> n),
                helpers: kernel.helpers.as_ptr(),
                tid: [u % x, u / x % y, u / (x * y)],
                lane: u % 32,
                number: u,
                state: 0,
                why: why::DONE,
                budget: 0,
                moved: 0,
                kind: 0,
                value: 0,
                b: 0,
                c: 0,
                mask: 0,
                second: 0,
                result: 0,
                site: 0,
                bytes: 0,
                address: 0,
                cluster: 0,
                words: [0; 16],
                looked: 0,
                looked_at: 0,
            }
        });
        let threads = threads.collect();
        Block {
            kernel,
            state,
            threads,
            _maps: maps,
            shared,
            _locals: locals,
            _frames: frames,
            _parameters: parameters,
            live: 0,
            lanes: vec![Lanes::default(); n.div_ceil(32)],
            watch: None,
            trace: None,
            fresh: false,
            output: Arc::new(print::StandardOutput),
        }
    }

    /// Where the text of its kernel's `printf` and `assert` goes; the standard output if this is
    /// not called.
    pub fn print_to(&mut self, output: Arc<dyn Output>) {
        self.output = output;
    }

    /// Where what checks find goes; of checked kernels.
    pub fn watch(&mut self, watch: Arc<Watch>) {
        if self.kernel.checks.traced() {
            let trace = self.trace.get_or_insert_default();
            self.state.trace = &raw mut **trace;
        }
        self.watch = Some(watch);
    }

    /// The number of the launch that the block belongs to, for `%gridid`; 0 if this is not called.
    pub fn of_launch(&mut self, number: u32) {
        self.state.grid = number;
    }

    /// The address that kernels read from `%envreg1` (its upper half) and `%envreg2`: two words of
    /// 32 bits, 8 and 0 when a launch begins, by which NVIDIA's cooperative groups let a grid meet.
    /// Without this call it is 0.
    pub fn environment(&mut self, address: u64) {
        self.state.environment = address;
    }

    /// The index of the block that runs.
    pub fn index(&self) -> [u32; 3] {
        self.state.ctaid
    }

    /// Begins the block of this index.
    pub fn begin(&mut self, index: [u32; 3]) {
        self.state.ctaid = index;
        self.fresh = true;
        self.state.shared = self.shared.as_mut_ptr().cast();
        let (words, _) = frame_words(&self.kernel);
        let begin = u64::from(self.kernel.stack_begin);
        for (i, t) in self.threads.iter_mut().enumerate() {
            (t.state, t.why, t.budget) = (0, why::RUNNABLE, BUDGET);
            t.frame = self._frames.as_mut_ptr().wrapping_add(i * words);
            (t.stack, t.stack_top) = (begin, begin);
            t.looked = 0;
        }
        let n = self.threads.len();
        for w in 0..n.div_ceil(32) {
            let all = u32::MAX >> (32 - (n - w * 32).min(32));
            self.state.live[w] = all;
            self.lanes[w] = Lanes::runnable(all);
        }
        self.live = n as u32;
        let split = self.state.arrived.iter().flatten();
        for word in split
            .chain(&self.state.cluster)
            .chain([&self.state.arrivals])
        {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Lets each thread run until it waits. Threads are told to end when `stop` is not 0.
    ///
    /// # Panics
    /// If the kernel was compiled with checks, and the memory has no checker.
    pub fn step(
        &mut self,
        memory: &dyn Memory,
        clock: &dyn Clock,
        stop: &AtomicU32,
        order: &mut Order,
    ) -> Step {
        let mut traced = self.traced(memory);
        let trace = traced.as_deref_mut();
        let surroundings = Surroundings {
            trace: trace.map_or(std::ptr::null_mut(), |t| &raw mut *t),
            memory,
            clock,
            output: Arc::as_ptr(&self.output),
            stop,
        };
        self.state.surroundings = (&raw const surroundings).cast();
        if self.kernel.checks.memory {
            let checker = memory.checker().expect("checked code has a checker");
            self.state.maps[0] = checker.map();
        }
        self.state.allowed.renew(memory);
        let step = self.round(order);
        self.state.surroundings = std::ptr::null();
        if self.live == 0 {
            return Step::Done;
        }
        step.unwrap_or_else(|fault| {
            self.live = 0;
            Step::Failed(fault)
        })
    }

    /// The past of GPU memory, held for a step, in which the block has begun.
    fn traced<'m>(&mut self, memory: &'m dyn Memory) -> Option<MutexGuard<'m, Trace>> {
        let (block, watch) = (self.trace.as_mut()?, self.watch.as_ref()?);
        let mut trace = memory.checker()?.trace_of_step();
        if std::mem::take(&mut self.fresh) {
            let shared = (self.state.shared as u64, self.state.shared_bytes);
            let threads = self.threads.len();
            trace.begin_block(block, watch.run(), self.state.ctaid, threads, shared);
        }
        Some(trace)
    }

    /// Lets the trace know which threads meet.
    fn meet(&mut self, here: &[usize], all: bool) {
        if let Some(trace) = &mut self.trace {
            trace.meet(here, &self.state.live, all);
        }
    }

    fn round(&mut self, order: &mut Order) -> Result<Step, Box<Fault>> {
        let warps = self.lanes.len();
        let first = order.next(warps);
        let mut ran = false;
        for w in (first..warps).chain(0..first) {
            if self.lanes[w].can_run() {
                ran |= self.run_warp(w)?;
            }
        }
        if self.live == 0 {
            return Ok(Step::Done);
        }
        if self.settle_barriers() {
            return Ok(Step::Running);
        }
        self.wake(ran)
    }

    /// Runs the lanes of a warp as long as they can; whether one ended or passed a warp operation.
    fn run_warp(&mut self, w: usize) -> Result<bool, Box<Fault>> {
        let first = w * 32;
        let entry = self.kernel.entry();
        let mut moved = false;
        loop {
            // A lane less may complete what others wait for.
            let live = self.state.live[w];
            for i in each(self.lanes[w].take_runnable()) {
                let t = &raw mut self.threads[first + i];
                // SAFETY: the thread is this block's, whose memory the code was given; nothing else
                // refers to it now.
                let left = unsafe {
                    (*t).why = entry(t.cast());
                    (*t).why
                };
                if !self.lanes[w].left(i, left) {
                    return Err(self.fault(first + i));
                }
                match left {
                    why::DONE => {
                        self.live -= 1;
                        self.state.live[w] &= !(1 << i);
                    }
                    why::WARP => {
                        if let Some(place) = self.synccheck() {
                            place.arrives(&self.threads[first + i]);
                        }
                    }
                    _ => {}
                }
            }
            moved |= live != self.state.live[w];
            if self.lanes[w].at_operation() == 0 || !self.settle_warp(w) {
                return Ok(moved);
            }
            moved = true;
        }
    }

    /// Completes the warp's operations to which all their lanes have come; whether there was one.
    fn settle_warp(&mut self, w: usize) -> bool {
        let first = w * 32;
        let live = self.state.live[w];
        let checked = self.synccheck().is_some();
        let traced = self.trace.is_some();
        let (mut found, mut met) = (Vec::new(), Vec::new());
        let mut completes = |warp: &[Thread], mask: u32, kind: u32| {
            if checked {
                found.extend(warp::silent(warp, mask, kind));
            }
            // Other operations order no memory (§9.7.13).
            if traced && kind == warp::SYNC {
                met.push(mask);
            }
        };
        let end = (first + 32).min(self.threads.len());
        let open = self.lanes[w].at_operation();
        let settled = warp::settle(&mut self.threads[first..end], open, live, &mut completes);
        self.lanes[w].wake(settled);
        if let Some(place) = self.synccheck() {
            for (lane, from) in found {
                place.silent(&self.threads[first + lane], from);
            }
        }
        for mask in met {
            let here: Vec<usize> = each(mask).map(|i| first + i).collect();
            self.meet(&here, false);
        }
        settled != 0
    }

    /// The block as a place of findings, if barriers and warp operations are checked.
    fn synccheck(&self) -> Option<Place<'_>> {
        let watch = self.watch.as_ref().filter(|_| self.kernel.checks.sync)?;
        Some(Place {
            watch,
            block: self.state.ctaid,
            sites: &self.kernel.sites,
        })
    }

    /// Opens the barriers at which all threads stand that they wait for (§9.7.13.1).
    fn settle_barriers(&mut self) -> bool {
        let mut opened = self.settle_cluster();
        let arrivals = self.state.arrivals.load(Ordering::Relaxed) != 0;
        if !arrivals && self.lanes.iter().all(|l| l.at_barrier() == 0) {
            return opened;
        }
        let mut waiting = [0u32; 16];
        for i in lanes::all(&self.lanes, Lanes::at_barrier) {
            waiting[self.threads[i].b as usize & 15] += 1;
        }
        for id in 0..16u32 {
            let [arrived, of] = &self.state.arrived[id as usize];
            let come = waiting[id as usize] + arrived.load(Ordering::Relaxed);
            if come == 0 {
                continue;
            }
            let at = |i: &usize| self.threads[*i].b & 15 == id;
            let here = lanes::all(&self.lanes, Lanes::at_barrier).filter(at);
            // Without a count all that have not ended.
            let counts = here.map(|i| self.threads[i].c);
            let count = counts.max().unwrap_or_else(|| of.load(Ordering::Relaxed));
            let want = if count == 0 { self.live } else { count };
            if come < want {
                continue;
            }
            arrived.store(0, Ordering::Relaxed);
            self.open_barrier(id, come > waiting[id as usize]);
            opened = true;
        }
        opened
    }

    /// Lets the threads go on that wait at a barrier; `more` than those have arrived there.
    fn open_barrier(&mut self, id: u32, more: bool) {
        let at = |i: &usize| self.threads[*i].b & 15 == id;
        let waiting = lanes::all(&self.lanes, Lanes::at_barrier).filter(at);
        let here: Vec<usize> = waiting.collect();
        if let Some(place) = self.synccheck() {
            let here = here.iter().map(|i| (*i, &self.threads[*i]));
            let ended = self.threads.len() as u32 - self.live;
            place.barrier(here, ended);
        }
        // Whether those that arrived without waiting are the others is not known: it is supposed.
        self.meet(&here, here.len() as u32 == self.live || more);
        let ones = here.iter().filter(|i| self.threads[**i].value != 0).count() as u32;
        for i in &here {
            let t = &mut self.threads[*i];
            t.result = u64::from(match t.kind & !ALIGNED {
                1 => ones,
                2 => u32::from(ones as usize == here.len()),
                3 => u32::from(ones > 0),
                _ => 0,
            });
            t.why = why::RUNNABLE;
            self.lanes[i / 32].wake(1 << (i % 32));
        }
    }

    /// Opens the cluster's barrier when all threads that have not ended have arrived (§9.7.13.3).
    fn settle_cluster(&mut self) -> bool {
        let [arrived, number] = &self.state.cluster;
        let come = arrived.load(Ordering::Relaxed);
        if come > 0 && come >= self.live {
            arrived.store(0, Ordering::Relaxed);
            number.fetch_add(1, Ordering::Relaxed);
        }
        if self.lanes.iter().all(|l| l.at_cluster() == 0) {
            return false;
        }
        let number = number.load(Ordering::Relaxed);
        let over = |i: &usize| self.threads[*i].cluster != number;
        let here: Vec<usize> = lanes::all(&self.lanes, Lanes::at_cluster)
            .filter(over)
            .collect();
        self.meet(&here, true);
        for i in &here {
            self.threads[*i].why = why::RUNNABLE;
            self.lanes[i / 32].wake(1 << (i % 32));
        }
        !here.is_empty()
    }

    /// What comes after a round in which no barrier was opened.
    fn wake(&mut self, ran: bool) -> Result<Step, Box<Fault>> {
        let (mut spun, mut woken, mut until) = (false, false, u64::MAX);
        let (mut published, mut now) = (false, None);
        for w in 0..self.lanes.len() {
            for i in each(self.lanes[w].take_spent()) {
                let t = &mut self.threads[w * 32 + i];
                (t.why, t.budget) = (why::RUNNABLE, BUDGET);
                published |= std::mem::take(&mut t.moved) != 0;
                spun = true;
            }
            for i in each(self.lanes[w].asleep()) {
                // SAFETY: set by `step`, inside of which this runs.
                let clock = unsafe { (*self.state.surroundings).clock };
                let now = *now.get_or_insert_with(|| clock.now_ns());
                let t = &mut self.threads[w * 32 + i];
                if t.address <= now {
                    t.why = why::RUNNABLE;
                    self.lanes[w].wake(1 << i);
                    woken = true;
                } else {
                    until = until.min(t.address);
                }
            }
        }
        if published {
            return Ok(Step::Published);
        }
        if woken || ran && spun {
            return Ok(Step::Running);
        }
        if spun {
            return Ok(Step::Spinning);
        }
        if until < u64::MAX {
            return Ok(Step::Sleeping(until));
        }
        Err(self.stuck())
    }

    /// No thread can run.
    fn stuck(&self) -> Box<Fault> {
        let first = self.threads.iter().position(|t| t.why != why::DONE);
        let mut fault = self.fault(first.unwrap_or(0));
        let count =
            |f: fn(&Lanes) -> u32| self.lanes.iter().map(|l| f(l).count_ones()).sum::<u32>();
        fault.kind = FaultKind::Stuck {
            barrier: count(Lanes::at_barrier) + count(Lanes::at_cluster),
            warp: count(Lanes::at_operation),
        };
        // SAFETY: set by `step`, inside of which this runs.
        fault.waits = self.waits(unsafe { (*self.state.surroundings).memory });
        fault
    }

    fn refused(&self, t: &Thread) -> FaultKind {
        let dynamic = (self.state.dynamic, self.state.shared_bytes);
        let layouts = &self.kernel.layouts;
        let (space, near) = match t.bytes & mark::SPACE {
            mark::SHARED => ("shared memory", layouts[0].nearest(t.address, dynamic)),
            mark::LOCAL => ("local memory", layouts[1].nearest(t.address, (0, 0))),
            space => {
                // SAFETY: set by `step`, inside of which this runs.
                let memory = unsafe { (*self.state.surroundings).memory };
                let space = match space {
                    mark::ALLOCATED => "allocated GPU memory",
                    _ => "GPU memory",
                };
                (space, memory.nearest(t.address))
            }
        };
        FaultKind::Access {
            address: t.address,
            bytes: t.bytes & 0xff,
            store: t.bytes & mark::STORE != 0,
            space,
            near,
        }
    }

    fn fault(&self, i: usize) -> Box<Fault> {
        let t = &self.threads[i];
        let kind = match t.why {
            why::FAULT => self.refused(t),
            why::TRAP => FaultKind::Trap,
            why::OVERRUN => FaultKind::StackOverrun,
            why::ASSERTION => FaultKind::Assertion,
            _ => FaultKind::Stopped,
        };
        let site = self.kernel.sites.get(t.site as usize).copied();
        Box::new(Fault {
            kind,
            block: self.state.ctaid,
            thread: t.tid,
            site: site.unwrap_or(Site::NOWHERE),
            waits: Vec::new(),
        })
    }
}
