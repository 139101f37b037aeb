//! The cluster below every run: ranks, the network that joins them, and what goes wrong with it.

use ringbell_routes::topology::Topology;

use crate::{Fault, Profile, Slow};

/// How the NICs are joined: by one switch, unless there is a topology.
#[derive(Debug, Clone, Default)]
pub struct NetworkPlan {
    /// NICs at switches; the first ranks are the first of its ends.
    pub topology: Option<Topology>,
    /// Seed of the hash by which switches choose among ways of one length.
    pub hash_seed: u64,
}

/// Ranks, each with a NIC, on a network.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// How many ranks.
    pub ranks: usize,
    /// What links cost.
    pub profile: Profile,
    /// Consecutive ranks that share a host, for `HIERARCHICAL`: to the network each is a NIC of its
    /// own, wherever it is.
    pub host_ranks: u32,
    /// How the NICs are joined.
    pub network: NetworkPlan,
    /// Share of the frames that each switch loses.
    pub loss: f64,
    /// Seed of all that is random: losses and the NICs' numbers, and what a run adds to them.
    pub seed: u64,
    /// What breaks.
    pub faults: Vec<Fault>,
    /// Ranks that are slower than the others.
    pub slow: Vec<Slow>,
}

impl Cluster {
    /// Ranks at one lossless switch, with the links of a profile.
    pub fn new(ranks: usize, profile: Profile) -> Cluster {
        Cluster {
            ranks,
            profile,
            host_ranks: 1,
            network: NetworkPlan::default(),
            loss: 0.0,
            seed: 0,
            faults: Vec::new(),
            slow: Vec::new(),
        }
    }
}
