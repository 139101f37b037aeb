//! The sending half of a connection: posted sends become packets.

use ringbell_gtlb::Fault;

use super::conn::{Conn, Phase};
use super::io::{Out, Progress};
use super::packet::{Packet, INLINE, SPANS};
use super::rendezvous::ExportInfo;
use super::stage;
use super::stage_room::Stage;
use super::tx::{Unsent, SPAN_WINDOW};
use crate::datapath::Sent;
use crate::dma::DmaAccess;
use crate::engine::Direction;
use crate::memory::nic_memory::HOST_BUS;
use crate::transport::{Payload, TransportEvent};
use crate::types::Buffer;

/// Sends up to this size travel inside lines: fewer cache misses than a reference and its
/// acknowledgement, and the send retires at once.
const INLINE_SEND: u32 = 3 * INLINE as u32;

/// Most bytes of a run that an engine processes in one step: the peer and all other connections
/// wait meanwhile.
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
pub(super) fn pump(c: &mut Conn, out: &mut Out<'_, '_>, window: u64) -> Stop {
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
    loop {
        match emit(c, out) {
            Progress::On => out.moved = true,
            Progress::Idle => break,
            Progress::Wait => return Stop::Done,
            Progress::Again => return Stop::Again,
            Progress::Fault(hole) => {
                out.moved = true;
                c.tx.drop_unsent();
                if hole {
                    fail_stream(c, out);
                    return Stop::Done;
                }
            }
            Progress::Failed(failed) => {
                c.failed = Some(failed);
                fail_stream(c, out);
                return Stop::Done;
            }
        }
    }
    if c.sends.is_empty()
        && c.tx
            .stage
            .as_mut()
            .is_some_and(|s| s.recycle(c.tx.spans_acked))
    {
        let room = c.tx.stage.take().map(Stage::into_room);
        out.rooms.spare.extend(room);
    }
    if c.tx.shut && !c.tx.fin_sent {
        return finish(c, out);
    }
    Stop::Done
}

