//! Checks of kernels while they run: a second compilation of a kernel with hooks, and what the
//! hooks ask.
//!
//! - `allocations`: which memory is allocated, which was freed, and what lies next to an address;
//! - `addressable`: the same as one byte for 8 bytes of memory, which compiled code reads;
//! - `watch`: a launch under checks, and what was found in it; `sync`: barriers and warp
//!   operations;
//! - `trace`: the past of accesses, fences and barriers: races, and memory that nobody has written.
//!   `access` says how one is made, `shadow` remembers them, `clock` what happened before what,
//!   `written` which bytes were written, `operations` what the NIC executes;
//! - `layout`: variables in shared and local memory, with gaps between them.
//!
//! The surroundings own a [`Checker`] for each memory, and answer it in
//! [`Memory::checker`](crate::Memory::checker). Code that was compiled without hooks does not know
//! of it.
#![allow(unsafe_code)] // Compiled code reads the map of addressable memory.

mod access;
mod addressable;
mod allocations;
mod clock;
mod layout;
mod operations;
#[cfg(test)]
mod reference;
mod shadow;
mod sync;
mod trace;
mod watch;
mod written;

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use access::How;
pub use allocations::Allocations;
pub(crate) use layout::{marked, Layout};
pub use operations::{Message, Operation};
pub(crate) use sync::Place;
pub(crate) use trace::{BlockTrace, Trace};
pub use watch::Watch;

use addressable::Addressable;

use crate::lower::Kernel;
use crate::module::{MemoryOrder, Scope, Site};
use crate::schedule::Shape;

/// Which checks a kernel is compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Checks {
    /// Accesses outside of what is allocated: `memcheck`.
    pub memory: bool,
    /// Reads of shared and GPU memory that nobody has written: `initcheck`.
    pub initialised: bool,
    /// Accesses of the same bytes without an order between them: `racecheck`.
    pub races: bool,
    /// Barriers under divergence, wrong masks, values of lanes that give none: `synccheck`.
    pub sync: bool,
}

impl Checks {
    /// Every check.
    pub const ALL: Checks = Checks {
        memory: true,
        initialised: true,
        races: true,
        sync: true,
    };

    /// The checks of both.
    pub fn and(self, other: Checks) -> Checks {
        Checks {
            memory: self.memory || other.memory,
            initialised: self.initialised || other.initialised,
            races: self.races || other.races,
            sync: self.sync || other.sync,
        }
    }

    /// Whether accesses are traced.
    pub fn traced(self) -> bool {
        self.initialised || self.races
    }

    /// Whether there is one.
    pub fn any(self) -> bool {
        self != Checks::default()
    }
}

impl FromStr for Checks {
    type Err = String;

    /// Names between commas, or `all`.
    fn from_str(s: &str) -> Result<Checks, String> {
        let mut checks = Checks::default();
        for name in s.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match name {
                "all" => checks = Checks::ALL,
                "memcheck" => checks.memory = true,
                "initcheck" => checks.initialised = true,
                "racecheck" => checks.races = true,
                "synccheck" => checks.sync = true,
                _ => {
                    let known = "memcheck, initcheck, racecheck, synccheck and all";
                    return Err(format!("there is no check `{name}`; there are {known}"));
                }
            }
        }
        Ok(checks)
    }
}

/// What the checks of one GPU memory know.
#[derive(Debug)]
pub struct Checker {
    checks: Checks,
    addressable: Addressable,
    trace: Mutex<Trace>,
    /// Threads of the host, and of the NIC, that wait for the trace.
    waiting: AtomicU32,
}

impl Checker {
    /// Of `bytes` bytes of GPU memory from `base`, which is aligned to 64 KiB. Nothing is allocated
    /// yet.
    pub fn new(checks: Checks, base: u64, bytes: u64) -> Checker {
        Checker {
            checks,
            addressable: Addressable::new(base, bytes),
            trace: Mutex::new(Trace::new(checks, base, bytes)),
            waiting: AtomicU32::new(0),
        }
    }

    /// The checks that kernels are to be compiled with.
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// Memory was allocated; its address is a multiple of 16.
    pub fn allocated(&self, address: u64, bytes: u64) {
        self.addressable.set(address, bytes, true);
        self.trace().allocated(address, bytes);
    }

    /// Memory was freed: its first byte and length, as it was allocated.
    pub fn freed(&self, address: u64, bytes: u64) {
        self.addressable.set(address, bytes, false);
    }

    /// A launch begins. `describe` says in words where a place of the kernel is.
    pub fn launch(
        &self,
        kernel: &Arc<Kernel>,
        shape: Shape,
        describe: impl Fn(Site) -> String + Send + Sync + 'static,
    ) -> Arc<Watch> {
        let watch = Watch::new(kernel.clone(), shape, Box::new(describe));
        let watch = Arc::new(watch);
        let run = self.trace().begin(&watch);
        watch.run.store(run, Ordering::Relaxed);
        watch
    }

    /// All blocks of a launch have ended, or will not begin.
    pub fn ended(&self, watch: &Watch) {
        let run = watch.run.swap(u32::MAX, Ordering::Relaxed);
        if run != u32::MAX {
            self.trace().end(run);
        }
    }

    /// The host has written bytes of GPU memory, or reads them.
    pub fn host(&self, address: u64, bytes: u64, store: bool) {
        let how = How::new(0, store);
        self.trace().host(address, bytes, how);
    }

    /// The host is about to store a word of GPU memory with release, or has loaded one with
    /// acquire.
    pub fn host_word(&self, address: u64, bytes: u64, store: bool) {
        let order = match store {
            true => MemoryOrder::Release,
            false => MemoryOrder::Acquire,
        };
        let how = How::new(0, store).ordered(order, Scope::System);
        self.trace().host(address, bytes, how);
    }

    /// The NIC begins an operation.
    pub fn begins(&self, operation: Operation) {
        self.trace().begins(operation);
    }

    /// The NIC is about to write the completion in this line.
    pub fn ends(&self, line: u64) {
        self.trace().ends(line);
    }

    /// The NIC has written bytes of GPU memory, or reads them. A word orders what it has done
    /// before. Reads are of words, as the bus makes them: a peer may get what kernels write by
    /// strong stores at that time, and look at a version.
    pub fn nic(&self, address: u64, bytes: u64, store: bool) {
        let how = match (bytes, store) {
            (1..=16, true) => How::new(0, true).ordered(MemoryOrder::Release, Scope::System),
            (_, true) => How::new(0, true),
            (_, false) => How::new(0, false).ordered(MemoryOrder::Relaxed, Scope::System),
        };
        self.trace().nic(address, bytes, how);
    }

    /// The NIC is about to update a word of GPU memory, or has loaded it.
    pub fn nic_word(&self, address: u64, store: bool) {
        let how = match store {
            true => How::new(0, true)
                .ordered(MemoryOrder::AcqRel, Scope::System)
                .atomic(),
            false => How::new(0, false).ordered(MemoryOrder::Acquire, Scope::System),
        };
        self.trace().nic(address, 8, how);
    }

    /// The past of the memory, for the host and the NIC: before the next step of a block.
    fn trace(&self) -> MutexGuard<'_, Trace> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        trace
    }

    /// The same for a step of a traced block. Blocks that spin take it again and again: others come
    /// first, because a lock is not fair.
    pub(crate) fn trace_of_step(&self) -> MutexGuard<'_, Trace> {
        for _ in 0..10_000 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For compiled code: a byte for each 8 bytes of GPU memory, 8 if all of them are allocated.
    pub(crate) fn map(&self) -> *const u8 {
        self.addressable.map()
    }
}
