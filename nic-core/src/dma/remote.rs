//! DMA for peers: memory that a remote key names, and atomic updates of its words.

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};

use crate::types::Buffer;

/// An update of an aligned 64-bit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordUpdate {
    /// Adds, wrapping.
    Add(u64),
    /// Stores.
    Set(u64),
    /// Stores `swap` if the word is equal to `compare`.
    CompareSwap {
        /// What the word must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
}

/// Memory of this NIC as peers name it. All methods are for the length of a step:
/// [`hold`](RemoteMemory::hold) keeps a region for longer.
pub trait RemoteMemory {
    /// The bytes that a peer names, when its key and one of these domains grant the access.
    ///
    /// # Errors
    /// The [`Fault`] for the peer's completion.
    fn remote(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        va: GpuVa,
        len: u32,
        need: Need,
    ) -> Result<Buffer, Fault>;

    /// Word number `index` of the region that a peer names, for writing.
    ///
    /// # Errors
    /// As [`remote`](RemoteMemory::remote).
    fn remote_word(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        within: GpuVa,
        index: u32,
    ) -> Result<Buffer, Fault>;

    /// Updates a word and returns its value before. Atomic with respect to kernels and other NICs;
    /// ordered behind every write before it, and seen by an acquiring reader together with them.
    ///
    /// # Errors
    /// Status and detail: a fault, `InvalidArgument` for an address that is no multiple of 8,
    /// `Unsupported` for memory that the CPU does not reach.
    fn update_word(&mut self, word: &Buffer, update: WordUpdate) -> Result<u64, (Status, u64)>;

    /// A place in the order of what was written, where bytes may land later than they are written:
    /// in memory behind a copy engine. `None`: all of them are in place.
    fn mark(&self) -> Option<u64> {
        None
    }

    /// Whether every byte that was written before the mark is in place.
    fn has_landed(&self, mark: u64) -> bool {
        let _ = mark;
        true
    }

    /// Keeps a region that was just checked, until as many [`release`](RemoteMemory::release)s.
    fn hold(&mut self, region: u32);

    /// Lets a held region go.
    fn release(&mut self, region: u32);
}
