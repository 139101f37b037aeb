//! Families of generated programs: what holds for all ranks of one, known without their programs.
//!
//! A rank makes its own program only. What the [checker](super::check()) would find out from the
//! programs of all ranks depends on the family alone, and is said here: that takes no time, where
//! the checker's grows with the square of the ranks and more. The tests run the checker on every
//! family of up to 64 ranks, and on samples above, and compare.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::check::{check_form, CheckError, Limits};
use super::generate::{generate_in, reduces, GenerateError, Hosts};
use super::hash::Fnv;
use super::{HostRanks, Order, Program};

/// Raised when a generator makes other programs than before: ranks of different builds compare
/// [`Family::hash`].
const GENERATION: u32 = 3;

/// The programs that one generator makes for the ranks of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Family {
    order: Order,
    kind: CollectiveKind,
    algo: Algorithm,
    ranks: u32,
    root: u32,
    /// Which ranks share a host, where that changes the programs; else each has its own.
    host_ranks: HostRanks,
}

impl Family {
    /// The family of a collective; the arguments are those of
    /// [`generate_all_in`](super::generate_all_in). Each rank has a host of its own.
    ///
    /// # Errors
    /// As [`generate`](super::generate()).
    pub fn new(
        order: Order,
        kind: CollectiveKind,
        algo: Algorithm,
        ranks: u32,
        root: u32,
    ) -> Result<Family, GenerateError> {
        let first = generate_in(order, kind, algo, ranks, 0, root, &HostRanks::from(1))?;
        Ok(Family {
            order: if reduces(kind) { order } else { Order::None },
            kind,
            algo: first.algo,
            ranks,
            root: first.root,
            host_ranks: HostRanks::from(1),
        })
    }

    /// The same where these ranks share a host. It counts for `HIERARCHICAL` alone.
    ///
    /// # Errors
    /// [`GenerateError::Hosts`]: the ranks cannot have such hosts.
    pub fn on_hosts(self, host_ranks: impl Into<HostRanks>) -> Result<Family, GenerateError> {
        if self.algo != Algorithm::Hierarchical {
            return Ok(self);
        }
        let host_ranks = host_ranks.into();
        let given = Family { host_ranks, ..self };
        given.program(0)?;
        let host_ranks = given.host_ranks.plain();
        Ok(Family {
            host_ranks,
            ..given
        })
    }

    /// A rank's program.
    ///
    /// # Errors
    /// The rank is not of this communicator.
    pub fn program(&self, rank: u32) -> Result<Program, GenerateError> {
        generate_in(
            self.order,
            self.kind,
            self.algo,
            self.ranks,
            rank,
            self.root,
            &self.host_ranks,
        )
    }

    /// Values that an executor must be able to hold for messages that it converts, as
    /// [`Proof::held`](super::Proof::held).
    pub fn held(&self) -> u32 {
        use Algorithm as A;
        // These send to all others before they receive.
        let sends_first = match self.algo {
            A::Pairwise => self.kind != CollectiveKind::AllToAll,
            A::Linear => true,
            A::Hierarchical => return self.held_on_hosts(),
            // To the partner, and beside it to a rank that does not take part.
            A::RecursiveDoubling if self.kind == CollectiveKind::AllReduce => {
                return if self.ranks.is_power_of_two() { 1 } else { 2 };
            }
            _ => false,
        };
        match sends_first {
            true => self.ranks.saturating_sub(1).max(1),
            false => 1,
        }
    }

    /// The same by hosts: messages to the other ranks of the host. Of hosts with different numbers
    /// of ranks it is enough, and may be more than that.
    fn held_on_hosts(&self) -> u32 {
        use CollectiveKind as K;
        let Some(each) = self.host_ranks.each() else {
            return self.hosts().held();
        };
        let others = each - 1;
        let is_both = others > 0 && each < self.ranks;
        let held = match self.kind {
            // Blocks come one after the other, and beside them one leaves for the next host.
            K::AllGather | K::ReduceScatter if is_both => each,
            // Of the one host none sends to the root.
            K::Broadcast if !is_both => others.saturating_sub(1),
            _ => others,
        };
        held.max(1)
    }

    fn hosts(&self) -> Hosts {
        Hosts::new(self.ranks, 0, &self.host_ranks)
    }

    /// Whether source and destination may be the same memory, where the collective has such a form
    /// ([`InPlace::Safe`](super::InPlace::Safe)).
    pub fn has_in_place(&self) -> bool {
        use CollectiveKind as K;
        !matches!(self.kind, K::AllToAll | K::Barrier)
    }

    /// Identifies the programs of all ranks: the same in every process whose generators make the
    /// same ones.
    pub fn hash(&self) -> u64 {
        let mut h = Fnv::new();
        h.word(GENERATION);
        h.word(u32::from(self.kind as u8) << 8 | u32::from(self.algo as u8));
        h.order(self.order);
        h.word(self.ranks);
        h.word(self.root);
        if self.algo == Algorithm::Hierarchical {
            self.host_ranks.add_to(&mut h);
        }
        h.value()
    }

    /// Ranks of which one needs the most NIC memory, messages longest and most included.
    pub fn heaviest(&self) -> Vec<u32> {
        let n = self.ranks;
        if self.algo == Algorithm::AllGatherReduce {
            // All need the same, and only rank 0's messages never wrap into two.
            return vec![0];
        }
        // The rank that collects most in a binomial tree is the one before or behind the middle.
        let middle = (n - 1).checked_ilog2().map_or(0, |bit| 1 << bit);
        let from_root = [0, 1, 2, middle / 2, middle, n - 1];
        let from_root = from_root.map(|v| (self.root + v) % n);
        let mut ranks = vec![0, n.saturating_sub(2), n - 1];
        ranks.extend(from_root);
        if self.algo == Algorithm::Hierarchical && self.host_ranks.each().is_none() {
            ranks.extend(self.hosts().heaviest(self.root));
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Shows the program of each of the [heaviest](Family::heaviest) ranks, one after the other,
    /// when an executor can run all ranks'.
    ///
    /// # Errors
    /// The limit that one exceeds.
    pub fn check_heaviest(
        &self,
        limits: &Limits,
        mut each: impl FnMut(&Program),
    ) -> Result<(), CheckError> {
        // Its own ranks are ranks of the communicator.
        for p in self
            .heaviest()
            .into_iter()
            .filter_map(|r| self.program(r).ok())
        {
            check_form(&p, limits)?;
            each(&p);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
