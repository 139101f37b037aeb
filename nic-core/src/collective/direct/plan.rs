//! The plans of a communicator's direct path: one for each kind and root, the last two calls' in bytes.

use ringbell_nic_abi::CollectiveKind;
use rustc_hash::FxHashMap;

use super::ranges::Ranges;
use super::steps::{build, Plan, Shape};
use super::DirectParams;

/// The plans of every shape used so far.
#[derive(Debug)]
pub(super) struct Plans {
    rank: u32,
    ranks: u32,
    shapes: FxHashMap<(CollectiveKind, u32), Shape>,
    /// In bytes, for the last call that pushed and the last that did not.
    push: Ranges,
    pull: Ranges,
}

impl Plans {
    pub(super) fn new(rank: u32, ranks: u32) -> Plans {
        Plans {
            rank,
            ranks,
            shapes: FxHashMap::default(),
            push: Ranges::default(),
            pull: Ranges::default(),
        }
    }

    /// Bytes that the largest source buffer of any rank has; all ranks come to the same.
    #[inline]
    pub(super) fn input_bytes(&mut self, p: &DirectParams) -> u64 {
        if self.pull.is_of(p) {
            return self.pull.input_bytes;
        }
        self.shape(p).map_or(0, |s| s.push.input_bytes(p))
    }

    /// This rank's own steps.
    pub(super) fn push(&mut self, p: &DirectParams) -> &Ranges {
        if !self.push.is_of(p) {
            let plan = self.shapes.get(&(p.kind, p.root)).map(|s| &s.push);
            self.push.fill(plan.unwrap_or(&Plan::default()), p);
        }
        &self.push
    }

    /// The parts of all ranks' steps whose results are this rank's.
    pub(super) fn pull(&mut self, p: &DirectParams) -> &Ranges {
        if !self.pull.is_of(p) {
            let plan = self.shapes.get(&(p.kind, p.root)).map(|s| &s.pull);
            self.pull.fill(plan.unwrap_or(&Plan::default()), p);
        }
        &self.pull
    }

    fn shape(&mut self, p: &DirectParams) -> Option<&Shape> {
        let key = (p.kind, p.root);
        if !self.shapes.contains_key(&key) {
            let shape = build(p, self.rank, self.ranks)?;
            self.shapes.insert(key, shape);
        }
        self.shapes.get(&key)
    }
}
