//! The sending side of a wire: packets until they are confirmed, and the credit of each channel.

use std::collections::VecDeque;

use ringbell_net::NicTime;

use crate::buffers::{Pool, Stored};

/// Time until packets that are not confirmed are sent again, at first: 5 ms. It doubles up to
/// [`AGAIN_MAX_NS`].
const AGAIN_NS: u64 = 5_000_000;
/// Longest such time: 64 ms.
const AGAIN_MAX_NS: u64 = 64_000_000;

/// Packets that a channel may carry, counted since the wire came up.
#[derive(Debug, Clone, Copy, Default)]
struct Credit {
    used: u32,
    limit: u32,
}

/// Packets on their way to the other end.
#[derive(Debug)]
pub(crate) struct Sending {
    /// The number of the next packet.
    next: u32,
    /// Those before it that the other end has not confirmed, the oldest first.
    unconfirmed: VecDeque<Stored>,
    /// How many of these are on the wire; the others wait for it.
    on_wire: usize,
    credits: Vec<Credit>,
    depth: u32,
    /// When they are sent again.
    timer: Option<NicTime>,
    again_ns: u64,
}

impl Sending {
    pub(crate) fn new(channels: usize, depth: u32) -> Sending {
        Sending {
            next: 0,
            unconfirmed: VecDeque::new(),
            on_wire: 0,
            credits: vec![Credit::default(); channels],
            depth,
            timer: None,
            again_ns: AGAIN_NS,
        }
    }

    /// Begins anew, as a wire that has come up; packets that were not confirmed are lost.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        for packet in self.unconfirmed.drain(..) {
            pool.give(packet);
        }
        let channels = self.credits.len();
        *self = Sending {
            unconfirmed: std::mem::take(&mut self.unconfirmed),
            ..Sending::new(channels, self.depth)
        };
    }

    /// Slots that are free at the other end.
    #[inline]
    pub(crate) fn free(&self, channel: usize) -> u32 {
        let Credit { used, limit } = self.credits[channel];
        limit.wrapping_sub(used)
    }

    /// Whether every packet is on the wire: then it takes another one.
    #[inline]
    pub(crate) fn takes(&self) -> bool {
        self.on_wire == self.unconfirmed.len()
    }

    /// Takes a packet for a channel that has credit; the next one that is put on the wire.
    #[inline]
    pub(crate) fn push(&mut self, now: NicTime, channel: usize, packet: Stored) {
        self.credits[channel].used = self.credits[channel].used.wrapping_add(1);
        if self.unconfirmed.is_empty() {
            self.again_ns = AGAIN_NS;
            self.timer = Some(NicTime(now.0 + AGAIN_NS));
        }
        self.unconfirmed.push_back(packet);
        self.next = self.next.wrapping_add(1);
    }

    /// The packet that is to be put on the wire next, and its number.
    #[inline]
    pub(crate) fn pending(&mut self) -> Option<(&mut Stored, u32)> {
        let number = self.number(self.on_wire);
        let packet = self.unconfirmed.get_mut(self.on_wire)?;
        Some((packet, number))
    }

    /// It is on the wire.
    #[inline]
    pub(crate) fn sent(&mut self) {
        self.on_wire += 1;
    }

    /// The number of a packet by its place.
    fn number(&self, place: usize) -> u32 {
        let left = self.unconfirmed.len().saturating_sub(place);
        self.next.wrapping_sub(left as u32)
    }

    /// The other end expects the packet of this number next.
    ///
    /// # Errors
    /// It was not sent: the other end is broken.
    #[inline]
    pub(crate) fn confirm(
        &mut self,
        now: NicTime,
        expected: u32,
        pool: &mut Pool,
    ) -> Result<(), &'static str> {
        let first = self.number(0);
        let confirmed = expected.wrapping_sub(first);
        if confirmed == 0 {
            return Ok(());
        }
        if confirmed as usize > self.unconfirmed.len() {
            // An older head, overtaken on the way.
            return match first.wrapping_sub(expected) {
                0..=0x7fff_ffff => Ok(()),
                _ => Err("it confirms packets that were not sent"),
            };
        }
        for packet in self.unconfirmed.drain(..confirmed as usize) {
            pool.give(packet);
        }
        self.on_wire = self.on_wire.saturating_sub(confirmed as usize);
        self.again_ns = AGAIN_NS;
        let waits = !self.unconfirmed.is_empty();
        self.timer = waits.then_some(NicTime(now.0 + AGAIN_NS));
        Ok(())
    }

    /// A channel may carry so many packets in all.
    ///
    /// # Errors
    /// More than the other end has slots.
    #[inline]
    pub(crate) fn limit(&mut self, channel: usize, limit: u32) -> Result<(), &'static str> {
        let credit = &mut self.credits[channel];
        let more = limit.wrapping_sub(credit.limit);
        // An older head, overtaken on the way.
        if more > u32::MAX / 2 {
            return Ok(());
        }
        if limit.wrapping_sub(credit.used) > self.depth {
            return Err("it gives more credit than a channel has slots");
        }
        credit.limit = limit;
        Ok(())
    }

    /// The other end misses packets: all that it has not confirmed are sent again. Returns how
    /// many were on the wire.
    pub(crate) fn again(&mut self) -> usize {
        std::mem::take(&mut self.on_wire)
    }

    /// Whether packets are to be sent again because nothing confirmed them in time.
    pub(crate) fn is_late(&mut self, now: NicTime) -> bool {
        let is_late = self.timer.is_some_and(|t| t <= now);
        if is_late {
            self.again_ns = (2 * self.again_ns).min(AGAIN_MAX_NS);
            self.timer = Some(NicTime(now.0 + self.again_ns));
        }
        is_late
    }

    /// When to look again.
    pub(crate) fn timer(&self) -> Option<NicTime> {
        self.timer
    }
}
