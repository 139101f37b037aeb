//! Programs that were proved, by shape: each shape is generated and checked once.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::{check, generate_all, CheckError, GenerateError, Limits, Program, Proof};

/// One rank's program, with the proof of all ranks'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// What this rank runs.
    pub program: Program,
    /// What was proved.
    pub proof: Proof,
}

/// Why a shape cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no such program.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// It does not pass the checker: with a generated program, because it exceeds the limits.
    #[error("{kind:?} {algo:?} of {ranks} ranks does not pass the checker: {error}")]
    Check {
        /// Collective.
        kind: CollectiveKind,
        /// Algorithm.
        algo: Algorithm,
        /// Ranks.
        ranks: u32,
        /// Why.
        error: CheckError,
    },
}

type Shape = (u8, u8, u32, u32, u32);

/// The programs of one NIC.
#[derive(Debug)]
pub struct ProgramCache {
    limits: Limits,
    /// With the time of the last use, in uses.
    shapes: BTreeMap<Shape, (u64, Arc<Checked>)>,
    uses: u64,
    capacity: usize,
}

impl ProgramCache {
    /// Empty; keeps the `capacity` shapes that were used last, at least one.
    pub fn new(limits: Limits, capacity: usize) -> ProgramCache {
        ProgramCache {
            limits,
            shapes: BTreeMap::new(),
            uses: 0,
            capacity: capacity.max(1),
        }
    }

    /// The program of `rank`, generated and proved with those of all ranks unless it is here already.
    ///
    /// # Errors
    /// A number out of range, an algorithm that the collective lacks, or limits that it exceeds.
    pub fn load(
        &mut self,
        kind: CollectiveKind,
        algo: Algorithm,
        ranks: u32,
        rank: u32,
        root: u32,
    ) -> Result<Arc<Checked>, LoadError> {
        // Where there is no root, whatever was given makes one shape.
        let root = if kind.has_root() { root } else { 0 };
        let shape = (kind as u8, algo as u8, ranks, rank, root);
        self.uses += 1;
        if let Some((used, checked)) = self.shapes.get_mut(&shape) {
            *used = self.uses;
            return Ok(Arc::clone(checked));
        }
        let mut programs = generate_all(kind, algo, ranks, root)?;
        let proof = check(&programs, &self.limits).map_err(|error| LoadError::Check {
            kind,
            algo,
            ranks,
            error,
        })?;
        if rank >= ranks {
            return Err(GenerateError::Rank { rank, ranks }.into());
        }
        let program = programs.swap_remove(rank as usize);
        let checked = Arc::new(Checked { program, proof });
        if self.shapes.len() >= self.capacity {
            let oldest = self.shapes.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(shape) = oldest.map(|(shape, _)| *shape) {
                self.shapes.remove(&shape);
            }
        }
        self.shapes.insert(shape, (self.uses, Arc::clone(&checked)));
        Ok(checked)
    }

    /// Shapes held.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Whether no shape was loaded yet.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_checked_once_and_the_oldest_makes_room() {
        use CollectiveKind as K;
        let mut cache = ProgramCache::new(Limits::default(), 2);
        let ring = |cache: &mut ProgramCache, root| {
            cache
                .load(K::AllReduce, Algorithm::Ring, 4, 1, root)
                .unwrap()
        };
        let first = ring(&mut cache, 0);
        assert_eq!(first.program.rank, 1);
        assert_eq!(first.proof.messages, 4 * 6);
        // A root where there is none makes no other shape.
        assert!(Arc::ptr_eq(&first, &ring(&mut cache, 3)));
        cache.load(K::Barrier, Algorithm::Direct, 4, 1, 0).unwrap();
        ring(&mut cache, 0);
        cache.load(K::Broadcast, Algorithm::Flat, 4, 1, 2).unwrap();
        assert_eq!(cache.len(), 2);
        assert!(Arc::ptr_eq(&first, &ring(&mut cache, 0)));
    }

    #[test]
    fn what_cannot_be_loaded_says_why() {
        use CollectiveKind as K;
        let limits = Limits {
            scratch_chunks: 3,
            ..Limits::default()
        };
        let mut cache = ProgramCache::new(limits, 8);
        let mut load = |kind, algo, ranks, rank, root| {
            cache
                .load(kind, algo, ranks, rank, root)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            load(K::AllReduce, Algorithm::Ring, 4, 0, 0),
            "AllReduce Ring of 4 ranks does not pass the checker: rank 0: slots of NIC memory: 4, the limit is 3: use fewer, or raise the limit"
        );
        assert_eq!(
            load(K::Broadcast, Algorithm::Flat, 4, 0, 4),
            "root 4 of 4 ranks: ranks count from 0 to 3"
        );
        assert_eq!(
            load(K::Barrier, Algorithm::Flat, 0, 0, 0),
            "a communicator of 0 ranks: give 1 to 65535"
        );
        assert_eq!(
            load(K::Scatter, Algorithm::Ring, 4, 0, 0),
            "Scatter has no algorithm Ring: choose one of [Flat, Direct]"
        );
        assert_eq!(
            load(K::Send, Algorithm::Ring, 4, 0, 0),
            "Send is not a collective, so it has no program"
        );
    }
}
