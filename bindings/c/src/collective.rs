//! Collectives and messages of the C API, with NCCL's names and order of arguments.
//!
//! Each call has two forms: one runs on a stream, or to its end when the stream is null; the other
//! returns a request. `rb_operation_run` and its variants take every option of an operation.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use ringbell::abi::{Algorithm, CollectiveKind, DataType, GpuVa, ReduceOp, Status, WireType};

use crate::comm_config::{code, timeout};
use crate::communicator::{OpenComm, COMMS};
use crate::failure::{entry, Failure};
use crate::pointer::{OptionalOut, Out};
use crate::request::{self, DoneInfo, OpenRequest, Work, REQUESTS};
use crate::stream::STREAMS;
use crate::{group, kernel_stream};
use ringbell::{Operation, Request, Span};

/// `RB_OP_FENCE`
const FENCE: u32 = 1;
/// `RB_OP_STREAMED`
const STREAMED: u32 = 2;
/// `RB_OP_SRC_STREAM`
const SRC_STREAM: u32 = 4;
/// `RB_OP_DST_STREAM`
const DST_STREAM: u32 = 8;

/// `rb_operation`. Fields are only ever appended.
#[repr(C)]
#[derive(Clone, Copy)]
struct Order {
    size: usize,
    kind: u32,
    dtype: u32,
    op: u32,
    root: u32,
    tag: u32,
    algo: u32,
    wire: u32,
    flags: u32,
    src: *const c_void,
    dst: *mut c_void,
    count: u64,
    timeout_us: u64,
    after: *const *mut c_void,
    after_count: u32,
    reserved: u32,
}

impl Order {
    fn new(kind: CollectiveKind) -> Order {
        Order {
            size: size_of::<Order>(),
            kind: u32::from(kind.code()),
            dtype: u32::from(DataType::U8.code()),
            op: 0,
            root: 0,
            tag: 0,
            algo: 0,
            wire: 0,
            flags: 0,
            src: std::ptr::null(),
            dst: std::ptr::null_mut(),
            count: 0,
            timeout_us: 0,
            after: std::ptr::null(),
            after_count: 0,
            reserved: 0,
        }
    }

    /// # Safety
    /// `p` is null, or valid for as many bytes as its `size` says.
    unsafe fn read(p: *const Order) -> Result<Order, Failure> {
        if p.is_null() {
            return Err(Failure::argument("`operation` is a null pointer"));
        }
        // SAFETY: `size` comes first in every version of the structure.
        let size = unsafe { p.cast::<usize>().read_unaligned() };
        if size != size_of::<Order>() {
            return Err(Failure::argument(format!(
                "operation->size is {size}, not {}; zero the structure, set size = sizeof(rb_operation), and build against the header of this library",
                size_of::<Order>()
            )));
        }
        // SAFETY: the caller vouches for `size` bytes.
        Ok(unsafe { p.read_unaligned() })
    }

    /// The operation of this order.
    ///
    /// # Safety
    /// `after` is null or holds `after_count` handles.
    unsafe fn operation(&self, comm: &OpenComm) -> Result<Operation, Failure> {
        let kind = code(self.kind, CollectiveKind::from_code, "`kind`", "RB_COLL_")?;
        let dtype = match kind {
            // They move nothing: their type is ignored.
            CollectiveKind::Barrier | CollectiveKind::Nop => DataType::U8,
            _ => code(self.dtype, DataType::from_code, "`dtype`", "RB_DTYPE_")?,
        };
        // Most operations have none.
        let op = match self.op {
            0 if !kind.reduces() => ReduceOp::Sum,
            op => code(op, ReduceOp::from_code, "`op`", "RB_REDOP_")?,
        };
        let make = |src, dst| Operation::by_kind(kind, dtype, op, src, dst, self.count, self.root);
        // Only this rank's arguments are checked: others may pass anything, as in NCCL.
        let (c, nic) = (&comm.comm, comm.comm.nic());
        let needs = make(Span::NONE, Span::NONE).needs(c.rank(), c.size());
        let span = |va: usize, elements: u64, name: &str, stream: u32| match (va, elements) {
            (_, 0) => Ok(Span::NONE),
            (handle, _) if self.flags & stream != 0 => kernel_stream::span(handle, comm.owner),
            (0, _) => Err(Failure::argument(format!("`{name}` is a null pointer"))),
            (va, _) => Span::at(nic, GpuVa(va as u64))
                .ok_or_else(|| Failure::status(Status::NotRegistered, 0, va as u64)),
        };
        let src = span(self.src.addr(), needs.0, "src", SRC_STREAM)?;
        let dst = span(self.dst.addr(), needs.1, "dst", DST_STREAM)?;
        let mut o = make(src, dst).tag(self.tag);
        if self.algo != 0 {
            o = o.algo(code(self.algo, Algorithm::from_code, "`algo`", "RB_ALGO_")?);
        }
        if self.wire != 0 {
            o = o.wire(code(self.wire, WireType::from_code, "`wire`", "RB_WIRE_")?);
        }
        if self.timeout_us != 0 {
            o = o.timeout(timeout(self.timeout_us, "`timeout_us`")?);
        }
        if self.flags & !(FENCE | STREAMED | SRC_STREAM | DST_STREAM) != 0 {
            let why = format!(
                "`flags` is {:#x}; known are RB_OP_FENCE, _STREAMED, _SRC_STREAM and _DST_STREAM",
                self.flags
            );
            return Err(Failure::argument(why));
        }
        // A rank without a source sets the flag like the others, which have a stream there.
        let message = matches!(
            kind,
            CollectiveKind::StreamSend | CollectiveKind::StreamRecv
        );
        if message || self.flags & (STREAMED | SRC_STREAM | DST_STREAM) != 0 {
            o = o.streamed();
        }
        // SAFETY: by this function's contract.
        o = unsafe { self.chained(o)? };
        Ok(if self.flags & FENCE != 0 {
            o.fence()
        } else {
            o
        })
    }

