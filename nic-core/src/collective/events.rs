//! Handling of the fabric's events: progress and ends of operations.

use ringbell_nic_abi::Status;

use super::communicator::{Comm, Gone};
use super::fabric::FabricEvent;
use super::{executor, Collectives, Io, State};

impl Collectives {
    #[inline]
    pub(super) fn take_events(&mut self, io: &mut Io<'_>) -> bool {
        self.fabric.has_events() && self.take_all_events(io)
    }

    #[inline(never)]
    fn take_all_events(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        while let Some(e) = self.fabric.poll_event() {
            moved = true;
            self.on_fabric(io, e);
        }
        self.copy_own();
        moved
    }

    pub(super) fn on_fabric(&mut self, io: &mut Io<'_>, e: FabricEvent) {
        match e {
            FabricEvent::Sent {
                key,
                status,
                detail,
            } => {
                let id = executor::op_of(key);
                let Some(a) = self.ops.get_mut(id) else {
                    return;
                };
                let (slot, bytes) = (a.comm, a.bytes);
                match &mut a.state {
                    State::Running(op) if status == Status::Ok => {
                        op.sent(key);
                        self.wake(id);
                    }
                    State::Running(_) => {
                        a.own_end = Some((status, detail));
                        let rank = self.shape_of(slot).0;
                        self.end(io, slot, rank, Status::CommAborted);
                    }
                    State::Message(_) => {
                        let n = if status == Status::Ok { bytes } else { 0 };
                        self.finish(slot, id, status, n, detail);
                    }
                    State::Channel(c) if status == Status::Ok => {
                        c.sent(key);
                        self.wake(id);
                    }
                    State::Channel(_) => self.channel_fails(io, id, status, detail),
                    _ => {}
                }
            }
            FabricEvent::Received {
                key,
                status,
                from,
                len,
                detail,
            } => {
                let id = executor::op_of(key);
                let Some(a) = self.ops.get_mut(id) else {
                    return;
                };
                let slot = a.comm;
                match &mut a.state {
                    State::Running(op) if status == Status::Ok => {
                        op.received(key);
                        self.wake(id);
                    }
                    State::Running(_) => {
                        a.own_end = Some((status, detail));
                        let rank = self.shape_of(slot).0;
                        self.end(io, slot, rank, Status::CommAborted);
                    }
                    State::Message(_) => {
                        let detail = match status {
                            Status::Ok => u64::from(from) << 32 | (detail & 0xffff_ffff),
                            _ => detail,
                        };
                        match status {
                            Status::Ok => self.complete(slot, id, len, detail),
                            _ => self.finish(slot, id, status, len, detail),
                        }
                    }
                    State::Channel(c) => {
                        let moved = match status {
                            Status::Ok => c.received(&mut io.dma(), len),
                            _ => Err((status, detail)),
                        };
                        match moved {
                            Ok(()) => self.wake(id),
                            Err((status, detail)) => self.channel_fails(io, id, status, detail),
                        }
                    }
                    _ => {}
                }
            }
            FabricEvent::Lost { ctx, rank } => {
                self.is_gone(io, ctx, Gone::failed(rank, rank, false));
            }
            // It has noticed before us that a rank is gone; messages that are here already are processed first.
            FabricEvent::Aborted {
                ctx,
                from,
                rank,
                status: Status::PeerFailed,
            } => self.is_gone(io, ctx, Gone::failed(from, rank, false)),
            FabricEvent::Aborted {
                ctx, rank, status, ..
            } => {
                if let Some(&slot) = self.by_ctx.get(&ctx) {
                    self.end(io, slot, rank, status);
                }
            }
            FabricEvent::Params {
                ctx,
                from,
                seq,
                params,
            } => {
                let Some(&slot) = self.by_ctx.get(&ctx) else {
                    return;
                };
                self.open_dispute(slot, seq);
                if let Some(d) = self.comm_mut(slot).and_then(|c| c.dispute.as_mut()) {
                    if d.seq == seq {
                        if let Some(said) = d.said.get_mut(from as usize) {
                            *said = Some(params);
                        }
                    }
                }
                self.judge(io, slot);
            }
            FabricEvent::Seen {
                ctx,
                from,
                tag,
                hash,
            } => {
                let Some(&slot) = self.by_ctx.get(&ctx) else {
                    return;
                };
                self.on_seen(io, slot, from, tag, hash);
            }
            FabricEvent::Asked { ctx, rank } => {
                let slot = self.by_ctx.get(&ctx).copied();
                if let Some(posted) = slot.and_then(|s| self.comm(s)).map(|c| c.next_seq) {
                    self.fabric.say_here(ctx, rank, posted);
                }
            }
            FabricEvent::Here { ctx, rank, posted } => {
                let now = io.now;
                let slot = self.by_ctx.get(&ctx).copied();
                let comm = slot.and_then(|s| self.comm_mut(s));
                if let Some(at) = comm.and_then(|c| c.life.heard.get_mut(rank as usize)) {
                    *at = Some((now, posted));
                }
            }
            FabricEvent::Left { ctx, rank } => {
                self.is_gone(io, ctx, Gone::failed(rank, rank, true));
            }
        }
    }

    fn is_gone(&mut self, io: &mut Io<'_>, ctx: u64, gone: Gone) {
        let Some(&slot) = self.by_ctx.get(&ctx) else {
            return;
        };
        let Some(c) = self.comm_mut(slot) else {
            return;
        };
        if !c.life.ready {
            // It never begins.
            return self.end(io, slot, gone.blame, gone.status);
        }
        c.life.gone.push(gone);
        self.lives.gone += 1;
    }

    /// Ends the communicators that need a rank that sends nothing more. Called when all
    /// its messages have been processed.
    pub(super) fn look_at_gone(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        let slots: Vec<u32> = self.by_ctx.values().copied().collect();
        for slot in slots {
            let Some(c) = self.comm(slot).filter(|c| c.life.end.is_none()) else {
                continue;
            };
            let busy = !c.active.is_empty() || !c.queue.is_empty();
            let ends = |g: &&Gone| match busy {
                true => self.waits_for(c, g.rank),
                false => !g.left,
            };
            if let Some(g) = c.life.gone.iter().find(ends).copied() {
                self.end(io, slot, g.blame, g.status);
                moved = true;
            }
        }
        moved
    }

    /// Whether an operation under way needs more of a rank than it has sent and stored.
    fn waits_for(&self, c: &Comm, rank: u32) -> bool {
        let direct = c.direct.as_ref();
        let disputed = c
            .dispute
            .as_ref()
            .and_then(super::communicator::Dispute::suspect);
        disputed.is_some()
            || self.streams_need(c, rank)
            || self.fabric.waits_for(c.ctx, rank)
            || direct.is_some_and(|d| d.path.waits_for(rank))
    }
}

impl Gone {
    fn failed(rank: u32, blame: u32, left: bool) -> Gone {
        Gone {
            rank,
            blame,
            status: Status::PeerFailed,
            left,
        }
    }
}
