//! Failure and abort of communicators, and the completion of their operations.

use ringbell_nic_abi::Status;

use super::agree::open_dispute;
use super::communicator::{late, Comm, Dispute, End, GRACE};
use super::gone::Gone;
use super::group::{Body, GroupEvent};
use super::number::Number;
use super::streams::streams_need;
use super::table::{News, State};
use super::{direct_path, Collectives, Fate};
use crate::link::Io;
use crate::message::Event;
use crate::types::{Owner, WorkToken};

impl Collectives {
    /// Ends a communicator because of `rank`, here and on all ranks.
    pub(super) fn end(&mut self, io: &mut Io<'_>, slot: u32, rank: u32, status: Status) {
        let now = io.now;
        let Some(c) = self.table.comm_mut(slot) else {
            return;
        };
        if c.life.end.is_some() {
            return;
        }
        if status == Status::Mismatch && c.life.ready {
            c.life.why = c.dispute.as_ref().and_then(|d| d.difference(rank));
        }
        c.life.end = Some(End {
            rank,
            status,
            until: now.plus(GRACE),
            reaped: false,
        });
        let (ctx, n) = (c.ctx, c.peers.len());
        self.table.lives.ending += 1;
        self.table.lives.unsettled = true;
        tracing::warn!(ctx, rank, %status, ranks = n, "a communicator ends");
        self.direct.abort(&mut self.table, io, slot);
        self.messages.abort(&mut self.table, io, slot);
    }

    /// Does what the paths of operations have found out.
    #[inline]
    pub(super) fn settle(&mut self, io: &mut Io<'_>) {
        if !self.table.news.is_empty() {
            self.settle_all(io);
        }
    }

    #[inline(never)]
    fn settle_all(&mut self, io: &mut Io<'_>) {
        while let Some(news) = self.table.news.pop_front() {
            match news {
                News::Ends { slot, rank, status } => self.end(io, slot, rank, status),
                News::Differs { slot, seq, rank } => {
                    self.messages.dispute(&mut self.table, slot, seq);
                    let c = self.table.comm_mut(slot);
                    if let Some(d) = c.and_then(|c| c.dispute.as_mut()) {
                        d.found = Some(rank);
                    }
                }
            }
        }
    }

    /// Retires the operations of communicators that have ended, once nothing touches their memory.
    #[inline]
    pub(super) fn reap(&mut self, io: &mut Io<'_>) -> bool {
        self.table.lives.ending > 0 && self.reap_ended(io)
    }

    #[inline(never)]
    fn reap_ended(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        for slot in self.table.used() {
            let Some(c) = self.table.comm(slot) else {
                continue;
            };
            let Some(end) = c.life.end else { continue };
            let ctx = c.ctx;
            if !end.reaped {
                if c.direct.as_ref().is_some_and(|d| d.path.is_active()) {
                    continue;
                }
                if self.messages.groups.messages.holds(ctx) {
                    if io.now < end.until {
                        continue;
                    }
                    self.messages.groups.break_holders(io, ctx);
                }
                moved = true;
                let ids: Vec<u32> = self
                    .table
                    .comm(slot)
                    .map(|c| c.active.iter().chain(&c.queue).copied().collect())
                    .unwrap_or_default();
                for id in ids {
                    let Some(a) = self.table.ops.get(id) else {
                        continue;
                    };
                    if matches!(a.state, State::Waiting) {
                        self.table.waiting -= 1;
                    }
                    let (status, detail) = a.call.own_end.unwrap_or(end.of_operations());
                    self.table.finish(slot, id, status, 0, detail);
                }
                let direct = self.table.comm_mut(slot).and_then(|c| c.direct.as_mut());
                for op in direct.map_or(Vec::new(), |d| std::mem::take(&mut d.over)) {
                    let (status, detail) = op.call.own_end.unwrap_or(end.of_operations());
                    self.table.end_direct(slot, op, status, (0, detail));
                }
                self.inboxes.comm_is_over(io, slot, end.of_operations());
                if let Some(c) = self.table.comm_mut(slot) {
                    c.queue.clear();
                    if let Some(d) = &mut c.direct {
                        d.taps.clear();
                    }
                    c.life.end = Some(End {
                        reaped: true,
                        ..end
                    });
                }
            }
            if self.table.comm(slot).is_some_and(|c| c.life.freed) {
                self.drop_comm(io, slot);
                moved = true;
            }
        }
        moved
    }

