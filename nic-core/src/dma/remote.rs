//! DMA for peers: memory that a remote key names, and atomic updates of its words.

use std::sync::atomic::Ordering;

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};

use super::Dma;
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

    /// Keeps a region that was just checked, until as many [`release`](RemoteMemory::release)s.
    fn hold(&mut self, region: u32);

    /// Lets a held region go.
    fn release(&mut self, region: u32);
}

impl RemoteMemory for Dma<'_> {
    fn remote(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        va: GpuVa,
        len: u32,
        need: Need,
    ) -> Result<Buffer, Fault> {
        let (region, _) = self.mmu.check_remote(domains, rkey, va, len.into(), need)?;
        Ok(Buffer { region, va, len })
    }

    fn remote_word(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        within: GpuVa,
        index: u32,
    ) -> Result<Buffer, Fault> {
        let need = Need::RemoteWrite;
        let (region, start) = self.mmu.check_remote(domains, rkey, within, 0, need)?;
        let va = GpuVa(start.0.saturating_add(u64::from(index) * 8));
        self.mmu.check_remote(domains, rkey, va, 8, need)?;
        Ok(Buffer { region, va, len: 8 })
    }

    fn update_word(&mut self, word: &Buffer, update: WordUpdate) -> Result<u64, (Status, u64)> {
        if !word.va.0.is_multiple_of(8) {
            return Err((Status::InvalidArgument, word.va.0));
        }
        // Release: after the bytes that a signal announces; pairs with the Acquire load of a
        // kernel's wait. Acquire: what follows in the same session comes after what the value has
        // shown.
        let before = self.access_word(word, true, |w| match update {
            WordUpdate::Add(n) => w.fetch_add(n, Ordering::AcqRel),
            WordUpdate::Set(n) => w.swap(n, Ordering::AcqRel),
            WordUpdate::CompareSwap { compare, swap } => w
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|other| other),
        });
        before
            .map_err(Fault::status)?
            .ok_or((Status::Unsupported, word.va.0))
    }

    fn hold(&mut self, region: u32) {
        // A pin has no destructor: it counts until `release`.
        let _pin = self.mmu.hold(region);
    }

    fn release(&mut self, region: u32) {
        self.mmu.unpin(ringbell_gtlb::Pin { region });
    }
}
