//! Receives of user messages that get their memory when they have met a message.
//!
//! A *claim* stands among the receives in its order. When it has met a message, its sender, tag and
//! length are told; the payload stays in its buffer, or with its sender, until the layer above
//! [reads](read) it or gives it memory ([`collect`]). So a receive can be as long as its message,
//! and a probe that takes its message out is a claim that is made only if it meets one at once.
//!
//! Messages of this member to itself are copies: claims meet those that [`send_own`] has kept.

use ringbell_nic_abi::Status;

use super::early::{Early, EarlyKind, Kept, MAX_EARLY};
use super::head::{Envelope, Head};
use super::matching::Wanted;
use super::work::{Claim, Receiving, RecvRequest};
use super::{Event, Messages};
use crate::dma::DmaAccess;
use crate::link::{Io, Pieces};

/// A message that a claim has met, or would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) from: u32,
    pub(crate) tag: u64,
    pub(crate) len: u64,
}

/// Makes a claim; `Met` follows unless the context ends before, or the claim. Returns its number;
/// `None`: there are too many receives.
pub(crate) fn post(
    m: &mut Messages,
    io: &mut Io<'_>,
    ctx: u64,
    wanted: Wanted,
    key: u64,
) -> Option<u32> {
    let request = RecvRequest {
        ctx,
        from: wanted.from,
        tag: None,
        hash: 0,
        pieces: Pieces::default(),
        in_use: false,
        key,
    };
    let id = m.recvs.insert(Receiving {
        tags: wanted.tags,
        claim: Some(Claim::Waits),
        ..Receiving::new(request)
    })?;
    m.wait(io, id);
    Some(id)
}

/// The message that a claim would meet at once.
pub(crate) fn look(m: &Messages, ctx: u64, wanted: &Wanted) -> Option<Found> {
    let early = m.contexts.get(&ctx)?.matching.look_early_user(wanted)?;
    m.earlies.get(early).map(found_of)
}

/// Whether a claim has met nothing.
pub(crate) fn waits(m: &Messages, claim: u32) -> bool {
    let claim = m.recvs.get(claim).and_then(|r| r.claim);
    claim == Some(Claim::Waits)
}

/// Copies the payload of a met message, as much as there is room for, and ends the claim. `None`:
/// it is not here.
pub(crate) fn read(m: &mut Messages, io: &Io<'_>, claim: u32, into: &mut [u8]) -> Option<u64> {
    let early = met(m, claim)?;
    let e = m.earlies.get(early)?;
    let n = e.len.min(into.len() as u64);
    let into = &mut into[..n as usize];
    match (e.kind, &e.kept) {
        (EarlyKind::Kept, Some(kept)) => into.copy_from_slice(&kept.bytes[..n as usize]),
        (
            EarlyKind::Buffered {
                ready: true,
                buffer,
            },
            _,
        ) => {
            let c = m.contexts.get(&e.ctx)?;
            if let Some(at) = buffer.and_then(|b| c.buffer_at(e.from, b)) {
                io.dma.nic_memory.read(at, into);
            }
        }
        _ => return None,
    }
    m.recvs.remove(claim);
    m.free_early(early);
    Some(n)
}

/// Gives a met message its memory, which has room for all of it; `Received` follows. `false`: no
/// message was met, or there is less room.
pub(crate) fn collect(m: &mut Messages, io: &mut Io<'_>, claim: u32, pieces: Pieces) -> bool {
    let Some(early) = met(m, claim) else {
        return false;
    };
    let (Some(r), Some(e)) = (m.recvs.get_mut(claim), m.earlies.get_mut(early)) else {
        return false;
    };
    if pieces.len() < e.len {
        return false;
    }
    (r.pieces, r.claim) = (pieces, None);
    let message = envelope(e);
    match e.kind {
        EarlyKind::Requested => {
            m.earlies.remove(early);
            m.clear(claim, &message);
        }
        EarlyKind::Buffered { ready, .. } => {
            // Otherwise the end of its arrival copies it.
            m.set_met(claim, &message);
            if ready {
                m.copy_out(io, claim, early);
            }
        }
        EarlyKind::Kept => {
            m.set_met(claim, &message);
            let kept = m.earlies.remove(early).and_then(|e| e.kept);
            let failed = kept.and_then(|k| write(m, io, claim, &k.bytes));
            m.received(claim, failed);
        }
        EarlyKind::Own | EarlyKind::Receive(_) => {}
    }
    true
}

/// Stores bytes in the memory of a receive; how that failed.
fn write(m: &Messages, io: &mut Io<'_>, recv: u32, bytes: &[u8]) -> Option<(Status, u64)> {
    let mut rest = bytes;
    for piece in m.recvs.get(recv)?.pieces.prefix(bytes.len() as u64).iter() {
        let (now, later) = rest.split_at(piece.len as usize);
        if let Err(f) = io.dma().write(piece, 0, now) {
            return Some(f.status());
        }
        rest = later;
    }
    None
}

