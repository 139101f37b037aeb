//! Address translation and protection between a GPU's virtual addresses and a NIC's bus.
//!
//! The GPU TLB of FpgaNIC §2.3.2: [`gtlb`] coalesces 64 KiB GPU pages into 2 MiB entries and looks
//! them up, [`mmu`] adds protection domains and memory regions with keys, and [`memory`] is the
//! interface to the bytes themselves, addressed by [`BusAddr`], which only this crate can mint.
//!
//! In the order in which an operation uses them: [`region`] and [`pd`] check whether it may touch
//! the bytes, `window` and `bank` choose the GTLB of the address, [`gtlb`] translates, and
//! `directory` is the full page table that answers a miss. A driver writes the same tables through
//! the BAR by [`registers`].
//!
//! ```
//! use ringbell_gtlb::{Access, Fault, Mmu, MmuConfig, Need, PageTable, PAGE_BYTES};
//! use ringbell_nic_abi::{GpuVa, Lkey};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut mmu = Mmu::new(MmuConfig::default())?;
//! // Two pages of GPU memory that lie apart on the bus.
//! let base = GpuVa(0x7f00_0000_0000);
//! mmu.map(&PageTable { base, pages: vec![0x50_0000, 0x90_0000] })?;
//! let pd = mmu.alloc_pd()?;
//! let region = mmu.register(pd, base, 2 * PAGE_BYTES, Access::LOCAL)?;
//!
//! // An operation: check once, translate piece by piece, let go.
//! let last = GpuVa(base.0 + PAGE_BYTES - 4);
//! let pin = mmu.pin(pd, Lkey(0), last, 8, Need::Write)?;
//! let span = mmu.span(pin.region, last, 8)?;
//! assert_eq!((span.addr.value(), span.len), (0x50_0000 + 0xfffc, 4)); // the page ends here
//! mmu.unpin(pin);
//!
//! let beyond = GpuVa(base.0 + 2 * PAGE_BYTES);
//! assert_eq!(
//!     mmu.pin(pd, Lkey(0), beyond, 1, Need::Read),
//!     Err(Fault::NotRegistered { va: beyond })
//! );
//!
//! mmu.begin_deregister(region.lkey)?; // no new operations
//! mmu.finish_deregister(region.lkey)?; // none in flight: its entries are gone
//! mmu.unmap(base, 2 * PAGE_BYTES)?;
//! # Ok(())
//! # }
//! ```

mod bank;
pub mod bus;
pub mod cache;
mod completion_write;
pub mod copy;
mod directory;
pub mod fault;
pub mod gtlb;
pub mod memory;
pub mod mmu;
pub mod page_table;
pub mod pd;
pub mod populate;
pub mod region;
pub mod registers;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod window;

pub use bank::{GtlbStats, MapError, VA_END};
pub use bus::{BusAddr, BusSpan};
pub use completion_write::CompletionWrite;
pub use fault::Fault;
pub use gtlb::{ConfigError, EntryError, GtlbConfig};
pub use memory::{
    BusError, DmaId, DmaMemory, DmaOp, EntryPlace, Export, Exposed, Submitted, WaitHook, Window,
};
pub use mmu::{DeregisterError, Mmu, MmuConfig, Pin, RegisterError, UnmapError};
pub use page_table::{PageTable, LARGE_PAGE_BYTES, PAGE_BYTES};
pub use pd::PdError;
pub use region::{Access, MemoryRegion, Need, RegionInfo};
pub use registers::BarError;
