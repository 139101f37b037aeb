//! All groups of a NIC: their announcement to peers, the links of their ranks, and their end.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::{PdId, Status};
use rustc_hash::FxHashMap;

use super::frame::{Body, Frame};
use super::joint::{Joint, Known};
use super::member::{Group, Member, Offer};
use crate::collective::number::Number;
use crate::collective::params::Params;
use crate::collective::settings::{CollectiveSettings, CommError};
use crate::link::{Arrived, Due, Io, LinkEvent, ListenError, HEAD, SINK};
use crate::message::{Buffers, Fields, Head, HeadError, Messages, Opening};
use crate::transport::TransportEvent;
use crate::types::{NicTime, Owner};

/// Announcements kept for communicators that are not made yet.
const EARLY_JOINS_MAX: usize = 4096;
/// Those of one peer.
const EARLY_JOINS_PER_LINK: usize = 256;

/// How long a rank may take to answer that was dialled for a message.
const DIAL: Duration = Duration::from_secs(10);

/// An event of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupEvent {
    /// A rank cannot be reached any more.
    Lost { ctx: u64, rank: u32 },
    /// The rank `from` has ended the communicator because of `rank`.
    Aborted {
        ctx: u64,
        from: u32,
        rank: u32,
        status: Status,
    },
    /// A rank has sent the parameters of an operation.
    Params {
        ctx: u64,
        from: u32,
        seq: u32,
        params: Params,
    },
    /// A rank has freed the communicator.
    Left { ctx: u64, rank: u32 },
    /// A rank asks whether this one is alive, and how far it is on a port.
    Asked { ctx: u64, rank: u32, port: u8 },
    /// A rank has answered that it is alive, and the next number of that port there.
    Here { ctx: u64, rank: u32, next: Number },
}

/// A rank's announcement to its peers when it joins, besides its settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joining {
    /// Hash of what all ranks must be given alike.
    pub(crate) hash: u32,
    /// Its area of the direct path; 0: it has none.
    pub(crate) area: u32,
    /// Its card executes programs of rings.
    pub(crate) card: bool,
    /// Owner of its payloads for engines; never sent to peers.
    pub(crate) by: Owner,
    /// What it says to the others of a communicator whose ranks do not all have links.
    pub(crate) known: Known,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) messages: Messages,
    groups: FxHashMap<u64, Group>,
    /// Announcements of communicators that we have not made, by link.
    early_joins: VecDeque<(usize, Frame)>,
    events: VecDeque<GroupEvent>,
}

