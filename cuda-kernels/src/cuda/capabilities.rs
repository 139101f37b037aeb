//! Capabilities of a GPU, its driver and this process's environment, as far as Ringbell depends on
//! them (ADR 26).
#![allow(unsafe_code)] // Calls into libcuda.

use std::path::Path;

use cudarc::driver::sys::{
    self, CUatomicOperation, CUdevice_attribute, CUmoduleLoadingMode, CUresult,
};

use super::driver::{self, DeviceInfo};

/// How many of the GPU's work queues the streams of a process share, by priority (CUDA C++
/// Programming Guide, "CUDA Environment Variables").
pub const CONNECTIONS_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Which processes may use the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputeMode {
    /// Any number.
    Shared,
    /// One at a time: a second rank on this GPU cannot start.
    OneProcess,
    /// None.
    Prohibited,
    /// Another number of the driver's.
    Other(i32),
}

/// The order in which kernels see writes of a NIC or of the CPU to GPU memory, without a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteOrder {
    /// No order: each reader needs a flush before.
    None,
    /// By the GPU that has the memory.
    Owner,
    /// By every GPU.
    AllDevices,
}

/// Access of kernels to memory of the host. `None` where the driver does not know the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAccess {
    /// Host and GPU name memory by the same addresses.
    pub unified_addresses: bool,
    /// Registered memory of the host lies at the same address for kernels.
    pub same_pointer: bool,
    /// All atomic operations on memory of the host are atomic for the CPU too (NVLink-C2C, not
    /// PCIe).
    pub native_atomics: bool,
    /// A kernel's 32-bit compare-and-swap on memory of the host is atomic for the CPU too.
    pub compare_and_swap: Option<bool>,
}

/// Access of other devices to the GPU's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectRdma {
    /// Whether other devices can reach the GPU's memory.
    pub supported: bool,
    /// The host can flush their writes (`cuFlushGPUDirectRDMAWrites`).
    pub host_flush: bool,
    /// The order of their writes without a flush.
    pub write_order: WriteOrder,
}

/// Capabilities of a GPU, its driver and the environment. `None` where the driver does not know the
/// question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Engines that copy beside kernels.
    pub copy_engines: i32,
    /// Which processes may use the GPU.
    pub compute_mode: ComputeMode,
    /// The driver ends kernels that run for longer than a few seconds, because a display is
    /// attached to the GPU.
    pub watchdog: bool,
    /// It has no memory of its own.
    pub integrated: bool,
    /// Access of kernels to memory of the host.
    pub host_access: HostAccess,
    /// Access of other devices to the GPU's memory.
    pub direct_rdma: DirectRdma,
    /// The process is a client of the Multi-Process Service.
    pub mps: Option<bool>,
    /// The driver loads a module at its first use, unless it was loaded before.
    pub lazy_loading: Option<bool>,
    /// Work queues that streams share: the value of [`CONNECTIONS_VARIABLE`], if it is set (else
    /// the driver takes eight).
    pub connections: Option<u32>,
    /// The process runs in Windows Subsystem for Linux, whose driver batches launches.
    pub wsl: bool,
    /// The GPU is a part of one (MIG), or a virtual one (vGPU), by its name.
    pub partition: bool,
}

/// The value of [`CONNECTIONS_VARIABLE`].
fn connections() -> Option<u32> {
    let text = std::env::var(CONNECTIONS_VARIABLE).ok()?;
    text.trim().parse().ok()
}

impl Capabilities {
    /// Asks the driver. Only reads.
    pub(super) fn of(info: &DeviceInfo, device: sys::CUdevice) -> Capabilities {
        use CUdevice_attribute as A;
        let ask = |which| driver::attribute(device, which).ok();
        let is = |which| ask(which) == Some(1);
        Capabilities {
            multiprocessors: ask(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).unwrap_or(0),
            copy_engines: ask(A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT).unwrap_or(0),
            compute_mode: match ask(A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) {
                Some(0) | None => ComputeMode::Shared,
                Some(3) => ComputeMode::OneProcess,
                Some(2) => ComputeMode::Prohibited,
                Some(other) => ComputeMode::Other(other),
            },
            watchdog: is(A::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT),
            integrated: is(A::CU_DEVICE_ATTRIBUTE_INTEGRATED),
            host_access: HostAccess {
                unified_addresses: is(A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
                same_pointer: is(A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
                native_atomics: is(A::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED),
                compare_and_swap: compare_and_swap(device),
            },
            direct_rdma: DirectRdma {
                supported: is(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
                // Bit 0: by the host; bit 1: by stream memory operations.
                host_flush: ask(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)
                    .is_some_and(|bits| bits & 1 != 0),
                write_order: match ask(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) {
                    Some(n) if n >= 200 => WriteOrder::AllDevices,
                    Some(n) if n >= 100 => WriteOrder::Owner,
                    _ => WriteOrder::None,
                },
            },
            mps: ask(A::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).map(|v| v == 1),
            lazy_loading: lazy_loading(),
            connections: connections(),
            wsl: Path::new("/dev/dxg").exists(),
            partition: ["MIG", "GRID", "vGPU"]
                .iter()
                .any(|mark| info.name.contains(mark)),
        }
    }
}

/// Whether the bus carries a kernel's compare-and-swap as one operation. Drivers tell from CUDA 13
/// on.
fn compare_and_swap(device: sys::CUdevice) -> Option<bool> {
    const SCALAR_32: u32 = sys::CUatomicOperationCapability::CU_ATOMIC_CAPABILITY_SCALAR_32 as u32;
    if !driver::has("cuDeviceGetHostAtomicCapabilities") {
        return None;
    }
    let (mut found, which) = (0, CUatomicOperation::CU_ATOMIC_OPERATION_CAS);
    // SAFETY: one operation and room for one answer, as said.
    let r = unsafe { sys::cuDeviceGetHostAtomicCapabilities(&mut found, &which, 1, device) };
    (r == CUresult::CUDA_SUCCESS).then_some(found & SCALAR_32 != 0)
}

fn lazy_loading() -> Option<bool> {
    if !driver::has("cuModuleGetLoadingMode") {
        return None;
    }
    let mut mode = CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING;
    // SAFETY: a live value, of whose numbers the driver stores one.
    let r = unsafe { sys::cuModuleGetLoadingMode(&mut mode) };
    (r == CUresult::CUDA_SUCCESS).then_some(mode == CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING)
}
