//! What `ringbell perf` measures, without command line, tables and plots.
//!
//! A measurement gives [`Row`]s, which a [`Report`] collects under the description of machine, NIC
//! and GPU. The machine's own [`limits`] are measured in the same run. [`send`] and [`collective`]
//! verify their data; a row says how much was wrong.

pub mod busy;
pub mod collective;
pub mod datagrams;
pub mod hardware;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod one_sided;
mod report;
pub mod send;
pub mod serve;
pub mod side;
mod stats;
pub mod wire;

pub use busy::Busy;
pub use report::{Limits, Meta, Payload, Peer, Report, Row};
pub use side::OperationFailed;
pub use stats::Samples;
