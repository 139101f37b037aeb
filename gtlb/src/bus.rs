//! Bus addresses and spans: where the NIC's DMA finds bytes.

/// An address on the bus behind the GTLB. Only a translation mints one, so a NIC cannot touch
/// memory that it was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BusAddr(u64);

impl BusAddr {
    /// For this crate's translations alone.
    pub(crate) const fn mint(addr: u64) -> BusAddr {
        BusAddr(addr)
    }
    /// The number, for the memory's own use and for messages.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// A physically contiguous run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusSpan {
    /// First byte.
    pub addr: BusAddr,
    /// Bytes.
    pub len: u64,
}

impl BusSpan {
    /// The first `len` bytes of the span, or all of it when it is shorter.
    pub fn prefix(self, len: u64) -> BusSpan {
        BusSpan {
            addr: self.addr,
            len: self.len.min(len),
        }
    }
}
