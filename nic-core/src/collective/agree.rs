//! Disagreement of ranks: detected by a hash, settled by exchanging the parameters of the
//! operation.

use ringbell_nic_abi::Status;

use super::communicator::Dispute;
use super::group::Body;
use super::messages::MessagePath;
use super::number::{port_of, Number};
use super::table::{Active, Table};

impl MessagePath {
    /// A message has come that no operation under way expects like that.
    pub(super) fn on_seen(&mut self, table: &mut Table, slot: u32, from: u32, tag: u64, hash: u32) {
        let Some(c) = table.comm(slot) else { return };
        match table.params_of(slot, |seq| seq.is_in(tag)) {
            Some(_) if hash == 0 => {
                // Equal parameters but another length: none of our programs does that.
                table.end(slot, from, Status::Mismatch);
            }
            Some((seq, params)) if params.hash() != hash => self.dispute(table, slot, seq),
            Some(_) => {}
            None => {
                // The operation has ended here, so that rank runs another one under its number.
                if let Some(seq) = c.numbers.next(port_of(tag)).earlier(tag) {
                    self.dispute(table, slot, seq);
                }
            }
        }
    }

    /// Ranks disagree about operation `seq`: sends this rank's parameters.
    pub(super) fn dispute(&mut self, table: &mut Table, slot: u32, seq: Number) {
        open_dispute(table, slot, seq);
        self.judge(table, slot);
    }

    /// Sends this rank's parameters of a disputed operation, and decides once those of the others
    /// are there.
    pub(super) fn judge(&mut self, table: &mut Table, slot: u32) {
        let Some(c) = table.comm(slot) else { return };
        // Before that, this rank does not know which way its operations take.
        let Some(d) = c.dispute.as_ref().filter(|_| c.life.ready) else {
            return;
        };
        let (ctx, rank, seq, told) = (c.ctx, c.rank, d.seq, d.told);
        let mine = table.params_of(slot, |s| s == seq).map(|(_, p)| p);
        let mine = mine.or_else(|| c.history.iter().find(|h| h.0 == seq).map(|h| h.1));
        let Some(mine) = mine else { return };
        if !told {
            let seq = seq.word();
            self.groups.tell(ctx, Body::Params { seq, params: mine });
        }
        let groups = &self.groups;
        let Some(c) = table.comm_mut(slot) else {
            return;
        };
        let Some(d) = &mut c.dispute else { return };
        d.told = true;
        d.said[rank as usize] = Some(mine);
        // Ranks without links hear their neighbours alone. Each tells its own as soon as one of
        // them does, so two of those that differ are neighbours; their end reaches all.
        let (culprit, have_said) = match groups.neighbors(ctx) {
            Some(all) => (d.culprit_among(all.clone()), d.have_said(all)),
            None => (d.culprit(), d.have_said(0..d.said.len() as u32)),
        };
        if let Some(r) = culprit {
            return table.end(slot, r, Status::Mismatch);
        }
        if have_said && d.suspect().is_none() {
            c.dispute = None;
        }
    }

    /// A communicator is ready: chooses the path of the operations posted before.
    pub(super) fn route_all(&mut self, table: &mut Table, slot: u32) {
        let ids: Vec<u32> = table
            .comm(slot)
            .map(|c| c.queue.iter().copied().collect())
            .unwrap_or_default();
        for id in ids {
            table.route(slot, id);
            let seq = table.ops.get(id).and_then(|a| a.call.seq);
            let seq = seq.filter(|seq| self.was_said_otherwise(table, slot, id, *seq));
            if let Some(seq) = seq {
                self.dispute(table, slot, seq);
            }
        }
        self.judge(table, slot);
    }

    /// Whether a message of another operation came under the number of this one.
    pub(super) fn was_said_otherwise(
        &self,
        table: &Table,
        slot: u32,
        id: u32,
        seq: Number,
    ) -> bool {
        let Some(ctx) = table.comm(slot).map(|c| c.ctx) else {
            return false;
        };
        let params = table.ops.get(id).and_then(Active::params);
        let mut early = self.groups.messages.early(ctx);
        early.any(|(_, tag, hash)| seq.is_in(tag) && Some(hash) != params.map(|p| p.hash()))
    }
}

/// Ranks may disagree about operation `seq`.
pub(super) fn open_dispute(table: &mut Table, slot: u32, seq: Number) {
    if let Some(c) = table.comm_mut(slot) {
        let n = c.peers.len();
        c.dispute.get_or_insert_with(|| Dispute {
            seq,
            said: vec![None; n],
            told: false,
            found: None,
        });
    }
}
