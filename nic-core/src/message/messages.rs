//! All messages of a NIC: their contexts, what is sent, and what has ended.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use ringbell_nic_abi::{PdId, Status};
use rustc_hash::FxHashMap;

use super::context::{Context, Counts, Opening};
use super::copied::Copies;
use super::early::{Early, EarlyKind, MAX_EARLY};
use super::head::{Envelope, Head};
use super::matching::{is_user, Matching};
use super::protocol::{Protocol, Terms, Traffic};
use super::unlinked::{Late, Unlinked};
use super::work::{Claim, Key, Own, Receiving, SendRequest, Sending, Whose};
use super::Event;
use crate::link::{Io, Link, Links, Outgoing, Pieces, HEAD};
use crate::slab::Slab;
use crate::types::{ConnId, Owner};

/// See the module text of [`message`](super).
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) links: Links<Key>,
    pub(super) contexts: FxHashMap<u64, Context>,
    pub(super) sends: Slab<Sending>,
    pub(super) recvs: Slab<Receiving>,
    pub(super) earlies: Slab<Early>,
    pub(super) events: VecDeque<Event>,
    left: Vec<Key>,
    /// Messages of this member to itself that have met their receives.
    pub(super) own: VecDeque<Own>,
    pub(super) copies: Copies,
    pub(super) unlinked: Unlinked,
}

/// Contexts and links.
impl Messages {
    pub(crate) fn new(ip: Ipv4Addr) -> Messages {
        Messages {
            links: Links::new(ip),
            contexts: FxHashMap::default(),
            sends: Slab::default(),
            recvs: Slab::default(),
            earlies: Slab::default(),
            events: VecDeque::new(),
            left: Vec::new(),
            own: VecDeque::new(),
            copies: Copies::default(),
            unlinked: Unlinked::default(),
        }
    }

    /// Begins a context, whose number is not in use.
    pub(crate) fn open(&mut self, ctx: u64, opening: &Opening) {
        self.contexts.insert(ctx, Context::new(opening));
    }

    /// Whether there is such a context, and it has not ended.
    #[inline]
    pub(crate) fn is_open(&self, ctx: u64) -> bool {
        self.contexts.get(&ctx).is_some_and(|c| !c.ended)
    }

    /// Uses a link for a member.
    pub(crate) fn attach(&mut self, ctx: u64, rank: u32, link: usize) {
        if let Some(c) = self.contexts.get_mut(&ctx) {
            c.members[rank as usize].link = Some(link);
        }
    }

    /// The link of a member.
    pub(crate) fn link_of(&self, ctx: u64, rank: u32) -> Option<usize> {
        self.contexts.get(&ctx)?.members.get(rank as usize)?.link
    }

