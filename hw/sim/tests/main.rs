//! All simulations as one program, so that one program is linked.
//!
//! A file beside this one is a module, and is there where its blocks were compiled:
//! `cargo xtask hw --block NAME` compiles few.

#[cfg(block = "nic_top")]
#[path = "../../../nic-core/tests/collective_support/mod.rs"]
mod collective_support;
#[cfg(block = "crc32c")]
mod crc32c;
#[cfg(block = "dma_split")]
mod dma_split;
#[cfg(block = "float_add_f16")]
mod float_add;
#[cfg(block = "gtlb")]
mod gtlb;
#[cfg(all(block = "hll", block = "hll_murmur3"))]
mod hll;
#[cfg(block = "nic_top")]
mod nic;
#[cfg(block = "nic_top")]
mod nic_top;
#[cfg(all(block = "onpath", block = "crc32c"))]
mod onpath;
#[cfg(any(block = "sequencer", block = "nic_top"))]
mod programs;
#[cfg(block = "reduce")]
mod reduce;
#[cfg(block = "regfile")]
mod regfile;
#[cfg(all(block = "router", block = "router_ring"))]
mod router;
#[cfg(all(block = "sequencer", block = "reduce"))]
mod sequencer;
mod speed;
