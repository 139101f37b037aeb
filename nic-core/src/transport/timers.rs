//! A heap of connection timers in which most changes cost nothing.
//!
//! A retransmission timer moves later with each acknowledgement. The heap keeps the earliest time
//! that was ever asked for; when it fires too early, the connection is put back with its true time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::types::NicTime;

/// Timers by connection index.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(NicTime, usize)>>,
    /// Earliest entry of each connection in the heap.
    queued: Vec<Option<NicTime>>,
}

impl Timers {
    /// Makes sure that `index` fires no later than `at`.
    pub(super) fn set(&mut self, index: usize, at: NicTime) {
        if index >= self.queued.len() {
            self.queued.resize(index + 1, None);
        }
        if self.queued[index].is_none_or(|q| at < q) {
            self.queued[index] = Some(at);
            self.heap.push(Reverse((at, index)));
        }
    }

    /// The next connection whose time has come. It may be early or long gone: the caller looks.
    pub(super) fn pop(&mut self, now: NicTime) -> Option<usize> {
        while let Some(&Reverse((at, index))) = self.heap.peek() {
            if at > now {
                return None;
            }
            self.heap.pop();
            // Entries that an earlier one has replaced are left behind in the heap.
            if self.queued[index] == Some(at) {
                self.queued[index] = None;
                return Some(index);
            }
        }
        None
    }

    /// When [`Timers::pop`] may have something.
    pub(super) fn next(&self) -> Option<NicTime> {
        self.heap.peek().map(|&Reverse((at, _))| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_at_the_earliest_time_asked_for_and_once() {
        let mut t = Timers::default();
        t.set(3, NicTime(50));
        t.set(3, NicTime(20));
        t.set(3, NicTime(90));
        t.set(1, NicTime(30));
        assert_eq!(t.next(), Some(NicTime(20)));
        assert_eq!(t.pop(NicTime(19)), None);
        assert_eq!(t.pop(NicTime(60)), Some(3));
        t.set(3, NicTime(70));
        assert_eq!(t.pop(NicTime(60)), Some(1));
        assert_eq!(t.pop(NicTime(60)), None);
        assert_eq!(t.pop(NicTime(70)), Some(3));
        assert_eq!(t.next(), None);
    }
}
