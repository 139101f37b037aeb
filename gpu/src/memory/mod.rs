//! Which addresses a kernel may access, and the time it sees: what the surroundings of this crate provide.

/// Memory outside of a block: GPU memory, which compiled code checks by itself, and what else a kernel may reach.
pub trait Memory: Sync {
    /// Whether a kernel may access `bytes` bytes at this address outside GPU memory: queues and registers of a device
    /// that the host has exposed. Asked for accesses that are not in GPU memory.
    fn allows(&self, address: u64, bytes: u32) -> bool;
}

/// The time of `%globaltimer`, `%clock64` and `nanosleep`.
pub trait Clock: Sync {
    /// Nanoseconds.
    fn now_ns(&self) -> u64;
}
