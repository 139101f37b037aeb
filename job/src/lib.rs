//! Ranks of a job: what a launcher's environment says, and how ranks find each other.
//!
//! [`Job`] is a process's place: rank, size and the job's [`UniqueId`]. [`Member::join`] connects a rank to its job, and
//! ranks agree in rounds from then on (`bootstrap`). What a job decides for a NIC is in the crate `ringbell`
//! (`NicOptions::for_job`).

mod bootstrap;
mod id;
mod job;
mod launcher;

pub use bootstrap::{BootstrapError, BootstrapServer, Member, Round};
pub use id::{UniqueId, UniqueIdError};
pub use job::{variables, Job, JobError};
pub use launcher::JobSource;
