//! The choice of a collective's algorithm, where the caller leaves it open.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::{is_strict, HostRanks};

/// How the ranks of a communicator reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Locality {
    /// All are on one host and map each other's memory: `DIRECT` programs run.
    OneHost,
    /// Messages over a network, or between ranks of which some are on another host.
    Network,
    /// Messages over wires whose NICs copy what goes to all, so that a root sends each byte once,
    /// and combine what goes to a root. Of a reduction only where the order of operands changes no
    /// bit.
    Trees,
    /// Messages, where there are several hosts and each has more than one rank.
    Hosts,
}

impl Locality {
    /// By messages among ranks with these hosts.
    pub fn of_hosts(ranks: u32, host_ranks: &HostRanks) -> Locality {
        match host_ranks.least(ranks) > 1 && !host_ranks.may_be_one(ranks) {
            true => Locality::Hosts,
            false => Locality::Network,
        }
    }
}

/// Most ranks that send whole sources in the order of the ring, where each source has a chunk, and
/// so a slot of NIC memory, for every rank. In that of the ranks it has one chunk.
const WHOLE_RANKS: u32 = 256;

/// Among more ranks, [`whole_sources`](Thresholds::whole_sources) is so many times the longest
/// source that is sent whole, however many they are. The messages that `PAIRWISE` needs instead
/// grow with them, as what a rank receives does: two for each other rank.
const WHOLE_OF_MANY: u64 = 16;

/// Messages to several ranks of a mesh that are longer are copied in transit.
const COPIED: u64 = 32 << 10;

/// The sizes at which [`choose`] changes the algorithm, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Most ranks with which a root exchanges messages directly (broadcast, gather), and all-to-all
    /// goes in rank order.
    pub flat_ranks: u32,
    /// All-reduce and reduce send whole sources, when a rank then receives at most this much in
    /// all, and they are at most 256. In the order of the ranks more do, when a source is at most
    /// a sixteenth of this.
    pub whole_sources: u64,
    /// All-reduce longer than this goes round the ring; between the two it goes pairwise.
    pub all_reduce_ring: u64,
    /// Broadcast longer than this goes down a chain, in segments. Over a mesh one longer than this
    /// or than 32 KiB goes to all ranks at once.
    pub broadcast_chain: u64,
    /// Gather of longer blocks goes up a tree, so that a root is not flooded.
    pub gather_tree: u64,
    /// All-gather with a result longer than this goes round the ring, or by
    /// [hosts](Locality::Hosts).
    pub all_gather_ring: u64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            flat_ranks: 3,
            whole_sources: 16 << 10,
            all_reduce_ring: 256 << 10,
            broadcast_chain: 64 << 10,
            gather_tree: 1 << 20,
            all_gather_ring: 64 << 10,
        }
    }
}

/// Thresholds that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdError {
    /// The range of the pairwise all-reduce would be negative.
    #[error("all_reduce_ring is {ring} bytes, below whole_sources ({whole}): raise it, or lower whole_sources")]
    AllReduce {
        /// `whole_sources`.
        whole: u64,
        /// `all_reduce_ring`.
        ring: u64,
    },
    /// Whole sources must fit the NIC memory of an operation.
    #[error("whole_sources is {whole} bytes, more than the NIC memory of one operation ({memory}): lower it, or give the NIC more memory")]
    Memory {
        /// `whole_sources`.
        whole: u64,
        /// NIC memory of an operation.
        memory: u64,
    },
    /// A root has at least itself.
    #[error("flat_ranks is 0: give at least 1")]
    FlatRanks,
}

impl Thresholds {
    /// All fields as numbers, which ranks compare.
    pub fn words(&self) -> [u64; 6] {
        // Taken apart, so that a new field cannot be forgotten here.
        let Thresholds {
            flat_ranks,
            whole_sources,
            all_reduce_ring,
            broadcast_chain,
            gather_tree,
            all_gather_ring,
        } = *self;
        [
            flat_ranks.into(),
            whole_sources,
            all_reduce_ring,
            broadcast_chain,
            gather_tree,
            all_gather_ring,
        ]
    }

    /// Checks them against each other, and against the NIC memory that an operation may use.
    ///
    /// # Errors
    /// The two thresholds that contradict each other.
    pub fn check(&self, memory_bytes: u64) -> Result<(), ThresholdError> {
        let (whole, ring) = (self.whole_sources, self.all_reduce_ring);
        if ring < whole {
            return Err(ThresholdError::AllReduce { whole, ring });
        }
        if whole > memory_bytes {
            let memory = memory_bytes;
            return Err(ThresholdError::Memory { whole, memory });
        }
        if self.flat_ranks == 0 {
            return Err(ThresholdError::FlatRanks);
        }
        Ok(())
    }
}

