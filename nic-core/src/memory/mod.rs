//! Memory of every kind in one address space: what queues of a domain may name in a descriptor.
//!
//! | kind | address | bus range | reached by |
//! |---|---|---|---|
//! | GPU | the kernel's pointer | the driver's | the GTLB, page by page |
//! | host | the program's pointer | [`HOST_BUS`] plus the pointer | identity: no entry, no page size |
//! | NIC | one that no program dereferences | [`NIC_BUS`] | identity: NIC memory is one piece |
//!
//! Because a CUDA kernel and its host program share one address space, an address alone says which
//! kind it is, so that each call takes any of them, interior addresses included (key 0 finds the
//! region). [`Nic::pointer_info`](crate::Nic::pointer_info) reports it, like
//! `cudaPointerGetAttributes`.
//!
//! Nothing is pinned on a software NIC: a page that the system swaps out comes back when the NIC
//! touches it, so `ulimit -l` does not matter. What registration does is *populate*: it makes every
//! page present and, by that, finds the first one that is not mapped or forbids the access.
//!
//! [`HOST_BUS`]: crate::memory::nic_memory::HOST_BUS
//! [`NIC_BUS`]: crate::memory::nic_memory::NIC_BUS

pub(crate) mod exports;
pub(crate) mod lender;
pub(crate) mod nic_memory;

pub use exports::Sharer;

use ringbell_gtlb::populate::NotMapped;
use ringbell_gtlb::{DeregisterError, MemoryRegion, RegionInfo, RegisterError};
use ringbell_nic_abi::{GpuVa, Lkey};

use crate::memory::nic_memory::{HOST_BUS, NIC_BUS};

/// What kind of memory an address lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The GPU's.
    Gpu,
    /// The host program's.
    Host,
    /// The NIC's own.
    Nic,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryKind::Gpu => "GPU memory",
            MemoryKind::Host => "host memory",
            MemoryKind::Nic => "NIC memory",
        })
    }
}

/// The NIC's record of an address; see [`Nic::pointer_info`](crate::Nic::pointer_info).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointerInfo {
    /// Which memory it lies in.
    pub kind: MemoryKind,
    /// The registered region around it.
    pub region: MemoryRegion,
    /// Bytes from the region's start.
    pub offset: u64,
    /// Operations of the NIC that use the region now.
    pub operations: u32,
}

/// Why memory was not registered, or not allocated. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Registered twice.
    #[error("{len} bytes at {va} are registered already ({lkey}); use that registration, or end it first")]
    AlreadyRegistered {
        /// First byte.
        va: GpuVa,
        /// Bytes.
        len: u64,
        /// Key of the registration.
        lkey: Lkey,
    },
    /// Part of it belongs to another region.
    #[error("{len} bytes at {va} overlap {other_len} bytes of {kind} at {other}; register each byte once, for the largest range that is used")]
    Overlaps {
        /// First byte asked for.
        va: GpuVa,
        /// Bytes asked for.
        len: u64,
        /// Kind of the other region.
        kind: MemoryKind,
        /// Its first byte.
        other: GpuVa,
        /// Its bytes.
        other_len: u64,
    },
    /// The same bytes are still held by an earlier registration.
    #[error("{len} bytes at {va} overlap a registration at {other} that is being ended with {operations} operations in flight; wait for it")]
    StillFreeing {
        /// First byte asked for.
        va: GpuVa,
        /// Bytes asked for.
        len: u64,
        /// First byte of the earlier one.
        other: GpuVa,
        /// What it waits for.
        operations: u32,
    },
    /// There is no memory, or not with these rights.
    #[error(transparent)]
    NotMapped(#[from] NotMapped),
    /// The MMU's answer.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The NIC's memory has no free piece of that length.
    #[error("NIC memory has no free piece of {len} bytes ({used} of {total} in use); free some, or raise the setting `nic_memory_bytes`")]
    NicMemoryFull {
        /// Bytes asked for.
        len: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The system refused memory.
    #[error("the system refused {len} bytes of host memory: {source}")]
    System {
        /// Bytes asked for.
        len: u64,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}

/// Memory that could not be given back (yet). It stays mapped, so nothing is reused too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// DMA did not end before the deadline, or the region is unknown.
    #[error(transparent)]
    Region(#[from] DeregisterError),
    /// Peers were asked to unmap it and have not answered.
    #[error("{peers} peers still map the memory at {va} after {waited:?}; they are stopped or overloaded, so its pages are kept from reuse (setting `deregister_timeout`)")]
    Mapped {
        /// First byte.
        va: GpuVa,
        /// How many have not answered.
        peers: usize,
        /// How long they had.
        waited: std::time::Duration,
    },
}

/// A copy that leaves its buffer. Nothing was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at offset {offset} leave the buffer of {len} bytes")]
pub struct RangeError {
    /// Where the copy was to start.
    pub offset: u64,
    /// How long it was to be.
    pub bytes: u64,
    /// Bytes of the buffer.
    pub len: u64,
}

impl RangeError {
    pub(crate) fn check(offset: u64, bytes: usize, len: u64) -> Result<(), RangeError> {
        let bytes = bytes as u64;
        match offset.checked_add(bytes) {
            Some(end) if end <= len => Ok(()),
            _ => Err(RangeError { offset, bytes, len }),
        }
    }
}

/// Which memory a region is of.
pub(crate) fn kind_of(info: &RegionInfo) -> MemoryKind {
    match info.flat {
        None => MemoryKind::Gpu,
        Some(bus) if bus >= HOST_BUS => MemoryKind::Host,
        Some(bus) if bus >= NIC_BUS => MemoryKind::Nic,
        // Below NIC memory lies what the GPU's driver reports.
        Some(_) => MemoryKind::Gpu,
    }
}