    /// The members whose link is this one.
    pub(crate) fn ranks_on(&self, ctx: u64, link: usize) -> impl Iterator<Item = u32> + '_ {
        let members = self.contexts.get(&ctx).into_iter().flat_map(|c| &c.members);
        let on = (0..)
            .zip(members)
            .filter(move |(_, m)| m.link == Some(link));
        on.map(|(r, _)| r)
    }

    /// Whether the link of a member is this one.
    pub(crate) fn is_on(&self, ctx: u64, rank: u32, link: usize) -> bool {
        self.link_of(ctx, rank) == Some(link)
    }

    /// The link of a member was cut; with it a message to that one, if so.
    pub(crate) fn detach(&mut self, ctx: u64, rank: u32, missed: bool) {
        let missed = missed || self.unlinked.has_message((ctx, rank));
        self.unlinked.take((ctx, rank));
        if let Some(c) = self.contexts.get_mut(&ctx) {
            let m = &mut c.members[rank as usize];
            m.link = None;
            m.missed |= missed;
        }
    }

    /// The link of a member was cut before anything of this context was sent on it: what waits for
    /// a link waits for the next.
    pub(crate) fn unlink(&mut self, ctx: u64, rank: u32) {
        if let Some(c) = self.contexts.get_mut(&ctx) {
            c.members[rank as usize].link = None;
        }
    }

    /// Takes a member's messages from now on. It keeps `credits` buffers of `buffer` bytes.
    pub(crate) fn admit(
        &mut self,
        io: &mut Io<'_>,
        (ctx, rank): (u64, u32),
        credits: u32,
        buffer: u64,
    ) {
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return;
        };
        let m = &mut c.members[rank as usize];
        let Some(link) = m.link else { return };
        let caps = io.transports[self.links.at(link).session().0].caps();
        m.credits.add(credits);
        m.terms = Some(Terms {
            buffer,
            asking: caps.eager_max,
            announcing: caps.exposes,
        });
        self.send_late(io, (ctx, rank));
    }

    /// Makes the receive buffers for a member, whose number is returned; none, if NIC memory has no
    /// room for them.
    pub(crate) fn provide(&mut self, io: &mut Io<'_>, ctx: u64, rank: u32) -> u32 {
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return 0;
        };
        let m = &mut c.members[rank as usize];
        let len = c.buffers.of_one();
        if m.block.is_none() && len > 0 {
            m.block = io.dma.nic_memory.alloc(len);
            if m.block.is_some() {
                m.credits.provide(&c.buffers);
            }
        }
        m.block.map_or(0, |_| c.buffers.count)
    }

    /// Whether the link to any member is wanted.
    #[inline]
    pub(crate) fn has_wanted(&self) -> bool {
        self.unlinked.has_wanted()
    }

    /// The next member whose link is wanted: something waits for it.
    pub(crate) fn next_wanted(&mut self) -> Option<(u64, u32)> {
        self.unlinked.next_wanted()
    }

    /// What link and member offer, once the member has said so.
    pub(crate) fn terms(&self, ctx: u64, rank: u32) -> Option<Terms> {
        self.contexts.get(&ctx)?.members.get(rank as usize)?.terms
    }

    /// The transport of a member's link, and why.
    pub(crate) fn route(&self, ctx: u64, rank: u32) -> Option<(usize, ConnId, &'static str)> {
        let l = self.links.at(self.link_of(ctx, rank)?);
        let (t, conn) = l.session();
        l.is_up().then_some((t, conn, l.why()))
    }

    /// Lets a member's one-sided operations reach regions of a domain, if it has a link.
    pub(crate) fn grant(&self, io: &mut Io<'_>, ctx: u64, rank: u32, pd: PdId) {
        if let Some((t, conn, _)) = self.route(ctx, rank) {
            io.transports[t].grant(conn, pd);
        }
    }

    /// The link to a member is wanted, although no message waits for it.
    pub(crate) fn want(&mut self, ctx: u64, rank: u32) {
        self.unlinked.put((ctx, rank), None);
    }

    /// How its messages went, and the bytes of its buffers.
    pub(crate) fn counts(&self, ctx: u64) -> Option<(Counts, u64)> {
        let c = self.contexts.get(&ctx)?;
        Some((c.counts, c.buffer_bytes()))
    }

    /// An orderly end: nothing is under way, and what arrives is dropped.
    pub(crate) fn retire(&mut self, ctx: u64) {
        if let Some(c) = self.contexts.get_mut(&ctx) {
            c.ended = true;
        }
    }

    /// Ends a context: what is under way goes nowhere, and what arrives is dropped. `false`: it
    /// has ended before.
    pub(crate) fn end(&mut self, io: &mut Io<'_>, ctx: u64) -> bool {
        let Some(c) = self.contexts.get_mut(&ctx).filter(|c| !c.ended) else {
            return false;
        };
        c.ended = true;
        c.matching = Matching::default();
        for i in 0..self.links.count() {
            let into = self.links.at(i).arriving();
            if Whose::of(into).and_then(|w| self.ctx_of(w)) == Some(ctx) {
                self.links.divert(io, i);
            }
            self.links.at_mut(i).drop_channel(ctx);
        }
        self.copies.end(ctx);
        self.unlinked.end(ctx);
        for id in self.recvs.ids(|r| r.ctx == ctx) {
            self.end_exposure(io, id);
            self.recvs.remove(id);
        }
        for id in self.sends.ids(|s| s.ctx == ctx) {
            self.sends.remove(id);
        }
        for id in self.earlies.ids(|e| e.ctx == ctx) {
            self.earlies.remove(id);
        }
        true
    }

    /// Removes a context that has ended, and frees its buffers.
    pub(crate) fn forget(&mut self, io: &mut Io<'_>, ctx: u64) {
        self.unlinked.end(ctx);
        let members = self.contexts.remove(&ctx).into_iter();
        let members = members.flat_map(|c| c.members);
        for block in members.filter_map(|m| m.block) {
            io.dma.nic_memory.free(block);
        }
    }

    /// Whether the transports hold payload of a context: its memory is in use.
    pub(crate) fn holds(&self, ctx: u64) -> bool {
        self.links.iter().any(|l| l.holds(ctx))
    }
}

