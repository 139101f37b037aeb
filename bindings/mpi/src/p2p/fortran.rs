//! The functions of Fortran that are exported for messages between two ranks, for requests, and
//! those that make communicators: `mpi_name_` of `mpif.h` and the module `mpi`, `mpi_name_f08_` of
//! `mpi_f08`.
//!
//! Open MPI's call its `PMPI_` functions, so these call ours of C instead. MPICH's `mpif.h` and
//! `mpi` call the public ones by themselves.
#![allow(unsafe_code)] // Called with the program's pointers.

use std::ffi::c_int;

use super::calls as c;
use super::calls::counts as n;
use super::{made, messages};
use crate::abi::{Abi, Handle, Tables};
use crate::arguments::{Any, Args, Int};
use crate::below::below;
use crate::layer::Layer;

/// An INTEGER or LOGICAL that the call sets, or several.
type Out = *mut c_int;

/// A handle of [`Tables::first_message`] as INTEGER.
const FIRST_MESSAGE: c_int = 0x7800_0000;

/// Integers of a status.
const STATUS: usize = 6;

/// A status of C.
type Status = [u64; STATUS / 2];

/// Arguments, where messages are taken in Open MPI: the library below does not call our functions
/// of C by itself.
fn args() -> Option<Args> {
    let (layer, _) = (Layer::get()?, messages()?);
    (layer.tables.abi == Abi::OpenMpi).then_some(Args(&layer.tables))
}

impl Args {
    fn request(self, at: Int) -> Handle {
        // SAFETY: the signature of MPI's standard.
        unsafe { below!("PMPI_Request_f2c", fn(c_int) -> Handle)(self.int(at)) }
    }

    /// Gives the program a request.
    fn set_request(self, at: Out, request: Handle) {
        // SAFETY: the signature of MPI's standard; where the program wants its request.
        unsafe { *at = below!("PMPI_Request_c2f", fn(Handle) -> c_int)(request) };
    }

    /// A call that makes a request.
    fn making(self, at: Out, call: impl FnOnce(Any) -> c_int) -> c_int {
        let mut request: Handle = 0;
        let code = call((&raw mut request).cast());
        if code == 0 {
            self.set_request(at, request);
        }
        code
    }

    /// A call with requests, which it may end.
    fn with(self, count: c_int, at: Out, call: impl FnOnce(Any) -> c_int) -> c_int {
        let count = usize::try_from(count).unwrap_or(0);
        let each = (0..count).map(|i| self.request(at.wrapping_add(i)));
        let before: Vec<Handle> = each.collect();
        let mut now = before.clone();
        let code = call(now.as_mut_ptr().cast());
        for (i, now) in now.iter().enumerate() {
            if *now != before[i] {
                self.set_request(at.wrapping_add(i), *now);
            }
        }
        code
    }

    /// A call with so many statuses of C.
    fn statuses(self, count: c_int, at: Out, call: impl FnOnce(Out) -> c_int) -> c_int {
        if self.0.ignores_in_fortran(at) {
            return call(std::ptr::null_mut());
        }
        let count = usize::try_from(count).unwrap_or(0);
        let mut of_c: Vec<Status> = vec![[0; STATUS / 2]; count];
        let to: Out = of_c.as_mut_ptr().cast();
        // Fields that the call leaves as they are.
        // SAFETY: the program's statuses, which have the bytes of those of C.
        unsafe { to.copy_from_nonoverlapping(at, count * STATUS) };
        let code = call(to);
        // SAFETY: as before.
        unsafe { at.copy_from_nonoverlapping(to, count * STATUS) };
        code
    }

    fn status(self, at: Out, call: impl FnOnce(Out) -> c_int) -> c_int {
        self.statuses(1, at, call)
    }

