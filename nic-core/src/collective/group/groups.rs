//! All groups of a NIC: their announcement to peers, the links of their ranks, and their end.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::Status;
use rustc_hash::FxHashMap;

use super::frame::{Body, Frame};
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
        let per_peer = u64::from(settings.eager_buffers) * settings.eager_max;
        let needed = per_peer * peers.len() as u64;
        let nic_memory = &mut io.dma.nic_memory;
        let short = |needed: u64, b: &crate::memory::nic_memory::NicMemory| CommError::Memory {
            needed,
            free: b.len() - b.used(),
            nic_memory: b.len(),
        };
        if !links.has_sink(nic_memory) {
            return Err(short(SINK.into(), nic_memory));
        }
        let buffers = match needed {
            0 => Buffers::default(),
            _ if peers.len() == 1 => Buffers::default(),
            n => Buffers {
                block: Some(nic_memory.alloc(n).ok_or_else(|| short(n, nic_memory))?),
                bytes: settings.eager_max,
                count: settings.eager_buffers,
            },
        };
        let opening = Opening {
            by: joining.by,
            rank,
            members: peers.len(),
            buffers,
        };
        self.messages.open(ctx, &opening);
        let group = Group {
            rank,
            hash: joining.hash,
            members: peers.iter().copied().map(Member::new).collect(),
            offer: Offer {
                area: joining.area,
                card: joining.card,
            },
            buffers: (buffers.bytes, buffers.count),
        };
        self.groups.insert(ctx, group);
        for (r, address) in (0..).zip(peers) {
            if r == rank {
                continue;
            }
            if let Some(link) = self.messages.links.to(io, *address) {
                self.attach(ctx, r, link);
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

    /// Uses a link for a rank; notifies the peer when the link is up.
    fn attach(&mut self, ctx: u64, rank: u32, link: usize) {
        self.messages.attach(ctx, rank, link);
        let is_up = self.messages.links.at(link).is_up();
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        let m = &mut g.members[rank as usize];
        if !is_up || m.told || !self.messages.is_open(ctx) {
            return;
        }
        m.told = true;
        let (eager_max, credits) = g.buffers;
        let body = Body::Join {
            ranks: g.members.len() as u32,
            credits,
            eager_max,
            hash: g.hash,
            offer: g.offer,
        };
        self.tell_one(ctx, rank, body);
    }

    /// Ranks that have not answered; none of a communicator that is not there.
    pub(crate) fn missing(&self, ctx: u64) -> impl Iterator<Item = u32> + '_ {
        self.groups.get(&ctx).into_iter().flat_map(Group::missing)
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
                let differs = theirs != ranks || hash != g.hash;
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
        }
        true
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
            Some(LinkEvent::Up(link)) => self.announce(link),
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
                self.announce(link);
                true
            }
            Arrived::Wrong => false,
        };
        match is_right {
            true => self.messages.links.go_on(io, link),
            false => self.cut(io, link),
        }
    }

    /// Announces all common communicators to the peer of a link that has come up.
    fn announce(&mut self, link: usize) {
        let Some(peer) = self.messages.links.at(link).peer() else {
            return;
        };
        let mut common = Vec::new();
        for (ctx, g) in self.groups.iter().filter(|g| self.messages.is_open(*g.0)) {
            let rank = g.members.iter().position(|m| m.address == peer);
            common.extend(rank.map(|r| (*ctx, r as u32)));
        }
        for (ctx, rank) in common {
            self.attach(ctx, rank, link);
        }
    }

    /// Cuts a connection, of which nothing more is read.
    fn cut(&mut self, io: &mut Io<'_>, link: usize) {
        let Some((peer, missed)) = self.messages.links.cut(io, link) else {
            return;
        };
        self.early_joins.retain(|(l, _)| *l != link);
        for (ctx, g) in &mut self.groups {
            let ranks: Vec<u32> = self.messages.ranks_on(*ctx, link).collect();
            for rank in ranks {
                let m = &mut g.members[rank as usize];
                let has_begun = m.told || m.joined;
                let missed = has_begun && missed.contains(ctx);
                self.messages.detach(*ctx, rank, missed);
                if has_begun {
                    m.lost = true;
                    if !m.left {
                        let lost = GroupEvent::Lost { ctx: *ctx, rank };
                        self.events.push_back(lost);
                    }
                } else if self.messages.links.dials(m.address) {
                    // It never got as far as this communicator: the next connection may.
                    self.messages.attach(*ctx, rank, link);
                }
            }
        }
        tracing::info!(%peer, "a link is down");
    }

    /// Whether a living communicator needs a connection that is down.
    fn is_wanted(&self, link: usize) -> bool {
        let of = |(ctx, g): (&u64, &Group)| {
            let waits = |rank: u32| {
                let m = &g.members[rank as usize];
                !m.lost && !m.left
            };
            self.messages.is_open(*ctx) && self.messages.ranks_on(*ctx, link).any(waits)
        };
        self.groups.iter().any(of)
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
        wanted.map(|(_, at)| at).min()
    }
}
