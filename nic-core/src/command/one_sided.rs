//! `PUT`, `GET`, `FETCH_ADD` and `COMPARE_SWAP`: operations on memory of the peer, in which it takes no part.

use ringbell_gtlb::{Need, Pin};
use ringbell_nic_abi::{Descriptor, Flags, GpuVa, Opcode, PdId, Rkey, Status};

use super::memory::Memory;
use super::streams::{Conn, Streams};
use super::Refusal;
use crate::transport::{Payload, RemoteOp, RemoteWork, Signal};
use crate::types::{Buffer, WorkToken};

/// An operation that was checked, with its buffer here pinned.
pub(super) struct Ready {
    pub(super) conn: Conn,
    pub(super) pin: Option<Pin>,
    rkey: Rkey,
    va: GpuVa,
    op: RemoteOp,
}

impl Ready {
    /// The work for a transport.
    pub(super) fn work(&self, token: WorkToken) -> RemoteWork {
        RemoteWork {
            token,
            rkey: self.rkey,
            va: self.va,
            op: self.op,
        }
    }
}

/// Checks a descriptor, and pins its buffer.
pub(super) fn prepare(
    streams: &mut Streams,
    memory: &mut Memory,
    pd: PdId,
    d: &Descriptor,
) -> Result<Ready, Refusal> {
    if d.flags.contains(Flags::SYMMETRIC) {
        return Err((Status::BadCommunicator, d.session.0.into()));
    }
    let engines = &memory.dma.engines;
    let conn = streams.established(pd, d.session, d.flags, engines)?;
    if streams.is_shut(d.session) {
        return Err((Status::NotConnected, 0));
    }
    let inline = d.flags.contains(Flags::INLINE);
    let need = match d.opcode {
        Opcode::Put if !inline && d.len > 0 => Some(Need::Read),
        Opcode::Get if d.len > 0 => Some(Need::Write),
        _ => None,
    };
    let (pin, local) = match need {
        Some(need) => {
            let (pin, buffer) = memory.pin(pd, d.lkey, (d.local_va, d.len), need)?;
            (Some(pin), buffer)
        }
        None => (None, NOTHING),
    };
    let op = match d.opcode {
        Opcode::Get => RemoteOp::Get { into: local },
        Opcode::FetchAdd => RemoteOp::FetchAdd { addend: d.operand },
        Opcode::CompareSwap => RemoteOp::CompareSwap {
            compare: d.operand,
            swap: d.local_va.0,
        },
        _ => RemoteOp::Put {
            payload: match inline {
                true => Payload::Inline {
                    bytes: d.inline,
                    len: d.inline_len,
                },
                false => Payload::Memory(local),
            },
            signal: d.flags.contains(Flags::SIGNAL).then_some(Signal {
                index: d.imm,
                value: d.operand,
                set: d.flags.contains(Flags::SIGNAL_SET),
            }),
        },
    };
    Ok(Ready {
        conn,
        pin,
        rkey: d.rkey,
        va: d.remote_va,
        op,
    })
}

/// The buffer of an operation that needs none.
const NOTHING: Buffer = Buffer {
    region: 0,
    va: GpuVa(0),
    len: 0,
};
