//! Scheduling of connections: those whose memory is still in the cache come first.
//!
//! With 1,000 connections the socket buffers are larger than any cache, and most of the time goes
//! into fetching them. So a connection moves a burst before the next one is touched. A connection
//! that has just received from its peer, or that stopped because the port was full, is *hot* and
//! goes first; all others queue. It stays hot for one turn's worth of bytes, then queues like the
//! others, so none starves.
//!
//! The state needed to choose lies here and not in the connections, because touching a connection
//! costs cache misses.

use std::collections::VecDeque;

/// Bytes that a connection may send before it queues behind the others again: 256 KiB, long enough
/// to earn back what fetching the connection cost.
const TURN: u32 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Queued {
    #[default]
    No,
    Hot,
    Cold,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    queued: Queued,
    /// Bytes left of its turn.
    turn: u32,
}

/// The two queues of connection indices.
#[derive(Debug, Default)]
pub(super) struct Ready {
    hot: VecDeque<usize>,
    /// A connection that becomes hot leaves its entry here behind, which is skipped when it comes
    /// up.
    cold: VecDeque<usize>,
    places: Vec<Place>,
    waiting: usize,
}

impl Ready {
    /// Connections that wait, each counted once.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    fn place(&mut self, index: usize) -> &mut Place {
        if index >= self.places.len() {
            self.places.resize(index + 1, Place::default());
        }
        &mut self.places[index]
    }

    /// Behind the others, unless it waits already.
    pub(super) fn queue(&mut self, index: usize) {
        let place = self.place(index);
        if place.queued == Queued::No {
            place.queued = Queued::Cold;
            self.waiting += 1;
            self.cold.push_back(index);
        }
    }

    /// To the front: the connection touched last is the hottest, and the nearest to its end.
    fn queue_hot(&mut self, index: usize) {
        let place = self.place(index);
        let was = std::mem::replace(&mut place.queued, Queued::Hot);
        if was != Queued::Hot {
            self.waiting += usize::from(was == Queued::No);
            self.hot.push_front(index);
        }
    }

    /// Continues a connection, because a segment came or the port may have room again: hot while
    /// its turn lasts.
    pub(super) fn resume(&mut self, index: usize) {
        match self.place(index).turn {
            0 => self.queue(index),
            _ => self.queue_hot(index),
        }
    }

    /// Takes bytes sent from the connection's turn.
    pub(super) fn sent(&mut self, index: usize, bytes: usize) {
        let place = self.place(index);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        place.turn = place.turn.saturating_sub(bytes);
    }

    /// The next connection to serve. From the cold queue it begins a new turn.
    pub(super) fn pop(&mut self) -> Option<usize> {
        loop {
            let (index, from) = match self.hot.pop_front() {
                Some(index) => (index, Queued::Hot),
                None => (self.cold.pop_front()?, Queued::Cold),
            };
            let place = self.place(index);
            if place.queued == from {
                place.queued = Queued::No;
                if from == Queued::Cold {
                    place.turn = TURN;
                }
                self.waiting -= 1;
                return Some(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ready: &mut Ready) -> Vec<usize> {
        std::iter::from_fn(|| ready.pop()).collect()
    }

    #[test]
    fn hot_before_cold_and_each_once() {
        let mut ready = Ready::default();
        for i in [0, 1, 2, 1] {
            ready.queue(i);
        }
        for i in [2, 3, 2, 4] {
            ready.queue_hot(i);
        }
        ready.queue(3);
        assert_eq!(ready.len(), 5);
        assert_eq!(all(&mut ready), [4, 3, 2, 0, 1]);
        assert_eq!(ready.len(), 0);
    }

    #[test]
    fn no_connection_is_hot_for_longer_than_a_turn() {
        let mut ready = Ready::default();
        ready.queue(0);
        ready.queue(1);
        let mut served = [0; 2];
        // Connection 0 receives from its peer after each segment; 1 waits.
        for _ in 0..2 * TURN as usize / 1500 {
            let Some(index) = ready.pop() else { break };
            served[index] += 1500;
            ready.sent(index, 1500);
            ready.resume(0);
            ready.queue(1);
        }
        assert!(served[1] > 0, "connection 1 was never served");
        assert!(
            served[0] > served[1],
            "a burst belongs together: {served:?}"
        );
    }
}
