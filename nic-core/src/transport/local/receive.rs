//! The receiving half of a connection: packets become bytes in the receiver's memory.
#![allow(unsafe_code)] // Raw copies out of the peer's exported memory.

use ringbell_gtlb::Fault;
use ringbell_nic_abi::Status;

use super::conn::Conn;
use super::io::{fail_front, recv_done, wants_streaming, Fill, In};
use super::pending_copy;
use super::receive_transform;
use super::rx::{RxRecv, Seg};
use crate::copy;
use crate::dma::DmaAccess;
use crate::engine::Direction;
use crate::memory::nic_memory::{HOST_BUS, NIC_BUS};
use crate::types::Buffer;

/// Bytes that one step copies by reference before it looks at everything else again.
pub(super) const STEP_BYTES: u64 = 1 << 20;

/// How a look for early bytes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Early {
    /// They are here, or must wait for their receive.
    Done,
    /// Some are being read.
    Again,
    /// As [`Fill::Broken`].
    Broken,
}

/// Takes the payload of an inline packet: straight to the waiting receive, or to the staging
/// buffer. `false`: the peer has overrun its window.
#[inline]
pub(super) fn inline(c: &mut Conn, bytes: &[u8], window: usize, io: &mut In<'_>) -> bool {
    let mut rest = bytes;
    if c.rx.segs.is_empty() && !io.dma.on_path(c.id, Direction::Receive) {
        while let Some(r) = c.rx.recvs.front_mut() {
            if rest.is_empty() {
                break;
            }
            let n = rest.len().min((r.work.buffer.len - r.done) as usize);
            if let Err(fault) = io.dma.write(&r.work.buffer, r.done.into(), &rest[..n]) {
                fail_front(c, fault, io.events);
                continue;
            }
            r.done += n as u32;
            c.rx.inline_taken += n as u64;
            rest = &rest[n..];
            if r.done == r.work.buffer.len || r.work.some {
                let r = *r;
                c.rx.recvs.pop_front();
                io.events.push_back(recv_done(c, &r, Status::Ok, 0));
            }
        }
    }
    if rest.is_empty() {
        return true;
    }
    if c.rx.staging.len() + rest.len() > window {
        return false;
    }
    c.rx.stage(rest);
    true
}

/// Fills a receive that is not queued from the staging buffer, if that holds enough for it.
pub(super) fn take_staged(
    c: &mut Conn,
    buffer: &Buffer,
    some: bool,
    dma: &mut dyn DmaAccess,
) -> Option<u32> {
    if dma.on_path(c.id, Direction::Receive) {
        return None;
    }
    let Some(Seg::Staged { len }) = c.rx.segs.front_mut() else {
        return None;
    };
    let n = buffer.len.min(*len);
    if n < buffer.len && !some {
        return None;
    }
    let (first, second) = c.rx.staging.runs(n as usize);
    // A fault leaves the bytes where they are: the queued receive reports it.
    dma.write(buffer, 0, first).ok()?;
    if !second.is_empty() {
        dma.write(buffer, first.len() as u64, second).ok()?;
    }
    c.rx.staging.consume(n as usize);
    c.rx.inline_taken += u64::from(n);
    *len -= n;
    if *len == 0 {
        c.rx.segs.pop_front();
    }
    Some(n)
}

/// Fills waiting receives with the bytes that have arrived.
pub(super) fn fill(c: &mut Conn, io: &mut In<'_>) -> Fill {
    if io.dma.on_path(c.id, Direction::Receive) {
        return receive_transform::fill(c, io);
    }
    c.rx.held = false;
    while let Some(&r) = c.rx.recvs.front() {
        if c.rx.segs.is_empty() {
            break;
        }
        let before = r.done;
        let end = match fill_one(c, r, io) {
            Ok(Fill::Broken) => return Fill::Broken,
            Ok(end) => end,
            Err(fault) => {
                fail_front(c, fault, io.events);
                io.moved = true;
                continue;
            }
        };
        let Some(&r) = c.rx.recvs.front() else { break };
        io.moved |= r.done != before;
        if r.done == r.work.buffer.len || (r.work.some && r.done > 0) {
            c.rx.recvs.pop_front();
            io.events.push_back(recv_done(c, &r, Status::Ok, 0));
        } else if end == Fill::Unmapped {
            match pending_copy::fill(c, io) {
                Fill::Done => continue,
                other => return other,
            }
        }
        if end == Fill::Budget {
            return end;
        }
    }
    if c.rx.peer_fin && c.rx.segs.is_empty() && !c.rx.recvs.is_empty() {
        c.fail_recvs(Status::EndOfStream, io.events);
        io.moved = true;
    }
    Fill::Done
}

