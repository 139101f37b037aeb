//! The fabric: messages between the ranks of communicators.
//!
//! One [link](crate::link) per pair of NICs carries the frames of all communicators that both belong to; the number of a
//! communicator is its channel. Messages are matched by communicator, sender
//! and tag, so a message without a receive never blocks the link:
//!
//! - *eager*: header and payload at once, into the receive that waits, or into one of the receive
//!   buffers that the receiver keeps for each sender. The sender counts them; messages the other way announce free ones. When none is free it
//! - asks (*rendezvous*): the header alone; when a receive has met it the receiver names it, and the
//!   payload goes straight into its memory;
//! - *written*: over a transport whose receives can be exposed a rank announces each longer receive of a collective when it posts it, with a
//!   key. The sender asks for nothing and writes to that memory; immediate data with the last bytes end the receive.
//!
//! A peer that breaks the protocol loses its connection and nothing else. Frames of a
//! communicator that has ended are read and dropped.

mod arrive;
mod frame;
mod group;
mod members;

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use ringbell_nic_abi::Status;
use rustc_hash::FxHashMap;

pub(crate) use arrive::Own;
pub(crate) use frame::{Envelope, Frame};
pub(crate) use group::{Group, STREAM_TAG, USER_TAG};

use super::params::Params;
use super::slab::Slab;
use crate::link::{Io, Link, Links, Outgoing, Pieces};
use crate::types::{ConnId, Owner};
use group::{Early, EarlyKind, UserRecv};

/// An event of the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FabricEvent {
    /// A message has left: its memory may be reused.
    Sent {
        key: u64,
        status: Status,
        detail: u64,
    },
    /// A message is in the memory of its receive.
    Received {
        key: u64,
        status: Status,
        from: u32,
        len: u64,
        detail: u64,
    },
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
    /// A collective message has come whose operation the engine must judge: its hash is given.
    Seen {
        ctx: u64,
        from: u32,
        tag: u64,
        hash: u32,
    },
    /// A rank has freed the communicator.
    Left { ctx: u64, rank: u32 },
    /// A rank asks whether this one is alive.
    Asked { ctx: u64, rank: u32 },
    /// A rank has answered that it is alive, and how many collectives were posted there.
    Here { ctx: u64, rank: u32, posted: u32 },
}

/// A rank's announcement to its peers when it joins, besides its settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tells {
    /// Hash of what all ranks must be given alike.
    pub(crate) hash: u32,
    /// Its area of the direct path; 0: it has none.
    pub(crate) area: u32,
    /// Its card executes programs of rings.
    pub(crate) card: bool,
    /// Owner of its payloads for engines; never sent to peers.
    pub(crate) by: Owner,
}

/// A message to be sent.
#[derive(Debug)]
pub(crate) struct SendRequest {
    pub(crate) ctx: u64,
    pub(crate) to: u32,
    pub(crate) tag: u64,
    pub(crate) hash: u32,
    pub(crate) pieces: Pieces,
    pub(crate) key: u64,
}

/// A message to be received.
#[derive(Debug)]
pub(crate) struct RecvRequest {
    pub(crate) ctx: u64,
    /// Any rank, when none: user messages alone.
    pub(crate) from: Option<u32>,
    /// Any tag, when none: user messages alone.
    pub(crate) tag: Option<u64>,
    pub(crate) hash: u32,
    pub(crate) pieces: Pieces,
    /// Messages that have not left may lie in its memory.
    pub(crate) in_use: bool,
    pub(crate) key: u64,
}

#[derive(Debug)]
struct Sending {
    ctx: u64,
    to: u32,
    pieces: Pieces,
    key: u64,
    /// User messages end when the peer has taken them.
    user: bool,
    cleared: bool,
    left: bool,
    taken: bool,
}

