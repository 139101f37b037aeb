//! One communicator of this NIC.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::collective::{COMM_ENDED, RANK_ABSENT};
use ringbell_nic_abi::{Algorithm, CollectiveKind, Status};

use super::direct::{Call, Direct, Kept, Prepared};
use super::executor::Op;
use super::gone::Gone;
use super::number::{Number, Numbers};
use super::on_card::CardOp;
use super::params::Params;
use super::scratch::Scratch;
use super::settings::{CollectiveCounters, CollectiveSettings};
use super::taps::Tap;
use crate::memory::nic_memory::{Space, NIC_BUS};
use crate::types::{ConnId, NicTime};

/// Operations whose parameters are remembered after their end: a rank that disagrees may be late.
const HISTORY: usize = 64;
/// How long an ended communicator waits for peers to take sent payload before their links are cut.
pub(crate) const GRACE: Duration = Duration::from_millis(200);

/// Unit of addresses in `Join` frames.
pub(super) const AREA_UNIT: u64 = 128;

/// The direct path of a communicator.
#[derive(Debug)]
pub(crate) struct DirectComm {
    pub(crate) path: Direct,
    /// Transport and connection of every other rank.
    pub(super) routes: Vec<Option<(usize, ConnId)>>,
    /// All ranks are there, and share this host.
    pub(crate) ready: bool,
    /// Operations that are off the path and retire with the communicator, once nothing touches
    /// their memory.
    // Boxed, as they are on the path and among those that are kept.
    #[allow(clippy::vec_box)]
    pub(super) over: Vec<Box<Prepared>>,
    /// What engines are to see of operations on the path, by their numbers among the collectives.
    pub(super) taps: Vec<(Number, Box<Tap>)>,
}

impl DirectComm {
    /// The area's address, as in `Join`.
    pub(crate) fn area(&self) -> u32 {
        let unit = (self.path.address() - NIC_BUS) / AREA_UNIT + 1;
        u32::try_from(unit).unwrap_or(0)
    }

    /// The operations that have not retired.
    pub(super) fn ops(&self) -> impl Iterator<Item = &Prepared> {
        self.path.ops().chain(self.over.iter().map(|op| &**op))
    }

    /// Their calls, to change.
    pub(super) fn calls(&mut self) -> impl Iterator<Item = &mut Call> {
        let over = self.over.iter_mut().map(|op| &mut **op);
        self.path.ops_mut().chain(over).map(|op| &mut op.call)
    }

    /// Takes what engines are to see of an operation.
    #[inline]
    pub(super) fn take_tap(&mut self, seq: Option<Number>) -> Option<Box<Tap>> {
        if self.taps.is_empty() {
            return None;
        }
        let i = self.taps.iter().position(|(s, _)| Some(*s) == seq)?;
        Some(self.taps.swap_remove(i).1)
    }
}

/// How a communicator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) rank: u32,
    pub(crate) status: Status,
    /// When links that still hold its payload are cut.
    pub(crate) until: NicTime,
    /// Its operations have retired.
    pub(crate) reaped: bool,
}

/// Detail of a collective that was not over in time, and has ended its communicator with it.
pub(crate) fn late(absent: Option<u32>) -> u64 {
    match absent {
        Some(rank) => COMM_ENDED | RANK_ABSENT | u64::from(rank),
        None => COMM_ENDED,
    }
}

impl End {
    /// How operations end with the communicator.
    pub(crate) fn of_operations(&self) -> (Status, u64) {
        let detail = match self.status {
            Status::TimedOut => late(Some(self.rank)),
            _ => self.rank.into(),
        };
        (self.status, detail)
    }
}

/// Ranks disagree about an operation: all exchange its parameters.
#[derive(Debug)]
pub(crate) struct Dispute {
    pub(crate) seq: Number,
    pub(crate) said: Vec<Option<Params>>,
    /// This rank has sent its own.
    pub(crate) told: bool,
    /// The rank that differs as the records of the direct path have it: named when the one that
    /// would decide is gone.
    pub(crate) found: Option<u32>,
}

impl Dispute {
    /// The rank that differs, where that is certain but the parameters of `gone` are still needed
    /// to name the same one on all ranks.
    pub(crate) fn found_without(&self, gone: u32) -> Option<u32> {
        let is_silent = self.said.get(gone as usize).is_none_or(Option::is_none);
        self.found.filter(|_| is_silent)
    }

    /// The first rank that differs from rank 0, once the parameters of all before it have arrived.
    pub(crate) fn culprit(&self) -> Option<u32> {
        let first = self.said.first().copied().flatten()?;
        for (r, p) in self.said.iter().enumerate().skip(1) {
            if (*p)? != first {
                return Some(r as u32);
            }
        }
        None
    }

