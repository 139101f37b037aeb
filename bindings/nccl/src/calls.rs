//! The functions of `ncclNet`: connections and messages, with arguments from C.
#![allow(unsafe_code)] // C: pointers of NCCL.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use crate::abi::{Code, CommConfig, Logger};
use crate::device;
use crate::entry::{
    deregister, give, handle, handle_bytes, locked, memory, number, register, run, MESSAGE_MAX,
};
use crate::establish::{Connecting, Listening};
use crate::failure::Failure;
use crate::log;
use crate::peer::Peer;
use crate::receive::{Incoming, Receiver};
use crate::send::{Outgoing, Sender};
use crate::table::{Table, REQUEST_BITS};
use crate::wire::{Handle, GROUP, INSIDE};

/// What one initialisation has made: connections under way, by the number in their copy of the
/// handle.
struct Context {
    pending: Mutex<HashMap<u64, Connecting>>,
    next: AtomicU64,
}

/// A connection's end.
enum End {
    Send(Mutex<Sender>),
    Receive(Mutex<Receiver>),
}

static CONTEXTS: Table<Context> = Table::new("context");
static LISTENING: Table<Mutex<Listening>> = Table::new("listening communicator");
static ENDS: Table<End> = Table::new("communicator");

pub(crate) unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _: u64,
    _: *const CommConfig,
    logger: Option<Logger>,
    _: *const c_void,
) -> c_int {
    log::set(logger);
    run("init", || {
        device::acquire()?;
        let made = CONTEXTS.insert(Context {
            pending: Mutex::default(),
            next: AtomicU64::new(1),
        });
        // SAFETY: the caller's variable.
        unsafe { give(context, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    run("finalize", || {
        let context = CONTEXTS.remove(number(context))?;
        // Connections that were given up.
        let pending = std::mem::take(&mut *locked(&context.pending));
        drop(pending);
        device::release();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn listen(
    context: *mut c_void,
    number_of_device: c_int,
    to: *mut c_void,
    comm: *mut *mut c_void,
) -> c_int {
    run("listen", || {
        CONTEXTS.get(number(context))?;
        let to = handle_bytes(to)?;
        let device = device::get(number_of_device)?;
        let (listening, made) = Listening::new(&device)?;
        // SAFETY: NCCL's memory of so many bytes.
        unsafe { to.write(made.encode()) };
        let made = LISTENING.insert(Mutex::new(listening));
        // SAFETY: the caller's variable.
        unsafe { give(comm, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn connect(
    context: *mut c_void,
    number_of_device: c_int,
    at: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut c_void,
) -> c_int {
    run("connect", || {
        let context = CONTEXTS.get(number(context))?;
        // SAFETY: the caller's variable.
        unsafe { give(comm, std::ptr::null_mut())? };
        let at = handle_bytes(at)?;
        // SAFETY: NCCL's memory of so many bytes.
        let read = Handle::decode(&unsafe { at.read() });
        let mut there = read.ok_or_else(|| {
            Failure::argument(
                "the handle is none of this version of the plug-in; use the same one on all hosts",
            )
        })?;
        let mut pending = locked(&context.pending);
        if there.pending == 0 {
            let device = device::get(number_of_device)?;
            let connecting = Connecting::new(&device, &there)?;
            // Relaxed: only uniqueness matters.
            there.pending = context.next.fetch_add(1, Ordering::Relaxed);
            pending.insert(there.pending, connecting);
            // SAFETY: as above. Each connection has its own copy, which NCCL gives again until it
            // is made.
            unsafe { at.write(there.encode()) };
        }
        let mut connecting = pending.remove(&there.pending).ok_or_else(|| {
            Failure::argument("the handle names a connection that is not under way; give the one that `listen` has made")
        })?;
        // Others may connect meanwhile.
        drop(pending);
        let made = connecting.poll();
        if let Ok(None) = made {
            locked(&context.pending).insert(there.pending, connecting);
            return Ok(());
        }
        there.pending = 0;
        // SAFETY: as above.
        unsafe { at.write(there.encode()) };
        let Some(sender) = made? else {
            return Ok(());
        };
        let made = ENDS.insert(End::Send(Mutex::new(sender)));
        // SAFETY: the caller's variable.
        unsafe { give(comm, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn accept(
    listening: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut c_void,
) -> c_int {
    run("accept", || {
        // SAFETY: the caller's variable.
        unsafe { give(comm, std::ptr::null_mut())? };
        let listening = LISTENING.get(number(listening))?;
        let accepted = locked(&listening).accept()?;
        let Some(receiver) = accepted else {
            return Ok(());
        };
        let made = ENDS.insert(End::Receive(Mutex::new(receiver)));
        // SAFETY: the caller's variable.
        unsafe { give(comm, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> c_int {
    run("regMr", || {
        let end = ENDS.get(number(comm))?;
        let device = |peer: &Peer| peer.device.clone();
        let device = match &*end {
            End::Send(s) => device(&locked(s).peer),
            End::Receive(r) => device(&locked(r).peer),
        };
        // SAFETY: NCCL frees the memory after it was deregistered, and the variable is its own.
        unsafe { register(&device, (data, size), kind, memory) }
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(comm: *mut c_void, memory: *mut c_void) -> c_int {
    run("deregMr", || {
        ENDS.get(number(comm))?;
        deregister(memory)
    })
}

pub(crate) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    registered: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    run("isend", || {
        // SAFETY: the caller's variable.
        unsafe { give(request, std::ptr::null_mut())? };
        let comm = number(comm);
        let end = ENDS.get(comm)?;
        let End::Send(sender) = &*end else {
            return Err(Failure::argument("isend on the receiving end"));
        };
        if size > MESSAGE_MAX || (data.is_null() && size > 0) {
            let text = format!("cannot send {size} B at {data:p}; at most {MESSAGE_MAX}");
            return Err(Failure::argument(text));
        }
        let registered = match size > INSIDE {
            true => memory(registered)?,
            false => None,
        };
        let mut inside = [0; INSIDE];
        if size <= INSIDE && size > 0 {
            // SAFETY: the caller's bytes.
            unsafe {
                inside
                    .as_mut_ptr()
                    .copy_from_nonoverlapping(data.cast(), size)
            };
        }
        let sent = locked(sender).send(Outgoing {
            at: data.addr(),
            size,
            tag,
            memory: registered,
            inside,
        })?;
        if let Some(sent) = sent {
            // SAFETY: the caller's variable.
            unsafe { give(request, handle(comm | sent))? };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *const *mut c_void,
    sizes: *const usize,
    tags: *const c_int,
    memories: *const *mut c_void,
    _: *const *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    run("irecv", || {
        // SAFETY: the caller's variable. NCCL may have written there that it looks at the data
        // instead; a request serves it as well.
        unsafe { give(request, std::ptr::null_mut())? };
        let comm = number(comm);
        let end = ENDS.get(comm)?;
        let End::Receive(receiver) = &*end else {
            return Err(Failure::argument("irecv on the sending end"));
        };
        let n = usize::try_from(count).ok();
        let n = n.filter(|n| (1..=GROUP).contains(n));
        let n = n.ok_or_else(|| {
            Failure::argument(format!("{count} receives in a group; from 1 to {GROUP}"))
        })?;
        if data.is_null() || sizes.is_null() || tags.is_null() {
            return Err(Failure::argument("an array of the receives is null"));
        }
        let mut receives = Vec::with_capacity(n);
        for i in 0..n {
            // SAFETY: arrays of so many elements; that of the handles may be absent.
            let (at, room, tag, registered) = unsafe {
                let registered = match memories.is_null() {
                    true => std::ptr::null_mut(),
                    false => *memories.add(i),
                };
                (*data.add(i), *sizes.add(i), *tags.add(i), registered)
            };
            if at.is_null() && room > 0 {
                return Err(Failure::argument("cannot receive at a null pointer"));
            }
            let registered = memory(registered)?;
            receives.push(Incoming::new(at.cast(), room, tag, registered));
        }
        if let Some(posted) = locked(receiver).receive(receives)? {
            // SAFETY: the caller's variable.
            unsafe { give(request, handle(comm | posted))? };
        }
        Ok(())
    })
}

/// There is nothing to flush: bytes in host memory are visible when their receive is complete.
pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    _: c_int,
    _: *const *mut c_void,
    _: *const c_int,
    _: *const *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    run("iflush", || {
        let end = ENDS.get(number(comm))?;
        if matches!(&*end, End::Send(_)) {
            return Err(Failure::argument("iflush on the sending end"));
        }
        // SAFETY: the caller's variable.
        unsafe { give(request, std::ptr::null_mut()) }
    })
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> c_int {
    run("test", || {
        // SAFETY: the caller's variable.
        unsafe { give(done, 0)? };
        let request = number(request);
        let mask = (1 << REQUEST_BITS) - 1;
        let (comm, own) = (request & !mask, request & mask);
        let end = ENDS.get(comm)?;
        match &*end {
            End::Send(sender) => {
                let Some(size) = locked(sender).test(own)? else {
                    return Ok(());
                };
                if !sizes.is_null() {
                    // SAFETY: the caller's variable.
                    unsafe { *sizes = size as c_int };
                }
            }
            End::Receive(receiver) => {
                let Some(all) = locked(receiver).test(own)? else {
                    return Ok(());
                };
                if !sizes.is_null() {
                    for (i, size) in all.iter().enumerate() {
                        // SAFETY: the caller's array has an element for each receive of the group.
                        unsafe { *sizes.add(i) = *size as c_int };
                    }
                }
            }
        }
        // SAFETY: the caller's variable.
        unsafe { give(done, 1) }
    })
}

/// Closes an end of the kind that is asked for.
fn close(name: &str, comm: *mut c_void, sends: bool) -> c_int {
    run(name, || {
        let comm = number(comm);
        let end = ENDS.get(comm)?;
        if matches!(&*end, End::Send(_)) != sends {
            return Err(Failure::argument("this is the other end of a connection"));
        }
        ENDS.remove(comm)?;
        match &*end {
            End::Send(s) => locked(s).close(),
            End::Receive(r) => locked(r).close(),
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_send(comm: *mut c_void) -> c_int {
    close("closeSend", comm, true)
}

pub(crate) unsafe extern "C" fn close_recv(comm: *mut c_void) -> c_int {
    close("closeRecv", comm, false)
}

pub(crate) unsafe extern "C" fn close_listen(listening: *mut c_void) -> c_int {
    run("closeListen", || {
        let listening = LISTENING.remove(number(listening))?;
        locked(&listening).close();
        Ok(())
    })
}

/// NCCL says what it is about to do (operation, algorithm, protocol, peers): nothing here depends
/// on it.
pub(crate) unsafe extern "C" fn set_net_attr(context: *mut c_void, _: *const c_void) -> c_int {
    run("setNetAttr", || CONTEXTS.get(number(context)).map(drop))
}

/// The context of version 10, which has none: 0 before its first initialisation. Its devices stay
/// open as long as the process.
static CONTEXT10: AtomicU64 = AtomicU64::new(0);

pub(crate) unsafe extern "C" fn init10(logger: Option<Logger>, profiler: *const c_void) -> c_int {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = locked(&ONCE);
    // Relaxed: the lock orders it, and NCCL calls nothing else before.
    if CONTEXT10.load(Ordering::Relaxed) != 0 {
        return Code::Success as c_int;
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: a variable of ours, and NCCL's pointers.
    let ended = unsafe { init(&raw mut context, 0, std::ptr::null(), logger, profiler) };
    CONTEXT10.store(number(context), Ordering::Relaxed);
    ended
}

pub(crate) unsafe extern "C" fn listen10(
    number_of_device: c_int,
    to: *mut c_void,
    comm: *mut *mut c_void,
) -> c_int {
    let context = handle(CONTEXT10.load(Ordering::Relaxed));
    // SAFETY: the caller's contract is the same.
    unsafe { listen(context, number_of_device, to, comm) }
}

pub(crate) unsafe extern "C" fn connect10(
    number_of_device: c_int,
    _: *const CommConfig,
    at: *mut c_void,
    comm: *mut *mut c_void,
    device: *mut *mut c_void,
) -> c_int {
    let context = handle(CONTEXT10.load(Ordering::Relaxed));
    // SAFETY: the caller's contract is the same.
    unsafe { connect(context, number_of_device, at, comm, device) }
}