#[derive(Debug)]
struct Receiving {
    ctx: u64,
    pieces: Pieces,
    key: u64,
    user: bool,
    from: Option<u32>,
    tag: Option<u64>,
    hash: u32,
    /// As of the request.
    in_use: bool,
    /// The message it has met, or, of an exposed one, will.
    met: Option<Met>,
    /// The peer may write its memory.
    exposed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Met {
    from: u32,
    tag: u64,
    len: u64,
    send: u32,
    arriving: bool,
}

/// What is told when a frame's payload has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TxKey {
    /// The engine.
    Engine(u64),
    /// The message with this number.
    Send(u32),
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Fabric {
    links: Links<TxKey>,
    /// Announcements of communicators that we have not made: by number and rank.
    early_joins: VecDeque<(usize, Frame)>,
    groups: FxHashMap<u64, Group>,
    sends: Slab<Sending>,
    recvs: Slab<Receiving>,
    earlies: Slab<Early>,
    events: VecDeque<FabricEvent>,
    done: Vec<TxKey>,
    /// Messages of this rank to itself that have met their receives.
    own: VecDeque<Own>,
    /// Connections that broke the protocol.
    pub(crate) violations: u64,
}

/// Announcements kept for communicators that are not made yet.
const EARLY_JOINS_MAX: usize = 4096;

impl Fabric {
    pub(crate) fn new(ip: Ipv4Addr) -> Fabric {
        Fabric {
            links: Links::new(ip),
            early_joins: VecDeque::new(),
            groups: FxHashMap::default(),
            sends: Slab::default(),
            recvs: Slab::default(),
            earlies: Slab::default(),
            events: VecDeque::new(),
            done: Vec::new(),
            own: VecDeque::new(),
            violations: 0,
        }
    }

    /// Whether [`poll_event`](Fabric::poll_event) has something.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next thing that has happened.
    pub(crate) fn poll_event(&mut self) -> Option<FabricEvent> {
        self.events.pop_front()
    }

    /// Whether messages are on their way.
    pub(crate) fn is_busy(&self) -> bool {
        self.links.iter().any(Link::is_busy)
    }

    /// Whether the transports hold payload of a communicator: its memory is in use.
    pub(crate) fn holds(&self, ctx: u64) -> bool {
        self.links.iter().any(|l| l.holds(ctx))
    }

    pub(crate) fn group(&self, ctx: u64) -> Option<&Group> {
        self.groups.get(&ctx)
    }

    /// The transport of a rank's link, and why.
    pub(crate) fn route(&self, ctx: u64, rank: u32) -> Option<(usize, ConnId, &'static str)> {
        let l = self.groups.get(&ctx)?.members.get(rank as usize)?.link?;
        let l = self.links.at(l);
        let (t, conn) = l.session();
        l.is_up().then_some((t, conn, l.why()))
    }

    fn frame(&mut self, ctx: u64, to: u32, frame: Frame) {
        self.frame_with(ctx, to, frame, Pieces::default(), None, None);
    }

    fn frame_with(
        &mut self,
        ctx: u64,
        to: u32,
        frame: Frame,
        payload: Pieces,
        key: Option<TxKey>,
        write: Option<u32>,
    ) {
        let link = self
            .groups
            .get(&ctx)
            .and_then(|g| Some((g.members.get(to as usize)?.link?, g.by)));
        if let Some((l, by)) = link {
            self.links.at_mut(l).queue(Outgoing {
                channel: ctx,
                by,
                head: frame.encode(),
                payload,
                key,
                to: write,
                outlives: frame.reports_an_end(),
            });
        } else if key.is_some() {
            let g = self.groups.get_mut(&ctx);
            if let Some(m) = g.and_then(|g| g.members.get_mut(to as usize)) {
                m.missed = true;
            }
        }
    }

    /// Sends a message; `Sent` follows unless the communicator ends before.
    pub(crate) fn send(&mut self, r: SendRequest) {
        let user = r.tag & USER_TAG != 0;
        let len = r.pieces.len();
        let Some(g) = self.groups.get(&r.ctx) else {
            return;
        };
        let eager_max = g.members[r.to as usize].eager_max;
        if !user && self.is_written(r.ctx, r.to, len, eager_max) {
            return self.write(r);
        }
        let Some(g) = self.groups.get_mut(&r.ctx) else {
            return;
        };
        let from = g.rank;
        let m = &mut g.members[r.to as usize];
        let fits = len <= m.eager_max;
        let eager = len == 0 || (fits && m.credits > 0);
        if eager {
            g.counts.eager += 1;
            if len > 0 {
                m.credits -= 1;
            }
        } else {
            g.counts.rendezvous += 1;
            g.counts.without_credit += u64::from(fits);
        }
        let mut send = 0;
        if user || !eager {
            let sending = Sending {
                ctx: r.ctx,
                to: r.to,
                pieces: r.pieces.clone(),
                key: r.key,
                user,
                cleared: eager,
                left: false,
                taken: false,
            };
            match self.sends.insert(sending) {
                Some(id) => send = id,
                None => {
                    self.events.push_back(FabricEvent::Sent {
                        key: r.key,
                        status: Status::NoResources,
                        detail: 1 << 18,
                    });
                    return;
                }
            }
        }
        // A user message can be taken back, and its credits with it.
        let carries = eager && !user;
        let credits = match self.groups.get_mut(&r.ctx) {
            Some(g) if carries => std::mem::take(&mut g.members[r.to as usize].pending_credits),
            _ => 0,
        };
        let e = Envelope {
            from,
            ctx: r.ctx,
            tag: r.tag,
            len,
            hash: r.hash,
            send,
            credits,
        };
        if eager {
            let key = if user {
                TxKey::Send(send)
            } else {
                TxKey::Engine(r.key)
            };
            self.frame_with(r.ctx, r.to, Frame::Eager(e), r.pieces, Some(key), None);
        } else {
            self.frame(r.ctx, r.to, Frame::Request(e));
        }
    }

