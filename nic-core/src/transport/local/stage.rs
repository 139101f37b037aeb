//! Staging: payloads in memory that the peer cannot reach go through NIC memory, which it can.
//!
//! Three stages that overlap (the chunked pipeline of FPGA-aware MPI, §3): our DMA fills a piece of
//! NIC memory, the peer's NIC copies the piece out, its acknowledgement recycles the room. A
//! connection's room is a ring of `staging_depth` times `staging_chunk` bytes; it is taken with the
//! first payload that needs it and given back when nothing is on the way. Two copies in all: one
//! each side.

use ringbell_gtlb::Fault;

use super::conn::Conn;
use super::io::{Out, Progress};
use super::packet::{Packet, SPANS};
use super::stage_room::{Stage, SHORTEST};
use super::tx::SPAN_WINDOW;
use crate::dma::ReadStatus;
use crate::engine::Direction;
use crate::transport::Payload;
use crate::types::Buffer;

/// Gives a connection room, when there is some. Less than asked for is better than none.
pub(super) fn open(c: &mut Conn, out: &mut Out<'_>) -> bool {
    if c.tx.stage.is_some() {
        return true;
    }
    let mut len = out.staging.chunk.saturating_mul(out.staging.depth);
    let room = out.rooms.spare.pop().or_else(|| loop {
        match out.dma.stage_take(len) {
            Some(room) => break Some(room),
            None if len / 2 >= SHORTEST => len /= 2,
            None => break None,
        }
    });
    c.tx.stage = room.map(Stage::new);
    c.tx.stage.is_some()
}

/// Moves the first send that was not emitted through the stages, as far as room and reads allow.
pub(super) fn emit(c: &mut Conn, buffer: &Buffer, out: &mut Out<'_>) -> Result<Progress, Fault> {
    let (Some(stage), Some(s)) = (c.tx.stage.as_mut(), c.tx.sends.get_mut(c.tx.next_send)) else {
        return Ok(Progress::Again);
    };
    let on_path = out.dma.on_path(c.id, Direction::Send);
    stage.recycle(c.tx.spans_acked);
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
            match stage.reserve(s.started, left, out.staging.chunk, &mut out.rooms.tickets) {
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
        if c.tx.spans_sent - c.tx.spans_acked + SPANS as u64 > SPAN_WINDOW {
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
            out.dma.tap_staged(c.id, s.work.by, to, p.len);
        }
        c.tx.spans_sent += 1;
        p.span = Some(c.tx.spans_sent);
        s.by_ref = true;
        s.emitted += p.len;
        s.spans_end = c.tx.spans_sent;
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
