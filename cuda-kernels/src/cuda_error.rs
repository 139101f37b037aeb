//! [`CudaError`]: errors of the CUDA driver, of a GPU, and of pointers into its memory.

use ringbell_nic_abi::GpuVa;

/// Oldest driver that is used: CUDA 12.0, in the driver's own numbers (1000 × major + 10 × minor).
pub const DRIVER_NEEDED: i32 = 12_000;

/// Why a real GPU cannot be used, or refused something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// Built without the feature `cuda`.
    #[error("this build drives no real GPU; build it with the feature `cuda`")]
    NotBuilt,
    /// libcuda.so.1 cannot be loaded.
    #[error("no CUDA driver (libcuda.so.1 is not there); install NVIDIA's driver, or use the emulated GPU")]
    NoDriver,
    /// The driver lacks a function.
    #[error("the CUDA driver has no {symbol}; install a driver for CUDA {}.{} or later", DRIVER_NEEDED / 1000, DRIVER_NEEDED % 1000 / 10)]
    MissingSymbol {
        /// The function.
        symbol: &'static str,
    },
    /// The driver is older than what is used.
    #[error("the driver is for CUDA {}.{}, but {}.{} is needed; install a later driver", .found / 1000, .found % 1000 / 10, .needed / 1000, .needed % 1000 / 10)]
    OldDriver {
        /// 1000 × major + 10 × minor.
        found: i32,
        /// The same of what is needed.
        needed: i32,
    },
    /// There is a driver, but no GPU.
    #[error("the CUDA driver sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// There are GPUs, but not this one.
    #[error("there is no GPU {ordinal}: the driver sees {count}, numbered from 0")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// GPUs there are.
        count: usize,
    },
    /// The GPU cannot do what is needed.
    #[error("{name} lacks {what}, which Ringbell needs")]
    Unsuitable {
        /// Name of the GPU.
        name: String,
        /// What it lacks.
        what: &'static str,
    },
    /// No kernels for this GPU.
    #[error("there are no kernels for {name} (sm_{major}{minor}): the built-in fat binaries {fatbin}; compiling them at run time {nvrtc}; build Ringbell with nvcc (`cargo xtask kernels`) for this GPU, or install libnvrtc")]
    NoImage {
        /// Name of the GPU.
        name: String,
        /// Compute capability.
        major: i32,
        /// Its second part.
        minor: i32,
        /// What was wrong with the embedded fat binaries, and with the embedded PTX.
        fatbin: String,
        /// What was wrong with NVRTC.
        nvrtc: String,
    },
    /// The GPU, or the host, has no room.
    #[error("no room for {bytes} bytes of {what}; free memory, or use a smaller size")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// `GPU memory` or `pinned host memory`.
        what: &'static str,
    },
    /// A failed kernel has lost the context: this process can no longer use the GPU.
    #[error("the GPU's context is lost since {call} reported {name} ({code}); restart the process ({})", after_loss(*.code))]
    Lost {
        /// The call that reported it.
        call: &'static str,
        /// CUresult.
        code: u32,
        /// Its name.
        name: String,
    },
    /// Any other refusal.
    #[error("{call} failed with {name} ({code}){}", advice(*.code))]
    Call {
        /// The function of the driver.
        call: &'static str,
        /// CUresult.
        code: u32,
        /// Its name.
        name: String,
    },
    /// Blocks that wait for each other do not all fit on the GPU.
    #[error("the GPU cannot hold {blocks} blocks of {lanes} lanes at once, and this kernel's blocks wait for each other; launch fewer blocks")]
    TooManyBlocks {
        /// Blocks asked for.
        blocks: u64,
        /// Lanes of each.
        lanes: u64,
    },
    /// The GPU does not answer.
    #[error("the GPU did not finish {what} within {waited_ms} ms; a kernel may hold it (nvidia-smi shows processes)")]
    Stuck {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited_ms: u64,
    },
    /// Not a pointer that the driver knows: freed, or never GPU memory.
    #[error("{va} is no GPU memory that the driver knows; was it freed, or is it an address of the host?")]
    NotGpuMemory {
        /// The pointer.
        va: GpuVa,
    },
    /// Pinned or registered memory of the host.
    #[error("{va} is memory of the host; register it as host memory")]
    HostMemory {
        /// The pointer.
        va: GpuVa,
    },
    /// Managed memory moves between GPU and host under a DMA.
    #[error("{va} is managed memory (cuMemAllocManaged), whose pages move; copy to memory of cuMemAlloc")]
    Managed {
        /// The pointer.
        va: GpuVa,
    },
    /// Memory of another GPU or another context.
    #[error("{va} belongs to GPU {found}, not to GPU {wanted} that this NIC is beside; open a NIC beside it")]
    Foreign {
        /// The pointer.
        va: GpuVa,
        /// Its GPU.
        found: i32,
        /// Ours.
        wanted: i32,
    },
    /// The range is longer than the allocation that it begins in.
    #[error("{va} + {len} leaves its allocation, which is {base} + {size}")]
    Range {
        /// First byte.
        va: GpuVa,
        /// Bytes.
        len: u64,
        /// First byte of the allocation.
        base: GpuVa,
        /// Bytes of the allocation.
        size: u64,
    },
    /// Memory that no other process can open.
    #[error("{va} cannot be shared with other processes: {why}; allocate it with cuMemAlloc (Gpu::alloc, cudaMalloc)")]
    NotExportable {
        /// The pointer.
        va: GpuVa,
        /// Why, in a few words.
        why: &'static str,
    },
    /// Shared memory of this process.
    #[error("this memory belongs to this process ({pid}), which cannot open it a second time; use its own address")]
    SameProcess {
        /// Our process.
        pid: u32,
    },
    /// Shared memory that was freed.
    #[error("the memory that process {pid} has shared is not there any more: it was freed, or the process has ended; share it again")]
    Stale {
        /// The process that had it.
        pid: u32,
    },
    /// Shared memory of another GPU.
    #[error("process {pid} has shared memory of another GPU; open it beside that GPU, or copy the bytes")]
    OtherGpu {
        /// The process that has it.
        pid: u32,
    },
    /// Other memory of the same pages is registered already in another way.
    #[error("{va} shares a page of 64 KiB with memory that is registered by another owner; allocate it in pages of its own")]
    Shared {
        /// The pointer.
        va: GpuVa,
    },
}