    /// # Safety
    /// As for [`Self::operation`].
    unsafe fn chained(&self, o: Operation) -> Result<Operation, Failure> {
        if self.after_count == 0 {
            return Ok(o);
        }
        if self.after.is_null() {
            return Err(Failure::argument("`after` is a null pointer"));
        }
        let mut all: Vec<Arc<OpenRequest>> = Vec::new();
        for i in 0..self.after_count as usize {
            // SAFETY: inside the array that the caller vouches for.
            let handle = unsafe { self.after.add(i).read_unaligned() };
            let request = REQUESTS.get(handle.addr())?;
            // A request named twice is locked once.
            if !all.iter().any(|r| Arc::ptr_eq(r, &request)) {
                all.push(request);
            }
        }
        // One order for all threads: two that chain after the same requests must not wait for each
        // other.
        all.sort_by_key(|r| Arc::as_ptr(r).addr());
        let held: Vec<_> = all.iter().map(|r| r.work()).collect();
        let requests: Result<Vec<&Request>, Failure> = held
            .iter()
            .map(|w| match &**w {
                Work::Posted(r) => Ok(r),
                Work::Queued(_) => Err(Failure::argument(
                    "an operation on a stream cannot be waited for in the NIC; the order is the stream's",
                )),
                Work::Transfer(_) => Err(Failure::argument(
                    "a socket's transfer cannot be waited for in the NIC; wait for its request",
                )),
            })
            .collect();
        Ok(o.after(&requests?))
    }
}

/// Runs to its end, or queues on the stream, now or at the end of the group.
fn run(name: &str, order: &Order, comm: *mut c_void, stream: *mut c_void) -> i32 {
    group::entry(name, || {
        let comm = COMMS.get(comm.addr())?;
        let stream = match stream.is_null() {
            true => None,
            false => Some(STREAMS.get(stream.addr())?),
        };
        // SAFETY: the calls by name have no predecessors.
        let operation = unsafe { order.operation(&comm)? };
        group::call(comm, operation, stream)
    })
}

/// Starts an operation, and returns its request.
///
/// # Safety
/// `request` is null or may be written to, and `order.after` as [`Order::operation`] says.
unsafe fn post(order: &Order, comm: *mut c_void, request: *mut *mut c_void) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let out = unsafe { Out::new(request, "`request`")? };
    out.set(std::ptr::null_mut());
    let comm = COMMS.get(comm.addr())?;
    // SAFETY: by this function's contract.
    let operation = unsafe { order.operation(&comm)? };
    let request = comm.comm.post(&operation);
    let request = request.map_err(|e| Failure::collective(&e))?;
    let patience = order.patience(&comm);
    out.set(request::insert(comm.owner, patience, Work::Posted(request)));
    Ok(())
}

impl Order {
    /// Wait of a call without a time-out: a little longer than the NIC's own.
    fn patience(&self, comm: &OpenComm) -> Duration {
        let own = match self.timeout_us {
            0 => comm.comm.options().timeout,
            us => Duration::from_micros(us),
        };
        own + Duration::from_secs(2)
    }
}

/// # Safety
/// `operation` is null or valid, as `ringbell_comm.h` says, and `done` is null or may be written
/// to.
#[no_mangle]
unsafe extern "C" fn rb_operation_run(
    operation: *const c_void,
    comm: *mut c_void,
    done: *mut DoneInfo,
) -> i32 {
    entry("rb_operation_run", || {
        // SAFETY: by this function's contract.
        let (out, order) = unsafe { (OptionalOut::new(done), Order::read(operation.cast())?) };
        let comm = COMMS.get(comm.addr())?;
        // SAFETY: by this function's contract.
        let operation = unsafe { order.operation(&comm)? };
        let done = comm.comm.run(&operation);
        out.set(done.map_err(|e| Failure::collective(&e))?.into());
        Ok(())
    })
}

