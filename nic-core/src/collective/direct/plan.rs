//! The plans of a communicator's direct path: one for each kind and root.

use ringbell_nic_abi::CollectiveKind;
use rustc_hash::FxHashMap;

use super::ranges::Ranges;
use super::steps::{build, Shape};
use super::Params;

/// The plans of every kind and root used so far.
#[derive(Debug)]
pub(super) struct Plans {
    rank: u32,
    ranks: u32,
    shapes: FxHashMap<(CollectiveKind, u32), Option<Shape>>,
}

impl Plans {
    pub(super) fn new(rank: u32, ranks: u32) -> Plans {
        Plans {
            rank,
            ranks,
            shapes: FxHashMap::default(),
        }
    }

    /// For one count and type: this rank's own steps, then the parts of all ranks' steps whose results are this rank's.
    pub(super) fn ranges(&mut self, p: &Params) -> [Ranges; 2] {
        let (rank, ranks) = (self.rank, self.ranks);
        let shape = self.shapes.entry((p.kind, p.root));
        match shape.or_insert_with(|| build(p, rank, ranks)) {
            Some(s) => [Ranges::of(&s.push, p), Ranges::of(&s.pull, p)],
            None => Default::default(),
        }
    }
}
