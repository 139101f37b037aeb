//! Pinned memory of the host as memory of the GPU: the NIC reaches it by plain loads and stores.
#![allow(unsafe_code)] // Raw copies: a kernel may write the memory at any time.

use std::ptr::NonNull;
use std::sync::atomic::{fence, Ordering};

use super::handles::PinnedBlock;
use super::mapper::GpuMapping;

/// The part of pinned memory that begins at a page of 64 KiB of the GPU.
#[derive(Debug)]
pub(super) struct PinnedMapping {
    pub(super) memory: PinnedBlock,
    /// Byte of the memory at which the range begins; the range lies inside.
    pub(super) start: usize,
}

impl GpuMapping for PinnedMapping {
    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.memory.at(self.start + offset as usize);
        // SAFETY: `CudaMemory` has checked the range against the allocation; a slice cannot overlap
        // it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.memory.at(self.start + offset as usize);
        // SAFETY: as for `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn flush(&self) {
        // Both data and completion lie in cached memory of the host: plain stores, in this order.
        fence(Ordering::Release);
    }

    fn reads_quickly(&self) -> bool {
        true
    }

    fn word(&self, offset: u64) -> Option<NonNull<u64>> {
        NonNull::new(self.memory.at(self.start + offset as usize).cast())
    }
}
