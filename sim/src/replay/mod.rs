//! A schedule on a cluster of whole NICs.
//!
//! [`agenda`] says which operations of a rank's host may begin, [`endpoint`] carries its messages
//! by the rank's NIC and gives it [`collectives`], and [`contents`] makes their bytes and compares
//! them. [`run`] lets hosts and NICs take turns; [`stuck`] says for what ranks wait that never end.

mod agenda;
mod collectives;
mod contents;
mod endpoint;
mod report;
mod room;
mod run;
mod sizes;
mod stuck;

pub use self::report::{Delivery, GoalPlan, GoalReport, GoalTrouble, Operation};
pub use self::run::{run_goal, run_goal_watched};
pub use self::sizes::goal_memory;
