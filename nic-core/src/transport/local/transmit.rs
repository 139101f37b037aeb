//! The sending half of a connection: posted sends become packets.

use ringbell_gtlb::Fault;

use super::conn::{Conn, Phase};
use super::io::{Out, Progress};
use super::packet::{Packet, INLINE, SPANS};
use super::rendezvous::ExportInfo;
use super::stage_room::Stage;
use super::tx::SPAN_WINDOW;
use super::{send_transform, stage};
use crate::dma::{DmaAccess, ReadStatus};
use crate::engine::{Direction, PIECE};
use crate::memory::nic_memory::HOST_BUS;
use crate::transport::{Payload, TransportEvent};
use crate::types::{Buffer, ConnId, Owner};

/// Sends up to this size travel inside lines: fewer cache misses than a reference and its
/// acknowledgement, and the send retires at once.
const INLINE_SEND: u32 = 3 * INLINE as u32;

/// Most bytes of a run that an engine processes in one step: the peer and all other connections wait meanwhile.
const TAPPED_RUN: u32 = 256 << 10;

/// Why a connection stopped emitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing left, or the peer must answer first.
    Done,
    /// The ring is full, or a DMA read is pending: try again.
    Again,
}

/// Sends acknowledgement, payload and end of the stream, in this order, as far as there is room.
pub(super) fn pump(c: &mut Conn, out: &mut Out<'_>, window: u64) -> Stop {
    if !matches!(c.phase, Phase::Open) {
        return Stop::Done;
    }
    let due = c.rx.spans_taken > c.rx.spans_told
        && (c.rx.refs_waiting == 0
            || c.rx.tell_now
            || c.rx.spans_taken - c.rx.spans_told >= SPAN_WINDOW / 4);
    if due || c.rx.inline_taken - c.rx.inline_told >= window / 4 {
        let ack = Packet::Ack {
            dst: c.peer_id,
            spans: c.rx.spans_taken,
            inline: c.rx.inline_taken,
        };
        if !out.link.push(&ack) {
            return Stop::Again;
        }
        (c.rx.spans_told, c.rx.inline_told) = (c.rx.spans_taken, c.rx.inline_taken);
        c.rx.tell_now = false;
        out.moved = true;
    }
    while c.tx.next_send < c.tx.sends.len() {
        match emit(c, out) {
            Ok(Progress::Whole) => {
                c.tx.next_send += 1;
                out.moved = true;
            }
            Ok(Progress::Wait) => {
                c.retire_sends(out.events);
                return Stop::Done;
            }
            Ok(Progress::Again) => {
                c.retire_sends(out.events);
                return Stop::Again;
            }
            Ok(Progress::Failed) => {
                fail_stream(c, out);
                return Stop::Done;
            }
            Err(fault) => {
                // Only this send fails: nothing of it has left, or the stream ends here.
                let at = c.tx.next_send;
                let Some(s) = c.tx.sends.remove(at) else {
                    break;
                };
                let (status, detail) = fault.status();
                out.events.push_back(TransportEvent::SendDone {
                    conn: c.id,
                    token: s.work.token,
                    status,
                    bytes: if s.by_ref { 0 } else { s.emitted.into() },
                    detail,
                });
                out.moved = true;
                if let Some(stage) = &mut c.tx.stage {
                    stage.drop_unsent();
                }
                if s.emitted > 0 {
                    fail_stream(c, out);
                    return Stop::Done;
                }
            }
        }
    }
    out.moved |= c.retire_sends(out.events);
    if c.tx.sends.is_empty()
        && c.tx
            .stage
            .as_mut()
            .is_some_and(|s| s.recycle(c.tx.spans_acked))
    {
        let room = c.tx.stage.take().map(Stage::into_room);
        out.rooms.spare.extend(room);
    }
    if c.tx.shut && !c.tx.fin_sent && c.tx.next_send == c.tx.sends.len() {
        match send_transform::end(c, out) {
            Progress::Whole => {}
            Progress::Wait => return Stop::Done,
            Progress::Again => return Stop::Again,
            Progress::Failed => {
                fail_stream(c, out);
                return Stop::Done;
            }
        }
        let fin = Packet::Fin {
            dst: c.peer_id,
            closed: c.closing,
        };
        if !out.link.push(&fin) {
            return Stop::Again;
        }
        c.tx.fin_sent = true;
        out.moved = true;
    }
    Stop::Done
}

/// A stream cannot have a hole: both ends get a reset.
fn fail_stream(c: &mut Conn, out: &mut Out<'_>) {
    out.link.revoke(c.id.0);
    out.link.control.push_back(Packet::Rst { dst: c.peer_id });
    c.reset = true;
    c.break_works(out.events);
    c.rx.drop_segs();
    out.events.push_back(TransportEvent::Reset { conn: c.id });
}

/// Whether the peer can reach a payload. One check is enough: a region lies in one memory. An engine at this end
/// reads the outgoing bytes, which requires memory that is mapped here, or NIC memory.
fn reach(payload: &Payload, watched: bool, out: &mut Out<'_>) -> Result<Reach, Fault> {
    let Payload::Memory(buffer) = payload else {
        return Ok(Reach::No);
    };
    let span = out.dma.span(buffer, 0)?;
    let bus = span.addr.value();
    let mapped = if bus >= HOST_BUS {
        out.link.shared.reaches(bus)
    } else {
        let inside = |e: &ExportInfo| bus.checked_sub(e.bus).is_some_and(|at| at < e.len);
        out.exports.iter().any(inside)
    };
    Ok(match mapped {
        true => Reach::Mapped,
        false
            if bus < HOST_BUS && !watched && out.link.shared.allocations.reaches(bus, span.len) =>
        {
            Reach::Exported
        }
        false => Reach::No,
    })
}

