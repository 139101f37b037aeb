//! Processing of a peer's frames. Each frame is checked against what the peer may send; an
//! unknown number belongs to a communicator that has ended, and is ignored.
//!
//! Messages of a rank to itself are matched like those of other ranks, but sent over no link. One that has met its
//! receive is reported with the memory of both; the engine copies it.

use ringbell_nic_abi::Status;

use super::group::{Early, EarlyKind, MAX_EARLY, USER_TAG};
use super::{Envelope, Fabric, FabricEvent, Frame, SendRequest, Sending, TxKey};
use crate::engine::Direction;
use crate::link::{Dest, Io, Link, Pieces, EXPOSED_TOKEN, LINK_TOKEN};
use crate::transport::RecvWork;
use crate::types::{Owner, WorkToken};

/// Whose an arriving payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A receive's.
    Recv(u32),
    /// A message's that waits in a receive buffer.
    Early(u32),
}

/// Bit of the places of early messages; those of receives are their numbers.
const EARLY: u64 = 1 << 32;

impl Whose {
    fn place(self) -> Dest {
        Dest::Place(match self {
            Whose::Recv(id) => id.into(),
            Whose::Early(id) => EARLY | u64::from(id),
        })
    }

    /// `None`: it goes nowhere.
    pub(super) fn of(dest: Dest) -> Option<Whose> {
        let Dest::Place(place) = dest else {
            return None;
        };
        Some(match place & EARLY {
            0 => Whose::Recv(place as u32),
            _ => Whose::Early(place as u32),
        })
    }
}

/// A message to this rank and the receive that it has met.
#[derive(Debug)]
pub(crate) struct Own {
    /// Keys of both.
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) from: Pieces,
    pub(crate) to: Pieces,
    pub(crate) rank: u32,
    pub(crate) tag: u64,
}

impl Fabric {
    /// Processes a frame. `false`: a correct peer does not send it.
    pub(super) fn on_frame(&mut self, io: &mut Io<'_>, link: usize, f: Frame) -> bool {
        let (ctx, from) = match f {
            Frame::Eager(e) | Frame::Request(e) | Frame::Ready(e) => (e.ctx, e.from),
            Frame::Join { ctx, from, .. }
            | Frame::Clear { ctx, from, .. }
            | Frame::Data { ctx, from, .. }
            | Frame::Taken { ctx, from, .. }
            | Frame::Refused { ctx, from, .. }
            | Frame::Withdraw { ctx, from, .. }
            | Frame::Credit { ctx, from, .. }
            | Frame::Params { ctx, from, .. }
            | Frame::Abort { ctx, from, .. }
            | Frame::Leave { ctx, from }
            | Frame::Ask { ctx, from }
            | Frame::Here { ctx, from, .. } => (ctx, from),
        };
        let peer = self.links.at(link).peer();
        let Some(g) = self.groups.get_mut(&ctx).filter(|g| !g.dead) else {
            return self.on_stale(io, link, f);
        };
        let Some(m) = g.members.get_mut(from as usize) else {
            return false;
        };
        if Some(m.address) != peer || from == g.rank {
            // It names another rank as its sender.
            return false;
        }
        if !m.joined
            && !matches!(
                f,
                Frame::Join { .. } | Frame::Abort { .. } | Frame::Leave { .. }
            )
        {
            return false;
        }
        match f {
            Frame::Join {
                ranks,
                credits,
                eager_max,
                hash,
                area,
                card,
                ..
            } => {
                if m.joined || m.lost {
                    return !m.joined;
                }
                let l = self.links.at_mut(link);
                l.prove();
                let worth = io.transports[l.session().0].eager_max();
                (m.credits, m.eager_max, m.joined) = (credits, eager_max.min(worth), true);
                (m.area, m.card) = (area, card);
                if ranks as usize != g.members.len() || hash != g.hash {
                    self.events.push_back(FabricEvent::Aborted {
                        ctx,
                        from,
                        rank: from,
                        status: Status::Mismatch,
                    });
                }
            }
            Frame::Eager(e) => return self.on_eager(io, link, e),
            Frame::Request(e) => return self.on_request(e),
            Frame::Ready(e) => return self.on_ready(e),
            Frame::Clear { send, recv, .. } => return self.on_clear(ctx, from, send, recv),
            Frame::Data { recv, len, .. } => {
                return self.on_data(io, link, (ctx, from), recv, len);
            }
            Frame::Taken { send, .. } => {
                if let Some(s) = self
                    .sends
                    .get_mut(send)
                    .filter(|s| s.ctx == ctx && s.to == from)
                {
                    s.taken = true;
                    if s.left {
                        self.sent(send, Status::Ok, 0);
                    }
                }
            }
            Frame::Refused {
                send,
                status,
                detail,
                ..
            } => {
                if self
                    .sends
                    .get(send)
                    .is_some_and(|s| s.ctx == ctx && s.to == from)
                {
                    self.sent(send, status, detail);
                }
            }
            Frame::Withdraw { send, .. } => self.on_withdraw(io, ctx, from, send),
            Frame::Credit { n, .. } => {
                m.credits = m.credits.saturating_add(n);
            }
            Frame::Params { seq, params, .. } => self.events.push_back(FabricEvent::Params {
                ctx,
                from,
                seq,
                params,
            }),
            Frame::Abort { rank, status, .. } => {
                if rank as usize >= g.members.len() {
                    return false;
                }
                self.events.push_back(FabricEvent::Aborted {
                    ctx,
                    from,
                    rank,
                    status,
                });
            }
            Frame::Leave { .. } => {
                m.left = true;
                self.events.push_back(FabricEvent::Left { ctx, rank: from });
            }
            Frame::Ask { .. } => {
                // One answer is enough, however often it asks before it reads.
                if !self.answers(link, ctx) {
                    self.events
                        .push_back(FabricEvent::Asked { ctx, rank: from });
                }
            }
            Frame::Here { posted, .. } => {
                self.events.push_back(FabricEvent::Here {
                    ctx,
                    rank: from,
                    posted,
                });
            }
        }
        true
    }

