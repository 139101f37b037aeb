//! The calls of the data path, which the header's inline functions reach by `context->ops`.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::{c_int, c_uint};

use ringbell_roce::verbs::{
    Completion, Destination, Local, Posting, ReceiveRequest, Remote, Request, SendFlags,
    SendRequest, Sge, VerbsError,
};

use crate::abi::{self, RecvWr, SendWr, Wc};
use crate::completion::entry;
use crate::refusal::explain;
use crate::{address, context, faults, objects, queue_pair};

const FENCE: c_uint = 1;
const SIGNALED: c_uint = 2;
const SOLICITED: c_uint = 4;
const INLINE: c_uint = 8;
/// `IBV_SEND_IP_CSUM` asks for what the kernel does anyway.
const KNOWN: c_uint = 31;

/// Most pieces of an inline request.
const INLINE_PIECES: usize = 32;
/// Completions that are taken at once.
const POLLED: usize = 64;

/// The pieces of a request.
///
/// # Safety
/// The program's list has so many.
unsafe fn pieces<'a>(list: *const Sge, count: c_int) -> Result<&'a [Sge], VerbsError> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's contract.
        Ok(n) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list, n) }),
        _ => Err(VerbsError::Misuse(
            "a list of pieces without a place, or of negative length",
        )),
    }
}

/// The flags of a request that say how it is done.
pub(crate) fn flags(bits: c_uint) -> SendFlags {
    SendFlags {
        signaled: bits & SIGNALED != 0,
        solicited: bits & SOLICITED != 0,
        fence: bits & FENCE != 0,
    }
}

fn request_of(wr: &SendWr) -> Option<Request> {
    let remote = || Remote {
        address: wr.remote_addr,
        key: wr.second[0],
    };
    let word = || Remote {
        address: wr.remote_addr,
        key: wr.atomic_rkey,
    };
    let [low, high] = wr.second;
    let compare_add = u64::from(low) | u64::from(high) << 32;
    let immediate = u32::from_be(wr.imm_data);
    Some(match wr.opcode {
        0 => Request::Write(remote(), None),
        1 => Request::Write(remote(), Some(immediate)),
        2 => Request::Send(None),
        3 => Request::Send(Some(immediate)),
        4 => Request::Read(remote()),
        5 => Request::CompareSwap(word(), compare_add, wr.swap),
        6 => Request::FetchAdd(word(), compare_add),
        9 => Request::SendInvalidate(wr.imm_data),
        // Memory windows, LOCAL_INV, TSO, ATOMIC_WRITE.
        _ => return None,
    })
}

unsafe fn post_one(to: &mut Posting<'_>, wr: &SendWr, is_datagram: bool) -> Result<(), VerbsError> {
    let request = request_of(wr).ok_or(VerbsError::Misuse("there is no such operation"))?;
    if wr.send_flags & !KNOWN != 0 {
        return Err(VerbsError::Misuse("there is no such flag of a request"));
    }
    // SAFETY: the program's list.
    let list = unsafe { pieces(wr.sg_list, wr.num_sge) }?;
    let mut parts = [&[] as &[u8]; INLINE_PIECES];
    let local = if wr.send_flags & INLINE != 0 {
        if list.len() > INLINE_PIECES {
            return Err(VerbsError::Misuse(
                "an inline request of more than 32 pieces",
            ));
        }
        let filled = list.iter().filter(|s| s.len > 0);
        let mut count = 0;
        for (part, s) in parts.iter_mut().zip(filled) {
            let at = std::ptr::with_exposed_provenance(s.address as usize);
            // SAFETY: inline bytes belong to the program, which does not write them during the
            // call.
            *part = unsafe { std::slice::from_raw_parts(at, s.len as usize) };
            count += 1;
        }
        Local::Inline(&parts[..count])
    } else {
        Local::Registered(list)
    };
    let request = SendRequest {
        id: wr.wr_id,
        request,
        local,
        flags: flags(wr.send_flags),
    };
    if !is_datagram {
        return to.send(&request);
    }
    // SAFETY: the program's address handle.
    let handle = unsafe { address::of(std::ptr::with_exposed_provenance(wr.remote_addr as usize)) };
    let [number, key] = wr.second;
    let destination = Destination {
        handle: handle.ok_or(VerbsError::Misuse("a datagram needs an address handle"))?,
        number,
        key,
    };
    to.send_to(&request, &destination)
}

