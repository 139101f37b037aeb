//! The functions of C that are exported for messages between two ranks, and for requests.
#![allow(unsafe_code)] // C: exported by name, called with the program's pointers.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::operation::{self, Op};
use super::persistent::{Kind, Persistent};
use super::{
    made, messages, receivable, requests, sendable, taken, Messages, Mode, Refused, Taken,
};
use crate::abi::Handle;
use crate::below::{below, Symbol};
use crate::collective::Buffer;
use crate::exported::{counted, exported, size_of_comm, ERR_COUNT};
use crate::failure;
use crate::layer::Layer;
use crate::trace;

type In = *const c_void;
type Out = *mut c_void;
/// A communicator.
type Comm = Handle;
/// Where a request, a message or a status is, or several.
type At = *mut c_void;
type Status = *mut c_int;
type Flag = *mut c_int;

/// The code of a call that was refused, or `None` where the library below reports it.
fn refused(layer: &Layer, comm: Comm, why: Refused) -> Option<c_int> {
    match why {
        Refused::HandOn => None,
        Refused::TooLong => Some(failure::raise(comm, ERR_COUNT)),
        Refused::NoCopy(why) => {
            trace::say(format_args!("rank {}: {why}", layer.rank()));
            Some(failure::raise(comm, failure::code(&why)))
        }
    }
}

impl Taken {
    fn refused(&self, why: Refused) -> Option<c_int> {
        refused(self.layer, self.comm, why)
    }

    /// Waits for a receive, and gives the code that the call returns.
    fn received(&self, call: &'static str, op: &Op, status: Status) -> c_int {
        received(self.layer, self.messages, self.comm, call, op, status)
    }
}

fn received(
    layer: &Layer,
    messages: &Messages,
    comm: Comm,
    call: &'static str,
    op: &Op,
    status: Status,
) -> c_int {
    messages.complete(layer, op);
    trace::note(call, None, op.outcome().bytes);
    op.write_status(layer, status);
    op.code(layer, comm, call)
}

fn send(
    call: &'static str,
    mode: Mode,
    b: Buffer,
    to: c_int,
    tag: c_int,
    comm: Comm,
) -> Option<c_int> {
    let t = taken(comm, call)?;
    let op = Arc::new(Op::default());
    let there = (&*t.context, to, tag);
    match t.messages.send(t.layer, mode, b, there, op.clone()) {
        Ok(bytes) => trace::note(call, None, bytes),
        Err(why) => return t.refused(why),
    }
    t.messages.complete(t.layer, &op);
    Some(op.code(t.layer, t.comm, call))
}

fn receive(b: Buffer, from: c_int, tag: c_int, comm: Comm, status: Status) -> Option<c_int> {
    let call = "MPI_Recv";
    let t = taken(comm, call)?;
    let op = Arc::new(Op::default());
    let there = (&t.context, from, tag);
    if let Err(why) = t.messages.receive(t.layer, b, there, op.clone()) {
        return t.refused(why);
    }
    Some(t.received(call, &op, status))
}

fn isend(
    call: &'static str,
    mode: Mode,
    b: Buffer,
    to: c_int,
    tag: c_int,
    comm: Comm,
    request: At,
) -> Option<c_int> {
    let t = taken(comm, call)?;
    if let Err(why) = sendable(t.layer, &t.context, &b, to, tag) {
        return t.refused(why);
    }
    let op = Arc::new(Op::default());
    // SAFETY: where the program wants its request.
    unsafe {
        t.layer
            .tables
            .write(request, 0, op.start((t.comm, t.context.id)))
    };
    let bytes = t.messages.send(t.layer, mode, b, (&t.context, to, tag), op);
    trace::note(call, None, bytes.unwrap_or(0));
    Some(0)
}

fn ireceive(b: Buffer, from: c_int, tag: c_int, comm: Comm, request: At) -> Option<c_int> {
    let call = "MPI_Irecv";
    let t = taken(comm, call)?;
    let op = Arc::new(Op::default());
    let judged = Messages::wanted(t.layer, &t.context, from, tag)
        .and_then(|_| receivable(t.layer, &b, op.clone()));
    if let Err(why) = judged {
        return t.refused(why);
    }
    // SAFETY: where the program wants its request.
    unsafe {
        t.layer
            .tables
            .write(request, 0, op.start((t.comm, t.context.id)))
    };
    // Its arguments were judged.
    let _ = t.messages.receive(t.layer, b, (&t.context, from, tag), op);
    trace::note(call, None, 0);
    Some(0)
}

/// Where a message of `MPI_Sendrecv` goes, or comes from.
type End = (Buffer, c_int, c_int);