/// # Safety
/// `operation` is null or valid, as `ringbell_comm.h` says, and `request` is null or may be written
/// to.
#[no_mangle]
unsafe extern "C" fn rb_operation_post(
    operation: *const c_void,
    comm: *mut c_void,
    request: *mut *mut c_void,
) -> i32 {
    entry("rb_operation_post", || {
        // SAFETY: by this function's contract.
        unsafe { post(&Order::read(operation.cast())?, comm, request) }
    })
}

/// # Safety
/// `operation` is null or valid, as `ringbell_comm.h` says, and `request` is null or may be written
/// to.
#[no_mangle]
unsafe extern "C" fn rb_operation_enqueue(
    operation: *const c_void,
    comm: *mut c_void,
    stream: *mut c_void,
    request: *mut *mut c_void,
) -> i32 {
    entry("rb_operation_enqueue", || {
        // SAFETY: by this function's contract.
        let out = unsafe { OptionalOut::new(request) };
        out.set(std::ptr::null_mut());
        // SAFETY: by this function's contract.
        let order = unsafe { Order::read(operation.cast())? };
        let (comm, stream) = (COMMS.get(comm.addr())?, STREAMS.get(stream.addr())?);
        // SAFETY: by this function's contract.
        let o = unsafe { order.operation(&comm)? };
        if request.is_null() {
            return stream.enqueue(&comm.comm, &o);
        }
        if stream.stream.is_capturing() {
            return Err(Failure::argument(
                "`request` must be NULL while the stream captures: each replay is another operation, and rb_stream_synchronize tells how they ended",
            ));
        }
        let queued = comm.comm.enqueue(&o, &stream.stream);
        let queued = queued.map_err(|e| Failure::collective(&e))?;
        let patience = order.patience(&comm);
        out.set(request::insert(comm.owner, patience, Work::Queued(queued)));
        Ok(())
    })
}

/// `CALL, ICALL(arguments) = KIND;`: a call on a stream and one that returns a request. The
/// arguments are fields of [`Order`], but for `peer`, which is its root.
macro_rules! calls {
    ($( $name:ident, $iname:ident($($arg:ident: $ty:ty),*) = $kind:ident $({ $($to:ident: $from:ident),+ })?; )+) => {
        $(
            #[no_mangle]
            extern "C" fn $name($($arg: $ty,)* comm: *mut c_void, stream: *mut c_void) -> i32 {
                let order = calls!(@order $kind ($($arg)*) $($($to $from)+)?);
                run(stringify!($name), &order, comm, stream)
            }

            /// # Safety
            /// `request` is null or may be written to.
            #[no_mangle]
            unsafe extern "C" fn $iname(
                $($arg: $ty,)*
                comm: *mut c_void,
                request: *mut *mut c_void,
            ) -> i32 {
                entry(stringify!($iname), || {
                    let order = calls!(@order $kind ($($arg)*) $($($to $from)+)?);
                    // SAFETY: by this function's contract; the order has no predecessors.
                    unsafe { post(&order, comm, request) }
                })
            }
        )+
    };
    // A message's partner is the root of its order.
    (@order $kind:ident ($($arg:ident)*) $($to:ident $from:ident)+) => {
        Order { $($to: $from,)+ ..Order::new(CollectiveKind::$kind) }
    };
    (@order $kind:ident ($($arg:ident)*)) => {
        Order { $($arg,)* ..Order::new(CollectiveKind::$kind) }
    };
}

calls! {
    rb_all_reduce, rb_iall_reduce(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32, op: u32) = AllReduce;
    rb_broadcast, rb_ibroadcast(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32, root: u32) = Broadcast;
    rb_reduce, rb_ireduce(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32, op: u32, root: u32) = Reduce;
    rb_all_gather, rb_iall_gather(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32) = AllGather;
    rb_reduce_scatter, rb_ireduce_scatter(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32, op: u32) = ReduceScatter;
    rb_scatter, rb_iscatter(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32, root: u32) = Scatter;
    rb_gather, rb_igather(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32, root: u32) = Gather;
    rb_all_to_all, rb_iall_to_all(src: *const c_void, dst: *mut c_void, count: u64, dtype: u32) = AllToAll;
    rb_barrier, rb_ibarrier() = Barrier;
    rb_send, rb_isend(src: *const c_void, count: u64, dtype: u32, peer: u32, tag: u32) = Send { src: src, count: count, dtype: dtype, root: peer, tag: tag };
    rb_recv, rb_irecv(dst: *mut c_void, count: u64, dtype: u32, peer: u32, tag: u32) = Recv { dst: dst, count: count, dtype: dtype, root: peer, tag: tag };
}
