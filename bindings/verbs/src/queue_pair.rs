//! Queue pairs: made, modified, queried.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::{c_int, c_uint};

use ringbell_roce::verbs::{
    Gid, Modify, QpAttributes, QpLimits, QueuePair, Rtr, Rts, Service, State, VerbsError,
};

use crate::abi::{self, QpAttr, QpCap, QpInitAttr, SmallQpAttr};
use crate::builder::Builder;
use crate::refusal::{explain, refuse};
use crate::{faults, objects};

const RC: c_uint = 2;
pub(crate) const UD: c_uint = 4;

// Bits of `enum ibv_qp_attr_mask`.
const STATE: c_int = 1 << 0;
const CUR_STATE: c_int = 1 << 1;
const ACCESS_FLAGS: c_int = 1 << 3;
const PKEY_INDEX: c_int = 1 << 4;
const PORT: c_int = 1 << 5;
const QKEY: c_int = 1 << 6;
const AV: c_int = 1 << 7;
const PATH_MTU: c_int = 1 << 8;
const TIMEOUT: c_int = 1 << 9;
const RETRY_CNT: c_int = 1 << 10;
const RNR_RETRY: c_int = 1 << 11;
const RQ_PSN: c_int = 1 << 12;
const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
const MIN_RNR_TIMER: c_int = 1 << 15;
const SQ_PSN: c_int = 1 << 16;
const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
const DEST_QPN: c_int = 1 << 20;

/// What a change must name (IBTA vol. 1 table 96).
const TO_INIT: c_int = PKEY_INDEX | PORT | ACCESS_FLAGS;
const TO_INIT_DATAGRAM: c_int = PKEY_INDEX | PORT | QKEY;
const TO_RTR: c_int = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
const TO_RTS: c_int = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;

#[repr(C)]
pub(crate) struct QpBox {
    front: abi::QpEx,
    pub(crate) qp: QueuePair,
    pub(crate) builder: Builder,
    attr: QpAttr,
    sq_sig_all: c_int,
}

/// Whether a queue pair sends datagrams.
///
/// # Safety
/// `ibv_create_qp` has made it.
pub(crate) unsafe fn is_datagram(qp: *mut abi::Qp) -> bool {
    // SAFETY: the caller's contract.
    unsafe { (*qp).qp_type == UD }
}

/// The queue pair of a pointer.
///
/// # Safety
/// `ibv_create_qp` has made it.
pub(crate) unsafe fn of<'a>(qp: *mut abi::Qp) -> &'a QueuePair {
    // SAFETY: the caller's contract; the front is the first field.
    unsafe { &(*qp.cast::<QpBox>()).qp }
}

/// # Safety
/// `ibv_create_qp` has made it.
unsafe fn to_error(qp: *mut abi::Qp) -> Result<(), VerbsError> {
    // SAFETY: the caller's contract.
    unsafe { of(qp) }.modify(Modify::Err)
}

const UNSET: QpAttr = QpAttr {
    qp_state: 0,
    cur_qp_state: 0,
    path_mtu: 0,
    path_mig_state: 0,
    qkey: 0,
    rq_psn: 0,
    sq_psn: 0,
    dest_qp_num: 0,
    qp_access_flags: 0,
    cap: QpCap {
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
    },
    ah_attr: abi::NOWHERE,
    alt_ah_attr: abi::NOWHERE,
    small: SmallQpAttr {
        pkey_index: 0,
        alt_pkey_index: 0,
        draining: [0; 2],
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        port_num: 0,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        alternate: [0; 2],
    },
    rate_limit: 0,
};

