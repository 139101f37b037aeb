//! Packets that stand in a node: their memory, and the queue of each channel.

use std::collections::VecDeque;

use ringbell_net::NicTime;

use crate::head::Head;

/// A packet, head included.
#[derive(Debug)]
pub(crate) struct Stored {
    bytes: Box<[u8]>,
    len: usize,
    /// When it came to the head of its queue, or into it.
    pub(crate) since: NicTime,
}

impl Stored {
    /// The packet.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The packet, to be changed.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// Its head.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        Head::of(&self.bytes)
    }

    /// All of its memory.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Makes it so many bytes long.
    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.bytes.len());
        self.len = len;
    }
}

/// Memory of packets, used again.
#[derive(Debug)]
pub(crate) struct Pool {
    room: usize,
    free: Vec<Box<[u8]>>,
}

impl Pool {
    /// For packets of at most `room` bytes.
    pub(crate) fn new(room: usize) -> Pool {
        Pool {
            room,
            free: Vec::new(),
        }
    }

    /// Memory for a packet; its contents are undefined.
    #[inline]
    pub(crate) fn take(&mut self) -> Stored {
        let bytes = self.free.pop();
        Stored {
            bytes: bytes.unwrap_or_else(|| vec![0; self.room].into()),
            len: 0,
            since: NicTime(0),
        }
    }

    /// A copy of a packet.
    #[inline]
    pub(crate) fn copy(&mut self, packet: &[u8]) -> Stored {
        let mut stored = self.take();
        stored.room()[..packet.len()].copy_from_slice(packet);
        stored.set_len(packet.len());
        stored
    }

    /// Takes the memory back.
    #[inline]
    pub(crate) fn give(&mut self, stored: Stored) {
        self.free.push(stored.bytes);
    }
}

/// A set of queues, by their numbers: as many as one word of 128 bits has.
pub(crate) type Set = u128;
/// Most queues of a node.
pub(crate) const QUEUES_MAX: usize = Set::BITS as usize;

/// The queues of a node: one for each channel of each wire, by which packets come in, and one for
/// each channel of what the node itself sends.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: Vec<VecDeque<Stored>>,
    filled: Set,
}

impl Queues {
    /// So many empty ones.
    pub(crate) fn new(count: usize) -> Queues {
        debug_assert!(count <= QUEUES_MAX);
        Queues {
            queues: (0..count).map(|_| VecDeque::new()).collect(),
            filled: 0,
        }
    }

    /// Those that hold a packet.
    #[inline]
    pub(crate) fn filled(&self) -> Set {
        self.filled
    }

    /// Packets in one.
    #[inline]
    pub(crate) fn len(&self, queue: usize) -> usize {
        self.queues[queue].len()
    }

    /// The packet that is the next to leave one.
    #[inline]
    pub(crate) fn head(&self, queue: usize) -> Option<&Stored> {
        self.queues[queue].front()
    }

    /// Puts a packet at the end of one. Returns whether it is the head now.
    #[inline]
    pub(crate) fn push(&mut self, queue: usize, mut packet: Stored, now: NicTime) -> bool {
        packet.since = now;
        self.queues[queue].push_back(packet);
        let was_empty = self.filled & bit(queue) == 0;
        self.filled |= bit(queue);
        was_empty
    }

    /// Takes the head of one.
    #[inline]
    pub(crate) fn pop(&mut self, queue: usize, now: NicTime) -> Option<Stored> {
        let packet = self.queues[queue].pop_front();
        match self.queues[queue].front_mut() {
            Some(head) => head.since = now,
            None => self.filled &= !bit(queue),
        }
        packet
    }
}

/// The set of one queue.
#[inline]
pub(crate) const fn bit(queue: usize) -> Set {
    1 << queue
}

/// The members of a set.
#[inline]
pub(crate) fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros();
        (first < Set::BITS).then(|| {
            set &= set - 1;
            first as usize
        })
    })
}