/// Communicators.
impl Groups {
    pub(crate) fn new(ip: Ipv4Addr) -> Groups {
        Groups {
            messages: Messages::new(ip),
            groups: FxHashMap::default(),
            early_joins: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Takes part in a communicator.
    pub(crate) fn open(
        &mut self,
        io: &mut Io<'_>,
        ctx: u64,
        rank: u32,
        peers: &[SocketAddrV4],
        settings: &CollectiveSettings,
        joining: Joining,
    ) -> Result<(), CommError> {
        let links = &mut self.messages.links;
        let port = peers[rank as usize].port();
        if peers.len() > 1 {
            let listens = links.listen(io, port);
            listens.map_err(|e| match e {
                ListenError::At(at) => CommError::Port {
                    port: at,
                    rank,
                    asked: port,
                },
                ListenError::Transport(status) => CommError::Listen { port, status },
            })?;
        }
        let ranks = peers.len() as u32;
        let mut group = Group {
            rank,
            hash: joining.hash,
            members: peers.iter().copied().map(Member::new).collect(),
            offer: Offer {
                area: joining.area,
                card: joining.card,
            },
            eager_max: settings.eager_max,
            joint: (!settings.links_all(peers.len())).then(|| Joint::new(joining.known, ranks)),
            unlike: None,
            dialled: Vec::new(),
            granted: Vec::new(),
        };
        let first: Vec<u32> = match group.joint {
            Some(_) => Joint::neighbors(rank, ranks).collect(),
            None => (0..ranks).filter(|r| *r != rank).collect(),
        };
        let nic_memory = &mut io.dma.nic_memory;
        let short = |needed: u64, b: &crate::memory::nic_memory::NicMemory| CommError::Memory {
            needed,
            free: b.len() - b.used(),
            nic_memory: b.len(),
        };
        if !links.has_sink(nic_memory) {
            return Err(short(SINK.into(), nic_memory));
        }
        let opening = Opening {
            by: joining.by,
            rank,
            members: peers.len(),
            buffers: Buffers {
                bytes: settings.eager_max,
                count: settings.eager_buffers,
            },
        };
        self.messages.open(ctx, &opening);
        if settings.eager_max > 0 {
            let lacks = |r: &u32| self.messages.provide(io, ctx, *r) == 0;
            if first.iter().any(lacks) {
                self.messages.forget(io, ctx);
                let needed = opening.buffers.of_one() * first.len() as u64;
                return Err(short(needed, &io.dma.nic_memory));
            }
        }
        for rank in first {
            group.members[rank as usize].wanted = true;
        }
        self.groups.insert(ctx, group);
        for (r, address) in (0..).zip(peers).filter(|(r, _)| *r != rank) {
            match self.messages.links.up_to(*address) {
                Some(link) => self.attach(io, ctx, r, link),
                None if self.member(ctx, r).is_some_and(|m| m.wanted) => {
                    self.messages.links.want(io, *address, false);
                }
                None => {}
            }
        }
        // Peers that were faster have announced it already.
        let early = std::mem::take(&mut self.early_joins).into_iter();
        let (known, rest): (VecDeque<_>, _) = early.partition(|(_, f)| f.ctx == ctx);
        self.early_joins = rest;
        for (link, frame) in known {
            self.on_frame(io, link, frame);
        }
        Ok(())
    }

    /// Uses a link, on which messages flow, for a rank.
    fn attach(&mut self, io: &mut Io<'_>, ctx: u64, rank: u32, link: usize) {
        self.messages.attach(ctx, rank, link);
        let granted = self.groups.get(&ctx).map_or(&[][..], |g| &g.granted);
        for pd in granted {
            self.messages.grant(io, ctx, rank, *pd);
        }
        if self.member(ctx, rank).is_some_and(|m| m.wanted) {
            self.greet(io, ctx, rank);
        }
    }

    /// Lets the other ranks' one-sided operations reach regions of a domain, also over links that
    /// are made later.
    pub(crate) fn grant(&mut self, io: &mut Io<'_>, ctx: u64, pd: PdId) {
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        if !g.granted.contains(&pd) {
            g.granted.push(pd);
        }
        for (rank, _) in g.others() {
            self.messages.grant(io, ctx, rank, pd);
        }
    }

    /// Whether a rank without a link is dialled by what is sent to it.
    pub(crate) fn dials(&self, ctx: u64, rank: u32) -> bool {
        let is_lazy = self.groups.get(&ctx).is_some_and(|g| g.joint.is_some());
        is_lazy && self.member(ctx, rank).is_some_and(|m| !(m.lost || m.left))
    }

    /// Announces a communicator to a rank that has a link, once.
    fn greet(&mut self, io: &mut Io<'_>, ctx: u64, rank: u32) {
        let is_open = self.messages.is_open(ctx);
        let Some(g) = self.groups.get_mut(&ctx).filter(|_| is_open) else {
            return;
        };
        let ranks = g.members.len() as u32;
        let m = &mut g.members[rank as usize];
        if std::mem::replace(&mut m.told, true) {
            return;
        }
        let body = Body::Join {
            ranks,
            credits: self.messages.provide(io, ctx, rank),
            eager_max: g.eager_max,
            hash: g.hash,
            offer: g.offer,
        };
        self.tell_one(ctx, rank, body);
    }

    /// Ranks that have not answered; none of a communicator that is not there. When only others
    /// wait for one, the rank that is to say so.
    pub(crate) fn missing(&self, ctx: u64) -> impl Iterator<Item = u32> + '_ {
        let group = self.groups.get(&ctx).into_iter();
        let awaited = group.clone().filter(|g| g.missing().next().is_none());
        let awaited = awaited.filter_map(Group::awaited);
        group.flat_map(Group::missing).chain(awaited)
    }

    /// Whether a rank that has not answered is a neighbour, and so is missing for certain.
    pub(crate) fn is_missing(&self, ctx: u64) -> bool {
        let group = self.groups.get(&ctx);
        group.is_some_and(|g| g.missing().next().is_some())
    }

    /// The first rank that was given something else than rank 0, once all ranks have agreed, and
    /// in what.
    pub(crate) fn difference(&self, ctx: u64) -> Option<(u32, Option<u8>)> {
        let g = self.groups.get(&ctx)?;
        let known = g.joint.as_ref()?.result()?;
        let named = known.difference().map(|(rank, what)| (rank, Some(what)));
        named.or(g.unlike.map(|rank| (rank, None)))
    }

    /// The ranks that hear this one, where not all ranks have links.
    pub(crate) fn neighbors(&self, ctx: u64) -> Option<impl Iterator<Item = u32> + Clone> {
        let g = self.groups.get(&ctx).filter(|g| g.joint.is_some())?;
        Some(Joint::neighbors(g.rank, g.members.len() as u32))
    }

    /// Whether this rank has a link to another that takes part.
    pub(crate) fn is_linked(&self, ctx: u64, rank: u32) -> bool {
        self.member(ctx, rank).is_some_and(|m| m.joined)
    }

    /// Tells the neighbours what is known, as far as all neighbours are there.
    pub(crate) fn agree(&mut self, ctx: u64) {
        loop {
            let Some(g) = self.groups.get_mut(&ctx) else {
                return;
            };
            if g.joint.is_none() || g.missing().next().is_some() {
                return;
            }
            let (rank, ranks) = (g.rank, g.members.len() as u32);
            let next = g.joint.as_mut().and_then(|j| {
                let next = j.next()?;
                j.was_sent();
                Some(next)
            });
            let Some((round, distance, known)) = next else {
                return;
            };
            let to = (rank + distance) % ranks;
            self.tell_one(ctx, to, Body::Round { round, known });
        }
    }

    /// Dials the ranks that something waits for.
    fn dial_wanted(&mut self, io: &mut Io<'_>) {
        while let Some((ctx, rank)) = self.messages.next_wanted() {
            // The others are dialled anyway, and may take their time.
            let lazy = |g: &&mut Group| g.joint.is_some();
            let Some(g) = self.groups.get_mut(&ctx).filter(lazy) else {
                continue;
            };
            let Some(m) = g.members.get_mut(rank as usize) else {
                continue;
            };
            if m.lost || m.left {
                self.messages.detach(ctx, rank, true);
                continue;
            }
            m.wanted = true;
            let address = m.address;
            g.dialled.push((rank, io.now.plus(DIAL)));
            match self.messages.link_of(ctx, rank) {
                Some(_) => self.greet(io, ctx, rank),
                None => self.messages.links.want(io, address, true),
            }
        }
    }

    /// Gives up ranks that were dialled for long, and have not answered.
    fn give_up_dialled(&mut self, now: NicTime) {
        for (ctx, g) in &mut self.groups {
            let members = &mut g.members;
            g.dialled.retain(|(rank, until)| {
                let m = &mut members[*rank as usize];
                let waits = !(m.joined || m.lost || m.left);
                if waits && *until <= now {
                    m.lost = true;
                    let lost = GroupEvent::Lost {
                        ctx: *ctx,
                        rank: *rank,
                    };
                    self.events.push_back(lost);
                    self.messages.detach(*ctx, *rank, true);
                }
                waits && *until > now
            });
        }
    }

    /// Whether the cards of all ranks execute programs of rings.
    pub(crate) fn has_cards(&self, ctx: u64) -> bool {
        self.groups.get(&ctx).is_some_and(Group::has_cards)
    }

    /// A rank's area of the direct path; 0: it has none.
    pub(crate) fn area(&self, ctx: u64, rank: u32) -> u32 {
        let member = self.member(ctx, rank);
        member.map_or(0, |m| m.offer.area)
    }

    fn member(&self, ctx: u64, rank: u32) -> Option<&Member> {
        self.groups.get(&ctx)?.members.get(rank as usize)
    }

    /// Whether an operation under way needs a rank that sends nothing more.
    pub(crate) fn waits_for(&self, ctx: u64, rank: u32) -> bool {
        let lost = self.member(ctx, rank).is_some_and(|m| m.lost);
        self.messages.waits_for(ctx, rank, lost)
    }

    /// Ends a communicator: nothing new is sent for it, and arriving frames are dropped. `last` is
    /// sent to the ranks that are connected.
    pub(crate) fn kill(&mut self, io: &mut Io<'_>, ctx: u64, last: Body) {
        if self.messages.end(io, ctx) {
            self.tell(ctx, last);
        }
    }

    /// Removes a communicator that has ended, and frees its receive buffers.
    pub(crate) fn forget(&mut self, io: &mut Io<'_>, ctx: u64) {
        self.groups.remove(&ctx);
        self.messages.forget(io, ctx);
    }

    /// The NIC ends: what is queued leaves, and the peers see an orderly end after it.
    pub(crate) fn close(&mut self, io: &mut Io<'_>) {
        self.step(io, false);
        self.messages.links.close(io);
    }
}

/// Frames.
impl Groups {
    /// Whether messages or groups have something to tell.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.messages.has_events() || !self.events.is_empty()
    }

