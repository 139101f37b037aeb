//! Extended completion queues: `ibv_create_cq_ex`, and the calls by which programs read one
//! completion after another.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::{c_int, c_uint};

use ringbell_roce::verbs::Completion;

use crate::abi::{self, CqEx, CqInitAttrEx, Operation, Wc};
use crate::completion::entry;
use crate::objects::{self, CqBox};
use crate::refusal::{explain, refuse};
use crate::{context, faults};

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const HAS_FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`: the lock costs little without others.
const SINGLE_THREADED: u32 = 1;
/// What completions have: `IBV_WC_STANDARD_FLAGS`. Time stamps, VLANs and tags are not there.
const READ: u64 = 0x7f;

/// `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create(
    context: *mut abi::Context,
    attr: *mut CqInitAttrEx,
) -> *mut CqEx {
    // SAFETY: the caller's variable.
    let attr = unsafe { &*attr };
    let flags = match attr.comp_mask & HAS_FLAGS {
        0 => 0,
        _ => attr.flags,
    };
    if attr.comp_mask & !HAS_FLAGS != 0
        || flags & !SINGLE_THREADED != 0
        || attr.wc_flags & !READ != 0
    {
        return refuse(libc::EOPNOTSUPP);
    }
    let (Ok(entries), Ok(vector)) = (c_int::try_from(attr.cqe), c_int::try_from(attr.comp_vector))
    else {
        return refuse(libc::EINVAL);
    };
    // SAFETY: objects of ours.
    let made =
        unsafe { objects::ibv_create_cq(context, entries, attr.cq_context, attr.channel, vector) };
    let cq = made.cast::<CqEx>();
    if !cq.is_null() {
        // SAFETY: it was just made.
        unsafe { (*cq).ops = OPS };
    }
    cq
}

/// The calls, in the order of `struct ibv_cq_ex`.
const OPS: [Operation; 18] = [
    start_poll as Operation,
    next_poll as Operation,
    end_poll as Operation,
    read_opcode as Operation,
    read_vendor_err as Operation,
    read_byte_len as Operation,
    read_imm_data as Operation,
    read_qp_num as Operation,
    read_src_qp as Operation,
    read_wc_flags as Operation,
    read_nothing as Operation,
    read_sl as Operation,
    read_nothing as Operation,
    std::ptr::null(),
    std::ptr::null(),
    std::ptr::null(),
    std::ptr::null(),
    std::ptr::null(),
];

/// Takes the next completion. The lock is held.
unsafe fn next(at: *mut CqEx) -> c_int {
    let b = at.cast::<CqBox>();
    let mut found = [Completion::EMPTY];
    // SAFETY: a queue of ours; its current completion belongs to who holds the lock.
    unsafe {
        match (*b).cq.poll(&mut found) {
            Ok(0) => libc::ENOENT,
            Ok(_) => {
                let mut wc = entry(&found[0], context::header((*at).base.context));
                faults::completed(&mut wc);
                ((*at).status, (*at).wr_id) = (wc.status, wc.wr_id);
                (*b).current.wc = wc;
                0
            }
            Err(e) => explain("ibv_start_poll", &e),
        }
    }
}

/// `ibv_start_poll`. When it succeeds, the queue is locked until `ibv_end_poll`.
unsafe extern "C" fn start_poll(at: *mut CqEx, attr: *const abi::PollCqAttr) -> c_int {
    // SAFETY: the caller's variable.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: a queue of ours.
    unsafe {
        (*at.cast::<CqBox>()).current.held.take();
        let code = next(at);
        if code != 0 {
            end_poll(at);
        }
        code
    }
}

/// `ibv_next_poll`.
unsafe extern "C" fn next_poll(at: *mut CqEx) -> c_int {
    // SAFETY: the program has started to poll.
    unsafe { next(at) }
}

/// `ibv_end_poll`.
unsafe extern "C" fn end_poll(at: *mut CqEx) {
    // SAFETY: a queue of ours.
    unsafe { (*at.cast::<CqBox>()).current.held.give() };
}

/// The completion that is being read.
///
/// # Safety
/// The program has started to poll.
unsafe fn wc<'a>(at: *mut CqEx) -> &'a Wc {
    // SAFETY: the caller's contract.
    unsafe { &(*at.cast::<CqBox>()).current.wc }
}

unsafe extern "C" fn read_opcode(at: *mut CqEx) -> c_uint {
    // SAFETY: the program has started to poll, as in all that follow.
    unsafe { wc(at) }.opcode
}

unsafe extern "C" fn read_vendor_err(at: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { wc(at) }.vendor_err
}

unsafe extern "C" fn read_byte_len(at: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { wc(at) }.byte_len
}

unsafe extern "C" fn read_imm_data(at: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { wc(at) }.imm_data
}

unsafe extern "C" fn read_qp_num(at: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { wc(at) }.qp_num
}

unsafe extern "C" fn read_src_qp(at: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { wc(at) }.src_qp
}

unsafe extern "C" fn read_wc_flags(at: *mut CqEx) -> c_uint {
    // SAFETY: as above.
    unsafe { wc(at) }.wc_flags
}

unsafe extern "C" fn read_sl(at: *mut CqEx) -> u8 {
    // SAFETY: as above.
    unsafe { wc(at) }.sl
}

/// Local identifiers, which Ethernet does not have.
extern "C" fn read_nothing(_: *mut CqEx) -> u32 {
    0
}
