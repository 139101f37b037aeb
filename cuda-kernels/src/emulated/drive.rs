//! Threads of the host that drive the blocks of a PTX kernel.
#![allow(clippy::disallowed_methods)] // Host threads rest here while all their blocks wait.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_gpu::{
    Block, Clock, Fault, FaultKind, Kernel, Order, Output, Parameter, Shape, Step, Watch,
};
use ringbell_gtlb::{DmaMemory as _, Exposed, WaitHook};
use rustix::time::{clock_gettime, ClockId};

use super::hang::{self, Hang, Stand};
use super::memory::EmulatedMemory;
use super::ptx::{PtxKernel, PtxModule};
use crate::launch::{ArgBlock, Failure, LaunchError, LaunchShape};

/// Most blocks that one thread of the host has begun: those of a grid that wait for each other.
const MOST_RESIDENT: usize = 1024;

/// Shared memory of a block, static and dynamic, that every GPU has.
const SHARED_BYTES: u32 = 48 << 10;

/// Launches so far; each has a number, which kernels see as `%gridid`.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);

/// A kernel that runs. Several threads of the host take its blocks.
pub(super) struct PtxLaunch {
    module: Arc<PtxModule>,
    kernel: Arc<Kernel>,
    memory: Arc<EmulatedMemory>,
    shape: Shape,
    parameters: Arc<[u128]>,
    blocks: u64,
    /// Distinguishes it from others of the process.
    number: u32,
    /// Two words by which a grid meets, for kernels that read their address.
    environment: Option<(Exposed, Box<AtomicU64>)>,
    /// The next block to begin.
    next: AtomicU64,
    /// Not 0: a block has failed, and the others end.
    stop: AtomicU32,
    hang: Hang,
    /// Of checked kernels: where findings go.
    watch: Option<Arc<Watch>>,
    /// Where text goes, if not to the standard output.
    output: Option<Arc<dyn Output>>,
}

/// Blocks of a launch that a thread has begun, and those that it can use again.
pub(super) struct Blocks {
    resident: VecDeque<Block>,
    spare: Vec<Block>,
    order: Order,
}

impl Blocks {
    /// None yet; threads take their turns by a seed.
    pub(super) fn new(seed: u64) -> Blocks {
        Blocks {
            resident: VecDeque::new(),
            spare: Vec::new(),
            order: Order::new(seed),
        }
    }

    /// Lets another block be the first of the next round; by seed 0 it stays the same.
    pub(super) fn rotate(&mut self) {
        if self.resident.len() > 1 {
            let by = self.order.next(self.resident.len());
            self.resident.rotate_left(by);
        }
    }
}

/// What became of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// No block is left.
    Done,
    /// A block got on.
    Moved,
    /// A block has written what a NIC may wait for.
    Published,
    /// All wait.
    Waits,
}

/// Rounds of waiting between two looks for NICs that the GPU has got.
const LOOK_FOR_NICS: u32 = 256;

/// The clock of the host, which is also the device header's.
struct HostClock;

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        let t = clock_gettime(ClockId::Monotonic);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// The arguments at the parameters' offsets.
fn parameters(parameters: &[Parameter], args: &ArgBlock) -> Arc<[u128]> {
    let end = parameters.last().map_or(0, |p| p.offset + p.bytes);
    let mut bytes = vec![0u8; (end as usize).next_multiple_of(16).max(16)];
    let given: Vec<u8> = args.storage.iter().flat_map(|w| w.to_ne_bytes()).collect();
    for (p, from) in parameters.iter().zip(&args.offsets) {
        let (at, n) = (p.offset as usize, p.bytes as usize);
        bytes[at..at + n].copy_from_slice(&given[*from..from + n]);
    }
    let words = bytes.chunks_exact(16);
    words
        .map(|c| u128::from_ne_bytes(c.try_into().expect("chunks of 16")))
        .collect()
}

/// Why a block has ended early.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) failure: Failure,
    /// In words, with the place.
    pub(super) reason: String,
}

impl Drop for PtxLaunch {
    fn drop(&mut self) {
        self.ended();
    }
}

