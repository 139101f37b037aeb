//! Numbers of the GTLB that software and hardware share: page sizes, and the commands of register
//! GTLB_COMMAND.

/// log2 of the bytes of a GPU page, a complementary entry: 64 KiB (FpgaNIC §2.3.2).
pub const PAGE_SHIFT: u32 = 16;
/// log2 of the bytes of a main entry: 2 MiB.
pub const LARGE_PAGE_SHIFT: u32 = 21;

/// GTLB_COMMAND: writes a main entry of 2 MiB (Algorithm 1, lines 7 to 11).
pub const GTLB_WRITE_LARGE: u32 = 1;
/// GTLB_COMMAND: writes a complementary entry of 64 KiB (line 14).
pub const GTLB_WRITE_PAGE: u32 = 2;
/// GTLB_COMMAND: writes a main entry that points to 32 complementary entries (lines 15 and 16).
pub const GTLB_WRITE_POINTER: u32 = 3;
/// GTLB_COMMAND: invalidates a main entry.
pub const GTLB_INVALIDATE: u32 = 4;
