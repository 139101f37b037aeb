//! A port over wires between NICs that forward for each other, as SMI's boards do (SC'19 §4.2).
//!
//! [`MeshPort`] is a [`Port`](ringbell_net::port::Port) of frames: everything above it, from ARP to
//! transports, is as over a switch. Below it each wire is a port of frames of its own, with a link
//! layer that loses nothing and keeps order (`wire`). Between them a router moves packets by the
//! tables of [`ringbell_routes`] (`router`), whose proof says that packets cannot stop for ever.
//! Packets of a sum are combined on their way (`sums`). Nodes tell each other which wires are down
//! (`network`).
//!
//! Like all ports the mesh is sans-I/O: time is an argument, and one seed gives one trace.

mod buffers;
mod config;
mod control;
mod error;
mod gone;
mod head;
mod network;
pub mod page;
mod plan;
pub mod port;
mod replacing;
mod report;
mod router;
mod sound;
mod sums;
mod wire;

pub use config::{MeshConfig, MeshCounters, POLL, POLL_MAX};
pub use control::Control;
pub use error::{MeshError, ReplaceError};
pub use head::GROWTH;
pub use port::MeshPort;
pub use sound::SoundRoutes;
pub use sums::PLACES;
pub use wire::{WireCounters, WireState};
