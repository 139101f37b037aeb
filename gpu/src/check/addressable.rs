//! Which bytes of GPU memory are allocated: a byte for each 8 bytes of memory says how many of them
//! are, from the first.
//!
//! Allocations begin at multiples of 16, so that no 8 bytes have two of them.

use std::sync::atomic::{AtomicU8, Ordering};

/// The map of one GPU memory. Compiled code reads it while the host changes it.
#[derive(Debug)]
pub(super) struct Addressable {
    base: u64,
    /// Zeroed by the operating system when it is first touched, so that a large memory costs
    /// nothing.
    map: *mut u8,
    len: usize,
}

// SAFETY: the map is owned, and accessed by atomics alone.
unsafe impl Send for Addressable {}
// SAFETY: as for Send.
unsafe impl Sync for Addressable {}

impl Drop for Addressable {
    fn drop(&mut self) {
        let map = std::ptr::slice_from_raw_parts_mut(self.map, self.len);
        // SAFETY: made by `new` of a box of this length.
        drop(unsafe { Box::from_raw(map) });
    }
}

impl Addressable {
    pub(super) fn new(base: u64, bytes: u64) -> Addressable {
        // Accesses of 32 bytes read four of the map's.
        let len = bytes.div_ceil(8) as usize + 4;
        let map = Box::into_raw(vec![0u8; len].into_boxed_slice());
        Addressable {
            base,
            map: map.cast(),
            len,
        }
    }

    pub(super) fn map(&self) -> *const u8 {
        self.map
    }

    fn byte(&self, i: usize) -> &AtomicU8 {
        assert!(i < self.len);
        // SAFETY: inside the map, which is accessed by atomics alone and lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.map.wrapping_add(i)) }
    }

    pub(super) fn set(&self, address: u64, bytes: u64, on: bool) {
        let first = address.wrapping_sub(self.base);
        assert!(first.is_multiple_of(8), "allocations are aligned");
        for at in (0..bytes).step_by(8) {
            let n = if on { (bytes - at).min(8) as u8 } else { 0 };
            self.byte(((first + at) / 8) as usize)
                .store(n, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::marked;

    #[test]
    fn bytes_are_covered_from_allocation_to_free_and_no_further() {
        let a = Addressable::new(0x10000, 4096);
        a.set(0x10010, 13, true);
        a.set(0x10020, 8, true);
        // SAFETY: inside of the memory.
        let covers = |at: u64, n| unsafe { marked(a.map(), at - 0x10000, n) };
        assert!(covers(0x10010, 13) && covers(0x1001c, 1) && covers(0x10020, 8));
        assert!(!covers(0x1000f, 1) && !covers(0x1001c, 2) && !covers(0x10024, 8));
        assert!(!covers(0x10018, 8));
        a.set(0x10010, 13, false);
        assert!(!covers(0x10010, 1) && covers(0x10020, 8));
    }
}
