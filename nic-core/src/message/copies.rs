//! Messages to several members at once, by frames that the network copies on their way (ADR 82).
//!
//! One message for all: the sender waits until each member has announced its receive, then sends
//! the bytes once, in frames to all. A member writes them into its receive, in order, and says
//! [`Copied`](Head::Copied) when it has the last. The network loses nothing while it is whole. A
//! member that lacks frames, because a wire or a NIC on the way died, is asked
//! ([`AllSent`](Head::AllSent)) until it has them or has stood for a while; then it asks for the
//! message alone ([`Singly`](Head::Singly)), and it is sent as any other.
//!
//! The questions come over the member's link, which is reliable, so no frame must arrive for a
//! message to end. A member that is gone ends the context by the layer above, as with any message.

use std::time::Duration;

use ringbell_nic_abi::Status;

use super::copied::{Incoming, Outgoing, To};
use super::head::Head;
use super::work::Key;
use super::{Fields, Messages, SendRequest};
use crate::dma::{DmaAccess as _, ReadStatus};
use crate::link::{Io, Pieces, HEAD};
use crate::types::{Buffer, NicTime};

/// Kind of the heads of frames; those of links have others.
const FRAME: u8 = 17;
/// Time between two questions to members that have not said that they have all.
const ASK: Duration = Duration::from_millis(100);
/// Frames that one step sends at most.
const BUDGET: usize = 64;

/// Sends one message to several members over a network that copies frames to all; `Sent`
/// follows for each. One that its receivers do not announce goes to each alone.
pub(crate) fn send_to_several(m: &mut Messages, requests: Vec<SendRequest>) {
    let first = requests.first();
    let Some((ctx, tag, pieces)) = first.map(|r| (r.ctx, r.tag, r.pieces.clone())) else {
        return;
    };
    let is_announced = |r: &SendRequest| {
        let terms = m.terms(ctx, r.to);
        r.tag == tag && terms.is_some_and(|t| t.announces(pieces.len()))
    };
    let all = requests.iter().all(is_announced);
    let new = Outgoing {
        ctx,
        tag,
        pieces,
        members: Vec::new(),
        sent: 0,
        ask_at: None,
    };
    let id = all.then(|| m.copies.outgoing.insert(new)).flatten();
    let Some(id) = id else {
        return requests.into_iter().for_each(|r| m.send(r));
    };
    if let Some(c) = m.contexts.get_mut(&ctx) {
        c.counts.written += requests.len() as u64;
        c.counts.copied += requests.len() as u64;
    }
    // All members before any meets its receive: the last one to meet begins.
    let mut members = Vec::new();
    for r in requests {
        let (to, hash) = (r.to, r.hash);
        if let Some(send) = m.insert(r, Some(id)) {
            members.push((to, send, hash));
        }
    }
    if let Some(o) = m.copies.outgoing.get_mut(id) {
        o.members = members
            .iter()
            .map(|(rank, send, _)| To {
                rank: *rank,
                send: *send,
                announced: None,
            })
            .collect();
    }
    for (to, send, hash) in members {
        m.await_receive((ctx, (to, tag)), send, hash);
    }
}

/// Whether frames of a message to several can leave.
#[inline]
pub(crate) fn has_ready_copies(m: &Messages) -> bool {
    m.copies.has_ready()
}

/// Takes what has come by copies, sends what is ready, and asks where an answer is late.
/// Returns whether anything moved.
pub(crate) fn step_copies(m: &mut Messages, io: &mut Io<'_>) -> bool {
    let mut moved = false;
    while let Some(frame) = io.net.next_copy() {
        take_frame(m, io, &frame);
        io.net.copy_is_read(frame);
        moved = true;
    }
    let mut sent = 0;
    while let Some(id) = m.copies.ready.front().copied() {
        if sent == BUDGET || !send_frame(m, io, id) {
            break;
        }
        sent += 1;
    }
    if sent > 0 {
        io.net.flush_to_all(io.now);
    }
    if m.copies.next_timer().is_some_and(|t| t <= io.now) {
        ask(m, io.now);
        moved = true;
    }
    moved || sent > 0
}

