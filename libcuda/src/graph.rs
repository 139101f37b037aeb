//! Capture and graphs: the kernels that a stream was given while it captured, to be launched again.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::Mutex;

use ringbell_cuda_kernels::{Graph, Stream};

use crate::stream::{on, stream};
use crate::{
    call, lock, put, ready, strict, Result, INVALID_HANDLE, INVALID_VALUE,
    STREAM_CAPTURE_UNSUPPORTED, UNKNOWN,
};

/// Graphs and executable graphs, by their handles.
static GRAPHS: Mutex<(usize, BTreeMap<usize, Graph>)> = Mutex::new((0x6000_0000, BTreeMap::new()));

fn add(graph: Graph) -> usize {
    let mut all = lock(&GRAPHS);
    all.0 += 16;
    let handle = all.0;
    all.1.insert(handle, graph);
    handle
}

/// CUDA_ERROR_ILLEGAL_STATE: as it was without a capture, or within one.
const ILLEGAL_STATE: Result = 401;

/// What most calls on a stream that captures get.
pub(crate) fn not_capturing(s: &Stream) -> std::result::Result<(), Result> {
    match s.is_capturing() {
        true => Err(STREAM_CAPTURE_UNSUPPORTED),
        false => Ok(()),
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(s: *mut c_void, mode: c_uint) -> Result {
    call(|| {
        ready()?;
        // The null stream cannot capture. Of the modes only the relaxed one lets other threads of the process go on as
        // they do here.
        match (s.is_null(), mode) {
            (false, 2) => stream(s)?.begin_capture().map_err(|_| ILLEGAL_STATE),
            (false, 0 | 1) => Err(STREAM_CAPTURE_UNSUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamEndCapture(s: *mut c_void, graph: *mut *mut c_void) -> Result {
    call(|| {
        ready()?;
        let captured = stream(s)?.end_capture().map_err(|_| ILLEGAL_STATE)?;
        // SAFETY: the caller's pointer.
        unsafe { put(graph, add(captured) as *mut c_void) }
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
        let found = lock(&GRAPHS).1.get(&(graph as usize)).cloned();
        let made = add(found.ok_or(INVALID_VALUE)?);
        // SAFETY: the caller's pointer.
        unsafe { put(exec, made as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphLaunch(exec: *mut c_void, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let graph = lock(&GRAPHS).1.get(&(exec as usize)).cloned();
        let graph = graph.ok_or(INVALID_HANDLE)?;
        on(s, |real| {
            // How it ends is seen by the events behind it.
            let _ = graph.launch(real).map_err(|_| UNKNOWN)?;
            strict::note("a graph", s as usize, real);
            Ok(())
        })
    })
}

fn remove(handle: *mut c_void) -> Result {
    let removed = lock(&GRAPHS).1.remove(&(handle as usize));
    call(|| removed.map(drop).ok_or(INVALID_VALUE))
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphDestroy(graph: *mut c_void) -> Result {
    remove(graph)
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphExecDestroy(exec: *mut c_void) -> Result {
    remove(exec)
}
