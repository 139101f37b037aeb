//! Collectives that run programs: one record from the descriptor to the completion, kept from one
//! call to the next of the same shape.
//!
//! The record is made when a descriptor is decoded. It owns the plan, the buffers as the direct
//! path finds them, and the state of the call that is under way. A descriptor that repeats an
//! earlier one finds by one look-up what was decoded, planned and translated then. Nothing is
//! pinned in between. Every call pins anew, by the regions' keys, and only while no region of the
//! NIC has been deregistered since: after that, descriptors are decoded again, and those of freed
//! memory refused. Peers keep nothing from one call to the next.
//!
//! A second call of the same shape that is posted meanwhile gets a record of its own.

use std::sync::Arc;

use ringbell_nic_abi::{Algorithm, Descriptor, PdId, Status};

use super::bounce::Bounce;
use super::pages::Pages;
use super::pass::{Cursor, Found};
use super::ranges::Ranges;
use super::ranks::Ranks;
use super::record::{Form, Shape};
use super::Params;
use crate::collective::number::Number;
use crate::collective::params::{Reach, Side};
use crate::collective::plan::Plan;
use crate::memory::nic_memory::Block;
use crate::types::{NicTime, WorkToken};

/// Sets of the table of kept records, and records in each.
const SETS: usize = 16;
const WAYS: usize = 2;
/// Bits of a descriptor's `len` that belong to the shape; the others name the predecessor.
const LEN_BITS: u32 = 0xff;
/// Largest record that is kept, in bytes of its own.
const MOST_BYTES: usize = 64 << 10;

/// How an operation runs: the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Eager,
    Push,
    Pull,
    Bounce,
    Fallback,
}

/// How far an operation is on the direct path.
#[derive(Debug)]
pub(super) enum Phase {
    /// Waits for the records of these ranks; those that have come and differ.
    Records { missing: Ranks, differ: Ranks },
    /// Moves data.
    Pass { way: Way, cursor: Cursor },
    /// Waits for the flags of these ranks.
    Flags { missing: Ranks },
    /// Goes through windows.
    Bounce(Box<Bounce>),
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Flags {
            missing: Ranks::default(),
        }
    }
}

/// The shape of a collective as its descriptor gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    source: u64,
    result: u64,
    count: u64,
    /// Packed codes, and the communicator's generation and slot.
    codes: [u32; 2],
    root: u32,
    pd: PdId,
}

impl Key {
    #[inline]
    pub(crate) fn of(pd: PdId, d: &Descriptor) -> Key {
        Key {
            source: d.local_va.0,
            result: d.remote_va.0,
            count: d.operand,
            codes: [d.imm, d.len & LEN_BITS],
            root: d.rkey.0,
            pd,
        }
    }

    fn set(&self) -> usize {
        let mixed = self.source ^ self.result.rotate_left(21) ^ self.count.rotate_left(42);
        let mixed = mixed ^ u64::from(self.codes[0]) << 7;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SETS
    }
}

/// What every operation of a communicator has while it is under way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Call {
    pub(crate) token: WorkToken,
    /// Number among the communicator's collective operations.
    pub(crate) seq: Option<Number>,
    /// How it ends when its communicator does, if not like the others.
    pub(crate) own_end: Option<(Status, u64)>,
    /// When it has asked whether the other ranks are alive.
    pub(crate) asked: Option<NicTime>,
}

impl Call {
    pub(crate) fn new(token: WorkToken, seq: Option<Number>) -> Call {
        Call {
            token,
            seq,
            own_end: None,
            asked: None,
        }
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) key: Key,
    /// Deregistrations of the NIC before its buffers were pinned.
    pub(crate) freed: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) params: Params,
    pub(crate) input: Side,
    pub(crate) output: Side,
    /// Bytes of source and destination.
    pub(crate) sides: [u64; 2],
    /// Whether it may take the direct path.
    pub(crate) reach: Reach,
    /// What the completion reports.
    pub(crate) bytes: u64,
    /// In the order of a stream.
    pub(crate) streamed: bool,
    /// Operations of different ports are not in order.
    pub(crate) port: u8,
    /// The program for ranks that all have cards, until that is known.
    pub(crate) for_cards: Option<Arc<Plan>>,
    /// Its buffers and steps for the direct path.
    pub(crate) at: Located,
    /// The call that is under way on the direct path, or was the last.
    pub(crate) call: Call,
    pub(crate) course: Course,
}

