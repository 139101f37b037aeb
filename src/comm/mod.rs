//! Ranks and communicators: how processes become a job, and collectives of that job.
//!
//! `id` and `bootstrap`: ranks find each other. `job` and `launcher`: what a launcher's
//! environment says. `card`: what
//! they tell each other of their NICs. `communicator`: the handle; `operation` and `calls`: what it
//! is asked to do; `kernel_stream`: what kernels push and pop instead of buffers; `request` and
//! `stream`: how that ends.

mod bootstrap;
mod calls;
mod card;
mod communicator;
mod element;
mod engines;
mod error;
mod id;
mod job;
mod kernel_stream;
mod launcher;
mod operation;
mod options;
mod request;
mod stream;
mod stream_queue;

pub use bootstrap::{BootstrapError, BootstrapServer, Member, Round};
pub(crate) use card::host;
pub use communicator::Communicator;
pub use element::Element;
pub use error::CollectiveError;
pub use id::{UniqueId, UniqueIdError};
pub use job::{variables, Job, JobError};
pub use kernel_stream::KernelStream;
pub use launcher::JobSource;
pub use operation::{Operation, Span};
pub use options::{CommOptions, COLLECTIVE_PORT};
pub use request::{Done, Request};
pub use stream::Enqueued;