/// `ibv_create_qp`.
#[no_mangle]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut abi::Pd,
    init: *mut QpInitAttr,
) -> *mut abi::Qp {
    fail!(object "create_qp");
    // SAFETY: the caller's variable.
    let init = unsafe { &mut *init };
    let service = match init.qp_type {
        RC => Service::Connected,
        UD => Service::Datagram,
        _ => return refuse(libc::EOPNOTSUPP),
    };
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return refuse(libc::EINVAL);
    }
    let cap = init.cap;
    // SAFETY: objects of ours.
    let made = unsafe {
        objects::pd(pd).create_qp(&QpAttributes {
            service,
            send_cq: objects::cq(init.send_cq),
            receive_cq: objects::cq(init.recv_cq),
            shared: objects::srq(init.srq),
            limits: QpLimits {
                sends: cap.max_send_wr,
                receives: cap.max_recv_wr,
                send_pieces: cap.max_send_sge,
                receive_pieces: cap.max_recv_sge,
                inline: cap.max_inline_data,
            },
            signal_all: init.sq_sig_all != 0,
        })
    };
    let qp = match made {
        Ok(qp) => qp,
        Err(e) => return refuse(explain("ibv_create_qp", &e)),
    };
    let number = qp.number();
    let made = Box::into_raw(Box::new(QpBox {
        front: abi::QpEx {
            base: abi::Qp {
                // SAFETY: a domain of ours.
                context: unsafe { (*pd).context },
                qp_context: init.qp_context,
                pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                handle: number,
                qp_num: number,
                state: 0,
                qp_type: init.qp_type,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            },
            comp_mask: 0,
            wr_id: 0,
            wr_flags: 0,
            ops: [std::ptr::null(); 21],
        },
        qp,
        builder: Builder::default(),
        attr: QpAttr { cap, ..UNSET },
        sq_sig_all: init.sq_sig_all,
    }))
    .cast();
    // SAFETY: it was just made.
    unsafe { faults::made(made, to_error) };
    made
}

/// `ibv_destroy_qp`.
#[no_mangle]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut abi::Qp) -> c_int {
    faults::destroyed(qp);
    // SAFETY: a queue pair of ours.
    drop(unsafe { Box::from_raw(qp.cast::<QpBox>()) });
    0
}

const fn code(state: State) -> c_uint {
    match state {
        State::Reset => 0,
        State::Init => 1,
        State::Rtr => 2,
        State::Rts => 3,
        State::Sqd => 4,
        State::Sqe => 5,
        State::Err => 6,
    }
}

/// Takes the fields that a mask names.
fn merge(to: &mut QpAttr, from: &QpAttr, mask: c_int) {
    let has = |bit: c_int| mask & bit != 0;
    if has(ACCESS_FLAGS) {
        to.qp_access_flags = from.qp_access_flags;
    }
    if has(PKEY_INDEX) {
        to.small.pkey_index = from.small.pkey_index;
    }
    if has(PORT) {
        to.small.port_num = from.small.port_num;
    }
    if has(QKEY) {
        to.qkey = from.qkey;
    }
    if has(AV) {
        to.ah_attr = from.ah_attr;
    }
    if has(PATH_MTU) {
        to.path_mtu = from.path_mtu;
    }
    if has(TIMEOUT) {
        to.small.timeout = from.small.timeout;
    }
    if has(RETRY_CNT) {
        to.small.retry_cnt = from.small.retry_cnt;
    }
    if has(RNR_RETRY) {
        to.small.rnr_retry = from.small.rnr_retry;
    }
    if has(RQ_PSN) {
        to.rq_psn = from.rq_psn;
    }
    if has(MAX_QP_RD_ATOMIC) {
        to.small.max_rd_atomic = from.small.max_rd_atomic;
    }
    if has(MIN_RNR_TIMER) {
        to.small.min_rnr_timer = from.small.min_rnr_timer;
    }
    if has(SQ_PSN) {
        to.sq_psn = from.sq_psn;
    }
    if has(MAX_DEST_RD_ATOMIC) {
        to.small.max_dest_rd_atomic = from.small.max_dest_rd_atomic;
    }
    if has(DEST_QPN) {
        to.dest_qp_num = from.dest_qp_num;
    }
}

