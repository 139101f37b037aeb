//! Disagreement of ranks: detected by a hash, settled by exchanging the parameters of the operation.

use ringbell_nic_abi::Status;

use super::communicator::Dispute;
use super::fabric::Frame;
use super::{executor, Collectives, Io, Reach, Task};

impl Collectives {
    pub(super) fn on_seen(&mut self, io: &mut Io<'_>, slot: u32, from: u32, tag: u64, hash: u32) {
        let Some(c) = self.comm(slot) else { return };
        let ids = c.active.iter().chain(&c.queue);
        let found = ids
            .filter_map(|id| self.ops.get(*id))
            .filter_map(|a| Some((a.seq?, a.params()?)))
            .find(|(seq, _)| executor::is_of(tag, *seq));
        match found {
            Some(_) if hash == 0 => {
                // Equal parameters but another length: none of our programs does that.
                self.end(io, slot, from, Status::Mismatch);
            }
            Some((seq, params)) if params.hash() != hash => self.dispute(io, slot, seq),
            Some(_) => {}
            None => {
                // The operation has ended here, so that rank runs another one under its number.
                if let Some(age) = executor::age(tag, c.next_seq) {
                    let seq = c.next_seq.wrapping_sub(age);
                    self.dispute(io, slot, seq);
                }
            }
        }
    }

    pub(super) fn open_dispute(&mut self, slot: u32, seq: u32) {
        if let Some(c) = self.comm_mut(slot) {
            let n = c.peers.len();
            c.dispute.get_or_insert_with(|| Dispute {
                seq,
                said: vec![None; n],
                told: false,
            });
        }
    }

    /// Ranks disagree about operation `seq`: sends this rank's parameters.
    pub(super) fn dispute(&mut self, io: &mut Io<'_>, slot: u32, seq: u32) {
        self.open_dispute(slot, seq);
        self.judge(io, slot);
    }

    pub(super) fn judge(&mut self, io: &mut Io<'_>, slot: u32) {
        let Some(c) = self.comm(slot) else { return };
        // Before that, this rank does not know which way its operations take.
        let Some(d) = c.dispute.as_ref().filter(|_| c.life.ready) else {
            return;
        };
        let (ctx, rank, seq, told) = (c.ctx, c.rank, d.seq, d.told);
        let ids = c.active.iter().chain(&c.queue);
        let mut mine = ids
            .filter_map(|id| self.ops.get(*id))
            .find(|a| a.seq == Some(seq))
            .and_then(super::Active::params);
        mine = mine.or_else(|| c.history.iter().find(|h| h.0 == seq).map(|h| h.1));
        let Some(mine) = mine else { return };
        if !told {
            self.fabric.tell(ctx, |from| Frame::Params {
                ctx,
                from,
                seq,
                params: mine,
            });
        }
        let mut culprit = None;
        if let Some(d) = self.comm_mut(slot).and_then(|c| c.dispute.as_mut()) {
            d.told = true;
            d.said[rank as usize] = Some(mine);
            culprit = d.culprit();
        }
        if let Some(r) = culprit {
            return self.end(io, slot, r, Status::Mismatch);
        }
        let settled = |c: &&mut super::Comm| c.dispute.as_ref().is_some_and(Dispute::is_settled);
        if let Some(c) = self.comm_mut(slot).filter(settled) {
            c.dispute = None;
        }
    }

    /// Records whether a waiting operation takes the direct path: messages of ranks without that flag belong
    /// to another operation, even where the messages would be equal.
    pub(super) fn route(&mut self, slot: u32, id: u32) {
        let direct = self.comm(slot).is_some_and(super::Comm::is_direct);
        let Some(a) = self.ops.get_mut(id).filter(|_| direct) else {
            return;
        };
        if let Task::Program(p) = &mut a.task {
            if p.reach != Reach::Messages {
                p.params.direct = true;
            }
        }
    }

    /// A communicator is ready: chooses the path of the operations posted before.
    pub(super) fn route_all(&mut self, io: &mut Io<'_>, slot: u32) {
        let ids: Vec<u32> = self
            .comm(slot)
            .map(|c| c.queue.iter().copied().collect())
            .unwrap_or_default();
        for id in ids {
            self.route(slot, id);
            let seq = self.ops.get(id).and_then(|a| a.seq);
            if seq.is_some_and(|seq| self.was_said_otherwise(slot, id, seq)) {
                self.dispute(io, slot, seq.unwrap_or(0));
            }
        }
        self.judge(io, slot);
    }

    /// Whether a message of another operation came under the number of this one.
    pub(super) fn was_said_otherwise(&self, slot: u32, id: u32, seq: u32) -> bool {
        let Some(ctx) = self.comm(slot).map(|c| c.ctx) else {
            return false;
        };
        let params = self.ops.get(id).and_then(super::Active::params);
        let mut early = self.fabric.early(ctx);
        early.any(|(_, tag, hash)| {
            executor::is_of(tag, seq) && Some(hash) != params.map(|p| p.hash())
        })
    }
}
