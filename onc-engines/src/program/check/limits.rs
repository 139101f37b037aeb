//! What an executor can do.

/// Limits of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Slots of NIC memory that a rank may use.
    pub scratch_chunks: u32,
    /// Chunks that source and destination may have.
    pub buffer_chunks: u32,
    /// Operands of a step, and results, outside of `DIRECT` programs (ACCL+ §4.3: two).
    pub operands: usize,
    /// Steps of one rank.
    pub steps: usize,
    /// Messages from one sender that a receiver can put aside while it waits for a later one of
    /// that sender. At 0 every rank must take a sender's messages in the order they were sent, also
    /// on different channels.
    pub put_aside: usize,
    /// Programs may read and write memory of peers (`DIRECT`).
    pub peers: bool,
    /// Programs may use a kernel's stream.
    pub streams: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            scratch_chunks: 1 << 16,
            buffer_chunks: 1 << 16,
            operands: 2,
            steps: 1 << 16,
            put_aside: 0,
            peers: true,
            streams: true,
        }
    }
}