/// Ends a claim. A message that it has met is dropped, and its sender, if that waits, told so.
pub(crate) fn forget(m: &mut Messages, claim: u32) {
    let Some(r) = m.recvs.remove(claim) else {
        return;
    };
    match r.claim {
        Some(Claim::Met(early)) => {
            let Some(e) = m.earlies.get(early) else {
                return;
            };
            let (message, kind) = (envelope(e), e.kind);
            if kind == EarlyKind::Requested {
                let refused = Head::Refused {
                    ctx: message.ctx,
                    from: m.rank(message.ctx),
                    send: message.send,
                    status: Status::Cancelled,
                    detail: 0,
                };
                m.head(message.ctx, message.from, refused);
            }
            // One that is still arriving is dropped at its end: the claim is gone then.
            if !matches!(kind, EarlyKind::Buffered { ready: false, .. }) {
                m.free_early(early);
            }
        }
        _ => {
            if let Some(c) = m.contexts.get_mut(&r.ctx) {
                c.matching.forget_posted(claim);
            }
        }
    }
}

/// A message of this member to itself. With a key `Sent` follows when a claim has met it. `false`:
/// too many wait.
pub(crate) fn send_own(
    m: &mut Messages,
    ctx: u64,
    tag: u64,
    bytes: Vec<u8>,
    key: Option<u64>,
) -> bool {
    let Some(c) = m.contexts.get_mut(&ctx) else {
        return false;
    };
    let from = c.rank;
    let posted = c.matching.take_posted(from, tag);
    if posted.is_none() && c.members[from as usize].early >= MAX_EARLY {
        return false;
    }
    let early = Early {
        ctx,
        from,
        tag,
        len: bytes.len() as u64,
        hash: 0,
        send: 0,
        kind: EarlyKind::Kept,
        claimed: None,
        kept: Some(Box::new(Kept { bytes, key })),
    };
    let Some(id) = m.earlies.insert(early) else {
        return false;
    };
    match posted {
        Some(claim) => found(m, claim, id),
        None => {
            c.members[from as usize].early += 1;
            c.counts.unexpected += 1;
            c.matching.keep_early(id, (from, tag));
        }
    }
    true
}

/// A message has come for a claim, and is kept for it: its number.
pub(super) fn hold(m: &mut Messages, claim: u32, e: Envelope, kind: EarlyKind) -> Option<u32> {
    let id = m.earlies.insert(Early::new(&e, kind))?;
    found(m, claim, id);
    Some(id)
}

/// A claim has met a message that is kept here.
pub(super) fn found(m: &mut Messages, claim: u32, early: u32) {
    let (Some(r), Some(e)) = (m.recvs.get_mut(claim), m.earlies.get_mut(early)) else {
        return;
    };
    r.claim = Some(Claim::Met(early));
    e.claimed = Some(claim);
    let sent = e.kept.as_ref().and_then(|k| k.key);
    if !matches!(e.kind, EarlyKind::Buffered { ready: false, .. }) {
        tell(m, claim, early);
    }
    m.events.extend(sent.map(|key| Event::Sent {
        key,
        status: Status::Ok,
        detail: 0,
    }));
}

/// Tells of the message that a claim has met: its payload is here, or waits at its sender.
pub(super) fn tell(m: &mut Messages, claim: u32, early: u32) {
    let (Some(r), Some(e)) = (m.recvs.get(claim), m.earlies.get(early)) else {
        return;
    };
    m.events.push_back(Event::Met {
        key: r.key,
        from: e.from,
        tag: e.tag,
        len: e.len,
        here: e.kind != EarlyKind::Requested,
    });
}

/// The sender has taken back what a claim has met.
pub(super) fn lose(m: &mut Messages, claim: u32, early: u32) {
    m.earlies.remove(early);
    if let Some(r) = m.recvs.remove(claim) {
        m.events.push_back(Event::Received {
            key: r.key,
            status: Status::Cancelled,
            from: 0,
            len: 0,
            detail: 0,
        });
    }
}

/// The early message that a claim has met.
fn met(m: &Messages, claim: u32) -> Option<u32> {
    match m.recvs.get(claim)?.claim? {
        Claim::Met(early) => Some(early),
        Claim::Waits => None,
    }
}

fn found_of(e: &Early) -> Found {
    Found {
        from: e.from,
        tag: e.tag,
        len: e.len,
    }
}

fn envelope(e: &Early) -> Envelope {
    Envelope {
        from: e.from,
        ctx: e.ctx,
        tag: e.tag,
        len: e.len,
        hash: e.hash,
        send: e.send,
        credits: 0,
    }
}
