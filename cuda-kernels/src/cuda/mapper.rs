//! The seam for mappings of GPU memory into the CPU's address space: GDRCopy, or a dma-buf.
//!
//! With one, the NIC reaches GPU memory by plain loads and stores; without, by the copy engine.

use std::fmt::Debug;

use ringbell_nic_abi::GpuVa;

/// Maps GPU memory for the CPU.
pub trait GpuMapper: Debug + Send + Sync {
    /// Name for people, such as `GDRCopy 2.5`.
    fn name(&self) -> String;

    /// Maps `len` bytes from `va`, both multiples of 64 KiB, of one allocation that lives longer than
    /// the mapping.
    ///
    /// # Errors
    /// Why not, in words; the copy engine serves the memory then.
    fn map(&self, va: GpuVa, len: u64) -> Result<Box<dyn GpuMapping>, String>;
}

/// GPU memory mapped for the CPU. Offsets are inside it.
pub trait GpuMapping: Debug + Send + Sync {
    /// Stores bytes. They may wait in the CPU's write-combining buffers until [`GpuMapping::flush`].
    fn write(&self, offset: u64, from: &[u8]);
    /// Loads bytes; expensive, about a microsecond for each line (gdrcopy's README).
    fn read(&self, offset: u64, into: &mut [u8]);
    /// Makes everything stored so far visible to the GPU before any later store to host memory.
    fn flush(&self);
}
