//! Test memories and the conformance suite of [`DmaMemory`](crate::DmaMemory) (feature `testing`).
//!
//! [`HostMemory`] is plain host memory that finishes each operation at once. [`DelayedMemory`]
//! delays and reorders operations, so that code which relies on immediate writes fails. [`GpuView`]
//! reads and writes either by GPU address, as a kernel would.

pub mod conformance;
mod delayed;
mod host;
mod view;

use crate::bus::{BusAddr, BusSpan};

pub use delayed::DelayedMemory;
pub use host::HostMemory;
pub use view::{each_part, GpuView, Layout};

/// A span of a memory that a test defines itself.
pub fn span(addr: u64, len: u64) -> BusSpan {
    let addr = BusAddr::mint(addr);
    BusSpan { addr, len }
}

/// Pseudo-random numbers for tests: SplitMix64, seeded, the same on every machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0. Slightly biased, which tests do not mind.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((self.bits() as u128 * bound as u128) >> 64) as u64
    }

    /// That many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.bits() as u8).collect()
    }
}
