//! The communicators that the fabric serves: their announcement to peers, the links of their ranks, and their end.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ringbell_nic_abi::Status;
use rustc_hash::FxHashMap;

use super::arrive::Whose;
use super::group::{Group, Member, MessageCounts, Offer, Writes};
use super::{EarlyKind, Fabric, FabricEvent, Frame, Tells, TxKey, EARLY_JOINS_MAX};
use crate::collective::settings::{CollectiveSettings, CommError};
use crate::link::{Arrived, Dest, Due, Io, LinkEvent, ListenError, SINK};
use crate::transport::TransportEvent;
use crate::types::NicTime;

/// Announcements kept of one peer.
const EARLY_JOINS_PER_LINK: usize = 256;

impl Fabric {
    /// Takes part in a communicator.
    pub(crate) fn open(
        &mut self,
        io: &mut Io<'_>,
        ctx: u64,
        rank: u32,
        peers: &[SocketAddrV4],
        settings: &CollectiveSettings,
        tells: Tells,
    ) -> Result<(), CommError> {
        let Tells {
            hash,
            area,
            card,
            by,
        } = tells;
        let port = peers[rank as usize].port();
        if peers.len() > 1 {
            let listens = self.links.listen(io, port);
            listens.map_err(|e| match e {
                ListenError::At(at) => CommError::Port {
                    port: at,
                    rank,
                    asked: port,
                },
                ListenError::Transport(status) => CommError::Listen { port, status },
            })?;
        }
        let alone = peers.len() == 1;
        let per_peer = u64::from(settings.eager_buffers) * settings.eager_max;
        let needed = per_peer * peers.len() as u64;
        let nic_memory = &mut io.dma.nic_memory;
        let short = |needed: u64, b: &crate::memory::nic_memory::NicMemory| CommError::Memory {
            needed,
            free: b.len() - b.used(),
            nic_memory: b.len(),
        };
        if !self.links.has_sink(nic_memory) {
            return Err(short(SINK.into(), nic_memory));
        }
        let buffers = match needed {
            0 => None,
            _ if alone => None,
            n => Some(nic_memory.alloc(n).ok_or_else(|| short(n, nic_memory))?),
        };
        let member = |address: &SocketAddrV4| Member {
            address: *address,
            link: None,
            told: false,
            joined: false,
            left: false,
            lost: false,
            missed: false,
            credits: 0,
            eager_max: 0,
            area: 0,
            card: false,
            pending_credits: 0,
            free: (0..if buffers.is_some() {
                settings.eager_buffers
            } else {
                0
            })
                .collect(),
            early: 0,
        };
        let group = Group {
            ctx,
            by,
            rank,
            hash,
            members: peers.iter().map(member).collect(),
            offer: Offer { area, card },
            eager_max: if buffers.is_some() {
                settings.eager_max
            } else {
                0
            },
            eager_buffers: if buffers.is_some() {
                settings.eager_buffers
            } else {
                0
            },
            buffers,
            posted: FxHashMap::default(),
            user_posted: VecDeque::new(),
            early: FxHashMap::default(),
            writes: Writes::default(),
            user_early: VecDeque::new(),
            dead: false,
            counts: MessageCounts::default(),
        };
        self.groups.insert(ctx, group);
        for (r, address) in peers.iter().enumerate() {
            if r as u32 == rank {
                continue;
            }
            if let Some(l) = self.links.to(io, *address) {
                self.attach(ctx, r, l);
            }
        }
        // Peers that were faster have announced it already.
        let (known, rest) = std::mem::take(&mut self.early_joins)
            .into_iter()
            .partition(|(_, f)| matches!(f, Frame::Join { ctx: c, .. } if *c == ctx));
        self.early_joins = rest;
        let known: VecDeque<(usize, Frame)> = known;
        for (link, frame) in known {
            self.on_frame(io, link, frame);
        }
        Ok(())
    }

