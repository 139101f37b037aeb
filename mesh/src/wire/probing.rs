//! Questions to the other end of a wire: whether it is there, and what credit it gives.
//!
//! A wire on which nothing comes for half of the longest silence is probed. So a dead neighbour is
//! noticed even while no packet goes to it. Credits may be lost on their way: an end that has
//! packets for a channel and no credit asks again.

use ringbell_net::NicTime;

/// Time after which missing credit is asked for: 2 ms.
const STARVED_NS: u64 = 2_000_000;

/// When the other end was heard and asked.
#[derive(Debug)]
pub(super) struct Probing {
    /// Longest silence.
    silence_ns: u64,
    heard: NicTime,
    /// The first question since, and the last one.
    asked: Option<(NicTime, NicTime)>,
    /// Since when a packet waits for credit, or since it was asked for last.
    starved: Option<NicTime>,
}

impl Probing {
    pub(super) fn new(silence_ns: u64) -> Probing {
        Probing {
            silence_ns,
            heard: NicTime(0),
            asked: None,
            starved: None,
        }
    }

    /// Longest silence, in milliseconds.
    pub(super) fn silence_ms(&self) -> u64 {
        self.silence_ns / 1_000_000
    }

    /// A frame of the other end has come.
    #[inline]
    pub(super) fn heard(&mut self, now: NicTime) {
        self.heard = now;
        self.asked = None;
    }

    /// Whether the other end was asked for long enough.
    pub(super) fn is_lost(&self, now: NicTime) -> bool {
        let longest = self.silence_ns / 2;
        self.asked
            .is_some_and(|(first, _)| now.0.saturating_sub(first.0) >= longest)
    }

    /// Whether to ask now; `starved`: a packet waits for credit.
    #[inline]
    pub(super) fn asks(&mut self, now: NicTime, starved: bool) -> bool {
        let mut asks = false;
        match starved {
            true => {
                let since = self.starved.get_or_insert(now);
                if now.0 - since.0 >= STARVED_NS {
                    *since = now;
                    asks = true;
                }
            }
            false => self.starved = None,
        }
        if self.next_question() <= now {
            let first = self.asked.map_or(now, |(first, _)| first);
            self.asked = Some((first, now));
            asks = true;
        }
        asks
    }

    fn next_question(&self) -> NicTime {
        NicTime(match self.asked {
            None => self.heard.0 + self.silence_ns / 2,
            Some((_, last)) => last.0 + self.silence_ns / 8,
        })
    }

    /// When to ask.
    pub(super) fn timer(&self) -> NicTime {
        let starved = self.starved.map(|since| NicTime(since.0 + STARVED_NS));
        let question = self.next_question();
        starved.map_or(question, |s| s.min(question))
    }
}
