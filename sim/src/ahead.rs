//! Windows in which NICs run at once on several threads, each ahead of the loop of events.
//!
//! What a NIC does reaches no other NIC before a frame has crossed the other's link. A window is
//! shorter than that (the look-ahead of conservative parallel simulation: Chandy and Misra, IEEE
//! TSE 1979). So what happens to a NIC in it is known when it begins, but for what the NIC makes
//! itself. Lanes do it on any thread. Then the loop handles the window's events one after the
//! other as ever, with switches and links, and where an event steps a NIC it enters what the lane
//! has done. So order, times and digest are those of one thread.
//!
//! A window ends before something breaks. A lane stops before its link is paused or goes on.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use crate::lane::{Given, Happens};
use crate::network::{Event, What};
use crate::threads::each;
use crate::world::World;
use crate::RankEnd;

/// Fewer lanes with something to do cost more to hand out than they take.
const FEW: usize = 4;

impl World {
    /// Begins a window if there is none, and lets NICs do what they do in it, up to a time. Of an
    /// operation that has ended on these ranks no NIC goes beyond the last end.
    pub(crate) fn run_ahead(&mut self, limit: u64, ends: Option<&[Option<RankEnd>]>) {
        if self.threads < 2 || self.ahead > 0 {
            return;
        }
        let mut fabric = self.fabric.lock();
        if fabric.events.has_window() {
            return;
        }
        let Some(begin) = fabric.events.peek_at().filter(|at| *at <= limit) else {
            return;
        };
        let end = begin + self.lookahead;
        let (mut near, end) = fabric.events.window(end.min(limit.saturating_add(1)));
        drop(fabric);
        let work = self.hand_out(&mut near, end);
        if work.len() >= FEW {
            self.share(work.clone(), end, ends);
        }
        for rank in work {
            let lane = self.lanes.get_mut(rank);
            let done = lane.done.len();
            for Given { place, what, .. } in lane.rest() {
                near[place].what = match what {
                    Happens::Crossed(link, frame) => What::Crossed(link, frame),
                    Happens::Received(place) => What::Received(place),
                    Happens::Due => What::Due,
                };
            }
            self.ahead += done;
        }
        self.fabric.lock().events.put_back(near);
    }

    /// Hands the events of a window to the lanes of the ranks to which they happen. Returns these.
    fn hand_out(&mut self, near: &mut VecDeque<Event>, end: u64) -> Vec<usize> {
        let mut work = Vec::new();
        for (place, event) in near.iter_mut().enumerate() {
            let (at, rank) = (event.at, event.node);
            let is_its_own = match &event.what {
                What::Crossed(link, _) => self.fabric.lock().reaches_rank(*link),
                What::Received(_) | What::Due => !self.is_dead(rank),
                What::Paused(..) => rank < self.lanes.len(),
                _ => false,
            };
            if !is_its_own {
                continue;
            }
            let lane = self.lanes.get_mut(rank);
            if lane.until.is_none() {
                lane.until = Some(end);
                work.push(rank);
            }
            if lane.until.is_none_or(|until| until <= at) {
                continue;
            }
            let what = match std::mem::replace(&mut event.what, What::Ahead) {
                What::Crossed(link, frame) => Happens::Crossed(link, frame),
                What::Received(place) => Happens::Received(place),
                What::Due => Happens::Due,
                other => {
                    // What the link does to the NIC is the loop's to say.
                    event.what = other;
                    lane.until = Some(at);
                    continue;
                }
            };
            lane.given.push_back(Given { place, at, what });
        }
        work
    }

    /// Lets lanes go ahead.
    fn share(&self, mut work: Vec<usize>, end: u64, ends: Option<&[Option<RankEnd>]>) {
        if let Some(ends) = ends {
            // The operation may end in this window, and then nothing is to happen beyond its end:
            // those on which it has not ended go first, up to there.
            let waits = |rank: &usize| ends[*rank].is_none();
            let waiting: Vec<usize> = work.iter().copied().filter(waits).collect();
            if waiting.len() == ends.iter().filter(|e| e.is_none()).count() {
                self.go_ahead(&waiting, true);
                // One that its link has stopped may end the operation in this window yet.
                let is_behind = |rank: &usize| {
                    let lane = self.lanes.lock(*rank);
                    lane.ticket.is_some() && lane.until == Some(end)
                };
                if !waiting.iter().any(is_behind) {
                    return;
                }
                work.retain(|rank| self.lanes.lock(*rank).has_more());
            }
        }
        self.go_ahead(&work, false);
    }

    fn go_ahead(&self, work: &[usize], to_end: bool) {
        let lanes = &self.lanes;
        each(self.threads, work, |rank| lanes.lock(rank).go_ahead(to_end));
    }

    /// Steps all NICs that live after an operation was posted on each. Returns where it has ended
    /// at once.
    pub(crate) fn step_posted(&mut self) -> Vec<(usize, Option<(Status, u64)>)> {
        let at = self.now();
        let all = 0..self.lanes.len();
        let living: Vec<usize> = all.clone().filter(|r| !self.is_dead(*r)).collect();
        let lanes = &self.lanes;
        each(self.threads, &living, |rank| lanes.lock(rank).posted(at));
        self.ahead += living.len();
        let ended = all.map(|rank| {
            let handled = self.lanes.get_mut(rank).done.pop_front();
            (rank, handled.and_then(|handled| self.enter(rank, handled)))
        });
        ended.collect()
    }
}
