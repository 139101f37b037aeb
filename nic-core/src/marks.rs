//! Marks of links with something to read: one bit for each link, in words that its peer shares.
//!
//! A producer stores lines and calls [`set`]. The consumer calls [`take`], and then looks at the
//! links of the marks. A line without a mark is never left behind: when both act at once, the
//! producer sees the mark taken, or the consumer sees the line. Each bit has one producer.

use crate::sync::{fence, AtomicU64, Ordering};

/// Marks a link. The caller's lines are stored, and a `SeqCst` fence lies between.
#[inline]
pub(crate) fn set(words: &[AtomicU64], link: usize) {
    let (Some(word), bit) = (words.get(link / 64), 1 << (link % 64)) else {
        return;
    };
    // Relaxed: behind the caller's fence, which pairs with the one in `take`. A mark that is still
    // seen will be taken later, and the lines are seen then.
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
        // SeqCst: the mark is there before the caller looks whether the consumer sleeps.
        fence(Ordering::SeqCst);
    }
}

/// Takes the marks of a word.
#[inline]
pub(crate) fn take(word: &AtomicU64) -> u64 {
    // Relaxed: a mark that is missed is seen by the next look.
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let marks = word.swap(0, Ordering::Relaxed);
    // SeqCst: the marks are taken before the rings are read; pairs with the producer's fence.
    fence(Ordering::SeqCst);
    marks
}
