//! GPU memory between processes: CUDA's IPC handles (CUDA driver API, `cuIpcGetMemHandle`).
//!
//! The driver shares whole allocations; a part is a handle and an offset. Here an allocation is opened
//! once in a process however many parts of it are, and known by what cannot repeat: the driver's handle,
//! the number of the allocation in its process, and a number that the process has drawn.
#![allow(unsafe_code)] // Calls into libcuda.
#![allow(clippy::disallowed_methods)] // A process draws its name once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};
use ringbell_nic_abi::GpuVa;

use super::adopt::{self, ForeignMemory};
use super::context::Context;
use super::driver;
use super::error::CudaError;
use super::gpu::CudaGpu;
use super::memory::CudaMemory;
use super::yard::Waste;
use crate::gpu::SharedMemory;

/// Why what was opened is not mapped for the CPU.
pub(super) const OF_ANOTHER_PROCESS: &str =
    "the memory is another process's, and only the process that has allocated it can map it";

/// A number that no other process has, whoever gets our process number later.
pub(super) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let mut bytes = [0_u8; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        // Eight bytes are never cut short; without a generator the clock still tells processes apart.
        match rustix::rand::getrandom(&mut bytes, flags) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                (now.tv_sec as u64) << 32 ^ now.tv_nsec as u64 ^ u64::from(std::process::id())
            }
        }
    })
}

/// What names an allocation of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    handle: [u8; 64],
    process: u64,
    identity: u64,
}

/// An allocation that is open here.
#[derive(Debug, Clone, Copy)]
struct Entry {
    users: usize,
    base: u64,
    size: u64,
}

/// The allocations of other processes that this one has open.
#[derive(Debug, Default)]
pub(super) struct Imports {
    open: Mutex<HashMap<Key, Entry>>,
}

impl Imports {
    fn open(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One use of an open allocation; the last one closes it.
#[derive(Debug)]
pub(super) struct Import {
    key: Key,
    imports: Arc<Imports>,
    memory: Arc<CudaMemory>,
    context: Arc<Context>,
}

impl Drop for Import {
    fn drop(&mut self) {
        // Under the lock to the end: whoever opens the allocation meanwhile finds it open, or closed.
        let mut open = self.imports.open();
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

/// Closes what was opened, once no kernel runs.
fn close(context: &Context, base: u64) {
    context.yard.give_back(Waste::Opened(base));
}

/// The call itself. Only for what was opened, so that the driver has it.
///
/// # Safety
/// Opened by us once for each close, and a context is current.
pub(super) unsafe fn close_handle(base: u64) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { sys::cuIpcCloseMemHandle(base) }
}

/// The driver's name of a GPU; zeros when it has none.
pub(super) fn uuid(context: &Context) -> [u8; 16] {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    if driver::has("cuDeviceGetUuid_v2") {
        // SAFETY: the pointer is to a live value; the device is the context's.
        let r = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, context.cuda.cu_device()) };
        if r != CUresult::CUDA_SUCCESS {
            return [0; 16];
        }
    }
    uuid.bytes.map(|b| b as u8)
}

/// Whether the driver has the functions. They are old; a driver without them is no reason to refuse a GPU.
fn needed() -> Result<(), CudaError> {
    let all = [
        "cuIpcGetMemHandle",
        "cuIpcOpenMemHandle_v2",
        "cuIpcCloseMemHandle",
    ];
    match all.into_iter().find(|symbol| !driver::has(symbol)) {
        Some(symbol) => Err(CudaError::MissingSymbol { symbol }),
        None => Ok(()),
    }
}

/// An allocation, and the part of it that was asked for.
pub(super) struct Named {
    /// Base and size of the allocation.
    pub(super) base: u64,
    pub(super) size: u64,
    /// Without a handle.
    pub(super) shared: SharedMemory,
}

/// What identifies `len` bytes from `va`, without asking for a handle.
pub(super) fn name(context: &Context, va: GpuVa, len: u64) -> Result<Named, CudaError> {
    let (base, size) = adopt::check(context, va, len)?;
    let mut identity = 0_u64;
    // SAFETY: the attribute has 64 bits, and the pointer is to a live word of them.
    context.check("cuPointerGetAttribute", unsafe {
        sys::cuPointerGetAttribute(
            std::ptr::from_mut(&mut identity).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            va.0,
        )
    })?;
    let shared = SharedMemory {
        handle: [0; 64],
        gpu: uuid(context),
        pid: std::process::id(),
        process: process(),
        identity,
        offset: va.0 - base,
        len,
    };
    Ok(Named { base, size, shared })
}

/// Names `len` bytes from `va` for other processes.
pub(super) fn share(context: &Context, va: GpuVa, len: u64) -> Result<SharedMemory, CudaError> {
    needed()?;
    let named = name(context, va, len)?;
    // A bool in the interface, and older than any driver that is used; the rest of the word stays 0.
    let mut capable = 0_u32;
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    let known = adopt::attribute(context, va, which, &mut capable)?;
    if known && capable & 0xff == 0 {
        let why = "the driver shares only memory of cuMemAlloc: none of a pool, of cuMemCreate or of another process";
        return Err(CudaError::NotExportable { va, why });
    }
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the pointer is to a live handle; the base of an allocation of the current context.
    match unsafe { sys::cuIpcGetMemHandle(&mut handle, named.base) } {
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            let why = "the driver gives no handle for it (cuIpcGetMemHandle)";
            return Err(CudaError::NotExportable { va, why });
        }
        r => context.check("cuIpcGetMemHandle", r)?,
    }
    Ok(SharedMemory {
        handle: handle.reserved.map(|b| b as u8),
        ..named.shared
    })
}