    /// Posts a receive; `Received` follows unless the communicator ends before. Returns its number.
    pub(crate) fn recv(&mut self, io: &mut Io<'_>, r: RecvRequest) -> Option<u32> {
        let user = r.tag.is_none_or(|t| t & USER_TAG != 0);
        let id = self.recvs.insert(Receiving {
            ctx: r.ctx,
            pieces: r.pieces,
            key: r.key,
            user,
            from: r.from,
            tag: r.tag,
            hash: r.hash,
            in_use: r.in_use,
            met: None,
            exposed: false,
        })?;
        self.wait(io, id);
        Some(id)
    }

    /// A receive without a message meets one that is there, or waits.
    fn wait(&mut self, io: &mut Io<'_>, id: u32) {
        let Some(r) = self.recvs.get(id) else { return };
        let ctx = r.ctx;
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        if r.user {
            let waiting = UserRecv {
                id,
                from: r.from,
                tag: r.tag,
            };
            let earlies = &self.earlies;
            let found = g.user_early.iter().position(|e| {
                earlies
                    .get(*e)
                    .is_some_and(|e| waiting.takes(e.from, e.tag))
            });
            match found.and_then(|i| g.user_early.remove(i)) {
                Some(e) => self.meet(io, id, e),
                None => g.user_posted.push_back(waiting),
            }
        } else if let (Some(from), Some(tag)) = (r.from, r.tag) {
            match g.early.remove(&(from, tag)) {
                Some(e) => self.meet(io, id, e),
                None if self.announce_recv(io, id, (from, tag)) => {}
                None => {
                    if let Some(g) = self.groups.get_mut(&ctx) {
                        g.posted.insert((from, tag), id);
                    }
                }
            }
        }
    }

    /// Whether any message has come before its receive.
    pub(crate) fn has_early(&self) -> bool {
        !self.earlies.is_empty()
    }

    /// Collective messages without a receive, and announced receives without a message: peer, tag and hash.
    pub(crate) fn early(&self, ctx: u64) -> impl Iterator<Item = (u32, u64, u32)> + '_ {
        let all = self
            .groups
            .get(&ctx)
            .into_iter()
            .flat_map(|g| g.early.values().chain(g.writes.ready.values()));
        all.filter_map(|id| self.earlies.get(*id))
            .map(|e| (e.from, e.tag, e.hash))
    }

    /// Whether an operation under way needs a rank that sends nothing more. (A
    /// receive from any rank waits for a rank that is lost, but not for one that has left in order.)
    pub(crate) fn waits_for(&self, ctx: u64, rank: u32) -> bool {
        let member = self.groups.get(&ctx).map(|g| &g.members[rank as usize]);
        let lost = member.is_some_and(|m| m.lost);
        let received = |r: &Receiving| {
            r.ctx == ctx
                && match r.met {
                    Some(m) => m.from == rank && (lost || !m.arriving),
                    None => r.from.map_or(lost, |from| from == rank),
                }
        };
        let sent = |s: &Sending| {
            let answered = s.cleared && (s.taken || !s.user);
            s.ctx == ctx && s.to == rank && (lost || !answered)
        };
        member.is_some_and(|m| m.missed)
            || self.recvs.iter().any(|(_, r)| received(r))
            || self.sends.iter().any(|(_, s)| sent(s))
    }

    /// The NIC ends: what is queued leaves, and the peers see an orderly end after it.
    pub(crate) fn close(&mut self, io: &mut Io<'_>) {
        self.step(io, false);
        self.links.close(io);
    }

    /// An orderly end: nothing is under way, and what arrives is dropped.
    pub(crate) fn retire(&mut self, ctx: u64) {
        if let Some(g) = self.groups.get_mut(&ctx) {
            g.dead = true;
        }
    }

    /// Whether transports have been given messages, or room for payloads, since this was last asked.
    #[inline]
    pub(crate) fn take_posted(&mut self) -> bool {
        self.links.take_posted()
    }