    /// Uses a link for a rank; notifies the peer when the link is up.
    fn attach(&mut self, ctx: u64, rank: usize, link: usize) {
        let up = self.links.at(link).is_up();
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        let m = &mut g.members[rank];
        m.link = Some(link);
        if !up || m.told || g.dead {
            return;
        }
        m.told = true;
        let join = Frame::Join {
            ctx,
            from: g.rank,
            ranks: g.members.len() as u32,
            credits: g.eager_buffers,
            eager_max: g.eager_max,
            hash: g.hash,
            area: g.offer.area,
            card: g.offer.card,
        };
        self.frame(ctx, rank as u32, join);
    }

    /// Ends a communicator: nothing new is sent for it, and arriving frames are dropped. `last` is sent to
    /// the ranks that are connected.
    pub(crate) fn kill(&mut self, io: &mut Io<'_>, ctx: u64, last: impl Fn(u32) -> Frame) {
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        if std::mem::replace(&mut g.dead, true) {
            return;
        }
        g.posted.clear();
        g.user_posted.clear();
        g.early.clear();
        g.user_early.clear();
        g.writes = Writes::default();
        for i in 0..self.links.count() {
            let into = self.links.at(i).arriving();
            let ours = Whose::of(into).and_then(|w| self.ctx_of(w)) == Some(ctx);
            if ours {
                self.links.divert(io, i);
            }
            self.links.at_mut(i).drop_channel(ctx);
        }
        for id in self.recvs.ids(|r| r.ctx == ctx) {
            self.conceal(io, id);
            self.recvs.remove(id);
        }
        for id in self.sends.ids(|s| s.ctx == ctx) {
            self.sends.remove(id);
        }
        for id in self
            .earlies
            .iter()
            .filter(|(_, e)| e.ctx == ctx)
            .map(|(i, _)| i)
            .collect::<Vec<_>>()
        {
            self.earlies.remove(id);
        }
        self.tell(ctx, last);
    }

    /// Removes a communicator that was aborted, and frees its receive buffers.
    pub(crate) fn forget(&mut self, io: &mut Io<'_>, ctx: u64) {
        if let Some(g) = self.groups.remove(&ctx) {
            if let Some(b) = g.buffers {
                io.dma.nic_memory.free(b);
            }
        }
    }

    /// Whether an event belongs to the fabric; if so it was processed.
    pub(crate) fn on_event(&mut self, io: &mut Io<'_>, t: usize, e: &TransportEvent) -> bool {
        match self.links.on_event(io, t, e) {
            None => return false,
            Some(LinkEvent::Nothing) => {}
            Some(LinkEvent::Up(link)) => self.announce(link),
            Some(LinkEvent::Left(key)) => self.left(key),
            Some(LinkEvent::Payload(into)) => self.payload_is_here(io, into),
            Some(LinkEvent::Head(link)) => self.on_head(io, link),
            Some(LinkEvent::Ended(link)) => self.cut(io, link),
        }
        self.take_heads(io);
        true
    }

    /// Processes the heads that came with the bytes before them.
    fn take_heads(&mut self, io: &mut Io<'_>) {
        while let Some(link) = self.links.next_head() {
            self.on_head(io, link);
        }
    }

