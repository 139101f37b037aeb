//! Allocations of other processes that this process has open.
//!
//! An allocation is opened once, however many parts of it are used. It is known by values that do
//! not repeat: the driver's handle, the allocation's number in its process, and the process's
//! random number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::CUresult;
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::deferred_release::Resource;
use super::ipc_handles::Handle;
use super::memory::CudaMemory;
use super::{ipc_handles, pointer};
use crate::cuda_error::CudaError;
use crate::gpu::SharedMemory;
use crate::locks::lock;

/// Why opened memory is not mapped for the CPU.
pub(super) const OF_ANOTHER_PROCESS: &str =
    "the memory is another process's, and only the process that has allocated it can map it";

/// The identity of an allocation of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct AllocationKey {
    handle: Handle,
    process: u64,
    identity: u64,
}

/// An allocation that is open here.
#[derive(Debug, Clone, Copy)]
struct OpenEntry {
    users: usize,
    base: u64,
    size: u64,
}

/// The allocations of other processes that this one has open.
#[derive(Debug, Default)]
pub(super) struct OpenAllocations {
    open: Mutex<HashMap<AllocationKey, OpenEntry>>,
}

impl OpenAllocations {
    fn open(&self) -> MutexGuard<'_, HashMap<AllocationKey, OpenEntry>> {
        lock(&self.open)
    }
}

/// One use of an open allocation; the last one closes it.
#[derive(Debug)]
pub(super) struct OpenAllocation {
    key: AllocationKey,
    all: Arc<OpenAllocations>,
    memory: Arc<CudaMemory>,
    context: Arc<Context>,
}

impl Drop for OpenAllocation {
    fn drop(&mut self) {
        // Under the lock to the end: another opener finds the allocation open, or closed.
        let mut open = self.all.open();
        let Some(entry) = open.get_mut(&self.key) else {
            return;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let base = entry.base;
        open.remove(&self.key);
        self.memory.free(GpuVa(base));
        close(&self.context, base);
    }
}

/// Closes an opened allocation, once no kernel runs.
fn close(context: &Context, base: u64) {
    context.deferred.release(Resource::Opened(base));
}

/// Opens an allocation, or counts one more use of an open one. Returns its base and its size here
/// too.
pub(super) fn open(
    context: &Arc<Context>,
    memory: &Arc<CudaMemory>,
    all: &Arc<OpenAllocations>,
    shared: &SharedMemory,
) -> Result<(OpenAllocation, u64, u64), CudaError> {
    ipc_handles::needed()?;
    let key = AllocationKey {
        handle: shared.handle,
        process: shared.process,
        identity: shared.identity,
    };
    let hold = || OpenAllocation {
        key,
        all: all.clone(),
        memory: memory.clone(),
        context: context.clone(),
    };
    let mut open = all.open();
    if let Some(entry) = open.get_mut(&key) {
        entry.users += 1;
        return Ok((hold(), entry.base, entry.size));
    }
    context.bind()?;
    let (result, base) = ipc_handles::open(&shared.handle);
    let pid = shared.pid;
    match result {
        // The driver's own answer to a handle of this process.
        CUresult::CUDA_ERROR_INVALID_CONTEXT => return Err(CudaError::SameProcess { pid }),
        CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_INVALID_HANDLE
        | CUresult::CUDA_ERROR_MAP_FAILED => return Err(CudaError::Stale { pid }),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let (bytes, what) = (shared.len, "GPU address space");
            return Err(CudaError::OutOfMemory { bytes, what });
        }
        r => context.check("cuIpcOpenMemHandle", r)?,
    }
    let opened = pointer::allocation_around(context, base)
        .and_then(|(first, size)| match shared.offset + shared.len <= size {
            true if first == base => Ok(size),
            _ => Err(CudaError::Stale { pid }),
        })
        .and_then(|size| {
            let adopted = memory.adopt(GpuVa(base), size, Err(OF_ANOTHER_PROCESS));
            adopted.map(|_| size)
        });
    match opened {
        Ok(size) => {
            let users = 1;
            open.insert(key, OpenEntry { users, base, size });
            Ok((hold(), base, size))
        }
        Err(e) => {
            close(context, base);
            Err(e)
        }
    }
}
