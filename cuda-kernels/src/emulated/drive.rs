//! Threads of the host that drive the blocks of a PTX kernel.
#![allow(clippy::disallowed_methods)] // Host threads rest here while all their blocks wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_gpu::{Block, Clock, Fault, FaultKind, Kernel, Order, Shape, Step};
use rustix::time::{clock_gettime, ClockId};

use super::memory::EmulatedMemory;
use super::ptx::PtxModule;
use crate::launch::Failure;

/// Most blocks that one thread of the host has begun: those of a grid that wait for each other.
const MOST_RESIDENT: usize = 1024;

/// A kernel that runs. Several threads of the host take its blocks.
pub(super) struct PtxLaunch {
    module: Arc<PtxModule>,
    kernel: Arc<Kernel>,
    memory: Arc<EmulatedMemory>,
    shape: Shape,
    parameters: Arc<[u128]>,
    blocks: u64,
    /// The next block to begin.
    next: AtomicU64,
    /// Not 0: a block has failed, and the others end.
    stop: AtomicU32,
}

/// The clock of the host, which is also the device header's.
struct HostClock;

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        let t = clock_gettime(ClockId::Monotonic);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// Why a block has ended early.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) failure: Failure,
    /// In words, with the place.
    pub(super) reason: String,
}

impl PtxLaunch {
    /// A launch of which no block has begun.
    pub(super) fn new(
        module: Arc<PtxModule>,
        kernel: Arc<Kernel>,
        memory: Arc<EmulatedMemory>,
        shape: Shape,
        parameters: Arc<[u128]>,
    ) -> PtxLaunch {
        PtxLaunch {
            module,
            kernel,
            memory,
            shape,
            parameters,
            blocks: shape.grid.iter().map(|n| u64::from(*n)).product(),
            next: AtomicU64::new(0),
            stop: AtomicU32::new(0),
        }
    }

    /// How many threads of the host it is worth.
    pub(super) fn workers(&self, most: usize) -> u64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.blocks.min(cores.min(most) as u64)
    }

    /// Runs blocks until there are none; a block that waits makes room for others.
    ///
    /// # Errors
    /// Why a block has ended early.
    pub(super) fn work(&self) -> Result<(), Ended> {
        let mut order = Order::new(0);
        let (mut resident, mut spare) = (VecDeque::new(), Vec::new());
        // Blocks, one after the other, that could only wait.
        let (mut idle, mut rounds) = (0usize, 0u32);
        loop {
            let all_wait = idle >= resident.len();
            if all_wait && resident.len() < MOST_RESIDENT {
                if let Some(block) = self.begin(&mut spare) {
                    resident.push_front(block);
                    idle = 0;
                }
            }
            let Some(mut block) = resident.pop_front() else {
                return Ok(());
            };
            if idle > resident.len() {
                self.rest(rounds);
                rounds += 1;
                idle = 0;
            }
            match block.step(&*self.memory, &HostClock, &self.stop, &mut order) {
                Step::Done => {
                    spare.push(block);
                    (idle, rounds) = (0, 0);
                }
                Step::Running => {
                    resident.push_back(block);
                    (idle, rounds) = (0, 0);
                }
                Step::Spinning | Step::Sleeping(_) => {
                    if self.stop.load(Ordering::Relaxed) != 0 {
                        return Ok(());
                    }
                    resident.push_back(block);
                    idle += 1;
                }
                Step::Failed(fault) => {
                    self.stop.store(1, Ordering::Relaxed);
                    // Another block's fault has stopped this one.
                    if fault.kind == FaultKind::Stopped {
                        return Ok(());
                    }
                    return Err(self.describe(&fault));
                }
            }
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
        let new = || Block::new(self.kernel.clone(), self.shape, self.parameters.clone());
        let mut block = spare.pop().unwrap_or_else(new);
        block.begin(at);
        Some(block)
    }

    /// While all blocks wait for other threads: for memory that a NIC or the host writes.
    fn rest(&self, rounds: u32) {
        if rounds < 64 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn describe(&self, fault: &Fault) -> Ended {
        let [bx, by, bz] = fault.block;
        let [tx, ty, tz] = fault.thread;
        let reason = format!(
            "block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), {}: {}",
            self.module.program().describe(fault.site),
            fault.kind
        );
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
