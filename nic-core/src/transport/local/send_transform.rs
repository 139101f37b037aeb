//! Sends through a transforming engine.
//!
//! The output lies in no memory that the peer can reach: it travels inside lines, 40 bytes each, within the
//! peer's window for these. Slower than a reference (a line is a copy on each side), but nothing has to
//! outlive the send: it retires as soon as all of the engine's output has left.

use ringbell_gtlb::Fault;

use super::conn::Conn;
use super::io::{Out, Progress};
use super::packet::{Packet, INLINE};
use crate::dma::ReadStatus;
use crate::engine::{Direction, PIECE};
use crate::transport::Payload;

/// Moves the first send that was not emitted through the engine.
pub(super) fn emit(c: &mut Conn, out: &mut Out<'_>) -> Result<Progress, Fault> {
    if let Some(stage) = &mut c.tx.stage {
        // Started before the engine was attached: bytes read ahead are read again.
        stage.drop_unsent();
    }
    c.tx.sends[c.tx.next_send].started = 0;
    loop {
        match flush(c, out) {
            Progress::Whole => {}
            other => return Ok(other),
        }
        let s = &mut c.tx.sends[c.tx.next_send];
        let len = s.work.payload.len();
        if s.emitted == len {
            return Ok(Progress::Whole);
        }
        let n = (len - s.emitted).min(PIECE as u32);
        let from = s.emitted as usize;
        let transformed = match &s.work.payload {
            Payload::Inline { bytes, .. } => {
                let by = s.work.by;
                let bytes = &bytes[from..from + n as usize];
                out.dma.transform(c.id, by, bytes)
            }
            Payload::Memory(buffer) => {
                c.tx.piece.resize(PIECE, 0);
                let piece = &mut c.tx.piece[..n as usize];
                if out.dma.read(buffer, from as u64, piece)? == ReadStatus::Pending {
                    return Ok(Progress::Again);
                }
                out.dma.transform(c.id, s.work.by, piece)
            }
        };
        if let Err(failed) = transformed {
            c.failed = Some(failed);
            return Ok(Progress::Failed);
        }
        s.emitted += n;
        out.moved = true;
    }
}

/// After the last send: what the engine has kept for the end still belongs to the stream.
pub(super) fn end(c: &mut Conn, out: &mut Out<'_>) -> Progress {
    if !out.dma.on_path(c.id, Direction::Send) {
        return Progress::Whole;
    }
    if let Err(failed) = out.dma.end_outgoing(c.id) {
        c.failed = Some(failed);
        return Progress::Failed;
    }
    flush(c, out)
}

/// Sends what the engine has made.
fn flush(c: &mut Conn, out: &mut Out<'_>) -> Progress {
    let (mut gone, mut end) = (0, Progress::Whole);
    for bytes in out.dma.outgoing(c.id).chunks(INLINE) {
        if c.tx.inline_sent - c.tx.inline_acked + bytes.len() as u64 > out.link.peer_window {
            end = Progress::Wait;
            break;
        }
        let mut line = [0; INLINE];
        line[..bytes.len()].copy_from_slice(bytes);
        let p = Packet::Inline {
            dst: c.peer_id,
            len: bytes.len() as u8,
            bytes: line,
        };
        if !out.link.push(&p) {
            end = Progress::Again;
            break;
        }
        c.tx.inline_sent += bytes.len() as u64;
        gone += bytes.len();
    }
    if gone > 0 {
        out.dma.outgoing_gone(c.id, gone);
        out.moved = true;
    }
    end
}
