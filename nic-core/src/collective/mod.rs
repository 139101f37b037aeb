//! Collective operations on the NIC (the off-path model, FpgaNIC §3.4).

#[allow(dead_code)] // Its users follow.
mod direct;
mod settings;

pub use settings::{
    CollectiveCounters, CollectiveSettings, CommError, CommId, CommInfo, CommStatus,
    CommunicatorConfig, PeerInfo, MAX_RANKS,
};