    /// A call that sets indices from 0 on, which Fortran counts from 1.
    fn indices(self, at: Out, code: c_int, count: c_int) -> c_int {
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the program's variables, of which the call has set so many.
            unsafe {
                let index = at.add(i);
                if *index != Tables::UNDEFINED {
                    *index += 1;
                }
            }
        }
        code
    }

    /// A call with a message of a matched probe.
    fn message(self, at: Out, call: impl FnOnce(Any) -> c_int) -> c_int {
        let first = self.0.first_message();
        let given = self.int(at);
        let mut message = match given.checked_sub(FIRST_MESSAGE) {
            Some(own) if own >= 0 => first + own as usize,
            // SAFETY: the signature of MPI's standard.
            _ => unsafe { below!("PMPI_Message_f2c", fn(c_int) -> Handle)(given) },
        };
        let code = call((&raw mut message).cast());
        self.set_message(at, message);
        code
    }

    /// A call that may give a message.
    fn finding(self, at: Out, call: impl FnOnce(Any) -> c_int) -> c_int {
        let mut message: Handle = 0;
        let code = call((&raw mut message).cast());
        if message != 0 {
            self.set_message(at, message);
        }
        code
    }

    fn set_message(self, at: Out, message: Handle) {
        let own = message.checked_sub(self.0.first_message());
        // SAFETY: where the program wants its message; the signature of MPI's standard.
        unsafe {
            *at = match own.and_then(|own| c_int::try_from(own).ok()) {
                Some(own) => FIRST_MESSAGE + own,
                None => below!("PMPI_Message_c2f", fn(Handle) -> c_int)(message),
            };
        }
    }
}

/// How many of the requests of a call have ended.
fn ended(count: Out) -> c_int {
    // SAFETY: the program's variable, which the call has set.
    unsafe { *count }
}

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
            let Some($args) = args() else {
                // SAFETY: the program's own call.
                return unsafe { below!(stringify!($name), fn($($ty,)* *mut c_int))($($arg,)* code) };
            };
            // SAFETY: the program's own call, of C.
            let result = unsafe { $taken };
            if !code.is_null() {
                // SAFETY: the program's variable.
                unsafe { *code = result };
            }
        }
    };
}

/// Sends of four modes, which take the same arguments.
macro_rules! sends {
    ($($name:ident, $new:ident => $call:ident;)*) => {
        exported! {$(
            $name, $new(at: Any, count: Int, ty: Int, to: Int, tag: Int, comm: Int) f =>
                n::$call(f.any(at), f.int(count), f.ty(ty), f.int(to), f.int(tag), f.comm(comm));
        )*}
    };
}

/// Calls that make a request of a message.
macro_rules! requests {
    ($($name:ident, $new:ident => $call:ident;)*) => {
        exported! {$(
            $name, $new(at: Any, count: Int, ty: Int, peer: Int, tag: Int, comm: Int, request: Out) f =>
                f.making(request, |r| n::$call(f.any(at), f.int(count), f.ty(ty), f.int(peer), f.int(tag), f.comm(comm), r));
        )*}
    };
}

sends! {
    mpi_send_, mpi_send_f08_ => MPI_Send;
    mpi_rsend_, mpi_rsend_f08_ => MPI_Rsend;
    mpi_ssend_, mpi_ssend_f08_ => MPI_Ssend;
    mpi_bsend_, mpi_bsend_f08_ => MPI_Bsend;
}

requests! {
    mpi_isend_, mpi_isend_f08_ => MPI_Isend;
    mpi_irsend_, mpi_irsend_f08_ => MPI_Irsend;
    mpi_issend_, mpi_issend_f08_ => MPI_Issend;
    mpi_ibsend_, mpi_ibsend_f08_ => MPI_Ibsend;
    mpi_irecv_, mpi_irecv_f08_ => MPI_Irecv;
    mpi_send_init_, mpi_send_init_f08_ => MPI_Send_init;
    mpi_rsend_init_, mpi_rsend_init_f08_ => MPI_Rsend_init;
    mpi_ssend_init_, mpi_ssend_init_f08_ => MPI_Ssend_init;
    mpi_bsend_init_, mpi_bsend_init_f08_ => MPI_Bsend_init;
    mpi_recv_init_, mpi_recv_init_f08_ => MPI_Recv_init;
}