/// The change of state that a program asks for, from `attr` with its mask merged in. `Err`:
/// something is missing or wrong.
fn change(
    (from, is_datagram): (State, bool),
    to: c_uint,
    mask: c_int,
    a: &QpAttr,
) -> Result<Modify, &'static str> {
    let needs = |bits: c_int| match mask & bits == bits {
        true => Ok(()),
        false => Err("an attribute that this change needs is not in the mask"),
    };
    Ok(match to {
        0 => Modify::Reset,
        1 => {
            if from == State::Reset {
                needs(match is_datagram {
                    true => TO_INIT_DATAGRAM,
                    false => TO_INIT,
                })?;
            }
            if a.small.port_num != 1 || a.small.pkey_index != 0 {
                return Err("there is port 1, and partition key 0");
            }
            match is_datagram {
                true => Modify::InitDatagram(a.qkey),
                false => Modify::Init(objects::rights(a.qp_access_flags)),
            }
        }
        2 if is_datagram => Modify::RtrDatagram,
        2 => {
            needs(TO_RTR)?;
            if a.ah_attr.is_global == 0 || a.ah_attr.sgid_index != 0 {
                return Err("the peer is named by its GID (is_global), from our GID index 0");
            }
            Modify::Rtr(Rtr {
                peer: Gid(a.ah_attr.dgid.0),
                number: a.dest_qp_num,
                expected: a.rq_psn & 0x00ff_ffff,
                mtu: 128_u32.checked_shl(a.path_mtu).unwrap_or(0),
                resources: a.small.max_dest_rd_atomic,
                rnr_timer: a.small.min_rnr_timer,
            })
        }
        3 if from == State::Rtr && is_datagram => {
            needs(SQ_PSN)?;
            Modify::RtsDatagram(a.sq_psn & 0x00ff_ffff)
        }
        3 if from == State::Rtr => {
            needs(TO_RTS)?;
            Modify::Rts(Rts {
                first: a.sq_psn & 0x00ff_ffff,
                depth: a.small.max_rd_atomic,
                timeout: a.small.timeout,
                retries: a.small.retry_cnt,
                rnr_retries: a.small.rnr_retry,
            })
        }
        3 => Modify::Resume,
        4 => Modify::Sqd,
        6 => Modify::Err,
        _ => return Err("no program can take a queue pair to that state"),
    })
}

/// `ibv_modify_qp`.
#[no_mangle]
unsafe extern "C" fn ibv_modify_qp(at: *mut abi::Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    fail!("modify_qp");
    // SAFETY: a queue pair of ours, which the program modifies in one thread at a time, and the
    // caller's variable.
    let (b, attr) = unsafe { (&mut *at.cast::<QpBox>(), &*attr) };
    let now = b.qp.state();
    if mask & CUR_STATE != 0 && attr.cur_qp_state != code(now) {
        return libc::EINVAL;
    }
    let mut merged = b.attr;
    merge(&mut merged, attr, mask);
    if mask & STATE != 0 {
        let to = match change(
            (now, b.front.base.qp_type == UD),
            attr.qp_state,
            mask,
            &merged,
        ) {
            Ok(to) => to,
            Err(what) => return explain("ibv_modify_qp", &VerbsError::Misuse(what)),
        };
        if let Err(e) = b.qp.modify(to) {
            return explain("ibv_modify_qp", &e);
        }
        b.front.base.state = attr.qp_state;
        if attr.qp_state == 0 {
            let cap = merged.cap;
            merged = QpAttr { cap, ..UNSET };
        }
    }
    if mask & ACCESS_FLAGS != 0 {
        b.qp.set_rights(objects::rights(attr.qp_access_flags));
    }
    if mask & QKEY != 0 {
        b.qp.set_key(attr.qkey);
    }
    b.attr = merged;
    0
}

/// `ibv_query_qp`.
#[no_mangle]
unsafe extern "C" fn ibv_query_qp(
    at: *mut abi::Qp,
    attr: *mut QpAttr,
    _: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: a queue pair of ours, and the caller's variables.
    unsafe {
        let b = &mut *at.cast::<QpBox>();
        let state = code(b.qp.state());
        b.front.base.state = state;
        *attr = QpAttr {
            qp_state: state,
            cur_qp_state: state,
            ..b.attr
        };
        *init = QpInitAttr {
            qp_context: b.front.base.qp_context,
            send_cq: b.front.base.send_cq,
            recv_cq: b.front.base.recv_cq,
            srq: b.front.base.srq,
            cap: b.attr.cap,
            qp_type: b.front.base.qp_type,
            sq_sig_all: b.sq_sig_all,
        };
    }
    0
}