    /// Whether a step would find nothing to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.events.is_empty()
            && !self.links.has_heads()
            && !self.links.iter().any(Link::has_queued)
    }

    /// Cancels a receive that has met no message. `false`: it has, and cannot be cancelled.
    pub(crate) fn cancel_recv(&mut self, id: u32) -> bool {
        let Some(r) = self.recvs.get(id) else {
            return true;
        };
        if r.met.is_some() {
            return false;
        }
        let ctx = r.ctx;
        self.recvs.remove(id);
        if let Some(g) = self.groups.get_mut(&ctx) {
            g.user_posted.retain(|u| u.id != id);
            g.posted.retain(|_, p| *p != id);
        }
        true
    }

    /// Cancels a user message whose payload has not left. `false`: it cannot be cancelled.
    pub(crate) fn cancel_send(&mut self, key: u64) -> bool {
        let found = self.sends.ids(|s| s.user && s.key == key);
        let Some(&id) = found.first() else {
            return true;
        };
        let Some(s) = self.sends.get(id) else {
            return true;
        };
        let (ctx, to, cleared) = (s.ctx, s.to, s.cleared);
        if self.groups.get(&ctx).is_some_and(|g| g.rank == to) {
            self.cancel_own(ctx, id);
            return true;
        }
        let queued = self
            .groups
            .get(&ctx)
            .and_then(|g| g.members[to as usize].link)
            .is_some_and(|l| self.links.at_mut(l).take_back(TxKey::Send(id)));
        if s_left_only(self.sends.get(id)) {
            // It lies in the peer's buffer already: only the answer is missing.
            self.sends.remove(id);
            return true;
        }
        if cleared && !queued {
            return false;
        }
        self.sends.remove(id);
        if let Some(g) = self.groups.get(&ctx) {
            let from = g.rank;
            self.frame(
                ctx,
                to,
                Frame::Withdraw {
                    ctx,
                    from,
                    send: id,
                },
            );
        }
        true
    }

    /// Whether an answer of a communicator waits to leave.
    fn answers(&self, link: usize, ctx: u64) -> bool {
        let mut queued = self.links.at(link).queued();
        queued.any(|m| m.channel == ctx && Frame::is_answer(&m.head))
    }

    /// Answers a rank that this one is alive, unless an answer is on its way.
    pub(crate) fn say_here(&mut self, ctx: u64, to: u32, posted: u32) {
        let Some(g) = self.groups.get(&ctx) else {
            return;
        };
        let from = g.rank;
        let link = g.members.get(to as usize).and_then(|m| m.link);
        if link.is_some_and(|l| !self.answers(l, ctx)) {
            self.frame(ctx, to, Frame::Here { ctx, from, posted });
        }
    }

    /// Sends a frame to one rank, or to all.
    pub(crate) fn tell(&mut self, ctx: u64, frame: impl Fn(u32) -> Frame) {
        let Some(g) = self.groups.get(&ctx) else {
            return;
        };
        let (rank, n) = (g.rank, g.members.len() as u32);
        for to in (0..n).filter(|r| *r != rank) {
            self.frame(ctx, to, frame(rank));
        }
    }

    /// A message has met its receive.
    fn meet(&mut self, io: &mut Io<'_>, recv: u32, early: u32) {
        let Some(e) = self.earlies.get_mut(early) else {
            return;
        };
        let (ctx, from, tag, len, send) = (e.ctx, e.from, e.tag, e.len, e.send);
        if let Some(g) = self.groups.get_mut(&ctx) {
            g.members[from as usize].early -= 1;
        }
        let (kind, hash) = (e.kind, e.hash);
        if kind == EarlyKind::Own {
            self.earlies.remove(early);
            return self.meet_own(recv, send, from, tag);
        }
        let arriving = matches!(kind, EarlyKind::Buffered { ready: false, .. });
        if arriving {
            e.claimed = Some(0);
        }
        if !self.fits(recv, from, tag, len, hash, send) {
            // A message that is still arriving is dropped at its end: no receive claims it.
            if !arriving {
                self.free_early(early);
            }
            return;
        }
        if let Some(e) = self.earlies.get_mut(early).filter(|_| arriving) {
            e.claimed = Some(recv);
        }
        match kind {
            EarlyKind::Own | EarlyKind::Receive(_) => {}
            EarlyKind::Requested => {
                self.earlies.remove(early);
                self.clear(recv, from, tag, len, send);
            }
            EarlyKind::Buffered { ready: false, .. } => {
                self.set_met(recv, from, tag, len, send);
            }
            EarlyKind::Buffered { ready: true, .. } => {
                self.set_met(recv, from, tag, len, send);
                self.copy_out(io, recv, early);
            }
        }
    }

    fn set_met(&mut self, recv: u32, from: u32, tag: u64, len: u64, send: u32) {
        if let Some(r) = self.recvs.get_mut(recv) {
            r.met = Some(Met {
                from,
                tag,
                len,
                send,
                arriving: false,
            });
        }
    }

    /// Whether a message may go into a receive; otherwise both ends are notified.
    fn fits(&mut self, recv: u32, from: u32, tag: u64, len: u64, hash: u32, send: u32) -> bool {
        let Some(r) = self.recvs.get(recv) else {
            return false;
        };
        let (ctx, room, key) = (r.ctx, r.pieces.len(), r.key);
        let rank = self.groups.get(&ctx).map_or(0, |g| g.rank);
        if r.user {
            // Messages carry no hash, streams one of what both ends must agree on.
            let (status, mine, theirs) = match (hash == r.hash, len <= room) {
                (true, true) => return true,
                (true, false) => (Status::MessageTooLarge, len, len),
                (false, _) => (Status::Mismatch, from.into(), rank.into()),
            };
            self.recvs.remove(recv);
            self.events.push_back(FabricEvent::Received {
                key,
                status,
                from,
                len: 0,
                detail: mine,
            });
            let refused = Frame::Refused {
                ctx,
                from: rank,
                send,
                status,
                detail: theirs,
            };
            self.frame(ctx, from, refused);
            return false;
        }
        if hash == r.hash && len == room {
            return true;
        }
        // The receive stays without a message: the engine finds out which rank is wrong.
        self.events.push_back(FabricEvent::Seen {
            ctx,
            from,
            tag,
            hash: if hash == r.hash { 0 } else { hash },
        });
        false
    }

    /// Asks the sender of a message for its payload.
    fn clear(&mut self, recv: u32, from: u32, tag: u64, len: u64, send: u32) {
        self.set_met(recv, from, tag, len, send);
        let Some(ctx) = self.recvs.get(recv).map(|r| r.ctx) else {
            return;
        };
        let rank = self.groups.get(&ctx).map_or(0, |g| g.rank);
        let clear = Frame::Clear {
            ctx,
            from: rank,
            send,
            recv,
        };
        self.frame(ctx, from, clear);
    }

    /// Moves a message from its buffer to its receive.
    fn copy_out(&mut self, io: &mut Io<'_>, recv: u32, early: u32) {
        let Some(e) = self.earlies.get(early) else {
            return;
        };
        let EarlyKind::Buffered { buffer, .. } = e.kind else {
            return;
        };
        let (ctx, from, len) = (e.ctx, e.from, e.len);
        let at = buffer.and_then(|b| self.groups.get(&ctx)?.buffer_at(from, b));
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
    fn received(&mut self, recv: u32, failed: Option<(Status, u64)>) {
        let Some(r) = self.recvs.remove(recv) else {
            return;
        };
        let (status, detail) = failed.unwrap_or((Status::Ok, 0));
        let (from, len) = r.met.map_or((0, 0), |m| (m.from, m.len));
        let tag = r.met.map_or(0, |m| m.tag);
        self.events.push_back(FabricEvent::Received {
            key: r.key,
            status,
            from,
            len,
            detail: if status == Status::Ok { tag } else { detail },
        });
    }

    /// Drops an early message; its buffer goes back to the sender.
    fn free_early(&mut self, early: u32) {
        let Some(e) = self.earlies.remove(early) else {
            return;
        };
        if let EarlyKind::Buffered {
            buffer: Some(b), ..
        } = e.kind
        {
            if let Some(g) = self.groups.get_mut(&e.ctx) {
                g.members[e.from as usize].free.push(b);
            }
            self.owe(e.ctx, e.from);
        }
    }

    /// A receive buffer is free again. The sender is told with the next message to it, or of half of them at once.
    fn owe(&mut self, ctx: u64, to: u32) {
        let Some(g) = self.groups.get_mut(&ctx) else {
            return;
        };
        let (rank, limit) = (g.rank, (g.eager_buffers / 2).max(1));
        let m = &mut g.members[to as usize];
        m.pending_credits += 1;
        if m.pending_credits >= limit {
            let n = std::mem::take(&mut m.pending_credits);
            self.frame(ctx, to, Frame::Credit { ctx, from: rank, n });
        }
    }
}

/// Whether a message has left and only waits for the answer.
fn s_left_only(s: Option<&Sending>) -> bool {
    s.is_some_and(|s| s.left)
}
