//! Bootstrap of a job: its ranks find each other through one TCP address on the host's network.
//!
//! One process serves ([`BootstrapServer`]: the launcher, or rank 0 by
//! [`UniqueId::create`](crate::UniqueId::create)). Every rank joins with its rank and the size of
//! the job ([`Member::join`]), and stays connected: its end closes the connection, and so the
//! others learn of it. A launcher that sees a rank's process end reports it
//! ([`BootstrapServer::rank_ended`]), for ranks that never came. Ranks agree in rounds
//! ([`Member::all_gather`]): on the table of NIC addresses, on the numbers of new communicators,
//! and after a failure on who is left ([`Member::survivors`]). A process may join the running job
//! ([`Member::join_running`]): it gets a number that no rank had before, and waits until a round of
//! others takes it in ([`Member::grow`]).
//!
//! When the serving process ends, the lowest rank of the job that is left takes over: each listens
//! from the start, and all hold the list of addresses (`link`). A member notices it in its next
//! round, or when it is asked for the job's id ([`Member::id_now`]).
//!
//! Both ends of each connection prove that they hold the job's secret, by a challenge and a MAC
//! (`proof`). The secret never travels, so a process that takes the bootstrap's port first, or
//! records the traffic, learns nothing. Later messages are neither encrypted nor authenticated: an
//! attacker who can change them can disturb a job. Against such an attacker use a network that
//! encrypts.

mod error;
mod link;
mod member;
mod message;
mod proof;
mod rounds;
mod server;
#[cfg(test)]
mod tests;

pub use error::BootstrapError;
pub use member::{Member, Round};
pub use server::BootstrapServer;