fn exchange(
    call: &'static str,
    mode: Mode,
    to: End,
    from: End,
    comm: Comm,
    status: Status,
) -> Option<c_int> {
    let t = taken(comm, call)?;
    let (sent, got) = (Arc::new(Op::default()), Arc::new(Op::default()));
    let no_rank = t.layer.tables.no_rank();
    if from.1 == no_rank && to.1 == no_rank {
        return None;
    }
    let begun = match mode {
        // In place: the send's copy is made first.
        _ if to.1 == no_rank => Ok(()),
        _ => t
            .messages
            .send(t.layer, mode, to.0, (&t.context, to.1, to.2), sent.clone())
            .map(drop),
    };
    if let Err(why) = begun {
        return t.refused(why);
    }
    let mut code = 0;
    if from.1 == no_rank {
        let Buffer { at, ty, .. } = from.0;
        // SAFETY: the signature of MPI's standard. It fills the status.
        code = unsafe {
            below!(
                "PMPI_Recv",
                fn(Out, c_int, Handle, c_int, c_int, Handle, Status) -> c_int
            )(at, 0, ty, from.1, from.2, comm, status)
        };
    } else {
        let there = (&t.context, from.1, from.2);
        if let Err(why) = t.messages.receive(t.layer, from.0, there, got.clone()) {
            return t.refused(why);
        }
        code = t.received(call, &got, status).max(code);
    }
    if to.1 != no_rank {
        t.messages.complete(t.layer, &sent);
        if code == 0 {
            code = sent.code(t.layer, t.comm, call);
        }
    }
    Some(code)
}

fn init(
    call: &'static str,
    kind: Kind,
    b: Buffer,
    peer: c_int,
    tag: c_int,
    comm: Comm,
    request: At,
) -> Option<c_int> {
    let t = taken(comm, call)?;
    let judged = match kind {
        Kind::Send(_) => sendable(t.layer, &t.context, &b, peer, tag).map(drop),
        Kind::Receive => Messages::wanted(t.layer, &t.context, peer, tag)
            .and_then(|_| receivable(t.layer, &b, Arc::default()).map(drop)),
    };
    if let Err(why) = judged {
        return t.refused(why);
    }
    let made = Persistent {
        kind,
        comm: t.comm,
        context: t.context,
        buffer: b,
        peer,
        tag,
        active: None,
    };
    trace::note(call, None, 0);
    Some(match t.messages.persistents.make(t.layer, made) {
        // SAFETY: where the program wants its request.
        Ok(handle) => unsafe {
            t.layer.tables.write(request, 0, handle);
            0
        },
        Err(code) => code,
    })
}

fn probe(
    from: c_int,
    tag: c_int,
    comm: Comm,
    flag: Flag,
    message: At,
    status: Status,
) -> Option<c_int> {
    let matched = !message.is_null();
    let waits = flag.is_null();
    let call = match (matched, waits) {
        (false, true) => "MPI_Probe",
        (false, false) => "MPI_Iprobe",
        (true, true) => "MPI_Mprobe",
        (true, false) => "MPI_Improbe",
    };
    let t = taken(comm, call)?;
    let (layer, messages) = (t.layer, t.messages);
    let wanted = match Messages::wanted(layer, &t.context, from, tag) {
        Ok(wanted) => wanted,
        Err(why) => return t.refused(why),
    };
    loop {
        let found = match matched {
            false => messages.probe(layer, &wanted).map(|op| (op, None)),
            true => messages
                .probe_matched(layer, t.comm, &wanted)
                .map(|(op, handle)| (op, Some(handle))),
        };
        let lost = messages.lost();
        if !waits {
            // SAFETY: where the program wants the answer.
            unsafe { *flag = c_int::from(found.is_some()) };
        }
        match found {
            Some((op, handle)) => {
                trace::note(call, None, 0);
                op.write_status(layer, status);
                if let Some(handle) = handle {
                    // SAFETY: where the program wants the message.
                    unsafe { layer.tables.write(message, 0, handle) };
                }
                return Some(0);
            }
            None if lost.is_some() => {
                let text = operation::lost(call, &lost.unwrap_or_default());
                return Some(failure::raise(comm, failure::code(&text)));
            }
            None if !waits => {
                layer.progress_below();
                return Some(0);
            }
            None => messages.idle(layer),
        }
    }
}

fn receive_message(b: Buffer, message: At, status: Status) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = messages()?;
    let op = Arc::new(Op::default());
    let comm = match messages.receive_probed(layer, b, message, op.clone()) {
        Ok(comm) => comm,
        Err(why) => return refused(layer, layer.tables.world, why),
    };
    let call = "MPI_Mrecv";
    Some(received(layer, messages, comm, call, &op, status))
}