    pub(super) fn drop_comm(&mut self, io: &mut Io<'_>, slot: u32) {
        let Some(c) = self.table.take(slot) else {
            return;
        };
        let nic_memory = &mut io.dma.nic_memory;
        c.scratch.free(self.given.as_mut(), nic_memory);
        // Its engines stay, so that they can still be queried.
        for by in [Owner::communicator(slot), Owner::operands(slot)] {
            io.engines.unwatch(by);
        }
        if let Some(d) = c.direct {
            d.path.free(&mut io.dma.nic_memory, &mut self.direct.areas);
        }
        self.messages.groups.forget(io, c.ctx);
    }

    /// Notices ranks that are ready, and those that never come.
    pub(super) fn look_at_clock(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        for slot in self.table.used() {
            let now = io.now;
            let Some(c) = self.table.comm(slot) else {
                continue;
            };
            if c.life.ready || c.life.end.is_some() {
                continue;
            }
            let (ctx, limit) = (c.ctx, c.settings.connect_timeout);
            let groups = &mut self.messages.groups;
            groups.agree(ctx);
            let groups = &self.messages.groups;
            let missing = groups.missing(ctx).next();
            let is_certain = groups.is_missing(ctx);
            if let Some((rank, what)) = groups.difference(ctx) {
                if let Some(c) = self.table.comm_mut(slot) {
                    c.life.why = what.map(|what| c.settings.why_unlike(rank, what));
                }
                self.end(io, slot, rank, Status::Mismatch);
                moved = true;
                continue;
            }
            let Some(c) = self.table.comm_mut(slot) else {
                continue;
            };
            if missing.is_none() {
                c.life.ready = true;
                c.life.cards = groups.has_cards(ctx);
                moved = true;
                direct_path::join(c, groups, io);
                self.messages.route_all(&mut self.table, slot);
                self.settle(io);
                continue;
            }
            let deadline = *c.life.deadline.get_or_insert(now.plus(limit));
            if now >= deadline && !is_certain && !c.life.is_late {
                // The neighbours of the one that is missing name it first.
                c.life.is_late = true;
                c.life.deadline = Some(deadline.plus(limit / 4));
                continue;
            }
            if now >= deadline {
                self.end(io, slot, missing.unwrap_or(0), Status::PeerFailed);
                moved = true;
            }
        }
        moved
    }

    /// An operation is past its deadline, or must end for another reason.
    pub(crate) fn give_up(
        &mut self,
        io: &mut Io<'_>,
        token: WorkToken,
        status: Status,
        detail: u64,
    ) -> Fate {
        let Some((slot, _)) = self.table.call_of(token) else {
            return Fate::Now;
        };
        if let Some(id) = self.table.op_of(token) {
            if self.give_back(slot, id, status, detail) {
                return Fate::Now;
            }
        }
        // A rank that differs in an undecided dispute is better than no name at all.
        let suspect = self
            .table
            .comm(slot)
            .and_then(|c| c.dispute.as_ref())
            .and_then(Dispute::suspect);
        if let Some(r) = suspect {
            self.end(io, slot, r, Status::Mismatch);
            return Fate::Later;
        }
        // So is a rank that has not answered although it had time.
        let silent = self.silent(token).filter(|_| status == Status::TimedOut);
        if let Some(r) = silent {
            if let Some((_, call)) = self.table.call_of(token) {
                call.own_end.get_or_insert((Status::PeerFailed, r.into()));
            }
            self.end(io, slot, r, Status::PeerFailed);
            return Fate::Later;
        }
        // A rank that is alive but has not posted the operation: all ranks are notified of it.
        let absent = self.absent(token).filter(|_| status == Status::TimedOut);
        if let Some(r) = absent {
            self.end(io, slot, r, Status::TimedOut);
            return Fate::Later;
        }
        let ended = match status {
            Status::TimedOut => late(None),
            _ => detail,
        };
        if let Some((_, call)) = self.table.call_of(token) {
            call.own_end.get_or_insert((status, ended));
        }
        let rank = self.table.shape_of(slot).0;
        self.end(io, slot, rank, Status::CommAborted);
        Fate::Later
    }

