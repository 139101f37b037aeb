//! The functions of C that are exported: those of a count in `int`, and those of MPI 4 with
//! `MPI_Count` (`_c`).
//!
//! Handles are words: MPICH's are an `int` in the low half of one.
#![allow(unsafe_code)] // C: exported by name, called with the program's pointers.

use std::ffi::{c_int, c_void};

use crate::abi::Handle;
use crate::below::{below, Symbol};
use crate::collective::{self as taken, Buffer};
use crate::exported::{counted, exported, narrow, size_of_comm, ERR_COUNT};
use crate::layer::Layer;
use crate::p2p;

type In = *const c_void;
type Out = *mut c_void;
/// A communicator.
type Comm = Handle;

#[allow(clippy::useless_conversion)] // Of a count that is long already.
mod counts {
    use super::*;

    counted! {
        MPI_Allreduce, MPI_Allreduce_c(from: In, to: Out, count: Count, ty: Handle, op: Handle, comm: Comm) =>
            taken::all_reduce(from, Buffer::new(to, count.into(), ty), op, comm);
        MPI_Reduce, MPI_Reduce_c(from: In, to: Out, count: Count, ty: Handle, op: Handle, root: c_int, comm: Comm) =>
            taken::reduce(from, Buffer::new(to, count.into(), ty), op, root, comm);
        MPI_Bcast, MPI_Bcast_c(at: Out, count: Count, ty: Handle, root: c_int, comm: Comm) =>
            taken::broadcast(Buffer::new(at, count.into(), ty), root, comm);
        MPI_Allgather, MPI_Allgather_c(from: In, sent: Count, of: Handle, to: Out, count: Count, ty: Handle, comm: Comm) =>
            taken::all_gather(Buffer::new(from, sent.into(), of), Buffer::new(to, count.into(), ty), comm);
        MPI_Allgatherv, MPI_Allgatherv_c(from: In, sent: Count, of: Handle, to: Out, counts: Counts, places: Places, ty: Handle, comm: Comm) =>
            // SAFETY: the program's arrays.
            unsafe { taken::all_gather_v(Buffer::new(from, sent.into(), of), to, (counts, places), ty, comm) };
        MPI_Gather, MPI_Gather_c(from: In, sent: Count, of: Handle, to: Out, count: Count, ty: Handle, root: c_int, comm: Comm) =>
            taken::gather(Buffer::new(from, sent.into(), of), Buffer::new(to, count.into(), ty), root, comm);
        MPI_Scatter, MPI_Scatter_c(from: In, sent: Count, of: Handle, to: Out, count: Count, ty: Handle, root: c_int, comm: Comm) =>
            taken::scatter(Buffer::new(from, sent.into(), of), Buffer::new(to, count.into(), ty), root, comm);
        MPI_Alltoall, MPI_Alltoall_c(from: In, sent: Count, of: Handle, to: Out, count: Count, ty: Handle, comm: Comm) =>
            taken::all_to_all(Buffer::new(from, sent.into(), of), Buffer::new(to, count.into(), ty), comm);
        MPI_Reduce_scatter_block, MPI_Reduce_scatter_block_c(from: In, to: Out, count: Count, ty: Handle, op: Handle, comm: Comm) =>
            taken::reduce_scatter_block("MPI_Reduce_scatter_block", from, Buffer::new(to, count.into(), ty), op, comm);
        MPI_Reduce_scatter, MPI_Reduce_scatter_c(from: In, to: Out, counts: Counts, ty: Handle, op: Handle, comm: Comm) =>
            // SAFETY: the program's array.
            unsafe { taken::reduce_scatter(from, to, counts, (ty, op), comm) };
    }
}

exported! {
    MPI_Barrier(comm: Handle) => taken::barrier(comm);
    MPI_Finalize() => { Layer::end(); None };
    MPI_Alloc_mem(bytes: isize, info: Handle, at: *mut Out) => alloc(bytes, at);
    MPI_Free_mem(at: Out) => Layer::get().filter(|l| l.memories.free(at)).map(|_| 0);
}

/// Exported memory, where the NIC has some.
pub(crate) fn alloc(bytes: isize, at: *mut Out) -> Option<c_int> {
    let layer = Layer::get()?;
    let bytes = usize::try_from(bytes).ok().filter(|b| *b > 0)?;
    let found = layer.memories.alloc(layer.nic(), bytes)?;
    // SAFETY: where MPI wants the address.
    unsafe { *at = found };
    Some(0)
}

#[no_mangle]
#[allow(non_snake_case)] // MPI's name.
unsafe extern "C" fn MPI_Init(argc: *mut c_int, argv: Out) -> c_int {
    // SAFETY: the program's own call.
    let code = unsafe { below!("PMPI_Init", fn(*mut c_int, Out) -> c_int)(argc, argv) };
    if code == 0 {
        Layer::start(p2p::take);
    }
    code
}

#[no_mangle]
#[allow(non_snake_case)] // MPI's name.
unsafe extern "C" fn MPI_Init_thread(
    argc: *mut c_int,
    argv: Out,
    required: c_int,
    provided: *mut c_int,
) -> c_int {
    let init = below!(
        "PMPI_Init_thread",
        fn(*mut c_int, Out, c_int, *mut c_int) -> c_int
    );
    // SAFETY: the program's own call.
    let code = unsafe { init(argc, argv, required, provided) };
    if code == 0 {
        Layer::start(p2p::take);
    }
    code
}
