//! Processing of a peer's heads. Each is checked against what the peer may send; one of a context
//! that is not there, or has ended, is ignored, and its payload dropped.

use ringbell_nic_abi::Status;

use super::awaited;
use super::claim;
use super::copies;
use super::early::{Early, EarlyKind, MAX_EARLY};
use super::head::{Envelope, Head};
use super::matching::{is_awaited, is_user};
use super::work::{Key, Met, Receiving, Whose};
use super::{Event, Messages};
use crate::link::{Dest, Io, Pieces};
use crate::types::Owner;

impl Messages {
    /// Processes a head. `false`: a correct peer does not send it.
    pub(crate) fn on_head(&mut self, io: &mut Io<'_>, link: usize, head: Head) -> bool {
        let (ctx, from) = head.sender();
        let Some(c) = self.contexts.get_mut(&ctx).filter(|c| !c.ended) else {
            if let Head::Eager(Envelope { len, .. }) | Head::Data { len, .. } = head {
                self.drop_payload(io, link, len);
            }
            return true;
        };
        let Some(m) = c.members.get_mut(from as usize) else {
            return false;
        };
        // Otherwise it names another member as its sender, or has not said that it takes part.
        if m.link != Some(link) || m.terms.is_none() {
            return false;
        }
        match head {
            Head::Eager(e) => return self.on_eager(io, link, e),
            Head::Request(e) => return self.on_request(e),
            Head::Ready(e) => return self.on_ready(e),
            Head::Clear { send, recv, .. } => return self.on_clear(ctx, from, send, recv),
            Head::Data { recv, len, .. } => {
                return self.on_data(io, link, (ctx, from), recv, len);
            }
            Head::Taken { send, .. } => {
                let sending = self.sends.get_mut(send);
                if let Some(s) = sending.filter(|s| s.ctx == ctx && s.to == from) {
                    s.taken = true;
                    let (left, key) = (s.left, s.key);
                    awaited::answered(self, ctx, key);
                    if left {
                        self.sent(send, Status::Ok, 0);
                    }
                }
            }
            Head::Refused {
                send,
                status,
                detail,
                ..
            } => {
                let sending = self.sends.get(send);
                if let Some(s) = sending.filter(|s| s.ctx == ctx && s.to == from) {
                    awaited::answered(self, ctx, s.key);
                    self.sent(send, status, detail);
                }
            }
            Head::Withdraw { send, .. } => self.on_withdraw(io, ctx, from, send),
            Head::Credit { n, .. } => m.credits.add(n),
            Head::Copied { send, .. } => copies::on_copied(self, ctx, from, send),
            Head::AllSent { tag, send, .. } => copies::on_all_sent(self, ctx, from, tag, send),
            Head::Singly { send, .. } => copies::on_singly(self, ctx, from, send),
        }
        true
    }

    fn on_eager(&mut self, io: &mut Io<'_>, link: usize, e: Envelope) -> bool {
        let Some(c) = self.contexts.get_mut(&e.ctx) else {
            return true;
        };
        if e.len > c.buffers.bytes {
            return false;
        }
        let m = &mut c.members[e.from as usize];
        m.credits.add(e.credits);
        let buffer = match e.len {
            0 => None,
            _ => match m.credits.take_buffer() {
                Some(b) => Some(b),
                // More than its credits.
                None => return false,
            },
        };
        let at = buffer.and_then(|b| c.buffer_at(e.from, b));
        let posted = c.matching.take_posted(e.from, e.tag);
        let claims = posted.filter(|recv| self.is_claim(*recv));
        if let Some(recv) = posted.filter(|_| claims.is_none()) {
            // No buffer is needed; the credit goes back at once.
            if let Some(b) = buffer {
                self.give_back(e.ctx, e.from, b);
            }
            if !self.fits(recv, &e) {
                self.drop_payload(io, link, e.len);
                return true;
            }
            self.set_met(recv, &e);
            if is_user(e.tag) {
                self.answer(e);
            }
            self.take_into(io, link, recv, e.len);
            return true;
        }
        let kind = EarlyKind::Buffered {
            buffer,
            ready: e.len == 0,
        };
        let kept = match claims {
            Some(recv) => claim::hold(self, recv, e, kind),
            None => self.keep_early(e, kind),
        };
        let Some(id) = kept else {
            return false;
        };
        if is_user(e.tag) {
            self.answer(e);
        }
        if let Some(at) = at {
            let piece = Pieces::one(io.dma.nic_memory.buffer(at, e.len as u32));
            self.take_payload(io, link, Some(Whose::Early(id)), &piece, e.len);
        }
        true
    }

