//! The target's half: requests of the peer are checked, executed in order and answered.

use std::collections::VecDeque;

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::{PdId, Status};

use super::super::io::{is_staged, Fill, In, Out, Progress};
use super::super::link::Link;
use super::super::packet::{INLINE, SPANS};
use super::line::{OneSidedPacket, PutBytes, GET_INLINE};
use super::piece::{reaches, Broken, Held, Piece, WINDOW};
use crate::dma::{DmaAccess, ReadStatus, WordUpdate};
use crate::transport::one_sided::Landing;
use crate::types::Buffer;
use ringbell_gtlb::copy;

/// An answer that was not sent; its lines are counted when it is.
#[derive(Debug, Clone, Copy)]
struct Answer {
    operations: u32,
    status: Status,
    detail: u64,
}

/// The get that is being answered.
#[derive(Debug)]
struct Serving {
    buffer: Buffer,
    done: u32,
    piece: Option<Piece>,
}

/// See the module text.
#[derive(Debug, Default)]
pub(in super::super) struct Responder {
    /// Whose regions the peer may name.
    domains: Vec<PdId>,
    /// Requests, oldest first.
    queue: VecDeque<OneSidedPacket>,
    /// Why the put whose lines are still coming has failed.
    failed: Option<(Status, u64)>,
    get: Option<Serving>,
    /// The bytes of its puts.
    landing: Landing,
    answers: VecDeque<Answer>,
    /// What the peer copies from, with the number of the last span of it.
    granted: VecDeque<(u64, Held)>,
    /// Running totals.
    operations: u32,
    lines: u32,
    lines_told: u32,
    /// The peer waits for the room of a line.
    tell_now: bool,
    spans_granted: u64,
    spans_taken: u64,
}

impl Responder {
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.answers.is_empty() && self.lines == self.lines_told
    }

    pub(super) fn has_refs_out(&self) -> bool {
        self.spans_granted != self.spans_taken
    }

    /// Lets the peer name regions of a domain.
    pub(in super::super) fn grant(&mut self, pd: PdId) {
        if !self.domains.contains(&pd) {
            self.domains.push(pd);
        }
    }

    /// Takes a request. `false`: more than the window allows.
    pub(super) fn request(&mut self, packet: OneSidedPacket) -> bool {
        self.queue.push_back(packet);
        self.queue.len() <= WINDOW as usize
    }

    /// The peer has copied what was granted up to this span. `false`: that was never granted.
    pub(super) fn taken(&mut self, spans: u64, left: &mut Vec<Held>) -> bool {
        self.spans_taken = self.spans_taken.max(spans);
        while let Some((last, _)) = self.granted.front() {
            if *last > spans {
                break;
            }
            left.extend(self.granted.pop_front().map(|(_, held)| held));
        }
        spans <= self.spans_granted
    }

    /// Drops everything.
    pub(super) fn end(&mut self, left: &mut Vec<Held>) {
        self.queue.clear();
        self.answers.clear();
        left.extend(self.granted.drain(..).map(|(_, held)| held));
        if let Some(get) = self.get.take() {
            left.push(Held::Region(get.buffer.region));
            left.extend(get.piece.map(|p| Held::Room(p.room)));
        }
        self.lines_told = self.lines;
        self.spans_taken = self.spans_granted;
    }

    /// The oldest request has ended: the last line of its operation.
    fn ended(&mut self, (status, detail): (Status, u64)) {
        self.operations = self.operations.wrapping_add(1);
        // An answer stands for all operations before it that have ended without a detail.
        if let Some(last) = self.answers.back() {
            if last.status == Status::Ok && last.detail == 0 {
                self.answers.pop_back();
            }
        }
        self.answers.push_back(Answer {
            operations: self.operations,
            status,
            detail,
        });
    }

    /// Whether answers may leave: what they confirm is in place.
    pub(super) fn may_tell(&mut self, dma: &mut dyn DmaAccess) -> bool {
        self.answers.is_empty() || self.landing.is_over(dma)
    }

    /// Sends the answers. `false`: there is no room.
    pub(super) fn tell(&mut self, dst: u32, link: &mut Link) -> bool {
        while let Some(a) = self.answers.front() {
            if !answer(a, self.lines, dst, link) {
                return false;
            }
            (self.lines_told, self.tell_now) = (self.lines, false);
            self.answers.pop_front();
        }
        true
    }

    /// The oldest request is done with.
    fn next(&mut self) {
        self.queue.pop_front();
        self.lines = self.lines.wrapping_add(1);
    }
}

