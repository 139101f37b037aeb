//! One-sided operations: what a descriptor with `SYMMETRIC` has in place of the remote key.
//!
//! A window is memory that every rank of a communicator has allocated together, the same number of
//! bytes on each. A kernel names a place in it by rank, window and offset; the NIC knows the
//! address and the key at that rank.

use crate::{bit_fields, Rkey};

bit_fields! { ONE_SIDED_FIELDS:
    /// With SYMMETRIC, in place of the remote key: the rank.
    W_WINDOW_RANK = word 4 [32 +: 16] => "WQE_WINDOW_RANK";
    /// With SYMMETRIC, in place of the remote key: the window.
    W_WINDOW_ID = word 4 [48 +: 16] => "WQE_WINDOW_ID";
}

/// A rank's part of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowPart {
    /// The rank.
    pub rank: u16,
    /// Number of the window in its communicator, from 1.
    pub window: u16,
}

impl WindowPart {
    /// What stands where other descriptors have the remote key.
    pub const fn rkey(self) -> Rkey {
        let word = W_WINDOW_RANK.put(self.rank as u64) | W_WINDOW_ID.put(self.window as u64);
        Rkey((word >> 32) as u32)
    }

    /// The part that a descriptor's remote key names.
    pub const fn of(rkey: Rkey) -> WindowPart {
        let word = (rkey.0 as u64) << 32;
        WindowPart {
            rank: W_WINDOW_RANK.of(word) as u16,
            window: W_WINDOW_ID.of(word) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_survives_the_key() {
        for (rank, window) in [(0, 1), (0xffff, 0x8000), (7, 0xffff)] {
            let part = WindowPart { rank, window };
            assert_eq!(WindowPart::of(part.rkey()), part);
        }
    }
}
