//! Failure and abort of communicators, and the completion of their operations.

use ringbell_nic_abi::Status;

use super::communicator::{late, Comm, Dispute, End, GRACE};
use super::fabric::Frame;
use super::{Collectives, Fate, Io, State};
use crate::types::{NicTime, Owner, WorkToken};

impl Collectives {
    /// Ends a communicator because of `rank`, here and on all ranks.
    pub(super) fn end(&mut self, io: &mut Io<'_>, slot: u32, rank: u32, status: Status) {
        let now = io.now;
        let Some(c) = self.comm_mut(slot) else {
            return;
        };
        if c.life.end.is_some() {
            return;
        }
        if status == Status::Mismatch {
            c.life.why = c.dispute.as_ref().and_then(|d| d.difference(rank));
        }
        c.life.end = Some(End {
            rank,
            status,
            until: now.plus(GRACE),
            reaped: false,
        });
        let (ctx, n) = (c.ctx, c.peers.len());
        self.lives.ending += 1;
        self.lives.unsettled = true;
        tracing::warn!(ctx, rank, %status, ranks = n, "a communicator ends");
        self.abort_direct(io, slot);
        self.fabric.kill(io, ctx, |from| Frame::Abort {
            ctx,
            from,
            rank,
            status,
        });
    }

    /// An operation has met a fault of this rank's memory.
    pub(super) fn fault(
        &mut self,
        io: &mut Io<'_>,
        slot: u32,
        id: u32,
        (status, detail): (Status, u64),
    ) {
        let Some(a) = self.ops.get_mut(id) else {
            return;
        };
        if a.seq.is_none() {
            return self.finish(slot, id, status, 0, detail);
        }
        // The other ranks wait for this one: they are notified.
        a.own_end = Some((status, detail));
        let rank = self.shape_of(slot).0;
        self.end(io, slot, rank, Status::CommAborted);
    }

    /// Retires the operations of communicators that have ended, once nothing touches their memory.
    #[inline]
    pub(super) fn reap(&mut self, io: &mut Io<'_>) -> bool {
        self.lives.ending > 0 && self.reap_ended(io)
    }

    #[inline(never)]
    fn reap_ended(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        let slots: Vec<u32> = self.by_ctx.values().copied().collect();
        for slot in slots {
            let Some(c) = self.comm(slot) else { continue };
            let Some(end) = c.life.end else { continue };
            let ctx = c.ctx;
            if !end.reaped {
                if c.direct.as_ref().is_some_and(|d| d.path.is_active()) {
                    continue;
                }
                if self.fabric.holds(ctx) {
                    if io.now < end.until {
                        continue;
                    }
                    self.fabric.break_holders(io, ctx);
                }
                moved = true;
                let ids: Vec<u32> = self
                    .comm(slot)
                    .map(|c| c.active.iter().chain(&c.queue).copied().collect())
                    .unwrap_or_default();
                for id in ids {
                    let Some(a) = self.ops.get(id) else { continue };
                    if matches!(a.state, State::Waiting) {
                        self.waiting -= 1;
                    }
                    let (status, detail) = a.own_end.unwrap_or(end.of_operations());
                    self.finish(slot, id, status, 0, detail);
                }
                if let Some(c) = self.comm_mut(slot) {
                    c.queue.clear();
                    c.life.end = Some(End {
                        reaped: true,
                        ..end
                    });
                }
            }
            if self.comm(slot).is_some_and(|c| c.life.freed) {
                self.drop_comm(io, slot);
                moved = true;
            }
        }
        moved
    }

    pub(super) fn drop_comm(&mut self, io: &mut Io<'_>, slot: u32) {
        let s = &mut self.comms[slot as usize];
        if let Some(c) = s.comm.take() {
            self.lives.ending -= usize::from(c.life.end.is_some());
            io.dma.nic_memory.free(c.scratch);
            // Its engines stay, so that they can still be queried.
            for by in [Owner::communicator(slot), Owner::operands(slot)] {
                io.dma.engines.unwatch(by);
            }
            if let Some(d) = c.direct {
                d.path.free(&mut io.dma.nic_memory, &mut self.areas);
            }
            self.by_ctx.remove(&c.ctx);
            self.fabric.forget(io, c.ctx);
        }
    }

