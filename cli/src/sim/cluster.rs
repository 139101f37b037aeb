//! The cluster of a simulation on the command line: the same arguments for all that runs on one.

use anyhow::Result;
use ringbell::nic::Congestion;
use ringbell_sim::{Cluster, NetworkPlan, Profile, Reaction};

use super::fault::FaultArgs;
use super::profile::profile;
use super::refused::problem;
use crate::perf::{setting, Setting};
use crate::routes;

/// What a NIC sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Repeat {
    Selective,
    GoBackN,
}

impl Repeat {
    pub(super) fn is_selective(self) -> bool {
        self == Repeat::Selective
    }
}

/// The cluster, but for its ranks.
#[derive(clap::Args)]
pub(super) struct ClusterArgs {
    /// What the hardware costs: `ideal` (links of 100 Gb/s and 1 us; hosts cost nothing), the
    /// cluster of a paper (`fpganic`, `accl`, `acclplus`, `smi`), the hardware blocks (`rtl`), or a
    /// TOML file. Kernels have no costs of doorbells and completions, which are those of hosts
    #[arg(long, default_value = "ideal", value_name = "NAME|FILE", value_parser = profile)]
    profile: Profile,
    /// Another network than one switch: switches and hosts, as fat-tree:4x2, or NICs that forward
    /// for each other, as torus:2x4; or a file, as `ringbell routes` takes it
    #[arg(long, value_name = "NETWORK|FILE")]
    topology: Option<String>,
    /// Seed of the hash by which switches choose among ways of one length
    #[arg(long, default_value_t = 0, value_name = "N", requires = "topology")]
    hash_seed: u64,
    /// Switches choose among ways of one length anew for each frame, and not for each flow
    #[arg(long, requires = "topology", conflicts_with = "hash_seed")]
    spray: bool,
    /// Packets that a NIC which forwards takes from one queue before it looks at the next (SMI's R)
    #[arg(long, default_value_t = NetworkPlan::default().wire_poll, value_name = "R", requires = "topology", value_parser = clap::value_parser!(u32).range(1..=4096))]
    wire_poll: u32,
    /// What NICs do about losses and marks: window (halve it), dcqcn (rates by marks) or fixed
    /// (nothing)
    #[arg(long, default_value_t, value_name = "NAME")]
    congestion: Congestion,
    /// What NICs send again: selective (what was lost) or go-back-n (all from there on)
    #[arg(long, default_value = "selective", value_name = "NAME")]
    repeat: Repeat,
    /// UDP source ports over which NICs spread the packets of each connection, so that switches
    /// that choose a way for each flow send them by several; has no effect with `--repeat
    /// go-back-n`
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    udp_ports: u16,
    /// Share of the frames that each switch loses, or each wire between two NICs, as 0.01
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    loss: f64,
    /// Seed of losses and of the NICs' numbers; of a trace also of the messages' bytes; of kernels
    /// also of the buffers' contents, the begin and the order of threads (0: their own order)
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Threads that run NICs of a collective at once; they change no result [default: as many as
    /// there are cores from 64 ranks on, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// A setting of the communicator of all ranks, e.g. segment_bytes=64K; may be given several
    /// times
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<Setting>,
    #[command(flatten)]
    faults: FaultArgs,
}

impl ClusterArgs {
    /// The cluster of so many ranks; where no number is given, of the topology's hosts, or of 2.
    ///
    /// # Errors
    /// The topology is wrong, or a wire that is to be cut is not there.
    pub(super) fn cluster(&self, ranks: Option<usize>) -> Result<Cluster> {
        let named = self.topology.as_deref().map(routes::topology);
        let network = NetworkPlan {
            topology: named.transpose()?,
            hash_seed: self.hash_seed,
            spray: self.spray,
            wire_poll: self.wire_poll,
        };
        let hosts = network.topology.as_ref().map_or(2, |t| t.ends().count());
        let ranks = ranks.unwrap_or(hosts);
        let mut cluster = Cluster::new(ranks, self.profile.clone());
        for setting in &self.settings {
            setting.apply(&mut cluster.settings)?;
        }
        Ok(Cluster {
            faults: self.faults.faults(&network, ranks).map_err(problem)?,
            network,
            reaction: Reaction {
                congestion: self.congestion,
                selective: self.repeat.is_selective(),
                udp_ports: self.udp_ports,
            },
            loss: self.loss,
            seed: self.seed,
            slow: self.faults.slow.clone(),
            threads: self.threads.map_or(0, usize::from),
            ..cluster
        })
    }
}
