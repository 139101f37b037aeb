//! Numbers that the host does not compute: half precision, and rounding towards zero, down and up.
//!
//! The processor's own rounding mode stays as it is: it would hold for all code of the thread. A
//! result is computed exactly, by integers of 128 bits, and rounded once.
//!
//! - `exact`: formats, their values, rounding, sum, product, quotient, root;
//! - `fast`: the short way for what double precision computes exactly;
//! - `operation`: what compiled code asks for; `task`: its result, of one value or a pair;
//! - `convert`: conversions between formats and integers;
//! - `pure`: what is computed of words: dot products, bytes side by side, small formats.

mod convert;
mod exact;
mod fast;
mod operation;
mod pure;
mod task;

pub(crate) use convert::{convert, Conversion};
pub(crate) use operation::{FloatOp, Task};
pub(crate) use pure::pure;
pub(crate) use task::{float, half_of_double};
