//! The number of values that a rank must hold for messages without a posted receive.
//!
//! A value that leaves in another type is converted into a slot of NIC memory, and stays there
//! until every receiver of it has posted its receive. Steps run in order, so a rank without a free
//! slot waits, and others may wait for it. This run assumes the least of an executor: a receive is
//! posted when its step is the next, and no message finds a receive buffer (all are rendezvous). An
//! executor that posts receives ahead, or sends eager messages, frees slots earlier, and that
//! cannot make a rank wait.

use std::collections::VecDeque;

use super::matching::Messages;
use crate::program::{Operand, Program};

/// A message.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    sent: bool,
    /// The receiver is at the step that takes it, or past it.
    wanted: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct HoldingRank {
    step: usize,
    sent: usize,
    received: usize,
    held: u32,
    /// The receives of its present step are posted.
    posted: bool,
}

struct Held<'a> {
    programs: &'a [Program],
    messages: &'a Messages,
    states: Vec<State>,
    ranks: Vec<HoldingRank>,
    /// By rank and step: messages without a posted receive.
    unwanted: Vec<Vec<u32>>,
    slots: u32,
    ready: VecDeque<usize>,
}

/// The least number of slots, of the longest value that a step sends, with which all ranks come to
/// their ends. The programs have passed [`run`](super::run::run).
pub(super) fn slots(programs: &[Program], messages: &Messages) -> u32 {
    let mut run = Held {
        programs,
        messages,
        states: vec![State::default(); messages.all.len()],
        ranks: vec![HoldingRank::default(); programs.len()],
        unwanted: programs.iter().map(|p| vec![0; p.steps.len()]).collect(),
        slots: 1,
        ready: (0..programs.len()).collect(),
    };
    loop {
        while let Some(rank) = run.ready.pop_front() {
            while run.step(rank) {}
        }
        let at_end = |(r, p): (&HoldingRank, &Program)| r.step == p.steps.len();
        if run.ranks.iter().zip(programs).all(at_end) {
            return run.slots;
        }
        // A state reached with fewer slots can be reached with more. No rank sends more than this,
        // so it ends.
        run.slots += 1;
        run.ready.extend(0..programs.len());
    }
}

impl Held<'_> {
    /// Runs the next step of a rank. `false`: it is at its end, or waits.
    fn step(&mut self, rank: usize) -> bool {
        let HoldingRank {
            step: at,
            sent,
            received,
            ..
        } = self.ranks[rank];
        let Some(step) = self.programs[rank].steps.get(at) else {
            return false;
        };
        let is_net = |o: &&Operand| matches!(o, Operand::Net { .. });
        let wanted = step.operands.iter().filter(is_net).count();
        let messages = self.messages;
        let wanted = &messages.receives[rank][received..received + wanted];
        if !self.ranks[rank].posted {
            self.ranks[rank].posted = true;
            for m in wanted {
                self.states[*m].wanted = true;
                if self.states[*m].sent {
                    self.release(*m);
                }
            }
        }
        if !wanted.iter().all(|m| self.states[*m].sent) {
            return false;
        }
        let sends = &messages.sends[rank][sent..sent + step.messages()];
        let holds = step.chunks > 0 && !sends.is_empty();
        if holds && self.ranks[rank].held == self.slots {
            return false;
        }
        let mut unwanted = 0;
        for m in sends {
            self.states[*m].sent = true;
            unwanted += u32::from(!self.states[*m].wanted);
            self.ready.push_back(messages.all[*m].to as usize);
        }
        self.unwanted[rank][at] = unwanted;
        let r = &mut self.ranks[rank];
        r.held += u32::from(holds && unwanted > 0);
        (r.step, r.posted) = (at + 1, false);
        r.sent += sends.len();
        r.received += wanted.len();
        true
    }

    /// The receive of a message is posted: it leaves, and its slot with the last message from
    /// there.
    fn release(&mut self, message: usize) {
        let m = self.messages.all[message];
        let from = m.from as usize;
        self.unwanted[from][m.sent] -= 1;
        if self.unwanted[from][m.sent] == 0 && self.programs[from].steps[m.sent].chunks > 0 {
            self.ranks[from].held -= 1;
            self.ready.push_back(from);
        }
    }
}