/// Sends the end of the stream, behind what an engine has kept for it.
fn finish(c: &mut Conn, out: &mut Out<'_, '_>) -> Stop {
    loop {
        let kept = match c.sends.finish(out.data) {
            Ok(true) => break,
            Ok(false) => line(c, out),
            Err(failed) => Progress::Failed(failed),
        };
        match kept {
            Progress::On => out.moved = true,
            Progress::Failed(failed) => {
                c.failed = Some(failed);
                fail_stream(c, out);
                return Stop::Done;
            }
            Progress::Again => return Stop::Again,
            Progress::Wait | Progress::Idle | Progress::Fault(_) => return Stop::Done,
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
    Stop::Done
}

/// A stream cannot have a hole: both ends get a reset.
fn fail_stream(c: &mut Conn, out: &mut Out<'_, '_>) {
    out.link.revoke(c.id.0);
    out.link.queue_control(Packet::Rst { dst: c.peer_id });
    c.reset = true;
    c.break_works(out.events);
    c.rx.drop_segs();
    out.events.push_back(TransportEvent::Reset { conn: c.id });
}

/// Whether the peer has mapped a payload. One check is enough: a region lies in one memory.
fn is_mapped(buffer: &Buffer, out: &mut Out<'_, '_>) -> Result<bool, Fault> {
    let span = out.data.dma.span(buffer, 0)?;
    let bus = span.addr.value();
    if bus >= HOST_BUS {
        return Ok(out.link.shared.reaches(bus));
    }
    let inside = |e: &ExportInfo| bus.checked_sub(e.bus).is_some_and(|at| at < e.len);
    Ok(out.exports.iter().any(inside))
}

/// Sends the next packet of the first unsent send.
fn emit(c: &mut Conn, out: &mut Out<'_, '_>) -> Progress {
    let Some((work, done)) = c.sends.unsent() else {
        return Progress::Idle;
    };
    let (payload, token, len) = (work.payload, work.token, work.payload.len());
    if c.tx.unsent.token != Some(token) {
        c.tx.unsent = Unsent {
            token: Some(token),
            ..Unsent::default()
        };
    }
    let on_path = out.data.on_path(c.id, Direction::Send);
    if on_path && out.data.transforms(c.id) {
        // The output lies in no memory that the peer can reach: it travels in lines. Slower than a
        // reference, but nothing has to outlive the send.
        c.tx.drop_unsent();
        if out.data.held(c.id, Direction::Send) == 0 {
            // The engine works without room for its output: when it fails, the stream ends at once.
            let sent = c.sends.fill(&mut [], out.data, out.events);
            if out.data.held(c.id, Direction::Send) == 0 || sent != Sent::Bytes(0) {
                return sent.into();
            }
        }
        return line(c, out);
    }
    let Payload::Memory(buffer) = payload else {
        return line(c, out);
    };
    let Unsent { by_ref, staged, .. } = c.tx.unsent;
    if !by_ref && !staged {
        if len <= INLINE_SEND {
            return line(c, out);
        }
        match is_mapped(&buffer, out) {
            Err(fault) => return c.sends.fault(fault, out.events).into(),
            Ok(true) => {}
            Ok(false) => {
                c.tx.unsent.staged = stage::open(c, out);
                if !c.tx.unsent.staged {
                    // Without room in NIC memory: slow, but it proceeds.
                    return line(c, out);
                }
            }
        }
    }
    match c.tx.unsent.staged {
        true => stage::emit(c, &buffer, out),
        false => refer(c, &buffer, len - done, on_path, out),
    }
}

/// Sends the next bytes in a line, or what an engine has made of them.
fn line(c: &mut Conn, out: &mut Out<'_, '_>) -> Progress {
    let on_the_way = c.tx.inline_sent - c.tx.inline_acked;
    let free = out.link.peer_window.saturating_sub(on_the_way);
    let waiting = match out.data.held(c.id, Direction::Send) {
        0 => c
            .sends
            .unsent()
            .map_or(0, |(w, done)| w.payload.len() - done) as usize,
        held => held,
    };
    if free < waiting.min(INLINE) as u64 {
        return Progress::Wait;
    }
    if !out.link.has_room() {
        return Progress::Again;
    }
    let mut bytes = [0u8; INLINE];
    let room = &mut bytes[..free.min(INLINE as u64) as usize];
    let sent = c.sends.fill(room, out.data, out.events);
    if let Sent::Bytes(n @ 1..) = sent {
        let p = Packet::Inline {
            dst: c.peer_id,
            len: n as u8,
            bytes,
        };
        // There is room.
        out.link.push(&p);
        c.tx.inline_sent += n as u64;
    }
    sent.into()
}

/// Announces the next bytes by reference: the peer fetches them where they lie.
fn refer(
    c: &mut Conn,
    buffer: &Buffer,
    left: u32,
    on_path: bool,
    out: &mut Out<'_, '_>,
) -> Progress {
    if c.tx.spans_sent - c.tx.spans_acked + SPANS as u64 > SPAN_WINDOW {
        return Progress::Wait;
    }
    let mut spans = [(0, 0); SPANS];
    let (mut n, mut taken) = (0, 0);
    while n < SPANS && taken < left {
        let span = match out
            .data
            .dma
            .span(buffer, u64::from(buffer.len - left + taken))
        {
            Ok(span) => span,
            Err(fault) => return c.sends.fault(fault, out.events).into(),
        };
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
        return Progress::Again;
    }
    c.tx.unsent.by_ref = true;
    c.tx.spans_sent += n as u64;
    let until = c.tx.spans_sent;
    // Such memory is mapped, and mapped memory answers at once.
    let read = |dma: &mut dyn DmaAccess, at: u32, to: &mut [u8]| {
        dma.read(buffer, at.into(), to).map(|_| ())
    };
    match c.sends.refer(taken, until, out.data, out.events, read) {
        Sent::Bytes(_) if on_path && taken < left => {
            // Other connections get a turn.
            out.moved = true;
            Progress::Again
        }
        sent => sent.into(),
    }
}
