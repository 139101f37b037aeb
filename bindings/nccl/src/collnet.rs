//! The functions of `ncclCollNet`: collectives that the NIC runs, with arguments from C.
#![allow(unsafe_code)] // C: pointers of NCCL.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ringbell::abi::CollectiveKind as K;
use ringbell::{DataType, ReduceOp};

use crate::abi::{Code, Logger, Piece, HANDLE_BYTES};
use crate::device;
use crate::entry::{
    deregister, give, handle, handle_bytes, locked, memory, number, register, run, MESSAGE_MAX,
};
use crate::failure::Failure;
use crate::group::{Call, RankGroup, Side};
use crate::log;
use crate::meeting::Meeting;
use crate::table::{Table, REQUEST_BITS};
use crate::window::{Part, Window};

/// What one initialisation has made: listening communicators. NCCL leaves those open that have no
/// communicator.
struct Context {
    listening: Mutex<Vec<u64>>,
}

static CONTEXTS: Table<Context> = Table::new("context of collectives");
static LISTENING: Table<Mutex<Meeting>> = Table::new("listening communicator of collectives");
static GROUPS: Table<Mutex<RankGroup>> = Table::new("collective communicator");

/// Most ranks.
const RANKS_MAX: usize = ringbell::comm::MAX_RANKS;

/// `ncclDataType_t`, of those that the NIC reduces.
fn data_type(number: c_int) -> Option<DataType> {
    use DataType as T;
    let all = [
        T::I8,
        T::U8,
        T::I32,
        T::U32,
        T::I64,
        T::U64,
        T::F16,
        T::F32,
        T::F64,
        T::Bf16,
    ];
    all.get(usize::try_from(number).ok()?).copied()
}

/// `ncclRedOp_t`, of those that the NIC has.
fn reduce_op(number: c_int) -> Option<ReduceOp> {
    let all = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
    all.get(usize::try_from(number).ok()?).copied()
}

fn reduced(data: c_int, op: c_int) -> Result<(DataType, ReduceOp), Failure> {
    data_type(data).zip(reduce_op(op)).ok_or_else(|| {
        Failure::argument(format!(
            "type {data} with operation {op}; `reduceSupport` says which the NIC reduces"
        ))
    })
}

