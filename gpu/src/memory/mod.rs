//! Which addresses a kernel may access, the time it sees, and where its text goes: what the
//! surroundings of this crate provide.

use crate::check::Checker;

/// Memory outside of a block: GPU memory, which compiled code checks by itself, and what else a
/// kernel may reach.
pub trait Memory: Sync {
    /// Whether a kernel may access `bytes` bytes at this address outside GPU memory: queues and
    /// registers of a device that the host has exposed. Asked for accesses that are not in GPU
    /// memory.
    fn allows(&self, address: u64, bytes: u32) -> bool;

    /// Where an address that was refused lies, in words: next to what is allocated. For the error
    /// of a fault.
    fn nearest(&self, _address: u64) -> Option<String> {
        None
    }

    /// What kernels that were compiled with checks ask. One without such kernels has none.
    fn checker(&self) -> Option<&Checker> {
        None
    }

    /// As [`allows`](Memory::allows), with first address and bytes of all around that a kernel may
    /// access too. It is not asked again for what lies inside, until
    /// [`withdrawn`](Memory::withdrawn) has another answer.
    fn range(&self, address: u64, bytes: u32) -> Option<(u64, u64)> {
        self.allows(address, bytes)
            .then_some((address, u64::from(bytes)))
    }

    /// Counts ranges that a kernel may no longer access.
    fn withdrawn(&self) -> u64 {
        0
    }
}

/// The time of `%globaltimer`, `%clock64` and `nanosleep`.
pub trait Clock: Sync {
    /// Nanoseconds.
    fn now_ns(&self) -> u64;
}

/// Where the text of kernels goes.
pub trait Output: Send + Sync {
    /// One call's text, whole.
    fn print(&self, text: &[u8]);
}
