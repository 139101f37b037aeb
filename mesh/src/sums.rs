//! Sums in transit: the packets of a tree that a node combines on their way to the root.
//!
//! Each rank sends its elements up the tree of a root, in packets of one segment each. A node takes
//! a packet off its wire at once, into a place that is reserved for the neighbour from which it
//! came. When each of its children and its own NIC have given a segment, the node combines them
//! (own first, then by number of the port, whatever came first) and sends one packet to its parent.
//! So each byte crosses each wire of the tree once, and no packet waits in a channel for another.
//!
//! The root's NIC numbers its sums, one at a time, and grants at most [`WINDOW`] segments beyond
//! those that it has. A packet of another number begins another sum. What does not fit is dropped:
//! the root misses it, and begins again. Each packet counts the ranks whose elements it has, so
//! that a sum that lacks some, because the tree has changed, is never taken for a whole one.

use std::collections::VecDeque;

use ringbell_net::sum::{SumHead, SUM, SUM_HEAD, WINDOW};
use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_onc_engines::reduce::combine;
use ringbell_routes::check::Places;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::buffers::{Pool, Stored};
use crate::head::HEAD;

/// What a node reserves for the sums of a root.
pub const PLACES: Places = Places {
    granted: WINDOW,
    reserved: WINDOW,
};
/// Bytes between the head of a packet and the head of a sum: the frame's EtherType.
const TYPE: usize = 2;

/// What becomes of a packet that has come to a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// It is of another sum than the one under way, or not the next of its input.
    Late,
    /// It can be of no sum.
    Bad,
}

/// What a neighbour, or the own NIC, has given.
#[derive(Debug)]
struct Input {
    /// The child's wire; none: the own NIC.
    wire: Option<usize>,
    /// The next segment that it gives.
    next: u32,
    held: VecDeque<Stored>,
}

/// A root's sum at one node.
#[derive(Debug)]
pub(crate) struct Sum {
    /// The queue by which combined packets leave, or go to the NIC at the root.
    pub(crate) queue: usize,
    inputs: Vec<Input>,
    /// Its number; none before the first.
    id: Option<u32>,
    /// Nothing more is taken for this number.
    is_over: bool,
}

/// The head of a sum's packet and its elements.
fn parts(packet: &[u8]) -> Option<(SumHead, &[u8])> {
    let (head, elements) = SumHead::read_from_prefix(packet.get(HEAD + TYPE..)?).ok()?;
    let elements = elements.get(..head.len.get().into())?;
    (head.kind == SUM && !elements.is_empty()).then_some((head, elements))
}

impl Sum {
    /// With these inputs, in the order in which they are combined.
    pub(crate) fn new(queue: usize, inputs: impl Iterator<Item = Option<usize>>) -> Sum {
        let input = |wire| Input {
            wire,
            next: 0,
            held: VecDeque::new(),
        };
        Sum {
            queue,
            inputs: inputs.map(input).collect(),
            id: None,
            is_over: false,
        }
    }

    /// The number of the sum that was under way is refused from now on: parts of it went by another
    /// tree.
    pub(crate) fn refuse(&mut self, id: Option<u32>) {
        (self.id, self.is_over) = (id, id.is_some());
    }

    /// Its number.
    pub(crate) fn id(&self) -> Option<u32> {
        self.id
    }

    /// Takes a packet of a child, or of the own NIC.
    pub(crate) fn take(&mut self, wire: Option<usize>, packet: Stored, pool: &mut Pool) -> Taken {
        let Some((head, _)) = parts(packet.bytes()) else {
            pool.give(packet);
            return Taken::Bad;
        };
        if self.id != Some(head.id.get()) && head.segment.get() == 0 {
            self.clear(pool);
            (self.id, self.is_over) = (Some(head.id.get()), false);
            self.inputs.iter_mut().for_each(|i| i.next = 0);
        }
        let is_own = self.id == Some(head.id.get()) && !self.is_over;
        let Some(input) = self.inputs.iter_mut().find(|i| i.wire == wire) else {
            pool.give(packet);
            return Taken::Bad;
        };
        if !is_own || input.next != head.segment.get() || input.held.len() >= WINDOW {
            pool.give(packet);
            return Taken::Late;
        }
        input.next = input.next.wrapping_add(1);
        input.held.push_back(packet);
        Taken::Yes
    }

    /// Whether all inputs have given the next segment.
    pub(crate) fn is_ready(&self) -> bool {
        !self.inputs.is_empty() && self.inputs.iter().all(|i| !i.held.is_empty())
    }

    /// The next segment, combined; none if the packets do not fit each other, which ends the sum.
    pub(crate) fn next(&mut self, pool: &mut Pool) -> Option<Stored> {
        let mut packets = self.inputs.iter_mut().filter_map(|i| i.held.pop_front());
        let mut first = packets.next()?;
        let rest: Vec<Stored> = packets.collect();
        let is_done = combined(&mut first, &rest);
        rest.into_iter().for_each(|p| pool.give(p));
        if is_done {
            return Some(first);
        }
        pool.give(first);
        self.is_over = true;
        self.clear(pool);
        None
    }

    /// Gives all places free.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        let held = self.inputs.iter_mut().flat_map(|i| i.held.drain(..));
        held.for_each(|p| pool.give(p));
    }
}

/// Combines packets of one segment into the first. `false`: they do not fit each other.
fn combined(first: &mut Stored, rest: &[Stored]) -> bool {
    let Some((mut head, _)) = parts(first.bytes()) else {
        return false;
    };
    let kind = |h: &SumHead| (h.dtype, h.op, h.id, h.segment);
    let mut operands = Vec::with_capacity(rest.len());
    let mut ranks = head.ranks.get();
    for (other, elements) in rest.iter().filter_map(|p| parts(p.bytes())) {
        if kind(&other) != kind(&head) {
            return false;
        }
        ranks = ranks.saturating_add(other.ranks.get());
        operands.push(elements);
    }
    let types = DataType::from_code(head.dtype).zip(ReduceOp::from_code(head.op));
    let is_sound =
        |(dtype, op): &(DataType, ReduceOp)| op.takes(*dtype) && operands.len() == rest.len();
    let Some((dtype, op)) = types.filter(is_sound) else {
        return false;
    };
    head.ranks.set(ranks);
    let body = &mut first.bytes_mut()[HEAD + TYPE..];
    let (room, elements) = body.split_at_mut(SUM_HEAD);
    room.copy_from_slice(head.as_bytes());
    let elements = &mut elements[..head.len.get().into()];
    combine(dtype, op, elements, &operands)
}