    /// Notices ranks that are ready, and those that never come.
    pub(super) fn look_at_clock(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        let slots: Vec<u32> = self.by_ctx.values().copied().collect();
        for slot in slots {
            let now = io.now;
            let Some(c) = self.comm(slot) else { continue };
            if c.life.ready || c.life.end.is_some() {
                continue;
            }
            let (ctx, limit) = (c.ctx, c.settings.connect_timeout);
            let group = self.fabric.group(ctx);
            let ready = group.is_none_or(|g| g.is_ready());
            let missing = group.and_then(|g| g.missing().first().copied());
            let Some(c) = self.comm_mut(slot) else {
                continue;
            };
            if ready {
                c.life.ready = true;
                moved = true;
                self.join_direct(io, slot);
                self.route_all(io, slot);
                continue;
            }
            let deadline = *c.life.deadline.get_or_insert(now.plus(limit));
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
        let Some(id) = self.op_of(token) else {
            return Fate::Now;
        };
        let Some(a) = self.ops.get_mut(id) else {
            return Fate::Now;
        };
        let slot = a.comm;
        // The other end of a message of this rank to itself.
        let partner = match &a.state {
            State::FromItself(copy) => Some(copy.sender),
            State::ToItself(receiver) => Some(*receiver),
            _ => None,
        };
        let gone = match &mut a.state {
            State::FromItself(_) | State::ToItself(_) => true,
            State::Channel(c) => c.take_back(id, &mut self.fabric),
            State::Waiting => a.seq.is_none(),
            State::Message(Some(recv)) => self.fabric.cancel_recv(*recv),
            State::Message(None) => self.fabric.cancel_send(u64::from(id) << 32),
            State::Local(_) | State::Leaving { .. } => true,
            State::Running(_) | State::Direct => false,
        };
        if gone {
            if matches!(a.state, State::Waiting) {
                self.waiting -= 1;
            }
            self.forget(id, status, detail);
            if let Some(c) = self.comm_mut(slot) {
                c.active.retain(|o| *o != id);
                c.queue.retain(|o| *o != id);
                c.counters.failed += 1;
            }
            if let Some(partner) = partner {
                self.finish(slot, partner, status, 0, detail);
            }
            self.wake_leaving(slot);
            return Fate::Now;
        }
        // A rank that differs in an undecided dispute is better than no name at all.
        let suspect = self
            .comm(slot)
            .and_then(|c| c.dispute.as_ref())
            .and_then(Dispute::suspect);
        if let Some(r) = suspect {
            self.end(io, slot, r, Status::Mismatch);
            return Fate::Later;
        }
        // So is a rank that has not answered although it had time.
        let silent = self.silent(id).filter(|_| status == Status::TimedOut);
        if let Some(r) = silent {
            if let Some(a) = self.ops.get_mut(id) {
                a.own_end.get_or_insert((Status::PeerFailed, r.into()));
            }
            self.end(io, slot, r, Status::PeerFailed);
            return Fate::Later;
        }
        // A rank that is alive but has not posted the operation: all ranks are notified of it.
        let absent = self.absent(id).filter(|_| status == Status::TimedOut);
        if let Some(r) = absent {
            self.end(io, slot, r, Status::TimedOut);
            return Fate::Later;
        }
        let ended = match status {
            Status::TimedOut => late(None),
            _ => detail,
        };
        if let Some(a) = self.ops.get_mut(id) {
            a.own_end.get_or_insert((status, ended));
        }
        let rank = self.shape_of(slot).0;
        self.end(io, slot, rank, Status::CommAborted);
        Fate::Later
    }

    /// An operation has waited for most of its time: asks the other ranks whether they are alive.
    /// `false`: it has asked before, or depends on no rank, and its time is up.
    pub(crate) fn probe_peers(&mut self, io: &mut Io<'_>, token: WorkToken) -> bool {
        let Some(id) = self.op_of(token) else {
            return false;
        };
        let Some(a) = self.ops.get_mut(id) else {
            return false;
        };
        if a.asked.is_some() {
            return false;
        }
        a.asked = Some(io.now);
        let (slot, seq) = (a.comm, a.seq);
        let counts = seq.is_some();
        let asks = |c: &&Comm| counts && c.life.ready && c.life.end.is_none();
        if let Some(ctx) = self.comm(slot).filter(asks).map(|c| c.ctx) {
            self.fabric.tell(ctx, |from| Frame::Ask { ctx, from });
            // Ranks that wait for each other without a message between them may run different things.
            if let Some(seq) = seq {
                self.dispute(io, slot, seq);
            }
        }
        true
    }

    /// The first rank that has not answered since an operation has asked.
    fn silent(&self, id: u32) -> Option<u32> {
        let a = self.ops.get(id)?;
        let asked = a.asked.filter(|_| a.seq.is_some())?;
        let c = self
            .comm(a.comm)
            .filter(|c| c.life.ready && c.life.end.is_none())?;
        let ranks = c.life.heard.iter().enumerate();
        ranks
            .filter(|(r, at)| *r as u32 != c.rank && at.is_none_or(|(at, _)| at < asked))
            .map(|(r, _)| r as u32)
            .next()
    }

    /// The first rank that has answered and had not posted the operation by then.
    fn absent(&self, id: u32) -> Option<u32> {
        let a = self.ops.get(id)?;
        let (asked, seq) = (a.asked?, a.seq?);
        let ranks = self.comm(a.comm)?.life.heard.iter().zip(0..);
        // Numbers wrap: one that is not ahead by less than half of them is behind.
        let behind = |posted: u32| posted.wrapping_sub(seq.wrapping_add(1)) >= 1 << 31;
        let is = |at: &Option<(NicTime, u32)>| at.is_some_and(|(t, n)| t >= asked && behind(n));
        ranks.filter(|(at, _)| is(at)).map(|(_, r)| r).next()
    }

    /// Ends everything at once: links that hold payload are cut. With `last`, the NIC ends too: ranks
    /// that still need what this one has sent can go on, for communicators without operations here are
    /// left in order, and links are closed behind what they carry.
    pub(crate) fn abort_all(&mut self, io: &mut Io<'_>, status: Status, last: bool) {
        if last {
            for id in self.ids() {
                let idle = |c: &Comm| c.active.is_empty() && c.queue.is_empty() && c.life.ready;
                if self.find(id.0).and_then(|s| self.comm(s)).is_some_and(idle) {
                    let _ = self.free(io, id);
                }
            }
        }
        let slots: Vec<u32> = self.by_ctx.values().copied().collect();
        for slot in slots {
            let rank = self.shape_of(slot).0;
            self.end(io, slot, rank, Status::CommAborted);
            let Some(c) = self.comm_mut(slot) else {
                continue;
            };
            let ids: Vec<u32> = c.active.iter().chain(&c.queue).copied().collect();
            if let Some(end) = &mut c.life.end {
                end.until = io.now;
            }
            for id in ids {
                if let Some(a) = self.ops.get_mut(id) {
                    a.own_end = Some((status, 0));
                }
            }
        }
        // Frames that can leave at once still notify the peers.
        self.fabric.step(io, false);
        self.drain_direct(io);
        self.reap(io);
        if last {
            self.fabric.close(io);
        }
    }
}