    fn on_head(&mut self, io: &mut Io<'_>, link: usize) {
        let is_right = match self.links.head(io, link) {
            Arrived::Head(head) => match Frame::decode(&head) {
                Ok(frame) => self.on_frame(io, link, frame),
                Err(error) => {
                    tracing::warn!(peer = ?self.links.at(link).peer(), %error, "a link is cut");
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
            true => self.links.go_on(io, link),
            false => {
                self.violations += 1;
                self.cut(io, link);
            }
        }
    }

    /// Cuts a connection, of which nothing more is read.
    pub(super) fn cut(&mut self, io: &mut Io<'_>, link: usize) {
        let Some((peer, missed)) = self.links.cut(io, link) else {
            return;
        };
        self.early_joins.retain(|(l, _)| *l != link);
        for g in self.groups.values_mut() {
            let member = g.members.iter_mut().enumerate();
            for (rank, m) in member.filter(|(_, m)| m.link == Some(link)) {
                m.link = None;
                if m.told || m.joined {
                    m.lost = true;
                    m.missed |= missed.contains(&g.ctx);
                    if !m.left {
                        self.events.push_back(FabricEvent::Lost {
                            ctx: g.ctx,
                            rank: rank as u32,
                        });
                    }
                } else if self.links.dials(m.address) {
                    // It never got as far as this communicator: the next connection may.
                    m.link = Some(link);
                }
            }
        }
        tracing::info!(%peer, "a link of the fabric is down");
    }

    /// Announces all common communicators to the peer of a link that has come up.
    fn announce(&mut self, link: usize) {
        let Some(peer) = self.links.at(link).peer() else {
            return;
        };
        let mut common = Vec::new();
        for g in self.groups.values().filter(|g| !g.dead) {
            let rank = g.members.iter().position(|m| m.address == peer);
            common.extend(rank.map(|r| (g.ctx, r)));
        }
        for (ctx, rank) in common {
            self.attach(ctx, rank, link);
        }
    }

    /// A frame's payload has left.
    fn left(&mut self, key: TxKey) {
        match key {
            TxKey::Engine(key) => self.events.push_back(FabricEvent::Sent {
                key,
                status: Status::Ok,
                detail: 0,
            }),
            TxKey::Send(id) => {
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
            self.events.push_back(FabricEvent::Sent {
                key: s.key,
                status,
                detail,
            });
        }
    }

    /// A payload has come.
    pub(super) fn payload_is_here(&mut self, io: &mut Io<'_>, into: Dest) {
        match Whose::of(into) {
            Some(Whose::Recv(r)) => self.received(r, None),
            Some(Whose::Early(id)) => {
                let Some(e) = self.earlies.get_mut(id) else {
                    return;
                };
                if let EarlyKind::Buffered { ready, .. } = &mut e.kind {
                    *ready = true;
                }
                match e.claimed {
                    Some(recv) if self.recvs.get(recv).is_some() => self.copy_out(io, recv, id),
                    Some(_) => self.free_early(id),
                    None => {}
                }
            }
            None => {}
        }
    }

    /// Whether a living communicator needs a connection that is down.
    fn is_wanted(&self, link: usize) -> bool {
        let of = |g: &Group| {
            let waits = |m: &Member| m.link == Some(link) && !m.lost && !m.left;
            !g.dead && g.members.iter().any(waits)
        };
        self.groups.values().any(of)
    }

    /// Breaks the links that hold payload of a communicator: the only way to get its memory back when
    /// a peer does not take it.
    pub(crate) fn break_holders(&mut self, io: &mut Io<'_>, ctx: u64) {
        for i in 0..self.links.count() {
            if self.links.at(i).holds(ctx) {
                tracing::warn!(peer = ?self.links.at(i).peer(), "a peer does not take what was sent; its link is cut");
                self.cut(io, i);
            }
        }
    }

    /// Moves queued frames on, and connects what is down. `fresh`: `io.now` was read in this step.
    pub(crate) fn step(&mut self, io: &mut Io<'_>, fresh: bool) -> bool {
        let mut moved = self.links.has_heads();
        self.take_heads(io);
        for i in 0..self.links.count() {
            match self.links.due(i, fresh.then_some(io.now)) {
                Due::Pump => {
                    let mut done = std::mem::take(&mut self.done);
                    moved |= self.links.pump(io, i, &mut done);
                    for key in done.drain(..) {
                        self.left(key);
                    }
                    self.done = done;
                }
                Due::Cut => {
                    self.cut(io, i);
                    moved = true;
                }
                Due::Dial if self.is_wanted(i) => {
                    self.links.connect(io, i, 0);
                    moved = true;
                }
                Due::Dial | Due::Nothing => {}
            }
        }
        moved
    }

    /// When a connection is tried again.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        let all = self.links.iter().enumerate();
        let down = all.filter_map(|(i, l)| Some((i, l.is_down_until()?)));
        let wanted = down.filter(|(i, _)| self.is_wanted(*i));
        wanted.map(|(_, at)| at).min()
    }

    /// Keeps the announcement of a communicator that is not made yet.
    pub(super) fn keep_join(&mut self, link: usize, f: Frame) {
        let of_link = self.early_joins.iter().filter(|(l, _)| *l == link).count();
        if of_link >= EARLY_JOINS_PER_LINK || self.early_joins.len() >= EARLY_JOINS_MAX {
            return;
        }
        self.early_joins.push_back((link, f));
    }
}