/// What happens.
impl Messages {
    /// Whether [`poll_event`](Messages::poll_event) has something.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next thing that has happened.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next message to this member that is to be copied.
    pub(crate) fn take_own(&mut self) -> Option<Own> {
        self.own.pop_front()
    }

    /// A message to this member has been copied.
    pub(crate) fn own_is_copied(&mut self, key: u64) {
        self.events.push_back(Event::Sent {
            key,
            status: Status::Ok,
            detail: 0,
        });
    }

    /// Whether messages are on their way.
    pub(crate) fn is_busy(&self) -> bool {
        self.links.iter().any(Link::is_busy)
    }

    /// Whether heads or payloads wait to be handed to transports.
    pub(crate) fn has_queued(&self) -> bool {
        self.links.has_queued()
    }

    /// Whether a step would find nothing to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.events.is_empty()
            && !self.copies.has_ready()
            && !self.unlinked.has_wanted()
            && !self.links.has_heads()
            && !self.links.has_queued()
    }

    /// Whether any message has come before its receive.
    pub(crate) fn has_early(&self) -> bool {
        !self.earlies.is_empty()
    }

    /// Agreed messages without a receive, and announced receives without a message: peer, tag and
    /// hash.
    pub(crate) fn early(&self, ctx: u64) -> impl Iterator<Item = (u32, u64, u32)> + '_ {
        let context = self.contexts.get(&ctx).into_iter();
        let ids = context.flat_map(|c| c.matching.agreed());
        let all = ids.filter_map(|id| self.earlies.get(id));
        all.map(|e| (e.from, e.tag, e.hash))
    }

    /// Bytes from a member that wait here for receives of a tag.
    pub(crate) fn early_bytes(&self, ctx: u64, from: u32, tag: u64) -> u64 {
        let here = |e: &&Early| {
            (e.ctx, e.from, e.tag) == (ctx, from, tag)
                && matches!(e.kind, EarlyKind::Buffered { .. } | EarlyKind::Own)
        };
        let all = self.earlies.iter().map(|(_, e)| e);
        all.filter(here).map(|e| e.len).sum()
    }

    /// Whether a message under way needs a member that sends nothing more. (A receive from any
    /// member waits for one that is `lost`, but not for one that has left in order.)
    pub(crate) fn waits_for(&self, ctx: u64, rank: u32, lost: bool) -> bool {
        let missed = |c: &Context| c.members[rank as usize].missed;
        let received = |r: &Receiving| {
            r.ctx == ctx
                && match r.met {
                    _ if r.claim.is_some_and(|c| c != Claim::Waits) => self.claim_needs(r, rank),
                    Some(m) => m.from == rank && (lost || !m.arriving),
                    None => r.from.map_or(lost, |from| from == rank),
                }
        };
        let sent = |s: &Sending| {
            let answered = s.cleared && (s.taken || !s.user);
            s.ctx == ctx && s.to == rank && (lost || !answered)
        };
        self.contexts.get(&ctx).is_some_and(missed)
            || self.recvs.iter().any(|(_, r)| received(r))
            || self.sends.iter().any(|(_, s)| sent(s))
            || self.unlinked.has_message((ctx, rank))
    }

    /// Whether the rest of the message that a claim has met is at this member.
    fn claim_needs(&self, r: &Receiving, rank: u32) -> bool {
        let Some(Claim::Met(early)) = r.claim else {
            return false;
        };
        let rest = |e: &Early| {
            let away = EarlyKind::Requested;
            e.from == rank
                && (e.kind == away || matches!(e.kind, EarlyKind::Buffered { ready: false, .. }))
        };
        self.earlies.get(early).is_some_and(rest)
    }

    /// Hands queued messages of a link to its transport.
    pub(crate) fn pump(&mut self, io: &mut Io<'_>, link: usize) -> bool {
        let mut left = std::mem::take(&mut self.left);
        let moved = self.links.pump(io, link, &mut left);
        for key in left.drain(..) {
            self.left(key);
        }
        self.left = left;
        moved
    }

    /// A payload has left.
    pub(crate) fn left(&mut self, key: Key) {
        match key {
            Key::Above(key) => self.events.push_back(Event::Sent {
                key,
                status: Status::Ok,
                detail: 0,
            }),
            Key::Send(id) => {
                if let Some(s) = self.sends.get_mut(id) {
                    s.left = true;
                    if s.taken || !s.user {
                        self.sent(id, Status::Ok, 0);
                    }
                }
            }
        }
    }

    /// A message of the table has ended.
    pub(super) fn sent(&mut self, id: u32, status: Status, detail: u64) {
        if let Some(s) = self.sends.remove(id) {
            self.events.push_back(Event::Sent {
                key: s.key,
                status,
                detail,
            });
        }
    }

    /// A message finds no room in the table.
    pub(super) fn full(&mut self, key: u64) {
        self.events.push_back(Event::Sent {
            key,
            status: Status::NoResources,
            detail: 1 << 18,
        });
    }
}

