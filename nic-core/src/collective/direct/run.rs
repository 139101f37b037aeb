//! How the front operation moves bytes: from the records, in a pass over all ranks' memory, or
//! through windows.

use super::area::{Area, Flag, Peers};
use super::bounce::{self, Windows, NO_WINDOWS};
use super::operation::Looked;
use super::pass::{self, Cursor, Own, PassError, Theirs};
use super::ranks::Ranks;
use super::record::flag;
use super::{guard, Direct, Outcome, Phase, Way, BATCH_BYTES};
use crate::memory::nic_memory::NicMemory;

impl Direct {
    /// All of the front operation, from the inputs in this rank's area.
    pub(super) fn run_eager(&mut self, peers: &dyn Peers) -> Result<Outcome, Outcome> {
        let Some(op) = self.ops.front() else {
            return Ok(Outcome::Done);
        };
        let (d, eager) = (&op.at, (&self.area, op.course.number));
        if let Some(found) = &d.found {
            pass::run_found(found, &d.pull, &op.params, eager, &mut self.stats);
            return Ok(Outcome::Done);
        }
        let job = pass::Job {
            plan: &d.pull,
            params: &op.params,
            rank: self.rank,
            input: Own::Whole(&d.input),
            output: Own::Whole(&d.output),
            theirs: Theirs::Came(eager.0, eager.1),
            peers,
            streaming: false,
        };
        match pass::run(&job, &mut Cursor::default(), u64::MAX, &mut self.stats) {
            Ok(_) => Ok(Outcome::Done),
            Err(PassError { rank }) => Err(Outcome::PeerFailed { rank }),
        }
    }

    /// One batch of the front operation. Returns whether its pass is over.
    pub(super) fn run_pass(&mut self, peers: &dyn Peers) -> Result<bool, Outcome> {
        let Some(op) = self.ops.front() else {
            return Ok(false);
        };
        let Phase::Pass { way, .. } = op.course.phase else {
            return Ok(false);
        };
        let plan = match way {
            Way::Push => &op.at.push,
            _ => &op.at.pull,
        };
        let in_place = |r: u32| {
            if r == self.rank {
                op.at.input.is_same(&op.at.output)
            } else {
                self.records[r as usize].has(flag::IN_PLACE)
            }
        };
        // Past the cache when not all outputs would stay in it; in place the lines are there
        // anyway.
        let all_outputs = plan.output_bytes.saturating_mul(self.ranks.into());
        let streaming = all_outputs >= 2 * ringbell_gtlb::copy::streaming_bytes()
            && !(0..self.ranks).any(in_place);
        // Peers that this rank writes to: all, in a push.
        let entered = match way {
            Way::Push => self.enter(peers)?,
            _ => Ranks::default(),
        };
        let Some(op) = self.ops.front_mut().map(|op| &mut **op) else {
            return Ok(false);
        };
        let Phase::Pass { cursor, .. } = &mut op.course.phase else {
            return Ok(false);
        };
        let job = pass::Job {
            plan: match way {
                Way::Push => &op.at.push,
                _ => &op.at.pull,
            },
            params: &op.params,
            rank: self.rank,
            input: Own::Whole(&op.at.input),
            output: Own::Whole(&op.at.output),
            theirs: Theirs::Placed(&self.records),
            peers,
            streaming,
        };
        let result = pass::run(&job, cursor, BATCH_BYTES, &mut self.stats);
        leave(&self.area, &self.peers, peers, self.rank, entered);
        result.map_err(|PassError { rank }| Outcome::PeerFailed { rank })
    }

    /// Announces that this rank writes the memory of all others. They are left by [`leave`].
    fn enter(&self, peers: &dyn Peers) -> Result<Ranks, Outcome> {
        let mut entered = Ranks::default();
        let refuse = |entered: Ranks, outcome: Outcome| {
            leave(&self.area, &self.peers, peers, self.rank, entered);
            Err(outcome)
        };
        for rank in self.others() {
            match self.area_of(peers, rank) {
                None => return refuse(entered, Outcome::PeerFailed { rank }),
                Some((_, remote)) => guard::announce(remote.busy(self.rank)),
            }
            entered.insert(rank);
        }
        guard::fence();
        for rank in self.others() {
            let remote = self.area_of(peers, rank);
            if remote.is_none_or(|(_, a)| guard::is_revoked(a.revoked())) {
                return refuse(entered, Outcome::PeerAborted { rank });
            }
        }
        Ok(entered)
    }

    /// The other ranks whose flag is below `n`.
    pub(super) fn lack(&self, flag: Flag, n: u64) -> Ranks {
        let lack = |r: &u32| !self.area.has(*r, flag, n);
        self.others().filter(lack).collect()
    }

