//! Memory of the operations of [inboxes](super::host): pinned, copied, or read.

use ringbell_gtlb::{Need, Pin};
use ringbell_nic_abi::{GpuVa, Lkey, PdId, Status};

use super::gone::Gone;
use crate::dma::{DmaAccess, ReadStatus};
use crate::link::{Io, Pieces};
use crate::memory::nic_memory::Block;
use crate::message::Messages;
use crate::types::Buffer;

/// An operation of an inbox, until it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u32);

/// Why an operation of an inbox is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The communicator has ended.
    #[error(
        "the communicator has ended: {status} (detail {detail:#x}); make a new one, or shrink it"
    )]
    Ended {
        /// How.
        status: Status,
        /// Of the status: the rank that caused it, as a rule.
        detail: u64,
    },
    /// An argument is out of range.
    #[error("{what} {given} is out of range: it must be below {limit}")]
    Range {
        /// Which.
        what: &'static str,
        /// As given.
        given: u64,
        /// The first value that is none.
        limit: u64,
    },
    /// The memory cannot be used.
    #[error("the memory at {va} cannot be used for the message: {status}; register it with the NIC, in the domain of the communicator")]
    Memory {
        /// Its address.
        va: GpuVa,
        /// The cause.
        status: Status,
    },
    /// There is less memory than the message has bytes.
    #[error(
        "the message has {len} bytes, and the memory {room}; give it as much as the message has"
    )]
    Room {
        /// Of the message.
        len: u64,
        /// Of the memory.
        room: u64,
    },
    /// Too much is under way.
    #[error("the NIC has no room for another message under way; wait for some to end")]
    Full,
    /// No such operation, or it is not that far.
    #[error("operation {} has met no message whose bytes are here, or has ended", id.0)]
    NotHere {
        /// The operation.
        id: MessageId,
    },
}

/// Most bytes of one buffer.
const PIECE: u64 = 1 << 30;

/// Memory that an operation holds.
#[derive(Debug)]
pub(super) enum Held {
    Nothing,
    Region(Pin),
    Regions(Vec<Pin>),
    Copy(Block),
}

impl Held {
    /// The operation has ended.
    pub(super) fn give_back(self, io: &mut Io<'_>) {
        match self {
            Held::Nothing => {}
            Held::Region(pin) => io.mmu.unpin(pin),
            Held::Regions(pins) => pins.into_iter().for_each(|pin| io.mmu.unpin(pin)),
            Held::Copy(block) => io.dma.nic_memory.free(block),
        }
    }
}

/// What an inbox works with.
pub(crate) struct Desk<'a, 'b> {
    /// Its communicator's ranks, the own one first.
    pub(crate) ranks: (u32, u32),
    /// How that has ended.
    pub(crate) over: Option<(Status, u64)>,
    /// Its ranks that send nothing more.
    pub(super) gone: &'a [Gone],
    pub(crate) messages: &'a mut Messages,
    pub(crate) io: &'a mut Io<'b>,
}

/// The bytes of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// To be copied.
    Bytes(&'a [u8]),
    /// In ranges of registered memory.
    Spans(&'a [(GpuVa, u64)]),
}

impl Payload<'_> {
    /// Its bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Payload::Bytes(bytes) => bytes.len() as u64,
            Payload::Spans(spans) => spans.iter().map(|s| s.1).sum(),
        }
    }
}

impl Desk<'_, '_> {
    /// Copies bytes to NIC memory.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Result<(Pieces, Held), MessageError> {
        let len = bytes.len() as u64;
        if len == 0 {
            return Ok((Pieces::default(), Held::Nothing));
        }
        let nic_memory = &mut self.io.dma.nic_memory;
        let block = nic_memory.alloc(len).ok_or(MessageError::Full)?;
        nic_memory.write(block.at, bytes);
        let region = nic_memory.buffer(block.at, 0);
        Ok((split(region, len), Held::Copy(block)))
    }

    /// Where the bytes of a message are.
    pub(super) fn reach(
        &mut self,
        pd: PdId,
        payload: Payload<'_>,
    ) -> Result<(Pieces, Held), MessageError> {
        match payload {
            Payload::Bytes(bytes) => self.copy(bytes),
            Payload::Spans(spans) => self.pin_all(pd, spans, Need::Read),
        }
    }

    /// Pins ranges of registered memory.
    pub(super) fn pin_all(
        &mut self,
        pd: PdId,
        spans: &[(GpuVa, u64)],
        need: Need,
    ) -> Result<(Pieces, Held), MessageError> {
        if let [(va, len)] = *spans {
            return self.pin(pd, va, len, need);
        }
        let (mut all, mut pins) = (Pieces::default(), Vec::with_capacity(spans.len()));
        for (va, len) in spans {
            match self.pin(pd, *va, *len, need) {
                Ok((pieces, held)) => {
                    pieces.iter().for_each(|b| all.push(*b));
                    pins.extend(match held {
                        Held::Region(pin) => Some(pin),
                        _ => None,
                    });
                }
                Err(error) => {
                    pins.into_iter().for_each(|pin| self.io.mmu.unpin(pin));
                    return Err(error);
                }
            }
        }
        Ok((all, Held::Regions(pins)))
    }

    /// Pins registered memory.
    pub(super) fn pin(
        &mut self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<(Pieces, Held), MessageError> {
        if len == 0 {
            return Ok((Pieces::default(), Held::Nothing));
        }
        let pin = self.io.mmu.pin(pd, Lkey(0), va, len, need);
        let pin = pin.map_err(|f| MessageError::Memory {
            va,
            status: f.status().0,
        })?;
        let (region, len_of_first) = (pin.region, 0);
        let first = Buffer {
            region,
            va,
            len: len_of_first,
        };
        Ok((split(first, len), Held::Region(pin)))
    }

    /// The bytes of registered memory.
    pub(super) fn read(
        &mut self,
        pd: PdId,
        spans: &[(GpuVa, u64)],
    ) -> Result<Vec<u8>, MessageError> {
        let (pieces, held) = self.pin_all(pd, spans, Need::Read)?;
        let va = spans.first().map_or(GpuVa(0), |s| s.0);
        let mut bytes = vec![0; pieces.len() as usize];
        let mut rest = &mut bytes[..];
        let mut failed = None;
        for piece in pieces.iter() {
            let (now, later) = rest.split_at_mut(piece.len as usize);
            rest = later;
            let status = match self.io.dma().read(piece, 0, now) {
                Ok(ReadStatus::Done) => continue,
                // Of a GPU that the host does not reach.
                Ok(ReadStatus::Pending) => Status::Unsupported,
                Err(f) => f.status().0,
            };
            failed = Some(MessageError::Memory { va, status });
            break;
        }
        held.give_back(self.io);
        failed.map_or(Ok(bytes), Err)
    }
}

/// A range as buffers, of which this is the empty first.
pub(super) fn split(first: Buffer, len: u64) -> Pieces {
    let mut pieces = Pieces::default();
    let mut at = 0;
    while at < len {
        let n = PIECE.min(len - at);
        pieces.push(Buffer {
            va: GpuVa(first.va.0 + at),
            len: n as u32,
            ..first
        });
        at += n;
    }
    pieces
}
