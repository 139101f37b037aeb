//! Prepared operations: what a communicator keeps of a collective from one call to the next of the same shape.
//!
//! A descriptor that repeats an earlier one finds by one look-up what was decoded, planned and translated then.
//! Nothing is pinned in between. Every call pins anew, by the regions' keys, and only while no region of the NIC has
//! been deregistered since: after that, descriptors are decoded again, and those of freed memory refused. Peers keep
//! nothing from one call to the next.
//!
//! An operation owns what was prepared for it until it retires. A second one of the same shape that is posted
//! meanwhile is prepared on its own.

use std::sync::Arc;

use ringbell_nic_abi::{Descriptor, PdId};

use super::direct::DirectOp;
use super::{Params, Plan, Reach, Side};

/// Sets of the table, and operations in each.
const SETS: usize = 16;
const WAYS: usize = 2;
/// Bits of a descriptor's `len` that belong to the shape; the others name the predecessor.
const LEN_BITS: u32 = 0xff;
/// Largest operation that is kept, in bytes of its own.
const MOST_BYTES: usize = 64 << 10;

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
    /// As the direct path runs it, once it has.
    pub(crate) direct: Option<Box<DirectOp>>,
}

/// The prepared operations of a communicator that are not under way, the latest first in each set.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    sets: [[Option<Box<Prepared>>; WAYS]; SETS],
}

impl Kept {
    /// Takes the operation of a shape, if it was prepared after the NIC's last deregistration.
    pub(crate) fn take(&mut self, key: &Key, freed: u64) -> Option<Box<Prepared>> {
        let set = &mut self.sets[key.set()];
        let same = |p: &Option<Box<Prepared>>| p.as_ref().is_some_and(|p| p.key == *key);
        let way = set.iter().position(same)?;
        // One that is stale is dropped.
        set[way].take().filter(|p| p.freed == freed)
    }

    /// Keeps an operation that has ended.
    pub(crate) fn put(&mut self, p: Box<Prepared>) {
        let footprint = p.direct.as_ref().map_or(0, |d| d.footprint());
        // A program that the user loads anew must not be run as it was, and streams belong to one call.
        let user = p.params.algo == ringbell_nic_abi::Algorithm::User;
        if user || p.streamed || footprint > MOST_BYTES {
            return;
        }
        let set = &mut self.sets[p.key.set()];
        if set[0].is_some() {
            set.swap(0, 1);
        }
        set[0] = Some(p);
    }
}
