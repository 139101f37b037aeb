//! Completions as programs read them.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};

use ringbell_roce::verbs::{Completion, WorkKind};

use crate::abi::{self, Wc};

/// A completion as programs read it. `header`: the form of the header before a datagram.
pub(crate) fn entry(c: &Completion, header: u8) -> Wc {
    let (imm_data, wc_flags) = match (c.immediate, c.invalidated) {
        (Some(n), _) => (n.to_be(), abi::WC_WITH_IMM),
        (None, Some(key)) => (key, abi::WC_WITH_INV),
        (None, None) => (0, 0),
    };
    let (has_header, sl) = match c.source {
        Some(_) => (abi::WC_GRH, header),
        None => (0, 0),
    };
    Wc {
        wr_id: c.id,
        status: c.status as c_uint,
        opcode: match c.kind {
            WorkKind::Send => 0,
            WorkKind::Write => 1,
            WorkKind::Read => 2,
            WorkKind::CompareSwap => 3,
            WorkKind::FetchAdd => 4,
            WorkKind::Receive => 128,
            WorkKind::ReceiveWrite => 129,
        },
        vendor_err: 0,
        byte_len: c.len,
        imm_data,
        qp_num: c.queue_pair,
        src_qp: c.source.unwrap_or(0),
        wc_flags: wc_flags | has_header,
        pkey_index: 0,
        slid: 0,
        sl,
        dlid_path_bits: 0,
    }
}

/// A lock that is taken in one call of the program and given back in another.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicBool);

impl Held {
    pub(crate) fn take(&self) {
        // Pairs with the release in `give`.
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn give(&self) {
        // Pairs with the acquire in `take`.
        self.0.store(false, Ordering::Release);
    }
}

/// The completion that a program reads.
pub(crate) struct Current {
    pub(crate) held: Held,
    pub(crate) wc: Wc,
}

impl Current {
    pub(crate) fn new() -> Current {
        Current {
            held: Held::default(),
            wc: entry(&Completion::EMPTY, 0),
        }
    }
}