    /// Whether a step would find nothing to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.messages.is_quiet() && self.events.is_empty()
    }

    /// The next thing that has happened.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<GroupEvent> {
        self.events.pop_front()
    }

    /// Sends a frame to all other ranks.
    pub(crate) fn tell(&mut self, ctx: u64, body: Body) {
        let ranks = self.groups.get(&ctx).map_or(0, |g| g.members.len() as u32);
        for to in 0..ranks {
            // This rank has no link to itself.
            self.tell_one(ctx, to, body);
        }
    }

    fn tell_one(&mut self, ctx: u64, to: u32, body: Body) {
        let Some(from) = self.groups.get(&ctx).map(|g| g.rank) else {
            return;
        };
        let frame = Frame { ctx, from, body };
        // The others are not read from a rank that has not announced itself.
        let is_told = self.member(ctx, to).is_some_and(|m| m.told);
        if !(is_told || matches!(body, Body::Abort { .. } | Body::Leave)) {
            return;
        }
        let outlives = frame.reports_an_end();
        self.messages.tell(ctx, to, frame.encode(), outlives);
    }

    /// Answers a rank that this one is alive, unless an answer is on its way.
    pub(crate) fn say_here(&mut self, ctx: u64, to: u32, next: Number) {
        let link = self.messages.link_of(ctx, to);
        if link.is_some_and(|l| !self.answers(l, ctx, next.port())) {
            self.tell_one(ctx, to, Body::Here { next });
        }
    }

    /// Whether an answer of a communicator's port waits to leave.
    fn answers(&self, link: usize, ctx: u64, port: u8) -> bool {
        let mut queued = self.messages.links.at(link).queued();
        queued.any(|m| m.channel == ctx && Frame::is_answer(&m.head, port))
    }

    /// Processes a head that has come. `false`: a correct peer does not send it.
    ///
    /// # Errors
    /// [`HeadError`]: it cannot be read.
    fn on_bytes(
        &mut self,
        io: &mut Io<'_>,
        link: usize,
        bytes: &[u8; HEAD],
    ) -> Result<bool, HeadError> {
        let fields = Fields::decode(bytes)?;
        Ok(match Head::decode(&fields)? {
            Some(head) => self.messages.on_head(io, link, head),
            None => {
                let frame = Frame::decode(&fields)?;
                self.on_frame(io, link, frame)
            }
        })
    }

    /// Processes a frame. `false`: a correct peer does not send it.
    fn on_frame(&mut self, io: &mut Io<'_>, link: usize, f: Frame) -> bool {
        let Frame { ctx, from, body } = f;
        if !self.messages.is_open(ctx) {
            self.on_stale(link, f);
            return true;
        }
        let Some(g) = self.groups.get_mut(&ctx) else {
            return true;
        };
        let ranks = g.members.len() as u32;
        let Some(m) = g.members.get_mut(from as usize) else {
            return false;
        };
        // Otherwise it names another rank as its sender.
        if !self.messages.is_on(ctx, from, link) {
            return false;
        }
        let needs_no_join = matches!(body, Body::Join { .. } | Body::Abort { .. } | Body::Leave);
        if !m.joined && !needs_no_join {
            return false;
        }
        match body {
            Body::Join {
                ranks: theirs,
                credits,
                eager_max,
                hash,
                offer,
            } => {
                if m.joined || m.lost {
                    return !m.joined;
                }
                (m.joined, m.offer) = (true, offer);
                let mut differs = theirs != ranks || hash != g.hash;
                if g.joint.is_some() && theirs == ranks {
                    // All find out together which rank differs from the first.
                    g.unlike = g.unlike.or(differs.then_some(from));
                    differs = false;
                }
                // This rank's answer is ahead of what has waited for the other.
                self.greet(io, ctx, from);
                self.messages.links.at_mut(link).prove();
                self.messages.admit(io, (ctx, from), credits, eager_max);
                if differs {
                    self.events.push_back(GroupEvent::Aborted {
                        ctx,
                        from,
                        rank: from,
                        status: Status::Mismatch,
                    });
                }
            }
            Body::Params { seq, params } => self.events.push_back(GroupEvent::Params {
                ctx,
                from,
                seq,
                params,
            }),
            Body::Abort { rank, .. } if rank >= ranks => return false,
            Body::Abort { rank, status } => self.events.push_back(GroupEvent::Aborted {
                ctx,
                from,
                rank,
                status,
            }),
            Body::Leave => {
                m.left = true;
                self.events.push_back(GroupEvent::Left { ctx, rank: from });
            }
            // One answer is enough, however often it asks before it reads.
            Body::Ask { port } if self.answers(link, ctx, port) => {}
            Body::Ask { port } => self.events.push_back(GroupEvent::Asked {
                ctx,
                rank: from,
                port,
            }),
            Body::Here { next } => self.events.push_back(GroupEvent::Here {
                ctx,
                rank: from,
                next,
            }),
            Body::Round { round, known } => {
                return self.on_round(ctx, from, round, known);
            }
            Body::Gone { rank } if rank >= ranks => return false,
            Body::Gone { rank } => self.on_gone(ctx, rank),
        }
        true
    }

    /// A neighbour says what it knows. `false`: a correct one does not say that.
    fn on_round(&mut self, ctx: u64, from: u32, round: u8, known: Known) -> bool {
        let Some(g) = self.groups.get_mut(&ctx) else {
            return true;
        };
        let ranks = g.members.len() as u32;
        let distance = 1_u32.checked_shl(round.into()).unwrap_or(0) % ranks;
        let is_its = (from + distance) % ranks == g.rank && u32::from(known.lowest) < ranks;
        let is_one = known.difference().is_none_or(|(r, _)| r < ranks);
        let joint = g.joint.as_mut().filter(|_| is_its && is_one);
        joint.is_some_and(|j| j.hear(round, known))
    }

    /// Another rank cannot reach one any more. A rank with a link of its own to that one sees it
    /// there.
    fn on_gone(&mut self, ctx: u64, rank: u32) {
        let Some(g) = self.groups.get_mut(&ctx).filter(|g| g.rank != rank) else {
            return;
        };
        let m = &mut g.members[rank as usize];
        if m.lost || m.left || m.joined || g.joint.is_none() {
            return;
        }
        m.lost = true;
        self.events.push_back(GroupEvent::Lost { ctx, rank });
        self.messages.detach(ctx, rank, false);
        self.tell(ctx, Body::Gone { rank });
    }

    /// A frame of a communicator that is not there (any more, or yet).
    fn on_stale(&mut self, link: usize, f: Frame) {
        match f.body {
            Body::Join { .. } if !self.groups.contains_key(&f.ctx) => {
                let joins = self.early_joins.iter();
                let of_link = joins.filter(|(l, _)| *l == link).count();
                if of_link < EARLY_JOINS_PER_LINK && self.early_joins.len() < EARLY_JOINS_MAX {
                    self.early_joins.push_back((link, f));
                }
            }
            // A communicator made now must not wait for that rank forever: its own time-out ends
            // it.
            Body::Abort { .. } | Body::Leave => {
                let is_of = |j: &Frame| j.ctx == f.ctx;
                self.early_joins.retain(|(l, j)| *l != link || !is_of(j));
            }
            _ => {}
        }
    }
}