/// `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    mut wr: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    if let Some(code) = faults::fails("post_send") {
        // SAFETY: the caller's variable.
        unsafe { *bad = wr };
        return code;
    }
    // SAFETY: a queue pair of ours.
    let (mut to, is_datagram) =
        unsafe { (queue_pair::of(qp).begin(), queue_pair::is_datagram(qp)) };
    // SAFETY: the program's list.
    while let Some(one) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        if let Err(e) = unsafe { post_one(&mut to, one, is_datagram) } {
            // SAFETY: the caller's variable.
            unsafe { *bad = wr };
            return explain("ibv_post_send", &e);
        }
        wr = one.next;
    }
    0
}

/// Posts a list of receives.
unsafe fn post_receives(
    mut wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    call: &str,
    mut post: impl FnMut(&ReceiveRequest<'_>) -> Result<(), VerbsError>,
) -> c_int {
    // SAFETY: the program's list.
    while let Some(one) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        let list = unsafe { pieces(one.sg_list, one.num_sge) };
        let posted = list.and_then(|local| {
            post(&ReceiveRequest {
                id: one.wr_id,
                local,
            })
        });
        if let Err(e) = posted {
            // SAFETY: the caller's variable.
            unsafe { *bad = wr };
            return explain(call, &e);
        }
        wr = one.next;
    }
    0
}

/// `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    if let Some(code) = faults::fails("post_recv") {
        // SAFETY: the caller's variable.
        unsafe { *bad = wr };
        return code;
    }
    // SAFETY: a queue pair of ours.
    let mut to = unsafe { queue_pair::of(qp) }.begin();
    // SAFETY: the program's list and variable.
    unsafe { post_receives(wr, bad, "ibv_post_recv", |r| to.receive(r)) }
}

/// `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    if let Some(code) = faults::fails("post_srq_recv") {
        // SAFETY: the caller's variable.
        unsafe { *bad = wr };
        return code;
    }
    // SAFETY: a queue of ours.
    let Some(to) = (unsafe { objects::srq(srq) }) else {
        return libc::EINVAL;
    };
    // SAFETY: the program's list and variable.
    unsafe { post_receives(wr, bad, "ibv_post_srq_recv", |r| to.post_receive(r)) }
}

/// `ibv_poll_cq`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, room: c_int, to: *mut Wc) -> c_int {
    let Ok(room) = usize::try_from(room) else {
        return -libc::EINVAL;
    };
    // SAFETY: a queue of ours.
    let (cq, header) = unsafe { (objects::cq(cq), context::header((*cq).context)) };
    let mut found = [Completion::EMPTY; POLLED];
    let mut count = 0;
    while count < room {
        let most = (room - count).min(POLLED);
        match cq.poll(&mut found[..most]) {
            Ok(n) => {
                for (i, c) in found[..n].iter().enumerate() {
                    let mut wc = entry(c, header);
                    faults::completed(&mut wc);
                    // SAFETY: the program has room for `room` entries.
                    unsafe { to.add(count + i).write(wc) };
                }
                count += n;
                if n < most {
                    break;
                }
            }
            Err(_) if count > 0 => break,
            Err(e) => return -explain("ibv_poll_cq", &e),
        }
    }
    count as c_int
}

/// `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    fail!("req_notify_cq");
    // SAFETY: a queue of ours.
    let (queue, channel) = unsafe { (objects::cq(cq), (*cq).channel) };
    // Without a channel there is nothing to notify, which is no fault.
    if channel.is_null() {
        return 0;
    }
    match queue.request_notification(solicited_only != 0) {
        Ok(()) => 0,
        Err(e) => explain("ibv_req_notify_cq", &e),
    }
}
