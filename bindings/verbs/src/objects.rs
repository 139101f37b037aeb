//! Protection domains, memory regions, completion channels and queues, shared receive queues.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};

use ringbell_roce::verbs::{
    Access, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, Rights,
    SharedReceiveQueue, VerbsError,
};

use crate::abi::{self, SrqAttr, SrqInitAttr};
use crate::completion::Current;
use crate::context;
use crate::refusal::{explain, refuse, set_errno};

const LOCAL_WRITE: c_uint = 1;
const REMOTE_WRITE: c_uint = 2;
const REMOTE_READ: c_uint = 4;
const REMOTE_ATOMIC: c_uint = 8;
/// Flags that change nothing here: bound windows (there are none), huge pages, and the optional
/// ones, such as relaxed ordering.
const NO_EFFECT: c_uint = 1 << 4 | 1 << 7 | 0x3ff0_0000;
const ZERO_BASED: c_uint = 1 << 5;

/// What peers may do through a queue pair.
pub(crate) fn rights(flags: c_uint) -> Rights {
    Rights {
        read: flags & REMOTE_READ != 0,
        write: flags & REMOTE_WRITE != 0,
        atomic: flags & REMOTE_ATOMIC != 0,
    }
}

#[repr(C)]
pub(crate) struct PdBox {
    front: abi::Pd,
    pub(crate) pd: ProtectionDomain,
}

/// Frees a box, unless its object is in use.
///
/// # Safety
/// The box was made by us and not freed.
unsafe fn free<T>(at: *mut T, users: impl Fn(&T) -> usize) -> c_int {
    // SAFETY: the caller's contract.
    if users(unsafe { &*at }) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(at) });
    0
}

/// The domain of a pointer.
///
/// # Safety
/// `ibv_alloc_pd` has made it.
pub(crate) unsafe fn pd<'a>(pd: *mut abi::Pd) -> &'a ProtectionDomain {
    // SAFETY: the caller's contract; the front is the first field.
    unsafe { &(*pd.cast::<PdBox>()).pd }
}

/// `ibv_alloc_pd`.
#[no_mangle]
unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    fail!(object "alloc_pd");
    // SAFETY: a context of ours.
    match unsafe { context::of(context) }.alloc_pd() {
        Ok(pd) => Box::into_raw(Box::new(PdBox {
            front: abi::Pd { context, handle: 0 },
            pd,
        }))
        .cast(),
        Err(e) => refuse(explain("ibv_alloc_pd", &e)),
    }
}

/// `ibv_dealloc_pd`.
#[no_mangle]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut abi::Pd) -> c_int {
    // SAFETY: a domain of ours.
    unsafe { free(pd.cast::<PdBox>(), |b| b.pd.users()) }
}

#[repr(C)]
struct MrBox {
    front: abi::Mr,
    _region: MemoryRegion,
}

