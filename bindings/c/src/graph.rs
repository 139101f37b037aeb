//! Graphs of the C API: a stream's work, captured once and replayed.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;
use std::sync::Arc;

use crate::failure::entry;
use crate::handles::Table;
use crate::pointer::Out;
use crate::stream::{OpenGraph, STREAMS};

static GRAPHS: Table<OpenGraph> = Table::new("graph (rb_graph)");

/// Takes the graphs of a NIC that is being closed.
pub(super) fn take_of(nic: usize) -> Vec<Arc<OpenGraph>> {
    GRAPHS.remove_where(|g| g.owner == nic)
}

#[no_mangle]
extern "C" fn rb_stream_begin_capture(stream: *mut c_void) -> i32 {
    entry("rb_stream_begin_capture", || {
        STREAMS.get(stream.addr())?.begin_capture()
    })
}

/// # Safety
/// `graph` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_stream_end_capture(stream: *mut c_void, graph: *mut *mut c_void) -> i32 {
    entry("rb_stream_end_capture", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(graph, "`graph`")? };
        out.set(std::ptr::null_mut());
        let captured = STREAMS.get(stream.addr())?.end_capture()?;
        let handle = GRAPHS.insert(captured);
        out.set(std::ptr::without_provenance_mut(handle));
        Ok(())
    })
}

/// # Safety
/// `capturing` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_stream_is_capturing(stream: *mut c_void, capturing: *mut i32) -> i32 {
    entry("rb_stream_is_capturing", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(capturing, "`capturing`")? };
        out.set(STREAMS.get(stream.addr())?.stream.is_capturing().into());
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_graph_launch(graph: *mut c_void, stream: *mut c_void) -> i32 {
    entry("rb_graph_launch", || {
        let graph: Arc<OpenGraph> = GRAPHS.get(graph.addr())?;
        STREAMS.get(stream.addr())?.replay(graph)
    })
}

#[no_mangle]
extern "C" fn rb_graph_destroy(graph: *mut c_void) -> i32 {
    entry("rb_graph_destroy", || {
        if graph.is_null() {
            return Ok(());
        }
        GRAPHS.remove(graph.addr()).map(drop)
    })
}
