//! `PUT`, `GET`, `FETCH_ADD` and `COMPARE_SWAP`: operations on memory of the peer, in which it
//! takes no part.

use ringbell_gtlb::{Fault, Need, Pin};
use ringbell_nic_abi::{Descriptor, Flags, GpuVa, Opcode, PdId, Status, PUT_INLINE_MAX};

use super::copy_op::Ending;
use super::dialled::Remote;
use super::memory::Memory;
use super::refusal::Refusal;
use super::streams::{Conn, Streams};
use super::windows::{Place, To, Windows};
use crate::collective::Collectives;
use crate::dma::{RemoteMemory, WordUpdate};
use crate::transport::{Payload, RemoteOp, Signal};
use crate::types::{Buffer, CommId};

/// An operation that was checked, with its buffers here pinned.
pub(super) struct Ready {
    pub(super) pins: [Option<Pin>; 2],
    pub(super) way: Way,
}

/// How it goes on.
pub(super) enum Way {
    /// To the peer.
    Remote(Conn, Remote),
    /// To a rank that is to be dialled first.
    Dialled(CommId, u32, Remote),
    /// In memory of this rank itself: source, destination, and what follows the copy.
    Own([Buffer; 2], Ending),
}

/// Checks a descriptor, and pins its buffers.
pub(super) fn prepare(
    streams: &mut Streams,
    (collectives, windows): (&Collectives, &Windows),
    memory: &mut Memory,
    pd: PdId,
    d: &Descriptor,
) -> Result<Ready, Refusal> {
    let place = match d.flags.contains(Flags::SYMMETRIC) {
        true => {
            let len = match d.opcode {
                Opcode::Put | Opcode::Get => d.len.into(),
                _ => 8,
            };
            windows.place(collectives, pd, d, len)?
        }
        false => {
            let engines = &memory.engines;
            let conn = streams.established(pd, d.session, d.flags, engines)?;
            if streams.is_shut(d.session) {
                return Err((Status::NotConnected, 0));
            }
            Place {
                to: To::Peer(conn),
                rkey: d.rkey,
                va: d.remote_va,
            }
        }
    };
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
    let op = operation(d, local);
    let (rkey, va) = (place.rkey, place.va);
    let way = match place.to {
        To::Peer(conn) => Way::Remote(conn, Remote { rkey, va, op }),
        To::Dialled(comm, rank) => Way::Dialled(comm, rank, Remote { rkey, va, op }),
        To::Own => {
            return match own(memory, pd, &place, &op) {
                Ok((there, buffers, ending)) => Ok(Ready {
                    pins: [pin, there],
                    way: Way::Own(buffers, ending),
                }),
                Err(refusal) => {
                    if let Some(pin) = pin {
                        memory.mmu.unpin(pin);
                    }
                    Err(refusal)
                }
            };
        }
    };
    Ok(Ready {
        pins: [pin, None],
        way,
    })
}

fn operation(d: &Descriptor, local: Buffer) -> RemoteOp {
    match d.opcode {
        Opcode::Get => RemoteOp::Get { into: local },
        Opcode::FetchAdd => RemoteOp::FetchAdd { addend: d.operand },
        Opcode::CompareSwap => RemoteOp::CompareSwap {
            compare: d.operand,
            swap: d.local_va.0,
        },
        _ => RemoteOp::Put {
            payload: match d.flags.contains(Flags::INLINE) {
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
    }
}

/// An operation on this rank's own part of a window: with the checks that a peer's gets.
fn own(
    memory: &mut Memory,
    pd: PdId,
    place: &Place,
    op: &RemoteOp,
) -> Result<(Option<Pin>, [Buffer; 2], Ending), Refusal> {
    let (need, len) = match op {
        RemoteOp::Put { payload, .. } => (Need::RemoteWrite, payload.len()),
        RemoteOp::Get { into } => (Need::RemoteRead, into.len),
        RemoteOp::FetchAdd { .. } | RemoteOp::CompareSwap { .. } => (Need::RemoteAtomic, 8),
    };
    let mut dma = memory.dma();
    let there = dma.remote(&[pd], place.rkey, place.va, len, need);
    let there = there.map_err(Fault::status)?;
    let mut ending = Ending::default();
    let buffers = match *op {
        RemoteOp::Get { into } => [there, into],
        RemoteOp::Put { payload, signal } => {
            if let Some(s) = signal {
                let word = dma.remote_word(&[pd], place.rkey, place.va, s.index);
                let update = match s.set {
                    true => WordUpdate::Set(s.value),
                    false => WordUpdate::Add(s.value),
                };
                ending.update = Some((word.map_err(Fault::status)?, update));
            }
            match payload {
                Payload::Memory(from) => [from, there],
                Payload::Inline { bytes, len } => {
                    let mut small = [0; PUT_INLINE_MAX];
                    small.copy_from_slice(&bytes[..PUT_INLINE_MAX]);
                    ending.write = Some((there, small, len));
                    [NOTHING; 2]
                }
            }
        }
        RemoteOp::FetchAdd { addend } => {
            ending.update = Some((there, WordUpdate::Add(addend)));
            ending.answers = true;
            [NOTHING; 2]
        }
        RemoteOp::CompareSwap { compare, swap } => {
            ending.update = Some((there, WordUpdate::CompareSwap { compare, swap }));
            ending.answers = true;
            [NOTHING; 2]
        }
    };
    let [from, to] = buffers;
    if from.len > 0 && from.va.0.abs_diff(to.va.0) < u64::from(from.len) {
        // As for `COPY`.
        return Err((Status::BadDescriptor, 3));
    }
    Ok((memory.mmu.hold(there.region), buffers, ending))
}

/// The buffer of an operation that needs none.
const NOTHING: Buffer = Buffer {
    region: 0,
    va: GpuVa(0),
    len: 0,
};