/// How a peer reaches a payload.
enum Reach {
    /// It has the memory mapped.
    Mapped,
    /// Its engine copies out of memory that we have exported.
    Exported,
    /// Not at all.
    No,
}

/// Passes an engine the bytes that a packet announces. They lie in our GPU memory, where the peer fetches them;
/// no kernel may write them before the send retires. Copied piece by piece, so that a kernel that breaks this rule
/// cannot change bytes under the engine.
fn tap(
    (conn, by): (ConnId, Owner),
    buffer: &Buffer,
    range: std::ops::Range<u32>,
    piece: &mut Vec<u8>,
    dma: &mut dyn DmaAccess,
) -> Result<(), Fault> {
    piece.resize(PIECE, 0);
    let mut at = range.start;
    while at < range.end {
        let n = (range.end - at).min(PIECE as u32);
        let bytes = &mut piece[..n as usize];
        // Exported memory is mapped, and mapped memory answers at once.
        if dma.read(buffer, at.into(), bytes)? == ReadStatus::Done {
            dma.tap_sent(conn, by, bytes);
        }
        at += n;
    }
    Ok(())
}

fn emit(c: &mut Conn, out: &mut Out<'_>) -> Result<Progress, Fault> {
    let on_path = out.dma.on_path(c.id, Direction::Send);
    if on_path && out.dma.transforms(c.id) {
        return send_transform::emit(c, out);
    }
    let s = &mut c.tx.sends[c.tx.next_send];
    let len = s.work.payload.len();
    let mut small = matches!(s.work.payload, Payload::Inline { .. })
        || (len <= INLINE_SEND && !s.by_ref && !s.staged);
    if !small && !s.by_ref && !s.staged {
        match reach(&s.work.payload, on_path, out)? {
            Reach::Mapped => {}
            Reach::Exported => {
                // Our own engine may not have written yet what the peer's is to read.
                let s = &mut c.tx.sends[c.tx.next_send];
                let mark = *s.behind.get_or_insert_with(|| out.dma.mark());
                if !out.dma.has_landed(mark) {
                    return Ok(Progress::Again);
                }
            }
            Reach::No => {
                // Without room in NIC memory: in lines, which is slow but proceeds.
                small = !stage::open(c, out);
                c.tx.sends[c.tx.next_send].staged = !small;
            }
        }
    }
    let s = &mut c.tx.sends[c.tx.next_send];
    if let (true, Some(buffer)) = (s.staged, stage::memory_of(&s.work.payload)) {
        return stage::emit(c, &buffer, out);
    }
    while s.emitted < len {
        let left = len - s.emitted;
        if small {
            let n = left.min(INLINE as u32) as usize;
            if c.tx.inline_sent - c.tx.inline_acked + n as u64 > out.link.peer_window {
                return Ok(Progress::Wait);
            }
            let mut bytes = [0u8; INLINE];
            let from = s.emitted as usize;
            match &s.work.payload {
                Payload::Inline { bytes: b, .. } => bytes[..n].copy_from_slice(&b[from..from + n]),
                Payload::Memory(buffer) => {
                    let read = out.dma.read(buffer, from as u64, &mut bytes[..n])?;
                    if read == ReadStatus::Pending {
                        return Ok(Progress::Again);
                    }
                }
            }
            let p = Packet::Inline {
                dst: c.peer_id,
                len: n as u8,
                bytes,
            };
            if !out.link.push(&p) {
                return Ok(Progress::Again);
            }
            c.tx.inline_sent += n as u64;
            s.emitted += n as u32;
            if on_path {
                out.dma.tap_sent(c.id, s.work.by, &bytes[..n]);
            }
            continue;
        }
        let Payload::Memory(buffer) = s.work.payload else {
            return Ok(Progress::Whole);
        };
        if c.tx.spans_sent - c.tx.spans_acked + SPANS as u64 > SPAN_WINDOW {
            return Ok(Progress::Wait);
        }
        let mut spans = [(0, 0); SPANS];
        let (mut n, mut taken) = (0, 0);
        while n < SPANS && taken < left {
            let span = out.dma.span(&buffer, u64::from(s.emitted + taken))?;
            let mut run = span.len.min(u64::from(left - taken)) as u32;
            if on_path {
                run = run.min(TAPPED_RUN);
            }
            spans[n] = (span.addr.value(), run);
            taken += run;
            n += 1;
        }
        let p = Packet::Ref {
            dst: c.peer_id,
            n: n as u8,
            spans,
        };
        if !out.link.push(&p) {
            return Ok(Progress::Again);
        }
        s.by_ref = true;
        let range = s.emitted..s.emitted + taken;
        s.emitted += taken;
        c.tx.spans_sent += n as u64;
        s.spans_end = c.tx.spans_sent;
        if on_path {
            tap((c.id, s.work.by), &buffer, range, &mut c.tx.piece, out.dma)?;
            if s.emitted < len {
                // Other connections get a turn.
                return Ok(Progress::Again);
            }
        }
    }
    Ok(Progress::Whole)
}
