//! Which message meets which receive, in one context.
//!
//! Receives without a message, and messages without a receive, by number. Agreed messages are found
//! by sender and tag. User messages and their receives stand in order, of arrival and of posting;
//! the first that fits is taken, so messages of one sender do not overtake each other.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// Bit of the tags of user messages; the rest is the user's tag.
pub(crate) const USER_TAG: u64 = 1 << 63;
/// Further bit of those that belong to streams.
pub(crate) const STREAM_TAG: u64 = 1 << 62;
/// Further bit of those that the host sends by [`claims`](super::claim). Bits 32 to 60 are a number
/// that keeps messages apart.
pub(crate) const HOST_TAG: u64 = 1 << 61;

/// All three: of [`awaited`](super::awaited) messages.
pub(crate) const AWAITED_TAG: u64 = USER_TAG | STREAM_TAG | HOST_TAG;

/// Whether a tag is one of awaited messages.
#[inline]
pub(super) fn is_awaited(tag: u64) -> bool {
    tag & AWAITED_TAG == AWAITED_TAG
}

/// Whether a tag is one of user messages.
#[inline]
pub(super) fn is_user(tag: u64) -> bool {
    tag & USER_TAG != 0
}

/// Tags that a receive of user messages takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tags {
    One(u64),
    /// Every one with the same upper half.
    Like(u64),
}

impl Tags {
    /// Whether they are those of [`HOST_TAG`].
    pub(super) fn are_of_host(self) -> bool {
        let (Tags::One(tag) | Tags::Like(tag)) = self;
        tag & HOST_TAG != 0
    }

    /// The tag, or the least of them.
    pub(super) fn one(self) -> u64 {
        let (Tags::One(tag) | Tags::Like(tag)) = self;
        tag
    }

    #[inline]
    fn takes(self, tag: u64) -> bool {
        match self {
            Tags::One(t) => t == tag,
            Tags::Like(t) => t >> 32 == tag >> 32,
        }
    }
}

/// What a receive of user messages takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// `None`: any member.
    pub(crate) from: Option<u32>,
    pub(crate) tags: Tags,
}

