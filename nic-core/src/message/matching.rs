//! Which message meets which receive, in one context.
//!
//! Receives without a message, and messages without a receive, by number. Agreed messages are found
//! by sender and tag. User messages and their receives stand in order, of arrival and of posting;
//! the first that fits is taken, so messages of one sender do not overtake each other.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// Bit of the tags of user messages; the rest is the user's tag.
pub(crate) const USER_TAG: u64 = 1 << 63;
/// Further bit of those that belong to streams: no receive of messages takes them.
pub(crate) const STREAM_TAG: u64 = 1 << 62;

/// Whether a tag is one of user messages.
#[inline]
pub(super) fn is_user(tag: u64) -> bool {
    tag & USER_TAG != 0
}

/// What a receive of user messages takes; `None`: any.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    from: Option<u32>,
    tag: Option<u64>,
}

impl Wanted {
    fn takes(&self, (from, tag): (u32, u64)) -> bool {
        let fits = self.tag.map_or(tag & STREAM_TAG == 0, |t| t == tag);
        fits && self.from.is_none_or(|f| f == from)
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Receives of agreed messages: by sender and tag.
    posted: FxHashMap<(u32, u64), u32>,
    /// Receives of user messages, oldest first.
    user_posted: VecDeque<(u32, Wanted)>,
    /// Agreed messages without a receive: by sender and tag. (Tags are a peer's choice, but it can
    /// have no more of them here than it may have early messages.)
    early: FxHashMap<(u32, u64), u32>,
    /// User messages without a receive, oldest first.
    user_early: VecDeque<(u32, (u32, u64))>,
    /// Receives that peers have announced, as early messages: by peer and tag.
    announced: FxHashMap<(u32, u64), u32>,
    /// Sends to receives that are not announced yet, and the hash of each: by peer and tag.
    waiting: FxHashMap<(u32, u64), (u32, u32)>,
}

impl Matching {
    /// The receive that a message meets, taken out.
    #[inline]
    pub(super) fn take_posted(&mut self, from: u32, tag: u64) -> Option<u32> {
        if !is_user(tag) {
            return self.posted.remove(&(from, tag));
        }
        let mut posted = self.user_posted.iter();
        let i = posted.position(|(_, w)| w.takes((from, tag)))?;
        self.user_posted.remove(i).map(|(id, _)| id)
    }

    /// The early message that a receive of user messages meets, taken out.
    pub(super) fn take_early_user(&mut self, from: Option<u32>, tag: Option<u64>) -> Option<u32> {
        let wanted = Wanted { from, tag };
        let mut early = self.user_early.iter();
        let i = early.position(|(_, of)| wanted.takes(*of))?;
        self.user_early.remove(i).map(|(id, _)| id)
    }

    /// The early message that a receive of an agreed one meets, taken out.
    #[inline]
    pub(super) fn take_early(&mut self, of: (u32, u64)) -> Option<u32> {
        self.early.remove(&of)
    }

    /// A receive of user messages waits.
    pub(super) fn post_user(&mut self, id: u32, from: Option<u32>, tag: Option<u64>) {
        self.user_posted.push_back((id, Wanted { from, tag }));
    }

    /// A receive of an agreed message waits.
    #[inline]
    pub(super) fn post(&mut self, id: u32, of: (u32, u64)) {
        self.posted.insert(of, id);
    }

    /// Whether an agreed message like this waits already, which a correct peer does not send twice.
    pub(super) fn has_early(&self, of: (u32, u64)) -> bool {
        self.early.contains_key(&of)
    }

    /// Whether the peer has announced a receive like this already.
    pub(super) fn has_announced(&self, of: (u32, u64)) -> bool {
        self.announced.contains_key(&of)
    }

    /// A message waits for its receive.
    pub(super) fn keep_early(&mut self, id: u32, of: (u32, u64)) {
        if is_user(of.1) {
            self.user_early.push_back((id, of));
        } else {
            self.early.insert(of, id);
        }
    }

    /// An announced receive waits for its message.
    pub(super) fn keep_announced(&mut self, id: u32, of: (u32, u64)) {
        self.announced.insert(of, id);
    }

    /// The announced receive of a message, taken out.
    pub(super) fn take_announced(&mut self, of: (u32, u64)) -> Option<u32> {
        self.announced.remove(&of)
    }

    /// A message waits until its receive is announced.
    pub(super) fn wait(&mut self, of: (u32, u64), send: u32, hash: u32) {
        self.waiting.insert(of, (send, hash));
    }

