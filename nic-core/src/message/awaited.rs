//! User messages that go to receives which their sender has been told of.
//!
//! A receive of an *awaited* message names its sender and has its memory when it is posted, and the
//! sender is told at once (`Ready`). Its message goes straight there, however long, and nothing is
//! asked. Of receives with one tag the oldest is next. A message without such a receive leaves
//! early if a buffer of the receiver is the cheaper way, and not at all otherwise: its sender tries
//! again.
//!
//! A receive may be told while an early message for it is on its way. The receiver answers early
//! messages in order with what it tells, so the sender knows by then that the receive has its
//! message.

use ringbell_nic_abi::Status;

use super::context::Member;
use super::early::EarlyKind;
use super::head::{Envelope, Head};
use super::protocol::{Protocol, Traffic};
use super::unlinked::Late;
use super::work::{Key, Met, Receiving, RecvRequest, SendRequest, Sending};
use super::{Event, Messages};
use crate::dma::ReadStatus;
use crate::link::{Io, Pieces};

/// What became of a message that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// `Sent` follows unless the context ends before.
    Yes,
    /// Nothing: no receive is known, and it is too long to leave early.
    NotNow,
}

/// Posts a receive with a sender, one tag, and memory; `Received` follows unless the context ends
/// before. `false`: there are too many.
pub(crate) fn receive(m: &mut Messages, io: &mut Io<'_>, r: RecvRequest) -> bool {
    let (ctx, tag, room) = (r.ctx, r.tag.unwrap_or(0), r.pieces.len());
    let Some(from) = r.from else { return false };
    let Some(id) = m.recvs.insert(Receiving::new(r)) else {
        return false;
    };
    m.wait(io, id);
    let waits = m.recvs.get(id).is_some_and(|r| r.met.is_none());
    let rank = m.rank(ctx);
    if waits && from != rank {
        let ready = Envelope {
            from: rank,
            ctx,
            tag,
            len: room.min(u32::MAX.into()),
            hash: 0,
            send: id,
            credits: 0,
        };
        let ready = Head::Ready(ready);
        match m.contexts.get(&ctx).is_some_and(|c| c.lacks(from)) {
            true => m.unlinked.put((ctx, from), Some(Late::Head(ready))),
            false => m.head(ctx, from, ready),
        }
    }
    true
}

/// Whether a message of this length would leave.
pub(crate) fn may_leave(m: &mut Messages, ctx: u64, of: (u32, u64), len: u64) -> bool {
    let Some(c) = m.contexts.get(&ctx) else {
        return false;
    };
    if c.lacks(of.0) {
        m.unlinked.put((ctx, of.0), None);
        return false;
    }
    if of.0 == c.rank {
        return c.matching.has_posted(of);
    }
    c.matching.is_told(of) || leaves_early(&c.members[of.0 as usize], len)
}

/// Whether it leaves before its receive is known.
fn leaves_early(to: &Member, len: u64) -> bool {
    let credit = to.credits.ours > 0;
    let way = to.terms.map(|t| t.choose(len, Traffic::User, credit));
    matches!(way, Some(Protocol::Inline | Protocol::Eager))
}

/// Sends a message, if a receive is known or it may leave early.
pub(crate) fn send(m: &mut Messages, io: &mut Io<'_>, r: SendRequest) -> Begun {
    let Some(c) = m.contexts.get_mut(&r.ctx) else {
        return Begun::NotNow;
    };
    let (ctx, of, len, from) = (r.ctx, (r.to, r.tag), r.pieces.len(), c.rank);
    if r.to == from {
        return send_own(m, io, r);
    }
    if let Some(early) = c.matching.take_announced(of) {
        c.members[of.0 as usize].early -= 1;
        let told = m.earlies.remove(early);
        let (room, recv) = told.map_or((0, 0), |e| (e.len, e.send));
        match len <= room {
            true => {
                if let Some(c) = m.contexts.get_mut(&ctx) {
                    c.counts.written += 1;
                }
                let data = Head::Data {
                    ctx,
                    from,
                    recv,
                    len,
                };
                let key = Some(Key::Above(r.key));
                m.head_with((ctx, of.0), data, r.pieces, key, None);
            }
            false => refuse(m, r),
        }
        return Begun::Yes;
    }
    if !leaves_early(&c.members[of.0 as usize], len) {
        return Begun::NotNow;
    }
    c.matching.leave_early(r.key, of);
    m.send(r);
    Begun::Yes
}