/// Moves bytes to the first receive until it is full or nothing is left.
fn fill_one(c: &mut Conn, r: RxRecv, io: &mut In<'_>) -> Result<Fill, Fault> {
    let buffer = r.work.buffer;
    let streaming = wants_streaming(c, buffer.len);
    let mut done = r.done;
    let mut result = Fill::Done;
    while done < buffer.len {
        let Some(seg) = c.rx.segs.front_mut() else {
            break;
        };
        let want = u64::from(buffer.len - done);
        match seg {
            Seg::Staged { len } => {
                let run = c.rx.staging.front();
                let n = want.min(u64::from(*len)).min(run.len() as u64) as usize;
                io.dma.write(&buffer, done.into(), &run[..n])?;
                c.rx.staging.consume(n);
                c.rx.inline_taken += n as u64;
                done += n as u32;
                *len -= n as u32;
                if *len == 0 {
                    c.rx.segs.pop_front();
                }
            }
            Seg::Early { bytes, at } => {
                let n = want.min((bytes.len() - *at) as u64) as usize;
                io.dma.write(&buffer, done.into(), &bytes[*at..*at + n])?;
                *at += n;
                done += n as u32;
                if *at == bytes.len() {
                    c.rx.early_bytes -= bytes.len();
                    c.rx.segs.pop_front();
                }
            }
            Seg::Ref { bus, len } => {
                if *io.budget == 0 {
                    result = Fill::Budget;
                    break;
                }
                let n = want.min(u64::from(*len)).min(*io.budget);
                let Some(src) = io.link.resolve(*bus, n) else {
                    result = Fill::Unmapped;
                    break;
                };
                copy_in(io.dma, &buffer, done.into(), src, n, streaming)?;
                if io.link.is_revoked(c.peer_id) {
                    result = Fill::Broken;
                    break;
                }
                *io.budget -= n;
                done += n as u32;
                *bus += n;
                *len -= n as u32;
                if *len == 0 {
                    let staged = is_staged(*bus);
                    c.rx.segs.pop_front();
                    c.rx.refs_waiting -= 1;
                    c.rx.spans_taken += 1;
                    c.rx.tell_now |= staged;
                    if staged && done < buffer.len {
                        // The acknowledgement must not wait for the rest, because it makes the room that the rest
                        // needs.
                        result = Fill::Budget;
                    }
                }
            }
        }
        if let Some(r) = c.rx.recvs.front_mut() {
            r.done = done;
        }
        if result != Fill::Done {
            break;
        }
    }
    Ok(result)
}

/// Whether a span ended in the peer's NIC memory, where the peer may wait for the room.
pub(super) fn is_staged(bus: u64) -> bool {
    (NIC_BUS..HOST_BUS).contains(&bus)
}

/// Copies `n` bytes of the peer's memory into a buffer.
pub(super) fn copy_in(
    dma: &mut dyn DmaAccess,
    buffer: &Buffer,
    offset: u64,
    src: *const u8,
    n: u64,
    streaming: bool,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < n {
        let span = dma.span(buffer, offset + done)?.prefix(n - done);
        let from = src.wrapping_add(done as usize);
        match dma.direct(span) {
            Some(to) => {
                // SAFETY: the source lies in a mapped export (checked by `resolve`), the
                // destination in the memory's window (checked by `direct`).
                unsafe {
                    if streaming {
                        copy::copy_streaming(to, from, span.len as usize);
                    } else {
                        copy::copy(to, from, span.len as usize);
                    }
                }
                dma.count_copied(span.len);
            }
            None => {
                let mut bounce = vec![0u8; span.len as usize];
                // SAFETY: as above; the bounce buffer is ours.
                unsafe { copy::copy(bounce.as_mut_ptr(), from, bounce.len()) };
                dma.count_copied(span.len);
                dma.write(buffer, offset + done, &bounce)?;
            }
        }
        done += span.len;
    }
    Ok(())
}

/// Copies small payloads that wait without a receive, so that two sides that both send first do not
/// wait for each other.
pub(super) fn stage_early(c: &mut Conn, limit: usize, io: &mut In<'_>) -> Early {
    for i in 0..c.rx.segs.len() {
        let Seg::Ref { bus, len } = c.rx.segs[i] else {
            continue;
        };
        if c.rx.early_bytes + len as usize > limit {
            return Early::Done;
        }
        let Some(src) = io.link.resolve(bus, len.into()) else {
            return match pending_copy::fetch(c, i, limit - c.rx.early_bytes, io) {
                Fill::Broken => Early::Broken,
                _ => Early::Again,
            };
        };
        let mut bytes = vec![0u8; len as usize];
        // SAFETY: the source lies in a mapped export (checked by `resolve`), the destination is ours.
        unsafe { copy::copy(bytes.as_mut_ptr(), src, bytes.len()) };
        if io.link.is_revoked(c.peer_id) {
            return Early::Broken;
        }
        io.dma.count_copied(len.into());
        c.rx.early_bytes += bytes.len();
        c.rx.segs[i] = Seg::Early { bytes, at: 0 };
        c.rx.refs_waiting -= 1;
        c.rx.spans_taken += 1;
        c.rx.tell_now |= is_staged(bus);
        io.moved = true;
    }
    Early::Done
}
