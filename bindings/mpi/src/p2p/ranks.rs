//! [`Context`]: number and ranks of a communicator on which messages are taken.

use std::collections::HashMap;
use std::ffi::c_int;

/// A communicator on which messages are taken.
#[derive(Debug)]
pub(super) struct Context {
    /// Its number, the same on all its ranks.
    pub(super) id: u32,
    /// Rank in `MPI_COMM_WORLD` of each rank.
    world_ranks: Vec<u32>,
    /// The other way round.
    ranks: HashMap<u32, u32>,
}

impl Context {
    pub(super) fn new(id: u32, world_ranks: Vec<u32>) -> Context {
        let ranks = world_ranks.iter().copied().zip(0..).collect();
        Context {
            id,
            world_ranks,
            ranks,
        }
    }

    /// Rank of a rank of `MPI_COMM_WORLD` that belongs to it.
    pub(super) fn rank_of(&self, world_rank: u32) -> u32 {
        self.ranks.get(&world_rank).copied().unwrap_or(0)
    }

    /// Rank in `MPI_COMM_WORLD`; `None` where it has no such rank.
    pub(super) fn world_rank(&self, rank: c_int) -> Option<u32> {
        let rank = usize::try_from(rank).ok()?;
        self.world_ranks.get(rank).copied()
    }
}
