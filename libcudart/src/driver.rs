//! Functions of the driver, `libcuda.so.1`, found when they are first called.
//!
//! The runtime uses the driver's public functions alone, so it runs over any: the emulated GPU's,
//! or NVIDIA's. It is looked for by its name, then as `libringbell_libcuda.so`, which a program
//! that was linked statically can have in its run path.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::OnceLock;

/// CUipcMemHandle and cudaIpcMemHandle_t.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct IpcHandle([u8; 64]);

/// CUresult; cudaError_t has the same numbers.
pub(crate) type Code = c_int;

/// cudaErrorInsufficientDriver: there is none, or it lacks a function.
pub(crate) const INSUFFICIENT_DRIVER: Code = 35;

/// Names of the driver, in the order in which they are tried.
const NAMES: [&CStr; 2] = [c"libcuda.so.1", c"libringbell_libcuda.so"];

/// The driver, loaded once for the whole life of the process.
fn library() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        // SAFETY: loading a driver runs its initialisers, which is what a CUDA program asks for.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let found = NAMES.iter().map(|name| open(name)).find(|l| !l.is_null());
        if found.is_none() {
            eprintln!(
                "ringbell libcudart: there is no CUDA driver (libcuda.so.1); run the program by \
                 `ringbell gpu -- PROGRAM`"
            );
        }
        found.map_or(0, |l| l as usize)
    })
}

/// The address of a function, or 0.
fn find(name: &CStr) -> usize {
    let library = library();
    if library == 0 {
        return 0;
    }
    // SAFETY: a library that is never closed, and a terminated name.
    let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    found as usize
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $ty:ty),*);)+) => {$(
        #[allow(clippy::too_many_arguments)] // The driver's own.
        pub(crate) fn $name($($arg: $ty),*) -> Code {
            static AT: OnceLock<usize> = OnceLock::new();
            let at = *AT.get_or_init(|| find($symbol));
            if at == 0 {
                return INSUFFICIENT_DRIVER;
            }
            type Function = unsafe extern "C" fn($($ty),*) -> Code;
            // SAFETY: the driver's function of this name has this type (CUDA driver API).
            let function = unsafe { std::mem::transmute::<usize, Function>(at) };
            // SAFETY: arguments of a program's own call, or of this crate's, as the driver API asks
            // for.
            unsafe { function($($arg),*) }
        }
    )+};
}

/// A handle of the driver.
pub(crate) type Handle = *mut c_void;
pub(crate) type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

