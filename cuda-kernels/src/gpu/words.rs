//! Words that a stream itself stores and waits for, without a kernel.

use ringbell_nic_abi::GpuVa;

/// One operation on a word of memory that the GPU reaches, at an address of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WordOp {
    /// Stores 64 bits, after everything that the stream did before is visible.
    Store64 {
        /// Where, aligned.
        va: GpuVa,
        /// What.
        value: u64,
    },
    /// Stores 32 bits, likewise.
    Store32 {
        /// Where, aligned.
        va: GpuVa,
        /// What.
        value: u32,
    },
    /// Holds the stream until 32 bits are equal to a value. It has no deadline of its own: somebody must store
    /// the value whatever happens.
    WaitEqual32 {
        /// Where, aligned.
        va: GpuVa,
        /// What is waited for.
        value: u32,
    },
}
