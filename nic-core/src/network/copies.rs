//! Frames to all of a port that copies them on their way (ADR 82).
//!
//! They belong to no transport: the layer of messages writes and reads them
//! ([`message`](crate::message)), and reductions in transit do ([`collective`](crate::collective)).
//! What has arrived waits here until it is looked at.

use std::collections::VecDeque;

use ringbell_net::sum::{GRANT, SUM};
use ringbell_net::wire::ETHERNET_HEADER;

/// EtherType of these frames: IEEE 802's first one for local experiments.
pub(super) const COPIES: [u8; 2] = [0x88, 0xb5];
/// Frames that wait at most: several steps' worth. More are dropped, as if lost.
const WAITING_MAX: usize = 512;

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// Those of reductions in transit.
    pub(super) sums: VecDeque<Vec<u8>>,
    /// Memory, to be used again.
    pub(super) free: Vec<Vec<u8>>,
}

impl Copies {
    /// Takes a frame of a port, if it is one of these. Counts it where there is no room.
    #[inline]
    pub(super) fn take(&mut self, frame: &[u8], dropped: &mut u64) -> bool {
        if frame.get(12..ETHERNET_HEADER) != Some(&COPIES[..]) {
            return false;
        }
        let of_sums = matches!(frame.get(ETHERNET_HEADER), Some(&(SUM | GRANT)));
        let waiting = match of_sums {
            true => &mut self.sums,
            false => &mut self.waiting,
        };
        if waiting.len() >= WAITING_MAX {
            *dropped += 1;
            return true;
        }
        let mut copy = self.free.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(&frame[ETHERNET_HEADER..]);
        waiting.push_back(copy);
        true
    }
}
