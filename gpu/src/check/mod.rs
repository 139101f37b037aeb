//! Checks of kernels while they run: what the hooks of a second compilation ask.
//!
//! - `allocations`: which memory is allocated, which was freed, and what lies next to an address;
//! - `addressable`: the same as one byte for 8 bytes of memory, which compiled code reads;
//! - `watch`: a launch under checks, and what was found in it;
//! - `trace`: the past of accesses, fences and barriers: races, and memory that was never written.
//!   `shadow` remembers accesses, `clock` what happened before what, `written` which bytes were
//!   written, `operations` what the NIC executes.
//!
//! The surroundings own a [`Checker`] for each memory, and answer it in
//! [`Memory::checker`](crate::Memory::checker). Code that was compiled without hooks does not know
//! of it.
#![allow(unsafe_code)] // Compiled code reads the map of addressable memory.

mod addressable;
mod allocations;
mod clock;
mod operations;
#[cfg(test)]
mod reference;
mod shadow;
mod trace;
mod watch;
mod written;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use allocations::Allocations;
pub use operations::{Message, Operation};
pub(crate) use trace::{BlockTrace, Trace};
pub(crate) use watch::thread;
pub use watch::Watch;

use addressable::Addressable;

use crate::code::{Kernel, Shape};
use crate::hooks::{Checks, How};
use crate::module::{MemoryOrder, Scope, Site};

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