/// What leaves.
impl Messages {
    /// Sends a head of the layer above. `outlives`: although the context has ended.
    pub(crate) fn tell(&mut self, ctx: u64, to: u32, head: [u8; HEAD], outlives: bool) {
        let Some(link) = self.link_of(ctx, to) else {
            return;
        };
        self.links.at_mut(link).queue(Outgoing {
            channel: ctx,
            by: Owner::NIC,
            head,
            payload: Pieces::default(),
            key: None,
            to: None,
            outlives,
        });
    }

    /// Sends a head without a payload.
    pub(super) fn head(&mut self, ctx: u64, to: u32, head: Head) {
        self.head_with((ctx, to), head, Pieces::default(), None, None);
    }

    /// Sends a head with its payload, or the payload alone to the receive with the key `write`.
    pub(super) fn head_with(
        &mut self,
        (ctx, to): (u64, u32),
        head: Head,
        payload: Pieces,
        key: Option<Key>,
        write: Option<u32>,
    ) {
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return;
        };
        let Some(m) = c.members.get_mut(to as usize) else {
            return;
        };
        let Some(link) = m.link else {
            m.missed |= key.is_some();
            return;
        };
        self.links.at_mut(link).queue(Outgoing {
            channel: ctx,
            by: c.by,
            head: head.encode(),
            payload,
            key,
            to: write,
            outlives: false,
        });
    }

    /// Sends a message; `Sent` follows unless the context ends before.
    pub(crate) fn send(&mut self, r: SendRequest) {
        let user = is_user(r.tag);
        let len = r.pieces.len();
        let Some(c) = self.contexts.get_mut(&r.ctx) else {
            return;
        };
        if c.lacks(r.to) {
            let of = (r.ctx, r.to);
            return self.unlinked.put(of, Some(Late::Send(Box::new(r))));
        }
        let traffic = if user { Traffic::User } else { Traffic::Agreed };
        let protocol = match r.when_met {
            false => c.choose(r.to, len, traffic),
            // The payload is asked for when a receive has met the message.
            true => {
                c.counts.rendezvous += 1;
                Protocol::Rendezvous
            }
        };
        if protocol == Protocol::Written {
            return self.write(r);
        }
        let eager = protocol != Protocol::Rendezvous;
        // A user message can be taken back, and its credits with it.
        let credits = match eager && !user {
            true => c.members[r.to as usize].credits.take_pending(),
            false => 0,
        };
        let mut e = Envelope {
            from: c.rank,
            ctx: r.ctx,
            tag: r.tag,
            len,
            hash: r.hash,
            send: 0,
            credits,
        };
        let at = (r.ctx, r.to);
        if eager && !user {
            let key = Some(Key::Above(r.key));
            return self.head_with(at, Head::Eager(e), r.pieces, key, None);
        }
        let (key, pieces) = (r.key, r.pieces.clone());
        let mut sending = Sending::new(r, user);
        sending.cleared = eager;
        let Some(send) = self.sends.insert(sending) else {
            return self.full(key);
        };
        e.send = send;
        match eager {
            true => self.head_with(at, Head::Eager(e), pieces, Some(Key::Send(send)), None),
            false => self.head(at.0, at.1, Head::Request(e)),
        }
    }

    /// Sends a message to where its receive is, as soon as that is known.
    fn write(&mut self, r: SendRequest) {
        let (ctx, of, hash) = (r.ctx, (r.to, r.tag), r.hash);
        if let Some(send) = self.insert(r, None) {
            self.await_receive((ctx, of), send, hash);
        }
    }

    /// Enters a message whose receive will be announced, `part_of` one to several.
    pub(super) fn insert(&mut self, r: SendRequest, part_of: Option<u32>) -> Option<u32> {
        let key = r.key;
        let send = self.sends.insert(Sending {
            part_of,
            ..Sending::new(r, false)
        });
        if send.is_none() {
            self.full(key);
        }
        send
    }

    /// A message waits for its receive, or meets it at once.
    pub(super) fn await_receive(&mut self, (ctx, of): (u64, (u32, u64)), send: u32, hash: u32) {
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return;
        };
        c.matching.wait(of, send, hash);
        let announced = c.matching.take_announced(of);
        if let Some(e) = announced.and_then(|id| self.earlies.remove(id)) {
            c.members[of.0 as usize].early -= 1;
            if let EarlyKind::Receive(key) = e.kind {
                self.meet_announced((ctx, of), (e.len, e.hash), (e.send, key));
            }
        }
    }

    /// A message has met its announced receive, unless they disagree.
    pub(super) fn meet_announced(
        &mut self,
        (ctx, of): (u64, (u32, u64)),
        (len, hash): (u64, u32),
        (recv, key): (u32, u32),
    ) {
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return;
        };
        let Some((send, mine)) = c.matching.waiting(of) else {
            return;
        };
        let from = c.rank;
        let is_same = hash == mine;
        let fits = self.sends.get(send).is_some_and(|s| s.pieces.len() == len);
        if !(is_same && fits) {
            // It stays without a receive: the layer above finds out which member is wrong.
            return self.events.push_back(Event::Seen {
                ctx,
                from: of.0,
                tag: of.1,
                hash: if is_same { 0 } else { hash },
            });
        }
        c.matching.met(of);
        if self.part_has_met(send, recv, key) {
            return;
        }
        let Some(s) = self.sends.remove(send) else {
            return;
        };
        let data = Head::Data {
            ctx,
            from,
            recv,
            len,
        };
        let write = (key != 0).then_some(key);
        self.head_with((ctx, of.0), data, s.pieces, Some(Key::Above(s.key)), write);
    }

    /// Sends a user message to this member itself.
    pub(crate) fn send_own(&mut self, r: SendRequest) {
        let (ctx, tag, len, key) = (r.ctx, r.tag, r.pieces.len(), r.key);
        let Some(c) = self.contexts.get_mut(&ctx) else {
            return;
        };
        let from = c.rank;
        let Some(send) = self.sends.insert(Sending::new(r, true)) else {
            return self.full(key);
        };
        if let Some(recv) = c.matching.take_posted(from, tag) {
            return self.meet_own(recv, send, from, tag);
        }
        let early = Early {
            ctx,
            from,
            tag,
            len,
            hash: 0,
            send,
            kind: EarlyKind::Own,
            claimed: None,
            kept: None,
        };
        let m = &mut c.members[from as usize];
        let room = m.early < MAX_EARLY;
        let Some(id) = room.then(|| self.earlies.insert(early)).flatten() else {
            self.sends.remove(send);
            return self.full(key);
        };
        m.early += 1;
        c.counts.unexpected += 1;
        c.matching.keep_early(id, (from, tag));
    }

    /// Whether a user message has neither met its receive here nor ended.
    pub(crate) fn has_send(&self, key: u64) -> bool {
        !self.sends.ids(|s| s.user && s.key == key).is_empty() || self.unlinked.has_key(key)
    }

    /// Cancels a user message whose payload has not left. `false`: it cannot be cancelled.
    pub(crate) fn cancel_send(&mut self, key: u64) -> bool {
        if self.unlinked.cancel(key) {
            return true;
        }
        let found = self.sends.ids(|s| s.user && s.key == key);
        let Some(&id) = found.first() else {
            return true;
        };
        let Some(s) = self.sends.get(id) else {
            return true;
        };
        let (ctx, to, cleared, left) = (s.ctx, s.to, s.cleared, s.left);
        let from = self.contexts.get(&ctx).map(|c| c.rank);
        if from == Some(to) {
            self.cancel_own(ctx, id);
            return true;
        }
        let link = self.link_of(ctx, to);
        let queued = link.is_some_and(|l| self.links.at_mut(l).take_back(Key::Send(id)));
        if left {
            // It lies in the peer's buffer already: only the answer is missing.
            self.sends.remove(id);
            return true;
        }
        if cleared && !queued {
            return false;
        }
        self.sends.remove(id);
        if let Some(from) = from {
            let send = id;
            self.head(ctx, to, Head::Withdraw { ctx, from, send });
        }
        true
    }

    /// Cancels a message to this member that has met no receive.
    fn cancel_own(&mut self, ctx: u64, send: u32) {
        let of = |e: &Early| e.ctx == ctx && e.kind == EarlyKind::Own && e.send == send;
        for id in self.earlies.ids(of) {
            self.forget_early(id);
        }
        self.sends.remove(send);
    }
}
