//! The initiator's half: posted operations become request lines, and answers retire them.

use std::collections::VecDeque;

use ringbell_gtlb::Fault;
use ringbell_nic_abi::{GpuVa, Status};

use super::super::io::{Fill, In, Out, Progress};
use super::super::link::Link;
use super::super::packet::INLINE;
use super::line::{OneSidedPacket, PutBytes, PUT_INLINE};
use super::piece::{reaches, Broken, Held, Piece, WINDOW};
use crate::dma::ReadStatus;
use crate::transport::{Payload, RemoteOp, RemoteWork, TransportEvent};
use crate::types::{Buffer, ConnId, WorkToken};
use ringbell_gtlb::copy;

/// A posted operation that was not answered.
#[derive(Debug)]
struct Work {
    work: RemoteWork,
    /// Bytes of a put that were emitted.
    emitted: u32,
    /// The peer copies them out of the source itself.
    by_ref: bool,
    /// It has retired already: cancelled, failed, or a get with all its bytes.
    retired: bool,
}

/// A get that lacks bytes.
#[derive(Debug)]
struct Get {
    token: WorkToken,
    into: Buffer,
    done: u32,
    /// Its bytes are dropped.
    cancelled: bool,
}

/// Bytes for the oldest get.
#[derive(Debug)]
enum Pull {
    Data { len: u8, bytes: [u8; INLINE] },
    At { bus: u64, len: u32 },
}

/// See the module text.
#[derive(Debug, Default)]
pub(in super::super) struct Requester {
    /// Not answered, oldest first.
    works: VecDeque<Work>,
    /// The first that was not emitted as a whole.
    next: usize,
    /// The piece of it that is being read.
    piece: Option<Piece>,
    gets: VecDeque<Get>,
    pulls: VecDeque<Pull>,
    /// NIC memory that the peer reads, with the number of the line that names it.
    rooms: VecDeque<(u32, Held)>,
    /// Running totals.
    answered: u32,
    lines_sent: u32,
    lines_taken: u32,
    spans_pulled: u64,
    spans_told: u64,
}