pub(crate) unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _: u64,
    logger: Option<Logger>,
) -> c_int {
    log::set(logger);
    run("init of collectives", || {
        device::acquire()?;
        let made = CONTEXTS.insert(Context {
            listening: Mutex::default(),
        });
        // SAFETY: the caller's variable.
        unsafe { give(context, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    run("finalize of collectives", || {
        let context = CONTEXTS.remove(number(context))?;
        let left = std::mem::take(&mut *locked(&context.listening));
        for listening in left {
            // Most were closed.
            let _ = LISTENING.remove(listening);
        }
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
    run("listen for collectives", || {
        let context = CONTEXTS.get(number(context))?;
        let to = handle_bytes(to)?;
        let meeting = Meeting::new(&device::get(number_of_device)?)?;
        // SAFETY: NCCL's memory of so many bytes.
        unsafe { to.write(meeting.handle()) };
        let made = LISTENING.insert(Mutex::new(meeting));
        locked(&context.listening).push(made);
        // SAFETY: the caller's variable.
        unsafe { give(comm, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn connect(
    handles: *const *const c_void,
    ranks: c_int,
    rank: c_int,
    listening: *mut c_void,
    comm: *mut *mut c_void,
) -> c_int {
    run("connect of collectives", || {
        // SAFETY: the caller's variable.
        unsafe { give(comm, std::ptr::null_mut())? };
        let meeting = LISTENING.get(number(listening))?;
        let wrong = || Failure::argument(format!("rank {rank} of {ranks} ranks"));
        let count = usize::try_from(ranks).ok();
        let count = count.filter(|n| (1..=RANKS_MAX).contains(n));
        let count = count.ok_or_else(wrong)?;
        let rank = u32::try_from(rank).map_err(|_| wrong())?;
        if handles.is_null() {
            return Err(Failure::argument("the array of handles is null"));
        }
        let mut all = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: the caller's array of so many.
            let at = handle_bytes(unsafe { *handles.add(i) }.cast_mut())?;
            // SAFETY: NCCL's memory of so many bytes.
            let bytes: [u8; HANDLE_BYTES] = unsafe { at.read() };
            all.push(bytes);
        }
        let made = locked(&meeting).connect(&all, rank)?;
        let made = GROUPS.insert(Mutex::new(made));
        // SAFETY: the caller's variable.
        unsafe { give(comm, handle(made)) }
    })
}

pub(crate) unsafe extern "C" fn reduce_support(
    data: c_int,
    op: c_int,
    supported: *mut c_int,
) -> c_int {
    run("reduceSupport", || {
        let is = c_int::from(reduced(data, op).is_ok());
        // SAFETY: the caller's variable.
        unsafe { give(supported, is) }
    })
}

pub(crate) unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> c_int {
    run("regMr of collectives", || {
        let group = GROUPS.get(number(comm))?;
        let device = locked(&group).device.clone();
        // SAFETY: NCCL frees the memory after it was deregistered, and the variable is its own.
        unsafe { register(&device, (data, size), kind, memory) }
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(comm: *mut c_void, memory: *mut c_void) -> c_int {
    run("deregMr of collectives", || {
        GROUPS.get(number(comm))?;
        deregister(memory)
    })
}

/// Bytes of the caller; their registration is looked up where there are any.
fn side(at: *mut c_void, bytes: usize, registered: *mut c_void) -> Result<Side, Failure> {
    let memory = match bytes {
        0 => None,
        _ => Some(memory(registered)?.ok_or_else(|| {
            Failure::argument(format!("{bytes} B at {at:p} have no registration"))
        })?),
    };
    if let Some(memory) = &memory {
        memory.cut(at.addr(), bytes)?;
    }
    Ok(Side {
        at: at.cast(),
        bytes,
        memory,
    })
}

/// Starts a call, and gives its request.
///
/// # Safety
/// The pointer of the request is null, or the caller's.
unsafe fn start(
    name: &str,
    comm: *mut c_void,
    request: *mut *mut c_void,
    call: impl FnOnce(&RankGroup) -> Result<Call, Failure>,
) -> c_int {
    run(name, || {
        // SAFETY: the caller's variable.
        unsafe { give(request, std::ptr::null_mut())? };
        let comm = number(comm);
        let group = GROUPS.get(comm)?;
        let mut group = locked(&group);
        let call = call(&group)?;
        if let Some(started) = group.start(call)? {
            // SAFETY: the caller's variable.
            unsafe { give(request, handle(comm | started))? };
        }
        Ok(())
    })
}

fn too_long(bytes: Option<usize>) -> Result<usize, Failure> {
    let fits = bytes.filter(|b| *b <= MESSAGE_MAX);
    fits.ok_or_else(|| {
        Failure::argument(format!(
            "a collective has at most {MESSAGE_MAX} B, as the properties say"
        ))
    })
}

pub(crate) unsafe extern "C" fn iallreduce(
    comm: *mut c_void,
    from: *mut c_void,
    to: *mut c_void,
    count: usize,
    data: c_int,
    op: c_int,
    from_memory: *mut c_void,
    to_memory: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's variable.
    unsafe {
        start("iallreduce", comm, request, |_| {
            let (dtype, op) = reduced(data, op)?;
            let bytes = too_long(count.checked_mul(dtype.bytes() as usize))?;
            let part = Part {
                kind: K::AllReduce,
                root: 0,
                bytes,
                at: 0,
            };
            Ok(Call {
                parts: if bytes > 0 { vec![part] } else { Vec::new() },
                dtype,
                op,
                src: side(from, bytes, from_memory)?,
                dst: side(to, bytes, to_memory)?,
                bytes,
            })
        })
    }
}

/// The one piece of a window.
///
/// # Safety
/// The array has so many elements, or is null.
unsafe fn piece(pieces: *const Piece, count: c_int, window: &Window) -> Result<Piece, Failure> {
    if count != 1 || pieces.is_null() {
        return Err(Failure::argument(format!(
            "a window in {count} pieces; the plug-in takes one"
        )));
    }
    // SAFETY: the caller's contract.
    let piece = unsafe { *pieces };
    if piece.size != window.bytes || !window.is_sound() {
        return Err(Failure::argument(format!(
            "a piece of {} B for a window of {} B at {} of {} blocks of {} B",
            piece.size, window.bytes, window.offset, window.ranks, window.block
        )));
    }
    too_long(Some(window.bytes))?;
    Ok(piece)
}

pub(crate) unsafe extern "C" fn iallgather(
    comm: *mut c_void,
    from: *mut c_void,
    pieces: c_int,
    to: *const Piece,
    block: usize,
    offset: usize,
    bytes: usize,
    from_memory: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's variable and array.
    unsafe {
        start("iallgather", comm, request, |group| {
            let window = Window {
                ranks: group.ranks(),
                block,
                offset,
                bytes,
            };
            let to = piece(to, pieces, &window)?;
            Ok(Call {
                parts: window.parts(K::AllGather, K::Broadcast),
                dtype: DataType::U8,
                op: ReduceOp::Sum,
                src: side(from, window.own(group.rank()), from_memory)?,
                dst: side(to.address, bytes, to.memory)?,
                bytes,
            })
        })
    }
}

pub(crate) unsafe extern "C" fn ireducescatter(
    comm: *mut c_void,
    pieces: c_int,
    from: *const Piece,
    to: *mut c_void,
    block: usize,
    offset: usize,
    bytes: usize,
    data: c_int,
    op: c_int,
    to_memory: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's variable and array.
    unsafe {
        start("ireducescatter", comm, request, |group| {
            let (dtype, op) = reduced(data, op)?;
            let element = dtype.bytes() as usize;
            if [block, offset, bytes].iter().any(|b| b % element != 0) {
                return Err(Failure::argument(format!(
                    "a block of {block} B and a window of {bytes} B at {offset}, of elements of {element} B"
                )));
            }
            let window = Window {
                ranks: group.ranks(),
                block,
                offset,
                bytes,
            };
            let from = piece(from, pieces, &window)?;
            let own = window.own(group.rank());
            Ok(Call {
                parts: window.parts(K::ReduceScatter, K::Reduce),
                dtype,
                op,
                src: side(from.address, bytes, from.memory)?,
                dst: side(to, own, to_memory)?,
                bytes: own,
            })
        })
    }
}

/// There is nothing to flush: bytes in host memory are visible when their request is complete.
pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    _: *mut c_void,
    _: c_int,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    run("iflush of collectives", || {
        GROUPS.get(number(comm))?;
        // SAFETY: the caller's variable.
        unsafe { give(request, std::ptr::null_mut()) }
    })
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    size: *mut c_int,
) -> c_int {
    run("test of collectives", || {
        // SAFETY: the caller's variable.
        unsafe { give(done, 0)? };
        let request = number(request);
        let mask = (1 << REQUEST_BITS) - 1;
        let group = GROUPS.get(request & !mask)?;
        let Some(bytes) = locked(&group).test(request & mask)? else {
            return Ok(());
        };
        if !size.is_null() {
            // SAFETY: the caller's variable.
            unsafe { *size = bytes as c_int };
        }
        // SAFETY: the caller's variable.
        unsafe { give(done, 1) }
    })
}

pub(crate) unsafe extern "C" fn close_coll(comm: *mut c_void) -> c_int {
    run("closeColl", || {
        let group: Arc<Mutex<RankGroup>> = GROUPS.remove(number(comm))?;
        locked(&group).close();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_listen(listening: *mut c_void) -> c_int {
    run("closeListen of collectives", || {
        LISTENING.remove(number(listening)).map(drop)
    })
}

/// The context of version 10, which has none: 0 before its first initialisation. Its devices stay
/// open as long as the process.
static CONTEXT10: AtomicU64 = AtomicU64::new(0);

pub(crate) unsafe extern "C" fn init10(logger: Option<Logger>) -> c_int {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = locked(&ONCE);
    // Relaxed: the lock orders it, and NCCL calls nothing else before.
    if CONTEXT10.load(Ordering::Relaxed) != 0 {
        return Code::Success as c_int;
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: a variable of ours, and NCCL's pointer.
    let ended = unsafe { init(&raw mut context, 0, logger) };
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
