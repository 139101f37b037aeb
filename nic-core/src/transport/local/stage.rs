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
use crate::datapath::Sent;
use crate::dma::{DmaAccess, ReadStatus};
use crate::types::Buffer;

/// Gives a connection room, when there is some. Less than asked for is better than none.
pub(super) fn open(c: &mut Conn, out: &mut Out<'_, '_>) -> bool {
    if c.tx.stage.is_some() {
        return true;
    }
    let mut len = out.staging.chunk.saturating_mul(out.staging.depth);
    let room = out.rooms.spare.pop().or_else(|| loop {
        match out.data.dma.peers().and_then(|d| d.stage_take(len)) {
            Some(room) => break Some(room),
            None if len / 2 >= SHORTEST => len /= 2,
            None => break None,
        }
    });
    c.tx.stage = room.map(Stage::new);
    c.tx.stage.is_some()
}

/// Moves the first unsent send through the stages, as far as room and reads allow.
pub(super) fn emit(c: &mut Conn, buffer: &Buffer, out: &mut Out<'_, '_>) -> Progress {
    let (Some(stage), Some((_, done))) = (c.tx.stage.as_mut(), c.sends.unsent()) else {
        return Progress::Again;
    };
    stage.recycle(c.tx.spans_acked);
    let started = &mut c.tx.unsent.started;
    *started = done.max(*started);
    let (mut done, mut reading) = (done, false);
    // Announced pieces come first, so those before the first unsent one are done with.
    let mut next = stage.pieces.partition_point(|p| p.span.is_some());
    loop {
        if next == stage.pieces.len() {
            let left = buffer.len - *started;
            if left == 0 {
                break;
            }
            match stage.reserve(*started, left, out.staging.chunk, &mut out.rooms.tickets) {
                Some(n) => *started += n,
                None => break,
            }
        }
        let p = &mut stage.pieces[next];
        next += 1;
        let to = stage.room.bus + u64::from(p.at);
        // Reads of later pieces start while an earlier one is under way; they are announced in
        // order.
        if !p.filled {
            let Some(dma) = out.data.dma.peers() else {
                return Progress::Again;
            };
            match dma.stage_fill(buffer, p.offset.into(), to, p.len, p.ticket) {
                Ok(status) => p.filled = status == ReadStatus::Done,
                Err(fault) => return c.sends.fault(fault, out.events).into(),
            }
        }
        reading |= !p.filled;
        if reading {
            continue;
        }
        if c.tx.spans_sent - c.tx.spans_acked + SPANS as u64 > SPAN_WINDOW {
            return Progress::Wait;
        }
        let mut spans = [(0, 0); SPANS];
        spans[0] = (to, p.len);
        let reference = Packet::Ref {
            dst: c.peer_id,
            n: 1,
            spans,
        };
        if !out.link.push(&reference) {
            return Progress::Again;
        }
        out.moved = true;
        c.tx.spans_sent += 1;
        p.span = Some(c.tx.spans_sent);
        done += p.len;
        let (first, until) = (p.offset, c.tx.spans_sent);
        // A peer may have NIC memory mapped: an engine gets a copy.
        let read = |dma: &mut dyn DmaAccess, at: u32, piece: &mut [u8]| match dma.peers() {
            Some(dma) => dma.stage_read(to + u64::from(at - first), piece),
            None => Err(Fault::NoTranslation { va: buffer.va }),
        };
        match c.sends.refer(p.len, until, out.data, out.events, read) {
            Sent::Bytes(_) => {}
            other => return other.into(),
        }
    }
    match done == buffer.len {
        true => Progress::On,
        false if reading => Progress::Again,
        false => Progress::Wait,
    }
}