    /// Ends an operation on which no other rank depends. `false`: one does.
    fn give_back(&mut self, slot: u32, id: u32, status: Status, detail: u64) -> bool {
        let Some(a) = self.table.ops.get_mut(id) else {
            return true;
        };
        // The other end of a message of this rank to itself.
        let partner = match &a.state {
            State::FromItself(copy) => Some(copy.sender),
            State::ToItself(receiver) => Some(*receiver),
            _ => None,
        };
        let alone = matches!(a.state, State::Local(_) | State::Leaving { .. });
        if !alone && partner.is_none() && !self.messages.take_back(a, id) {
            return false;
        }
        self.table.forget(id, status, detail);
        if let Some(c) = self.table.comm_mut(slot) {
            c.counters.failed += 1;
        }
        if let Some(partner) = partner {
            self.table.finish(slot, partner, status, 0, detail);
        }
        self.table.wake_leaving(slot);
        true
    }

    /// An operation has waited for most of its time: asks the other ranks whether they are alive.
    /// `false`: it has asked before, or depends on no rank, and its time is up.
    pub(crate) fn probe_peers(&mut self, io: &mut Io<'_>, token: WorkToken) -> bool {
        let Some((slot, call)) = self.table.call_of(token) else {
            return false;
        };
        if call.asked.is_some() {
            return false;
        }
        call.asked = Some(io.now);
        let seq = call.seq;
        let counts = seq.is_some();
        let asks = |c: &&Comm| counts && c.life.ready && c.life.end.is_none();
        if let Some(ctx) = self.table.comm(slot).filter(asks).map(|c| c.ctx) {
            let port = seq.map_or(0, Number::port);
            self.messages.groups.tell(ctx, Body::Ask { port });
            // Ranks that wait for each other without a message between them may run different
            // things.
            if let Some(seq) = seq {
                self.messages.dispute(&mut self.table, slot, seq);
                self.settle(io);
            }
        }
        true
    }

    /// The first rank that has not answered since an operation has asked.
    fn silent(&mut self, token: WorkToken) -> Option<u32> {
        let (slot, call) = self.table.call_of(token)?;
        let asked = call.asked.filter(|_| call.seq.is_some())?;
        let c = self
            .table
            .comm(slot)
            .filter(|c| c.life.ready && c.life.end.is_none())?;
        let mut ranks = c.life.heard.iter().zip(0..);
        // Ranks without a link were not asked: others that need them name them.
        let groups = &self.messages.groups;
        let was_asked = |r: u32| r != c.rank && groups.is_linked(c.ctx, r);
        let silent = ranks.find(|(heard, r)| was_asked(*r) && !heard.is_since(asked));
        silent.map(|(_, r)| r)
    }

    /// The first rank that has answered and had not posted the operation by then.
    fn absent(&mut self, token: WorkToken) -> Option<u32> {
        let (slot, call) = self.table.call_of(token)?;
        let (asked, seq) = (call.asked?, call.seq?);
        let mut ranks = self.table.comm(slot)?.life.heard.iter().zip(0..);
        let absent = ranks.find(|(heard, _)| heard.is_behind(asked, seq));
        absent.map(|(_, r)| r)
    }