/// Links.
impl Groups {
    /// Whether an event belongs to a link; if so it was processed.
    pub(crate) fn on_event(&mut self, io: &mut Io<'_>, t: usize, e: &TransportEvent) -> bool {
        match self.messages.links.on_event(io, t, e) {
            None => return false,
            Some(LinkEvent::Nothing) => {}
            Some(LinkEvent::Up(link)) => self.announce(io, link),
            Some(LinkEvent::Left(key)) => self.messages.left(key),
            Some(LinkEvent::Payload(into)) => self.messages.payload_is_here(io, into),
            Some(LinkEvent::Head(link)) => self.on_head(io, link),
            Some(LinkEvent::Ended(link)) => self.cut(io, link),
        }
        self.take_heads(io);
        true
    }

    /// Processes the heads that came with the bytes before them.
    fn take_heads(&mut self, io: &mut Io<'_>) {
        while let Some(link) = self.messages.links.next_head() {
            self.on_head(io, link);
        }
    }

    fn on_head(&mut self, io: &mut Io<'_>, link: usize) {
        let is_right = match self.messages.links.head(io, link) {
            Arrived::Head(bytes) => match self.on_bytes(io, link, &bytes) {
                Ok(is_right) => is_right,
                Err(error) => {
                    let peer = self.messages.links.at(link).peer();
                    tracing::warn!(?peer, %error, "a link is cut");
                    false
                }
            },
            Arrived::Up { cut } => {
                if let Some(other) = cut {
                    self.cut(io, other);
                }
                self.announce(io, link);
                true
            }
            Arrived::Asked(from) => {
                let mut open = self.groups.iter().filter(|g| self.messages.is_open(*g.0));
                if open.any(|(_, g)| g.members.iter().any(|m| m.address == from)) {
                    self.messages.links.dial_back(io, from);
                }
                false
            }
            Arrived::Wrong => false,
        };
        match is_right {
            true => self.messages.links.go_on(io, link),
            false => self.cut(io, link),
        }
    }

