//! Open NICs of the C API, and what belongs to each.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ringbell::parts::nic_core::HostQueue;

use crate::failure::Failure;
#[cfg(feature = "cuda")]
use crate::foreign::Opened;
use crate::handles::Table;
use ringbell::job::Member;
use ringbell::memory::HostRegion;
use ringbell::{DeviceBuffer, HostBuffer, Nic, NicBuffer};

/// State of an `rb_nic`. Buffers and queues are dropped before the NIC.
pub(super) struct OpenNic {
    /// By address.
    pub(super) buffers: Mutex<BTreeMap<u64, DeviceBuffer>>,
    pub(super) others: Others,
    /// Memory of other processes.
    #[cfg(feature = "cuda")]
    pub(super) opened: Opened,
    /// Held for the kernels that have their handles.
    pub(super) queues: Mutex<Vec<HostQueue>>,
    /// Of `rb_nic_open_new_rank`, until `rb_comm_join` takes it.
    pub(super) member: Mutex<Option<Member>>,
    pub(super) nic: Nic,
}

pub(super) static NICS: Table<OpenNic> = Table::new("NIC (rb_nic)");

/// Memory besides the GPU's, by address.
#[derive(Default)]
pub(super) struct Others {
    pub(super) host: Mutex<BTreeMap<u64, HostBuffer>>,
    pub(super) registered: Mutex<BTreeMap<u64, HostRegion>>,
    pub(super) on_nic: Mutex<BTreeMap<u64, NicBuffer>>,
}

impl Others {
    /// Runs `copy` with the NIC memory that holds `bytes` at an address, and the offset in it;
    /// `None` when the address is no NIC memory.
    pub(super) fn with_nic_memory(
        &self,
        va: u64,
        copy: impl FnOnce(&NicBuffer, u64) -> Result<(), Failure>,
    ) -> Option<Result<(), Failure>> {
        let all = self.on_nic.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, buffer) = all.range(..=va).next_back()?;
        (va - start < buffer.len()).then(|| copy(buffer, va - start))
    }
}
