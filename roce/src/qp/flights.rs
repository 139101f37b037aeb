//! Packets in flight: which have arrived, which are lost.
//!
//! One entry for each packet number from the oldest that is not acknowledged to the last that was
//! sent. Numbers of a READ behind its request stand for packets of its answer, which are not ours
//! to send.
//!
//! **Lost.** A peer with selective repeat reports which packets have arrived. A packet is lost when
//! one that left [`REORDERED`] or more packets later has arrived, or the last that left (RFC 8985
//! §6.2 has time in place of numbers). Without selective repeat all packets behind a gap are lost.

use std::collections::VecDeque;

use ringbell_net::wire::roce::Psn;

/// Packets that may overtake another without its being lost (RFC 5681 §3.2 waits for three
/// duplicates).
const REORDERED: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// On its way; it was packet number `0` to leave.
    Sent(u64),
    Arrived,
    Lost,
    /// Of an answer.
    Answer,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Flights {
    entries: VecDeque<State>,
    /// The number of the first entry.
    first: Psn,
    /// Packets that have left, repeated ones included.
    left: u64,
    /// The last of them that has arrived.
    arrived: u64,
    lost: usize,
    /// No entry before this one is lost.
    lost_from: usize,
    on_the_way: u32,
}

impl Flights {
    pub(super) fn new(first: Psn) -> Flights {
        Flights {
            entries: VecDeque::new(),
            first,
            left: 0,
            arrived: 0,
            lost: 0,
            lost_from: 0,
            on_the_way: 0,
        }
    }

    /// The oldest number that is not acknowledged.
    pub(super) fn first(&self) -> Psn {
        self.first
    }

    /// The number behind the last that was sent.
    pub(super) fn end(&self) -> Psn {
        // Far fewer than there are numbers.
        self.first.plus(self.entries.len() as u32)
    }

    /// Packets that have left and not arrived, as far as is known.
    pub(super) fn on_the_way(&self) -> u32 {
        self.on_the_way
    }

    /// Numbers in flight.
    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    fn set(&mut self, index: usize, to: State) {
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        let from = std::mem::replace(entry, to);
        let is_sent = |s| matches!(s, State::Sent(_));
        self.on_the_way += u32::from(is_sent(to));
        self.on_the_way -= u32::from(is_sent(from));
        self.lost += usize::from(to == State::Lost);
        self.lost -= usize::from(from == State::Lost);
        if to == State::Lost {
            self.lost_from = self.lost_from.min(index);
        }
    }

    /// A packet leaves that stands for so many numbers; for the first time if it is the next.
    pub(super) fn leaves(&mut self, psn: Psn, numbers: u32) {
        let index = psn.distance(self.first).unsigned_abs() as usize;
        if index == self.entries.len() {
            self.entries.resize(index + numbers as usize, State::Answer);
        }
        self.left += 1;
        self.set(index, State::Sent(self.left));
    }

    /// The oldest packet that is lost.
    pub(super) fn lost(&mut self) -> Option<Psn> {
        if self.lost == 0 {
            return None;
        }
        let more = self.entries.range(self.lost_from..);
        self.lost_from += more.take_while(|&&s| s != State::Lost).count();
        Some(self.first.plus(self.lost_from as u32))
    }

    /// Everything before `to` has arrived.
    pub(super) fn advance(&mut self, to: Psn) {
        let n = to.distance(self.first).max(0) as usize;
        for index in 0..n.min(self.entries.len()) {
            if let State::Sent(number) = self.entries[index] {
                self.arrived = self.arrived.max(number);
            }
            self.set(index, State::Arrived);
        }
        self.entries.drain(..n.min(self.entries.len()));
        self.lost_from = self.lost_from.saturating_sub(n);
        self.first = to;
    }

    /// A packet has arrived before others.
    pub(super) fn arrived(&mut self, psn: Psn) {
        let index = psn.distance(self.first);
        let Some(&State::Sent(number)) = usize::try_from(index)
            .ok()
            .and_then(|i| self.entries.get(i))
        else {
            return;
        };
        self.arrived = self.arrived.max(number);
        self.set(index as usize, State::Arrived);
    }

    /// Finds what is lost by what has arrived among the first `n` numbers. Returns how many
    /// packets.
    pub(super) fn find_lost(&mut self, n: usize) -> u64 {
        let mut found = 0;
        for index in 0..n.min(self.entries.len()) {
            let is_overtaken = |k| self.arrived >= self.left.min(k + REORDERED);
            if matches!(self.entries[index], State::Sent(k) if k < self.arrived && is_overtaken(k))
            {
                self.set(index, State::Lost);
                found += 1;
            }
        }
        found
    }

    /// The oldest packet is lost; it may ask for the rest of an answer.
    pub(super) fn lose_first(&mut self) {
        self.set(0, State::Lost);
    }

    /// All packets that have not arrived are lost. Returns how many.
    pub(super) fn lose_all(&mut self) -> u64 {
        let before = self.lost;
        for index in 0..self.entries.len() {
            if matches!(self.entries[index], State::Sent(_)) {
                self.set(index, State::Lost);
            }
        }
        (self.lost - before) as u64
    }
}