    /// The rank that differs where only `neighbors` are heard, once all of them are: the first that
    /// is unlike most of those that are known.
    pub(crate) fn culprit_among(&self, neighbors: impl Iterator<Item = u32>) -> Option<u32> {
        if !self.have_said(neighbors) {
            return None;
        }
        let known = || {
            (0_u32..)
                .zip(&self.said)
                .filter_map(|(r, p)| Some((r, (*p)?)))
        };
        let alike = |p: Params| known().filter(|(_, q)| *q == p).count();
        // The first of those that are as many: the last of equals counts.
        let all: Vec<(u32, Params)> = known().collect();
        let (_, usual) = all.iter().rev().max_by_key(|(_, p)| alike(*p))?;
        all.iter().find(|(_, p)| p != usual).map(|(r, _)| *r)
    }

    /// Whether all of these have answered.
    pub(crate) fn have_said(&self, mut ranks: impl Iterator<Item = u32>) -> bool {
        ranks.all(|r| self.said.get(r as usize).is_none_or(Option::is_some))
    }

    /// How a rank differs from the first that has answered.
    pub(crate) fn difference(&self, rank: u32) -> Option<String> {
        let theirs = self.said.get(rank as usize).copied().flatten()?;
        let mut known = self.said.iter().enumerate();
        let (other, first) = known.find_map(|(r, p)| Some((r, (*p)?)))?;
        let what = theirs.difference(&first)?;
        Some(format!(
            "rank {rank} differs from rank {other} in its {what}"
        ))
    }

    /// Any rank that differs from another: when not all have answered in time.
    pub(crate) fn suspect(&self) -> Option<u32> {
        let mut known = self
            .said
            .iter()
            .enumerate()
            .filter_map(|(r, p)| Some((r, (*p)?)));
        let (_, first) = known.next()?;
        known.find(|(_, p)| *p != first).map(|(r, _)| r as u32)
    }
}

/// Phase of a communicator, from the search for its ranks to its end.
#[derive(Debug)]
pub(crate) struct Life {
    /// When the ranks must have found each other.
    pub(crate) deadline: Option<NicTime>,
    /// That time is over, and a neighbour of a rank that is missing is waited for.
    pub(crate) is_late: bool,
    pub(crate) ready: bool,
    /// This rank's card executes programs of rings, and may.
    pub(crate) offers_card: bool,
    /// The cards of all ranks do.
    pub(crate) cards: bool,
    pub(crate) end: Option<End>,
    /// Why it ended, or what an operation lacked, in words.
    pub(crate) why: Option<String>,
    pub(crate) gone: Vec<Gone>,
    /// What each rank has answered.
    pub(crate) heard: Vec<Heard>,
    pub(crate) freed: bool,
}

/// Answers of a rank that was asked whether it is alive.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    /// The last one.
    at: Option<NicTime>,
    /// The last one of each port, with the next number there by then: few.
    ports: Vec<(NicTime, Number)>,
}

impl Heard {
    /// It answers: this is the next number of a port.
    pub(crate) fn note(&mut self, now: NicTime, next: Number) {
        self.at = Some(now);
        match self.ports.iter_mut().find(|p| p.1.port() == next.port()) {
            Some(p) => *p = (now, next),
            None => self.ports.push((now, next)),
        }
    }

    /// Whether it has answered since then.
    pub(crate) fn is_since(&self, asked: NicTime) -> bool {
        self.at.is_some_and(|at| at >= asked)
    }

    /// Whether it has said since then that it had not posted an operation.
    pub(crate) fn is_behind(&self, asked: NicTime, seq: Number) -> bool {
        let behind = |n: Number| n.port() == seq.port() && !seq.is_before(n);
        self.ports.iter().any(|(at, n)| *at >= asked && behind(*n))
    }
}

impl Life {
    /// A communicator of so many ranks begins.
    pub(crate) fn new(ranks: usize) -> Life {
        Life {
            deadline: None,
            is_late: false,
            ready: false,
            offers_card: false,
            cards: false,
            end: None,
            why: None,
            gone: Vec::new(),
            heard: vec![Heard::default(); ranks],
            freed: false,
        }
    }
}