/// What to do about a CUresult (CUDA driver API, "CUresult").
fn advice(code: u32) -> &'static str {
    match code {
        3 => ": CUDA was started before this process was forked, or the process is ending; start processes afresh (exec, Python's `spawn`) and open the GPU in each of them",
        34 => ": this libcuda is the stub of a CUDA toolkit; take its folder (.../stubs) out of LD_LIBRARY_PATH, and install NVIDIA's driver",
        46 => ": another process has the GPU for itself, or none may use it; `nvidia-smi -q -d COMPUTE` shows the compute mode, `nvidia-smi -c 0` (as root) lets all in",
        101 => ": check CUDA_VISIBLE_DEVICES, and for a partitioned GPU (MIG) that it names an instance (`nvidia-smi -L`)",
        209 => ": it holds no code for this GPU",
        222 => ": it holds code for later drivers only; install a later driver, or build it for this GPU",
        223 => ": the driver's PTX compiler is not there (libnvidia-ptxjitcompiler.so); containers need NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        304 => ": Linux refused what the driver asked for; check the memlock limit (`ulimit -l`), the rights of /dev/nvidia*, and the container's profile",
        712 => ": a part of this memory is registered already; register each page once",
        800 => ": not from within a host function of a stream, nor without the rights to it",
        802 => ": the machine is not ready; where GPUs are joined by NVSwitch, start nvidia-fabricmanager and wait for it (`nvidia-smi -q | grep -A2 Fabric`)",
        803 => ": libcuda and the kernel's module are of different versions; reboot, or reload the module",
        804 => ": this libcuda is of the compatibility package, which this GPU cannot use; take it (cuda-compat) out of LD_LIBRARY_PATH, or install a later driver",
        805..=809 => ": the Multi-Process Service does not take this process; see its log (CUDA_MPS_LOG_DIRECTORY), or unset CUDA_MPS_PIPE_DIRECTORY",
        999 => ": the driver does not say why; look for `NVRM` and `Xid` in the kernel's log (dmesg), and load the module nvidia-uvm (`nvidia-modprobe -u`)",
        _ => "",
    }
}

/// What to do when a context is lost by this CUresult.
fn after_loss(code: u32) -> &'static str {
    match code {
        214 | 220 => "the hardware has failed: `nvidia-smi -q -d ECC`; the GPU has to be reset",
        702 => "a watchdog ended a kernel that ran too long: a screen hangs on this GPU; use another, or shorter time-outs",
        _ => "compute-sanitizer finds the kernel at fault",
    }
}
