//! Ranks and communicators: how processes become a job, and collectives of that job.

mod bootstrap;
mod id;
mod job;

pub use bootstrap::{BootstrapError, BootstrapServer, Member, Round};
pub use id::{UniqueId, UniqueIdError};
pub use job::{variables, Job, JobError, JobSource};
