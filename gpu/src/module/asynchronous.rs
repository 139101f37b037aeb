//! Copies that a thread does not wait for, the barriers that tell of them, and barriers in two
//! parts (§9.7.9.25, §9.7.13).

use super::operand::{Address, AtomicOp, Operand, Reg, Target};
use super::types::{Space, Type};

/// An address with its space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) at: Address,
}

/// What is done to an mbarrier object (§9.7.13.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PhaseOp {
    /// Argument: the number of arrivals of a phase.
    Init,
    Invalidate,
    /// Argument: bytes.
    Expect,
    /// Argument: bytes.
    Complete,
    /// Argument: arrivals, or bytes if `expect`. `drop`: later phases wait for one less.
    Arrive {
        expect: bool,
        drop: bool,
    },
    /// Argument: a state, or a parity. `wait`: it gives way to others once.
    Test {
        parity: bool,
        wait: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AsyncOp {
    /// `cp.async` (§9.7.9.25.3.1): `size` bytes are copied, and zeros fill the rest.
    Copy {
        to: Place,
        from: Place,
        bytes: u32,
        size: Option<Operand>,
        /// True: zeros instead of what is there.
        ignore: Option<Operand>,
    },
    /// `cp.async.bulk`, `cp.reduce.async.bulk` (§9.7.9.25.4).
    Bulk {
        to: Place,
        from: Place,
        bytes: Operand,
        reduce: Option<(AtomicOp, Type)>,
        /// The mbarrier object that is told.
        done: Option<Place>,
    },
    Phase {
        op: PhaseOp,
        at: Place,
        to: Target,
        arg: Operand,
    },
    /// `mbarrier.pending_count`.
    Pending {
        to: Target,
        state: Operand,
    },
    /// `bar.arrive` (§9.7.13.1).
    Arrive {
        id: Operand,
        count: Operand,
    },
    /// `barrier.cluster` (§9.7.13.3); a cluster is one block.
    ClusterArrive,
    ClusterWait,
}

impl AsyncOp {
    pub(super) fn waits(&self) -> bool {
        matches!(
            self,
            AsyncOp::ClusterWait
                | AsyncOp::Phase {
                    op: PhaseOp::Test { wait: true, .. },
                    ..
                }
        )
    }

    /// Whether a loop around it waits for other threads.
    pub(super) fn observes(&self) -> bool {
        matches!(
            self,
            AsyncOp::Phase {
                op: PhaseOp::Test { .. },
                ..
            }
        )
    }

    pub(super) fn reads(&self, f: &mut dyn FnMut(Reg)) {
        let (places, operands): (Vec<&Place>, Vec<&Operand>) = match self {
            AsyncOp::Copy {
                to,
                from,
                size,
                ignore,
                ..
            } => (vec![to, from], size.iter().chain(ignore).collect()),
            AsyncOp::Bulk {
                to,
                from,
                bytes,
                done,
                ..
            } => ([to, from].into_iter().chain(done).collect(), vec![bytes]),
            AsyncOp::Phase { at, arg, .. } => (vec![at], vec![arg]),
            AsyncOp::Pending { state, .. } => (Vec::new(), vec![state]),
            AsyncOp::Arrive { id, count } => (Vec::new(), vec![id, count]),
            AsyncOp::ClusterArrive | AsyncOp::ClusterWait => (Vec::new(), Vec::new()),
        };
        let addresses = places.iter().filter_map(|p| p.at.register());
        let operands = operands.iter().filter_map(|o| o.register());
        addresses.chain(operands).for_each(f);
    }

    pub(super) fn writes(&self, f: &mut dyn FnMut(Reg)) {
        if let AsyncOp::Phase { to, .. } | AsyncOp::Pending { to, .. } = self {
            to.iter().for_each(|r| f(*r));
        }
    }
}
