//! Engines on the path of a stream (on-path model, FpgaNIC §3.5 and §A.3).
//!
//! Bytes go in as they pass ("op_in"), in order and exactly once; the engine keeps state, and gives
//! a result ("op_out", "op_return") when it is asked.

pub mod cast;
mod chain;
pub mod checksum;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod engine;
pub mod filter;
pub mod hll;
mod registry;

pub use chain::{split_results, Chain};
pub use engine::{EngineError, Hardware, StreamEngine};
pub use registry::{Maker, Options, Registry, SpecError};
