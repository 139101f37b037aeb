//! Reports of measurements: a table in the manner of nccl-tests, one JSON object, an SVG plot.
//!
//! A benchmark collects [`Row`]s into a [`Report`] and hands it to [`emit`]; sizes come from [`SweepArgs`], the machine's limits
//! for comparison from [`limits`].

pub(crate) mod limits;
pub(crate) mod machine;
pub(crate) mod memory;
mod output;
mod plot;
mod progress;
mod schema;
mod sizes;
mod stats;
mod table;

pub(crate) use output::{emit, emit_text, OutputArgs};
pub(crate) use plot::{svg as draw, Axis, Plot, COLOURS};
pub(crate) use progress::Progress;
#[cfg(feature = "cuda")]
pub(crate) use schema::Peer;
pub(crate) use schema::{Limits, Meta, Payload, Report, Row};
pub(crate) use sizes::{parse_size, size_text, SweepArgs};
pub(crate) use stats::Samples;