/// Executes requests, up to the next get.
pub(super) fn serve(peer: u32, r: &mut Responder, io: &mut In<'_, '_>) -> Fill {
    if r.domains.is_empty() {
        // Its session was not accepted yet.
        return Fill::Done;
    }
    while let Some(request) = r.queue.front_mut() {
        let result = match request {
            OneSidedPacket::Put { last, .. } => {
                let last = *last;
                r.tell_now |= matches!(request, OneSidedPacket::Put { bytes: PutBytes::At(bus), .. } if is_staged(*bus));
                if r.failed.is_none() {
                    match put(&r.domains, &mut r.landing, request, peer, io) {
                        Ok(Fill::Done) => {}
                        Ok(other) => return other,
                        Err(why) => r.failed = Some(why),
                    }
                }
                match (last, r.failed) {
                    (false, _) => None,
                    (true, failed) => {
                        r.failed = None;
                        Some(failed.unwrap_or((Status::Ok, 0)))
                    }
                }
            }
            OneSidedPacket::Atomic { .. } => {
                // A reader of its value sees what was put before it.
                if !r.landing.is_over(io.data.dma) {
                    return Fill::Later;
                }
                let updated = update(&r.domains, request, io.data.dma);
                Some(updated.map_or_else(|why| why, |before| (Status::Ok, before)))
            }
            // What it reads is sent, which the other part does.
            _ => break,
        };
        r.next();
        if let Some(end) = result {
            r.ended(end);
        }
        io.moved = true;
    }
    Fill::Done
}

