//! RDMA on the wire of two.

use ringbell_nic_core::network::Network;
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};

use super::{Opened, Wire};

impl Opened for RdmaTransport {
    type Config = RdmaConfig;
    fn open(net: &Network, config: RdmaConfig) -> RdmaTransport {
        RdmaTransport::new(net, config).unwrap() // a valid configuration
    }
}

pub type Side = super::SideOf<RdmaTransport>;
pub type Pair = super::PairOf<RdmaTransport>;

pub fn config(seed: u64) -> RdmaConfig {
    RdmaConfig {
        seed,
        ..RdmaConfig::default()
    }
}

impl Pair {
    pub fn new(ports: Wire, seed: u64) -> Pair {
        Pair::with(ports, config(seed * 2 + 1), config(seed * 2 + 2))
    }
}
