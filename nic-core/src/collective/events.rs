//! What the fabric reports, turned into progress and ends of operations.

use ringbell_nic_abi::Status;

use super::fabric::FabricEvent;
use super::{executor, Collectives, Io, State, Task};

impl Collectives {
    pub(super) fn take_events(&mut self, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        while let Some(e) = self.fabric.poll_event() {
            moved = true;
            self.on_fabric(io, e);
        }
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
                        self.finish(slot, id, status, len, detail);
                    }
                    _ => {}
                }
            }
            FabricEvent::Lost { ctx, rank } => {
                if let Some(&slot) = self.by_ctx.get(&ctx) {
                    self.end(io, slot, rank, Status::PeerFailed);
                }
            }
            FabricEvent::Aborted { ctx, rank, status } => {
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
            FabricEvent::Left { ctx, rank } => {
                let Some(&slot) = self.by_ctx.get(&ctx) else {
                    return;
                };
                // It has ended everything; whatever is still under way here with that rank cannot.
                let busy = self
                    .comm(slot)
                    .is_some_and(|c| !c.active.is_empty() || !c.queue.is_empty());
                if busy && !self.ends_without(slot, rank) {
                    self.end(io, slot, rank, Status::PeerFailed);
                }
            }
        }
    }

    /// Whether what is under way can end although a rank has left: its messages are here already.
    pub(super) fn ends_without(&self, slot: u32, rank: u32) -> bool {
        let Some(c) = self.comm(slot) else {
            return true;
        };
        let pending = |id: &u32| matches!(self.ops.get(*id).map(|a| &a.state), Some(State::Waiting(t)) if matches!(t, Task::Program { .. }));
        let direct = c.direct.as_ref();
        !c.queue.iter().any(pending)
            && !self.fabric.waits_for(c.ctx, rank)
            && !direct.is_some_and(|d| d.path.waits_for(rank))
    }
}