/// Lets the receiver find out that a message is longer than its receive: both ends end with that.
fn refuse(m: &mut Messages, r: SendRequest) {
    let from = m.rank(r.ctx);
    let mut e = Envelope {
        from,
        ctx: r.ctx,
        tag: r.tag,
        len: r.pieces.len(),
        hash: 0,
        send: 0,
        credits: 0,
    };
    let (ctx, to, key) = (r.ctx, r.to, r.key);
    match m.sends.insert(Sending::new(r, true)) {
        Some(send) => {
            e.send = send;
            m.head(ctx, to, Head::Request(e));
        }
        None => m.full(key),
    }
}

/// A message of this member to itself goes to a receive that waits, by one copy.
fn send_own(m: &mut Messages, io: &mut Io<'_>, r: SendRequest) -> Begun {
    let Some(c) = m.contexts.get_mut(&r.ctx) else {
        return Begun::NotNow;
    };
    let rank = c.rank;
    let Some(recv) = c.matching.take_posted(rank, r.tag) else {
        return Begun::NotNow;
    };
    let len = r.pieces.len();
    let Some(to) = m.recvs.get(recv).map(|r| (r.pieces.clone(), r.key)) else {
        return Begun::NotNow;
    };
    let (into, key) = to;
    let failed = match len <= into.len() {
        true => copy(io, &r.pieces, &into),
        false => Some((Status::MessageTooLarge, len)),
    };
    m.recvs.remove(recv);
    let (status, detail) = failed.unwrap_or((Status::Ok, 0));
    m.events.push_back(Event::Received {
        key,
        status,
        from: rank,
        len: if failed.is_none() { len } else { 0 },
        detail: if failed.is_none() { r.tag } else { detail },
    });
    m.events.push_back(Event::Sent {
        key: r.key,
        status,
        detail,
    });
    Begun::Yes
}

/// Copies a message; how that failed.
fn copy(io: &mut Io<'_>, from: &Pieces, to: &Pieces) -> Option<(Status, u64)> {
    let len = from.len();
    let (from, to): (Vec<_>, Vec<_>) = (
        from.iter().copied().collect(),
        to.prefix(len).iter().copied().collect(),
    );
    let (mut i, mut j, mut a, mut b) = (0, 0, 0, 0);
    while let (Some(src), Some(dst)) = (from.get(i), to.get(j)) {
        let n = (src.len - a).min(dst.len - b);
        let (mut s, mut d) = (*src, *dst);
        (s.va.0, s.len) = (s.va.0 + u64::from(a), n);
        (d.va.0, d.len) = (d.va.0 + u64::from(b), n);
        match io.dma().copy(&d, &s, 0, n.into()) {
            Ok(ReadStatus::Done) => {}
            // Memory that the CPU cannot reach at once: the message is not there, and says so.
            Ok(ReadStatus::Pending) => return Some((Status::Unsupported, s.va.0)),
            Err(f) => return Some(f.status()),
        }
        (a, b) = (a + n, b + n);
        if a == src.len {
            (i, a) = (i + 1, 0);
        }
        if b == dst.len {
            (j, b) = (j + 1, 0);
        }
    }
    None
}

/// A member has told of a receive. `false`: a correct peer does not send that.
pub(super) fn on_ready(m: &mut Messages, e: Envelope) -> bool {
    let Some(c) = m.contexts.get_mut(&e.ctx) else {
        return true;
    };
    // Its message is on its way.
    c.matching.take_gone((e.from, e.tag)) || m.keep_early(e, EarlyKind::Receive(0)).is_some()
}

/// An early message has been answered: what is told from now on is for others.
pub(super) fn answered(m: &mut Messages, ctx: u64, key: u64) {
    if let Some(c) = m.contexts.get_mut(&ctx) {
        c.matching.forget_gone(key);
    }
}

/// The message of a receive that its sender was told of comes. `false`: there is no such receive,
/// or it is shorter.
pub(super) fn meet(m: &mut Messages, (ctx, from): (u64, u32), recv: u32, len: u64) -> bool {
    let Some(r) = m.recvs.get_mut(recv) else {
        return false;
    };
    let tag = r.tags.one();
    if r.from != Some(from) || r.met.is_some() || len > r.pieces.len() {
        return false;
    }
    r.met = Some(Met {
        from,
        tag,
        len,
        send: 0,
        arriving: false,
    });
    if let Some(c) = m.contexts.get_mut(&ctx) {
        c.matching.forget_posted(recv);
    }
    true
}
