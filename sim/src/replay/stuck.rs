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
            Work::Calc { .. } => None,
        };
        let kind = match this {
            Work::Send { .. } => "receive",
            _ => "send",
        };
        let why = match (this, is_unmet, peer) {
            (Work::Recv { .. }, true, None) => "it has met no message".into(),
            (Work::Recv { .. }, true, Some(peer)) | (Work::Send { .. }, _, Some(peer)) => {
                match self.partner(rank, this, peer) {
                    Some(line) => format!("the {kind} of rank {peer}, line {line}, has not begun"),
                    None => format!("rank {peer} has no {kind} left for it"),
                }
            }
            _ => "it is under way".into(),
        };
        self.operation(rank, op, why)
    }

    /// The line of the first operation of a peer that fits and has not begun.
    fn partner(&self, rank: usize, this: Work, peer: usize) -> Option<u32> {
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
        open.find(|(op, _)| fits(op.work)).map(|(op, _)| op.line)
    }
}