exported! {
    mpi_recv_, mpi_recv_f08_(at: Any, count: Int, ty: Int, from: Int, tag: Int, comm: Int, status: Out) f =>
        f.status(status, |s| n::MPI_Recv(f.any(at), f.int(count), f.ty(ty), f.int(from), f.int(tag), f.comm(comm), s));
    mpi_sendrecv_, mpi_sendrecv_f08_(at: Any, count: Int, ty: Int, to: Int, tag: Int, into: Any, room: Int, its: Int, from: Int, wanted: Int,
        comm: Int, status: Out) f =>
        f.status(status, |s| n::MPI_Sendrecv(f.any(at), f.int(count), f.ty(ty), f.int(to), f.int(tag), f.any(into), f.int(room), f.ty(its),
            f.int(from), f.int(wanted), f.comm(comm), s));
    mpi_sendrecv_replace_, mpi_sendrecv_replace_f08_(at: Any, count: Int, ty: Int, to: Int, tag: Int, from: Int, wanted: Int, comm: Int,
        status: Out) f =>
        f.status(status, |s| n::MPI_Sendrecv_replace(f.any(at), f.int(count), f.ty(ty), f.int(to), f.int(tag), f.int(from), f.int(wanted),
            f.comm(comm), s));
    mpi_probe_, mpi_probe_f08_(from: Int, tag: Int, comm: Int, status: Out) f =>
        f.status(status, |s| c::MPI_Probe(f.int(from), f.int(tag), f.comm(comm), s));
    mpi_iprobe_, mpi_iprobe_f08_(from: Int, tag: Int, comm: Int, flag: Out, status: Out) f =>
        f.status(status, |s| c::MPI_Iprobe(f.int(from), f.int(tag), f.comm(comm), flag, s));
    mpi_mprobe_, mpi_mprobe_f08_(from: Int, tag: Int, comm: Int, message: Out, status: Out) f =>
        f.status(status, |s| f.finding(message, |m| c::MPI_Mprobe(f.int(from), f.int(tag), f.comm(comm), m, s)));
    mpi_improbe_, mpi_improbe_f08_(from: Int, tag: Int, comm: Int, flag: Out, message: Out, status: Out) f =>
        f.status(status, |s| f.finding(message, |m| c::MPI_Improbe(f.int(from), f.int(tag), f.comm(comm), flag, m, s)));
    mpi_mrecv_, mpi_mrecv_f08_(at: Any, count: Int, ty: Int, message: Out, status: Out) f =>
        f.status(status, |s| f.message(message, |m| n::MPI_Mrecv(f.any(at), f.int(count), f.ty(ty), m, s)));
    mpi_imrecv_, mpi_imrecv_f08_(at: Any, count: Int, ty: Int, message: Out, request: Out) f =>
        f.making(request, |r| f.message(message, |m| n::MPI_Imrecv(f.any(at), f.int(count), f.ty(ty), m, r)));
    mpi_wait_, mpi_wait_f08_(request: Out, status: Out) f =>
        f.status(status, |s| f.with(1, request, |r| c::MPI_Wait(r, s)));
    mpi_test_, mpi_test_f08_(request: Out, flag: Out, status: Out) f =>
        f.status(status, |s| f.with(1, request, |r| c::MPI_Test(r, flag, s)));
    mpi_waitall_, mpi_waitall_f08_(count: Int, at: Out, statuses: Out) f =>
        f.statuses(f.int(count), statuses, |s| f.with(f.int(count), at, |r| c::MPI_Waitall(f.int(count), r, s)));
    mpi_testall_, mpi_testall_f08_(count: Int, at: Out, flag: Out, statuses: Out) f =>
        f.statuses(f.int(count), statuses, |s| f.with(f.int(count), at, |r| c::MPI_Testall(f.int(count), r, flag, s)));
    mpi_waitany_, mpi_waitany_f08_(count: Int, at: Out, index: Out, status: Out) f =>
        f.indices(index, f.status(status, |s| f.with(f.int(count), at, |r| c::MPI_Waitany(f.int(count), r, index, s))), 1);
    mpi_testany_, mpi_testany_f08_(count: Int, at: Out, index: Out, flag: Out, status: Out) f =>
        f.indices(index, f.status(status, |s| f.with(f.int(count), at, |r| c::MPI_Testany(f.int(count), r, index, flag, s))), 1);
    mpi_waitsome_, mpi_waitsome_f08_(count: Int, at: Out, done: Out, indices: Out, statuses: Out) f => {
        let some = |s| f.with(f.int(count), at, |r| c::MPI_Waitsome(f.int(count), r, done, indices, s));
        f.indices(indices, f.statuses(f.int(count), statuses, some), ended(done))
    };
    mpi_testsome_, mpi_testsome_f08_(count: Int, at: Out, done: Out, indices: Out, statuses: Out) f => {
        let some = |s| f.with(f.int(count), at, |r| c::MPI_Testsome(f.int(count), r, done, indices, s));
        f.indices(indices, f.statuses(f.int(count), statuses, some), ended(done))
    };
    mpi_request_get_status_, mpi_request_get_status_f08_(request: Int, flag: Out, status: Out) f =>
        f.status(status, |s| c::MPI_Request_get_status(f.request(request), flag, s));
    mpi_cancel_, mpi_cancel_f08_(request: Int) f => f.with(1, request.cast_mut(), |r| c::MPI_Cancel(r));
    mpi_request_free_, mpi_request_free_f08_(request: Out) f => f.with(1, request, |r| c::MPI_Request_free(r));
    mpi_start_, mpi_start_f08_(request: Out) f => f.with(1, request, |r| c::MPI_Start(r));
    mpi_startall_, mpi_startall_f08_(count: Int, at: Out) f => f.with(f.int(count), at, |r| c::MPI_Startall(f.int(count), r));
}