impl Requester {
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.works.is_empty()
            && self.gets.is_empty()
            && self.pulls.is_empty()
            && self.spans_pulled == self.spans_told
    }

    /// Whether no operation is waiting for the peer.
    pub(in super::super) fn is_done(&self) -> bool {
        self.works.is_empty() && self.gets.is_empty()
    }

    pub(super) fn has_refs_out(&self) -> bool {
        self.lines_sent != self.lines_taken
    }

    pub(in super::super) fn post(&mut self, work: RemoteWork) {
        self.works.push_back(Work {
            work,
            emitted: 0,
            by_ref: false,
            retired: false,
        });
    }

    /// Whether operations wait to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.next < self.works.len()
    }

    /// Posts an operation and sends it at once, when its request has all of it and nothing waits
    /// before it.
    pub(in super::super) fn post_now(
        &mut self,
        work: &RemoteWork,
        dst: u32,
        link: &mut Link,
    ) -> bool {
        let Some(packet) = short(work).filter(|_| !self.has_unsent() && !self.is_full()) else {
            return false;
        };
        if !link.push_line(&packet.encode(dst)) {
            return false;
        }
        self.post(*work);
        self.sent_short();
        true
    }

    /// The peer must take lines first.
    fn is_full(&self) -> bool {
        self.lines_sent.wrapping_sub(self.lines_taken) >= WINDOW
    }

    /// The next operation has left in one line.
    fn sent_short(&mut self) {
        self.lines_sent = self.lines_sent.wrapping_add(1);
        self.next += 1;
    }

    /// Ends an operation without event. The bytes that the peer may still read; `None`: it is not
    /// here, or has retired.
    pub(in super::super) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let get = self.gets.iter_mut().find(|g| g.token == token);
        let pulled = get.is_some_and(|g| !std::mem::replace(&mut g.cancelled, true));
        let found = self.works.iter_mut().find(|w| w.work.token == token);
        match found {
            Some(w) if w.retired => None,
            Some(w) => {
                w.retired = true;
                Some(if w.by_ref { w.emitted.into() } else { 0 })
            }
            None => pulled.then_some(0),
        }
    }

    /// Retires everything.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
        left: &mut Vec<Held>,
    ) {
        // A get that was answered is listed with those that lack bytes alone.
        let asked = self.works.drain(..).filter(|w| !w.retired);
        let asked: Vec<_> = asked.map(|w| w.work.token).collect();
        let gets = self.gets.drain(..).filter(|g| !g.cancelled);
        let gets = gets.map(|g| g.token).filter(|t| !asked.contains(t));
        for token in gets.collect::<Vec<_>>().into_iter().chain(asked) {
            events.push_back(TransportEvent::RemoteDone {
                conn,
                token,
                status,
                bytes: 0,
                detail,
            });
        }
        left.extend(self.rooms.drain(..).map(|(_, room)| room));
        left.extend(self.piece.take().map(|p| Held::Room(p.room)));
        self.pulls.clear();
        self.next = 0;
        self.lines_taken = self.lines_sent;
        self.spans_told = self.spans_pulled;
    }

    /// Takes an answer. `false`: the peer broke the protocol.
    pub(super) fn answer(
        &mut self,
        conn: ConnId,
        packet: &OneSidedPacket,
        events: &mut VecDeque<TransportEvent>,
        left: &mut Vec<Held>,
    ) -> bool {
        let OneSidedPacket::Answer {
            status,
            operations,
            lines,
            detail,
        } = *packet
        else {
            return false;
        };
        let ended = operations.wrapping_sub(self.answered) as usize;
        let taken = lines.wrapping_sub(self.lines_taken);
        let sent = self.lines_sent.wrapping_sub(self.lines_taken);
        let Some(last) = Status::from_code(status).filter(|_| ended <= self.next && taken <= sent)
        else {
            return false;
        };
        (self.answered, self.lines_taken) = (operations, lines);
        while let Some((line, _)) = self.rooms.front() {
            if lines.wrapping_sub(*line) > WINDOW {
                break;
            }
            left.extend(self.rooms.pop_front().map(|(_, room)| room));
        }
        self.next -= ended;
        for i in 0..ended {
            let Some(w) = self.works.pop_front() else {
                return false;
            };
            let (status, detail) = match i + 1 == ended {
                true => (last, detail),
                false => (Status::Ok, 0),
            };
            let bytes = match w.work.op {
                RemoteOp::Put { payload, .. } => payload.len().into(),
                RemoteOp::Get { into } if into.len > 0 => {
                    if status == Status::Ok {
                        // It retires with its last byte.
                        continue;
                    }
                    // Nothing of it was granted, so that what comes belongs to the next.
                    self.gets.retain(|g| g.token != w.work.token);
                    0
                }
                RemoteOp::Get { .. } => 0,
                RemoteOp::FetchAdd { .. } | RemoteOp::CompareSwap { .. } => 8,
            };
            if !w.retired {
                events.push_back(TransportEvent::RemoteDone {
                    conn,
                    token: w.work.token,
                    status,
                    bytes: if status == Status::Ok { bytes } else { 0 },
                    detail,
                });
            }
        }
        true
    }

    /// Takes bytes, or grants, for the oldest get. `false`: there is none, or too many.
    pub(super) fn bytes(&mut self, packet: OneSidedPacket) -> bool {
        match packet {
            OneSidedPacket::Data { len, bytes } => self.pulls.push_back(Pull::Data { len, bytes }),
            OneSidedPacket::Grant { n, spans } => {
                let spans = spans[..n as usize].iter();
                self.pulls
                    .extend(spans.map(|&(bus, len)| Pull::At { bus, len }));
            }
            _ => return false,
        }
        !self.gets.is_empty() && self.pulls.len() <= 2 * WINDOW as usize
    }
}

