//! Faults: the reasons for refusing an access, each with the address that a kernel's completion
//! names.

use ringbell_nic_abi::{GpuVa, Status};

/// An access that the NIC refused instead of touching memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No region of the protection domain covers the address.
    #[error("no memory region covers {va}; register the buffer before using it")]
    NotRegistered {
        /// First byte of the access.
        va: GpuVa,
    },
    /// The range leaves its region.
    #[error("the access at {va} runs past the end of its region at {end}")]
    OutOfBounds {
        /// First byte of the access.
        va: GpuVa,
        /// First byte after the region.
        end: GpuVa,
    },
    /// The region does not grant the access.
    #[error("the region at {va} does not grant the access")]
    AccessDenied {
        /// First byte of the access.
        va: GpuVa,
    },
    /// The key names no region of this domain.
    #[error("key {key:#x} names no region of this protection domain")]
    BadKey {
        /// The key presented.
        key: u32,
    },
    /// The TLB has no entry and refill is off or has none either.
    #[error("the GTLB has no translation for {va}")]
    NoTranslation {
        /// The address that missed.
        va: GpuVa,
    },
    /// The region is being, or has been, freed.
    #[error("the region at {va} was freed")]
    RegionFreed {
        /// The address.
        va: GpuVa,
    },
}

impl Fault {
    /// The completion status and detail word for this fault.
    pub const fn status(self) -> (Status, u64) {
        match self {
            Fault::NotRegistered { va } => (Status::NotRegistered, va.0),
            Fault::OutOfBounds { end, .. } => (Status::OutOfBounds, end.0),
            Fault::AccessDenied { va } => (Status::AccessDenied, va.0),
            Fault::BadKey { key } => (Status::BadKey, key as u64),
            Fault::NoTranslation { va } => (Status::NoTranslation, va.0),
            Fault::RegionFreed { va } => (Status::RegionFreed, va.0),
        }
    }
}
