//! Pending copies: references to a peer's memory that no CPU maps, whose bytes arrive later.
//!
//! The receiver's own engine copies them out of the memory that it has [imported](super::allocations), straight into the receives
//! that wait, several at a time. A segment stays queued until its bytes have arrived; only then is it acknowledged.
//! So a cancelled copy restarts with the next receive, and the stream stays in order.

use super::conn::Conn;
use super::io::{Fill, In};
use super::rx::{PendingRead, Run, Seg};
use crate::dma::{CopyError, CopyStart, CopyStatus, ReadOutcome};
use crate::engine::Direction;

/// Most runs of one connection in flight: an engine continues with the next while one is checked.
const AT_ONCE: usize = 8;

/// Most bytes that are read at once for an engine.
const PIECE: usize = 256 << 10;

/// Whether bytes read out of the peer's memory may be used: the memory was not revoked and the peer is not gone.
fn still_there(c: &Conn, foreign: bool, io: &In<'_, '_>) -> bool {
    let gone = foreign && io.link.is_gone();
    !(io.link.is_revoked(c.peer_id) || gone)
}

/// Completes copies that have arrived, and starts further ones. `Done`: none is in flight, and the receives or what has
/// arrived have changed.
pub(super) fn fill(c: &mut Conn, io: &mut In<'_, '_>) -> Fill {
    if !take_finished(c, io) {
        return Fill::Broken;
    }
    // An engine sees bytes, so they are read into the NIC first, behind the copies in flight.
    let on_path = io.data.on_path(c.id, Direction::Receive);
    if on_path && c.rx.copies.runs.is_empty() {
        return fetch(c, 0, PIECE, io);
    }
    let Some(dma) = io.data.dma.peers() else {
        return Fill::Broken;
    };
    while !on_path && c.rx.copies.runs.len() < AT_ONCE {
        let (Some((i, buffer, at)), Some((bus, len))) =
            (c.recvs.next_place(), c.rx.next_reference())
        else {
            break;
        };
        let len = len.min(buffer.len - at);
        let Some((from, foreign)) = io.link.shared.allocations.locate(bus, len.into()) else {
            if c.rx.copies.runs.is_empty() {
                return Fill::Broken;
            }
            // Mapped memory of the peer, behind the copies in flight.
            break;
        };
        match dma.start_copy(from, &buffer, at.into()) {
            Ok(CopyStart::Started { ticket, len }) => {
                let len = len as u32;
                c.recvs.expect(i, len);
                c.rx.copies.bytes += u64::from(len);
                c.rx.copies.runs.push_back(Run {
                    ticket,
                    len,
                    done: false,
                    foreign,
                });
                io.moved = true;
            }
            Ok(CopyStart::Busy) => return Fill::Budget,
            Err(CopyError::Fault(fault)) if c.rx.copies.runs.is_empty() => {
                c.recvs.fault(fault, io.events);
                io.moved = true;
                return Fill::Done;
            }
            // It starts when those before it have arrived.
            Err(CopyError::Fault(_)) => break,
            Err(CopyError::Bus(e)) => {
                tracing::warn!(peer = %io.link.peer, error = %e, "a peer's memory cannot be copied");
                return Fill::Broken;
            }
        }
    }
    match c.rx.copies.runs.is_empty() {
        true => Fill::Done,
        false => Fill::Budget,
    }
}

/// Credits arrived bytes to the receives, in order. `false`: the stream is broken.
fn take_finished(c: &mut Conn, io: &mut In<'_, '_>) -> bool {
    let mut lost = false;
    if c.rx.copies.runs.is_empty() {
        return true;
    }
    let Some(dma) = io.data.dma.peers() else {
        return false;
    };
    for run in c.rx.copies.runs.iter_mut().filter(|r| !r.done) {
        match dma.poll_copy(run.ticket) {
            Ok(CopyStatus::Done) => run.done = true,
            Ok(CopyStatus::Pending) => {}
            Ok(CopyStatus::Lost) => lost = true,
            Err(_) => return false,
        }
    }
    let done = c.rx.copies.runs.iter().take_while(|r| r.done);
    let (n, foreign) = done.fold((0, false), |(n, f), r| (n + 1, f || r.foreign));
    // After the copies: as the reader of a sequence lock.
    if n > 0 && !still_there(c, foreign, io) {
        return false;
    }
    for run in c.rx.copies.runs.drain(..n).collect::<Vec<_>>() {
        c.rx.copies.bytes -= u64::from(run.len);
        if !c.rx.consume_reference(0, run.len) {
            return false;
        }
        io.moved = true;
        // The sender waits for its buffer.
        c.rx.tell_now |= c.recvs.arrived(run.len, io.events);
    }
    if lost {
        c.forget_copies();
    }
    true
}

/// Reads the first bytes of the first reference into the NIC, in front of what is left of it: at most `most`. `Done`: they
/// are there; `Budget`: ask again.
pub(super) fn fetch(c: &mut Conn, i: usize, most: usize, io: &mut In<'_, '_>) -> Fill {
    let Some(&Seg::Ref { bus, len }) = c.rx.segs.get(i) else {
        return Fill::Done;
    };
    let Some(dma) = io.data.dma.peers() else {
        return Fill::Broken;
    };
    let span = c.rx.spans_taken;
    let is_same = |f: &PendingRead| (f.span, f.bus) == (span, bus);
    if let Some(f) = c.rx.reading.take().filter(is_same) {
        match dma.poll_read(f.ticket) {
            ReadOutcome::Pending => c.rx.reading = Some(f),
            ReadOutcome::Lost => {}
            ReadOutcome::Bytes(bytes) => {
                let n = bytes.len() as u32;
                if !still_there(c, f.foreign, io) || n > len || !c.rx.consume_reference(i, n) {
                    return Fill::Broken;
                }
                c.rx.early_bytes += bytes.len();
                c.rx.segs.insert(i, Seg::Early { bytes, at: 0 });
                io.moved = true;
                return Fill::Done;
            }
        }
        return Fill::Budget;
    }
    let n = u64::from(len).min(most as u64);
    let Some((from, foreign)) = io.link.shared.allocations.locate(bus, n) else {
        return Fill::Broken;
    };
    match dma.start_read(from) {
        Ok(CopyStart::Started { ticket, .. }) => {
            c.rx.reading = Some(PendingRead {
                ticket,
                span,
                bus,
                foreign,
            });
            Fill::Budget
        }
        Ok(CopyStart::Busy) => Fill::Budget,
        Err(e) => {
            tracing::warn!(peer = %io.link.peer, error = %e, "a peer's memory cannot be read");
            Fill::Broken
        }
    }
}
