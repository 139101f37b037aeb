//! Receives: posted, announced to their senders, met by messages, ended.
//!
//! Messages of a member to itself are matched like those of others, but sent over no link. One that
//! has met its receive is reported with the memory of both; the layer above copies it.

use ringbell_nic_abi::Status;

use super::claim;
use super::early::{Early, EarlyKind};
use super::head::{Envelope, Head};
use super::matching::Tags;
use super::unlinked::Late;
use super::work::{Claim, Met, Own, Receiving, RecvRequest};
use super::{Event, Messages};
use crate::engine::Direction;
use crate::link::{Io, EXPOSED_TOKEN, LINK_TOKEN};
use crate::transport::RecvWork;
use crate::types::WorkToken;

impl Messages {
    /// This member's rank in a context.
    pub(super) fn rank(&self, ctx: u64) -> u32 {
        self.contexts.get(&ctx).map_or(0, |c| c.rank)
    }

    /// A part of a message to several has met its receive. `false`: it is part of none.
    pub(super) fn part_has_met(&mut self, send: u32, recv: u32, key: u32) -> bool {
        let Some(id) = self.sends.get(send).and_then(|s| s.part_of) else {
            return false;
        };
        let Some(o) = self.copies.outgoing.get_mut(id) else {
            return false;
        };
        for to in o.members.iter_mut().filter(|to| to.send == send) {
            to.announced = Some((recv, key));
        }
        if o.members.iter().all(|to| to.announced.is_some()) {
            self.copies.ready.push_back(id);
        }
        true
    }

    /// Posts a receive; `Received` follows unless the context ends before. Returns its number;
    /// `None`: there are too many.
    pub(crate) fn recv(&mut self, io: &mut Io<'_>, r: RecvRequest) -> Option<u32> {
        let id = self.recvs.insert(Receiving::new(r))?;
        self.wait(io, id);
        Some(id)
    }

    /// Whether a receive has no memory yet.
    pub(super) fn is_claim(&self, recv: u32) -> bool {
        self.recvs.get(recv).is_some_and(|r| r.claim.is_some())
    }

    /// A receive without a message meets one that is there, or waits.
    pub(super) fn wait(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(r) = self.recvs.get(id) else { return };
        let Some(c) = self.contexts.get_mut(&r.ctx) else {
            return;
        };
        if let Some(from) = r.from.filter(|from| c.lacks(*from)) {
            // Its message may wait for a link, and needs to find this receive announced.
            let late = (!r.user).then_some(Late::Receive(id));
            self.unlinked.put((r.ctx, from), late);
        }
        let matching = &mut c.matching;
        if r.user {
            let wanted = r.wanted();
            match matching.take_early_user(&wanted) {
                Some(e) => self.meet(io, id, e),
                None => matching.post_user(id, wanted),
            }
        } else if let (Some(from), Tags::One(tag)) = (r.from, r.tags) {
            if let Some(e) = matching.take_early((from, tag)) {
                return self.meet(io, id, e);
            }
            match c.announces(from, r.pieces.len()) {
                Some(link) => self.announce(io, id, (from, tag), link),
                None => c.matching.post(id, (from, tag)),
            }
        }
    }

    /// A link to the sender of a receive that waits has come: announces it, if that is the way.
    fn announce_late(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(r) = self.recvs.get(id).filter(|r| r.met.is_none()) else {
            return;
        };
        let (Some(from), Tags::One(tag)) = (r.from, r.tags) else {
            return;
        };
        let Some(c) = self.contexts.get_mut(&r.ctx) else {
            return;
        };
        if let Some(link) = c.announces(from, r.pieces.len()) {
            c.matching.forget_posted(id);
            self.announce(io, id, (from, tag), link);
        }
    }

    /// A member takes messages from now on: sends what has waited for that, in order.
    pub(super) fn send_late(&mut self, io: &mut Io<'_>, of: (u64, u32)) {
        for late in self.unlinked.take(of) {
            match late {
                Late::Send(request) => self.send(*request),
                Late::Head(head) => self.head(of.0, of.1, head),
                Late::Receive(id) => self.announce_late(io, id),
            }
        }
    }

    /// Cancels a receive that has met no message. `false`: it has, and cannot be cancelled.
    pub(crate) fn cancel_recv(&mut self, id: u32) -> bool {
        let Some(r) = self.recvs.get(id) else {
            return true;
        };
        if r.met.is_some() || matches!(r.claim, Some(Claim::Met(_))) {
            return false;
        }
        let ctx = r.ctx;
        self.recvs.remove(id);
        if let Some(c) = self.contexts.get_mut(&ctx) {
            c.matching.forget_posted(id);
        }
        true
    }

