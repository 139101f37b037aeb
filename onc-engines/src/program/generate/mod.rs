//! Generators: from the name of a collective to the program of each rank.
//!
//! One file a collective; `direct` has the one-pass forms for ranks of one host.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod blocks;
mod broadcast;
mod builder;
mod direct;
mod gather;
mod hierarchical;
mod reduce;
mod reduce_scatter;
mod tree;

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::hosts::MAX_RANKS;
use super::{HostRanks, Order, Program};
use builder::Builder;
pub(super) use hierarchical::Hosts;

/// Why no program can be generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// Not a number of ranks.
    #[error("a communicator of {ranks} ranks: give 1 to {MAX_RANKS}")]
    Ranks {
        /// Given.
        ranks: u32,
    },
    /// The rank is not of this communicator.
    #[error("rank {rank} of {ranks}: ranks count from 0 to {}", ranks - 1)]
    Rank {
        /// Given.
        rank: u32,
        /// Ranks of the communicator.
        ranks: u32,
    },
    /// The root is not of this communicator.
    #[error("root {root} of {ranks} ranks: ranks count from 0 to {}", ranks - 1)]
    Root {
        /// Given.
        root: u32,
        /// Ranks of the communicator.
        ranks: u32,
    },
    /// An operation of one or two ranks, which needs no program.
    #[error("{kind:?} is not a collective, so it has no program")]
    NotCollective {
        /// Given.
        kind: CollectiveKind,
    },
    /// The algorithm cannot reduce in the order of the ranks.
    #[error("{} by {} does not reduce in the order of the ranks, which `deterministic` asks for: choose one of {}", spelled(kind.name()), spelled(algo.name()), strict_names(*kind))]
    Strict {
        /// Collective.
        kind: CollectiveKind,
        /// Given.
        algo: Algorithm,
    },
    /// The ranks cannot be put together by hosts.
    #[error("{} by hierarchical needs to know which ranks share a host: {}", spelled(kind.name()), host_ranks.why_not(*ranks))]
    Hosts {
        /// Collective.
        kind: CollectiveKind,
        /// Ranks of the communicator.
        ranks: u32,
        /// Hosts that were given.
        host_ranks: HostRanks,
    },
    /// The collective has no such algorithm.
    #[error("{} has no algorithm {}: choose one of {}", spelled(kind.name()), spelled(algo.name()), names(*kind))]
    Algorithm {
        /// Collective.
        kind: CollectiveKind,
        /// Given.
        algo: Algorithm,
    },
}

/// The spelling of a name of the contract on command lines.
fn spelled(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

fn names(kind: CollectiveKind) -> String {
    let all = algorithms(kind).iter().map(|a| spelled(a.name()));
    all.collect::<Vec<_>>().join(", ")
}

fn strict_names(kind: CollectiveKind) -> String {
    let all = algorithms(kind).iter().filter(|a| is_strict(kind, **a));
    let all = all.map(|a| spelled(a.name()));
    all.collect::<Vec<_>>().join(", ")
}

/// Whether the program of this algorithm can reduce in the order of the ranks, or reduces nothing.
pub const fn is_strict(kind: CollectiveKind, algo: Algorithm) -> bool {
    !(reduces(kind)
        && matches!(
            algo,
            Algorithm::Ring
                | Algorithm::Tree
                | Algorithm::RecursiveDoubling
                | Algorithm::Hierarchical
        ))
}

/// Whether a collective reduces something.
pub(super) const fn reduces(kind: CollectiveKind) -> bool {
    use CollectiveKind as K;
    matches!(kind, K::Reduce | K::AllReduce | K::ReduceScatter)
}

/// The algorithms that a collective has; empty for an operation that is none.
pub const fn algorithms(kind: CollectiveKind) -> &'static [Algorithm] {
    use Algorithm as A;
    match kind {
        CollectiveKind::Broadcast => &[
            A::Chain,
            A::RecursiveDoubling,
            A::Flat,
            A::Hierarchical,
            A::Direct,
        ],
        CollectiveKind::Reduce => &[
            A::Ring,
            A::Flat,
            A::Pairwise,
            A::Tree,
            A::Hierarchical,
            A::Direct,
        ],
        CollectiveKind::Scatter => &[A::Flat, A::Direct],
        CollectiveKind::Gather => &[A::Flat, A::Ring, A::Tree, A::Direct],
        CollectiveKind::AllGather => &[
            A::Ring,
            A::RecursiveDoubling,
            A::Pairwise,
            A::Hierarchical,
            A::Direct,
        ],
        CollectiveKind::ReduceScatter => &[A::Pairwise, A::Ring, A::Hierarchical, A::Direct],
        CollectiveKind::AllReduce => &[
            A::Ring,
            A::AllGatherReduce,
            A::RecursiveDoubling,
            A::Pairwise,
            A::Tree,
            A::Hierarchical,
            A::Direct,
        ],
        CollectiveKind::AllToAll => &[A::Pairwise, A::Linear, A::Direct],
        CollectiveKind::Barrier => &[A::RecursiveDoubling, A::Direct],
        _ => &[],
    }
}