impl PtxLaunch {
    /// A launch of checked arguments, of which no block has begun; compiles the kernel if it is the
    /// first. Without a size the dynamic shared memory is what the kernel's own leaves of 48 KiB.
    pub(super) fn of(
        kernel: &PtxKernel,
        memory: &Arc<EmulatedMemory>,
        shape: LaunchShape,
        args: &ArgBlock,
    ) -> Result<PtxLaunch, LaunchError> {
        let (module, kernel) = (kernel.module().clone(), kernel.code()?);
        let rest = match kernel.dynamic_shared {
            true => SHARED_BYTES.saturating_sub(kernel.shared_bytes),
            false => 0,
        };
        let LaunchShape { grid, block, .. } = shape;
        let shape = Shape {
            grid: [grid.x, grid.y, grid.z],
            block: [block.x, block.y, block.z],
            dynamic_shared: shape.dynamic_shared.unwrap_or(rest),
        };
        let (memory, parameters) = (memory.clone(), parameters(&kernel.parameters, args));
        let watch = memory.watched.checker().map(|checker| {
            let module = module.clone();
            checker.launch(&kernel, shape, move |site| module.program().describe(site))
        });
        let environment = module.has_environment().then(|| {
            // Their size in the lower half, and a counter of blocks.
            let words = Box::new(AtomicU64::new(8));
            let at = NonNull::from(&*words).cast();
            memory.expose(at, 8).ok().map(|exposed| (exposed, words))
        });
        let environment = environment.flatten();
        Ok(PtxLaunch {
            watch,
            module,
            kernel,
            memory,
            shape,
            parameters,
            blocks: shape.grid.iter().map(|n| u64::from(*n)).product(),
            number: LAUNCHES.fetch_add(1, Ordering::Relaxed),
            environment,
            next: AtomicU64::new(0),
            stop: AtomicU32::new(0),
            hang: Hang::default(),
            output: None,
        })
    }