/// Writes bytes of a put, and sets its signal behind the last of them. `Done`: all of its line.
fn put(
    domains: &[PdId],
    landing: &mut Landing,
    request: &mut OneSidedPacket,
    peer: u32,
    io: &mut In<'_, '_>,
) -> Result<Fill, (Status, u64)> {
    let OneSidedPacket::Put {
        va,
        rkey,
        bytes,
        len,
        left,
        last,
        signal,
    } = request
    else {
        return Ok(Fill::Done);
    };
    let dma = &mut *io.data.dma;
    let remote = dma.remote(domains, *rkey, *va, *left, Need::RemoteWrite);
    let buffer = remote.map_err(Fault::status)?;
    // Before any byte is written.
    let word = match signal {
        Some(s) => {
            let word = dma.remote_word(domains, *rkey, *va, s.index);
            let word = word.map_err(Fault::status)?;
            if !word.va.0.is_multiple_of(8) {
                return Err((Status::InvalidArgument, word.va.0));
            }
            Some((word, *s))
        }
        None => None,
    };
    match bytes {
        PutBytes::Inline(words) => {
            let mut b = [0; super::line::PUT_INLINE];
            for (to, word) in b.chunks_exact_mut(8).zip(&*words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            let written = dma.write(&buffer, 0, &b[..*len as usize]);
            written.map_err(Fault::status)?;
            landing.wrote();
            *len = 0;
        }
        // They were written before, and the signal has waited.
        PutBytes::At(_) if *len == 0 => {}
        PutBytes::At(bus) => {
            let n = u64::from(*len).min(*io.budget);
            if *len > 0 && n == 0 {
                return Ok(Fill::Budget);
            }
            // Also before: what the initiator has taken back may be another's by now.
            let from = io.link.resolve(*bus, n);
            let Some(from) = from.filter(|_| !io.link.is_revoked(peer)) else {
                return Ok(Fill::Broken);
            };
            let streaming = u64::from(*left) >= copy::streaming_bytes();
            from.put(dma, &buffer, 0, None, streaming)
                .map_err(Fault::status)?;
            landing.wrote();
            if io.link.is_revoked(peer) {
                return Ok(Fill::Broken);
            }
            *io.budget -= n;
            *bus += n;
            va.0 += n;
            *len -= n as u32;
            *left -= n as u32;
            if *len > 0 {
                return Ok(Fill::Budget);
            }
        }
    }
    if let (Some((word, s)), true) = (word, *last) {
        // It announces these bytes, and those of the puts before.
        if !landing.is_over(dma) {
            return Ok(Fill::Later);
        }
        let update = match s.set {
            true => WordUpdate::Set(s.value),
            false => WordUpdate::Add(s.value),
        };
        dma.update_word(&word, update)?;
    }
    Ok(Fill::Done)
}

fn update(
    domains: &[PdId],
    request: &OneSidedPacket,
    dma: &mut dyn DmaAccess,
) -> Result<u64, (Status, u64)> {
    let OneSidedPacket::Atomic {
        va,
        rkey,
        operand,
        swap,
    } = *request
    else {
        return Err((Status::BadDescriptor, 0));
    };
    let word = dma.remote(domains, rkey, va, 8, Need::RemoteAtomic);
    let word = word.map_err(Fault::status)?;
    let update = match swap {
        None => WordUpdate::Add(operand),
        Some(swap) => WordUpdate::CompareSwap {
            compare: operand,
            swap,
        },
    };
    dma.update_word(&word, update)
}

/// Sends bytes, or grants, of gets, and answers.
pub(super) fn pump(
    dst: u32,
    (r, left): (&mut Responder, &mut Vec<Held>),
    out: &mut Out<'_, '_>,
) -> Result<bool, Broken> {
    let mut again = false;
    while let Some(OneSidedPacket::Get { va, rkey, len }) = r.queue.front().copied() {
        if r.domains.is_empty() {
            break;
        }
        if r.get.is_none() && len > 0 {
            match out
                .data
                .dma
                .remote(&r.domains, rkey, va, len, Need::RemoteRead)
            {
                Ok(buffer) => {
                    out.data.dma.hold(buffer.region);
                    r.get = Some(Serving {
                        buffer,
                        done: 0,
                        piece: None,
                    });
                }
                Err(fault) => {
                    r.next();
                    r.ended(fault.status());
                    continue;
                }
            }
        } else if r.get.is_none() {
            let checked = out
                .data
                .dma
                .remote(&r.domains, rkey, va, 0, Need::RemoteRead);
            r.next();
            r.ended(checked.map_or_else(Fault::status, |_| (Status::Ok, 0)));
            continue;
        }
        match show(r, dst, out) {
            Ok(Progress::On) => {
                if let Some(get) = r.get.take() {
                    // Kept until the last grant was taken.
                    let region = Held::Region(get.buffer.region);
                    match r.spans_granted == r.spans_taken {
                        true => left.push(region),
                        false => r.granted.push_back((r.spans_granted, region)),
                    }
                }
                r.next();
                r.ended((Status::Ok, 0));
                out.moved = true;
            }
            Ok(Progress::Wait) => break,
            Ok(_) => {
                again = true;
                break;
            }
            Err(fault) => {
                let done = r.get.as_ref().map_or(0, |g| g.done);
                if let Some(get) = r.get.take() {
                    left.push(Held::Region(get.buffer.region));
                    let room = get.piece.map(|p| Held::Room(p.room));
                    left.extend(room);
                }
                if done > 0 {
                    return Err(Broken);
                }
                r.next();
                r.ended(fault.status());
            }
        }
    }
    if !r.may_tell(out.data.dma) {
        return Ok(true);
    }
    out.moved |= !r.answers.is_empty();
    if !r.tell(dst, out.link) {
        return Ok(true);
    }
    let untold = r.lines.wrapping_sub(r.lines_told);
    if untold >= WINDOW / 4 || (r.tell_now && untold > 0) {
        // Room for more lines of an operation that has not ended.
        let so_far = Answer {
            operations: r.operations,
            status: Status::Ok,
            detail: 0,
        };
        if !answer(&so_far, r.lines, dst, out.link) {
            return Ok(true);
        }
        out.moved = true;
        (r.lines_told, r.tell_now) = (r.lines, false);
    }
    // Requests behind a get.
    let more = !matches!(r.queue.front(), None | Some(OneSidedPacket::Get { .. }));
    Ok(again || (more && !r.domains.is_empty()))
}

fn answer(a: &Answer, lines: u32, dst: u32, link: &mut Link) -> bool {
    let packet = OneSidedPacket::Answer {
        status: a.status.code(),
        operations: a.operations,
        lines,
        detail: a.detail,
    };
    link.push_line(&packet.encode(dst))
}

/// Sends the next bytes of a get, or grants.
fn show(r: &mut Responder, dst: u32, out: &mut Out<'_, '_>) -> Result<Progress, Fault> {
    let Some(get) = &mut r.get else {
        return Ok(Progress::On);
    };
    let buffer = get.buffer;
    while get.done < buffer.len {
        let left = buffer.len - get.done;
        if buffer.len <= GET_INLINE {
            let n = (left as usize).min(INLINE);
            let mut bytes = [0; INLINE];
            let read = out
                .data
                .dma
                .read(&buffer, get.done.into(), &mut bytes[..n])?;
            let len = n as u8;
            let packet = OneSidedPacket::Data { len, bytes };
            if read == ReadStatus::Pending || !out.link.push_line(&packet.encode(dst)) {
                return Ok(Progress::Again);
            }
            get.done += n as u32;
            continue;
        }
        if r.spans_granted - r.spans_taken + SPANS as u64 > WINDOW.into() {
            return Ok(Progress::Wait);
        }
        let (mut spans, mut n, mut taken) = ([(0, 0); SPANS], 0, 0);
        let first = out.data.dma.span(&buffer, get.done.into())?;
        let mut room = None;
        if get.piece.is_none() && reaches(out, first.addr.value()) {
            while n < SPANS && taken < left {
                let span = out.data.dma.span(&buffer, u64::from(get.done + taken))?;
                let run = span.len.min(u64::from(left - taken)) as u32;
                spans[n] = (span.addr.value(), run);
                taken += run;
                n += 1;
            }
        } else {
            if get.piece.is_none() && r.granted.len() >= out.staging.depth as usize {
                return Ok(Progress::Wait);
            }
            let Some(piece) = Piece::read(&mut get.piece, &buffer, get.done, out)? else {
                return Ok(Progress::Again);
            };
            spans[0] = (piece.bus, piece.len);
            (n, taken) = (1, piece.len);
            room = Some(piece);
        }
        let packet = OneSidedPacket::Grant { n: n as u8, spans };
        if !out.link.push_line(&packet.encode(dst)) {
            if let Some(room) = room {
                out.give(room);
            }
            return Ok(Progress::Again);
        }
        out.moved = true;
        r.spans_granted += n as u64;
        get.done += taken;
        if let Some(room) = room {
            r.granted.push_back((r.spans_granted, Held::Room(room)));
        }
    }
    Ok(Progress::On)
}
