//! The bytes of messages, and what of them was received.
//!
//! A rank's messages are pieces of one sequence of bytes that seed and rank give. The receiver
//! makes the same bytes again and compares them.

use std::collections::{HashMap, VecDeque};

use ringbell_nic_abi::Status;
use ringbell_nic_core::collective::Found;

use crate::random::mixed;

/// Words by which the pieces of two messages may be apart.
const PLACES: u64 = 1 << 13;
const WORD: u64 = 8;

/// Bytes of the sequence of a rank whose largest message has this many.
pub(super) fn source_bytes(largest: u64) -> u64 {
    match largest {
        0 => 0,
        n => n.next_multiple_of(WORD) + PLACES * WORD,
    }
}

/// Where in the sequence the message of a rank's operation begins.
pub(super) fn source_at(seed: u64, rank: usize, op: u32) -> u64 {
    mixed(!mixed(seed, rank as u64), op.into()) % PLACES * WORD
}

/// So many bytes of a rank's sequence, from a word on.
pub(super) fn bytes_of(seed: u64, rank: usize, at: u64, bytes: u64) -> Vec<u8> {
    let seed = mixed(seed, rank as u64);
    let words = at / WORD..(at + bytes).div_ceil(WORD);
    let mut all: Vec<u8> = words.flat_map(|i| mixed(seed, i).to_le_bytes()).collect();
    all.truncate(bytes as usize);
    all
}

/// Why nothing more happens here: how the communicator has ended, and with what detail.
pub(super) type Over = (Status, u64);

/// A message on its way: the operation that sends it, and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) op: u32,
    pub(super) bytes: u64,
}

/// Messages on their way, and what was received.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    seed: u64,
    /// By sender, receiver and tag: in the order of sending, in which they are to be received.
    sent: HashMap<(u32, u32, u32), VecDeque<Sent>>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) wrong: u64,
    /// Collectives that have ended, on each rank.
    pub(super) collectives: u64,
}

impl Ledger {
    pub(super) fn new(seed: u64) -> Ledger {
        Ledger {
            seed,
            ..Ledger::default()
        }
    }

    pub(super) fn sends(&mut self, (from, to, tag): (usize, u32, u32), sent: Sent) {
        let key = (from as u32, to, tag);
        self.sent.entry(key).or_default().push_back(sent);
    }

    /// The message that a receive of a rank must have met: the oldest of its sender and tag.
    pub(super) fn met(&mut self, rank: usize, found: &Found) -> Option<Sent> {
        let key = (found.from, rank as u32, found.tag);
        let queue = self.sent.get_mut(&key)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.sent.remove(&key);
        }
        first
    }

    /// Whether a message that no receive has met is on its way to a rank, and fits what one wants.
    pub(super) fn is_coming(&self, rank: usize, from: Option<u32>, tag: Option<u32>) -> bool {
        if let (Some(from), Some(tag)) = (from, tag) {
            return self.sent.contains_key(&(from, rank as u32, tag));
        }
        let fits = |key: &(u32, u32, u32)| {
            key.1 == rank as u32
                && from.is_none_or(|f| f == key.0)
                && tag.is_none_or(|t| t == key.2)
        };
        self.sent.keys().any(fits)
    }

    /// Compares what a receive got. Without `sent` no rank has sent such a message, and all bytes
    /// are wrong.
    pub(super) fn received(&mut self, from: u32, sent: Option<Sent>, got: &[u8]) {
        self.messages += 1;
        self.bytes += got.len() as u64;
        let Some(sent) = sent else {
            self.wrong += got.len() as u64;
            return;
        };
        let from = from as usize;
        let at = source_at(self.seed, from, sent.op);
        let wanted = bytes_of(self.seed, from, at, sent.bytes);
        let differ = got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        self.wrong += differ as u64 + sent.bytes.abs_diff(got.len() as u64);
    }

    /// A collective has ended on a rank, with so many wrong bytes.
    pub(super) fn reduced(&mut self, wrong: u64) {
        self.collectives += 1;
        self.wrong += wrong;
    }

    /// Messages that no receive has met: sender, and the operation that sent it.
    pub(super) fn left(&self) -> Vec<(usize, u32)> {
        let of = self.sent.iter();
        let all = of.flat_map(|(key, queue)| queue.iter().map(|s| (key.0 as usize, s.op)));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }
}