/// Exports a function that makes a communicator, in both forms. Its arguments are addresses, the
/// communicator's the last but the code's.
macro_rules! making {
    ($($name:ident, $new:ident($($arg:ident),*);)*) => {$(
        making!(@one $name($($arg),*));
        making!(@one $new($($arg),*));
    )*};
    (@one $name:ident($($arg:ident),*)) => {
        #[no_mangle]
        unsafe extern "C" fn $name($($arg: Any,)* new: *mut c_int, code: *mut c_int) {
            let mut result = 0;
            let to = if code.is_null() { &raw mut result } else { code };
            // SAFETY: the program's own call.
            unsafe { below!(stringify!($name), fn($(making!(@any $arg),)* *mut c_int, *mut c_int))($($arg,)* new, to) };
            // SAFETY: the code of the call.
            let args = args().filter(|_| unsafe { *to } == 0);
            if let Some(args) = args {
                made(args.comm(new));
            }
        }
    };
    (@any $arg:ident) => { Any };
}

making! {
    mpi_comm_dup_, mpi_comm_dup_f08_(comm);
    mpi_comm_dup_with_info_, mpi_comm_dup_with_info_f08_(comm, info);
    mpi_comm_split_, mpi_comm_split_f08_(comm, color, key);
    mpi_comm_split_type_, mpi_comm_split_type_f08_(comm, kind, key, info);
    mpi_comm_create_, mpi_comm_create_f08_(comm, group);
    mpi_comm_create_group_, mpi_comm_create_group_f08_(comm, group, tag);
    mpi_cart_create_, mpi_cart_create_f08_(comm, dims, sizes, periods, reorder);
    mpi_cart_sub_, mpi_cart_sub_f08_(comm, remain);
    mpi_graph_create_, mpi_graph_create_f08_(comm, nodes, index, edges, reorder);
    mpi_dist_graph_create_, mpi_dist_graph_create_f08_(comm, nodes, sources, degrees, ends, weights, info, reorder);
    mpi_dist_graph_create_adjacent_, mpi_dist_graph_create_adjacent_f08_(comm, entering, sources, its, leaving, ends, weights, info, reorder);
    mpi_intercomm_merge_, mpi_intercomm_merge_f08_(inter, high);
}
