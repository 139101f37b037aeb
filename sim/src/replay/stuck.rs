//! For what ranks wait that never end.

use super::agenda::State;
use super::report::{GoalTrouble, Operation};
use super::run::Replay;
use crate::goal::Work;
use crate::world::World;

impl Replay<'_> {
    /// Nothing goes on any more: the operations that have begun and cannot end.
    pub(super) fn stuck(&self, world: &World) -> GoalTrouble {
        let mut waiting = Vec::new();
        let mut behind = 0;
        for (rank, host) in self.hosts.iter().enumerate() {
            if host.is_done() {
                continue;
            }
            let open = host.endpoint.open();
            behind += host.agenda.left() - open.len();
            let all = open.into_iter();
            waiting.extend(all.map(|(op, is_unmet)| self.explain(rank, op, is_unmet)));
        }
        GoalTrouble::Stuck {
            since_ns: world.since_begin() - (world.now() - self.last) / 1_000,
            waiting,
            behind,
        }
    }

    fn explain(&self, rank: usize, op: u32, is_unmet: bool) -> Operation {
        let this = self.ops(rank)[op as usize].work;
        let peer = match this {
            Work::Send { to, .. } => Some(to as usize),
            Work::Recv { from, .. } => from.map(|f| f as usize),
            Work::Calc { .. } | Work::Collective { .. } => None,
        };
        let kind = match this {
            Work::Send { .. } => "receive",
            _ => "send",
        };
        let why = match (this, is_unmet, peer) {
            (Work::Recv { .. }, true, None) => "it has met no message".into(),
            (Work::Recv { .. }, true, Some(peer)) | (Work::Send { .. }, _, Some(peer)) => {
                match self.partner(rank, this, peer) {
                    Some(place) => format!("the {kind} of rank {peer}, {place}, has not begun"),
                    None => format!("rank {peer} has no {kind} left for it"),
                }
            }
            (Work::Collective { .. }, ..) => self.missing(rank, op),
            _ => "it is under way".into(),
        };
        self.operation(rank, op, why)
    }

    /// Whom a collective waits for.
    fn missing(&self, rank: usize, op: u32) -> String {
        let Some(number) = self.hosts[rank].endpoint.collectives.number(op) else {
            return "there is no room for its result".into();
        };
        let mut hosts = self.hosts.iter();
        match hosts.position(|h| h.endpoint.collectives.begun() <= number) {
            Some(peer) => format!("rank {peer} has begun {number} collectives, this is the next"),
            None => "it is under way".into(),
        }
    }

    /// The place of the first operation of a peer that fits and has not begun.
    fn partner(&self, rank: usize, this: Work, peer: usize) -> Option<String> {
        let fits = |other: Work| match (this, other) {
            (Work::Recv { tag: want, .. }, Work::Send { to, tag, .. }) => {
                to as usize == rank && want.is_none_or(|t| t == tag)
            }
            (
                Work::Send { tag, .. },
                Work::Recv {
                    from, tag: want, ..
                },
            ) => from.is_none_or(|f| f as usize == rank) && want.is_none_or(|t| t == tag),
            _ => false,
        };
        let ops = self.ops(peer).iter().zip(0..);
        let mut open = ops.filter(|(_, i)| {
            let state = self.hosts[peer].agenda.state(*i);
            matches!(state, State::Waits(_) | State::Queued)
        });
        open.find(|(op, _)| fits(op.work)).map(|(op, _)| op.place())
    }
}