    /// A frame of a communicator that is not there (any more, or yet).
    fn on_stale(&mut self, io: &mut Io<'_>, link: usize, f: Frame) -> bool {
        match f {
            Frame::Join { ctx, .. } if !self.groups.contains_key(&ctx) => {
                self.keep_join(link, f);
            }
            Frame::Abort { ctx, .. } | Frame::Leave { ctx, .. } => {
                // A communicator made now must not wait for that rank forever: its own time-out ends it.
                self.early_joins.retain(|(l, j)| {
                    *l != link || !matches!(j, Frame::Join { ctx: c, .. } if *c == ctx)
                });
            }
            Frame::Eager(e) => self.take_payload(io, link, None, &Pieces::default(), e.len),
            Frame::Data { len, .. } => {
                self.take_payload(io, link, None, &Pieces::default(), len);
            }
            _ => {}
        }
        true
    }

    fn on_eager(&mut self, io: &mut Io<'_>, link: usize, e: Envelope) -> bool {
        let Some(g) = self.groups.get_mut(&e.ctx) else {
            return true;
        };
        if e.len > g.eager_max {
            return false;
        }
        let user = e.tag & USER_TAG != 0;
        let m = &mut g.members[e.from as usize];
        m.credits = m.credits.saturating_add(e.credits);
        let buffer = match e.len {
            0 => None,
            _ => match m.free.pop() {
                Some(b) => Some(b),
                // More than its credits.
                None => return false,
            },
        };
        let recv = g.take_posted(e.from, e.tag, user);
        if let Some(recv) = recv {
            // No buffer is needed; the credit goes back at once.
            if let Some(b) = buffer {
                m_free(g, e.from, b);
                self.owe(e.ctx, e.from);
            }
            let fits = self.fits(recv, e.from, e.tag, e.len, e.hash, e.send);
            if !fits {
                self.take_payload(io, link, None, &Pieces::default(), e.len);
                return true;
            }
            self.set_met(recv, e.from, e.tag, e.len, e.send);
            if user {
                self.answer(e);
            }
            let pieces = self.recvs.get(recv).map(|r| r.pieces.clone());
            self.take_payload(
                io,
                link,
                Some(Whose::Recv(recv)),
                &pieces.unwrap_or_default(),
                e.len,
            );
            return true;
        }
        let at = buffer.and_then(|b| g.buffer_at(e.from, b));
        let ready = e.len == 0;
        let Some(id) = self.keep_early(e, EarlyKind::Buffered { buffer, ready }) else {
            return false;
        };
        if user {
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
        let rank = self.groups.get(&e.ctx).map_or(0, |g| g.rank);
        let taken = Frame::Taken {
            ctx: e.ctx,
            from: rank,
            send: e.send,
        };
        self.frame(e.ctx, e.from, taken);
    }

    fn on_request(&mut self, e: Envelope) -> bool {
        let user = e.tag & USER_TAG != 0;
        let Some(g) = self.groups.get_mut(&e.ctx) else {
            return true;
        };
        match g.take_posted(e.from, e.tag, user) {
            Some(recv) => {
                if self.fits(recv, e.from, e.tag, e.len, e.hash, e.send) {
                    self.clear(recv, e.from, e.tag, e.len, e.send);
                }
                true
            }
            None => self.keep_early(e, EarlyKind::Requested).is_some(),
        }
    }

    /// Keeps a message without a receive. `None`: there are too many, or two of one kind.
    fn keep_early(&mut self, e: Envelope, kind: EarlyKind) -> Option<u32> {
        let g = self.groups.get_mut(&e.ctx)?;
        let m = &mut g.members[e.from as usize];
        if m.early >= MAX_EARLY {
            return None;
        }
        let user = e.tag & USER_TAG != 0;
        let all = match kind {
            EarlyKind::Receive(_) => &mut g.writes.ready,
            _ => &mut g.early,
        };
        if !user && all.contains_key(&(e.from, e.tag)) {
            return None;
        }
        let id = self.earlies.insert(Early {
            ctx: e.ctx,
            from: e.from,
            tag: e.tag,
            len: e.len,
            hash: e.hash,
            send: e.send,
            kind,
            claimed: None,
        })?;
        m.early += 1;
        g.counts.unexpected += 1;
        if user {
            g.user_early.push_back(id);
        } else {
            all.insert((e.from, e.tag), id);
            self.events.push_back(FabricEvent::Seen {
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
            // Withdrawn, or of another communicator: ranks of this one are not at fault.
            return true;
        };
        if s.to != from || s.cleared {
            return false;
        }
        s.cleared = true;
        let (pieces, user) = (s.pieces.clone(), s.user);
        // The payload's arrival is the answer.
        s.taken = true;
        let rank = self.groups.get(&ctx).map_or(0, |g| g.rank);
        let len = pieces.len();
        let data = Frame::Data {
            ctx,
            from: rank,
            recv,
            len,
        };
        let key = if user {
            TxKey::Send(send)
        } else {
            let key = s.key;
            self.sends.remove(send);
            TxKey::Engine(key)
        };
        self.frame_with(ctx, from, data, pieces, Some(key), None);
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
            self.take_payload(io, link, None, &Pieces::default(), len);
            return true;
        };
        let Some(met) = r.met.as_mut().filter(|_| !r.exposed) else {
            return false;
        };
        if met.from != from || met.len != len || met.arriving {
            return false;
        }
        met.arriving = true;
        let pieces = r.pieces.clone();
        self.take_payload(io, link, Some(Whose::Recv(recv)), &pieces, len);
        true
    }

    fn on_withdraw(&mut self, io: &mut Io<'_>, ctx: u64, from: u32, send: u32) {
        // Waiting for a receive: gone. Met already: the receive waits for another message.
        let of = |e: &Early| {
            e.ctx == ctx && e.from == from && e.send == send && e.kind == EarlyKind::Requested
        };
        if let Some(id) = self.earlies.ids(of).first().copied() {
            self.earlies.remove(id);
            if let Some(g) = self.groups.get_mut(&ctx) {
                g.members[from as usize].early -= 1;
                g.user_early.retain(|e| *e != id);
                g.early.retain(|_, e| *e != id);
            }
            return;
        }
        let met = |r: &super::Receiving| {
            let m = r
                .met
                .filter(|m| m.from == from && m.send == send && !m.arriving);
            r.ctx == ctx && r.user && m.is_some()
        };
        if let Some(id) = self.recvs.ids(met).first().copied() {
            if let Some(r) = self.recvs.get_mut(id) {
                r.met = None;
            }
            self.wait(io, id);
        }
    }

    /// The next message to this rank that is to be copied.
    pub(crate) fn take_own(&mut self) -> Option<Own> {
        self.own.pop_front()
    }

    /// Sends a user message to this rank itself.
    pub(crate) fn send_own(&mut self, r: SendRequest) {
        let Some(g) = self.groups.get_mut(&r.ctx) else {
            return;
        };
        let (from, len) = (g.rank, r.pieces.len());
        let sending = Sending {
            ctx: r.ctx,
            to: from,
            pieces: r.pieces,
            key: r.key,
            user: true,
            cleared: false,
            left: false,
            taken: false,
        };
        let Some(send) = self.sends.insert(sending) else {
            return self.full(r.key);
        };
        if let Some(recv) = g.take_posted(from, r.tag, true) {
            return self.meet_own(recv, send, from, r.tag);
        }
        let early = Early {
            ctx: r.ctx,
            from,
            tag: r.tag,
            len,
            hash: 0,
            send,
            kind: EarlyKind::Own,
            claimed: None,
        };
        let m = &mut g.members[from as usize];
        let room = m.early < MAX_EARLY;
        let Some(id) = room.then(|| self.earlies.insert(early)).flatten() else {
            self.sends.remove(send);
            return self.full(r.key);
        };
        m.early += 1;
        g.counts.unexpected += 1;
        g.user_early.push_back(id);
    }

    fn full(&mut self, key: u64) {
        self.events.push_back(FabricEvent::Sent {
            key,
            status: Status::NoResources,
            detail: 1 << 18,
        });
    }

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
        self.events.push_back(FabricEvent::Received {
            key: r.key,
            status,
            from: rank,
            len: 0,
            detail: len,
        });
        self.events.push_back(FabricEvent::Sent {
            key: s.key,
            status,
            detail: len,
        });
    }

    /// Cancels a message to this rank that has met no receive.
    pub(super) fn cancel_own(&mut self, ctx: u64, send: u32) {
        let of = |e: &Early| e.ctx == ctx && e.kind == EarlyKind::Own && e.send == send;
        for id in self.earlies.ids(of) {
            self.earlies.remove(id);
            if let Some(g) = self.groups.get_mut(&ctx) {
                let rank = g.rank as usize;
                g.members[rank].early -= 1;
                g.user_early.retain(|e| *e != id);
            }
        }
        self.sends.remove(send);
    }

    /// Whether a collective message to a rank, or from it, goes straight to its receive. Both ends decide so: `eager_max` is the receiver's.
    pub(super) fn is_written(&self, ctx: u64, rank: u32, len: u64, eager_max: u64) -> bool {
        let link = self.group_and_link(ctx, rank);
        let longest = link.and_then(|(_, l)| l.exposes());
        longest.is_some_and(|n| len > n.min(eager_max))
    }

    /// Tells a rank where a receive is, when its message is written. `false`: it is not.
    pub(super) fn announce_recv(
        &mut self,
        io: &mut Io<'_>,
        id: u32,
        (from, tag): (u32, u64),
    ) -> bool {
        let Some(r) = self.recvs.get_mut(id) else {
            return false;
        };
        let (ctx, len, hash) = (r.ctx, r.pieces.len(), r.hash);
        let Some((g, link)) = self.group_and_link(ctx, from) else {
            return false;
        };
        if !self.is_written(ctx, from, len, g.eager_max) {
            return false;
        }
        let (rank, by) = (g.rank, g.by);
        let (t, conn) = link.session();
        let is_tapped = io.engines.is_on((t, conn, Direction::Receive));
        let mut key = None;
        if let Some(r) = self.recvs.get_mut(id) {
            let mut pieces = r.pieces.iter();
            if let (Some(buffer), None, false) = (pieces.next(), pieces.next(), is_tapped) {
                let work = RecvWork {
                    token: WorkToken(LINK_TOKEN | EXPOSED_TOKEN | u64::from(id)),
                    by,
                    buffer: *buffer,
                    some: false,
                };
                key = io.transports[t].expose(conn, &work, r.in_use);
            }
            r.exposed = key.is_some();
        }
        self.set_met(id, from, tag, len, 0);
        let ready = Envelope {
            from: rank,
            ctx,
            tag,
            len,
            hash,
            send: id,
            credits: key.unwrap_or(0),
        };
        self.frame(ctx, from, Frame::Ready(ready));
        true
    }

    fn group_and_link(&self, ctx: u64, rank: u32) -> Option<(&super::Group, &Link<TxKey>)> {
        let g = self.groups.get(&ctx)?;
        let link = g.members.get(rank as usize)?.link?;
        Some((g, self.links.at(link)))
    }

    /// The memory of a receive is not written any more.
    pub(super) fn conceal(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(r) = self.recvs.get(id).filter(|r| r.exposed) else {
            return;
        };
        let from = r.met.map_or(0, |m| m.from);
        let Some((_, link)) = self.group_and_link(r.ctx, from) else {
            return;
        };
        let token = WorkToken(LINK_TOKEN | EXPOSED_TOKEN | u64::from(id));
        let (t, conn) = link.session();
        io.transports[t].cancel(conn, token);
    }

    /// Sends a message to where its receive is, as soon as that is known.
    pub(super) fn write(&mut self, r: SendRequest) {
        let Some(g) = self.groups.get_mut(&r.ctx) else {
            return;
        };
        g.counts.written += 1;
        let sending = Sending {
            ctx: r.ctx,
            to: r.to,
            pieces: r.pieces,
            key: r.key,
            user: false,
            cleared: false,
            left: false,
            taken: false,
        };
        let Some(send) = self.sends.insert(sending) else {
            return self.full(r.key);
        };
        let with = (r.to, r.tag);
        g.writes.waiting.insert(with, (send, r.hash));
        let ready = g.writes.ready.remove(&with);
        if let Some(e) = ready.and_then(|id| self.earlies.remove(id)) {
            g.members[r.to as usize].early -= 1;
            if let EarlyKind::Receive(key) = e.kind {
                self.meet_ready((e.ctx, e.from, e.tag), (e.len, e.hash), (e.send, key));
            }
        }
    }

    /// A send has met its receive, unless they disagree.
    fn meet_ready(
        &mut self,
        (ctx, to, tag): (u64, u32, u64),
        (len, hash): (u64, u32),
        (recv, key): (u32, u32),
    ) {
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        let Some(&(send, mine)) = g.writes.waiting.get(&(to, tag)) else {
            return;
        };
        let from = g.rank;
        let is_same = hash == mine;
        let fits = self.sends.get(send).is_some_and(|s| s.pieces.len() == len);
        if !(is_same && fits) {
            // It stays without a receive: the engine finds out which rank is wrong.
            return self.events.push_back(FabricEvent::Seen {
                ctx,
                from: to,
                tag,
                hash: if is_same { 0 } else { hash },
            });
        }
        g.writes.waiting.remove(&(to, tag));
        let Some(s) = self.sends.remove(send) else {
            return;
        };
        let data = Frame::Data {
            ctx,
            from,
            recv,
            len,
        };
        let write = (key != 0).then_some(key);
        self.frame_with(ctx, to, data, s.pieces, Some(TxKey::Engine(s.key)), write);
    }

    /// A rank has announced a receive.
    fn on_ready(&mut self, e: Envelope) -> bool {
        let Some(g) = self.groups.get(&e.ctx) else {
            return true;
        };
        let eager_max = g.members[e.from as usize].eager_max;
        if e.tag & USER_TAG != 0 || !self.is_written(e.ctx, e.from, e.len, eager_max) {
            return false;
        }
        if g.writes.waiting.contains_key(&(e.from, e.tag)) {
            let with = (e.ctx, e.from, e.tag);
            self.meet_ready(with, (e.len, e.hash), (e.send, e.credits));
            return true;
        }
        self.keep_early(e, EarlyKind::Receive(e.credits)).is_some()
    }

    /// The communicator of an arriving payload.
    pub(super) fn ctx_of(&self, whose: Whose) -> Option<u64> {
        match whose {
            Whose::Recv(r) => self.recvs.get(r).map(|r| r.ctx),
            Whose::Early(e) => self.earlies.get(e).map(|e| e.ctx),
        }
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
        let group = ctx.and_then(|ctx| self.groups.get(&ctx));
        let by = group.map_or(Owner::NIC, |g| g.by);
        let into = whose.map_or(Dest::Nowhere, Whose::place);
        let all = self.links.take_payload(io, link, (into, by), pieces, len);
        if let Some(into) = all {
            self.payload_is_here(io, into);
        }
    }
}

fn m_free(g: &mut super::Group, from: u32, buffer: u32) {
    g.members[from as usize].free.push(buffer);
}

impl super::Group {
    /// The receive that waits for a message.
    pub(super) fn take_posted(&mut self, from: u32, tag: u64, user: bool) -> Option<u32> {
        if !user {
            return self.posted.remove(&(from, tag));
        }
        let i = self.user_posted.iter().position(|u| u.takes(from, tag))?;
        self.user_posted.remove(i).map(|u| u.id)
    }
}
