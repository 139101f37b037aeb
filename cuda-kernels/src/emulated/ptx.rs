//! Kernels of PTX files: a module's variables in GPU memory, and threads of the host that drive its blocks.
#![allow(clippy::disallowed_methods)] // Host threads rest here while all their blocks wait.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_gpu::{Block, Clock, Fault, FaultKind, Function, Kernel, Order, Program, Shape, Step};
use ringbell_nic_abi::GpuVa;
use rustix::time::{clock_gettime, ClockId};

use super::memory::EmulatedMemory;
use crate::gpu::{GpuError, ModuleError};
use crate::launch::{ArgBlock, Dim3, LaunchError};

/// Most bytes of a PTX file: text beyond would take minutes.
const MOST_TEXT: u64 = 256 << 20;

/// Shared memory of a block, static and dynamic, that every GPU has.
const SHARED_BYTES: u32 = 48 << 10;

/// Most blocks that one thread of the host has begun: those of a grid that wait for each other.
const MOST_RESIDENT: usize = 1024;

/// Memory that goes back when it is dropped.
pub(super) type Kept = Box<dyn Send + Sync>;

/// A PTX module on an emulated GPU.
pub(super) struct PtxModule {
    program: Program,
    /// Memory of its variables.
    _variables: Option<Kept>,
}

impl PtxModule {
    pub(super) fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.program.module().into_iter().flat_map(|m| m.kernels())
    }
}

/// Reads a file, and gives its variables their places in memory that `alloc` provides for so many bytes.
pub(super) fn load(
    memory: &EmulatedMemory,
    path: &Path,
    alloc: impl FnOnce(u64) -> Result<(GpuVa, Kept), GpuError>,
) -> Result<Arc<PtxModule>, ModuleError> {
    let refuse = |reason: String| ModuleError::Load {
        path: path.to_owned(),
        reason,
    };
    let bytes = std::fs::metadata(path).map_err(|e| refuse(e.to_string()))?;
    if bytes.len() > MOST_TEXT {
        return Err(refuse("the file is larger than 256 MiB".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|e| refuse(e.to_string()))?;
    let module = ringbell_gpu::parse(&path.display().to_string(), &text)?;
    let (mut at, mut offsets) = (0u64, Vec::new());
    for v in &module.variables {
        at = at.next_multiple_of(u64::from(v.align.max(1)));
        offsets.push(at);
        at += if v.is_global() { u64::from(v.bytes) } else { 0 };
    }
    let variables = match at {
        0 => None,
        bytes => Some(alloc(bytes).map_err(|e| refuse(e.to_string()))?),
    };
    let base = variables.as_ref().map_or(0, |(va, _)| va.0);
    let addresses: Vec<u64> = offsets.iter().map(|o| base + o).collect();
    for (v, offset) in module.variables.iter().zip(&offsets) {
        if v.is_global() && v.bytes > 0 {
            let first = base + offset - memory.base_va();
            memory.write_at(first as usize, &v.image(&addresses));
        }
    }
    let program = Program::new(module, addresses, memory.base_va(), memory.len());
    Ok(Arc::new(PtxModule {
        program,
        _variables: variables.map(|(_, kept)| kept),
    }))
}

/// A kernel of a PTX module.
#[derive(Clone)]
pub(super) struct PtxKernel {
    module: Arc<PtxModule>,
    name: Arc<str>,
}

impl PtxKernel {
    pub(super) fn new(module: Arc<PtxModule>, name: Arc<str>) -> PtxKernel {
        PtxKernel { module, name }
    }

    /// A launch of checked arguments; compiles the kernel if it is the first.
    pub(super) fn launch(
        &self,
        memory: &Arc<EmulatedMemory>,
        grid: Dim3,
        block: Dim3,
        args: &ArgBlock,
    ) -> Result<PtxLaunch, LaunchError> {
        let failed = |reason: String| LaunchError::Failed {
            kernel: self.name.to_string(),
            reason,
        };
        let program = &self.module.program;
        let kernel = program
            .kernel(&self.name)
            .map_err(|e| failed(e.to_string()))?;
        let dynamic_shared = if kernel.dynamic_shared {
            SHARED_BYTES.saturating_sub(kernel.shared_bytes)
        } else {
            0
        };
        Ok(PtxLaunch {
            parameters: self.parameters(args),
            shape: Shape {
                grid: [grid.x, grid.y, grid.z],
                block: [block.x, block.y, block.z],
                dynamic_shared,
            },
            module: self.module.clone(),
            kernel,
            memory: memory.clone(),
            blocks: grid.count(),
            next: AtomicU64::new(0),
            stop: AtomicU32::new(0),
        })
    }

    /// The arguments at the parameters' offsets.
    fn parameters(&self, args: &ArgBlock) -> Arc<[u128]> {
        let of_name = |f: &&Function| *f.name == *self.name;
        let function = self.module.kernels().find(of_name);
        let parameters = function.map(Function::parameters).unwrap_or_default();
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
}

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

impl PtxLaunch {
    /// How many threads of the host it is worth.
    pub(super) fn workers(&self, most: usize) -> u64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.blocks.min(cores.min(most) as u64)
    }

    /// Runs blocks until there are none; a block that waits makes room for others.
    ///
    /// # Errors
    /// Why a block has ended early, in words.
    pub(super) fn work(&self) -> Result<(), String> {
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

    fn describe(&self, fault: &Fault) -> String {
        let [bx, by, bz] = fault.block;
        let [tx, ty, tz] = fault.thread;
        format!(
            "block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), {}: {}",
            self.module.program.describe(fault.site),
            fault.kind
        )
    }
}
