//! Streams to peers: connection set-up, announcement of communicators, and loss of a link.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::Status;
use rustc_hash::FxHashMap;

use super::group::{Group, Member, MessageCounts};
use super::link::{Dest, Link, LinkState, Rx, TxFrame, TxKey};
use super::{EarlyKind, Fabric, FabricEvent, Frame, Io, Pieces, Tells, MAX_STRANGERS};
use crate::collective::settings::{CollectiveSettings, CommError};
use crate::transport::{why_chosen, RecvWork, TransportEvent};
use crate::types::{ConnId, NicTime, Owner, WorkToken};

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// Time that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Connections that may wait for the fabric.
const BACKLOG: usize = 1024;
/// Most links: peers of all communicators, and unauthenticated peers.
const MAX_LINKS: usize = 4096;
/// How long an unknown peer may take to identify itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// Announcements kept of one peer.
const MAX_STRANGERS_EACH: usize = 256;
/// Bytes of the buffer for dropped payload.
pub(super) const SINK: u32 = 64 << 10;

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
        let Tells { hash, area, by } = tells;
        let port = peers[rank as usize].port();
        if peers.len() > 1 {
            self.listen(io, port, rank)?;
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
        if self.sink.is_none() {
            let sink = nic_memory.alloc(SINK.into());
            self.sink = Some(sink.ok_or_else(|| short(SINK.into(), nic_memory))?);
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
            area,
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
            user_early: VecDeque::new(),
            dead: false,
            counts: MessageCounts::default(),
        };
        self.groups.insert(ctx, group);
        let me = SocketAddrV4::new(self.ip, port);
        for (r, address) in peers.iter().enumerate() {
            if r as u32 == rank {
                continue;
            }
            match self.by_peer.get(address).copied() {
                Some(l) => self.attach(ctx, r, l),
                // The lower address connects, so that there is one stream.
                None if me < *address => {
                    let header = io.dma.nic_memory.alloc(super::frame::HEADER as u64);
                    let Some(header) = header else { continue };
                    let state = LinkState::Down(NicTime(0));
                    self.links.push(Link::new(state, Some(*address), header));
                    let l = self.links.len() - 1;
                    self.by_peer.insert(*address, l);
                    self.attach(ctx, r, l);
                }
                None => {}
            }
        }
        // Peers that were faster have announced it already.
        let (known, rest) = std::mem::take(&mut self.strangers)
            .into_iter()
            .partition(|(_, f)| matches!(f, Frame::Join { ctx: c, .. } if *c == ctx));
        self.strangers = rest;
        let known: VecDeque<(usize, Frame)> = known;
        for (link, frame) in known {
            self.on_frame(io, link, frame);
        }
        Ok(())
    }

    fn listen(&mut self, io: &mut Io<'_>, port: u16, rank: u32) -> Result<(), CommError> {
        match self.served.port {
            Some(p) if p == port => return Ok(()),
            Some(p) => {
                return Err(CommError::Port {
                    port: p,
                    rank,
                    asked: port,
                })
            }
            None => {}
        }
        for i in 0..io.transports.len() {
            match io.transports[i].listen(port, BACKLOG) {
                Ok(l) => self.served.listeners.push((i, l)),
                Err(status) => {
                    for (i, l) in self.served.listeners.drain(..) {
                        io.transports[i].unlisten(l);
                    }
                    return Err(CommError::Listen { port, status });
                }
            }
        }
        self.served.port = Some(port);
        Ok(())
    }

    /// Uses a link for a rank; notifies the peer when the link is up.
    fn attach(&mut self, ctx: u64, rank: usize, link: usize) {
        let up = self.links[link].state == LinkState::Up;
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
            area: g.area,
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
        for i in 0..self.links.len() {
            let into = match &self.links[i].rx {
                Rx::Payload { into, .. } => *into,
                _ => Dest::Drop,
            };
            let ours = match into {
                Dest::Recv(r) => self.recvs.get(r).is_some_and(|r| r.ctx == ctx),
                Dest::Early(e) => self.earlies.get(e).is_some_and(|e| e.ctx == ctx),
                Dest::Drop => false,
            };
            if ours {
                self.divert(io, i);
            }
            self.links[i].drop_frames(ctx);
        }
        for id in self.recvs.ids(|r| r.ctx == ctx) {
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

    /// What arrives at the moment is dropped from here on.
    fn divert(&mut self, io: &mut Io<'_>, link: usize) {
        let l = &mut self.links[link];
        let (t, conn) = (l.transport, l.conn);
        let Rx::Payload {
            into,
            token,
            piece,
            rest,
            surplus,
        } = &mut l.rx
        else {
            return;
        };
        *into = Dest::Drop;
        *surplus += rest.drain(..).map(|b| u64::from(b.len)).sum::<u64>();
        // None: the piece is full, and its event comes.
        if let Some(done) = io.transports[t].cancel(conn, WorkToken(super::FABRIC_TOKEN | *token)) {
            *surplus += u64::from(piece.len) - done;
            self.next_piece(io, link);
        }
    }

    /// Waits for the next piece of a payload, or ends it.
    pub(super) fn next_piece(&mut self, io: &mut Io<'_>, link: usize) {
        let sink = self.sink.map_or(0, |s| s.at);
        let l = &mut self.links[link];
        let Rx::Payload {
            into,
            token,
            piece,
            rest,
            surplus,
        } = &mut l.rx
        else {
            return;
        };
        let next = rest.pop_front().or_else(|| {
            let n = (*surplus).min(SINK.into()) as u32;
            *surplus -= u64::from(n);
            (n > 0).then(|| io.dma.nic_memory.buffer(sink, n))
        });
        let Some(buffer) = next else {
            let into = *into;
            self.await_header(io, link);
            return self.payload_is_here(io, into);
        };
        let ctx = match *into {
            Dest::Recv(r) => self.recvs.get(r).map(|r| r.ctx),
            Dest::Early(e) => self.earlies.get(e).map(|e| e.ctx),
            Dest::Drop => None,
        };
        let group = ctx.and_then(|ctx| self.groups.get(&ctx));
        self.next_token += 1;
        (*token, *piece) = (self.next_token, buffer);
        let work = RecvWork {
            token: WorkToken(super::FABRIC_TOKEN | self.next_token),
            by: group.map_or(Owner::NIC, |g| g.by),
            buffer,
            some: false,
        };
        let (t, conn) = (l.transport, l.conn);
        io.transports[t].post_recv(conn, work);
    }

    fn await_header(&mut self, io: &mut Io<'_>, link: usize) {
        let l = &mut self.links[link];
        let buffer = io
            .dma
            .nic_memory
            .buffer(l.header.at, super::frame::HEADER as u32);
        let t = l.transport;
        l.await_header(&mut *io.transports[t], &mut self.next_token, buffer);
    }

    /// Begins to read a payload.
    pub(super) fn take_payload(
        &mut self,
        io: &mut Io<'_>,
        link: usize,
        into: Dest,
        pieces: &Pieces,
        len: u64,
    ) {
        let taken = pieces.prefix(len);
        self.links[link].rx = Rx::Payload {
            into,
            token: 0,
            piece: io.dma.nic_memory.buffer(0, 0),
            surplus: len - taken.len(),
            rest: taken.iter().copied().collect(),
        };
        self.next_piece(io, link);
    }

    fn payload_is_here(&mut self, io: &mut Io<'_>, into: Dest) {
        match into {
            Dest::Recv(r) => self.received(r, None),
            Dest::Early(id) => {
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
            Dest::Drop => {}
        }
    }

    /// Whether an event belongs to the fabric; if so it was processed.
    pub(crate) fn on_event(&mut self, io: &mut Io<'_>, t: usize, e: &TransportEvent) -> bool {
        match *e {
            TransportEvent::RemoteDone { .. } => false,
            TransportEvent::SendDone {
                conn,
                token,
                status,
                detail,
                ..
            } => {
                if token.0 & super::FABRIC_TOKEN == 0 {
                    return false;
                }
                if let Some(&l) = self.by_conn.get(&(t, conn)) {
                    if status == Status::ConnectionReset && self.links[l].state == LinkState::Up {
                        // Nothing leaves any more, but what the peer has sent before may still be
                        // read: the receive that waits sees the end.
                        self.links[l].mute = true;
                        return true;
                    }
                    let key = self.links[l].sent(token);
                    if status == Status::Ok {
                        if let Some(key) = key {
                            self.left(key);
                        }
                    } else if self.links[l].state == LinkState::Up {
                        tracing::warn!(%status, detail, "a message could not leave; its link ends");
                        io.transports[t].abort(conn);
                        self.lose(io, l);
                    }
                }
                true
            }
            TransportEvent::RecvDone {
                conn,
                token,
                status,
                ..
            } => {
                if token.0 & super::FABRIC_TOKEN == 0 {
                    return false;
                }
                if let Some(&l) = self.by_conn.get(&(t, conn)) {
                    self.on_recv(io, l, token.0 & !super::FABRIC_TOKEN, status);
                }
                true
            }
            TransportEvent::Connected { conn } => {
                let Some(&l) = self.by_conn.get(&(t, conn)) else {
                    return false;
                };
                let me = SocketAddrV4::new(self.ip, self.served.port.unwrap_or(0));
                let link = &mut self.links[l];
                link.state = LinkState::Up;
                link.proven = true;
                link.why = why_chosen(io.transports, t);
                io.transports[t].watch(conn);
                let (peer, transport) = (link.peer, io.transports[t].name());
                tracing::info!(?peer, transport, why = link.why, "link of a communicator");
                link.queue(TxFrame {
                    ctx: 0,
                    by: Owner::NIC,
                    frame: Frame::Hello { from: me },
                    payload: Pieces::default(),
                    key: TxKey::None,
                });
                self.await_header(io, l);
                self.announce(l);
                true
            }
            TransportEvent::ConnectFailed { conn, status } => {
                let Some(l) = self.by_conn.remove(&(t, conn)) else {
                    return false;
                };
                let next = matches!(status, Status::HostUnreachable | Status::NoResources);
                self.connect(io, l, if next { t + 1 } else { io.transports.len() });
                true
            }
            TransportEvent::Incoming { listener, conn, .. } => {
                if !self.served.listeners.contains(&(t, listener)) {
                    return false;
                }
                let free = self
                    .links
                    .iter()
                    .position(|l| l.peer.is_none() && matches!(l.state, LinkState::Down(_)));
                let room = free.is_some() || self.links.len() < MAX_LINKS;
                let header = io.dma.nic_memory.alloc(super::frame::HEADER as u64);
                let Some(header) = header.filter(|_| room) else {
                    io.transports[t].abort(conn);
                    return true;
                };
                let mut link = Link::new(LinkState::Stranger(io.now.plus(PATIENCE)), None, header);
                (link.transport, link.conn) = (t, conn);
                link.why = "the peer chose the transport";
                let l = match free {
                    Some(l) => {
                        io.dma.nic_memory.free(self.links[l].header);
                        self.links[l] = link;
                        l
                    }
                    None => {
                        self.links.push(link);
                        self.links.len() - 1
                    }
                };
                self.by_conn.insert((t, conn), l);
                self.await_header(io, l);
                true
            }
            TransportEvent::PeerClosed { conn } | TransportEvent::Reset { conn } => {
                let Some(&l) = self.by_conn.get(&(t, conn)) else {
                    return false;
                };
                if matches!(e, TransportEvent::PeerClosed { .. }) {
                    // Bytes may still be on their way; the receive that waits will see the end.
                    return true;
                }
                io.transports[t].abort(conn);
                self.lose(io, l);
                true
            }
            TransportEvent::Closed { conn } => self.by_conn.contains_key(&(t, conn)),
        }
    }

    fn on_recv(&mut self, io: &mut Io<'_>, link: usize, token: u64, status: Status) {
        let l = &self.links[link];
        let (t, conn) = (l.transport, l.conn);
        let current = match &l.rx {
            Rx::Idle => return,
            Rx::Header(x) => *x == token,
            Rx::Payload { token: x, .. } => *x == token,
        };
        if !current {
            return;
        }
        if status != Status::Ok {
            if matches!(l.state, LinkState::Up | LinkState::Stranger(_)) {
                io.transports[t].abort(conn);
                self.lose(io, link);
            }
            return;
        }
        if let Rx::Payload { .. } = l.rx {
            return self.next_piece(io, link);
        }
        let mut bytes = [0; super::frame::HEADER];
        io.dma.nic_memory.read(l.header.at, &mut bytes);
        self.links[link].rx = Rx::Idle;
        let sound = match Frame::decode(&bytes) {
            Ok(f) => self.on_frame(io, link, f),
            Err(e) => {
                tracing::warn!(peer = ?self.links[link].peer, error = %e, "a connection of the fabric is cut");
                false
            }
        };
        if !sound {
            self.violations += 1;
            io.transports[t].abort(conn);
            return self.lose(io, link);
        }
        if let (Rx::Idle, LinkState::Up) = (&self.links[link].rx, self.links[link].state) {
            self.await_header(io, link);
        }
    }

    /// An unknown peer has identified itself. The claim is unproven until it sends the number
    /// of a communicator; until then the next peer with that address replaces it.
    pub(super) fn on_hello(&mut self, io: &mut Io<'_>, link: usize, from: SocketAddrV4) -> bool {
        if !matches!(self.links[link].state, LinkState::Stranger(_)) {
            return false;
        }
        let me = SocketAddrV4::new(self.ip, self.served.port.unwrap_or(0));
        if from >= me {
            // We are the one to connect.
            return false;
        }
        if let Some(&old) = self.by_peer.get(&from) {
            let l = &self.links[old];
            if l.proven {
                return false;
            }
            let (t, conn) = (l.transport, l.conn);
            io.transports[t].abort(conn);
            self.lose(io, old);
        }
        self.by_peer.insert(from, link);
        self.links[link].peer = Some(from);
        let l = &mut self.links[link];
        l.state = LinkState::Up;
        io.transports[l.transport].watch(l.conn);
        self.announce(link);
        true
    }

    /// Announces all common communicators to the peer of a link that has come up.
    fn announce(&mut self, link: usize) {
        let Some(peer) = self.links[link].peer else {
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
            TxKey::None => {}
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

    /// A connection is gone.
    fn lose(&mut self, io: &mut Io<'_>, link: usize) {
        let l = &mut self.links[link];
        self.by_conn.remove(&(l.transport, l.conn));
        let was_up = l.state == LinkState::Up;
        let missed = l.unsent();
        l.reset();
        l.conn = ConnId(u32::MAX);
        l.proven = false;
        l.state = LinkState::Down(io.now.plus(RETRY));
        let Some(peer) = l.peer else { return };
        let me = SocketAddrV4::new(self.ip, self.served.port.unwrap_or(0));
        if me >= peer {
            // The peer connects again; the slot is free.
            l.peer = None;
            if self.by_peer.get(&peer) == Some(&link) {
                self.by_peer.remove(&peer);
            }
        }
        if !was_up {
            return;
        }
        self.strangers.retain(|(l, _)| *l != link);
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
                } else if me < m.address {
                    // It never got as far as this communicator: the next connection may.
                    m.link = Some(link);
                }
            }
        }
        tracing::info!(%peer, "a link of the fabric is down");
    }

    /// Tries the transports from number `first`; when none is left, again a little later.
    fn connect(&mut self, io: &mut Io<'_>, link: usize, first: usize) {
        let Some(peer) = self.links[link].peer else {
            return;
        };
        for i in first..io.transports.len() {
            let deadline = io.now.plus(ATTEMPT);
            if let Ok(conn) = io.transports[i].connect(io.now, peer, deadline) {
                self.by_conn.insert((i, conn), link);
                let l = &mut self.links[link];
                (l.transport, l.conn, l.state) = (i, conn, LinkState::Connecting);
                return;
            }
        }
        self.links[link].state = LinkState::Down(io.now.plus(RETRY));
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
        for i in 0..self.links.len() {
            if self.links[i].holds(ctx) {
                let (t, conn) = (self.links[i].transport, self.links[i].conn);
                tracing::warn!(peer = ?self.links[i].peer, "a peer does not take what was sent; its link is cut");
                io.transports[t].abort(conn);
                self.lose(io, i);
            }
        }
    }

    /// Moves queued frames on, and connects what is down. `fresh`: `io.now` was read in this step.
    pub(crate) fn step(&mut self, io: &mut Io<'_>, fresh: bool) -> bool {
        let mut moved = false;
        for i in 0..self.links.len() {
            match self.links[i].state {
                LinkState::Up if self.links[i].has_queued() => {
                    let t = self.links[i].transport;
                    let mut done = std::mem::take(&mut self.done);
                    let l = &mut self.links[i];
                    moved |= l.pump(&mut *io.transports[t], &mut self.next_token, &mut done);
                    for key in done.drain(..) {
                        self.left(key);
                    }
                    self.done = done;
                }
                LinkState::Stranger(until) if fresh && until <= io.now => {
                    let (t, conn) = (self.links[i].transport, self.links[i].conn);
                    io.transports[t].abort(conn);
                    self.lose(io, i);
                    moved = true;
                }
                LinkState::Down(at) if fresh && at <= io.now && self.is_wanted(i) => {
                    self.connect(io, i, 0);
                    moved = true;
                }
                _ => {}
            }
        }
        moved
    }

    /// When a connection is tried again.
    pub(crate) fn next_timer(&self) -> Option<NicTime> {
        let of = self.links.iter().enumerate();
        of.filter_map(|(i, l)| match l.state {
            LinkState::Down(at) if self.is_wanted(i) => Some(at),
            _ => None,
        })
        .min()
    }

    /// Keeps the announcement of a communicator that is not made yet.
    pub(super) fn keep_stranger(&mut self, link: usize, f: Frame) {
        let of_link = self.strangers.iter().filter(|(l, _)| *l == link).count();
        if of_link >= MAX_STRANGERS_EACH || self.strangers.len() >= MAX_STRANGERS {
            return;
        }
        self.strangers.push_back((link, f));
    }
}
