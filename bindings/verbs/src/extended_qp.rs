//! Extended queue pairs: `ibv_create_qp_ex`, and the calls by which programs build requests one by
//! one and post them together.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use ringbell_roce::verbs::{Remote, Request, Sge};

use crate::abi::{self, DataBuf, Operation, QpEx, QpInitAttr, QpInitAttrEx};
use crate::builder::{Builder, Built};
use crate::queue_pair::{self, QpBox};
use crate::refusal::{explain, refuse};
use crate::{address, faults, post};

// Bits of `enum ibv_qp_init_attr_mask`.
const HAS_PD: u32 = 1 << 0;
const HAS_CREATE_FLAGS: u32 = 1 << 2;
const HAS_SEND_OPS: u32 = 1 << 6;

/// `enum ibv_qp_create_send_ops_flags` of a connection: all but keys that are invalidated or bound
/// here, segmentation and atomic WRITEs.
const OPS_CONNECTED: u64 = 0x7f | 1 << 9;
/// Of datagrams: SEND, and SEND with immediate.
const OPS_DATAGRAM: u64 = 1 << 2 | 1 << 3;

/// `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create(
    _: *mut abi::Context,
    attr: *mut QpInitAttrEx,
) -> *mut abi::Qp {
    // SAFETY: the caller's variable.
    let (mask, flags, ops, kind, pd) = unsafe {
        let a = &*attr;
        (
            a.comp_mask,
            a.create_flags,
            a.send_ops_flags,
            a.qp_type,
            a.pd,
        )
    };
    let known = HAS_PD | HAS_CREATE_FLAGS | HAS_SEND_OPS;
    if mask & !known != 0 || mask & HAS_CREATE_FLAGS != 0 && flags != 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    let can = match kind {
        queue_pair::UD => OPS_DATAGRAM,
        _ => OPS_CONNECTED,
    };
    if mask & HAS_SEND_OPS != 0 && ops & !can != 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    if mask & HAS_PD == 0 || pd.is_null() {
        return refuse(libc::EINVAL);
    }
    // SAFETY: a domain of ours, and the front of the caller's variable.
    let qp = unsafe { queue_pair::ibv_create_qp(pd, attr.cast::<QpInitAttr>()) };
    if !qp.is_null() && mask & HAS_SEND_OPS != 0 {
        // SAFETY: it was just made.
        unsafe { (*qp.cast::<QpEx>()).ops = OPS };
    }
    qp
}

/// `ibv_qp_to_qp_ex`: null, unless it was made with the operations to be built.
#[no_mangle]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut abi::Qp) -> *mut QpEx {
    let qp = qp.cast::<QpEx>();
    // SAFETY: a queue pair of ours.
    match unsafe { (*qp).ops[0] }.is_null() {
        true => refuse(libc::EOPNOTSUPP),
        false => qp,
    }
}

/// The calls, in the order of `struct ibv_qp_ex`.
const OPS: [Operation; 21] = [
    compare_swap as Operation,
    fetch_add as Operation,
    null(),
    null(),
    read as Operation,
    write as Operation,
    write_imm as Operation,
    send as Operation,
    send_imm as Operation,
    send_inv as Operation,
    null(),
    set_ud_addr as Operation,
    null(),
    set_inline_data as Operation,
    set_inline_data_list as Operation,
    set_sge as Operation,
    set_sge_list as Operation,
    start as Operation,
    complete as Operation,
    abort as Operation,
    null(),
];