    /// Ends everything at once: links that hold payload are cut. With `last`, the NIC ends too:
    /// ranks that still need what this one has sent can go on, for communicators without operations
    /// here are left in order, and links are closed behind what they carry.
    pub(crate) fn abort_all(&mut self, io: &mut Io<'_>, status: Status, last: bool) {
        if last {
            for id in self.table.ids() {
                let slot = self.table.find(id.0);
                let idle = |s: &u32| {
                    let is_ready = self.table.comm(*s).is_some_and(|c| c.life.ready);
                    is_ready && self.all_under_way(*s) == 0
                };
                if slot.as_ref().is_some_and(idle) {
                    let _ = self.free(io, id);
                }
            }
        }
        for slot in self.table.used() {
            let rank = self.table.shape_of(slot).0;
            self.end(io, slot, rank, Status::CommAborted);
            let Some(c) = self.table.comm_mut(slot) else {
                continue;
            };
            let ids: Vec<u32> = c.active.iter().chain(&c.queue).copied().collect();
            if let Some(end) = &mut c.life.end {
                end.until = io.now;
            }
            for id in ids {
                if let Some(a) = self.table.ops.get_mut(id) {
                    a.call.own_end = Some((status, 0));
                }
            }
            let direct = self.table.comm_mut(slot).and_then(|c| c.direct.as_mut());
            for call in direct.into_iter().flat_map(|d| d.calls()) {
                call.own_end = Some((status, 0));
            }
        }
        // Frames that can leave at once still notify the peers.
        self.messages.groups.step(io, false);
        self.direct.drain(&mut self.table, io);
        self.settle(io);
        self.reap(io);
        if last {
            self.messages.groups.close(io);
        }
    }

    /// Cancels an operation on which no other rank depends yet: a message that has met no partner,
    /// or a waiting operation that is no collective (a collective takes its number when it is
    /// posted, on all ranks alike). `false`: too late.
    pub(crate) fn cancel(&mut self, token: WorkToken) -> bool {
        let Some(id) = self.table.op_of(token) else {
            return false;
        };
        let Some(a) = self.table.ops.get_mut(id) else {
            return false;
        };
        let gone = self.messages.take_back(a, id);
        if gone {
            self.table.forget(id, Status::Cancelled, 0);
        }
        gone
    }

    #[inline]
    pub(super) fn take_events(&mut self, io: &mut Io<'_>) -> bool {
        self.messages.groups.has_events() && self.take_all_events(io)
    }

    #[inline(never)]
    fn take_all_events(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        // What has come counts before the news of a rank that sends nothing more.
        loop {
            if let Some(e) = self.messages.groups.messages.poll_event() {
                self.on_message(io, e);
            } else if let Some(e) = self.messages.groups.poll_event() {
                self.on_group(io, e);
            } else {
                break;
            }
            moved = true;
            self.settle(io);
        }
        self.messages.copy_own(&mut self.table);
        moved
    }

    fn on_message(&mut self, io: &mut Io<'_>, e: Event) {
        if self.inboxes.on_event(io, &e) {
            return;
        }
        match e {
            // Claims are those of inboxes.
            Event::Met { .. } => {}
            Event::Sent {
                key,
                status,
                detail,
            } => self.messages.sent(&mut self.table, key, status, detail),
            Event::Received {
                key,
                status,
                from,
                len,
                detail,
            } => {
                let how = (status, detail);
                let message = (from, len);
                self.messages
                    .received(&mut self.table, io, key, how, message);
            }
            Event::Seen {
                ctx,
                from,
                tag,
                hash,
            } => {
                let Some(slot) = self.table.slot_of(ctx) else {
                    return;
                };
                self.messages
                    .on_seen(&mut self.table, slot, from, tag, hash);
            }
        }
    }