/// Copies bytes of gets to their place.
pub(super) fn pull(id: ConnId, peer: u32, requester: &mut Requester, io: &mut In<'_, '_>) -> Fill {
    while let Some(pull) = requester.pulls.front_mut() {
        let Some(get) = requester.gets.front_mut() else {
            return Fill::Broken;
        };
        let (left, at) = (get.into.len - get.done, u64::from(get.done));
        let (n, whole, copied) = match pull {
            Pull::Data { len, .. } if u32::from(*len) > left => return Fill::Broken,
            Pull::Data { len, bytes } => {
                let bytes = &bytes[..usize::from(*len)];
                let copied = match get.cancelled {
                    true => Ok(()),
                    false => io.data.dma.write(&get.into, at, bytes),
                };
                (u32::from(*len), true, copied)
            }
            Pull::At { len, .. } if *len > left => return Fill::Broken,
            Pull::At { bus, len } => {
                if *io.budget == 0 {
                    return Fill::Budget;
                }
                let n = u64::from(*len).min(*io.budget);
                let copied = match io.link.resolve(*bus, n) {
                    _ if get.cancelled => Ok(()),
                    None => return Fill::Broken,
                    Some(from) => {
                        let streaming = u64::from(get.into.len) >= copy::streaming_bytes();
                        from.put(io.data.dma, &get.into, at, None, streaming)
                    }
                };
                if io.link.is_revoked(peer) {
                    return Fill::Broken;
                }
                *io.budget -= n;
                *bus += n;
                *len -= n as u32;
                (n as u32, *len == 0, copied)
            }
        };
        io.moved = true;
        if whole {
            let span = matches!(requester.pulls.pop_front(), Some(Pull::At { .. }));
            requester.spans_pulled += u64::from(span);
        }
        let Some(get) = requester.gets.front_mut() else {
            return Fill::Broken;
        };
        get.done += n;
        let end = match copied {
            Ok(()) if get.done == get.into.len => Some((Status::Ok, 0)),
            Ok(()) => None,
            Err(fault) => Some(fault.status()),
        };
        if let Some((status, detail)) = end {
            let token = get.token;
            if !std::mem::replace(&mut get.cancelled, true) {
                io.events.push_back(TransportEvent::RemoteDone {
                    conn: id,
                    token,
                    status,
                    bytes: get.done.into(),
                    detail,
                });
            }
            // Its answer retires nothing then.
            let asked = requester.works.iter_mut().find(|w| w.work.token == token);
            if let Some(w) = asked {
                w.retired = true;
            }
        }
        if requester.gets.front().is_some_and(|g| g.done == g.into.len) {
            requester.gets.pop_front();
        }
    }
    Fill::Done
}

/// Sends what was taken, and requests.
pub(super) fn pump(
    id: ConnId,
    dst: u32,
    (r, left): (&mut Requester, &mut Vec<Held>),
    out: &mut Out<'_, '_>,
) -> Result<bool, Broken> {
    let taken = r.spans_pulled - r.spans_told;
    if taken > 0 && (r.pulls.is_empty() || taken >= u64::from(WINDOW / 4)) {
        let packet = OneSidedPacket::Taken {
            spans: r.spans_pulled,
        };
        if !out.link.push_line(&packet.encode(dst)) {
            return Ok(true);
        }
        r.spans_told = r.spans_pulled;
        out.moved = true;
    }
    while r.next < r.works.len() {
        if r.works[r.next].retired && r.works[r.next].emitted == 0 {
            // Cancelled before it left.
            r.works.remove(r.next);
            continue;
        }
        if r.is_full() {
            return Ok(false);
        }
        match emit(r, dst, out) {
            Ok(Progress::On) => {}
            Ok(Progress::Wait) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(fault) => {
                let (status, detail) = fault.status();
                let w = &mut r.works[r.next];
                if !std::mem::replace(&mut w.retired, true) {
                    out.events.push_back(TransportEvent::RemoteDone {
                        conn: id,
                        token: w.work.token,
                        status,
                        bytes: 0,
                        detail,
                    });
                }
                let room = r.piece.take().map(|p| Held::Room(p.room));
                left.extend(room);
                if w.emitted > 0 {
                    // The peer waits for the rest of it.
                    return Err(Broken);
                }
                r.works.remove(r.next);
            }
        }
    }
    Ok(false)
}

