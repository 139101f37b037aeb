//! The network below a NIC: its [ports](port), and the [formats](wire) of what passes them.
//!
//! Nothing here knows queues, memory regions or transports. [`NicTime`] is an argument wherever
//! time matters, and [`random`] has the numbers that peers must not guess.

// One seed gives one trace of packets.
#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod port;
pub mod random;
pub mod sum;
mod time;
pub mod wire;

pub use time::NicTime;

/// Whether an address can be one host's.
pub const fn is_host(ip: std::net::Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast())
}