/// What the communicators of a NIC wait for, counted.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// Communicators that have ended and are not gone.
    pub(crate) ending: usize,
    /// Some may not be ready, or have ended and not retired their operations.
    pub(crate) unsettled: bool,
    /// Ranks ever recorded as gone: usually none.
    pub(crate) gone: u64,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) ctx: u64,
    pub(crate) rank: u32,
    pub(crate) peers: Vec<SocketAddrV4>,
    pub(crate) settings: CollectiveSettings,
    pub(crate) scratch: Scratch,
    pub(crate) arena: Space,
    pub(crate) numbers: Numbers,
    /// Collective operations that have not begun, in order.
    pub(crate) queue: VecDeque<u32>,
    /// Operations that have begun, those on the direct path not included.
    pub(crate) active: Vec<u32>,
    pub(crate) history: VecDeque<(Number, Params)>,
    pub(crate) dispute: Option<Dispute>,
    pub(crate) life: Life,
    pub(crate) counters: CollectiveCounters,
    pub(crate) chosen: Chosen,
    /// Operations that were prepared for earlier calls.
    pub(crate) kept: Kept,
    /// The ranks' memory, when all share a host.
    pub(crate) direct: Option<DirectComm>,
}

impl Comm {
    pub(crate) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Frees a program's NIC memory, and adds up its counts.
    pub(super) fn release(&mut self, op: &Op) {
        for b in op.blocks() {
            self.arena.free(b);
        }
        self.counters.steps += op.steps_run;
        self.counters.reduced += op.reduced;
    }

    /// The same of one that was the card's.
    pub(super) fn release_card(&mut self, op: Box<CardOp>) {
        for b in op.blocks() {
            self.arena.free(b);
        }
        self.counters.steps += op.steps_run;
        self.counters.reduced += op.reduced;
    }

    /// Operations that have not retired.
    pub(crate) fn under_way(&self) -> usize {
        let direct = self.direct.as_ref().map_or(0, |d| d.ops().count());
        self.active.len() + self.queue.len() + direct
    }

    /// A collective has ended: counts it, and keeps its record for the next call.
    #[inline]
    pub(crate) fn end_program(&mut self, seq: Option<Number>, p: Box<Prepared>, status: Status) {
        if let Some(seq) = seq {
            self.remember(seq, p.params);
            self.kept.put(p);
            let settles = |d: &Dispute| d.seq == seq && d.suspect().is_none();
            if status == Status::Ok && self.dispute.as_ref().is_some_and(settles) {
                // The dispute was unfounded: some rank was late.
                self.dispute = None;
            }
        }
    }

    /// Counts an operation that has ended.
    #[inline]
    pub(crate) fn count_end(&mut self, status: Status) {
        if status == Status::Ok {
            self.counters.completed += 1;
        } else {
            self.counters.failed += 1;
        }
    }

    /// Keeps the parameters of an operation that has ended.
    fn remember(&mut self, seq: Number, params: Params) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((seq, params));
    }

    /// Whether operations may use the ranks' memory.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|d| d.ready)
    }

    /// An operation that was counted for an algorithm has not begun.
    pub(crate) fn uncount(&mut self, kind: CollectiveKind, algo: Algorithm) {
        *choices(&mut self.chosen, kind, algo) -= 1;
    }

    /// Counts the choice of an algorithm.
    pub(crate) fn count(&mut self, kind: CollectiveKind, algo: Algorithm) {
        count_choice(&mut self.chosen, kind, algo);
    }
}

/// How often each algorithm was chosen for each collective; few pairs, so no map.
pub(crate) type Chosen = Vec<((CollectiveKind, Algorithm), u64)>;

/// Counts the choice of an algorithm.
#[inline]
pub(crate) fn count_choice(chosen: &mut Chosen, kind: CollectiveKind, algo: Algorithm) {
    *choices(chosen, kind, algo) += 1;
}

fn choices(chosen: &mut Chosen, kind: CollectiveKind, algo: Algorithm) -> &mut u64 {
    let key = (kind, algo);
    let i = match chosen.iter().position(|(k, _)| *k == key) {
        Some(i) => i,
        None => {
            chosen.push((key, 0));
            chosen.len() - 1
        }
    };
    &mut chosen[i].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringbell_nic_abi::{DataType, ReduceOp, WireType};

    #[test]
    fn all_ranks_name_the_same_differing_rank_and_only_with_a_majority() {
        let p = |count| Params {
            kind: CollectiveKind::AllReduce,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            algo: Algorithm::Ring,
            wire: WireType::Same,
            root: 0,
            count,
            extra: 7,
            direct: false,
        };
        let mut d = Dispute {
            seq: Number::first(0),
            said: vec![Some(p(5)), None, Some(p(6)), None],
            told: true,
            found: None,
        };
        assert_eq!(d.culprit(), None, "rank 1 may differ as well");
        assert_eq!(d.suspect(), Some(2));
        d.said[1] = Some(p(5));
        assert_eq!(d.culprit(), Some(2));
        d.said[0] = None;
        assert_eq!(d.culprit(), None);
    }
}
