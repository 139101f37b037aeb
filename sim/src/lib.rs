//! A cluster in virtual time: many whole NICs in one process, over a modelled network.
//!
//! [`run`] makes the NICs, joins them by one switch, a topology of switches, or wires between NICs
//! that forward for each other, runs collectives and compares every byte with a model. A NIC is
//! stepped when a frame arrives, a timer is due or an operation was posted, and not otherwise, so
//! virtual time jumps from one such moment to the next.
//! [`run_kernel`] lets kernels of users run on emulated GPUs of such ranks instead, and
//! [`run_goal`] the sends, receives and calculations of a schedule in GOAL.
//! Several threads may step NICs, and no result depends on how many.
//! No clock and no address enters: one plan gives one sequence of events, whose digest is in the
//! [`Report`].

mod ahead;
mod bound;
mod cluster;
mod data;
mod fault;
mod file_error;
pub mod goal;
mod host;
mod kernel;
mod kernel_argument;
mod kernel_plan;
mod lane;
mod mesh;
mod network;
mod node;
mod pattern;
mod profile;
mod random;
mod rank_gpu;
mod repeating;
mod replay;
mod report;
mod running;
mod simulation;
mod steady;
mod switch;
mod threads;
mod timeline;
mod watch;
mod wire_name;
mod world;

pub use cluster::{Cluster, NetworkPlan, Reaction};
pub use fault::{Breaks, Ended, Fault, RankEnd, Slow};
pub use file_error::FileError;
pub use host::HostCosts;
pub use kernel::{kernel_memory, run_kernel, run_kernel_watched, KernelReport, Trouble};
pub use kernel_argument::{KernelArgument, DEFAULT_ARGUMENTS};
pub use kernel_plan::{Contents, KernelPlan};
pub use profile::Profile;
pub use replay::{
    goal_memory, run_goal, run_goal_watched, Delivery, GoalPlan, GoalReport, GoalTrouble, Operation,
};
pub use report::{Counts, Failure, Forward, Kept, Measured, Plan, Report};
pub use ringbell_cuda_kernels::LaunchShape;
pub use simulation::{memory, run, run_watched};
pub use steady::Projection;
pub use switch::{Marks, Pauses, SharedRoom, Switches};
pub use watch::Watch;
