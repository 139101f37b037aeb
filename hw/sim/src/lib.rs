//! The blocks of hw/rtl as Rust objects, compiled by Verilator (feature `verilator`; `card`:
//! `nic_top` alone).
//!
//! Each block has a module of its name with the type `Block`: a method for each port, `eval` and
//! `tick`. The tests of this crate compare the blocks cycle by cycle with the Rust models that the
//! software NIC uses.

pub mod figure;
pub mod ring;
pub mod stream;

#[cfg(any(feature = "verilator", feature = "card"))]
#[allow(
    unsafe_code,
    unreachable_pub,
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    clippy::identity_op
)] // Calls into what Verilator has compiled.
mod blocks {
    include!(concat!(env!("OUT_DIR"), "/blocks.rs"));
}

#[cfg(any(feature = "verilator", feature = "card"))]
pub use blocks::*;

// Where `nic_top` was compiled, with `reduce`.
#[cfg(block = "nic_top")]
pub mod card;
#[cfg(block = "nic_top")]
mod messages;
#[cfg(block = "nic_top")]
mod neighbours;
#[cfg(block = "nic_top")]
mod nic_ring;
#[cfg(block = "nic_top")]
mod reducer;
