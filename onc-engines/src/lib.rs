//! On-NIC compute: collectives, reductions, and engines on the path of a stream.
//!
//! Everything here is sans-I/O: no clock, no thread, no socket. The NIC (`nic-core`) feeds it.
//!
//! - [`program`]: collectives as data (off-path model, FpgaNIC §3.4, ACCL+ §4.4): the step
//!   language, generators, the checker, and the state table of FpgaNIC's Table 8.
//! - [`reduce`]: element-wise reductions and conversions, vectorised.
//! - [`stream`]: engines that a stream passes through (on-path model, FpgaNIC §3.5).

pub mod program;
pub mod reduce;
pub mod stream;
