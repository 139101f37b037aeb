//! Memory of a socket's buffers, whose pages go back to the system while the connection rests.
//!
//! A ring touches all of its pages in turn, so a connection that has carried more than its buffers
//! hold would keep them for ever. Between messages both rings are empty, and what their pages hold
//! is not read again.
#![allow(unsafe_code)] // Slices for smoltcp, which wants them for ever, and pages given back.

use memmap2::{MmapMut, UncheckedAdvice};
use smoltcp::socket::tcp::SocketBuffer;

use super::sequence::is_before;
use super::TcpConfig;
use crate::transport::rest::Rest;
use crate::types::NicTime;

/// See the module text.
#[derive(Debug)]
pub(super) struct SocketMemory {
    /// `None` where the system had no mapping to give: the buffers are on the heap and stay.
    map: Option<MmapMut>,
    /// End of the segments that came before their turn: they lie in the buffer, too.
    early: Option<u32>,
    /// Bytes that had passed at the last look.
    passed: u64,
    rest: Rest,
}

impl SocketMemory {
    /// Memory, with the buffers for received bytes and for bytes to send.
    ///
    /// # Safety
    /// The buffers are dropped before the memory.
    pub(super) unsafe fn new(
        config: &TcpConfig,
    ) -> (SocketMemory, SocketBuffer<'static>, SocketBuffer<'static>) {
        let (rx, tx) = (config.rx_buffer, config.tx_buffer);
        let mut map = MmapMut::map_anon(rx + tx).ok();
        let (received, to_send) = match &mut map {
            Some(map) => {
                let base = map.as_mut_ptr();
                // SAFETY: two parts of one mapping, which do not overlap. The mapping stays until
                // the buffers are gone, as the caller promises, and nothing else reaches into it.
                let (received, to_send): (&'static mut [u8], &'static mut [u8]) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(base, rx),
                        std::slice::from_raw_parts_mut(base.add(rx), tx),
                    )
                };
                (SocketBuffer::new(received), SocketBuffer::new(to_send))
            }
            None => (
                SocketBuffer::new(vec![0; rx]),
                SocketBuffer::new(vec![0; tx]),
            ),
        };
        let memory = SocketMemory {
            map,
            early: None,
            passed: 0,
            rest: Rest::default(),
        };
        (memory, received, to_send)
    }

    /// A segment that ends at `end` was taken, and the socket expects `next`.
    #[inline]
    pub(super) fn took(&mut self, end: u32, next: u32, window: usize) {
        let ahead = end.wrapping_sub(next);
        // Beyond the window nothing is kept.
        if ahead == 0 || ahead as usize > window {
            return;
        }
        if self.early.is_none_or(|early| is_before(early, end)) {
            self.early = Some(end);
        }
    }

    /// When to look whether the connection rests.
    #[inline]
    pub(super) fn look_at(&self) -> Option<NicTime> {
        self.rest.look_at()
    }

    /// Gives the pages back once nothing has passed for a while. `passed` counts the bytes of both
    /// directions, `next` is what the socket expects, and `empty` says that its rings are. Returns
    /// whether it did.
    #[inline]
    pub(super) fn rest(
        &mut self,
        now: NicTime,
        passed: u64,
        next: Option<u32>,
        empty: bool,
    ) -> bool {
        let moved = std::mem::replace(&mut self.passed, passed) != passed;
        let begins = self.rest.begins(now, moved, || self.map.is_some());
        // What lies in a ring now counts as passed later, and is followed by another look.
        begins && empty && !self.holds_early(next) && self.release()
    }

    /// Whether bytes lie in the buffer whose turn has not come.
    fn holds_early(&mut self, next: Option<u32>) -> bool {
        if let (Some(early), Some(next)) = (self.early, next) {
            if !is_before(next, early) {
                self.early = None;
            }
        }
        self.early.is_some()
    }

    #[cold]
    fn release(&self) -> bool {
        let Some(map) = &self.map else { return false };
        // SAFETY: pages of a private mapping read as zeros from now on. Both rings are empty and
        // nothing lies in them early, so the socket writes each byte before it reads it.
        let released = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        if let Err(e) = &released {
            tracing::debug!(%e, "pages of a socket's buffers are kept");
        }
        released.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rests(memory: &mut SocketMemory, ms: u64, passed: u64, next: u32, empty: bool) -> bool {
        memory.rest(NicTime(ms * 1_000_000), passed, Some(next), empty)
    }

    #[test]
    fn rings_work_on_after_their_pages_went() {
        // SAFETY: the buffers are dropped first.
        let (mut m, mut rx, tx) = unsafe { SocketMemory::new(&TcpConfig::default()) };
        assert_eq!(rx.enqueue_slice(&[7; 100]), 100);
        assert_eq!(rx.dequeue_many(100), [7; 100]);
        assert!(!rests(&mut m, 0, 100, 100, true), "it has only begun");
        assert!(rests(&mut m, 200, 100, 100, true));
        assert_eq!(rx.enqueue_slice(&[8; 100]), 100);
        assert_eq!(rx.dequeue_many(100), [8; 100]);
        drop((rx, tx));
    }

    #[test]
    fn pages_stay_while_a_ring_holds_bytes_or_early_ones() {
        // SAFETY: the buffers are dropped first.
        let (mut m, rx, tx) = unsafe { SocketMemory::new(&TcpConfig::default()) };
        let window = 1 << 18;
        // Near the end of sequence numbers, so that they wrap.
        let next = u32::MAX - 100;
        m.took(next.wrapping_add(500), next, window);
        m.took(next.wrapping_add(300), next, window);
        m.took(next.wrapping_add(1 << 30), next, window);
        assert!(!rests(&mut m, 0, 1, next, true));
        assert!(!rests(&mut m, 200, 1, next, true), "early bytes");
        assert!(!rests(&mut m, 300, 2, next.wrapping_add(499), true));
        assert!(
            !rests(&mut m, 500, 2, next.wrapping_add(499), true),
            "one of them is"
        );
        assert!(!rests(&mut m, 600, 3, next.wrapping_add(500), true));
        assert!(
            !rests(&mut m, 800, 3, next.wrapping_add(500), false),
            "a ring holds some"
        );
        assert!(!rests(&mut m, 900, 4, next.wrapping_add(500), true));
        assert!(rests(&mut m, 1_100, 4, next.wrapping_add(500), true));
        drop((rx, tx));
    }
}
