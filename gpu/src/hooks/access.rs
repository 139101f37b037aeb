//! How an access is made: what compiled code tells the checks, in a word.

use crate::module::{Access, MemoryOrder, Scope};

/// Bytes, direction, order and scope of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct How(u32);

const STORE: u32 = 1 << 8;
/// A read and a write in one.
const ATOMIC: u32 = 1 << 9;
const ORDER: u32 = 10;
const SCOPE: u32 = 13;

impl How {
    pub(crate) fn new(bytes: u32, store: bool) -> How {
        How(bytes | if store { STORE } else { 0 })
    }

    /// A load or store as an instruction says it.
    pub(crate) fn of(access: &Access, bytes: u32, store: bool) -> How {
        How::new(bytes, store).ordered(access.order, access.scope)
    }

    pub(crate) fn ordered(self, order: MemoryOrder, scope: Scope) -> How {
        How(self.0 | (order as u32) << ORDER | (scope as u32) << SCOPE)
    }

    pub(crate) fn atomic(self) -> How {
        How(self.0 | STORE | ATOMIC)
    }

    /// As compiled code passes it.
    pub(crate) fn pack(self) -> u32 {
        self.0
    }

    pub(crate) fn unpack(bits: u32) -> How {
        How(bits)
    }

    /// The same of a part.
    pub(crate) fn of_bytes(self, bytes: u32) -> How {
        How(self.0 & !0xff | bytes)
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0 & 0xff)
    }

    pub(crate) fn is_store(self) -> bool {
        self.0 & STORE != 0
    }

    pub(crate) fn is_atomic(self) -> bool {
        self.0 & ATOMIC != 0
    }

    fn order(self) -> u32 {
        self.0 >> ORDER & 7
    }

    /// Not weak (§8.3).
    pub(crate) fn is_strong(self) -> bool {
        self.order() != MemoryOrder::Weak as u32
    }

    pub(crate) fn acquires(self) -> bool {
        let o = self.order();
        o == MemoryOrder::Acquire as u32 || o == MemoryOrder::AcqRel as u32
    }

    pub(crate) fn releases(self) -> bool {
        let o = self.order();
        o == MemoryOrder::Release as u32 || o == MemoryOrder::AcqRel as u32
    }

    pub(crate) fn scope(self) -> Scope {
        match self.0 >> SCOPE & 3 {
            0 => Scope::Block,
            1 => Scope::Gpu,
            _ => Scope::System,
        }
    }

    /// In words: what it does.
    pub(crate) fn describe(self) -> &'static str {
        match (self.is_atomic(), self.is_store(), self.is_strong()) {
            (true, ..) => "an atomic operation",
            (_, true, false) => "a store",
            (_, true, true) => "an ordered store",
            (_, false, false) => "a load",
            (_, false, true) => "an ordered load",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_access_says_what_it_was() {
        let how = How::new(16, false).ordered(MemoryOrder::Acquire, Scope::System);
        let how = How::unpack(how.pack());
        assert_eq!((how.bytes(), how.scope()), (16, Scope::System));
        assert!(how.acquires() && how.is_strong());
        assert!(!how.releases() && !how.is_store() && !how.is_atomic());
        let how = How::new(4, true)
            .ordered(MemoryOrder::AcqRel, Scope::Gpu)
            .atomic();
        assert!(how.acquires() && how.releases() && how.is_store() && how.is_atomic());
        assert_eq!(how.scope(), Scope::Gpu);
        assert!(!How::new(8, true).is_strong());
    }
}