functions! {
    init = c"cuInit" (flags: c_uint);
    driver_version = c"cuDriverGetVersion" (version: *mut c_int);
    device_count = c"cuDeviceGetCount" (count: *mut c_int);
    device_get = c"cuDeviceGet" (device: *mut c_int, ordinal: c_int);
    device_name = c"cuDeviceGetName" (name: *mut c_char, len: c_int, device: c_int);
    device_uuid = c"cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: c_int);
    device_bus = c"cuDeviceGetPCIBusId" (id: *mut c_char, bytes: c_int, device: c_int);
    entry_point = c"cuGetProcAddress_v2" (
        name: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
    device_memory = c"cuDeviceTotalMem_v2" (bytes: *mut usize, device: c_int);
    device_attribute = c"cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: c_int);
    device_can_access_peer = c"cuDeviceCanAccessPeer" (can: *mut c_int, device: c_int, peer: c_int);
    retain = c"cuDevicePrimaryCtxRetain" (context: *mut Handle, device: c_int);
    set_current = c"cuCtxSetCurrent" (context: Handle);
    synchronize = c"cuCtxSynchronize" ();
    get_limit = c"cuCtxGetLimit" (value: *mut usize, limit: c_uint);
    set_limit = c"cuCtxSetLimit" (limit: c_uint, value: usize);
    priorities = c"cuCtxGetStreamPriorityRange" (least: *mut c_int, greatest: *mut c_int);

    module_load = c"cuModuleLoadData" (module: *mut Handle, image: *const c_void);
    module_function = c"cuModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
    module_global = c"cuModuleGetGlobal_v2" (va: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char);
    function_attribute = c"cuFuncGetAttribute" (value: *mut c_int, attribute: c_int, function: Handle);
    set_function_attribute = c"cuFuncSetAttribute" (function: Handle, attribute: c_int, value: c_int);
    occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" (
        blocks: *mut c_int, function: Handle, threads: c_int, dynamic_shared: usize, flags: c_uint);
    launch = c"cuLaunchKernel" (
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    launch_cooperative = c"cuLaunchCooperativeKernel" (
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: Handle, params: *mut *mut c_void);
    launch_ex = c"cuLaunchKernelEx" (
        config: *const c_void, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    launch_host = c"cuLaunchHostFunc" (stream: Handle, function: HostFunction, data: *mut c_void);

    alloc = c"cuMemAlloc_v2" (va: *mut u64, bytes: usize);
    alloc_managed = c"cuMemAllocManaged" (va: *mut u64, bytes: usize, flags: c_uint);
    alloc_pitch = c"cuMemAllocPitch_v2" (va: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    alloc_async = c"cuMemAllocAsync" (va: *mut u64, bytes: usize, stream: Handle);
    alloc_from_pool = c"cuMemAllocFromPoolAsync" (va: *mut u64, bytes: usize, pool: Handle, stream: Handle);
    default_pool = c"cuDeviceGetDefaultMemPool" (pool: *mut Handle, device: c_int);
    device_pool = c"cuDeviceGetMemPool" (pool: *mut Handle, device: c_int);
    set_device_pool = c"cuDeviceSetMemPool" (device: c_int, pool: Handle);
    pool_create = c"cuMemPoolCreate" (pool: *mut Handle, properties: *const c_void);
    pool_destroy = c"cuMemPoolDestroy" (pool: Handle);
    pool_trim = c"cuMemPoolTrimTo" (pool: Handle, keep: usize);
    pool_attribute = c"cuMemPoolGetAttribute" (pool: Handle, attribute: c_uint, value: *mut c_void);
    set_pool_attribute = c"cuMemPoolSetAttribute" (pool: Handle, attribute: c_uint, value: *mut c_void);
    pool_access = c"cuMemPoolGetAccess" (flags: *mut c_int, pool: Handle, location: *const c_void);
    set_pool_access = c"cuMemPoolSetAccess" (pool: Handle, access: *const c_void, count: usize);
    ipc_get = c"cuIpcGetMemHandle" (handle: *mut IpcHandle, at: u64);
    ipc_open = c"cuIpcOpenMemHandle_v2" (va: *mut u64, handle: IpcHandle, flags: c_uint);
    ipc_close = c"cuIpcCloseMemHandle" (va: u64);
    alloc_host = c"cuMemHostAlloc" (at: *mut *mut c_void, bytes: usize, flags: c_uint);
    free = c"cuMemFree_v2" (va: u64);
    free_async = c"cuMemFreeAsync" (va: u64, stream: Handle);
    free_host = c"cuMemFreeHost" (at: *mut c_void);
    register_host = c"cuMemHostRegister_v2" (at: *mut c_void, bytes: usize, flags: c_uint);
    unregister_host = c"cuMemHostUnregister" (at: *mut c_void);
    device_pointer = c"cuMemHostGetDevicePointer_v2" (va: *mut u64, at: *mut c_void, flags: c_uint);
    pointer_attribute = c"cuPointerGetAttribute" (data: *mut c_void, attribute: c_uint, va: u64);
    memory_info = c"cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    prefetch = c"cuMemPrefetchAsync" (va: u64, bytes: usize, device: c_int, stream: Handle);
    advise = c"cuMemAdvise" (va: u64, bytes: usize, advice: c_uint, device: c_int);
    copy = c"cuMemcpy" (to: u64, from: u64, bytes: usize);
    copy_async = c"cuMemcpyAsync" (to: u64, from: u64, bytes: usize, stream: Handle);
    copy_3d = c"cuMemcpy3D_v2" (copy: *const c_void);
    copy_3d_async = c"cuMemcpy3DAsync_v2" (copy: *const c_void, stream: Handle);
    copy_2d = c"cuMemcpy2D_v2" (copy: *const c_void);
    copy_2d_async = c"cuMemcpy2DAsync_v2" (copy: *const c_void, stream: Handle);
    fill = c"cuMemsetD8_v2" (va: u64, value: u8, n: usize);
    fill_async = c"cuMemsetD8Async" (va: u64, value: u8, n: usize, stream: Handle);
    fill_2d = c"cuMemsetD2D8_v2" (va: u64, pitch: usize, value: u8, width: usize, height: usize);
    fill_2d_async = c"cuMemsetD2D8Async" (va: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle);

    stream_create = c"cuStreamCreateWithPriority" (stream: *mut Handle, flags: c_uint, priority: c_int);
    stream_destroy = c"cuStreamDestroy_v2" (stream: Handle);
    stream_synchronize = c"cuStreamSynchronize" (stream: Handle);
    stream_query = c"cuStreamQuery" (stream: Handle);
    stream_wait = c"cuStreamWaitEvent" (stream: Handle, event: Handle, flags: c_uint);
    stream_flags = c"cuStreamGetFlags" (stream: Handle, flags: *mut c_uint);
    stream_priority = c"cuStreamGetPriority" (stream: Handle, priority: *mut c_int);
    stream_is_capturing = c"cuStreamIsCapturing" (stream: Handle, status: *mut c_int);
    begin_capture = c"cuStreamBeginCapture_v2" (stream: Handle, mode: c_uint);
    end_capture = c"cuStreamEndCapture" (stream: Handle, graph: *mut Handle);
    graph_instantiate = c"cuGraphInstantiateWithFlags" (exec: *mut Handle, graph: Handle, flags: u64);
    graph_launch = c"cuGraphLaunch" (exec: Handle, stream: Handle);
    graph_destroy = c"cuGraphDestroy" (graph: Handle);
    graph_exec_destroy = c"cuGraphExecDestroy" (exec: Handle);
    capture_info = c"cuStreamGetCaptureInfo_v2" (
        stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle, before: *mut *const Handle, count: *mut usize);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (mode: *mut c_uint);
    graph_create = c"cuGraphCreate" (graph: *mut Handle, flags: c_uint);
    add_kernel_node = c"cuGraphAddKernelNode_v2" (
        node: *mut Handle, graph: Handle, before: *const Handle, count: usize, params: *const c_void);
    set_kernel_node = c"cuGraphKernelNodeSetParams_v2" (node: Handle, params: *const c_void);
    set_exec_kernel_node = c"cuGraphExecKernelNodeSetParams_v2" (exec: Handle, node: Handle, params: *const c_void);
    add_copy_node = c"cuGraphAddMemcpyNode" (
        node: *mut Handle, graph: Handle, before: *const Handle, count: usize, params: *const c_void, context: Handle);
    add_fill_node = c"cuGraphAddMemsetNode" (
        node: *mut Handle, graph: Handle, before: *const Handle, count: usize, params: *const c_void, context: Handle);
    add_host_node = c"cuGraphAddHostNode" (
        node: *mut Handle, graph: Handle, before: *const Handle, count: usize, params: *const c_void);
    add_empty_node = c"cuGraphAddEmptyNode" (node: *mut Handle, graph: Handle, before: *const Handle, count: usize);
    add_child_node = c"cuGraphAddChildGraphNode" (
        node: *mut Handle, graph: Handle, before: *const Handle, count: usize, child: Handle);
    add_edges = c"cuGraphAddDependencies" (graph: Handle, from: *const Handle, to: *const Handle, count: usize);
    graph_nodes = c"cuGraphGetNodes" (graph: Handle, nodes: *mut Handle, count: *mut usize);
    stream_id = c"cuStreamGetId" (stream: Handle, id: *mut u64);
    event_create = c"cuEventCreate" (event: *mut Handle, flags: c_uint);
    event_destroy = c"cuEventDestroy_v2" (event: Handle);
    event_record = c"cuEventRecord" (event: Handle, stream: Handle);
    event_query = c"cuEventQuery" (event: Handle);
    event_synchronize = c"cuEventSynchronize" (event: Handle);
    event_elapsed = c"cuEventElapsedTime" (ms: *mut f32, start: Handle, end: Handle);
}