/// What a queue pair has beside its front.
///
/// # Safety
/// The program has started to build, and so has the lock.
unsafe fn builder<'a>(qp: *mut QpEx) -> &'a mut Builder {
    // SAFETY: the caller's contract.
    unsafe { &mut (*qp.cast::<QpBox>()).builder }
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    // SAFETY: a queue pair of ours.
    unsafe {
        (*qp.cast::<QpBox>()).builder.held.take();
        builder(qp).clear();
    }
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    if let Some(code) = faults::fails("post_send") {
        // SAFETY: the program has started to build.
        unsafe { builder(qp) }.held.give();
        return code;
    }
    // SAFETY: the program has started to build.
    let posted = unsafe {
        let b = builder(qp);
        let posted = b.post(&mut queue_pair::of(qp.cast()).begin());
        b.held.give();
        posted
    };
    posted.map_or_else(|e| explain("ibv_wr_complete", &e), |()| 0)
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    // SAFETY: as above.
    unsafe { builder(qp) }.held.give();
}

/// Begins a request with the program's name and flags.
unsafe fn begin(qp: *mut QpEx, request: Request) {
    // SAFETY: the program has started to build.
    let (id, flags, b) = unsafe { ((*qp).wr_id, (*qp).wr_flags, builder(qp)) };
    b.built.push(Built {
        id,
        request,
        flags: post::flags(flags),
        local: 0..0,
        is_inline: false,
        to: None,
    });
}

fn remote(address: u64, key: u32) -> Remote {
    Remote { address, key }
}

unsafe extern "C" fn compare_swap(qp: *mut QpEx, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: the program has started to build, as in all that follow.
    unsafe { begin(qp, Request::CompareSwap(remote(addr, rkey), compare, swap)) };
}

unsafe extern "C" fn fetch_add(qp: *mut QpEx, rkey: u32, addr: u64, add: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, Request::FetchAdd(remote(addr, rkey), add)) };
}

unsafe extern "C" fn read(qp: *mut QpEx, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, Request::Read(remote(addr, rkey))) };
}

unsafe extern "C" fn write(qp: *mut QpEx, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, Request::Write(remote(addr, rkey), None)) };
}

unsafe extern "C" fn write_imm(qp: *mut QpEx, rkey: u32, addr: u64, immediate: u32) {
    let request = Request::Write(remote(addr, rkey), Some(u32::from_be(immediate)));
    // SAFETY: as above.
    unsafe { begin(qp, request) };
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    // SAFETY: as above.
    unsafe { begin(qp, Request::Send(None)) };
}

unsafe extern "C" fn send_imm(qp: *mut QpEx, immediate: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, Request::Send(Some(u32::from_be(immediate)))) };
}

unsafe extern "C" fn send_inv(qp: *mut QpEx, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, Request::SendInvalidate(rkey)) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut QpEx, ah: *mut abi::Ah, number: u32, key: u32) {
    // SAFETY: as above, and an address handle of ours.
    let (b, handle) = unsafe { (builder(qp), address::of(ah)) };
    if let (Some(last), Some(handle)) = (b.built.last_mut(), handle) {
        last.to = Some((handle.clone(), number, key));
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut QpEx, addr: *const c_void, length: usize) {
    let one = DataBuf {
        addr: addr.cast_mut(),
        length,
    };
    // SAFETY: as above.
    unsafe { set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: as above.
    let b = unsafe { builder(qp) };
    let first = b.bytes.len();
    for i in 0..count {
        // SAFETY: the program's list and bytes, which it does not write during the call.
        unsafe {
            let part = &*list.add(i);
            if part.length > 0 {
                let bytes = std::slice::from_raw_parts(part.addr.cast::<u8>(), part.length);
                b.bytes.extend_from_slice(bytes);
            }
        }
    }
    if let Some(last) = b.built.last_mut() {
        (last.local, last.is_inline) = (first..b.bytes.len(), true);
    }
}

unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, address: u64, len: u32) {
    let one = Sge { address, len, lkey };
    // SAFETY: as above.
    unsafe { set_sge_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    // SAFETY: as above.
    let b = unsafe { builder(qp) };
    let first = b.pieces.len();
    for i in 0..count {
        // SAFETY: the program's list.
        b.pieces.push(unsafe { *list.add(i) });
    }
    if let Some(last) = b.built.last_mut() {
        (last.local, last.is_inline) = (first..b.pieces.len(), false);
    }
}
