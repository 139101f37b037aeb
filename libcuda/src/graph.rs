//! Graphs: made by capture or node by node, and launched.

use std::ffi::{c_uint, c_ulonglong, c_void};

use crate::copy::{of_box, Copy3D};
use crate::launch::{kernel_call, Request};
use crate::operation::Operation;
use crate::stream::{host_function, on, stream, submit, until, HostFunction};
use crate::{call, capture, fill, lock, nodes, put, ready, strict, Result};
use crate::{INVALID_VALUE, NOT_SUPPORTED, STREAM_CAPTURE_UNSUPPORTED};

#[no_mangle]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(s: *mut c_void, mode: c_uint) -> Result {
    call(|| {
        ready()?;
        stream(s)?;
        match (s.is_null(), mode) {
            // The null stream cannot capture.
            (true, _) | (_, 3..) => Err(INVALID_VALUE),
            // In other modes than the relaxed one a driver refuses calls of other threads; the SDK
            // must not use them.
            (false, 0 | 1) if strict::is_on() => Err(STREAM_CAPTURE_UNSUPPORTED),
            (false, _) => capture::begin(s as usize),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamEndCapture(s: *mut c_void, graph: *mut *mut c_void) -> Result {
    call(|| {
        ready()?;
        stream(s)?;
        let captured = capture::end(s as usize)?;
        // SAFETY: the caller's pointer.
        unsafe { put(graph, captured as *mut c_void) }
    })
}

/// Status, number and graph of a capture, of which the last two may be left out.
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    s: *mut c_void,
    status: *mut c_uint,
    id: *mut c_ulonglong,
    graph: *mut *mut c_void,
    before: *mut *const *mut c_void,
    count: *mut usize,
) -> Result {
    call(|| {
        ready()?;
        stream(s)?;
        if !before.is_null() || !count.is_null() {
            return Err(NOT_SUPPORTED);
        }
        let (now, own) = match capture::status(s as usize) {
            capture::Status::Runs => (0, 0),
            capture::Status::Captures(graph) => (1, graph),
            capture::Status::Invalid => (2, 0),
        };
        // SAFETY: the caller's pointers.
        unsafe {
            put(status, now)?;
            if !id.is_null() {
                put(id, own as u64)?;
            }
            if !graph.is_null() {
                put(graph, own as *mut c_void)?;
            }
        }
        Ok(())
    })
}

/// Which calls of this thread a capture elsewhere refuses: none, whatever the mode.
#[no_mangle]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Result {
    thread_local! {
        static MODE: std::cell::Cell<c_uint> = const { std::cell::Cell::new(0) };
    }
    call(|| {
        // SAFETY: the caller's pointer, or null.
        let given = unsafe { mode.as_mut() }.ok_or(INVALID_VALUE)?;
        if *given > 2 {
            return Err(INVALID_VALUE);
        }
        *given = MODE.replace(*given);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphCreate(graph: *mut *mut c_void, flags: c_uint) -> Result {
    call(|| {
        ready()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(graph, nodes::create() as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphDestroy(graph: *mut c_void) -> Result {
    call(|| nodes::destroy(graph as usize))
}

/// CUDA_KERNEL_NODE_PARAMS. What is behind `extra` came with CUDA 12: a kernel in place of a
/// function, and its context.
#[repr(C)]
#[derive(Debug)]
pub struct KernelNode {
    function: *mut c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: *mut c_void,
    context: *mut c_void,
}

impl KernelNode {
    /// # Safety
    /// The caller's structure, or null, with parameters as a launch has them.
    unsafe fn operation(this: *const KernelNode) -> std::result::Result<Operation, Result> {
        // SAFETY: the caller's contract.
        let this = unsafe { this.as_ref() }.ok_or(INVALID_VALUE)?;
        let request = Request {
            grid: this.grid,
            block: this.block,
            shared: this.shared,
            cooperative: false,
        };
        let f = match this.function.is_null() {
            true => this.kernel,
            false => this.function,
        };
        // SAFETY: the caller's contract.
        unsafe { kernel_call(f, &request, this.params, this.extra) }
    }
}

/// CUDA_MEMSET_NODE_PARAMS.
#[repr(C)]
#[derive(Debug)]
pub struct FillNode {
    to: u64,
    pitch: usize,
    value: c_uint,
    size: c_uint,
    width: usize,
    height: usize,
}

/// CUDA_HOST_NODE_PARAMS.
#[repr(C)]
#[derive(Debug)]
pub struct HostNode {
    function: Option<HostFunction>,
    data: *mut c_void,
}

/// A node's handle, through the caller's pointer.
///
/// # Safety
/// A pointer for the handle, and as many handles as `count` says.
unsafe fn add(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
    operation: &Operation,
) -> std::result::Result<(), Result> {
    if before.is_null() && count > 0 || node.is_null() {
        return Err(INVALID_VALUE);
    }
    let each = 0..count;
    // SAFETY: the caller's contract.
    let before: Vec<usize> = each.map(|i| unsafe { *before.add(i) } as usize).collect();
    let added = nodes::add(graph as usize, operation.clone(), &before)?;
    // SAFETY: the caller's contract.
    unsafe { put(node, added as *mut c_void) }
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddKernelNode_v2(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
    params: *const KernelNode,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's arguments.
        unsafe { add(node, graph, before, count, &KernelNode::operation(params)?) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddMemcpyNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
    params: *const Copy3D,
    _context: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's arguments.
        unsafe { add(node, graph, before, count, &of_box(params)?) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddMemsetNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
    params: *const FillNode,
    _context: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure, or null.
        let p = unsafe { params.as_ref() }.ok_or(INVALID_VALUE)?;
        if !matches!(p.size, 1 | 2 | 4) {
            return Err(INVALID_VALUE);
        }
        let shape = [p.width, p.height];
        let rows = fill::rows(p.to, p.pitch, p.value, p.size as usize, shape)?;
        // SAFETY: the caller's arguments.
        unsafe { add(node, graph, before, count, &rows) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddHostNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
    params: *const HostNode,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure, or null.
        let p = unsafe { params.as_ref() }.ok_or(INVALID_VALUE)?;
        let function = host_function(p.function.ok_or(INVALID_VALUE)?, p.data);
        // SAFETY: the caller's arguments.
        unsafe { add(node, graph, before, count, &function) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddEmptyNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's arguments.
        unsafe { add(node, graph, before, count, &Operation::Nothing) }
    })
}

/// The operations of another graph, as they are now, one after the other.
#[no_mangle]
pub unsafe extern "C" fn cuGraphAddChildGraphNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    before: *const *mut c_void,
    count: usize,
    child: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if graph == child {
            return Err(INVALID_VALUE);
        }
        let steps = nodes::steps(child as usize)?;
        let steps = steps.into_iter().map(|(_, operation)| operation);
        // SAFETY: the caller's arguments.
        unsafe { add(node, graph, before, count, &Operation::all(steps)) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddDependencies(
    graph: *mut c_void,
    from: *const *mut c_void,
    to: *const *mut c_void,
    count: usize,
) -> Result {
    call(|| {
        if count > 0 && (from.is_null() || to.is_null()) {
            return Err(INVALID_VALUE);
        }
        (0..count).try_for_each(|i| {
            // SAFETY: as many handles as the caller says.
            let (from, to) = unsafe { (*from.add(i), *to.add(i)) };
            nodes::connect(graph as usize, from as usize, to as usize)
        })
    })
}

/// Handles of nodes, as many as `count` says; without room for them, how many there are.
#[no_mangle]
pub unsafe extern "C" fn cuGraphGetNodes(
    graph: *mut c_void,
    to: *mut *mut c_void,
    count: *mut usize,
) -> Result {
    call(|| {
        let all = nodes::list(graph as usize)?;
        // SAFETY: the caller's pointer, or null.
        let room = unsafe { count.as_mut() }.ok_or(INVALID_VALUE)?;
        if !to.is_null() {
            for i in 0..*room {
                let node = all
                    .get(i)
                    .map_or(std::ptr::null_mut(), |n| *n as *mut c_void);
                // SAFETY: the caller's array.
                unsafe { put(to.add(i), node)? };
            }
        }
        *room = match to.is_null() {
            true => all.len(),
            false => all.len().min(*room),
        };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphKernelNodeSetParams_v2(
    node: *mut c_void,
    params: *const KernelNode,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure.
        nodes::replace(node as usize, unsafe { KernelNode::operation(params)? })
    })
}

/// Attributes of launches, which change nothing here (see `cuLaunchKernelEx`), but for clusters,
/// which are one block.
#[no_mangle]
pub unsafe extern "C" fn cuGraphKernelNodeSetAttribute(
    node: *mut c_void,
    attribute: c_uint,
    value: *const [u32; 16],
) -> Result {
    call(|| {
        nodes::operation(node as usize)?;
        // SAFETY: the caller's value of 64 bytes, or null.
        let value = unsafe { value.as_ref() }.ok_or(INVALID_VALUE)?;
        match (attribute, value) {
            (4, [1, 1, 1, ..]) => Ok(()),
            (4, _) => Err(NOT_SUPPORTED),
            _ => Ok(()),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut *mut c_void,
    graph: *mut c_void,
    _flags: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        let made = nodes::instantiate(graph as usize)?;
        // SAFETY: the caller's pointer.
        unsafe { put(exec, made as *mut c_void) }
    })
}

/// The kernel of a node of the graph that it was instantiated from, for replays from now on.
#[no_mangle]
pub unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: *mut c_void,
    node: *mut c_void,
    params: *const KernelNode,
) -> Result {
    call(|| {
        ready()?;
        let exec = nodes::exec(exec as usize)?;
        let mut exec = lock(&exec);
        let step = exec.steps.iter_mut().find(|(n, _)| *n == node as usize);
        let (_, operation) = step.ok_or(INVALID_VALUE)?;
        if !matches!(operation, Operation::Kernel(_)) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's structure.
        *operation = unsafe { KernelNode::operation(params)? };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphLaunch(exec: *mut c_void, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let exec = nodes::exec(exec as usize)?;
        let mut exec = lock(&exec);
        if capture::is_capturing(s as usize) {
            let mut steps = exec.steps.iter();
            return steps.try_for_each(|(_, o)| submit(s, o));
        }
        on(s, |real| {
            if let Some(last) = exec.last.take() {
                real.host(move || until(&last));
            }
            let mut steps = exec.steps.iter();
            let queued = steps.try_for_each(|(_, o)| o.run(s as usize, real));
            // How it ends is seen by the events behind it.
            exec.last = Some(real.record());
            strict::note("a graph", s as usize, real);
            queued
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphExecDestroy(exec: *mut c_void) -> Result {
    call(|| nodes::destroy_exec(exec as usize))
}
