//! [`Queues`]: which message meets which receive, by MPI's rules.
//!
//! Both queues of a communicator are in order, of arrival and of posting; the first that fits is
//! taken, so messages of one sender do not overtake each other.

use std::collections::{BTreeMap, VecDeque};

/// What a message is matched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    /// The communicator's number.
    pub(super) context: u64,
    /// Rank in the communicator.
    pub(super) source: u32,
    pub(super) tag: i32,
}

/// What a receive or a probe takes; `None`: any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) context: u64,
    pub(super) source: Option<u32>,
    pub(super) tag: Option<i32>,
}

impl Wanted {
    /// Whether it takes a message of its communicator.
    fn takes(&self, e: &Envelope) -> bool {
        self.source.is_none_or(|s| s == e.source) && self.tag.is_none_or(|t| t == e.tag)
    }
}

/// Receives without a message, and messages without a receive, by communicator.
#[derive(Debug)]
pub(super) struct Queues<R, M>(BTreeMap<u64, Pair<R, M>>);

/// Those of one communicator.
#[derive(Debug)]
struct Pair<R, M> {
    posted: VecDeque<(Wanted, R)>,
    arrived: VecDeque<(Envelope, M)>,
}

impl<R, M> Default for Queues<R, M> {
    fn default() -> Queues<R, M> {
        Queues(BTreeMap::new())
    }
}

impl<R, M> Default for Pair<R, M> {
    fn default() -> Pair<R, M> {
        Pair {
            posted: VecDeque::new(),
            arrived: VecDeque::new(),
        }
    }
}

impl<R, M> Queues<R, M> {
    /// The receive that a message meets, taken out.
    pub(super) fn meet(&mut self, message: &Envelope) -> Option<R> {
        let posted = &mut self.0.get_mut(&message.context)?.posted;
        let at = posted.iter().position(|(w, _)| w.takes(message))?;
        posted.remove(at).map(|(_, r)| r)
    }

    /// Keeps a message that met none. Its communicator may not be known here yet.
    pub(super) fn keep(&mut self, envelope: Envelope, message: M) {
        let pair = self.0.entry(envelope.context).or_default();
        pair.arrived.push_back((envelope, message));
    }

    /// The first message for a receive or a matched probe, taken out.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, M)> {
        let arrived = &mut self.0.get_mut(&wanted.context)?.arrived;
        let at = arrived.iter().position(|(e, _)| wanted.takes(e))?;
        arrived.remove(at)
    }

    /// Keeps a receive that met no message.
    pub(super) fn post(&mut self, wanted: Wanted, receive: R) {
        let pair = self.0.entry(wanted.context).or_default();
        pair.posted.push_back((wanted, receive));
    }

    /// The first message for a probe.
    pub(super) fn look(&self, wanted: &Wanted) -> Option<(&Envelope, &M)> {
        let arrived = &self.0.get(&wanted.context)?.arrived;
        let found = arrived.iter().find(|(e, _)| wanted.takes(e));
        found.map(|(e, m)| (e, m))
    }

    /// Takes out the receives for which this says so.
    pub(super) fn withdraw(&mut self, mut which: impl FnMut(&R) -> bool) -> Vec<R> {
        let mut out = Vec::new();
        for pair in self.0.values_mut() {
            for _ in 0..pair.posted.len() {
                let Some((wanted, receive)) = pair.posted.pop_front() else {
                    break;
                };
                if which(&receive) {
                    out.push(receive);
                } else {
                    pair.posted.push_back((wanted, receive));
                }
            }
        }
        out
    }

    /// Lets go of empty queues of communicators that are not in use.
    pub(super) fn prune(&mut self, in_use: impl Fn(u64) -> bool) {
        self.0
            .retain(|id, p| in_use(*id) || !p.posted.is_empty() || !p.arrived.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn wanted(source: Option<u32>, tag: Option<i32>) -> Wanted {
        Wanted {
            context: 4,
            source,
            tag,
        }
    }

    const fn of(source: u32, tag: i32) -> Envelope {
        Envelope {
            context: 4,
            source,
            tag,
        }
    }

    #[test]
    fn messages_of_one_sender_do_not_overtake_each_other() {
        let mut q = Queues::<(), u32>::default();
        for (i, e) in [of(1, 5), of(2, 5), of(1, 6), of(1, 5)].iter().enumerate() {
            assert!(q.meet(e).is_none());
            q.keep(*e, i as u32);
        }
        assert_eq!(q.look(&wanted(None, Some(6))), Some((&of(1, 6), &2)));
        assert_eq!(q.take(&wanted(Some(1), Some(5))), Some((of(1, 5), 0)));
        assert_eq!(q.take(&wanted(Some(1), None)), Some((of(1, 6), 2)));
        assert_eq!(q.take(&wanted(None, Some(5))), Some((of(2, 5), 1)));
        assert_eq!(q.take(&wanted(Some(2), None)), None);
        assert_eq!(q.take(&wanted(None, None)), Some((of(1, 5), 3)));
    }

    #[test]
    fn a_message_meets_the_receive_that_was_posted_first() {
        let mut q = Queues::<u32, ()>::default();
        q.post(wanted(Some(2), None), 0);
        q.post(wanted(None, Some(7)), 1);
        q.post(wanted(Some(1), Some(7)), 2);
        q.post(wanted(None, None), 3);
        assert_eq!(q.withdraw(|r| *r == 3), [3]);
        assert_eq!(q.meet(&of(1, 8)), None);
        assert_eq!(q.meet(&of(1, 7)), Some(1));
        assert_eq!(q.meet(&of(1, 7)), Some(2));
        assert_eq!(q.meet(&of(2, 7)), Some(0));
        assert_eq!(q.meet(&of(2, 7)), None);
    }

    #[test]
    fn messages_meet_receives_of_their_communicator_only() {
        let mut q = Queues::<u32, u32>::default();
        let other = Envelope {
            context: 5,
            ..of(1, 7)
        };
        q.post(wanted(None, None), 0);
        assert_eq!(q.meet(&other), None);
        q.keep(other, 9);
        assert_eq!(q.take(&wanted(None, None)), None);
        assert!(q.look(&wanted(Some(1), Some(7))).is_none());
        // What is not empty stays.
        q.prune(|_| false);
        let wanted = Wanted {
            context: 5,
            ..wanted(None, Some(7))
        };
        assert_eq!(q.take(&wanted), Some((other, 9)));
        assert_eq!(q.meet(&of(3, 3)), Some(0));
        q.prune(|id| id == 4);
        assert_eq!(q.0.keys().collect::<Vec<_>>(), [&4]);
    }
}
