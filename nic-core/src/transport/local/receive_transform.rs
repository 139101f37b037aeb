//! The receiving half with an engine on the path: every byte goes through it.
//!
//! Bytes in the peer's memory are copied by `dma`, in pieces that stay in the cache: the peer may write
//! its memory at any time, and the engine must see what the receiver's memory gets.

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::conn::Conn;
use super::io::{fail_front, recv_done, wants_streaming, Fill, In};
use super::pending_copy;
use super::rx::Seg;
use crate::dma::Foreign;

/// Most bytes that are read at once out of memory that is not mapped here.
const UNMAPPED_PIECE: usize = 256 << 10;

/// Fills waiting receives with what leaves the engine.
pub(super) fn fill(c: &mut Conn, io: &mut In<'_>) -> Fill {
    let mut result = pass(c, io);
    if result == Fill::Done && c.rx.peer_fin && c.rx.segs.is_empty() {
        // What the engine has kept for the end still belongs to the stream.
        if let Err(failed) = io.dma.end_of_stream(c.id) {
            c.failed = Some(failed);
            return Fill::Broken;
        }
        result = pass(c, io);
        if io.dma.held(c.id) == 0 && !c.rx.recvs.is_empty() {
            c.fail_recvs(Status::EndOfStream, io.events);
            io.moved = true;
        }
    }
    c.rx.held = io.dma.held(c.id) > 0;
    result
}

/// Moves bytes until there are none, or no receives.
fn pass(c: &mut Conn, io: &mut In<'_>) -> Fill {
    while !c.rx.recvs.is_empty() && (!c.rx.segs.is_empty() || io.dma.held(c.id) > 0) {
        match fill_front(c, io) {
            Ok(Fill::Done) => {}
            Ok(other) => return other,
            Err(fault) => {
                fail_front(c, fault, io.events);
                io.moved = true;
                continue;
            }
        }
        let Some(&r) = c.rx.recvs.front() else { break };
        if r.done == r.work.buffer.len || (r.work.some && r.done > 0) {
            c.rx.recvs.pop_front();
            io.events.push_back(recv_done(c, &r, Status::Ok, 0));
        }
    }
    Fill::Done
}

/// Moves bytes to the first receive until it is full or nothing is left.
fn fill_front(c: &mut Conn, io: &mut In<'_>) -> Result<Fill, Fault> {
    let Some(&r) = c.rx.recvs.front() else {
        return Ok(Fill::Done);
    };
    let (id, by, buffer) = (c.id, r.work.by, r.work.buffer);
    let streaming = wants_streaming(c, buffer.len);
    let mut done = r.done;
    while done < buffer.len {
        let at_byte = u64::from(done);
        let d = match c.rx.segs.front_mut() {
            // Behind what the engine holds, all segments wait.
            _ if io.dma.held(id) > 0 => io.dma.deliver(id, by, &buffer, at_byte, &[], streaming),
            None => break,
            Some(Seg::Staged { len }) => {
                let run = c.rx.staging.front();
                let run = &run[..run.len().min(*len as usize)];
                let d = io.dma.deliver(id, by, &buffer, at_byte, run, streaming);
                c.rx.staging.consume(d.taken);
                c.rx.inline_taken += d.taken as u64;
                *len -= d.taken as u32;
                if *len == 0 {
                    c.rx.segs.pop_front();
                }
                d
            }
            Some(Seg::Early { bytes, at }) => {
                let d = io
                    .dma
                    .deliver(id, by, &buffer, at_byte, &bytes[*at..], streaming);
                *at += d.taken;
                if *at == bytes.len() {
                    c.rx.early_bytes -= bytes.len();
                    c.rx.segs.pop_front();
                }
                d
            }
            Some(Seg::Ref { bus, len }) => {
                if *io.budget == 0 {
                    return Ok(Fill::Budget);
                }
                let n = u64::from(*len).min(*io.budget);
                let Some(from) = io.link.resolve(*bus, n) else {
                    // The engine sees bytes, so they are read into the NIC first.
                    match pending_copy::fetch(c, 0, UNMAPPED_PIECE, io) {
                        Fill::Done => continue,
                        other => return Ok(other),
                    }
                };
                let (link, peer) = (io.link, c.peer_id);
                let src = Foreign {
                    from,
                    len: n as usize,
                    is_revoked: &|| link.is_revoked(peer),
                };
                let d = io
                    .dma
                    .deliver_foreign(id, by, &buffer, at_byte, &src, streaming);
                if d.revoked {
                    return Ok(Fill::Broken);
                }
                let n = d.taken as u64;
                *io.budget -= n;
                *bus += n;
                *len -= n as u32;
                if *len == 0 {
                    c.rx.segs.pop_front();
                    c.rx.refs_waiting -= 1;
                    c.rx.spans_taken += 1;
                }
                d
            }
        };
        io.moved |= d.taken + d.written > 0;
        // No more than the buffer has room for.
        done += d.written as u32;
        if let Some(front) = c.rx.recvs.front_mut() {
            front.done = done;
        }
        if d.failed.is_some() {
            c.failed = d.failed;
            return Ok(Fill::Broken);
        }
        if let Some(fault) = d.fault {
            return Err(fault);
        }
    }
    Ok(Fill::Done)
}