/// `ibv_reg_mr_iova2`.
#[no_mangle]
unsafe extern "C" fn ibv_reg_mr_iova2(
    of: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut abi::Mr {
    fail!(object "reg_mr");
    let known = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    let iova = if flags & ZERO_BASED != 0 { 0 } else { iova };
    if flags & !(known | ZERO_BASED | NO_EFFECT) != 0 {
        // On-demand paging, and what newer headers add.
        return refuse(libc::EOPNOTSUPP);
    }
    let access = Access {
        local_write: flags & LOCAL_WRITE != 0,
        remote_read: flags & REMOTE_READ != 0,
        remote_write: flags & REMOTE_WRITE != 0,
        remote_atomic: flags & REMOTE_ATOMIC != 0,
    };
    // SAFETY: a domain of ours; the program keeps the memory mapped, as libibverbs demands too.
    let registered = unsafe { pd(of).register(addr.cast(), length, iova, access) };
    match registered {
        Ok(region) => Box::into_raw(Box::new(MrBox {
            front: abi::Mr {
                // SAFETY: a domain of ours.
                context: unsafe { (*of).context },
                pd: of,
                addr,
                length,
                handle: region.lkey(),
                lkey: region.lkey(),
                rkey: region.rkey(),
            },
            _region: region,
        }))
        .cast(),
        Err(e) => refuse(explain("ibv_reg_mr", &e)),
    }
}

/// `ibv_reg_mr_iova`.
#[no_mangle]
unsafe extern "C" fn ibv_reg_mr_iova(
    of: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut abi::Mr {
    // SAFETY: as above.
    unsafe { ibv_reg_mr_iova2(of, addr, length, iova, flags as c_uint) }
}

/// `ibv_reg_mr`.
#[no_mangle]
unsafe extern "C" fn ibv_reg_mr(
    of: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut abi::Mr {
    // SAFETY: as above.
    unsafe { ibv_reg_mr_iova2(of, addr, length, addr.addr() as u64, flags as c_uint) }
}

/// `ibv_dereg_mr`.
#[no_mangle]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: a region of ours.
    unsafe { free(mr.cast::<MrBox>(), |_| 0) }
}

#[repr(C)]
struct ChannelBox {
    front: abi::Channel,
    channel: CompletionChannel,
}

/// `ibv_create_comp_channel`.
#[no_mangle]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::Channel {
    fail!(object "create_comp_channel");
    // SAFETY: a context of ours.
    match unsafe { context::of(context) }.create_channel() {
        Ok(channel) => Box::into_raw(Box::new(ChannelBox {
            front: abi::Channel {
                context,
                fd: channel.as_fd().as_raw_fd(),
                refcnt: 0,
            },
            channel,
        }))
        .cast(),
        Err(e) => refuse(explain("ibv_create_comp_channel", &e)),
    }
}

/// `ibv_destroy_comp_channel`.
#[no_mangle]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::Channel) -> c_int {
    let users = |b: &ChannelBox| b.front.refcnt.max(0) as usize;
    // SAFETY: a channel of ours.
    unsafe { free(channel.cast::<ChannelBox>(), users) }
}

#[repr(C)]
pub(crate) struct CqBox {
    front: abi::CqEx,
    pub(crate) cq: CompletionQueue,
    pub(crate) current: Current,
}

/// The queue of a pointer.
///
/// # Safety
/// `ibv_create_cq` has made it.
pub(crate) unsafe fn cq<'a>(cq: *mut abi::Cq) -> &'a CompletionQueue {
    // SAFETY: the caller's contract; the front is the first field.
    unsafe { &(*cq.cast::<CqBox>()).cq }
}

/// `ibv_create_cq`.
#[no_mangle]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::Channel,
    vector: c_int,
) -> *mut abi::Cq {
    fail!(object "create_cq");
    let Ok(count) = u32::try_from(entries) else {
        return refuse(libc::EINVAL);
    };
    if vector != 0 {
        return refuse(libc::EINVAL);
    }
    // The box is there before the queue, which it names in events.
    let mut room = Box::<CqBox>::new_uninit();
    let name = room.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: a channel of ours, or null.
    let events = unsafe { channel.cast::<ChannelBox>().as_ref() };
    // SAFETY: a context of ours.
    let context_of = unsafe { context::of(context) };
    let made = context_of.create_cq(count, events.map(|c| (&c.channel, name)));
    let cq = match made {
        Ok(cq) => cq,
        Err(e) => return refuse(explain("ibv_create_cq", &e)),
    };
    if !channel.is_null() {
        // SAFETY: as above.
        unsafe { (*channel).refcnt += 1 };
    }
    room.write(CqBox {
        front: abi::CqEx {
            base: abi::Cq {
                context,
                channel,
                cq_context,
                handle: 0,
                cqe: entries,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                comp_events_completed: 0,
                async_events_completed: 0,
            },
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            ops: [std::ptr::null(); 18],
        },
        cq,
        current: Current::new(),
    });
    Box::into_raw(room).cast()
}