    /// Notifies the sender of a user message that it was taken.
    fn answer(&mut self, e: Envelope) {
        let taken = Head::Taken {
            ctx: e.ctx,
            from: self.rank(e.ctx),
            send: e.send,
        };
        self.head(e.ctx, e.from, taken);
    }

    fn on_request(&mut self, e: Envelope) -> bool {
        let Some(c) = self.contexts.get_mut(&e.ctx) else {
            return true;
        };
        match c.matching.take_posted(e.from, e.tag) {
            Some(recv) if self.is_claim(recv) => {
                claim::hold(self, recv, e, EarlyKind::Requested).is_some()
            }
            Some(recv) => {
                if self.fits(recv, &e) {
                    self.clear(recv, &e);
                }
                true
            }
            None => self.keep_early(e, EarlyKind::Requested).is_some(),
        }
    }

    /// Keeps a message without a receive. `None`: there are too many, or two of one kind.
    pub(super) fn keep_early(&mut self, e: Envelope, kind: EarlyKind) -> Option<u32> {
        let c = self.contexts.get_mut(&e.ctx)?;
        let m = &mut c.members[e.from as usize];
        if m.early >= MAX_EARLY {
            return None;
        }
        let of = (e.from, e.tag);
        let user = is_user(e.tag);
        let is_announced = matches!(kind, EarlyKind::Receive(_));
        let is_second = match is_announced {
            true => !user && c.matching.has_announced(of),
            false => !user && c.matching.has_early(of),
        };
        if is_second {
            return None;
        }
        let id = self.earlies.insert(Early::new(&e, kind))?;
        m.early += 1;
        c.counts.unexpected += 1;
        match is_announced {
            true => c.matching.keep_announced(id, of),
            false => c.matching.keep_early(id, of),
        }
        if !user {
            self.events.push_back(Event::Seen {
                ctx: e.ctx,
                from: e.from,
                tag: e.tag,
                hash: e.hash,
            });
        }
        Some(id)
    }

    fn on_clear(&mut self, ctx: u64, from: u32, send: u32, recv: u32) -> bool {
        let Some(s) = self.sends.get_mut(send).filter(|s| s.ctx == ctx) else {
            // Withdrawn, or of another context: members of this one are not at fault.
            return true;
        };
        if s.to != from || s.cleared {
            return false;
        }
        s.cleared = true;
        let (pieces, user) = (s.pieces.clone(), s.user);
        // The payload's arrival is the answer.
        s.taken = true;
        let key = if user {
            Key::Send(send)
        } else {
            let key = s.key;
            self.sends.remove(send);
            Key::Above(key)
        };
        let data = Head::Data {
            ctx,
            from: self.rank(ctx),
            recv,
            len: pieces.len(),
        };
        self.head_with((ctx, from), data, pieces, Some(key), None);
        true
    }

    fn on_data(
        &mut self,
        io: &mut Io<'_>,
        link: usize,
        (ctx, from): (u64, u32),
        recv: u32,
        len: u64,
    ) -> bool {
        let Some(r) = self.recvs.get_mut(recv).filter(|r| r.ctx == ctx) else {
            self.drop_payload(io, link, len);
            return true;
        };
        if is_awaited(r.tags.one()) && !awaited::meet(self, (ctx, from), recv, len) {
            return false;
        }
        let Some(r) = self.recvs.get_mut(recv) else {
            return false;
        };
        let Some(met) = r.met.as_mut().filter(|_| !r.exposed) else {
            return false;
        };
        if met.from != from || met.len != len || met.arriving {
            return false;
        }
        met.arriving = true;
        self.take_into(io, link, recv, len);
        true
    }