fn ireceive_message(b: Buffer, message: At, request: At) -> Option<c_int> {
    let layer = Layer::get()?;
    let messages = messages()?;
    let op = Arc::new(Op::default());
    let on = messages.probed_on(layer, message)?;
    if let Err(why) = receivable(layer, &b, op.clone()) {
        return refused(layer, layer.tables.world, why);
    }
    // SAFETY: where the program wants its request.
    unsafe { layer.tables.write(request, 0, op.start(on)) };
    // Judged above.
    let _ = messages.receive_probed(layer, b, message, op);
    trace::note("MPI_Imrecv", None, 0);
    Some(0)
}

const fn of(at: In, count: i64, ty: Handle) -> Buffer {
    Buffer {
        at: at.cast_mut(),
        count,
        ty,
    }
}

#[allow(clippy::useless_conversion)] // Of a count that is long already.
pub(super) mod counts {
    use super::Mode::{Buffered, Standard, Synchronous};
    use super::*;

    counted! {
        MPI_Send, MPI_Send_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm) =>
            send("MPI_Send", Standard, of(at, count.into(), ty), to, tag, comm);
        MPI_Rsend, MPI_Rsend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm) =>
            send("MPI_Rsend", Standard, of(at, count.into(), ty), to, tag, comm);
        MPI_Ssend, MPI_Ssend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm) =>
            send("MPI_Ssend", Synchronous, of(at, count.into(), ty), to, tag, comm);
        MPI_Bsend, MPI_Bsend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm) =>
            send("MPI_Bsend", Buffered, of(at, count.into(), ty), to, tag, comm);
        MPI_Recv, MPI_Recv_c(at: Out, count: Count, ty: Handle, from: c_int, tag: c_int, comm: Comm, status: Status) =>
            receive(of(at, count.into(), ty), from, tag, comm, status);
        MPI_Isend, MPI_Isend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            isend("MPI_Isend", Standard, of(at, count.into(), ty), to, tag, comm, request);
        MPI_Irsend, MPI_Irsend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            isend("MPI_Irsend", Standard, of(at, count.into(), ty), to, tag, comm, request);
        MPI_Issend, MPI_Issend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            isend("MPI_Issend", Synchronous, of(at, count.into(), ty), to, tag, comm, request);
        MPI_Ibsend, MPI_Ibsend_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            isend("MPI_Ibsend", Buffered, of(at, count.into(), ty), to, tag, comm, request);
        MPI_Irecv, MPI_Irecv_c(at: Out, count: Count, ty: Handle, from: c_int, tag: c_int, comm: Comm, request: At) =>
            ireceive(of(at, count.into(), ty), from, tag, comm, request);
        MPI_Sendrecv, MPI_Sendrecv_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, into: Out, room: Count, its: Handle, from: c_int,
            wanted: c_int, comm: Comm, status: Status) =>
            exchange("MPI_Sendrecv", Standard, (of(at, count.into(), ty), to, tag), (of(into, room.into(), its), from, wanted), comm, status);
        MPI_Sendrecv_replace, MPI_Sendrecv_replace_c(at: Out, count: Count, ty: Handle, to: c_int, tag: c_int, from: c_int, wanted: c_int,
            comm: Comm, status: Status) => {
            let buffer = of(at, count.into(), ty);
            exchange("MPI_Sendrecv_replace", Buffered, (buffer, to, tag), (buffer, from, wanted), comm, status)
        };
        MPI_Send_init, MPI_Send_init_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            init("MPI_Send_init", Kind::Send(Standard), of(at, count.into(), ty), to, tag, comm, request);
        MPI_Rsend_init, MPI_Rsend_init_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            init("MPI_Rsend_init", Kind::Send(Standard), of(at, count.into(), ty), to, tag, comm, request);
        MPI_Ssend_init, MPI_Ssend_init_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            init("MPI_Ssend_init", Kind::Send(Synchronous), of(at, count.into(), ty), to, tag, comm, request);
        MPI_Bsend_init, MPI_Bsend_init_c(at: In, count: Count, ty: Handle, to: c_int, tag: c_int, comm: Comm, request: At) =>
            init("MPI_Bsend_init", Kind::Send(Buffered), of(at, count.into(), ty), to, tag, comm, request);
        MPI_Recv_init, MPI_Recv_init_c(at: Out, count: Count, ty: Handle, from: c_int, tag: c_int, comm: Comm, request: At) =>
            init("MPI_Recv_init", Kind::Receive, of(at, count.into(), ty), from, tag, comm, request);
        MPI_Mrecv, MPI_Mrecv_c(at: Out, count: Count, ty: Handle, message: At, status: Status) =>
            receive_message(of(at, count.into(), ty), message, status);
        MPI_Imrecv, MPI_Imrecv_c(at: Out, count: Count, ty: Handle, message: At, request: At) =>
            ireceive_message(of(at, count.into(), ty), message, request);
    }
}