    /// How many threads of the host it is worth.
    pub(super) fn workers(&self, most: usize) -> u64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.blocks.min(cores.min(most) as u64)
    }

    /// Runs blocks until there are none; a block that waits makes room for others, and then for the
    /// NICs.
    ///
    /// # Errors
    /// Why a block has ended early.
    pub(super) fn work(&self) -> Result<(), Ended> {
        let mut blocks = Blocks::new(0);
        let mut nics = self.memory.nics();
        // Rounds, one after the other, in which nothing moved; and all in which NICs were of
        // interest.
        let (mut idle, mut rounds) = (0u32, 0u32);
        let mut watch = self.hang.worker();
        loop {
            if watch.is_asked(idle > 0) {
                watch.answer(&self.stands(blocks.resident.iter()), &self.kernel.name);
            }
            let round = self.round(&mut blocks, &HostClock)?;
            if matches!(round, Round::Published | Round::Waits) {
                rounds = rounds.wrapping_add(1);
                if rounds.is_multiple_of(LOOK_FOR_NICS) {
                    nics = self.memory.nics();
                }
            }
            idle = match round {
                Round::Done => return Ok(()),
                Round::Moved => 0,
                Round::Published => {
                    for nic in &nics {
                        nic.turn(0, &|| false);
                    }
                    0
                }
                Round::Waits if self.rest(&nics, idle, &mut blocks)? => 0,
                Round::Waits => idle.saturating_add(1),
            };
        }
    }

    /// Lets each block that has begun run until it waits, and begins others if all wait.
    pub(super) fn round(&self, blocks: &mut Blocks, clock: &dyn Clock) -> Result<Round, Ended> {
        let (mut moved, mut published) = (false, false);
        let mut at = 0;
        while let Some(block) = blocks.resident.get_mut(at) {
            at += 1;
            match block.step(&*self.memory, clock, &self.stop, &mut blocks.order) {
                Step::Done => {
                    at -= 1;
                    blocks.spare.extend(blocks.resident.remove(at));
                    moved = true;
                }
                Step::Running => moved = true,
                Step::Published => published = true,
                Step::Spinning | Step::Sleeping(_) => {
                    if self.stop.load(Ordering::Relaxed) != 0 {
                        return Ok(Round::Done);
                    }
                }
                Step::Failed(fault) => {
                    self.stop.store(1, Ordering::Relaxed);
                    // Another block's fault has stopped this one.
                    if fault.kind == FaultKind::Stopped {
                        return Ok(Round::Done);
                    }
                    return Err(self.describe(&fault));
                }
            }
        }
        // Those that have begun may wait for others of the grid.
        if !moved && blocks.resident.len() < MOST_RESIDENT {
            if let Some(block) = self.begin(&mut blocks.spare) {
                blocks.resident.push_front(block);
                moved = true;
            }
        }
        if published {
            return Ok(Round::Published);
        }
        Ok(match (blocks.resident.is_empty(), moved) {
            (_, true) => Round::Moved,
            (true, false) => Round::Done,
            (false, false) => Round::Waits,
        })
    }

    /// Where the threads of its blocks stand, in lines; `None` if it does not say so in time: it
    /// computes, or has not begun.
    pub(super) fn explain(&self) -> Option<String> {
        let stands = self.hang.ask()?;
        Some(match self.memory.owner() {
            Some(owner) => format!("{stands}\n  ({owner})"),
            None => stands,
        })
    }

    /// Where the threads of these blocks stand, in lines.
    pub(super) fn explain_blocks(&self, blocks: &Blocks) -> String {
        hang::lines(&self.stands(blocks.resident.iter()))
    }

    /// Where the text of its kernel goes; before a block begins.
    pub(super) fn print_to(&mut self, output: Arc<dyn Output>) {
        self.output = Some(output);
    }

    fn stands<'a>(&self, blocks: impl Iterator<Item = &'a Block>) -> Vec<Stand> {
        hang::stands(blocks, &*self.memory, &|site| {
            self.module.program().describe(site)
        })
    }

    /// What checks have found, in lines. All blocks have ended.
    pub(super) fn findings(&self) -> Option<String> {
        self.ended();
        let found = self.watch.as_ref()?.findings();
        let found = found.iter().map(|f| self.owned(f));
        let found = found.collect::<Vec<String>>().join("\n");
        (!found.is_empty()).then_some(found)
    }

    /// A sentence, with whose kernel it is about.
    fn owned(&self, sentence: &str) -> String {
        match self.memory.owner() {
            Some(owner) => format!("{owner}: {sentence}"),
            None => sentence.to_owned(),
        }
    }

    fn ended(&self) {
        if let (Some(checker), Some(watch)) = (self.memory.watched.checker(), &self.watch) {
            checker.ended(watch);
        }
    }

    /// The next block to begin.
    fn begin(&self, spare: &mut Vec<Block>) -> Option<Block> {
        if self.stop.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let take = |n| (n < self.blocks).then_some(n + 1);
        let order = Ordering::Relaxed;
        let index = self.next.fetch_update(order, order, take).ok()?;
        let [x, y, _] = self.shape.grid.map(u64::from);
        let at = [index % x, index / x % y, index / (x * y)].map(|i| i as u32);
        let new = || {
            let mut block = Block::new(self.kernel.clone(), self.shape, self.parameters.clone());
            block.of_launch(self.number);
            if let Some((_, words)) = &self.environment {
                block.environment(words.as_ptr() as u64);
            }
            if let Some(watch) = &self.watch {
                block.watch(watch.clone());
            }
            if let Some(output) = &self.output {
                block.print_to(output.clone());
            }
            block
        };
        let mut block = spare.pop().unwrap_or_else(new);
        block.begin(at);
        Some(block)
    }

    /// While all blocks wait: for a NIC, which it steps, or for memory that others write. Returns
    /// whether something moved.
    fn rest(
        &self,
        nics: &[Arc<dyn WaitHook>],
        idle: u32,
        blocks: &mut Blocks,
    ) -> Result<bool, Ended> {
        // A NIC wakes its sleeper for what is its own: with several, none may make the thread
        // sleep.
        let [nic] = nics else {
            let moved = nics
                .iter()
                .fold(false, |moved, n| moved | n.turn(0, &|| false));
            match idle {
                _ if moved => {}
                0..64 => std::hint::spin_loop(),
                64..512 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
            return Ok(moved);
        };
        // What came before the thread sleeps is seen by another look of the blocks themselves.
        let (blocks, last) = (RefCell::new(blocks), Cell::new(None));
        let done = || {
            let round = self.round(&mut blocks.borrow_mut(), &HostClock);
            let moved = !matches!(round, Ok(Round::Waits));
            last.set(Some(round));
            moved
        };
        let moved = nic.turn(idle, &done);
        match last.into_inner() {
            Some(round) => Ok(round? != Round::Waits || moved),
            None => Ok(moved),
        }
    }

    fn describe(&self, fault: &Fault) -> Ended {
        let [bx, by, bz] = fault.block;
        let [tx, ty, tz] = fault.thread;
        let mut reason = format!(
            "block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), {}: {}",
            self.module.program().describe(fault.site),
            fault.kind
        );
        reason = self.owned(&reason);
        for wait in &fault.waits {
            let place = self.module.program().describe(wait.site);
            reason += &format!("\n  {}", wait.describe(&place));
        }
        let failure = match fault.kind {
            FaultKind::Access { address, bytes, .. }
                if !address.is_multiple_of(u64::from(bytes).max(1)) =>
            {
                Failure::Misaligned
            }
            FaultKind::Access { .. } => Failure::Access,
            FaultKind::Assertion => Failure::Assertion,
            FaultKind::Trap => Failure::Trap,
            _ => Failure::Other,
        };
        Ended { failure, reason }
    }
}