/// Opens an allocation, or counts one more user of an open one. The base and the size here.
pub(super) fn import(
    context: &Arc<Context>,
    memory: &Arc<CudaMemory>,
    imports: &Arc<Imports>,
    shared: &SharedMemory,
) -> Result<(Import, u64, u64), CudaError> {
    needed()?;
    let key = Key {
        handle: shared.handle,
        process: shared.process,
        identity: shared.identity,
    };
    let hold = || Import {
        key,
        imports: imports.clone(),
        memory: memory.clone(),
        context: context.clone(),
    };
    let mut open = imports.open();
    if let Some(entry) = open.get_mut(&key) {
        entry.users += 1;
        return Ok((hold(), entry.base, entry.size));
    }
    context.bind()?;
    let handle = sys::CUipcMemHandle {
        reserved: shared.handle.map(|b| b as core::ffi::c_char),
    };
    let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut base = 0;
    let pid = shared.pid;
    // SAFETY: the pointer is to a live address; whatever the handle holds, the driver checks it.
    match unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, handle, flags) } {
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
    let opened = adopt::around(context, base)
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
            open.insert(key, Entry { users, base, size });
            Ok((hold(), base, size))
        }
        Err(e) => {
            close(context, base);
            Err(e)
        }
    }
}

impl CudaGpu {
    /// Opens memory of another process that [`GpuBuffer::share`](crate::GpuBuffer::share) or
    /// [`CudaGpu::share`] has named there. Kernels use it at its address here, and the NIC reaches it
    /// once it is registered (`Nic::register_foreign`). Parts of one allocation share one mapping, which the last of
    /// them closes.
    ///
    /// # Errors
    /// [`CudaError::SameProcess`]: it is our own memory, use its address. [`CudaError::Stale`]: it was freed, or its process
    /// has ended. [`CudaError::OtherGpu`], [`CudaError::MissingSymbol`], [`CudaError::OutOfMemory`].
    ///
    /// # Safety
    /// The process that has it does not free the memory before the answer was dropped: the driver leaves open
    /// what is read and written then (`cuIpcOpenMemHandle`).
    pub unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<ForeignMemory, CudaError> {
        needed()?;
        let (pid, (context, memory)) = (shared.pid, self.parts());
        if shared.process == process() {
            return Err(CudaError::SameProcess { pid });
        }
        let own = uuid(context);
        if own != shared.gpu && own != [0; 16] && shared.gpu != [0; 16] {
            return Err(CudaError::OtherGpu { pid });
        }
        let (import, base, size) = import(context, memory, self.imports(), shared)?;
        let inside = shared.offset.checked_add(shared.len);
        if inside.is_none_or(|end| end > size) {
            return Err(CudaError::Stale { pid });
        }
        let va = GpuVa(base + shared.offset);
        Ok(ForeignMemory::of_import(va, shared.len, self, import))
    }

    /// Names memory of this GPU for other processes, whoever allocated it: interior addresses too.
    ///
    /// # Errors
    /// [`CudaError::NotExportable`], [`CudaError::MissingSymbol`], and as [`CudaGpu::adopt`].
    pub fn share(&self, va: GpuVa, len: u64) -> Result<SharedMemory, CudaError> {
        share(self.parts().0, va, len)
    }
}