    /// Tells a member where the receive of its message is.
    fn announce(&mut self, io: &mut Io<'_>, id: u32, (from, tag): (u32, u64), link: usize) {
        let Some(r) = self.recvs.get_mut(id) else {
            return;
        };
        let Some(c) = self.contexts.get(&r.ctx) else {
            return;
        };
        let (t, conn) = self.links.at(link).session();
        let is_tapped = io.engines.is_on((t, conn, Direction::Receive));
        let mut key = None;
        if let (Some(buffer), false) = (r.pieces.single(), is_tapped) {
            let work = RecvWork {
                token: exposed(id),
                by: c.by,
                buffer,
                some: false,
            };
            key = io.transports[t].expose(conn, &work, r.in_use);
        }
        r.exposed = key.is_some();
        let ready = Envelope {
            from: c.rank,
            ctx: r.ctx,
            tag,
            len: r.pieces.len(),
            hash: r.hash,
            send: id,
            credits: key.unwrap_or(0),
        };
        let message = Envelope {
            from,
            send: 0,
            ..ready
        };
        self.set_met(id, &message);
        self.head(ready.ctx, from, Head::Ready(ready));
    }

    /// The memory of a receive is not written any more.
    pub(super) fn end_exposure(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(r) = self.recvs.get(id).filter(|r| r.exposed) else {
            return;
        };
        let from = r.met.map_or(0, |m| m.from);
        if let Some(link) = self.link_of(r.ctx, from) {
            let (t, conn) = self.links.at(link).session();
            io.transports[t].cancel(conn, exposed(id));
        }
    }

    /// A message has met its receive.
    fn meet(&mut self, io: &mut Io<'_>, recv: u32, early: u32) {
        let Some(e) = self.earlies.get_mut(early) else {
            return;
        };
        if let Some(c) = self.contexts.get_mut(&e.ctx) {
            c.members[e.from as usize].early -= 1;
        }
        if self.is_claim(recv) {
            return claim::found(self, recv, early);
        }
        let Some(e) = self.earlies.get_mut(early) else {
            return;
        };
        let kind = e.kind;
        let message = Envelope {
            from: e.from,
            ctx: e.ctx,
            tag: e.tag,
            len: e.len,
            hash: e.hash,
            send: e.send,
            credits: 0,
        };
        if kind == EarlyKind::Own {
            self.earlies.remove(early);
            return self.meet_own(recv, message.send, message.from, message.tag);
        }
        let arriving = matches!(kind, EarlyKind::Buffered { ready: false, .. });
        if arriving {
            e.claimed = Some(0);
        }
        if !self.fits(recv, &message) {
            // A message that is still arriving is dropped at its end: no receive claims it.
            if !arriving {
                self.free_early(early);
            }
            return;
        }
        match kind {
            EarlyKind::Own | EarlyKind::Kept | EarlyKind::Receive(_) => {}
            EarlyKind::Requested => {
                self.earlies.remove(early);
                self.clear(recv, &message);
            }
            EarlyKind::Buffered { ready, .. } => {
                self.set_met(recv, &message);
                if ready {
                    self.copy_out(io, recv, early);
                } else if let Some(e) = self.earlies.get_mut(early) {
                    e.claimed = Some(recv);
                }
            }
        }
    }

    /// A message of this member has met a receive of its own.
    pub(super) fn meet_own(&mut self, recv: u32, send: u32, rank: u32, tag: u64) {
        let (Some(s), Some(r)) = (self.sends.remove(send), self.recvs.remove(recv)) else {
            return;
        };
        let (len, room) = (s.pieces.len(), r.pieces.len());
        if len <= room {
            return self.own.push_back(Own {
                send: s.key,
                recv: r.key,
                to: r.pieces.prefix(len),
                from: s.pieces,
                rank,
                tag,
            });
        }
        let status = Status::MessageTooLarge;
        self.events.push_back(Event::Received {
            key: r.key,
            status,
            from: rank,
            len: 0,
            detail: len,
        });
        self.events.push_back(Event::Sent {
            key: s.key,
            status,
            detail: len,
        });
    }

    pub(super) fn set_met(&mut self, recv: u32, e: &Envelope) {
        if let Some(r) = self.recvs.get_mut(recv) {
            r.met = Some(Met {
                from: e.from,
                tag: e.tag,
                len: e.len,
                send: e.send,
                arriving: false,
            });
        }
    }