    /// Stores a flag at every other rank, and wakes them.
    fn tell(&self, peers: &dyn Peers, flag: Flag, n: u64) {
        for r in self.others() {
            if let Some((window, remote)) = self.area_of(peers, r) {
                remote.set(self.rank, flag, n);
                window.wake();
            }
        }
    }

    /// Tells the peers where this rank's windows are.
    pub(super) fn show_windows(&mut self, nic_memory: &mut NicMemory, peers: &dyn Peers) {
        if self.windows.is_none() {
            self.windows = Windows::new(self.ranks, nic_memory);
        }
        let bus = self.windows.as_ref().map_or(NO_WINDOWS, Windows::bus);
        for r in self.others() {
            if let Some((_, remote)) = self.area_of(peers, r) {
                remote.show_windows(self.rank, bus);
            }
        }
    }

    /// Moves the front operation, which goes through windows, by one copy and one pass at most.
    pub(super) fn run_bounce(&mut self, peers: &dyn Peers) -> Result<Looked, Outcome> {
        let Some(op) = self.ops.front_mut().map(|op| &mut **op) else {
            return Ok(Looked::Waits(Ranks::default()));
        };
        let Phase::Bounce(b) = &mut op.course.phase else {
            return Ok(Looked::Waits(Ranks::default()));
        };
        let (count, input, output) = (op.params.count, &op.at.input, &op.at.output);
        let mut moved = false;
        if b.taken < b.passed {
            let n = b.number(b.taken + 1);
            let others = (self.rank + 1..self.ranks).chain(0..self.rank);
            if others
                .into_iter()
                .all(|r| self.area.has(r, Flag::Passed, n))
            {
                if let Some(w) = &self.windows {
                    self.stats.stored += b.copy(count, output, w, b.taken, true);
                }
                b.taken += 1;
                moved = true;
                if b.taken == b.slices {
                    self.slices += b.slices;
                    return Ok(Looked::Ended(Outcome::Done));
                }
            }
        }
        let mut filled = None;
        if b.can_fill() {
            if let Some(w) = &self.windows {
                self.stats.stored += b.copy(count, input, w, b.filled, false);
            }
            b.filled += 1;
            filled = Some(b.number(b.filled));
        }
        let (slice, may_pass, slices) = (b.passed, b.passed < b.filled, b.slices);
        let (number, last) = (b.number(slice), b.number(slices));
        if let Some(n) = filled {
            self.tell(peers, Flag::Filled, n);
            moved = true;
        }
        if may_pass && self.lack(Flag::Filled, number + 1).is_empty() {
            if !self.pass_windows(peers, slice, number)? {
                self.slices += slices;
                return Ok(Looked::Ended(Outcome::Fallback));
            }
            moved = true;
        }
        Ok(match moved {
            true => Looked::Moved,
            false => Looked::Waits(self.lack(Flag::Passed, last)),
        })
    }

    /// Runs this rank's steps for a slice, between the windows of all ranks. `false`: some rank has
    /// none.
    fn pass_windows(
        &mut self,
        peers: &dyn Peers,
        slice: u64,
        number: u64,
    ) -> Result<bool, Outcome> {
        if self.windows.is_none() {
            return Ok(false);
        }
        if self.others().any(|r| self.area.windows_of(r) == NO_WINDOWS) {
            return Ok(false);
        }
        let Some(op) = self.ops.front() else {
            return Ok(false);
        };
        let Phase::Bounce(b) = &op.course.phase else {
            return Ok(false);
        };
        let (params, plan) = b.shape(slice);
        let own = |pages, output| b.slice(op.params.count, pages, slice, output);
        let (input, output) = (own(&op.at.input, false), own(&op.at.output, true));
        let job = pass::Job {
            plan,
            params,
            rank: self.rank,
            input: Own::Slice(&input),
            output: Own::Slice(&output),
            theirs: Theirs::Windows(&bounce::Theirs::new(&self.area, self.ranks, number)),
            peers,
            streaming: false,
        };
        let entered = self.enter(peers)?;
        let result = pass::run(&job, &mut Cursor::default(), u64::MAX, &mut self.stats);
        leave(&self.area, &self.peers, peers, self.rank, entered);
        result.map_err(|PassError { rank }| Outcome::PeerFailed { rank })?;
        if let Some(Phase::Bounce(b)) = self.ops.front_mut().map(|op| &mut op.course.phase) {
            b.passed += 1;
        }
        self.tell(peers, Flag::Passed, number + 1);
        Ok(true)
    }
}

/// Ends the batch in the areas of these ranks.
fn leave(area: &Area, addresses: &[u64], peers: &dyn Peers, me: u32, entered: Ranks) {
    for r in entered.iter() {
        let window = peers.window(r);
        if let Some(remote) = window.and_then(|w| area.of_peer(w, addresses[r as usize])) {
            guard::leave(remote.busy(me));
        }
    }
}
