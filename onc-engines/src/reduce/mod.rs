//! Element-wise reductions and conversions over memory that kernels and peers may write.
//!
//! [`fused`] is the one pass of every reduction in a collective: it reads all operands once and
//! stores the result to every destination, like the combined copy and reduction in the data path of
//! ACCL+ (§4.3), but with as many operands and results as a host has ranks. With one operand it
//! copies. [`narrow`] and [`widen`] serve compression on the wire.
//!
//! Operands are raw pointers, because they point into GPU memory or into a peer's, which kernels
//! and peers may write: never a `&[u8]`. An operand that is written during the pass gives undefined
//! *values*, as it would with hardware.
//!
//! # The same bits everywhere
//!
//! The CPU's [`Level`] is read once. All levels give the same bits, which the tests compare over
//! every special value. Where Rust leaves bits open, these rules close them:
//!
//! - Operands are combined left to right: `((s0 op s1) op s2) ...`.
//! - Integers wrap. f16 and bf16 are computed in f32 and rounded to nearest even after every
//!   operation; f32 has more than twice their digits and two, so the second rounding changes
//!   nothing.
//! - A result that is not a number has the canonical bits (positive, quiet, no payload): which
//!   payload of two survives an x86 addition depends on the order of its registers. A copy, the
//!   reduction of a single operand, keeps all bits.
//! - Min and max propagate NaN and hold −0 to be below +0 (IEEE 754-2019 §9.6, `minimum`).
//!
//! `number` defines the operations on one element, `half` the small formats, `kernel` the pass over
//! memory in blocks of four vectors, `level` the instruction sets.

mod convert;
mod half;
mod isa;
mod kernel;
mod level;
mod number;
mod slices;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use convert::{narrow, widen, wire_bytes};
pub use kernel::{fused, fused_at};
pub use level::Level;
pub use slices::combine;
