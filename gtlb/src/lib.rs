//! Where is this address, and may I touch it.
//!
//! A GPU hands out virtual addresses; a NIC moves bytes on a bus. Between them stands the GPU TLB of
//! FpgaNIC §2.3.2: [`gtlb`] coalesces 64 KiB GPU pages into 2 MiB entries and looks them up,
//! [`mmu`] adds protection domains and memory regions with keys, and [`memory`] is the seam to the
//! bytes themselves, addressed by [`BusAddr`], which only this crate can mint.

mod bank;
mod directory;
pub mod fault;
pub mod gtlb;
mod keys;
pub mod memory;
pub mod mmu;
pub mod page_table;
pub mod pd;
pub mod region;
pub mod registers;
#[cfg(feature = "testing")]
pub mod testing;
mod window;

pub use bank::{GtlbStats, MapError, VA_END};
pub use fault::Fault;
pub use gtlb::{ConfigError, EntryError, GtlbConfig};
pub use memory::{
    Announce, BusAddr, BusError, BusSpan, DmaId, DmaMemory, DmaOp, Export, Submitted, Window,
};
pub use mmu::{DeregisterError, Mmu, MmuConfig, Pin, RegisterError, UnmapError};
pub use page_table::{PageTable, LARGE_PAGE_BYTES, PAGE_BYTES};
pub use pd::PdError;
pub use region::{Access, MemoryRegion, Need};
pub use registers::BarError;