const NONE: At = std::ptr::null_mut();

/// Where a call that waits lets the test that it becomes say whether it has.
fn aside() -> Flag {
    thread_local! {
        static FLAG: std::cell::Cell<c_int> = const { std::cell::Cell::new(0) };
    }
    FLAG.with(std::cell::Cell::as_ptr)
}

exported! {
    MPI_Probe(from: c_int, tag: c_int, comm: Comm, status: Status) => probe(from, tag, comm, NONE.cast(), NONE, status);
    MPI_Iprobe(from: c_int, tag: c_int, comm: Comm, flag: Flag, status: Status) => probe(from, tag, comm, flag, NONE, status);
    MPI_Mprobe(from: c_int, tag: c_int, comm: Comm, message: At, status: Status) => probe(from, tag, comm, NONE.cast(), message, status);
    MPI_Improbe(from: c_int, tag: c_int, comm: Comm, flag: Flag, message: At, status: Status) => probe(from, tag, comm, flag, message, status);
    MPI_Wait(request: At, status: Status) => requests::one("MPI_Wait", request, aside(), status, true);
    MPI_Test(request: At, flag: Flag, status: Status) => requests::one("MPI_Test", request, flag, status, false);
    MPI_Waitall(count: c_int, at: At, statuses: Status) => requests::all("MPI_Waitall", count, at, aside(), statuses, true);
    MPI_Testall(count: c_int, at: At, flag: Flag, statuses: Status) => requests::all("MPI_Testall", count, at, flag, statuses, false);
    MPI_Waitany(count: c_int, at: At, index: Flag, status: Status) => requests::any("MPI_Waitany", count, at, index, aside(), status, true);
    MPI_Testany(count: c_int, at: At, index: Flag, flag: Flag, status: Status) => requests::any("MPI_Testany", count, at, index, flag, status, false);
    MPI_Waitsome(count: c_int, at: At, ended: Flag, indices: Flag, statuses: Status) =>
        requests::some("MPI_Waitsome", count, at, ended, indices, statuses, true);
    MPI_Testsome(count: c_int, at: At, ended: Flag, indices: Flag, statuses: Status) =>
        requests::some("MPI_Testsome", count, at, ended, indices, statuses, false);
    MPI_Request_get_status(request: Handle, flag: Flag, status: Status) => requests::look(request, flag, status);
    MPI_Cancel(request: At) => requests::cancel(request);
    MPI_Request_free(request: At) => requests::free(request);
    MPI_Start(request: At) => requests::start(request);
    MPI_Startall(count: c_int, at: At) => requests::start_all(count, at);
}

/// Exports a function that makes a communicator. Its handle is the last argument.
macro_rules! making {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[no_mangle]
        #[allow(non_snake_case)] // MPI's name.
        unsafe extern "C" fn $name($($arg: $ty,)* new: *mut c_void) -> c_int {
            let make = below!(concat!("P", stringify!($name)), fn($($ty,)* *mut c_void) -> c_int);
            // SAFETY: the program's own call.
            let code = unsafe { make($($arg,)* new) };
            if let Some(layer) = Layer::get().filter(|_| code == 0) {
                // SAFETY: where the library below has written a handle.
                made(unsafe { layer.tables.read(new, 0) });
            }
            code
        }
    )*};
}

type Ints = *const c_int;

making! {
    MPI_Comm_dup(comm: Handle);
    MPI_Comm_dup_with_info(comm: Handle, info: Handle);
    MPI_Comm_split(comm: Handle, color: c_int, key: c_int);
    MPI_Comm_split_type(comm: Handle, kind: c_int, key: c_int, info: Handle);
    MPI_Comm_create(comm: Handle, group: Handle);
    MPI_Comm_create_group(comm: Handle, group: Handle, tag: c_int);
    MPI_Cart_create(comm: Handle, dims: c_int, sizes: Ints, periods: Ints, reorder: c_int);
    MPI_Cart_sub(comm: Handle, remain: Ints);
    MPI_Graph_create(comm: Handle, nodes: c_int, index: Ints, edges: Ints, reorder: c_int);
    MPI_Dist_graph_create(comm: Handle, nodes: c_int, sources: Ints, degrees: Ints, ends: Ints, weights: Ints, info: Handle, reorder: c_int);
    MPI_Dist_graph_create_adjacent(comm: Handle, entering: c_int, sources: Ints, its: Ints, leaving: c_int, ends: Ints, weights: Ints, info: Handle,
        reorder: c_int);
    MPI_Intercomm_merge(inter: Handle, high: c_int);
}
