//! Packets in flight: which have arrived, which are lost.
//!
//! One entry for each packet number from the oldest that is not acknowledged to the last that was
//! sent. Numbers of a READ behind its request stand for packets of its answer, which are not ours
//! to send.
//!
//! **Lost.** A peer with selective repeat reports which packets have arrived. A packet is lost when
//! one that left [`REORDERED`] or more packets later has arrived, or the last that left. Once
//! packets were seen to arrive late, time decides in place of numbers ([`reordering`]). Without
//! selective repeat all packets behind a gap are lost.
//!
//! [`reordering`]: super::reordering

use std::collections::VecDeque;

use ringbell_net::wire::roce::Psn;
use ringbell_net::NicTime;

use super::reordering::{Patience, Reordering, RoundTrip};

/// Packets that may overtake another without its being lost (RFC 5681 §3.2 waits for three
/// duplicates).
const REORDERED: u64 = 3;

/// When a packet has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leaving {
    /// It was the packet of this number to leave.
    number: u64,
    at: NicTime,
    /// It had left before.
    again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// On its way.
    Sent(Leaving),
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
    /// The last of those that had not left before.
    newest: u64,
    /// The packet that has left once more without being taken for lost.
    probed: Option<Psn>,
    reordering: Reordering,
    /// When the next packet that was overtaken is lost.
    overtaken: Option<NicTime>,
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
            newest: 0,
            probed: None,
            reordering: Reordering::default(),
            overtaken: None,
            lost: 0,
            lost_from: 0,
            on_the_way: 0,
        }
    }

    /// Bytes of memory for more packets than are in flight.
    pub(super) fn spare(&self) -> usize {
        (self.entries.capacity() - self.entries.len()) * size_of::<State>()
    }

    /// Gives them back.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Packets will overtake each other.
    pub(super) fn expect_overtaken(&mut self) {
        self.reordering = Reordering::expected();
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
    pub(super) fn leaves(&mut self, psn: Psn, numbers: u32, now: NicTime) {
        let index = psn.distance(self.first).unsigned_abs() as usize;
        let again = index != self.entries.len();
        if !again {
            self.entries.resize(index + numbers as usize, State::Answer);
        }
        self.left += 1;
        let leaving = Leaving {
            number: self.left,
            at: now,
            again,
        };
        self.set(index, State::Sent(leaving));
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
    pub(super) fn advance(&mut self, to: Psn, now: NicTime, measured: Option<RoundTrip>) {
        let n = to.distance(self.first).max(0) as usize;
        for index in 0..n.min(self.entries.len()) {
            self.has_arrived(index, now, measured);
        }
        self.entries.drain(..n.min(self.entries.len()));
        self.lost_from = self.lost_from.saturating_sub(n);
        self.first = to;
    }

    /// A packet has arrived before others.
    pub(super) fn arrived(&mut self, psn: Psn, now: NicTime, measured: Option<RoundTrip>) {
        let index = psn.distance(self.first);
        if let Some(index) = usize::try_from(index)
            .ok()
            .filter(|i| *i < self.entries.len())
        {
            self.has_arrived(index, now, measured);
        }
    }

    fn has_arrived(&mut self, index: usize, now: NicTime, measured: Option<RoundTrip>) {
        let is_probed = self.probed == Some(self.first.plus(index as u32));
        match self.entries[index] {
            // Its first copy was slow, or lost: nothing says which.
            State::Sent(Leaving { number, .. }) if is_probed => {
                self.probed = None;
                self.arrived = self.arrived.max(number);
            }
            _ if is_probed => self.probed = None,
            State::Sent(Leaving { number, again, at }) => {
                // What has left so shortly before cannot be what has arrived; short packets may
                // be faster than what was measured.
                let shortly = measured.is_some_and(|m| now.0 < at.0 + m.least / 4 * 3);
                match again {
                    true if shortly => self.reordering.saw_needless(self.arrived, self.left),
                    true => {}
                    // A report of the newest named all before it that had arrived.
                    false if number < self.newest => self.reordering.saw_late(self.left),
                    false => self.newest = number,
                }
                self.arrived = self.arrived.max(number);
            }
            State::Lost => self.reordering.saw_needless(self.arrived, self.left),
            State::Arrived | State::Answer => {}
        }
        if self.entries[index] != State::Answer {
            self.set(index, State::Arrived);
        }
    }

    /// When [`find_lost`](Flights::find_lost) may find more although nothing arrives.
    pub(super) fn overtaken(&self) -> Option<NicTime> {
        self.overtaken
    }

    /// Finds what is lost by what has arrived among the first `n` numbers. Returns how many
    /// packets.
    pub(super) fn find_lost(&mut self, n: usize, now: NicTime, measured: Option<RoundTrip>) -> u64 {
        let patience = self.reordering.patience(measured);
        let mut found = 0;
        self.overtaken = None;
        for index in 0..n.min(self.entries.len()) {
            let State::Sent(Leaving { number, at, .. }) = self.entries[index] else {
                continue;
            };
            if number >= self.arrived {
                continue;
            }
            let due = |ns| NicTime(at.0 + ns);
            let is_lost = match patience {
                Patience::Packets => self.arrived >= self.left.min(number + REORDERED),
                Patience::Time(ns) => due(ns) <= now,
                // A probe or the time-out asks again.
                Patience::Unmeasured => false,
            };
            if is_lost {
                self.set(index, State::Lost);
                found += 1;
            } else if let Patience::Time(ns) = patience {
                self.overtaken = Some(self.overtaken.map_or(due(ns), |o| o.min(due(ns))));
            }
        }
        if found > 0 {
            self.reordering.lost(self.arrived, self.left);
        }
        found
    }

    /// The last packet that is on its way.
    pub(super) fn last(&self) -> Option<Psn> {
        let is_sent = |s: &State| matches!(s, State::Sent(_));
        let index = self.entries.iter().rposition(is_sent)?;
        Some(self.first.plus(index as u32))
    }

    /// Whether a packet was probed, and has not arrived.
    pub(super) fn is_probe(&self, psn: Psn) -> bool {
        self.probed == Some(psn)
    }

    /// A packet leaves once more, so that the peer says what it lacks.
    pub(super) fn probe(&mut self, psn: Psn) {
        self.probed = Some(psn);
        self.set(
            psn.distance(self.first).unsigned_abs() as usize,
            State::Lost,
        );
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
