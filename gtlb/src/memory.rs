//! [`DmaMemory`]: the interface between the NIC and the memory that its DMA reads and writes.
#![allow(unsafe_code)] // A window is an address that other threads may use too.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Weak;

use ringbell_nic_abi::{GpuVa, WorkQueueEntry};

use crate::bus::BusSpan;
use crate::completion_write::CompletionWrite;

/// Number of an operation that a memory has not finished yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DmaId(pub u64);

/// One DMA operation. Spans never cross the end of what was translated.
#[derive(Debug)]
pub enum DmaOp<'a> {
    /// From memory to the NIC; `into` is as long as the span. When the answer is `Pending`, `into`
    /// is untouched and the bytes are fetched with [`DmaMemory::take`].
    Read {
        /// Source.
        from: BusSpan,
        /// Destination, on the NIC.
        into: &'a mut [u8],
    },
    /// From the NIC to memory. The bytes are taken at once, also when the answer is `Pending`.
    Write {
        /// Destination.
        to: BusSpan,
        /// Source, on the NIC.
        from: &'a [u8],
    },
    /// From memory to memory, past the NIC: spans of one length that do not overlap.
    Copy {
        /// Source.
        from: BusSpan,
        /// Destination.
        to: BusSpan,
    },
}

/// Answer to [`DmaMemory::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// The operation has finished.
    Done,
    /// It finishes later; [`DmaMemory::poll`] reports it.
    Pending(DmaId),
}

/// The bus refused an access: a defect of translation, never of the user's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The span is not backed by this memory.
    #[error("bus address {addr:#x} + {len} is not backed by memory")]
    OutOfRange {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The memory has no room for another pending operation: poll, then submit again.
    #[error("too many DMA operations in flight; poll before the next")]
    Busy,
    /// The memory cannot copy between these two places by itself: read and write instead.
    #[error("the memory cannot copy from {from:#x} to {to:#x} by itself; read and write instead")]
    NoCopy {
        /// First byte of the source.
        from: u64,
        /// First byte of the destination.
        to: u64,
    },
    /// The device that the memory belongs to does not work any more.
    #[error("the memory's device is lost; its own error says why")]
    Lost,
}

/// Memory of the host as a GPU sees it: queues, completion lines, the BAR.
pub struct Exposed {
    va: GpuVa,
    _guard: Option<Box<dyn Send + Sync>>,
}

impl std::fmt::Debug for Exposed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exposed({})", self.va)
    }
}

impl Exposed {
    /// At its own address, to kernels that run on threads of this process.
    pub fn same(base: NonNull<u8>) -> Exposed {
        Exposed {
            va: GpuVa(base.as_ptr() as u64),
            _guard: None,
        }
    }

    /// As [`Exposed::same`], until `guard` is dropped.
    pub fn same_while(base: NonNull<u8>, guard: Box<dyn Send + Sync>) -> Exposed {
        Exposed {
            _guard: Some(guard),
            ..Exposed::same(base)
        }
    }

    /// At an address of the GPU's, until `guard` is dropped.
    pub fn pinned(va: GpuVa, guard: Box<dyn Send + Sync>) -> Exposed {
        Exposed {
            va,
            _guard: Some(guard),
        }
    }

    /// Where the GPU sees the first byte.
    pub fn va(&self) -> GpuVa {
        self.va
    }
}

/// A NIC, for threads of this process that run kernels: they step it while their kernels wait.
pub trait WaitHook: Send + Sync {
    /// One turn of waiting: steps the NIC, and may yield or sleep for a moment after many turns in
    /// which nothing moved, which `idle` counts. Before it sleeps it asks whether what the caller
    /// waits for is `done`. Returns whether something moved.
    fn turn(&self, idle: u32, done: &dyn Fn() -> bool) -> bool;
    /// Whether there is no NIC behind it any more.
    fn is_gone(&self) -> bool {
        false
    }
}

/// A memory whose whole bus range `0..len` the CPU can reach directly at `base`.
///
/// Another agent (kernel, peer) may write it at any time: volatile or atomic copies only, never a
/// `&[u8]`.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Where bus address `bus` lies.
    pub base: *mut u8,
    /// First bus address of the window.
    pub bus: u64,
    /// Bytes.
    pub len: u64,
}

// SAFETY: a Window is an address and a length; a caller that dereferences it keeps the rule above.
unsafe impl Send for Window {}
// SAFETY: as for Send.
unsafe impl Sync for Window {}

impl Window {
    /// The CPU address of a span, when the span lies in the window.
    pub fn at(&self, span: BusSpan) -> Option<*mut u8> {
        let off = span.addr.value().checked_sub(self.bus)?;
        if off.checked_add(span.len)? > self.len {
            return None;
        }
        Some(self.base.wrapping_add(off as usize))
    }
}

/// Where an entry of a queue lies, as addresses of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlace {
    /// Its first word.
    pub entry: u64,
    /// The first word of its completion line.
    pub line: u64,
}

/// A part of the memory that a NIC of the same host and user may map: a memfd and its place on the
/// bus.
#[derive(Debug)]
pub struct Export<'a> {
    /// The memfd, with its size sealed.
    pub fd: BorrowedFd<'a>,
    /// First byte in the file.
    pub file_offset: u64,
    /// Bus address of that byte.
    pub bus: u64,
    /// Bytes.
    pub len: u64,
}

