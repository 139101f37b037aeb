//! Graphs: by capture, node by node, and their launches.

use std::ffi::{c_int, c_uint, c_void};

use crate::boxes::{row, Copy3D, DriverCopy};
use crate::device::ready;
use crate::driver::{self, Code, Handle};
use crate::error::{call, check, INVALID_VALUE};
use crate::launch::Dim3;
use crate::memory::direction;
use crate::registry::function;
use crate::stream::{in_context, on};
use crate::version::{version, Version};

#[no_mangle]
pub extern "C" fn cudaStreamBeginCapture(s: Handle, mode: c_uint) -> Code {
    on(s, |s| driver::begin_capture(s, mode))
}

#[no_mangle]
pub extern "C" fn cudaStreamEndCapture(s: Handle, graph: *mut Handle) -> Code {
    on(s, |s| driver::end_capture(s, graph))
}

#[no_mangle]
pub extern "C" fn cudaStreamIsCapturing(s: Handle, status: *mut c_int) -> Code {
    on(s, |s| driver::stream_is_capturing(s, status))
}

/// Status, number and graph of a capture. Its nodes are not told.
#[no_mangle]
pub extern "C" fn cudaStreamGetCaptureInfo_v2(
    s: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    before: *mut *const Handle,
    count: *mut usize,
) -> Code {
    on(s, |s| {
        driver::capture_info(s, status, id, graph, before, count)
    })
}

/// In CUDA 12 it tells status and number, in CUDA 13 more, of which edges are the last but one.
#[no_mangle]
pub extern "C" fn cudaStreamGetCaptureInfo(
    s: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    before: *mut *const Handle,
    _edges: *mut *const c_void,
    count: *mut usize,
) -> Code {
    let none = std::ptr::null_mut();
    match version() {
        Version::Twelve => {
            cudaStreamGetCaptureInfo_v2(s, status, id, none, none.cast(), none.cast())
        }
        Version::Thirteen => cudaStreamGetCaptureInfo_v2(s, status, id, graph, before, count),
    }
}

#[no_mangle]
pub extern "C" fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Code {
    in_context(|| driver::exchange_capture_mode(mode))
}

#[no_mangle]
pub extern "C" fn cudaGraphCreate(graph: *mut Handle, flags: c_uint) -> Code {
    in_context(|| driver::graph_create(graph, flags))
}

/// With the parameters of CUDA 12 and 13.
#[no_mangle]
pub extern "C" fn cudaGraphInstantiate(exec: *mut Handle, graph: Handle, flags: u64) -> Code {
    in_context(|| driver::graph_instantiate(exec, graph, flags))
}

#[no_mangle]
pub extern "C" fn cudaGraphInstantiateWithFlags(
    exec: *mut Handle,
    graph: Handle,
    flags: u64,
) -> Code {
    cudaGraphInstantiate(exec, graph, flags)
}

#[no_mangle]
pub extern "C" fn cudaGraphLaunch(exec: Handle, s: Handle) -> Code {
    on(s, |s| driver::graph_launch(exec, s))
}

#[no_mangle]
pub extern "C" fn cudaGraphDestroy(graph: Handle) -> Code {
    in_context(|| driver::graph_destroy(graph))
}

#[no_mangle]
pub extern "C" fn cudaGraphExecDestroy(exec: Handle) -> Code {
    in_context(|| driver::graph_exec_destroy(exec))
}

