//! CUDA graphs by stream capture (CUDA C++ Programming Guide, "CUDA Graphs").
#![allow(unsafe_code)] // Calls into libcuda.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::context::Context;
use super::driver;
use super::handles::RawStream;
use super::module::Kernels;
use crate::cuda_error::CudaError;
use crate::gpu::GraphBackend;

/// The functions of the driver, which only graphs need.
const NEEDED: [&str; 6] = [
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];

/// A graph that can be launched.
#[derive(Debug)]
pub(super) struct CudaGraph {
    exec: CUgraphExec,
    context: Arc<Context>,
    /// Its kernels' modules stay loaded.
    _kernels: Arc<Kernels>,
}

// SAFETY: a handle; launches of one graph are serialised by `Graph`, as the driver demands.
unsafe impl Send for CudaGraph {}
// SAFETY: as for Send.
unsafe impl Sync for CudaGraph {}

impl GraphBackend for CudaGraph {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Lets a stream capture.
pub(super) fn begin(context: &Context, stream: &RawStream) -> Result<(), CudaError> {
    if let Some(symbol) = NEEDED.into_iter().find(|symbol| !driver::has(symbol)) {
        return Err(CudaError::MissingSymbol { symbol });
    }
    context.bind()?;
    // Relaxed: in the other modes the driver refuses allocations and more during any capture, but
    // the NIC's own threads go on using it.
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    context.deferred.set_capturing(stream.stream, true);
    // SAFETY: a live stream of the current context.
    let begun = context.check("cuStreamBeginCapture", unsafe {
        sys::cuStreamBeginCapture_v2(stream.stream, mode)
    });
    if begun.is_err() {
        context.deferred.set_capturing(stream.stream, false);
    }
    begun
}

/// Ends the capture and makes it ready to be launched.
pub(super) fn end(
    context: &Arc<Context>,
    stream: &RawStream,
    kernels: &Arc<Kernels>,
) -> Result<CudaGraph, CudaError> {
    context.bind()?;
    let mut graph: CUgraph = std::ptr::null_mut();
    // SAFETY: a live stream that captures, and a live handle.
    let ended = context.check("cuStreamEndCapture", unsafe {
        sys::cuStreamEndCapture(stream.stream, &mut graph)
    });
    // A failed capture is over too.
    context.deferred.set_capturing(stream.stream, false);
    ended?;
    let mut exec: CUgraphExec = std::ptr::null_mut();
    // SAFETY: the graph was just made; a live handle.
    let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
    // SAFETY: destroyed once; what was instantiated from it stays.
    let _ = unsafe { sys::cuGraphDestroy(graph) };
    context.check("cuGraphInstantiate", made)?;
    Ok(CudaGraph {
        exec,
        context: context.clone(),
        _kernels: kernels.clone(),
    })
}

impl CudaGraph {
    /// Queues one replay. The driver puts it behind earlier replays.
    pub(super) fn launch(&self, context: &Context, stream: &RawStream) -> Result<bool, CudaError> {
        if !std::ptr::eq(context, &*self.context) {
            return Ok(false);
        }
        context.bind()?;
        let _starting = context.deferred.begin_work();
        // SAFETY: a live graph and a live stream of the current context.
        let r = unsafe { sys::cuGraphLaunch(self.exec, stream.stream) };
        context.check("cuGraphLaunch", r).map(|()| true)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by us, destroyed once; a replay that runs goes on to its end.
            let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
    }
}
