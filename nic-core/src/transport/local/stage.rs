//! Staging: a memory that the peer cannot reach sends through NIC memory, which it can.
//!
//! Three stages that overlap (the chunked pipeline of FPGA-aware MPI, §3): our DMA fills a piece of
//! NIC memory, the peer's NIC copies the piece out, its acknowledgement recycles the room. A
//! connection's room is a ring of `staging_depth` times `staging_chunk` bytes; it is taken with the
//! first payload that needs it and given back when nothing is on the way. Two copies in all: one
//! each side.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;

use super::conn::{Conn, SPAN_WINDOW};
use super::packet::{Packet, SPANS};
use super::transmit::{Out, Progress};
use crate::dma::{ReadStatus, StageRoom};
use crate::engine::Direction;
use crate::transport::Payload;
use crate::types::Buffer;

/// Rooms that wait for their next connection before the rest goes back to NIC memory.
pub(super) const SPARE_ROOMS: usize = 8;
/// A piece is not cut shorter than this because room is scarce: acknowledgements make more.
const SHORTEST: u32 = 4096;

/// A piece of a payload in NIC memory.
#[derive(Debug)]
struct Piece {
    /// Where it lies in the room.
    at: u32,
    len: u32,
    /// Where it lies in the payload.
    offset: u32,
    /// Names its read: a cancelled read of the same bytes must not answer for this one.
    ticket: u64,
    filled: bool,
    /// Its place among the spans of the connection, once it was announced.
    span: Option<u64>,
}

/// What a connection has in NIC memory.
#[derive(Debug)]
pub(super) struct Stage {
    room: StageRoom,
    /// Where the next piece goes.
    head: u32,
    used: u32,
    /// Oldest first; announced ones before those that are still being filled.
    pieces: VecDeque<Piece>,
}

impl Stage {
    fn new(room: StageRoom) -> Stage {
        Stage {
            room,
            head: 0,
            used: 0,
            pieces: VecDeque::new(),
        }
    }

    /// The room, for the next connection.
    pub(super) fn into_room(self) -> StageRoom {
        self.room
    }

    /// Gives up what was not announced: its send has ended.
    pub(super) fn drop_unsent(&mut self) {
        while self.pieces.back().is_some_and(|p| p.span.is_none()) {
            if let Some(p) = self.pieces.pop_back() {
                self.used -= p.len;
                self.head = p.at;
            }
        }
    }

    /// Recycles what the peer has taken. Returns whether nothing is left.
    pub(super) fn recycle(&mut self, acked: u64) -> bool {
        let taken = |p: &Piece| p.span.is_some_and(|span| span <= acked);
        while self.pieces.front().is_some_and(taken) {
            self.used -= self.pieces.pop_front().map_or(0, |p| p.len);
        }
        self.pieces.is_empty()
    }

    /// Finds room for up to `want` bytes from `offset` of a payload.
    fn reserve(&mut self, offset: u32, want: u32, chunk: u32, tickets: &mut u64) -> Option<u32> {
        if self.used == 0 {
            // Warm lines first.
            self.head = 0;
        }
        let want = want.min(chunk);
        let free = self.room.len - self.used;
        if free == 0 || (free < want && free < SHORTEST) {
            return None;
        }
        let len = want.min(free).min(self.room.len - self.head);
        *tickets += 1;
        self.pieces.push_back(Piece {
            at: self.head,
            len,
            offset,
            ticket: *tickets,
            filled: false,
            span: None,
        });
        self.head = (self.head + len) % self.room.len;
        self.used += len;
        Some(len)
    }
}

/// Gives a connection room, when there is some. Less than asked for is better than none.
pub(super) fn open(c: &mut Conn, out: &mut Out<'_>) -> bool {
    if c.stage.is_some() {
        return true;
    }
    let mut len = out.staging.chunk.saturating_mul(out.staging.depth);
    let room = out.spare.pop().or_else(|| loop {
        match out.dma.stage_take(len) {
            Some(room) => break Some(room),
            None if len / 2 >= SHORTEST => len /= 2,
            None => break None,
        }
    });
    c.stage = room.map(Stage::new);
    c.stage.is_some()
}

/// Moves the first send that was not emitted through the stages, as far as room and reads allow.
pub(super) fn emit(c: &mut Conn, buffer: &Buffer, out: &mut Out<'_>) -> Result<Progress, Fault> {
    let (Some(stage), Some(s)) = (c.stage.as_mut(), c.sends.get_mut(c.next_send)) else {
        return Ok(Progress::Again);
    };
    let on_path = out.dma.on_path(c.id, Direction::Send);
    stage.recycle(c.spans_acked);
    s.started = s.started.max(s.emitted);
    let mut reading = false;
    // Announced pieces come first, so those before the first unsent one are done with.
    let mut next = stage.pieces.partition_point(|p| p.span.is_some());
    loop {
        if next == stage.pieces.len() {
            let left = buffer.len - s.started;
            if left == 0 {
                break;
            }
            match stage.reserve(s.started, left, out.staging.chunk, out.tickets) {
                Some(n) => s.started += n,
                None => break,
            }
        }
        let p = &mut stage.pieces[next];
        next += 1;
        let to = stage.room.bus + u64::from(p.at);
        // Reads of later pieces start while an earlier one is under way; they are announced in order.
        if !p.filled {
            let status = out
                .dma
                .stage_fill(buffer, p.offset.into(), to, p.len, p.ticket)?;
            p.filled = status == ReadStatus::Done;
        }
        reading |= !p.filled;
        if reading {
            continue;
        }
        if c.spans_sent - c.spans_acked + SPANS as u64 > SPAN_WINDOW {
            return Ok(Progress::Wait);
        }
        let mut spans = [(0, 0); SPANS];
        spans[0] = (to, p.len);
        let reference = Packet::Ref {
            dst: c.peer_id,
            n: 1,
            spans,
        };
        if !out.link.push(&reference) {
            return Ok(Progress::Again);
        }
        out.moved = true;
        if on_path {
            out.dma.depart_staged(c.id, s.work.by, to, p.len);
        }
        c.spans_sent += 1;
        p.span = Some(c.spans_sent);
        s.by_ref = true;
        s.emitted += p.len;
        s.spans_end = c.spans_sent;
    }
    Ok(match s.emitted == buffer.len {
        true => Progress::Whole,
        false if reading => Progress::Again,
        false => Progress::Wait,
    })
}

/// Whether a payload can be staged at all.
pub(super) fn memory_of(payload: &Payload) -> Option<Buffer> {
    match payload {
        Payload::Memory(buffer) => Some(*buffer),
        Payload::Inline { .. } => None,
    }
}