/// cudaKernelNodeParams.
#[repr(C)]
#[derive(Debug)]
pub struct KernelNode {
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// CUDA_KERNEL_NODE_PARAMS.
#[repr(C)]
#[derive(Debug)]
struct DriverKernel {
    function: Handle,
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: Handle,
    context: Handle,
}

impl KernelNode {
    fn driver(this: *const KernelNode) -> Result<DriverKernel, Code> {
        // SAFETY: the caller's structure, or null.
        let k = unsafe { this.as_ref() }.ok_or(INVALID_VALUE)?;
        Ok(DriverKernel {
            function: function(k.function)?,
            grid: k.grid,
            block: k.block,
            shared: k.shared,
            params: k.params,
            extra: k.extra,
            kernel: std::ptr::null_mut(),
            context: std::ptr::null_mut(),
        })
    }
}

#[no_mangle]
pub extern "C" fn cudaGraphAddKernelNode(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    params: *const KernelNode,
) -> Code {
    call(|| {
        let kernel = KernelNode::driver(params)?;
        let at = std::ptr::from_ref(&kernel).cast();
        check(driver::add_kernel_node(node, graph, before, count, at))
    })
}

#[no_mangle]
pub extern "C" fn cudaGraphKernelNodeSetParams(node: Handle, params: *const KernelNode) -> Code {
    call(|| {
        let kernel = KernelNode::driver(params)?;
        let at = std::ptr::from_ref(&kernel).cast();
        check(driver::set_kernel_node(node, at))
    })
}

#[no_mangle]
pub extern "C" fn cudaGraphExecKernelNodeSetParams(
    exec: Handle,
    node: Handle,
    params: *const KernelNode,
) -> Code {
    call(|| {
        let kernel = KernelNode::driver(params)?;
        let at = std::ptr::from_ref(&kernel).cast();
        check(driver::set_exec_kernel_node(exec, node, at))
    })
}

fn add_copy(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    copy: &DriverCopy,
) -> Result<(), Code> {
    ready()?;
    let at = std::ptr::from_ref(copy).cast();
    let none = std::ptr::null_mut();
    check(driver::add_copy_node(node, graph, before, count, at, none))
}

#[no_mangle]
pub extern "C" fn cudaGraphAddMemcpyNode(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    params: *const Copy3D,
) -> Code {
    call(|| add_copy(node, graph, before, count, &Copy3D::driver(params)?))
}

#[no_mangle]
pub extern "C" fn cudaGraphAddMemcpyNode1D(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> Code {
    call(|| {
        direction(kind)?;
        add_copy(node, graph, before, count, &row(to, from, bytes))
    })
}

/// cudaMemsetParams has the driver's layout.
#[no_mangle]
pub extern "C" fn cudaGraphAddMemsetNode(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    params: *const c_void,
) -> Code {
    let none = std::ptr::null_mut();
    in_context(|| driver::add_fill_node(node, graph, before, count, params, none))
}

/// cudaHostNodeParams has the driver's layout.
#[no_mangle]
pub extern "C" fn cudaGraphAddHostNode(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    params: *const c_void,
) -> Code {
    in_context(|| driver::add_host_node(node, graph, before, count, params))
}

#[no_mangle]
pub extern "C" fn cudaGraphAddEmptyNode(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
) -> Code {
    in_context(|| driver::add_empty_node(node, graph, before, count))
}

#[no_mangle]
pub extern "C" fn cudaGraphAddChildGraphNode(
    node: *mut Handle,
    graph: Handle,
    before: *const Handle,
    count: usize,
    child: Handle,
) -> Code {
    in_context(|| driver::add_child_node(node, graph, before, count, child))
}

/// CUDA 13 has kinds of edges in front of their number, of which there is one here.
#[no_mangle]
pub extern "C" fn cudaGraphAddDependencies(
    graph: Handle,
    from: *const Handle,
    to: *const Handle,
    fourth: usize,
    fifth: usize,
) -> Code {
    let count = match version() {
        Version::Twelve => fourth,
        Version::Thirteen => fifth,
    };
    in_context(|| driver::add_edges(graph, from, to, count))
}

/// By the name of CUDA 12.3, whose meaning is the same everywhere.
#[no_mangle]
pub extern "C" fn cudaGraphAddDependencies_v2(
    graph: Handle,
    from: *const Handle,
    to: *const Handle,
    _edges: *const c_void,
    count: usize,
) -> Code {
    in_context(|| driver::add_edges(graph, from, to, count))
}

#[no_mangle]
pub extern "C" fn cudaGraphGetNodes(graph: Handle, to: *mut Handle, count: *mut usize) -> Code {
    in_context(|| driver::graph_nodes(graph, to, count))
}

// cudaKernelNodeParams and CUDA_KERNEL_NODE_PARAMS have so many bytes.
const _: () = assert!(size_of::<KernelNode>() == 56 && size_of::<DriverKernel>() == 72);