    /// Announces all common communicators to the peer of a link that has come up.
    fn announce(&mut self, io: &mut Io<'_>, link: usize) {
        let Some(peer) = self.messages.links.at(link).peer() else {
            return;
        };
        let mut common = Vec::new();
        for (ctx, g) in self.groups.iter().filter(|g| self.messages.is_open(*g.0)) {
            let rank = g.members.iter().position(|m| m.address == peer);
            common.extend(rank.map(|r| (*ctx, r as u32)));
        }
        for (ctx, rank) in common {
            self.attach(io, ctx, rank, link);
        }
    }

    /// Cuts a connection, of which nothing more is read.
    fn cut(&mut self, io: &mut Io<'_>, link: usize) {
        let Some((peer, missed)) = self.messages.links.cut(io, link) else {
            return;
        };
        self.early_joins.retain(|(l, _)| *l != link);
        let (mut gone, mut again) = (Vec::new(), Vec::new());
        for (ctx, g) in &mut self.groups {
            let ranks: Vec<u32> = self.messages.ranks_on(*ctx, link).collect();
            for rank in ranks {
                let m = &mut g.members[rank as usize];
                let has_begun = m.told || m.joined;
                let missed = has_begun && missed.contains(ctx);
                if has_begun {
                    self.messages.detach(*ctx, rank, missed);
                    m.lost = true;
                    if !m.left {
                        let lost = GroupEvent::Lost { ctx: *ctx, rank };
                        self.events.push_back(lost);
                        // The others have no link on which they would see it.
                        gone.extend(g.joint.as_ref().map(|_| (*ctx, rank)));
                    }
                } else {
                    // It never got as far as this communicator: the next connection may.
                    self.messages.unlink(*ctx, rank);
                    again.extend(m.wanted.then_some((m.address, g.joint.is_some())));
                }
            }
        }
        for (ctx, rank) in gone {
            self.tell(ctx, Body::Gone { rank });
        }
        for (address, asks) in again {
            self.messages.links.want(io, address, asks);
        }
        tracing::info!(%peer, "a link is down");
    }