/// The algorithm for a block of `bytes` (`count` elements) among `ranks`.
///
/// Every choice for a collective that reduces keeps the order of FpgaNIC's Table 8, but for
/// [`Locality::Trees`], so the choice never changes a bit of the result. ACCL+ §4.2.4 has the
/// reasons for small and large: few hops for short messages, no rank that sends or receives
/// everything for long ones.
pub fn choose(
    kind: CollectiveKind,
    bytes: u64,
    ranks: u32,
    locality: Locality,
    thresholds: &Thresholds,
) -> Algorithm {
    let t = thresholds;
    let others = u64::from(ranks.saturating_sub(1));
    let whole = ranks <= WHOLE_RANKS && bytes.saturating_mul(others) <= t.whole_sources;
    choose_where(whole, kind, bytes, ranks, locality, t)
}

/// The same where it is known whether ranks send whole sources.
fn choose_where(
    whole: bool,
    kind: CollectiveKind,
    bytes: u64,
    ranks: u32,
    locality: Locality,
    t: &Thresholds,
) -> Algorithm {
    use Algorithm as A;
    use CollectiveKind as K;
    if locality == Locality::OneHost {
        return A::Direct;
    }
    let few = ranks <= t.flat_ranks;
    match kind {
        K::AllReduce if whole => A::AllGatherReduce,
        K::AllReduce if bytes <= t.all_reduce_ring => A::Pairwise,
        K::Broadcast if few => A::Flat,
        // One message to all.
        K::Broadcast if locality == Locality::Trees && bytes > t.broadcast_chain.min(COPIED) => {
            A::Flat
        }
        K::Broadcast if bytes <= t.broadcast_chain => A::RecursiveDoubling,
        K::Broadcast => A::Chain,
        K::Reduce if whole => A::Flat,
        // Combined on the way.
        K::Reduce if locality == Locality::Trees && bytes > t.broadcast_chain => A::Tree,
        K::Gather if few || bytes <= t.gather_tree => A::Flat,
        K::Gather => A::Tree,
        K::AllGather if bytes.saturating_mul(u64::from(ranks)) <= t.all_gather_ring => {
            A::RecursiveDoubling
        }
        // In simulations it took at most as long as the ring, with idle and with busy NICs.
        K::AllGather if locality == Locality::Hosts => A::Hierarchical,
        K::ReduceScatter => A::Pairwise,
        K::AllToAll if few => A::Linear,
        K::AllToAll => A::Pairwise,
        K::Scatter => A::Flat,
        K::Barrier => A::RecursiveDoubling,
        // All-reduce, reduce and all-gather of long messages. Other operations need no algorithm.
        _ => A::Ring,
    }
}

