//! Stream memory operations: words that a stream stores and waits for without a kernel.

use ringbell_nic_abi::GpuVa;

/// One operation on a word of memory that the GPU reaches, at an address of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WordOp {
    /// Stores 64 bits, after all earlier writes of the stream are visible.
    Store64 {
        /// The word's address, aligned.
        va: GpuVa,
        /// The value.
        value: u64,
    },
    /// Stores 32 bits, likewise.
    Store32 {
        /// The word's address, aligned.
        va: GpuVa,
        /// The value.
        value: u32,
    },
    /// Holds the stream until 32 bits are equal to a value. It has no deadline: the waiting side
    /// must make sure that the value is stored in every case.
    WaitEqual32 {
        /// The word's address, aligned.
        va: GpuVa,
        /// The value that ends the wait.
        value: u32,
    },
}