    /// Whether a living communicator needs a connection that is down.
    fn is_wanted(&self, link: usize) -> bool {
        let Some(peer) = self.messages.links.at(link).peer() else {
            return false;
        };
        let mut groups = self.groups.iter();
        groups.any(|(ctx, g)| self.messages.is_open(*ctx) && g.wants(peer))
    }

    /// Breaks the links that hold payload of a communicator: the only way to get its memory back
    /// when a peer does not take it.
    pub(crate) fn break_holders(&mut self, io: &mut Io<'_>, ctx: u64) {
        for i in 0..self.messages.links.count() {
            let link = self.messages.links.at(i);
            if link.holds(ctx) {
                let peer = link.peer();
                tracing::warn!(?peer, "a peer does not take what was sent; its link is cut");
                self.cut(io, i);
            }
        }
    }

    /// Moves queued messages on, and connects what is down. `fresh`: `io.now` was read in this
    /// step.
    pub(crate) fn step(&mut self, io: &mut Io<'_>, fresh: bool) -> bool {
        let mut moved = self.messages.links.has_heads();
        self.take_heads(io);
        if self.messages.has_wanted() {
            self.dial_wanted(io);
            moved = true;
        }
        if fresh {
            self.give_up_dialled(io.now);
        }
        let (now, mut from) = (fresh.then_some(io.now), 0);
        while let Some((i, due)) = self.messages.links.next_due(from, now) {
            from = i + 1;
            match due {
                Due::Pump => moved |= self.messages.pump(io, i),
                Due::Cut => {
                    self.cut(io, i);
                    moved = true;
                }
                Due::Dial if self.is_wanted(i) => {
                    self.messages.links.connect(io, i, None);
                    moved = true;
                }
                Due::Dial | Due::Nothing => {}
            }
        }
        moved
    }

    /// When a connection is tried again.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        let down = self.messages.links.down();
        let wanted = down.filter(|(i, _)| self.is_wanted(*i));
        let dialled = self.groups.values().flat_map(|g| &g.dialled);
        let times = wanted.map(|(_, at)| at);
        times.chain(dialled.map(|(_, until)| *until)).min()
    }
}