/// Memory that the NIC reads and writes by DMA, addressed by [`BusAddr`](crate::BusAddr).
///
/// Asynchronous: host memory answers `Done`, a copy engine `Pending`. No caller above sees a
/// pointer, except through the optional fast path [`DmaMemory::window`].
pub trait DmaMemory: Send + Sync {
    /// Starts an operation.
    ///
    /// # Errors
    /// [`BusError::OutOfRange`] when the span is not backed; [`BusError::Busy`] when no more
    /// operations can be pending (nothing was started).
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError>;

    /// The next operation that has finished since it was answered `Pending`.
    ///
    /// Also drives an asynchronous memory: its owner calls this in every step, because a completion
    /// write may wait for it too. `None` means "none now", not "all done".
    fn poll(&self) -> Option<DmaId>;

    /// Fetches the bytes of a finished pending read, once.
    fn take(&self, id: DmaId, into: &mut [u8]);

    /// A place in the order of what was submitted, for [`DmaMemory::has_landed`].
    ///
    /// A memory whose writes and completions are done when `submit` and `publish` return needs
    /// neither.
    fn mark(&self) -> u64 {
        0
    }

    /// Whether every write and copy submitted before the mark has landed, and every completion
    /// published before it was stored: another engine or process that reads the memory from now on
    /// sees them. A NIC asks before it tells a peer where to read, and before it frees a queue's
    /// lines.
    fn has_landed(&self, mark: u64) -> bool {
        let _ = mark;
        true
    }

    /// Makes a completion visible after every write and copy submitted before it, and not earlier:
    /// data first, then the word of the completion. So an operation that was cancelled while a copy
    /// of its own was in flight is completed when nothing writes its buffer any more.
    fn publish(&self, completion: CompletionWrite);

    /// An aligned 64-bit word that the CPU reaches although there is no window, for one access of
    /// it, which may be a store: kernels and NICs access it atomically, and it stays mapped as long
    /// as the memory.
    fn word(&self, span: BusSpan, store: bool) -> Option<NonNull<AtomicU64>> {
        let _ = (span, store);
        None
    }

    /// The access of a word that [`word`](DmaMemory::word) gave has shown its value: what the word
    /// announces happened before what follows. Told to memories without a window alone.
    fn word_was_read(&self, span: BusSpan) {
        let _ = span;
    }

    /// The NIC begins to execute an entry. Told to memories without a window alone.
    fn begins(&self, entry: &WorkQueueEntry, place: EntryPlace) {
        let _ = (entry, place);
    }

    /// The whole memory mapped for the CPU, when it is; then every operation is `Done` at once.
    fn window(&self) -> Option<Window> {
        None
    }

    /// Whether every operation is `Done` when [`submit`](DmaMemory::submit) returns, and every
    /// completion stored when [`publish`](DmaMemory::publish) does: then nothing is ever polled
    /// for, and what is read at once need not be kept.
    fn is_immediate(&self) -> bool {
        self.window().is_some()
    }

    /// Lets the GPU reach memory of the host that it shares with the NIC. The memory stays mapped
    /// until the answer was dropped. An emulated GPU sees it anyway.
    ///
    /// # Errors
    /// The GPU's driver refused, in its own words.
    fn expose(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        let _ = len;
        Ok(Exposed::same(base))
    }

    /// Words in the GPU's own memory, which hold `initial` until the answer was dropped. Only
    /// kernels use them: their atomics on host memory are round trips over PCIe, and atomic with
    /// the CPU's only where PCIe has atomics. `None` where kernels are host threads, and reach host
    /// memory as the NIC does.
    ///
    /// # Errors
    /// The GPU's driver refused, in its own words.
    fn device_words(&self, initial: &[u32]) -> std::io::Result<Option<Exposed>> {
        let _ = initial;
        Ok(None)
    }

    /// Lets the GPU reach the registers of a device, which are no memory: a BAR that is mapped at
    /// `base` until the answer was dropped. An emulated GPU sees it anyway.
    ///
    /// # Errors
    /// The GPU's driver refused, in its own words; a thread of the host must then ring for kernels.
    fn expose_io(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        let _ = len;
        Ok(Exposed::same(base))
    }

    /// Lets kernels read and write memory of the host that is registered with the NIC, until the
    /// answer was dropped, if that costs nothing: on an emulated GPU. A real one reaches what
    /// [`expose`](DmaMemory::expose) has pinned.
    fn registered(&self, base: NonNull<u8>, len: usize) -> Option<Exposed> {
        let _ = (base, len);
        None
    }

    /// Kernels may have queues of this NIC, whose address is `name`: threads of this process that
    /// run them call it while they wait. A real GPU's kernels run by themselves.
    fn on_wait(&self, nic: Weak<dyn WaitHook>, name: &str) {
        let _ = (nic, name);
    }

    /// What NICs of the same host and user may map, for the `local` transport.
    fn exports(&self) -> Vec<Export<'_>> {
        Vec::new()
    }
}
