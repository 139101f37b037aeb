//! What compiled code, debuggers and the scheduler share: structures whose fields the code reaches
//! by their offsets.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;

use crate::check::{BlockTrace, Trace};
use crate::memory::{Clock, Memory, Output};

/// Why a thread has returned.
pub(crate) mod why {
    pub(crate) const RUNNABLE: u32 = 0;
    pub(crate) const BARRIER: u32 = 1;
    pub(crate) const WARP: u32 = 2;
    /// Its budget at back edges is spent.
    pub(crate) const BUDGET: u32 = 3;
    pub(crate) const SLEEP: u32 = 4;
    pub(crate) const DONE: u32 = 5;
    /// A refused access, described in the thread.
    pub(crate) const FAULT: u32 = 6;
    pub(crate) const TRAP: u32 = 7;
    /// The launch is to end.
    pub(crate) const STOPPED: u32 = 8;
    pub(crate) const ASSERTION: u32 = 9;
    /// At `barrier.cluster.wait`.
    pub(crate) const CLUSTER: u32 = 10;
    /// Its stack is full.
    pub(crate) const OVERRUN: u32 = 11;
}

/// Of a barrier, beside its kind: all lanes of a warp come to it by one instruction (§9.7.13.1).
pub(crate) const ALIGNED: u32 = 4;

/// Back edges that a thread passes before it lets others run.
pub(crate) const BUDGET: u32 = 1024;

/// One thread of a block.
#[repr(C)]
pub(crate) struct Thread {
    pub(crate) block: *const BlockState,
    pub(crate) local: *mut u8,
    /// Registers that live over a wait.
    pub(crate) frame: *mut u64,
    /// Beyond it no call begins.
    pub(crate) frame_end: *mut u64,
    /// Begin of the function's part of the stack, first free byte and end, in local memory.
    pub(crate) stack: u64,
    pub(crate) stack_top: u64,
    pub(crate) stack_end: u64,
    /// Where GPU memory begins.
    pub(crate) memory: u64,
    /// Its bytes, and how many items of 2, 4, 8, 16 and 32 bytes it has.
    pub(crate) items: [u64; 6],
    /// Addresses of functions of the host.
    pub(crate) helpers: *const usize,
    pub(crate) tid: [u32; 3],
    pub(crate) lane: u32,
    /// Its number in the block.
    pub(crate) number: u32,
    /// Number of the resume point; 0 is the start.
    pub(crate) state: u32,
    pub(crate) why: u32,
    pub(crate) budget: u32,
    /// Not 0: it has published something since it gave way last.
    pub(crate) moved: u32,
    /// Of a barrier or warp operation: which.
    pub(crate) kind: u32,
    /// Operands of a warp operation or barrier.
    pub(crate) value: u64,
    pub(crate) b: u32,
    pub(crate) c: u32,
    pub(crate) mask: u32,
    pub(crate) second: u32,
    pub(crate) result: u64,
    /// The place of the wait or fault: an index into the kernel's sites.
    pub(crate) site: u32,
    /// Bytes of a refused access; the high bit is set for a store.
    pub(crate) bytes: u32,
    /// Address of a refused access, or when a sleep ends.
    pub(crate) address: u64,
    /// Number of the cluster's barrier at which it has arrived.
    pub(crate) cluster: u32,
    /// What a warp's lanes give for their matrices, and get: pairs of 32-bit words, the first in
    /// the low half.
    pub(crate) words: [u64; 16],
    /// The last access that looked at memory of others: its bytes and site, and its address.
    pub(crate) looked_at: u32,
    pub(crate) looked: u64,
}

/// What the threads of a block share.
#[repr(C)]
pub(crate) struct BlockState {
    pub(crate) parameters: *const u8,
    pub(crate) shared: *mut u8,
    pub(crate) shared_bytes: u64,
    /// Where dynamic shared memory begins.
    pub(crate) dynamic: u64,
    pub(crate) ctaid: [u32; 3],
    pub(crate) ntid: [u32; 3],
    pub(crate) nctaid: [u32; 3],
    /// Number of the launch.
    pub(crate) grid: u32,
    /// For `%envreg1` and `%envreg2`.
    pub(crate) environment: u64,
    /// Lanes of the block's warps that have not ended, for `activemask`.
    pub(crate) live: [u32; 32],
    pub(crate) parameter_bytes: u32,
    pub(crate) local_bytes: u32,
    /// Addresses of the module's variables.
    pub(crate) variables: *const u64,
    /// Arrivals at each barrier by `bar.arrive`, and how many threads it is for.
    pub(crate) arrived: [[AtomicU32; 2]; 16],
    /// Not 0: there was one.
    pub(crate) arrivals: AtomicU32,
    /// Arrivals at the cluster's barrier, and its number.
    pub(crate) cluster: [AtomicU32; 2],
    pub(crate) surroundings: *const Surroundings<'static>,
    /// Of checked code: bytes that say how many of 8 bytes of GPU memory, of shared and of local
    /// memory belong to an allocation or a variable.
    pub(crate) maps: [*const u8; 3],
    /// Of code whose accesses are traced: the past of the block.
    pub(crate) trace: *mut BlockTrace,
    pub(crate) allowed: Allowed,
}

/// Marks of a refused access, beside its bytes (the low 8 bits): a store, and the space.
pub(crate) mod mark {
    pub(crate) const STORE: u32 = 1 << 31;
    pub(crate) const SHARED: u32 = 1 << 8;
    pub(crate) const LOCAL: u32 = 2 << 8;
    /// Inside of GPU memory, of which nothing is allocated there.
    pub(crate) const ALLOCATED: u32 = 3 << 8;
    pub(crate) const SPACE: u32 = 3 << 8;
}

/// Ranges outside of GPU memory that the block has accessed last. Cells, because compiled code
/// calls with the block shared.
#[derive(Default)]
pub(crate) struct Allowed {
    ranges: [Cell<(u64, u64)>; 4],
    /// The one that is replaced next.
    next: Cell<usize>,
    /// [`Memory::withdrawn`] when they were allowed.
    withdrawn: Cell<u64>,
}

impl Allowed {
    /// Forgets what may have been withdrawn.
    pub(crate) fn renew(&self, memory: &dyn Memory) {
        let withdrawn = memory.withdrawn();
        if withdrawn != self.withdrawn.replace(withdrawn) {
            self.ranges.iter().for_each(|r| r.set((0, 0)));
        }
    }

    /// Whether such an access lies in one of the ranges.
    pub(crate) fn known(&self, address: u64, bytes: u64) -> bool {
        self.ranges.iter().any(|r| {
            let (base, len) = r.get();
            let offset = address.wrapping_sub(base);
            offset < len && len - offset >= bytes
        })
    }

    /// Asks for a range, and notes it.
    pub(crate) fn ask(&self, memory: &dyn Memory, address: u64, bytes: u32) -> bool {
        let Some(range) = memory.range(address, bytes) else {
            return false;
        };
        let next = self.next.get();
        self.ranges[next].set(range);
        self.next.set((next + 1) % self.ranges.len());
        true
    }
}

/// What a step is given.
pub(crate) struct Surroundings<'a> {
    pub(crate) memory: &'a dyn Memory,
    pub(crate) clock: &'a dyn Clock,
    /// Lives as long as the block.
    pub(crate) output: *const dyn Output,
    /// Not 0: threads end at their next back edge.
    pub(crate) stop: &'a AtomicU32,
    /// Of code whose accesses are traced: the past of GPU memory.
    pub(crate) trace: *mut Trace,
}
