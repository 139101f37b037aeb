//! Engines on the path of a stream (on-path model, FpgaNIC §3.5 and §A.3).
//!
//! Bytes go in as they pass ("op_in"), in order and exactly once; the engine keeps state, and gives a
//! result ("op_out", "op_return") when it is asked.

mod engine;
pub mod hll;

pub use engine::{EngineError, StreamEngine};
