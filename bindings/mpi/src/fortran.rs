//! The functions of Fortran that are exported: `mpi_name_` of `mpif.h` and the module `mpi`,
//! `mpi_name_f08_` of Open MPI's `mpi_f08`.
//!
//! Open MPI's call its `PMPI_` functions in C, so that those of `calls` would not see them. MPICH's
//! `mpif.h` and `mpi` call the public ones: they are handed on here, and taken there. Its `mpi_f08`
//! calls internal ones with array descriptors of the compiler's own form; these are not taken.
#![allow(unsafe_code)] // Called with the program's pointers.

use std::ffi::c_int;

use crate::arguments::{Any, Args, Int};
use crate::below::below;
use crate::calls::alloc;
use crate::collective as taken;
use crate::layer::Layer;
use crate::p2p;

/// Exports a function in both forms. The last argument, which the second form may leave out, takes
/// the code.
macro_rules! exported {
    ($($name:ident, $new:ident($($arg:ident: $ty:ty),* $(,)?) $args:ident => $taken:expr;)*) => {$(
        exported!(@one $name($($arg: $ty),*) $args => $taken);
        exported!(@one $new($($arg: $ty),*) $args => $taken);
    )*};
    (@one $name:ident($($arg:ident: $ty:ty),*) $args:ident => $taken:expr) => {
        #[no_mangle]
        unsafe extern "C" fn $name($($arg: $ty,)* code: *mut c_int) {
            let taken = Args::get().and_then(|$args| $taken);
            match taken {
                // SAFETY: the program's variable.
                Some(result) if !code.is_null() => unsafe { *code = result },
                Some(_) => {}
                // SAFETY: the program's own call.
                None => unsafe {
                    below!(stringify!($name), fn($($ty,)* *mut c_int))($($arg,)* code);
                },
            }
        }
    };
}

exported! {
    mpi_barrier_, mpi_barrier_f08_(comm: Int) f => taken::barrier(f.comm(comm));
    mpi_allreduce_, mpi_allreduce_f08_(from: Any, to: Any, count: Int, ty: Int, op: Int, comm: Int) f =>
        taken::all_reduce(f.any(from), f.buffer(to, count, ty), f.op(op), f.comm(comm));
    mpi_reduce_, mpi_reduce_f08_(from: Any, to: Any, count: Int, ty: Int, op: Int, root: Int, comm: Int) f =>
        taken::reduce(f.any(from), f.buffer(to, count, ty), f.op(op), f.int(root), f.comm(comm));
    mpi_bcast_, mpi_bcast_f08_(at: Any, count: Int, ty: Int, root: Int, comm: Int) f =>
        taken::broadcast(f.buffer(at, count, ty), f.int(root), f.comm(comm));
    mpi_allgather_, mpi_allgather_f08_(from: Any, sent: Int, of: Int, to: Any, count: Int, ty: Int, comm: Int) f =>
        taken::all_gather(f.buffer(from, sent, of), f.buffer(to, count, ty), f.comm(comm));
    mpi_allgatherv_, mpi_allgatherv_f08_(from: Any, sent: Int, of: Int, to: Any, counts: Int, places: Int, ty: Int, comm: Int) f =>
        // SAFETY: the program's arrays.
        unsafe { taken::all_gather_v(f.buffer(from, sent, of), f.any(to), (counts, places), f.ty(ty), f.comm(comm)) };
    mpi_gather_, mpi_gather_f08_(from: Any, sent: Int, of: Int, to: Any, count: Int, ty: Int, root: Int, comm: Int) f =>
        taken::gather(f.buffer(from, sent, of), f.buffer(to, count, ty), f.int(root), f.comm(comm));
    mpi_scatter_, mpi_scatter_f08_(from: Any, sent: Int, of: Int, to: Any, count: Int, ty: Int, root: Int, comm: Int) f =>
        taken::scatter(f.buffer(from, sent, of), f.buffer(to, count, ty), f.int(root), f.comm(comm));
    mpi_alltoall_, mpi_alltoall_f08_(from: Any, sent: Int, of: Int, to: Any, count: Int, ty: Int, comm: Int) f =>
        taken::all_to_all(f.buffer(from, sent, of), f.buffer(to, count, ty), f.comm(comm));
    mpi_reduce_scatter_block_, mpi_reduce_scatter_block_f08_(from: Any, to: Any, count: Int, ty: Int, op: Int, comm: Int) f =>
        taken::reduce_scatter_block("MPI_Reduce_scatter_block", f.any(from), f.buffer(to, count, ty), f.op(op), f.comm(comm));
    mpi_reduce_scatter_, mpi_reduce_scatter_f08_(from: Any, to: Any, counts: Int, ty: Int, op: Int, comm: Int) f =>
        // SAFETY: the program's array.
        unsafe { taken::reduce_scatter(f.any(from), f.any(to), counts, (f.ty(ty), f.op(op)), f.comm(comm)) };
    mpi_alloc_mem_, mpi_alloc_mem_f08_(bytes: *const isize, info: Int, at: *mut Any) _f =>
        // SAFETY: the program's argument.
        alloc(unsafe { *bytes }, at);
    mpi_free_mem_, mpi_free_mem_f08_(at: Any) _f => Layer::get().filter(|l| l.memories.free(at)).map(|_| 0);
}

/// Exports a function before which the NIC is closed: MPICH's `mpi_f08` calls no public function of
/// C.
macro_rules! ending {
    ($($name:ident)*) => {$(
        #[no_mangle]
        unsafe extern "C" fn $name(code: *mut c_int) {
            Layer::end();
            // SAFETY: the program's own call.
            unsafe { below!(stringify!($name), fn(*mut c_int))(code) };
        }
    )*};
}

ending! { mpi_finalize_ mpi_finalize_f08_ }

/// Exports a function after which the NIC is opened.
macro_rules! starting {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[no_mangle]
        unsafe extern "C" fn $name($($arg: $ty,)* code: *mut c_int) {
            // SAFETY: the program's own call. Errors in it end the program, which has set no other
            // handler yet.
            unsafe { below!(stringify!($name), fn($($ty,)* *mut c_int))($($arg,)* code) };
            Layer::start(p2p::take);
        }
    )*};
}

starting! {
    mpi_init_();
    mpi_init_f08_();
    mpi_init_thread_(required: Int, provided: *mut c_int);
    mpi_init_thread_f08_(required: Int, provided: *mut c_int);
}