/// Emits a line of the next operation.
fn emit(r: &mut Requester, dst: u32, out: &mut Out<'_, '_>) -> Result<Progress, Fault> {
    let w = &mut r.works[r.next];
    let (va, rkey) = (w.work.va, w.work.rkey);
    let packet = match w.work.op {
        RemoteOp::Get { into } => OneSidedPacket::Get {
            va,
            rkey,
            len: into.len,
        },
        RemoteOp::Put {
            payload: Payload::Memory(buffer),
            signal,
        } => {
            let left = buffer.len - w.emitted;
            let inline = left as usize <= PUT_INLINE && w.emitted == 0;
            let (mut staged, mut by_ref) = (None, false);
            let (bytes, len) = match left {
                0 => (inline_words(&[]), 0),
                _ if inline => {
                    let mut bytes = [0; PUT_INLINE];
                    let to = &mut bytes[..left as usize];
                    if out.data.dma.read(&buffer, 0, to)? == ReadStatus::Pending {
                        return Ok(Progress::Again);
                    }
                    (inline_words(&bytes), left)
                }
                _ => {
                    let span = out
                        .data
                        .dma
                        .span(&buffer, w.emitted.into())?
                        .prefix(left.into());
                    let bus = span.addr.value();
                    if r.piece.is_none() && reaches(out, bus) {
                        by_ref = true;
                        (PutBytes::At(bus), span.len as u32)
                    } else {
                        let full = r.rooms.len() >= out.staging.depth as usize;
                        if full && r.piece.is_none() {
                            return Ok(Progress::Wait);
                        }
                        let Some(room) = Piece::read(&mut r.piece, &buffer, w.emitted, out)? else {
                            return Ok(Progress::Again);
                        };
                        let (bus, len) = (room.bus, room.len);
                        staged = Some(room);
                        (PutBytes::At(bus), len)
                    }
                }
            };
            let packet = OneSidedPacket::Put {
                va: GpuVa(va.0.wrapping_add(w.emitted.into())),
                rkey,
                bytes,
                len,
                left,
                last: len == left,
                signal,
            };
            if !out.link.push_line(&packet.encode(dst)) {
                if let Some(room) = staged {
                    // It is read again.
                    out.give(room);
                }
                return Ok(Progress::Again);
            }
            r.lines_sent = r.lines_sent.wrapping_add(1);
            w.emitted += len;
            w.by_ref |= by_ref;
            out.moved = true;
            if let Some(room) = staged {
                r.rooms.push_back((r.lines_sent, Held::Room(room)));
            }
            r.next += usize::from(len == left);
            return Ok(Progress::On);
        }
        _ => {
            let sent = short(&w.work).is_some_and(|p| out.link.push_line(&p.encode(dst)));
            if !sent {
                return Ok(Progress::Again);
            }
            out.moved = true;
            r.sent_short();
            return Ok(Progress::On);
        }
    };
    if !out.link.push_line(&packet.encode(dst)) {
        return Ok(Progress::Again);
    }
    r.lines_sent = r.lines_sent.wrapping_add(1);
    out.moved = true;
    if let RemoteOp::Get { into } = w.work.op {
        if into.len > 0 {
            r.gets.push_back(Get {
                token: w.work.token,
                into,
                done: 0,
                cancelled: w.retired,
            });
        }
    }
    r.next += 1;
    Ok(Progress::On)
}

/// The request of an operation that needs no memory of this side.
fn short(work: &RemoteWork) -> Option<OneSidedPacket> {
    let (va, rkey) = (work.va, work.rkey);
    let (operand, swap) = match work.op {
        RemoteOp::Put {
            payload: Payload::Inline { bytes, len },
            signal,
        } => {
            let (bytes, len) = (inline_words(&bytes[..len.into()]), len.into());
            return Some(OneSidedPacket::Put {
                va,
                rkey,
                bytes,
                len,
                left: len,
                last: true,
                signal,
            });
        }
        RemoteOp::FetchAdd { addend } => (addend, None),
        RemoteOp::CompareSwap { compare, swap } => (compare, Some(swap)),
        _ => return None,
    };
    Some(OneSidedPacket::Atomic {
        va,
        rkey,
        operand,
        swap,
    })
}

fn inline_words(bytes: &[u8]) -> PutBytes {
    let mut padded = [0; PUT_INLINE];
    padded[..bytes.len()].copy_from_slice(bytes);
    PutBytes::Inline(std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&padded[i * 8..][..8]);
        u64::from_le_bytes(word)
    }))
}