/// As [`choose`], among those that reduce in the order of the ranks.
pub fn choose_strict(
    kind: CollectiveKind,
    bytes: u64,
    ranks: u32,
    locality: Locality,
    thresholds: &Thresholds,
) -> Algorithm {
    let others = u64::from(ranks.saturating_sub(1));
    let whole = match ranks <= WHOLE_RANKS {
        true => bytes.saturating_mul(others) <= thresholds.whole_sources,
        false => bytes <= thresholds.whole_sources / WHOLE_OF_MANY,
    };
    match choose_where(whole, kind, bytes, ranks, locality, thresholds) {
        algo if is_strict(kind, algo) => algo,
        _ => Algorithm::Pairwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{algorithms, generate, Order};

    #[test]
    fn every_choice_exists_and_keeps_the_order_of_the_ring() {
        let t = Thresholds::default();
        t.check(1 << 20).unwrap();
        for kind in CollectiveKind::ALL {
            for reach in [
                Locality::OneHost,
                Locality::Network,
                Locality::Trees,
                Locality::Hosts,
            ] {
                for ranks in [1, 2, 3, 4, 8, 64] {
                    for bytes in [0, 4, 1 << 10, 1 << 14, 1 << 18, 1 << 22, u64::MAX] {
                        let strict = choose_strict(*kind, bytes, ranks, reach, &t);
                        assert!(is_strict(*kind, strict), "{kind:?} {strict:?}");
                        let algo = choose(*kind, bytes, ranks, reach, &t);
                        if algorithms(*kind).is_empty() {
                            continue;
                        }
                        let p = generate(*kind, algo, ranks, 0, 0).unwrap();
                        if (*kind, reach) == (CollectiveKind::Reduce, Locality::Trees) {
                            continue;
                        }
                        assert_ne!(p.order, Order::Other, "{kind:?} {algo:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_choice_for_up_to_4096_ranks_can_be_executed() {
        use crate::program::{Family, Limits};
        let (t, limits) = (Thresholds::default(), Limits::default());
        for ranks in [WHOLE_RANKS, WHOLE_RANKS + 1, 1024, 4096] {
            for kind in CollectiveKind::ALL {
                for (bytes, host_ranks) in [4, 64, 1 << 10, 1 << 18, 1 << 22]
                    .into_iter()
                    .flat_map(|bytes| [(bytes, 0), (bytes, 8)])
                {
                    let reach = Locality::of_hosts(ranks, &host_ranks.into());
                    let strict = choose_strict(*kind, bytes, ranks, reach, &t);
                    if let Ok(family) = Family::new(Order::Rank, *kind, strict, ranks, 0) {
                        let on_hosts = family.clone().on_hosts(host_ranks.max(1));
                        let family = on_hosts.unwrap_or(family);
                        let checked = family.check_heaviest(&limits, |_| ());
                        assert_eq!(checked, Ok(()), "{kind:?} {strict:?} {ranks}");
                    }
                    let algo = choose(*kind, bytes, ranks, reach, &t);
                    if let Ok(family) = Family::new(Order::Ring, *kind, algo, ranks, 0) {
                        // One more than 256 ranks are no whole number of hosts.
                        let family = family.on_hosts(host_ranks).unwrap();
                        let checked = family.check_heaviest(&limits, |_| ());
                        assert_eq!(checked, Ok(()), "{kind:?} {algo:?} {ranks}");
                    } else {
                        assert!(algorithms(*kind).is_empty(), "{kind:?} {algo:?}");
                    }
                }
            }
        }
        for (kind, algo) in [
            (CollectiveKind::AllReduce, Algorithm::AllGatherReduce),
            (CollectiveKind::Reduce, Algorithm::Flat),
        ] {
            let of = |ranks| Family::new(Order::Ring, kind, algo, ranks, 0).unwrap();
            let fits = |ranks| of(ranks).check_heaviest(&limits, |_| ()).is_ok();
            assert!(fits(256) && !fits(257), "{kind:?}");
            assert_eq!(choose(kind, 4, 256, Locality::Network, &t), algo);
            assert_ne!(choose(kind, 4, 257, Locality::Network, &t), algo);
        }
    }

    #[test]
    fn the_program_of_every_choice_for_up_to_1024_ranks_is_short() {
        use crate::program::{Family, Operand, Step, Target};
        let t = Thresholds::default();
        let size = |s: &Step| {
            size_of_val(s)
                + s.operands.capacity() * size_of::<Operand>()
                + s.results.capacity() * size_of::<Target>()
        };
        for ranks in [WHOLE_RANKS, 1024] {
            for kind in CollectiveKind::ALL {
                for bytes in [4, 64, 1 << 18, 1 << 22] {
                    let ring = choose(*kind, bytes, ranks, Locality::Network, &t);
                    let rank = choose_strict(*kind, bytes, ranks, Locality::Network, &t);
                    for (order, algo) in [(Order::Ring, ring), (Order::Rank, rank)] {
                        let Ok(family) = Family::new(order, *kind, algo, ranks, 0) else {
                            continue;
                        };
                        for rank in family.heaviest() {
                            let steps = family.program(rank).unwrap().steps;
                            let what = format!("{kind:?} {algo:?} {order:?} {ranks} {rank}");
                            assert!(steps.len() <= 4 * ranks as usize, "{what}");
                            let bytes: usize = steps.iter().map(size).sum();
                            assert!(bytes <= 1 << 20, "{what}: {bytes}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn each_threshold_has_two_sides() {
        use Algorithm as A;
        use CollectiveKind as K;
        let t = Thresholds::default();
        let at = |kind, bytes, ranks| choose(kind, bytes, ranks, Locality::Network, &t);
        assert_eq!(at(K::AllReduce, 16 << 10, 2), A::AllGatherReduce);
        assert_eq!(at(K::AllReduce, (16 << 10) + 1, 2), A::Pairwise);
        assert_eq!(at(K::AllReduce, 16 << 10, 3), A::Pairwise);
        assert_eq!(at(K::AllReduce, 256 << 10, 3), A::Pairwise);
        assert_eq!(at(K::AllReduce, (256 << 10) + 1, 3), A::Ring);
        assert_eq!(at(K::Broadcast, 1, 3), A::Flat);
        assert_eq!(at(K::Broadcast, 64 << 10, 4), A::RecursiveDoubling);
        assert_eq!(at(K::Broadcast, (64 << 10) + 1, 4), A::Chain);
        assert_eq!(at(K::Reduce, 8 << 10, 3), A::Flat);
        assert_eq!(at(K::Reduce, (8 << 10) + 1, 3), A::Ring);
        assert_eq!(at(K::Gather, 1 << 20, 4), A::Flat);
        assert_eq!(at(K::Gather, (1 << 20) + 1, 4), A::Tree);
        assert_eq!(at(K::AllGather, 16 << 10, 4), A::RecursiveDoubling);
        assert_eq!(at(K::AllGather, (16 << 10) + 1, 4), A::Ring);
        let hosts = |bytes| choose(K::AllGather, bytes, 4, Locality::of_hosts(4, &2.into()), &t);
        assert_eq!(hosts(16 << 10), A::RecursiveDoubling);
        assert_eq!(hosts((16 << 10) + 1), A::Hierarchical);
        for (ranks, host_ranks) in [(4, 0), (4, 1), (4, 3), (4, 4), (4, 8)] {
            let reach = Locality::of_hosts(ranks, &host_ranks.into());
            assert_eq!(reach, Locality::Network);
        }
        for (sizes, reach) in [
            (&[2, 3, 4][..], Locality::Hosts),
            (&[3, 1, 5], Locality::Network),
            (&[9], Locality::Network),
            (&[2, 3], Locality::Network),
        ] {
            assert_eq!(Locality::of_hosts(9, &HostRanks::of_sizes(sizes)), reach);
        }
        assert_eq!(at(K::AllToAll, 1, 3), A::Linear);
        assert_eq!(at(K::AllToAll, 1, 4), A::Pairwise);
        let trees = |bytes| choose(K::Broadcast, bytes, 8, Locality::Trees, &t);
        assert_eq!(trees(32 << 10), A::RecursiveDoubling);
        assert_eq!(trees((32 << 10) + 1), A::Flat);
        let less = Thresholds {
            broadcast_chain: 16 << 10,
            ..t
        };
        let trees = |bytes| choose(K::Broadcast, bytes, 8, Locality::Trees, &less);
        assert_eq!(trees(16 << 10), A::RecursiveDoubling);
        assert_eq!(trees((16 << 10) + 1), A::Flat);
        let trees = |bytes| choose(K::Reduce, bytes, 8, Locality::Trees, &t);
        assert_eq!(trees(64 << 10), A::Ring);
        assert_eq!(trees((64 << 10) + 1), A::Tree);
        let strict = |kind, bytes, ranks| choose_strict(kind, bytes, ranks, Locality::Network, &t);
        for ranks in [257, 1024, 4096] {
            assert_eq!(strict(K::AllReduce, 1024, ranks), A::AllGatherReduce);
            assert_eq!(strict(K::AllReduce, 1025, ranks), A::Pairwise);
            assert_eq!(strict(K::Reduce, 1024, ranks), A::Flat);
            assert_eq!(strict(K::Reduce, 1025, ranks), A::Pairwise);
            assert_eq!(at(K::AllReduce, 4, ranks), A::Pairwise);
        }
        assert_eq!(strict(K::AllReduce, 64, 256), A::AllGatherReduce);
        assert_eq!(strict(K::AllReduce, 65, 256), A::Pairwise);
        let one_host = choose(K::AllReduce, 1 << 20, 2, Locality::OneHost, &t);
        assert_eq!(one_host, A::Direct);
    }

    #[test]
    fn thresholds_that_contradict_each_other_are_refused() {
        let t = Thresholds::default();
        let ring = Thresholds {
            all_reduce_ring: 1,
            ..t
        };
        assert!(matches!(
            ring.check(1 << 20),
            Err(ThresholdError::AllReduce { ring: 1, .. })
        ));
        assert!(matches!(t.check(1), Err(ThresholdError::Memory { .. })));
        let flat = Thresholds { flat_ranks: 0, ..t };
        assert_eq!(flat.check(1 << 20), Err(ThresholdError::FlatRanks));
    }
}