/// `ibv_resize_cq`.
#[no_mangle]
unsafe extern "C" fn ibv_resize_cq(of: *mut abi::Cq, entries: c_int) -> c_int {
    fail!("resize_cq");
    let Ok(count) = u32::try_from(entries) else {
        return libc::EINVAL;
    };
    // SAFETY: a queue of ours.
    match unsafe { cq(of) }.resize(count) {
        Ok(()) => {
            // SAFETY: as above.
            unsafe { (*of).cqe = entries };
            0
        }
        // More are waiting: the queue stays as it is.
        Err(e @ VerbsError::Full { .. }) => {
            explain("ibv_resize_cq", &e);
            libc::EINVAL
        }
        Err(e) => explain("ibv_resize_cq", &e),
    }
}

/// `ibv_destroy_cq`. It does not wait for unacknowledged events.
#[no_mangle]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut abi::Cq) -> c_int {
    // SAFETY: a queue of ours.
    let channel = unsafe { (*cq).channel };
    // SAFETY: as above.
    let code = unsafe { free(cq.cast::<CqBox>(), |b| b.cq.users()) };
    if code == 0 && !channel.is_null() {
        // SAFETY: it lives as long as its queues.
        unsafe { (*channel).refcnt -= 1 };
    }
    code
}

/// `ibv_get_cq_event`.
#[no_mangle]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut abi::Channel,
    of: *mut *mut abi::Cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel of ours.
    match unsafe { &*channel.cast::<ChannelBox>() }.channel.next() {
        Ok(name) => {
            let cq = std::ptr::with_exposed_provenance_mut::<abi::Cq>(name as usize);
            // SAFETY: events of a queue go with it, so it is there; the caller's variables.
            unsafe {
                *of = cq;
                *context = (*cq).cq_context;
            }
            0
        }
        Err(e) => {
            set_errno(e.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// `ibv_ack_cq_events`.
#[no_mangle]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut abi::Cq, count: c_uint) {
    // SAFETY: a queue of ours.
    unsafe { (*cq).comp_events_completed = (*cq).comp_events_completed.wrapping_add(count) };
}

#[repr(C)]
pub(crate) struct SrqBox {
    front: abi::Srq,
    pub(crate) srq: SharedReceiveQueue,
    attr: SrqAttr,
}

/// `ibv_create_srq`.
#[no_mangle]
unsafe extern "C" fn ibv_create_srq(of: *mut abi::Pd, init: *mut SrqInitAttr) -> *mut abi::Srq {
    fail!(object "create_srq");
    // SAFETY: the caller's variable.
    let (srq_context, attr) = unsafe { ((*init).srq_context, (*init).attr) };
    // SAFETY: a domain of ours.
    let (domain, context) = unsafe { (pd(of), (*of).context) };
    match domain.create_srq(attr.max_wr, attr.max_sge) {
        Ok(srq) => Box::into_raw(Box::new(SrqBox {
            front: abi::Srq {
                context,
                srq_context,
                pd: of,
                handle: 0,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            },
            srq,
            attr: SrqAttr {
                srq_limit: 0,
                ..attr
            },
        }))
        .cast(),
        Err(e) => refuse(explain("ibv_create_srq", &e)),
    }
}

/// `ibv_query_srq`.
#[no_mangle]
unsafe extern "C" fn ibv_query_srq(srq: *mut abi::Srq, to: *mut SrqAttr) -> c_int {
    // SAFETY: a queue of ours, and the caller's variable.
    unsafe { *to = (*srq.cast::<SrqBox>()).attr };
    0
}

/// `ibv_destroy_srq`.
#[no_mangle]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut abi::Srq) -> c_int {
    // SAFETY: a queue of ours.
    unsafe { free(srq.cast::<SrqBox>(), |b| b.srq.users()) }
}

/// Null, or the shared queue of a pointer.
///
/// # Safety
/// `ibv_create_srq` has made it.
pub(crate) unsafe fn srq<'a>(srq: *mut abi::Srq) -> Option<&'a SharedReceiveQueue> {
    if srq.is_null() {
        return None;
    }
    // SAFETY: the caller's contract; the front is the first field.
    Some(unsafe { &(*srq.cast::<SrqBox>()).srq })
}
