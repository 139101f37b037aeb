//! Ready links: which links of a NIC have something to do, without a look at each.
//!
//! With few links each ring is looked at: a load for each, and what arrives is found by the load
//! that reads it. With more, peers mark the links to which they write
//! ([`marks`]), so that a step costs what is there to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::marks;
use crate::wake::WakeCell;

/// Most links whose rings are looked at one by one. A mark costs the sender a locked instruction,
/// and the receiver the transfer of one more line.
const FEW: usize = 8;

/// A set of links. Only ever used under the NIC's lock.
#[derive(Debug, Clone)]
struct LinkSet(Arc<[AtomicU64]>);

impl LinkSet {
    fn new(links: usize) -> LinkSet {
        LinkSet((0..links.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn insert(&self, link: usize) {
        let word = &self.0[link / 64];
        word.store(
            word.load(Ordering::Relaxed) | 1 << (link % 64),
            Ordering::Relaxed,
        );
    }

    /// Whether there is any, of so many links.
    #[inline]
    fn is_empty(&self, links: usize) -> bool {
        let words = &self.0[..links.div_ceil(64)];
        words.iter().all(|w| w.load(Ordering::Relaxed) == 0)
    }

    /// The links of a word, which are in the set no more.
    #[inline]
    fn take(&self, word: usize) -> Members {
        let w = &self.0[word];
        let bits = w.load(Ordering::Relaxed);
        w.store(0, Ordering::Relaxed);
        Members {
            bits,
            base: word * 64,
        }
    }
}

/// Links of one word.
pub(super) struct Members {
    bits: u64,
    base: usize,
}

impl Iterator for Members {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.bits == 0 {
            return None;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(self.base + bit)
    }
}

/// Announcement of the lines that a link has pushed: to its transport, which flushes it, and then
/// to the peer.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    /// The set of links to be flushed, where marks are used, and this link's number.
    to_send: Option<(LinkSet, usize)>,
    /// What wakes the peer, and the link there.
    peer: Option<(Arc<WakeCell>, usize)>,
    pushed: bool,
}

impl Announcer {
    /// The link is one of many: from now on it says when it is to be flushed.
    pub(super) fn join(&mut self, ready: &Ready, number: usize) {
        self.to_send = Some((ready.to_send.clone(), number));
        self.has_to_send();
    }

    /// The peer is known.
    pub(super) fn establish(&mut self, wake: Arc<WakeCell>, number: usize) {
        self.peer = Some((wake, number));
    }

    /// The link has something to send.
    #[inline]
    pub(super) fn has_to_send(&self) {
        if let Some((set, number)) = &self.to_send {
            set.insert(*number);
        }
    }

    /// A line was pushed.
    #[inline]
    pub(super) fn pushed(&mut self) {
        if !std::mem::replace(&mut self.pushed, true) {
            self.has_to_send();
        }
    }

    /// Whether lines were pushed since the last announcement.
    #[inline]
    pub(super) fn has_pushed(&self) -> bool {
        self.pushed
    }

    /// Announces what was pushed since the last call.
    #[inline]
    pub(super) fn announce(&mut self) {
        if std::mem::take(&mut self.pushed) {
            if let Some((wake, link)) = &self.peer {
                wake.announce(*link);
            }
        }
    }

    /// Wakes the peer if it sleeps.
    pub(super) fn wake(&self) {
        if let Some((wake, _)) = &self.peer {
            wake.poke();
        }
    }
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Ready {
    /// To be flushed, or with packets that wait for room, where marks are used.
    to_send: LinkSet,
    /// With packets to read that have no mark.
    to_read: LinkSet,
    /// In a handshake, ended, or with notes to send: what only time or a socket moves.
    to_settle: LinkSet,
    /// Peers mark the links to which they write.
    by_marks: bool,
    /// Links there have been at once.
    links: usize,
}

impl Ready {
    /// For at most so many links.
    pub(super) fn new(limit: usize) -> Ready {
        Ready {
            to_send: LinkSet::new(limit),
            to_read: LinkSet::new(limit),
            to_settle: LinkSet::new(limit),
            by_marks: false,
            links: 0,
        }
    }

    /// There is a link with this number, in its handshake. Returns whether peers mark their links
    /// from now on.
    pub(super) fn opened(&mut self, link: usize, wake: &WakeCell) -> bool {
        self.links = self.links.max(link + 1);
        self.to_settle.insert(link);
        if self.links > FEW && !self.by_marks {
            self.by_marks = true;
            wake.ask_for_marks();
            // Peers may not have seen the request.
            (0..self.links).for_each(|l| self.to_read.insert(l));
            return true;
        }
        false
    }

    /// There may be packets that have no mark.
    #[inline]
    pub(super) fn may_read(&mut self, link: usize) {
        self.to_read.insert(link);
    }

    /// Time may have to move this link on.
    pub(super) fn unsettled(&mut self, link: usize) {
        self.to_settle.insert(link);
    }

    /// Whether peers mark the links to which they write. Otherwise there are few links, each of
    /// which is looked at.
    #[inline]
    pub(super) fn by_marks(&self) -> bool {
        self.by_marks
    }

    /// Words of the sets in use.
    #[inline]
    pub(super) fn words(&self) -> usize {
        self.links.div_ceil(64)
    }

    /// Links to be flushed, of those of a word.
    #[inline]
    pub(super) fn links_to_send(&self, word: usize) -> Members {
        self.to_send.take(word)
    }

    /// Links that time may have to move, of those of a word.
    pub(super) fn links_to_settle(&self, word: usize) -> Members {
        self.to_settle.take(word)
    }

    /// Links with marks, of those of a word.
    pub(super) fn links_to_read(&self, word: usize, wake: &WakeCell) -> Members {
        let mut members = self.to_read.take(word);
        members.bits |= marks::take(&wake.marks()[word]);
        members
    }

    /// Whether nothing is to be flushed, and no packet has come, where marks are used.
    #[inline(never)]
    pub(super) fn many_are_quiet(&self, wake: &WakeCell) -> bool {
        let mut marked = wake.marks()[..self.words()].iter();
        self.to_send.is_empty(self.links)
            && self.to_read.is_empty(self.links)
            && marked.all(|w| w.load(Ordering::Relaxed) == 0)
    }

    /// Whether no link is in a handshake, ended, or has notes to send.
    pub(super) fn is_settled(&self) -> bool {
        self.to_settle.is_empty(self.links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(ready: &Ready, wake: &WakeCell) -> Vec<usize> {
        let words = 0..ready.words();
        words.flat_map(|w| ready.links_to_read(w, wake)).collect()
    }

    #[test]
    fn few_links_are_looked_at_and_of_many_those_with_marks() {
        let wake = WakeCell::new().expect("a wake cell");
        let mut ready = Ready::new(200);
        for link in 0..FEW {
            ready.opened(link, &wake);
        }
        wake.announce(3);
        assert!(!ready.by_marks());
        ready.opened(FEW, &wake);
        assert!(ready.by_marks() && !ready.many_are_quiet(&wake));
        assert_eq!(
            marked(&ready, &wake),
            (0..=FEW).collect::<Vec<_>>(),
            "what had come before there were marks"
        );
        assert!(ready.many_are_quiet(&wake));
        for link in FEW + 1..200 {
            ready.opened(link, &wake);
        }
        for link in [199, 64, 3, 64] {
            wake.announce(link);
        }
        ready.may_read(127);
        assert!(!ready.many_are_quiet(&wake));
        assert_eq!(marked(&ready, &wake), [3, 64, 127, 199]);
        assert!(ready.many_are_quiet(&wake));
        Announcer::default().join(&ready, 130);
        assert!(!ready.many_are_quiet(&wake));
        assert_eq!(ready.links_to_send(2).collect::<Vec<_>>(), [130]);
        assert!(ready.many_are_quiet(&wake));
    }

    #[test]
    fn a_peer_cannot_mark_what_is_no_link() {
        let wake = WakeCell::new().expect("a wake cell");
        wake.ask_for_marks();
        wake.announce(usize::MAX);
        wake.announce(crate::wake::MARK_LINKS);
        assert!(wake.marks().iter().all(|w| w.load(Ordering::Relaxed) == 0));
    }
}