impl Prepared {
    /// All ranks have cards that execute programs of rings.
    #[inline]
    pub(crate) fn use_cards(&mut self) {
        if let Some(plan) = self.for_cards.take() {
            (self.params.algo, self.params.extra) = (Algorithm::Ring, plan.hash);
            (self.plan, self.reach) = (plan, Reach::Messages);
        }
    }

    /// Bytes that it occupies between calls, about.
    fn footprint(&self) -> usize {
        let pages = self.at.input.len() + self.at.output.len();
        size_of::<Prepared>() + pages * size_of::<(u64, u64)>()
    }
}

/// What the direct path finds out once: where the buffers are, and what this rank does with them.
#[derive(Debug, Default)]
pub(crate) struct Located {
    /// It has.
    pub(crate) known: bool,
    /// The source buffer; empty where this rank has none.
    pub(super) input: Pages,
    /// The destination buffer; empty where this rank has none.
    pub(super) output: Pages,
    pub(super) form: Form,
    pub(super) shape: Shape,
    pub(super) push: Ranges,
    pub(super) pull: Ranges,
    /// Words of an eager record.
    pub(super) head: [u64; 3],
    /// The operands of an eager operation, where they can be found beforehand.
    pub(super) found: Option<Found>,
}

/// How far a call is on the direct path.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Number among the operations of the path.
    pub(super) number: u64,
    pub(super) phase: Phase,
    /// An engine of this rank, or of one whose record has come, needs to see messages, which this
    /// path has not.
    pub(super) messages: bool,
    /// Of its record, once that is out.
    pub(super) flags: u8,
    /// Tables of pages that peers read during a call.
    pub(super) tables: [Option<Block>; 2],
}

/// How an operation ended on the direct path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Well.
    Done,
    /// Not started: a rank needs messages, or has no NIC memory for windows. All ranks conclude the
    /// same.
    Fallback,
    /// A rank gave other parameters; nothing was moved.
    Mismatch {
        /// The first that differs from this one.
        rank: u32,
    },
    /// A rank is gone, or published addresses that it does not export; no rank accesses the buffers
    /// any more.
    PeerFailed {
        /// Which.
        rank: u32,
    },
    /// A rank has aborted the communicator; no rank accesses the buffers any more.
    PeerAborted {
        /// Which.
        rank: u32,
    },
    /// After [`Direct::abort`](super::Direct::abort): no rank accesses the buffers any more.
    Aborted,
    /// As the three above, but a stopped peer may still write the buffers when it resumes.
    Unsafe {
        /// Which.
        rank: u32,
    },
}

/// The records of a communicator that are not under way, the latest first in each set.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    sets: [[Option<Box<Prepared>>; WAYS]; SETS],
}

impl Kept {
    /// Takes the record of a shape, if it was made after the NIC's last deregistration.
    #[inline]
    pub(crate) fn take(&mut self, key: &Key, freed: u64) -> Option<Box<Prepared>> {
        let set = &mut self.sets[key.set()];
        let same = |p: &Option<Box<Prepared>>| p.as_ref().is_some_and(|p| p.key == *key);
        let way = set.iter().position(same)?;
        // One that is stale is dropped.
        set[way].take().filter(|p| p.freed == freed)
    }

    /// Keeps the record of a call that has ended.
    #[inline]
    pub(crate) fn put(&mut self, p: Box<Prepared>) {
        // A program that the user loads anew must not be run as it was, and streams belong to one
        // call.
        let user = p.params.algo == Algorithm::User;
        if user || p.streamed || p.footprint() > MOST_BYTES {
            return;
        }
        let set = &mut self.sets[p.key.set()];
        if set[0].is_some() {
            set.swap(0, 1);
        }
        set[0] = Some(p);
    }
}

/// What one look at an operation in windows has done.
pub(super) enum Looked {
    Ended(Outcome),
    Moved,
    /// It waits for these ranks.
    Waits(Ranks),
}
