//! Reports of measurements: a table in the manner of nccl-tests, one JSON object, an SVG plot.
//!
//! A benchmark collects [`Row`]s into a [`Report`] and hands it to [`emit`]; sizes come from
//! [`SweepArgs`], the machine's limits for comparison from [`limits`].

mod beside_udp;
mod busy;
mod output;
mod plot;
mod progress;
mod ranges;
mod sizes;
mod table;

pub(crate) use beside_udp::{beside_udp, beside_udp_ping_pong};
pub(crate) use busy::begin;
pub(crate) use output::{emit, emit_text, OutputArgs};
pub(crate) use plot::{svg as draw, Axis, Plot, COLOURS};
pub(crate) use progress::Progress;
pub(crate) use ranges::ranges;
#[cfg(feature = "cuda")]
pub(crate) use ringbell_perf::Peer;
pub(crate) use ringbell_perf::{limits, machine, memory, Limits, Meta, Report, Row, Samples};
pub(crate) use sizes::{parse_size, size_text, SweepArgs};
