//! Ranks of a job: the launcher's environment, and the bootstrap through which ranks find each
//! other.
//!
//! [`Job`] is a process's place: rank, size and the job's [`UniqueId`]. [`Member::join`] connects a
//! rank to its job, and ranks agree in rounds from then on (`bootstrap`). The crate `ringbell`
//! derives a NIC's settings from a job (`NicBuilder::job`).

mod bootstrap;
mod id;
mod job;
mod launcher;
pub mod variables;

pub use bootstrap::{BootstrapError, BootstrapServer, Member, Round};
pub use id::{UniqueId, UniqueIdError};
pub use job::Job;
pub use launcher::{JobError, JobSource};
