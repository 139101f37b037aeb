//! Element-wise reductions and conversions over memory that others may write.
//!
//! [`fused`] is the one pass that every reduction of a collective is made of: it reads all operands
//! once and stores the result to every destination, as the combined copy and reduction of ACCL+ §4.3
//! does in its data path, but with as many operands and results as a host has ranks. With one
//! operand it copies. [`narrow`], [`widen`] and [`fused_wire`] serve compression on the wire.
//!
//! Operands are raw pointers, because they point into GPU memory or into a peer's, which kernels and
//! peers may write: never a `&[u8]`. A caller that lets somebody write an operand meanwhile gets
//! undefined *values*, which is what it would get from hardware.
//!
//! # The same bits everywhere
//!
//! The CPU is asked once what it has ([`Level`]); all levels give the same bits, which the tests
//! compare over every special value. Where Rust leaves bits open, these rules close them:
//!
//! - Operands are combined left to right: `((s0 op s1) op s2) ...`.
//! - Integers wrap. f16 and bf16 are computed in f32 and rounded to nearest even after every
//!   operation; f32 has more than twice their digits and two, so the second rounding changes nothing.
//! - A result that is not a number has the canonical bits (positive, quiet, no payload): which
//!   payload of two survives an x86 addition depends on the order of its registers. A copy, the
//!   reduction of a single operand, keeps all bits.
//! - Min and max propagate NaN and hold −0 to be below +0 (IEEE 754-2019 §9.6, `minimum`).
//!
//! How: `number` defines the operations on one element, `half` the small formats, `kernel` the
//! pass over memory in blocks of four vectors, `level` what differs between CPUs.

mod convert;
mod half;
mod kernel;
mod level;
mod number;
#[cfg(test)]
mod tests;

pub use convert::{fused_wire, narrow, widen, wire_bytes};
pub use kernel::{fused, fused_at};
pub use level::Level;
