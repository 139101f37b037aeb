//! Patience with packets that others have overtaken (RACK, RFC 8985 §6.2).
//!
//! A network that sends the packets of a connection over several ways delivers some of them late.
//! They are not lost, and to send them again would cost as much as a loss. So an overtaken packet
//! is waited for, once it was seen that packets arrive late: for a round trip from its leaving on,
//! and a part of another. The part grows by a quarter with each round in which a packet was sent
//! again and had arrived all the same. After 16 rounds of true losses all is as at first. Where
//! packets are known to take several ways, late ones are expected from the beginning.

/// Rounds of losses after which reordering is forgotten (RFC 8985 §6.2.4).
const FORGOTTEN_AFTER: u32 = 16;
/// Most quarters of a round trip.
const QUARTERS_MAX: u64 = 8;

/// Measured round trips in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoundTrip {
    pub(super) mean: u64,
    pub(super) least: u64,
}

/// How long an overtaken packet is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As many packets as overtake it say that it is lost.
    Packets,
    /// Nanoseconds from its leaving on.
    Time(u64),
    /// It is, but no round trip was measured that says how long.
    Unmeasured,
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Reordering {
    /// Packets take several ways, so that some are always late.
    is_expected: bool,
    /// Quarters of a round trip to wait; 0: no packet was seen to arrive late.
    quarters: u64,
    /// Packets that had left when the quarters, or the rounds of losses, last changed.
    changed: u64,
    /// Rounds of losses since the quarters last grew.
    losses: u32,
}

impl Reordering {
    /// Of packets that take several ways.
    pub(super) fn expected() -> Reordering {
        Reordering {
            is_expected: true,
            quarters: 1,
            ..Reordering::default()
        }
    }

    /// A packet has arrived that others had overtaken, of `left`.
    pub(super) fn saw_late(&mut self, left: u64) {
        if self.quarters == 0 {
            (self.quarters, self.changed) = (1, left);
        }
        self.losses = 0;
    }

    /// A packet has arrived that was taken for lost, when `arrived` of `left` had.
    pub(super) fn saw_needless(&mut self, arrived: u64, left: u64) {
        self.losses = 0;
        if self.quarters == 0 || arrived >= self.changed {
            self.quarters = (self.quarters + 1).min(QUARTERS_MAX);
            self.changed = left;
        }
    }

    /// Packets are taken for lost, when `arrived` of `left` have arrived.
    pub(super) fn lost(&mut self, arrived: u64, left: u64) {
        if self.quarters == 0 || arrived < self.changed {
            return;
        }
        self.changed = left;
        self.losses += 1;
        if self.losses > FORGOTTEN_AFTER {
            *self = match self.is_expected {
                true => Reordering::expected(),
                false => Reordering::default(),
            };
        }
    }

    /// How long an overtaken packet is waited for, by round trips.
    pub(super) fn patience(&self, measured: Option<RoundTrip>) -> Patience {
        match (self.quarters, measured) {
            (1.., Some(RoundTrip { mean, least })) => {
                Patience::Time(mean + self.quarters * least / 4)
            }
            _ if self.is_expected => Patience::Unmeasured,
            _ => Patience::Packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: Option<RoundTrip> = Some(RoundTrip {
        mean: 100,
        least: 40,
    });

    #[test]
    fn patience_grows_once_in_a_round_and_is_lost_after_many_losses() {
        let mut r = Reordering::default();
        assert_eq!(r.patience(MEASURED), Patience::Packets);
        r.saw_late(10);
        assert_eq!(r.patience(MEASURED), Patience::Time(110));
        assert_eq!(r.patience(None), Patience::Packets);
        // Of the same round, then of the next.
        r.saw_needless(9, 12);
        assert_eq!(r.patience(MEASURED), Patience::Time(110));
        r.saw_needless(10, 20);
        r.saw_needless(19, 30);
        assert_eq!(r.patience(MEASURED), Patience::Time(120));
        for round in 1..100 {
            r.saw_needless(100 * round, 100 * round + 50);
        }
        assert_eq!(r.patience(MEASURED), Patience::Time(180));
        for round in 100..116 {
            r.lost(100 * round, 100 * round + 50);
            r.lost(100 * round, 100 * round + 50);
        }
        assert_eq!(r.patience(MEASURED), Patience::Time(180));
        r.lost(20_000, 20_001);
        assert_eq!(r.patience(MEASURED), Patience::Packets);
        r.lost(30_000, 30_001);
        assert_eq!(r.losses, 0);
    }

    #[test]
    fn what_takes_several_ways_is_waited_for_from_the_beginning_and_after_any_losses() {
        let mut r = Reordering::expected();
        assert_eq!(r.patience(None), Patience::Unmeasured);
        assert_eq!(r.patience(MEASURED), Patience::Time(110));
        for round in 0..100 {
            r.lost(100 * round, 100 * round + 50);
        }
        assert_eq!(r.patience(MEASURED), Patience::Time(110));
    }
}
