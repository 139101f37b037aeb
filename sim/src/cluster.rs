//! The cluster below every run: ranks, the network that joins them, and what goes wrong with it.

use ringbell_mesh::POLL;
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::transport::rdma::{Congestion, DcqcnConfig, RdmaConfig};
use ringbell_routes::topology::Topology;

use crate::{Fault, Profile, Slow};

/// How the NICs are joined: by one switch, unless there is a topology.
#[derive(Debug, Clone)]
pub struct NetworkPlan {
    /// NICs at switches, of whose ends the first are the ranks; or NICs alone, each a rank, which
    /// forward for each other.
    pub topology: Option<Topology>,
    /// Seed of the hash by which switches choose among ways of one length.
    pub hash_seed: u64,
    /// Switches choose anew for each frame, and not for each flow.
    pub spray: bool,
    /// Packets that a NIC which forwards takes from one queue before it looks at the next (SMI's
    /// R), 1 to 4,096.
    pub wire_poll: u32,
}

impl Default for NetworkPlan {
    fn default() -> NetworkPlan {
        NetworkPlan {
            topology: None,
            hash_seed: 0,
            spray: false,
            wire_poll: POLL,
        }
    }
}

impl NetworkPlan {
    /// Whether the NICs forward for each other: no switch joins them.
    pub fn is_mesh(&self) -> bool {
        let topology = self.topology.as_ref();
        topology.is_some_and(|t| t.ends().count() == t.nodes().len())
    }
}

/// What the NICs do about losses and marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaction {
    /// What decides on window and rate of a connection.
    pub congestion: Congestion,
    /// Lost packets alone are sent again, and not all behind them.
    pub selective: bool,
    /// UDP source ports over which a connection spreads its packets, 1 to 64. Switches that choose
    /// ways for flows then send them by several.
    pub udp_ports: u16,
}

impl Default for Reaction {
    /// That of transport `rdma` itself.
    fn default() -> Reaction {
        let RdmaConfig {
            congestion,
            selective,
            udp_ports,
            ..
        } = RdmaConfig::default();
        Reaction {
            congestion,
            selective,
            udp_ports,
        }
    }
}

impl Reaction {
    /// The congestion control of a NIC whose link has this rate.
    pub(crate) fn congestion_at(&self, gbps: f64) -> Congestion {
        match self.congestion {
            Congestion::Dcqcn(config) => Congestion::Dcqcn(DcqcnConfig {
                line_rate: (gbps * 1e9 / 8.0) as u64,
                ..config
            }),
            other => other,
        }
    }
}

/// Ranks, each with a NIC, on a network.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// How many ranks.
    pub ranks: usize,
    /// What links cost.
    pub profile: Profile,
    /// Settings of the communicator of all ranks. To the network each rank is a NIC of its own,
    /// however many share a host by `host_ranks`, which is 1 or more here.
    pub settings: CollectiveSettings,
    /// How the NICs are joined.
    pub network: NetworkPlan,
    /// What the NICs do about losses and marks.
    pub reaction: Reaction,
    /// Share of the frames that each switch loses, or each wire between two NICs.
    pub loss: f64,
    /// Seed of all that is random: losses and the NICs' numbers, and what a run adds to them.
    pub seed: u64,
    /// What breaks.
    pub faults: Vec<Fault>,
    /// Ranks that are slower than the others.
    pub slow: Vec<Slow>,
    /// Threads that step NICs of collectives at once: 0 for as many as there are cores, where that
    /// pays. They change nothing but how long a run takes.
    pub threads: usize,
}

impl Cluster {
    /// Ranks at one lossless switch, with the links of a profile.
    pub fn new(ranks: usize, profile: Profile) -> Cluster {
        Cluster {
            ranks,
            profile,
            settings: CollectiveSettings {
                host_ranks: 1.into(),
                ..CollectiveSettings::default()
            },
            network: NetworkPlan::default(),
            reaction: Reaction::default(),
            loss: 0.0,
            seed: 0,
            faults: Vec::new(),
            slow: Vec::new(),
            threads: 0,
        }
    }
}
