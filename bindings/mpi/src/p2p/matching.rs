//! [`Queues`]: which message meets which receive, by MPI's rules.
//!
//! Both queues are in order, of arrival and of posting; the first that fits is taken, so messages of one sender do not overtake each other.

use std::collections::VecDeque;

/// What a message is matched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) source: u32,
    pub(super) tag: i32,
}

/// What a receive or a probe takes; `None`: any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) source: Option<u32>,
    pub(super) tag: Option<i32>,
}

impl Wanted {
    fn takes(&self, e: &Envelope) -> bool {
        self.source.is_none_or(|s| s == e.source) && self.tag.is_none_or(|t| t == e.tag)
    }
}

/// Receives without a message, and messages without a receive.
#[derive(Debug)]
pub(super) struct Queues<R, M> {
    posted: VecDeque<(Wanted, R)>,
    arrived: VecDeque<(Envelope, M)>,
}

impl<R, M> Default for Queues<R, M> {
    fn default() -> Queues<R, M> {
        Queues {
            posted: VecDeque::new(),
            arrived: VecDeque::new(),
        }
    }
}

impl<R, M> Queues<R, M> {
    /// The receive that a message meets, taken out.
    pub(super) fn meet(&mut self, message: &Envelope) -> Option<R> {
        let at = self.posted.iter().position(|(w, _)| w.takes(message))?;
        self.posted.remove(at).map(|(_, r)| r)
    }

    /// Keeps a message that met none.
    pub(super) fn keep(&mut self, envelope: Envelope, message: M) {
        self.arrived.push_back((envelope, message));
    }

    /// The first message for a receive or a matched probe, taken out.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<(Envelope, M)> {
        let at = self.arrived.iter().position(|(e, _)| wanted.takes(e))?;
        self.arrived.remove(at)
    }

    /// Keeps a receive that met no message.
    pub(super) fn post(&mut self, wanted: Wanted, receive: R) {
        self.posted.push_back((wanted, receive));
    }

    /// The first message for a probe.
    pub(super) fn look(&self, wanted: &Wanted) -> Option<(&Envelope, &M)> {
        let found = self.arrived.iter().find(|(e, _)| wanted.takes(e));
        found.map(|(e, m)| (e, m))
    }

    /// Takes out the receives for which this says so.
    pub(super) fn withdraw(&mut self, mut which: impl FnMut(&R) -> bool) -> Vec<R> {
        let mut out = Vec::new();
        for _ in 0..self.posted.len() {
            let Some((wanted, receive)) = self.posted.pop_front() else {
                break;
            };
            if which(&receive) {
                out.push(receive);
            } else {
                self.posted.push_back((wanted, receive));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn wanted(source: Option<u32>, tag: Option<i32>) -> Wanted {
        Wanted { source, tag }
    }

    const fn of(source: u32, tag: i32) -> Envelope {
        Envelope { source, tag }
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
}