    fn on_group(&mut self, io: &mut Io<'_>, e: GroupEvent) {
        match e {
            GroupEvent::Lost { ctx, rank } => {
                self.is_gone(io, ctx, Gone::failed(io.now, rank, rank));
            }
            // It has noticed before us that a rank is gone; messages that are here already are
            // processed first.
            GroupEvent::Aborted {
                ctx,
                from,
                rank,
                status: Status::PeerFailed,
            } => self.is_gone(io, ctx, Gone::failed(io.now, from, rank)),
            GroupEvent::Aborted {
                ctx, rank, status, ..
            } => {
                if let Some(slot) = self.table.slot_of(ctx) {
                    self.end(io, slot, rank, status);
                }
            }
            GroupEvent::Params {
                ctx,
                from,
                seq,
                params,
            } => {
                let Some(slot) = self.table.slot_of(ctx) else {
                    return;
                };
                let seq = Number::from_word(seq);
                open_dispute(&mut self.table, slot, seq);
                if let Some(d) = self.table.comm_mut(slot).and_then(|c| c.dispute.as_mut()) {
                    if d.seq == seq {
                        if let Some(said) = d.said.get_mut(from as usize) {
                            *said = Some(params);
                        }
                    }
                }
                self.messages.judge(&mut self.table, slot);
            }
            GroupEvent::Asked { ctx, rank, port } => {
                let slot = self.table.slot_of(ctx);
                if let Some(c) = slot.and_then(|s| self.table.comm(s)) {
                    let next = c.numbers.next(port);
                    self.messages.groups.say_here(ctx, rank, next);
                }
            }
            GroupEvent::Here { ctx, rank, next } => {
                let now = io.now;
                let slot = self.table.slot_of(ctx);
                let comm = slot.and_then(|s| self.table.comm_mut(s));
                if let Some(heard) = comm.and_then(|c| c.life.heard.get_mut(rank as usize)) {
                    heard.note(now, next);
                }
            }
            GroupEvent::Left { ctx, rank } => {
                self.is_gone(io, ctx, Gone::left(rank));
            }
        }
    }

    fn is_gone(&mut self, io: &mut Io<'_>, ctx: u64, gone: Gone) {
        let Some(slot) = self.table.slot_of(ctx) else {
            return;
        };
        let Some(c) = self.table.comm_mut(slot) else {
            return;
        };
        if !c.life.ready {
            // It never begins.
            return self.end(io, slot, gone.blame, gone.status);
        }
        c.life.gone.push(gone);
        self.table.lives.gone += 1;
    }

    /// Ends the communicators that need a rank that sends nothing more, or need others for too long
    /// after it. Called when all its messages have been processed.
    pub(super) fn look_at_gone(&mut self, io: &mut Io<'_>) -> bool {
        let (mut moved, now) = (false, io.now);
        for slot in self.table.used() {
            let comm = self.table.comm_mut(slot);
            let Some(c) = comm.filter(|c| c.life.end.is_none()) else {
                continue;
            };
            for g in &mut c.life.gone {
                g.until = g.until.filter(|at| now < *at);
            }
            let Some(c) = self.table.comm(slot) else {
                continue;
            };
            let busy = self.all_under_way(slot) > 0;
            // Work of this rank alone goes on: a kernel may pop what has come.
            let others = || (0..c.ranks()).any(|r| r != c.rank && self.waits_for(c, r));
            let ends = |g: &&Gone| match busy {
                true => self.waits_for(c, g.rank) || (!g.left && g.until.is_none() && others()),
                false => !g.left,
            };
            if let Some(g) = c.life.gone.iter().find(ends).copied() {
                // A rank that has seen a difference may end before it has said so.
                let dispute = c.dispute.as_ref();
                match dispute.and_then(|d| d.found_without(g.rank)) {
                    Some(rank) => self.end(io, slot, rank, Status::Mismatch),
                    None => self.end(io, slot, g.blame, g.status),
                }
                moved = true;
            }
        }
        moved
    }

    /// Operations of a communicator that have not ended, by queues and by inboxes.
    pub(super) fn all_under_way(&self, slot: u32) -> usize {
        let queued = self.table.comm(slot).map_or(0, Comm::under_way);
        queued + self.inboxes.under_way(slot)
    }

    /// Whether an operation under way needs more of a rank than it has sent and stored.
    fn waits_for(&self, c: &Comm, rank: u32) -> bool {
        let direct = c.direct.as_ref();
        let dispute = c.dispute.as_ref();
        dispute.is_some_and(|d| d.suspect().is_some() || d.found_without(rank).is_some())
            || streams_need(&self.table, &self.messages.groups.messages, c, rank)
            || self.messages.groups.waits_for(c.ctx, rank)
            || direct.is_some_and(|d| d.path.waits_for(rank))
    }
}
