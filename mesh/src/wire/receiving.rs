//! The receiving side of a wire: the order of packets, free slots, and when to report them.

use ringbell_net::NicTime;

/// Longest time until credits and confirmations are told where no packet carries them: 200 µs.
const TELL_NS: u64 = 200_000;
/// So many packets are confirmed at once.
const CONFIRM: u32 = 16;

/// Slots of a channel.
#[derive(Debug, Clone, Copy, Default)]
struct Slots {
    /// Packets taken since the wire came up.
    received: u32,
    /// Packets that still stand here.
    held: u32,
    /// What the other end was told as the limit.
    told: u32,
}

/// What a packet is to the receiving side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The next one.
    Next,
    /// One that has come before.
    Old,
    /// A later one: others are missing.
    Later,
    /// The channel has no slot for it.
    Overrun,
}

/// Packets from the other end.
#[derive(Debug)]
pub(crate) struct Receiving {
    expected: u32,
    slots: Vec<Slots>,
    depth: u32,
    /// Packets that the other end does not know to have come.
    unconfirmed: u32,
    /// The number for which the other end was told that it is missing.
    missing: Option<u32>,
    /// The other end is to be told at once.
    urgent: bool,
    /// When it is to be told.
    due: Option<NicTime>,
}

impl Receiving {
    pub(crate) fn new(channels: usize, depth: u32) -> Receiving {
        Receiving {
            expected: 0,
            slots: vec![Slots::default(); channels],
            depth,
            unconfirmed: 0,
            missing: None,
            urgent: false,
            due: None,
        }
    }

    /// Begins anew, as a wire that has come up. Packets that stand here keep their slots.
    pub(crate) fn clear(&mut self) {
        let mut slots = std::mem::take(&mut self.slots);
        for slots in &mut slots {
            (slots.received, slots.told) = (0, 0);
        }
        *self = Receiving {
            slots,
            // The other end has no credit yet.
            urgent: true,
            ..Receiving::new(0, self.depth)
        };
    }

    /// Channels of the wire.
    pub(crate) fn channels(&self) -> usize {
        self.slots.len()
    }

    /// The number of the next packet.
    #[inline]
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Packets that the other end may send in a channel, in all.
    #[inline]
    pub(crate) fn limit(&self, channel: usize) -> u32 {
        let Slots { received, held, .. } = self.slots[channel];
        (received.wrapping_add(self.depth)).wrapping_sub(held)
    }

    /// A packet has come; it is taken if it is the next one.
    #[inline]
    pub(crate) fn take(&mut self, now: NicTime, channel: usize, number: u32) -> Order {
        let ahead = number.wrapping_sub(self.expected);
        if ahead != 0 {
            let is_old = ahead > u32::MAX / 2;
            // Told once for each number: the others behind the gap say nothing new.
            if is_old || self.missing != Some(self.expected) {
                self.urgent = true;
            }
            if is_old {
                return Order::Old;
            }
            self.missing.get_or_insert(self.expected);
            return Order::Later;
        }
        let slots = &mut self.slots[channel];
        if slots.held == self.depth {
            return Order::Overrun;
        }
        slots.received = slots.received.wrapping_add(1);
        slots.held += 1;
        self.expected = self.expected.wrapping_add(1);
        self.missing = None;
        self.unconfirmed += 1;
        if self.unconfirmed >= CONFIRM {
            self.urgent = true;
        }
        self.soon(now);
        Order::Next
    }

    /// A packet of a channel has left.
    #[inline]
    pub(crate) fn release(&mut self, now: NicTime, channel: usize) {
        self.slots[channel].held -= 1;
        let untold = self.limit(channel).wrapping_sub(self.slots[channel].told);
        if 2 * untold >= self.depth {
            self.urgent = true;
        }
        self.soon(now);
    }

    /// The other end asks: it is told at once.
    pub(crate) fn answer(&mut self) {
        self.urgent = true;
    }

    #[inline]
    fn soon(&mut self, now: NicTime) {
        self.due.get_or_insert(NicTime(now.0 + TELL_NS));
    }

    /// Whether the other end is to be told now.
    #[inline]
    pub(crate) fn is_due(&self, now: NicTime) -> bool {
        self.urgent || self.due.is_some_and(|t| t <= now)
    }

    /// When it is to be told at the latest.
    #[inline]
    pub(crate) fn timer(&self) -> Option<NicTime> {
        self.due
    }

    /// Whether packets are missing from [`expected`](Receiving::expected) on.
    pub(crate) fn misses(&self) -> bool {
        self.missing == Some(self.expected)
    }

    /// A packet of a channel tells the other end what has come, and that channel's limit.
    #[inline]
    pub(crate) fn told(&mut self, channel: usize) {
        self.unconfirmed = 0;
        self.slots[channel].told = self.limit(channel);
        let is_told = |c: usize| self.slots[c].told == self.limit(c);
        if self.missing.is_none() && (0..self.slots.len()).all(is_told) {
            self.urgent = false;
            self.due = None;
        }
    }

    /// A head of credits has told the other end everything.
    pub(crate) fn told_all(&mut self) {
        for channel in 0..self.slots.len() {
            self.slots[channel].told = self.limit(channel);
        }
        self.unconfirmed = 0;
        self.urgent = false;
        self.due = None;
    }
}