/// Sends the next frame of a message. `false`: there is no room.
fn send_frame(m: &mut Messages, io: &mut Io<'_>, id: u32) -> bool {
    let Some(o) = m.copies.outgoing.get_mut(id) else {
        m.copies.ready.pop_front();
        return true;
    };
    let rank = m.contexts.get(&o.ctx).map_or(0, |c| c.rank);
    let len = o.pieces.len();
    let head = Fields::new(FRAME, rank, id, o.ctx).with(o.tag, len, o.sent as u32, 0);
    let mut dma = crate::dma::Dma {
        mmu: io.mmu,
        state: io.dma,
    };
    let filled = io.net.send_to_all(io.now, |room| {
        let (head_room, body) = room.split_at_mut(HEAD);
        head_room.copy_from_slice(&head.encode());
        let n = body.len().min((len - o.sent) as usize);
        read(&mut dma, &o.pieces, o.sent, &mut body[..n]).map(|()| HEAD + n)
    });
    match filled {
        None => return false,
        Some(Ok(frame)) => o.sent += (frame - HEAD) as u64,
        // Memory that cannot be read now: each member gets its own, by a path that can wait.
        Some(Err(NotNow)) => o.sent = len,
    }
    if o.sent == len {
        o.ask_at = Some(io.now.plus(ASK));
        m.copies.ready.pop_front();
    }
    true
}

/// Asks the members that have not said that they have all.
fn ask(m: &mut Messages, now: NicTime) {
    let mut heads = Vec::new();
    for id in m
        .copies
        .outgoing
        .ids(|o| o.ask_at.is_some_and(|t| t <= now))
    {
        let Some(o) = m.copies.outgoing.get_mut(id) else {
            continue;
        };
        o.ask_at = Some(now.plus(ASK));
        let (ctx, tag) = (o.ctx, o.tag);
        heads.extend(o.members.iter().map(|to| (ctx, tag, to.rank, id)));
    }
    for (ctx, tag, to, send) in heads {
        let from = m.rank(ctx);
        let head = Head::AllSent {
            ctx,
            from,
            tag,
            send,
        };
        m.head(ctx, to, head);
    }
}

/// Takes a frame. One that is not the next of a receive's message is dropped.
fn take_frame(m: &mut Messages, io: &mut Io<'_>, frame: &[u8]) {
    let Some((head, body)) = frame.split_first_chunk::<HEAD>() else {
        return;
    };
    let Ok(f) = Fields::decode(head) else { return };
    let (ctx, from, at) = (f.ctx, f.from, u64::from(f.lo));
    let c = m.contexts.get(&ctx).filter(|c| !c.ended);
    let member = c.and_then(|c| c.members.get(from as usize));
    let is_known = member.is_some_and(|m| m.link.is_some() && m.terms.is_some());
    if f.kind != FRAME || !is_known || body.is_empty() {
        return;
    }
    let of = (ctx, from, f.a);
    if at == 0 {
        expect(m, of, f.tag);
    }
    let Some(i) = m.copies.incoming.get_mut(&of) else {
        return;
    };
    let recv = i.recv;
    let Some(r) = m.recvs.get(recv).filter(|r| r.ctx == ctx) else {
        m.copies.incoming.remove(&of);
        return;
    };
    // What the sender has not checked: the network's last bytes are padding.
    let len = f.len.min(r.pieces.len());
    let n = (body.len() as u64).min(len.saturating_sub(at));
    if i.singly || i.next != at || f.len != r.pieces.len() {
        return;
    }
    let written = write(&mut io.dma(), &r.pieces, at, &body[..n as usize]);
    i.next += n;
    if let Err(fault) = written {
        end_copies(m, io, of, recv, Some(fault));
    } else if i.next == len {
        end_copies(m, io, of, recv, None);
    }
}

/// A receive has all of its message, or its memory cannot be written.
fn end_copies(
    m: &mut Messages,
    io: &mut Io<'_>,
    of: (u64, u32, u32),
    recv: u32,
    failed: Option<(Status, u64)>,
) {
    m.copies.incoming.remove(&of);
    m.end_exposure(io, recv);
    m.received(recv, failed);
    let (ctx, to, send) = of;
    let from = m.rank(ctx);
    m.head(ctx, to, Head::Copied { ctx, from, send });
}

/// Expects frames of a message, if this member has announced a receive for it.
fn expect(m: &mut Messages, of: (u64, u32, u32), tag: u64) {
    if m.copies.incoming.contains_key(&of) {
        return;
    }
    let (ctx, from, _) = of;
    if let Some(recv) = announced_receive(m, ctx, from, tag) {
        let new = Incoming {
            recv,
            next: 0,
            asked: None,
            singly: false,
        };
        m.copies.incoming.insert(of, new);
    }
}