    /// Whether a message may go into a receive; otherwise both ends are notified.
    pub(super) fn fits(&mut self, recv: u32, e: &Envelope) -> bool {
        let Some(r) = self.recvs.get(recv) else {
            return false;
        };
        let (room, key) = (r.pieces.len(), r.key);
        if r.user {
            let rank = self.rank(e.ctx);
            // Messages carry no hash, streams one of what both ends must agree on.
            let (status, mine, theirs) = match (e.hash == r.hash, e.len <= room) {
                (true, true) => return true,
                (true, false) => (Status::MessageTooLarge, e.len, e.len),
                (false, _) => (Status::Mismatch, e.from.into(), rank.into()),
            };
            self.recvs.remove(recv);
            self.events.push_back(Event::Received {
                key,
                status,
                from: e.from,
                len: 0,
                detail: mine,
            });
            let refused = Head::Refused {
                ctx: e.ctx,
                from: rank,
                send: e.send,
                status,
                detail: theirs,
            };
            self.head(e.ctx, e.from, refused);
            return false;
        }
        if e.hash == r.hash && e.len == room {
            return true;
        }
        // The receive stays without a message: the layer above finds out which member is wrong.
        self.events.push_back(Event::Seen {
            ctx: e.ctx,
            from: e.from,
            tag: e.tag,
            hash: if e.hash == r.hash { 0 } else { e.hash },
        });
        false
    }

    /// Asks the sender of a message for its payload.
    pub(super) fn clear(&mut self, recv: u32, e: &Envelope) {
        self.set_met(recv, e);
        let clear = Head::Clear {
            ctx: e.ctx,
            from: self.rank(e.ctx),
            send: e.send,
            recv,
        };
        self.head(e.ctx, e.from, clear);
    }

    /// Moves a message from its buffer to its receive.
    pub(super) fn copy_out(&mut self, io: &mut Io<'_>, recv: u32, early: u32) {
        let Some(e) = self.earlies.get(early) else {
            return;
        };
        let EarlyKind::Buffered { buffer, .. } = e.kind else {
            return;
        };
        let (ctx, from, len) = (e.ctx, e.from, e.len);
        let at = buffer.and_then(|b| self.contexts.get(&ctx)?.buffer_at(from, b));
        let mut failed = None;
        if let (Some(at), Some(r)) = (at, self.recvs.get(recv)) {
            let mut done = 0;
            for piece in r.pieces.prefix(len).iter() {
                let src = io.dma.nic_memory.buffer(at + done, piece.len);
                // The source is directly mapped, so nothing is ever pending.
                if let Err(f) = io.dma().copy(piece, &src, 0, piece.len.into()) {
                    failed = Some(f.status());
                    break;
                }
                done += u64::from(piece.len);
            }
        }
        self.free_early(early);
        self.received(recv, failed);
    }

    /// A receive has ended.
    pub(super) fn received(&mut self, recv: u32, failed: Option<(Status, u64)>) {
        let Some(r) = self.recvs.remove(recv) else {
            return;
        };
        let (status, detail) = failed.unwrap_or((Status::Ok, 0));
        let (from, len) = r.met.map_or((0, 0), |m| (m.from, m.len));
        let tag = r.met.map_or(0, |m| m.tag);
        self.events.push_back(Event::Received {
            key: r.key,
            status,
            from,
            len,
            detail: if status == Status::Ok { tag } else { detail },
        });
    }

    /// Drops an early message that has met a receive; its buffer goes back to the sender.
    pub(super) fn free_early(&mut self, early: u32) {
        let Some(Early {
            ctx, from, kind, ..
        }) = self.earlies.remove(early)
        else {
            return;
        };
        if let EarlyKind::Buffered {
            buffer: Some(b), ..
        } = kind
        {
            self.give_back(ctx, from, b);
        }
    }

    /// Drops an early message that has met nothing, and lies in no buffer.
    pub(super) fn forget_early(&mut self, early: u32) {
        let Some(e) = self.earlies.remove(early) else {
            return;
        };
        if let Some(c) = self.contexts.get_mut(&e.ctx) {
            c.members[e.from as usize].early -= 1;
            c.matching.forget_early(early);
        }
    }

    /// A receive buffer is free again, of which its sender is told now or later.
    pub(super) fn give_back(&mut self, ctx: u64, from: u32, buffer: u32) {
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return;
        };
        let (rank, buffers) = (c.rank, c.buffers);
        let credits = &mut c.members[from as usize].credits;
        if let Some(n) = credits.give_back(buffer, &buffers) {
            let credit = Head::Credit { ctx, from: rank, n };
            self.head(ctx, from, credit);
        }
    }
}

/// Token of an exposed receive.
fn exposed(id: u32) -> WorkToken {
    WorkToken(LINK_TOKEN | EXPOSED_TOKEN | u64::from(id))
}