    /// The message that waits for such a receive, and its hash.
    pub(super) fn waiting(&self, of: (u32, u64)) -> Option<(u32, u32)> {
        self.waiting.get(&of).copied()
    }

    /// It waits no more.
    pub(super) fn met(&mut self, of: (u32, u64)) {
        self.waiting.remove(&of);
    }

    /// Agreed messages without a receive, and announced receives without a message.
    pub(super) fn agreed(&self) -> impl Iterator<Item = u32> + '_ {
        self.early.values().chain(self.announced.values()).copied()
    }

    /// Takes out a receive that has met nothing.
    pub(super) fn forget_posted(&mut self, id: u32) {
        self.user_posted.retain(|(posted, _)| *posted != id);
        self.posted.retain(|_, posted| *posted != id);
    }

    /// Takes out a message that has met nothing.
    pub(super) fn forget_early(&mut self, id: u32) {
        self.user_early.retain(|(early, _)| *early != id);
        self.early.retain(|_, early| *early != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy)]
    enum Do {
        Arrive(u32, u64),
        Post(Option<u32>, Option<u64>),
        Cancel(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Do>> {
        let tag = prop_oneof![0..3_u64, (0..2_u64).prop_map(|t| t | STREAM_TAG)];
        let tag = tag.prop_map(|t| t | USER_TAG);
        let any_tag = prop::option::of(tag.clone());
        let step = prop_oneof![
            (0..3_u32, tag).prop_map(|(f, t)| Do::Arrive(f, t)),
            (prop::option::of(0..3_u32), any_tag).prop_map(|(f, t)| Do::Post(f, t)),
            any::<usize>().prop_map(Do::Cancel),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        /// Against a model: of all pairs that fit, the one with the oldest message or the oldest
        /// receive meets (MPI 4.1, section 3.5).
        #[test]
        fn user_messages_meet_in_order(steps in steps()) {
            let mut m = Matching::default();
            let (mut receives, mut messages) = (Vec::new(), Vec::new());
            for (id, step) in (0u32..).zip(steps) {
                match step {
                    Do::Arrive(from, tag) => {
                        let fits = |r: &(u32, Option<u32>, Option<u64>)| {
                            let is_stream = tag & STREAM_TAG != 0;
                            (r.1.is_none() || r.1 == Some(from))
                                && (r.2 == Some(tag) || (r.2.is_none() && !is_stream))
                        };
                        let expected = receives.iter().position(fits);
                        let expected = expected.map(|i| receives.remove(i).0);
                        prop_assert_eq!(m.take_posted(from, tag), expected);
                        if expected.is_none() {
                            messages.push((id, from, tag));
                            m.keep_early(id, (from, tag));
                        }
                    }
                    Do::Post(from, tag) => {
                        let fits = |e: &(u32, u32, u64)| {
                            let is_stream = e.2 & STREAM_TAG != 0;
                            (from.is_none() || from == Some(e.1))
                                && (tag == Some(e.2) || (tag.is_none() && !is_stream))
                        };
                        let expected = messages.iter().position(fits);
                        let expected = expected.map(|i| messages.remove(i).0);
                        prop_assert_eq!(m.take_early_user(from, tag), expected);
                        if expected.is_none() {
                            receives.push((id, from, tag));
                            m.post_user(id, from, tag);
                        }
                    }
                    Do::Cancel(n) if !receives.is_empty() => {
                        let (id, ..) = receives.remove(n % receives.len());
                        m.forget_posted(id);
                    }
                    Do::Cancel(n) if !messages.is_empty() => {
                        let (id, ..) = messages.remove(n % messages.len());
                        m.forget_early(id);
                    }
                    Do::Cancel(_) => {}
                }
            }
        }
    }

    #[test]
    fn agreed_messages_meet_by_sender_and_tag_alone() {
        let mut m = Matching::default();
        m.post(1, (0, 7));
        m.post(2, (1, 7));
        assert_eq!(m.take_posted(1, 8), None);
        assert_eq!(m.take_posted(1, 7), Some(2));
        assert_eq!(m.take_posted(1, 7), None);
        m.keep_early(3, (1, 7));
        assert!(m.has_early((1, 7)) && !m.has_early((0, 7)));
        m.keep_announced(4, (1, 7));
        let mut agreed: Vec<u32> = m.agreed().collect();
        agreed.sort_unstable();
        assert_eq!(agreed, [3, 4]);
        assert_eq!(m.take_early((1, 7)), Some(3));
        assert_eq!(m.take_announced((1, 7)), Some(4));
        // Receives of user messages take no agreed ones.
        m.keep_early(5, (1, 9));
        assert_eq!(m.take_early_user(None, None), None);
    }
}
