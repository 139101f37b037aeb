//! Kernels' streams of the C API: a kernel pushes or pops in place of an operation's buffer.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;
use std::sync::Arc;

use crate::failure::{entry, Failure};
use crate::handles::Table;
use crate::nic::NICS;
use crate::pointer::Out;
use ringbell::{KernelStream, Span};

/// State of an `rb_kernel_stream`.
pub(super) struct OpenKernelStream {
    owner: usize,
    stream: KernelStream,
}

static KERNEL_STREAMS: Table<OpenKernelStream> = Table::new("kernel's stream (rb_kernel_stream)");

/// Takes the kernels' streams of a NIC that is being closed.
pub(super) fn take_of(nic: usize) -> Vec<Arc<OpenKernelStream>> {
    KERNEL_STREAMS.remove_where(|s| s.owner == nic)
}

/// The stream as an operand of a communicator of NIC `owner`.
pub(super) fn span(handle: usize, owner: usize) -> Result<Span, Failure> {
    let open = KERNEL_STREAMS.get(handle)?;
    if open.owner != owner {
        return Err(Failure::argument(
            "the kernel's stream belongs to another NIC than the communicator",
        ));
    }
    Ok(Span::from(&open.stream))
}

/// # Safety
/// `stream` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_kernel_stream_create(
    nic: *mut c_void,
    bytes: u32,
    stream: *mut *mut c_void,
) -> i32 {
    entry("rb_kernel_stream_create", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(stream, "`stream`")? };
        out.set(std::ptr::null_mut());
        let owner = nic.addr();
        let stream = NICS.get(owner)?.nic.kernel_stream(bytes);
        let stream = stream.map_err(|e| Failure::host(&e))?;
        let handle = KERNEL_STREAMS.insert(OpenKernelStream { owner, stream });
        out.set(std::ptr::without_provenance_mut(handle));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_kernel_stream_destroy(stream: *mut c_void) -> i32 {
    entry("rb_kernel_stream_destroy", || {
        if stream.is_null() {
            return Ok(());
        }
        KERNEL_STREAMS.remove(stream.addr()).map(drop)
    })
}

#[no_mangle]
extern "C" fn rb_kernel_stream_reset(stream: *mut c_void) -> i32 {
    entry("rb_kernel_stream_reset", || {
        KERNEL_STREAMS.get(stream.addr())?.stream.reset();
        Ok(())
    })
}

/// # Safety
/// `bytes` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_kernel_stream_capacity(stream: *mut c_void, bytes: *mut u64) -> i32 {
    entry("rb_kernel_stream_capacity", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(bytes, "`bytes`")? };
        out.set(KERNEL_STREAMS.get(stream.addr())?.stream.capacity());
        Ok(())
    })
}

/// # Safety
/// `word` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_kernel_stream_handle(stream: *mut c_void, word: *mut u64) -> i32 {
    entry("rb_kernel_stream_handle", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(word, "`word`")? };
        out.set(KERNEL_STREAMS.get(stream.addr())?.stream.handle().word());
        Ok(())
    })
}
