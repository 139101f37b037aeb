//! Operations of the path alone, without a communicator around them.

use ringbell_nic_abi::{Descriptor, Opcode, PdId};

use super::*;
use crate::collective::params::{Reach, Side};
use crate::collective::plan::{Plans as Programs, Shape as ProgramShape};
use crate::types::WorkToken;

/// An operation that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) op: Box<Prepared>,
}

/// Moves the operations of a path on; those that have ended are appended. Returns whether anything
/// moved.
pub(super) fn step(
    path: &mut Direct,
    now: NicTime,
    nic_memory: &mut NicMemory,
    peers: &dyn Peers,
    out: &mut Vec<Ended>,
) -> bool {
    let mut moved = false;
    loop {
        match path.step(now, nic_memory, peers) {
            Stepped::Idle => return moved,
            Stepped::Moved => return true,
            Stepped::Ended(outcome, op) => out.push(Ended { outcome, op }),
        }
        moved = true;
    }
}

/// Posts an operation on these buffers.
pub(super) fn post(path: &mut Direct, token: u64, params: Params, input: Pages, output: Pages) {
    // The path runs no program of messages.
    let plan = Programs::default().of(&ProgramShape {
        kind: K::AllReduce,
        algo: Algorithm::Ring,
        ranks: 2,
        rank: 0,
        root: 0,
        in_place: false,
        order: Order::Ring,
        host_ranks: 0.into(),
    });
    let at = path.locate(&params, input, output);
    let op = Box::new(Prepared {
        key: Key::of(PdId(0), &Descriptor::new(Opcode::Collective)),
        freed: 0,
        plan: plan.expect("a program"),
        for_cards: None,
        params,
        input: Side::default(),
        output: Side::default(),
        sides: [0; 2],
        reach: Reach::MustDirect,
        bytes: 0,
        streamed: false,
        port: 0,
        at,
        call: Call::default(),
        course: Default::default(),
    });
    path.post(Call::new(WorkToken(token), None), op, false);
}