impl Wanted {
    fn takes(&self, (from, tag): (u32, u64)) -> bool {
        self.tags.takes(tag) && self.from.is_none_or(|f| f == from)
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
    /// The same of awaited messages, oldest first.
    user_announced: VecDeque<(u32, (u32, u64))>,
    /// Sends to receives that are not announced yet, and the hash of each: by peer and tag.
    waiting: FxHashMap<(u32, u64), (u32, u32)>,
    /// Awaited messages that have left early and are not answered, nor their receives announced,
    /// oldest first: by key.
    gone: VecDeque<(u64, (u32, u64))>,
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
    pub(super) fn take_early_user(&mut self, wanted: &Wanted) -> Option<u32> {
        let mut early = self.user_early.iter();
        let i = early.position(|(_, of)| wanted.takes(*of))?;
        self.user_early.remove(i).map(|(id, _)| id)
    }

    /// The early message that a receive of user messages would meet.
    pub(super) fn look_early_user(&self, wanted: &Wanted) -> Option<u32> {
        let mut early = self.user_early.iter();
        early.find(|(_, of)| wanted.takes(*of)).map(|(id, _)| *id)
    }

    /// The early message that a receive of an agreed one meets, taken out.
    #[inline]
    pub(super) fn take_early(&mut self, of: (u32, u64)) -> Option<u32> {
        self.early.remove(&of)
    }

    /// A receive of user messages waits.
    pub(super) fn post_user(&mut self, id: u32, wanted: Wanted) {
        self.user_posted.push_back((id, wanted));
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
        if is_user(of.1) {
            self.user_announced.push_back((id, of));
        } else {
            self.announced.insert(of, id);
        }
    }

    /// The announced receive of a message, taken out.
    pub(super) fn take_announced(&mut self, of: (u32, u64)) -> Option<u32> {
        if !is_user(of.1) {
            return self.announced.remove(&of);
        }
        let mut all = self.user_announced.iter();
        let i = all.position(|(_, announced)| *announced == of)?;
        self.user_announced.remove(i).map(|(id, _)| id)
    }

    /// Whether a receive of such an awaited message is announced.
    pub(super) fn is_told(&self, of: (u32, u64)) -> bool {
        self.user_announced.iter().any(|(_, told)| *told == of)
    }

    /// Whether a receive waits for such a user message.
    pub(super) fn has_posted(&self, of: (u32, u64)) -> bool {
        self.user_posted.iter().any(|(_, w)| w.takes(of))
    }

    /// An awaited message leaves before its receive is announced.
    pub(super) fn leave_early(&mut self, key: u64, of: (u32, u64)) {
        self.gone.push_back((key, of));
    }

    /// Whether the message of a receive that is announced has left early; if so it is taken out.
    pub(super) fn take_gone(&mut self, of: (u32, u64)) -> bool {
        let i = self.gone.iter().position(|(_, gone)| *gone == of);
        i.is_some_and(|i| self.gone.remove(i).is_some())
    }

    /// A message that has left early is answered: its receive is not announced any more.
    pub(super) fn forget_gone(&mut self, key: u64) {
        self.gone.retain(|(gone, _)| *gone != key);
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
        let mut user = self.user_posted.iter();
        match user.position(|(posted, _)| *posted == id) {
            Some(i) => drop(self.user_posted.remove(i)),
            None => self.posted.retain(|_, posted| *posted != id),
        }
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
        Post(Wanted),
        Look(Wanted),
        Cancel(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Do>> {
        // Of programs, of streams, and of the host with two numbers.
        let host = HOST_TAG >> 32;
        let kind = prop::sample::select(vec![0, STREAM_TAG >> 32, host, host | 1]);
        let tag = (kind, 0..3_u64).prop_map(|(k, t)| USER_TAG | k << 32 | t);
        let tags = (tag.clone(), any::<bool>()).prop_map(|(t, one)| match one {
            true => Tags::One(t),
            false => Tags::Like(t),
        });
        let wanted =
            (prop::option::of(0..3_u32), tags).prop_map(|(from, tags)| Wanted { from, tags });
        let step = prop_oneof![
            (0..3_u32, tag).prop_map(|(f, t)| Do::Arrive(f, t)),
            wanted.clone().prop_map(Do::Post),
            wanted.prop_map(Do::Look),
            any::<usize>().prop_map(Do::Cancel),
        ];
        prop::collection::vec(step, 0..60)
    }

    /// By the definition: a receive takes a tag, or all of those that differ in the user's part
    /// alone.
    fn fits(w: &Wanted, from: u32, tag: u64) -> bool {
        let same = |t: u64| t & !0xffff_ffff == tag & !0xffff_ffff;
        (w.from.is_none() || w.from == Some(from))
            && match w.tags {
                Tags::One(t) => t == tag,
                Tags::Like(t) => same(t),
            }
    }

    proptest! {
        /// Against a model: of all pairs that fit, the one with the oldest message or the oldest
        /// receive meets (MPI 4.1, section 3.5).
        #[test]
        fn user_messages_meet_in_order(steps in steps()) {
            let mut m = Matching::default();
            let (mut receives, mut messages) = (Vec::<(u32, Wanted)>::new(), Vec::<(u32, u32, u64)>::new());
            for (id, step) in (0u32..).zip(steps) {
                match step {
                    Do::Arrive(from, tag) => {
                        let expected = receives.iter().position(|(_, w)| fits(w, from, tag));
                        let expected = expected.map(|i| receives.remove(i).0);
                        prop_assert_eq!(m.take_posted(from, tag), expected);
                        if expected.is_none() {
                            messages.push((id, from, tag));
                            m.keep_early(id, (from, tag));
                        }
                    }
                    Do::Post(wanted) => {
                        let expected = messages.iter().position(|e| fits(&wanted, e.1, e.2));
                        let expected = expected.map(|i| messages.remove(i).0);
                        prop_assert_eq!(m.take_early_user(&wanted), expected);
                        if expected.is_none() {
                            receives.push((id, wanted));
                            m.post_user(id, wanted);
                        }
                    }
                    Do::Look(wanted) => {
                        let expected = messages.iter().find(|e| fits(&wanted, e.1, e.2));
                        prop_assert_eq!(m.look_early_user(&wanted), expected.map(|e| e.0));
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
    fn announced_receives_of_awaited_messages_are_taken_in_order_of_their_tag() {
        let mut m = Matching::default();
        let [a, b] = [AWAITED_TAG | 1, AWAITED_TAG | 2];
        for (id, of) in [(1, (0, a)), (2, (0, b)), (3, (0, a)), (4, (1, a))] {
            m.keep_announced(id, of);
        }
        assert!(m.is_told((0, a)) && !m.is_told((1, b)));
        let taken = [(0, a), (0, a), (0, a), (1, a)].map(|of| m.take_announced(of));
        assert_eq!(taken, [Some(1), Some(3), None, Some(4)]);
        // Of two that have left early, one is answered before its receive is announced.
        m.leave_early(10, (0, a));
        m.leave_early(11, (0, a));
        m.forget_gone(10);
        assert_eq!([m.take_gone((0, b)), m.take_gone((0, a))], [false, true]);
        assert!(!m.take_gone((0, a)));
        assert!(is_awaited(a) && is_user(a));
        assert!(!is_awaited(USER_TAG | HOST_TAG) && !is_awaited(USER_TAG | STREAM_TAG));
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
        let any = Wanted {
            from: None,
            tags: Tags::Like(USER_TAG),
        };
        assert_eq!(m.take_early_user(&any), None);
    }
}
