//! The page table of a range of GPU memory, and the page sizes (Algorithm 1, line 2).

use ringbell_nic_abi::{translation, GpuVa};

/// Size of a GPU page: 64 KiB (FpgaNIC §2.3.2).
pub const PAGE_BYTES: u64 = 1 << translation::PAGE_SHIFT;
/// Size of a coalesced entry: 2 MiB.
pub const LARGE_PAGE_BYTES: u64 = 1 << translation::LARGE_PAGE_SHIFT;
/// Pages per coalesced entry.
pub const PAGES_PER_LARGE: usize = (LARGE_PAGE_BYTES / PAGE_BYTES) as usize;

/// log2 of [`PAGE_BYTES`].
pub(crate) const PAGE_SHIFT: u32 = translation::PAGE_SHIFT;
/// log2 of [`LARGE_PAGE_BYTES`].
pub(crate) const GROUP_SHIFT: u32 = translation::LARGE_PAGE_SHIFT;
/// Complementary entries per group.
pub(crate) const GROUP_PAGES: u32 = PAGES_PER_LARGE as u32;

/// Bus addresses of the 64 KiB pages of a range, as a GPU driver reports them
/// (`nvidia_p2p_get_pages`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTable {
    /// Virtual address of the first page; a multiple of 64 KiB.
    pub base: GpuVa,
    /// Bus address of each page, in order of virtual address; multiples of 64 KiB.
    pub pages: Vec<u64>,
}
