//! Pieces of payloads that go through NIC memory, because the other side cannot map the memory that
//! they are in.

use ringbell_gtlb::Fault;

use super::super::io::Out;
use crate::dma::{ReadStatus, StageRoom};
use crate::memory::nic_memory::HOST_BUS;
use crate::types::Buffer;

/// Request lines of one connection that were not answered, and spans granted to it that it has not
/// taken.
pub(super) const WINDOW: u32 = 256;

/// The connection cannot go on: half of a get was granted, and the other half has failed.
#[derive(Debug)]
pub(in super::super) struct Broken;

/// What an operation keeps until the other side has copied.
#[derive(Debug)]
pub(in super::super) enum Held {
    /// A region of ours.
    Region(u32),
    /// NIC memory.
    Room(StageRoom),
}

/// A piece that is being read into NIC memory.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) room: StageRoom,
    /// Names its read.
    ticket: u64,
}

impl Piece {
    /// Reads the next piece of a buffer from `offset` on; `next` keeps it until it is there.
    /// `None`: not yet, or there is no room.
    pub(super) fn read(
        next: &mut Option<Piece>,
        buffer: &Buffer,
        offset: u32,
        out: &mut Out<'_, '_>,
    ) -> Result<Option<StageRoom>, Fault> {
        if next.is_none() {
            let want = (buffer.len - offset).min(out.staging.chunk);
            let room = out.data.dma.peers().and_then(|d| d.stage_take(want));
            out.rooms.tickets += 1;
            let ticket = out.rooms.tickets;
            *next = room.map(|room| Piece { room, ticket });
        }
        let Some(piece) = next else { return Ok(None) };
        let (to, len) = (piece.room.bus, piece.room.len);
        let Some(dma) = out.data.dma.peers() else {
            return Ok(None);
        };
        let read = dma.stage_fill(buffer, offset.into(), to, len, piece.ticket)?;
        if read == ReadStatus::Pending {
            return Ok(None);
        }
        Ok(next.take().map(|piece| piece.room))
    }
}

/// Whether the peer has memory of ours mapped.
pub(super) fn reaches(out: &Out<'_, '_>, bus: u64) -> bool {
    if bus >= HOST_BUS {
        return out.link.shared.reaches(bus);
    }
    let inside = |at: &super::super::rendezvous::ExportInfo| {
        bus.checked_sub(at.bus).is_some_and(|from| from < at.len)
    };
    out.exports.iter().any(inside)
}
