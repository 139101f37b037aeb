//! [`Kept`]: registrations of arrays and tensors that outlive their operations, so that one that is used again costs a look-up.
//!
//! An array may be freed while its memory is still registered. That is sound: the NIC touches only
//! memory of operations under way, and those hold their arrays. Memory that is allocated anew in
//! the same place ends the old registrations, unless it is exactly one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most registrations that are kept; the oldest makes room.
const MOST: usize = 4096;

#[derive(Debug)]
struct Entry<R> {
    bytes: u64,
    number: u64,
    region: Arc<R>,
}

#[derive(Debug)]
struct State<R> {
    by_start: BTreeMap<u64, Entry<R>>,
    /// Start by number: the oldest first.
    by_age: BTreeMap<u64, u64>,
    next: u64,
}

/// Registrations of type `R`; the end of each is its own.
#[derive(Debug)]
pub(crate) struct Kept<R> {
    state: Mutex<State<R>>,
}

impl<R> Default for Kept<R> {
    fn default() -> Kept<R> {
        let state = State {
            by_start: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next: 0,
        };
        Kept {
            state: Mutex::new(state),
        }
    }
}

impl<R> Kept<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // Both maps change together, and nothing between the changes panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a registration of the bytes from `start` on.
    pub(crate) fn keep(&self, start: u64, bytes: u64, region: Arc<R>) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let entry = Entry {
            bytes,
            number,
            region,
        };
        let before = state.by_start.insert(start, entry);
        if let Some(before) = &before {
            state.by_age.remove(&before.number);
        }
        state.by_age.insert(number, start);
        let mut oldest = None;
        if state.by_start.len() > MOST {
            let first = state.by_age.pop_first();
            oldest = first.and_then(|(_, start)| state.by_start.remove(&start));
        }
        // Ending a registration takes other locks.
        drop(state);
        drop((before, oldest));
    }

    /// Lets go of the registrations that overlap these bytes. Returns whether there were any.
    pub(crate) fn forget(&self, start: u64, end: u64) -> bool {
        let mut state = self.lock();
        let mut gone = Vec::new();
        loop {
            let last = state.by_start.range(..end).next_back();
            let Some((at, _)) = last.filter(|(at, e)| start < *at + e.bytes) else {
                break;
            };
            let at = *at;
            if let Some(entry) = state.by_start.remove(&at) {
                state.by_age.remove(&entry.number);
                gone.push(entry.region);
            }
        }
        drop(state);
        !gone.is_empty()
    }
}