/// The program of `rank` in a collective among `ranks`.
///
/// `root` counts only where the collective has one (broadcast, reduce, scatter, gather); elsewhere
/// it may be anything, and the program says 0. The programs of all ranks together pass
/// [`check`](super::check()). Each rank has a host of its own: [`Family::on_hosts`] knows others.
///
/// [`Family::on_hosts`]: super::Family::on_hosts
///
/// # Errors
/// A number out of range, or an algorithm that the collective lacks. [`Algorithm::Auto`] is
/// resolved by [`choose`](super::choose()) first.
pub fn generate(
    kind: CollectiveKind,
    algo: Algorithm,
    ranks: u32,
    rank: u32,
    root: u32,
) -> Result<Program, GenerateError> {
    generate_in(
        Order::Ring,
        kind,
        algo,
        ranks,
        rank,
        root,
        &HostRanks::from(1),
    )
}

/// As [`generate`], in this order where something is reduced: [`Order::Ring`] or [`Order::Rank`];
/// `host_ranks` says which ranks share a host.
pub(super) fn generate_in(
    order: Order,
    kind: CollectiveKind,
    algo: Algorithm,
    ranks: u32,
    rank: u32,
    root: u32,
    host_ranks: &HostRanks,
) -> Result<Program, GenerateError> {
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(GenerateError::Ranks { ranks });
    }
    if rank >= ranks {
        return Err(GenerateError::Rank { rank, ranks });
    }
    let root = if kind.has_root() { root } else { 0 };
    if root >= ranks {
        return Err(GenerateError::Root { root, ranks });
    }
    if algorithms(kind).is_empty() {
        return Err(GenerateError::NotCollective { kind });
    }
    if !algorithms(kind).contains(&algo) {
        return Err(GenerateError::Algorithm { kind, algo });
    }
    if order == Order::Rank && !is_strict(kind, algo) {
        return Err(GenerateError::Strict { kind, algo });
    }
    if algo == Algorithm::Hierarchical && !host_ranks.fits(ranks) {
        return Err(GenerateError::Hosts {
            kind,
            ranks,
            host_ranks: host_ranks.clone(),
        });
    }
    let b = Builder::new(order, kind, algo, ranks, rank, root);
    use Algorithm as A;
    use CollectiveKind as K;
    Ok(match (kind, algo) {
        (_, A::Direct) => direct::program(b),
        (K::Broadcast, A::Flat) => broadcast::flat(b),
        (K::Broadcast, A::RecursiveDoubling) => broadcast::recursive_doubling(b),
        (K::Broadcast, A::Chain) => broadcast::chain(b),
        (K::Reduce, A::Flat) => reduce::flat(b),
        (K::Reduce, A::Ring) => reduce::ring(b),
        (K::Reduce, A::Pairwise) => reduce::pairwise(b),
        (K::Reduce, A::Tree) => reduce::tree(b),
        (K::Broadcast, A::Hierarchical) => hierarchical::broadcast(b, host_ranks),
        (K::Reduce, A::Hierarchical) => hierarchical::reduce(b, host_ranks),
        (K::Scatter, A::Flat) => broadcast::scatter_flat(b),
        (K::Gather, A::Flat) => gather::flat(b),
        (K::Gather, A::Ring) => gather::ring(b),
        (K::Gather, A::Tree) => gather::tree(b),
        (K::AllGather, A::Ring) => all_gather::ring(b),
        (K::AllGather, A::RecursiveDoubling) => all_gather::recursive_doubling(b),
        (K::AllGather, A::Pairwise) => all_gather::pairwise(b),
        (K::AllGather, A::Hierarchical) => hierarchical::all_gather(b, host_ranks),
        (K::ReduceScatter, A::Pairwise) => reduce_scatter::pairwise(b),
        (K::ReduceScatter, A::Ring) => reduce_scatter::ring(b),
        (K::ReduceScatter, A::Hierarchical) => hierarchical::reduce_scatter(b, host_ranks),
        (K::AllReduce, A::Ring) => all_reduce::ring(b),
        (K::AllReduce, A::AllGatherReduce) => all_reduce::all_gather_reduce(b),
        (K::AllReduce, A::RecursiveDoubling) => all_reduce::recursive_doubling(b),
        (K::AllReduce, A::Pairwise) => all_reduce::pairwise(b),
        (K::AllReduce, A::Tree) => all_reduce::tree(b),
        (K::AllReduce, A::Hierarchical) => hierarchical::all_reduce(b, host_ranks),
        (K::AllToAll, A::Linear) => all_to_all::linear(b),
        (K::AllToAll, A::Pairwise) => all_to_all::pairwise(b),
        (K::Barrier, A::RecursiveDoubling) => all_to_all::barrier(b),
        // `algorithms` names it, yet nothing generates it: refused as if it did not.
        _ => return Err(GenerateError::Algorithm { kind, algo }),
    })
}

/// The programs of all ranks, by rank.
///
/// # Errors
/// As [`generate`].
pub fn generate_all(
    kind: CollectiveKind,
    algo: Algorithm,
    ranks: u32,
    root: u32,
) -> Result<Vec<Program>, GenerateError> {
    generate_all_in(Order::Ring, kind, algo, ranks, root)
}

/// As [`generate_all`], in this order where something is reduced: [`Order::Ring`] or
/// [`Order::Rank`].
///
/// # Errors
/// As [`generate`]; [`GenerateError::Strict`] for an algorithm that cannot reduce in the order of
/// the ranks.
pub fn generate_all_in(
    order: Order,
    kind: CollectiveKind,
    algo: Algorithm,
    ranks: u32,
    root: u32,
) -> Result<Vec<Program>, GenerateError> {
    (0..ranks.max(1))
        .map(|rank| generate_in(order, kind, algo, ranks, rank, root, &HostRanks::from(1)))
        .collect()
}
