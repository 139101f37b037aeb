//! Work for each of several ranks, by several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranks that a thread takes at once.
const TAKES: usize = 4;

/// Does something for each rank of a list, on at most so many threads.
pub(crate) fn each(threads: usize, ranks: &[usize], what: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut first = 0;
        while first < ranks.len() {
            first = next.fetch_add(TAKES, Ordering::Relaxed);
            let taken = ranks.iter().skip(first).take(TAKES);
            taken.for_each(|rank| what(*rank));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(ranks.len().div_ceil(TAKES)) {
            // Where the system refuses a thread the others do its part.
            let thread = std::thread::Builder::new().spawn_scoped(scope, take);
            if thread.is_err() {
                break;
            }
        }
        take();
    });
}
