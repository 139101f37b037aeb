//! One-sided operations as a transport gets them.
//!
//! The peer's NIC checks key, domain, right and bounds, moves the bytes and answers; nothing at the
//! peer posts anything. Operations of one connection are executed in the order in which they were
//! posted: what a signal announces was put before it. They are not ordered with the connection's
//! sends.

mod granted;
mod landing;
mod note;

use ringbell_nic_abi::{GpuVa, Opcode, Rkey};

use super::Payload;
use crate::types::{Buffer, WorkToken};
pub(super) use granted::{Granted, Withheld};
pub(super) use landing::Landing;
pub(super) use note::{Access, Note, NOTE_BYTES};

/// An operation on memory of the peer.
#[derive(Debug, Clone, Copy)]
pub struct RemoteWork {
    /// Returned when it retires.
    pub token: WorkToken,
    /// Key of the region at the peer.
    pub rkey: Rkey,
    /// Address there.
    pub va: GpuVa,
    /// What is done to it.
    pub op: RemoteOp,
}

/// See [`RemoteWork`].
#[derive(Debug, Clone, Copy)]
pub enum RemoteOp {
    /// Writes there; retires when the bytes are in place and the signal is set.
    Put {
        /// The bytes.
        payload: Payload,
        /// What follows them.
        signal: Option<Signal>,
    },
    /// Reads from there.
    Get {
        /// Where the bytes go.
        into: Buffer,
    },
    /// Adds to a word; the detail is its value before.
    FetchAdd {
        /// Wrapping.
        addend: u64,
    },
    /// Replaces a word if it is equal to `compare`; the detail is its value before.
    CompareSwap {
        /// What the word must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
}

impl RemoteOp {
    /// Its number in a descriptor.
    pub const fn opcode(&self) -> Opcode {
        match self {
            RemoteOp::Put { .. } => Opcode::Put,
            RemoteOp::Get { .. } => Opcode::Get,
            RemoteOp::FetchAdd { .. } => Opcode::FetchAdd,
            RemoteOp::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }
}

/// The update of a word in the region of a put, once its bytes are visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Number of the 64-bit word, from the region's first byte.
    pub index: u32,
    /// Added, or stored.
    pub value: u64,
    /// Stored instead of added.
    pub set: bool,
}