/// The receive that this member has announced for a message, and whose message has not come.
fn announced_receive(m: &Messages, ctx: u64, from: u32, tag: u64) -> Option<u32> {
    let waits = |r: &super::work::Receiving| {
        let met = r
            .met
            .filter(|m| !m.arriving && (m.from, m.tag) == (from, tag));
        r.ctx == ctx && !r.user && met.is_some()
    };
    m.recvs.ids(waits).first().copied()
}

/// A member has all of a message to several.
pub(super) fn on_copied(m: &mut Messages, ctx: u64, from: u32, send: u32) {
    if let Some(to) = take_member(m, ctx, from, send) {
        m.sent(to.send, Status::Ok, 0);
    }
}

/// A member wants its message alone.
pub(super) fn on_singly(m: &mut Messages, ctx: u64, from: u32, send: u32) {
    let Some(to) = take_member(m, ctx, from, send) else {
        return;
    };
    let (Some(s), Some((recv, key))) = (m.sends.remove(to.send), to.announced) else {
        return;
    };
    let data = Head::Data {
        ctx,
        from: m.rank(ctx),
        recv,
        len: s.pieces.len(),
    };
    tracing::debug!(ctx, to = from, "copies are missing: the message goes alone");
    let write = (key != 0).then_some(key);
    m.head_with((ctx, from), data, s.pieces, Some(Key::Above(s.key)), write);
}

/// Takes a member out of a message all of whose frames have left.
fn take_member(m: &mut Messages, ctx: u64, from: u32, send: u32) -> Option<To> {
    let o = m.copies.outgoing.get_mut(send)?;
    if o.ctx != ctx || o.sent != o.pieces.len() {
        return None;
    }
    let at = o.members.iter().position(|to| to.rank == from)?;
    let to = o.members.swap_remove(at);
    if o.members.is_empty() {
        m.copies.outgoing.remove(send);
    }
    Some(to)
}

/// The sender of a message to several asks whether all of it has come.
pub(super) fn on_all_sent(m: &mut Messages, ctx: u64, from: u32, tag: u64, send: u32) {
    let of = (ctx, from, send);
    expect(m, of, tag);
    let Some(i) = m.copies.incoming.get_mut(&of) else {
        // All has come: the answer is on its way.
        return;
    };
    let stands = i.asked == Some(i.next);
    i.asked = Some(i.next);
    if stands && !i.singly {
        i.singly = true;
        let head = Head::Singly {
            ctx,
            from: m.rank(ctx),
            send,
        };
        m.head(ctx, from, head);
    }
}

/// When a member is asked next whether it has all.
pub(crate) fn copies_timer(m: &Messages) -> Option<NicTime> {
    m.copies.next_timer()
}

/// Memory that cannot be read at once.
struct NotNow;

/// Each part of a range of a message's memory: its buffer, where it begins there, and its bytes.
fn parts(pieces: &Pieces, at: u64, len: u64) -> impl Iterator<Item = (&Buffer, u64, u64)> {
    let mut start = 0;
    pieces.iter().filter_map(move |b| {
        let (first, end) = (start, start + u64::from(b.len));
        start = end;
        let (from, to) = (at.max(first), (at + len).min(end));
        (from < to).then(|| (b, from - first, to - from))
    })
}

fn read(
    dma: &mut crate::dma::Dma<'_>,
    pieces: &Pieces,
    at: u64,
    mut to: &mut [u8],
) -> Result<(), NotNow> {
    for (buffer, offset, n) in parts(pieces, at, to.len() as u64) {
        let (now, rest) = to.split_at_mut(n as usize);
        match dma.read(buffer, offset, now) {
            Ok(ReadStatus::Done) => to = rest,
            _ => return Err(NotNow),
        }
    }
    Ok(())
}

fn write(
    dma: &mut crate::dma::Dma<'_>,
    pieces: &Pieces,
    at: u64,
    mut from: &[u8],
) -> Result<(), (Status, u64)> {
    for (buffer, offset, n) in parts(pieces, at, from.len() as u64) {
        let (now, rest) = from.split_at(n as usize);
        dma.write(buffer, offset, now).map_err(|f| f.status())?;
        from = rest;
    }
    Ok(())
}
