//! The choice of how a message travels: made once for each, by what each way costs.
//!
//! A cost is a number of bytes: as much as the receiver's copy of so many. What a way needs besides
//! copies (an exchange of heads, a receive that is announced) is stated by each transport in the
//! same unit.

/// How a message travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Without a payload: its head is all.
    Inline,
    /// With its head, into a buffer of the receiver's if its receive is not posted.
    Eager,
    /// Straight into its receive, which the sender has asked for.
    Rendezvous,
    /// Straight into its receive, which the receiver has announced.
    Written,
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// A message of a collective: both ends know its length and tag before it is sent.
    Agreed,
    /// A message of a program, which may be longer or shorter than its receive.
    User,
}

/// What a link and the receiver at its end offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Longest message, in bytes, that the receiver keeps buffers for.
    pub buffer: u64,
    /// What an exchange of heads costs; `u64::MAX`: more than any copy.
    pub asking: u64,
    /// What it costs to announce a receive that the peer writes. `None`: the link has none.
    pub announcing: Option<u64>,
}

/// What one protocol would cost for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The protocol.
    pub protocol: Protocol,
    /// In bytes copied; `None`: the message cannot travel so.
    pub cost: Option<u64>,
}

impl Protocol {
    /// All of them. Of two that cost the same the first is chosen.
    pub const ALL: [Protocol; 4] = [
        Protocol::Inline,
        Protocol::Eager,
        Protocol::Rendezvous,
        Protocol::Written,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Inline => "inline",
            Protocol::Eager => "eager",
            Protocol::Rendezvous => "rendezvous",
            Protocol::Written => "written",
        }
    }

    /// What a message of `len` bytes costs, when the receiver has a buffer free.
    #[inline]
    pub fn cost(self, terms: &Terms, len: u64, traffic: Traffic) -> Option<u64> {
        match self {
            Protocol::Inline => (len == 0).then_some(0),
            Protocol::Eager => (len <= terms.buffer).then_some(len),
            Protocol::Rendezvous => Some(terms.asking),
            // A receive of user messages may meet any of them, so it is announced to no sender.
            Protocol::Written => terms.announcing.filter(|_| traffic == Traffic::Agreed),
        }
    }
}

impl Terms {
    /// The protocol of a message. Without a free buffer (`credit`) a message that would be eager
    /// goes by rendezvous: its receiver, which does not know that, has announced no receive.
    #[inline]
    pub fn choose(&self, len: u64, traffic: Traffic, credit: bool) -> Protocol {
        let possible = Protocol::ALL.into_iter();
        let costs = possible.filter_map(|p| Some((p.cost(self, len, traffic)?, p)));
        // The first of equals.
        let best = costs.min_by_key(|(cost, _)| *cost);
        match best.map_or(Protocol::Rendezvous, |(_, p)| p) {
            Protocol::Eager if !credit => Protocol::Rendezvous,
            protocol => protocol,
        }
    }

    /// Whether a receive of an agreed message is announced to its sender.
    #[inline]
    pub(super) fn announces(&self, len: u64) -> bool {
        self.announcing.is_some() && self.choose(len, Traffic::Agreed, true) == Protocol::Written
    }

    /// What each protocol would cost a message, in the order of [`Protocol::ALL`].
    pub fn candidates(&self, len: u64, traffic: Traffic) -> [Candidate; 4] {
        Protocol::ALL.map(|protocol| Candidate {
            protocol,
            cost: protocol.cost(self, len, traffic),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACKETS: Terms = Terms {
        buffer: 64 << 10,
        asking: u64::MAX,
        announcing: Some(32 << 10),
    };
    const ONE_HOST: Terms = Terms {
        buffer: 64 << 10,
        asking: 8 << 10,
        announcing: None,
    };

    #[test]
    fn lengths_around_each_threshold_take_the_cheapest_way() {
        let on = |terms: Terms, traffic| move |len| terms.choose(len, traffic, true).name();
        let agreed = on(PACKETS, Traffic::Agreed);
        let lens = [0, 1, 32 << 10, (32 << 10) + 1, 1 << 30];
        let ways = ["inline", "eager", "eager", "written", "written"];
        assert_eq!(lens.map(agreed), ways);
        let user = on(PACKETS, Traffic::User);
        let lens = [0, (32 << 10) + 1, 64 << 10, (64 << 10) + 1];
        assert_eq!(lens.map(user), ["inline", "eager", "eager", "rendezvous"]);
        let local = on(ONE_HOST, Traffic::Agreed);
        let lens = [0, 8 << 10, (8 << 10) + 1, 1 << 20];
        assert_eq!(
            lens.map(local),
            ["inline", "eager", "rendezvous", "rendezvous"]
        );
        // No buffers, of a communicator with `eager_max` 0.
        let none = on(
            Terms {
                buffer: 0,
                ..PACKETS
            },
            Traffic::Agreed,
        );
        assert_eq!([0, 1, 1 << 20].map(none), ["inline", "written", "written"]);
    }

    proptest! {
        /// The rule that both ends followed before costs were stated, for transports whose
        /// receives can be announced or whose exchange has a cost.
        #[test]
        fn costs_choose_as_thresholds_did(
            len in prop_oneof![Just(0), 1..200_000_u64],
            buffer in prop_oneof![Just(0), 1..200_000_u64],
            limit in 1..200_000_u64,
            exposes: bool,
            is_agreed: bool,
            credit: bool,
        ) {
            let (asking, announcing) = match exposes {
                true => (u64::MAX, Some(limit)),
                false => (limit, None),
            };
            let traffic = if is_agreed { Traffic::Agreed } else { Traffic::User };
            let terms = Terms { buffer, asking, announcing };
            let eager_max = buffer.min(asking);
            let written = is_agreed && announcing.is_some_and(|n| len > n.min(eager_max));
            let expected = if len == 0 {
                Protocol::Inline
            } else if written {
                Protocol::Written
            } else if len <= eager_max && credit {
                Protocol::Eager
            } else {
                Protocol::Rendezvous
            };
            prop_assert_eq!(terms.choose(len, traffic, credit), expected);
            prop_assert_eq!(terms.announces(len) && is_agreed, expected == Protocol::Written);
            // The chosen one costs no more than any that is possible.
            let all = terms.candidates(len, traffic);
            let cost = |p| all.iter().find(|c| c.protocol == p).and_then(|c| c.cost);
            let least = all.iter().filter_map(|c| c.cost).min();
            prop_assert!(!credit || cost(expected) == least);
        }
    }
}