    fn on_withdraw(&mut self, io: &mut Io<'_>, ctx: u64, from: u32, send: u32) {
        // Waiting for a receive: gone. Met already: the receive waits for another message.
        let of = |e: &Early| {
            e.ctx == ctx && e.from == from && e.send == send && e.kind == EarlyKind::Requested
        };
        if let Some(id) = self.earlies.ids(of).first().copied() {
            return match self.earlies.get(id).and_then(|e| e.claimed) {
                Some(recv) => claim::lose(self, recv, id),
                None => self.forget_early(id),
            };
        }
        let met = |r: &Receiving| {
            let is_it = |m: &Met| m.from == from && m.send == send && !m.arriving;
            r.ctx == ctx && r.user && r.met.as_ref().is_some_and(is_it)
        };
        if let Some(id) = self.recvs.ids(met).first().copied() {
            let Some(r) = self.recvs.get_mut(id) else {
                return;
            };
            if r.tags.are_of_host() {
                // Its memory is for this message alone.
                return self.received(id, Some((Status::Cancelled, 0)));
            }
            r.met = None;
            self.wait(io, id);
        }
    }

    /// A member has announced a receive.
    fn on_ready(&mut self, e: Envelope) -> bool {
        let Some(c) = self.contexts.get(&e.ctx) else {
            return true;
        };
        if is_awaited(e.tag) {
            return awaited::on_ready(self, e);
        }
        let terms = c.members[e.from as usize].terms;
        if is_user(e.tag) || !terms.is_some_and(|t| t.announces(e.len)) {
            return false;
        }
        let of = (e.from, e.tag);
        if c.matching.waiting(of).is_some() {
            self.meet_announced((e.ctx, of), (e.len, e.hash), (e.send, e.credits));
            return true;
        }
        self.keep_early(e, EarlyKind::Receive(e.credits)).is_some()
    }

    /// The context of an arriving payload.
    pub(super) fn ctx_of(&self, whose: Whose) -> Option<u64> {
        match whose {
            Whose::Recv(r) => self.recvs.get(r).map(|r| r.ctx),
            Whose::Early(e) => self.earlies.get(e).map(|e| e.ctx),
        }
    }

    /// Begins to read a payload into its receive.
    fn take_into(&mut self, io: &mut Io<'_>, link: usize, recv: u32, len: u64) {
        let pieces = self.recvs.get(recv).map(|r| r.pieces.clone());
        let pieces = pieces.unwrap_or_default();
        self.take_payload(io, link, Some(Whose::Recv(recv)), &pieces, len);
    }

    /// Reads a payload that goes nowhere.
    fn drop_payload(&mut self, io: &mut Io<'_>, link: usize, len: u64) {
        self.take_payload(io, link, None, &Pieces::default(), len);
    }

    /// Begins to read a payload.
    fn take_payload(
        &mut self,
        io: &mut Io<'_>,
        link: usize,
        whose: Option<Whose>,
        pieces: &Pieces,
        len: u64,
    ) {
        let ctx = whose.and_then(|w| self.ctx_of(w));
        let context = ctx.and_then(|ctx| self.contexts.get(&ctx));
        let by = context.map_or(Owner::NIC, |c| c.by);
        let into = whose.map_or(Dest::Nowhere, Whose::place);
        let all = self.links.take_payload(io, link, (into, by), pieces, len);
        if let Some(into) = all {
            self.payload_is_here(io, into);
        }
    }

    /// A payload has come.
    pub(crate) fn payload_is_here(&mut self, io: &mut Io<'_>, into: Dest) {
        match Whose::of(into) {
            Some(Whose::Recv(r)) => self.received(r, None),
            Some(Whose::Early(id)) => {
                let Some(e) = self.earlies.get_mut(id) else {
                    return;
                };
                if let EarlyKind::Buffered { ready, .. } = &mut e.kind {
                    *ready = true;
                }
                let claimed = e.claimed;
                match claimed {
                    Some(recv) if self.is_claim(recv) => claim::tell(self, recv, id),
                    Some(recv) if self.recvs.get(recv).is_some() => self.copy_out(io, recv, id),
                    Some(_) => self.free_early(id),
                    None => {}
                }
            }
            None => {}
        }
    }
}
